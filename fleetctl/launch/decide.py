"""What the job side does next. Pure: takes what was seen, returns one action."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import takewhile

from msgspec import Struct

from fleetctl.rundir.model import WITHOUT_GPUS, Attempt, Ending

QUICK = timedelta(minutes=10)  # 73 % of failing tasks fail within their first ten minutes (Aegis, NSDI 2025)
_QUICK_FAILURES = 2
_ANY_FAILURES = 2  # times max_failures: failures that take turns are no progress either


class Leave(Struct, frozen=True):
    """The script ends with this attempt's status; nothing is asked of Slurm."""


class Restart(Struct, frozen=True):
    """Start the steps again inside the allocation, on these nodes."""

    nodes: tuple[str, ...]
    why: str


class Requeue(Struct, frozen=True):
    """Give the allocation back and let Slurm start the job again."""

    why: str


class Wait(Struct, frozen=True):
    """Too few nodes live now and what is missing is neither dead for Slurm nor back: a requeue would do harm.

    `then_requeue`: it waits only for that, and starts nothing here any more.
    """

    why: str
    about: str = ""  # what it is that goes on afterwards
    then_requeue: bool = False


class StandBy(Struct, frozen=True):
    """Somebody else leads the run by now."""


class Hold(Struct, frozen=True):
    """End, and let nothing start the run again until a person says so."""

    why: str


Action = Leave | Restart | Requeue | Wait | Hold | StandBy


class Nodes(Struct, frozen=True):
    """The job's nodes as the watch sees them, in the order in which they are used; `down` is Slurm's word."""

    alive: tuple[str, ...]
    paused: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    down: frozenset[str] = frozenset()


class Policy(Struct, frozen=True):
    """What the spec allows. `max_failures` None: nothing is started again. `nodes` 0: Slurm places the steps."""

    nodes: int
    max_failures: int | None
    outlives_nodes: bool  # --no-kill: Slurm does not requeue the job when a node dies
    requeue_is_safe: bool = False  # also while a node is silent and not DOWN: Slurm 24.11 and newer


def after_attempt(ending: Ending, nodes: Nodes, brake: str | None, policy: Policy) -> Action:
    """What follows an attempt that ended so; `brake` is why a failure may not be tried again, if so."""
    if ending is Ending.FENCED:
        return StandBy()
    if ending in (Ending.FINISHED, Ending.TOLD) or policy.max_failures is None:
        return Leave()
    if brake is not None:
        return Hold(brake)
    if ending is Ending.SAVED:
        return requeue_when_safe("it saved to go on in another allocation", nodes, policy)
    return go_on(ending.value.replace("_", " "), nodes, policy)


def go_on(why: str, nodes: Nodes, policy: Policy) -> Action:
    """Restart where enough nodes live, else the cheapest road that does no harm.

    A job must not be requeued while one of its nodes is unresponsive and not DOWN (22.05.8 brings it back without its
    GPUs and leaks them); without --no-kill Slurm itself requeues it then.
    """
    if policy.nodes == 0 or len(nodes.alive) >= policy.nodes:
        return Restart(nodes.alive[: policy.nodes], why)
    missing = f"{len(nodes.alive)} of {policy.nodes} nodes live"
    if nodes.paused:
        return Wait(f"{missing}; {', '.join(nodes.paused)} may come back", why)
    if not policy.outlives_nodes:
        return Wait(f"{missing}; Slurm requeues the job when it finds {', '.join(nodes.dead)} down", why)
    return requeue_when_safe(missing, nodes, policy)


def requeue_when_safe(why: str, nodes: Nodes, policy: Policy) -> Action:
    """Requeue, but never while a node of the job is silent and not DOWN."""
    silent = sorted({*nodes.dead, *nodes.paused} - nodes.down)
    if silent and not policy.requeue_is_safe:
        return Wait(f"{why}; Slurm must see first that {', '.join(silent)} is down", why, then_requeue=True)
    return Requeue(why)


def without_gpus(attempts: Sequence[Attempt], nodes: Nodes, policy: Policy) -> Action:
    """What follows where Slurm started the job without its GPUs: nothing inside has any, and another start may. Twice
    in a row it will not get better by itself. `attempts` are all ended ones, oldest first, this one included."""
    in_a_row = list(takewhile(lambda attempt: attempt.failure == WITHOUT_GPUS, reversed(attempts)))
    if len(in_a_row) <= 1:
        return requeue_when_safe(WITHOUT_GPUS, nodes, policy)
    where = next((f" on {attempt.nodes}" for attempt in in_a_row if attempt.nodes), "")
    return Hold(
        f"{WITHOUT_GPUS}, twice in a row; tell your administrators that slurmctld must be restarted: it lost count of"
        f" the GPUs{where}"
    )


def brake(failures: Sequence[Attempt], max_failures: int) -> str | None:
    """Why the newest failure may not be tried again; None if it may. `failures` are all ended attempts, oldest first.

    Same failures count as long as no newer checkpoint stood at the later one: progress clears the count, and restarts
    that were nobody's failure (a lost node, a preemption, a start without GPUs) neither count nor clear.
    """
    since: list[Attempt] = []  # the last progress, newest first
    for attempt in reversed([one for one in failures if one.failure not in (None, "", WITHOUT_GPUS)]):
        if since and _progress(attempt, since[-1]):
            break
        since.append(attempt)
    if not since:
        return None
    chain = list(takewhile(lambda attempt: attempt.failure == since[0].failure, since))
    what = f"{chain[0].failure}, {len(chain)} times without a newer checkpoint"
    if len(chain) >= max_failures:
        return what
    if len(since) >= _ANY_FAILURES * max_failures:
        return f"{len(since)} failures of several kinds without a newer checkpoint, the last: {chain[0].failure}"
    if len(chain) >= _QUICK_FAILURES and _ended(chain[0]) - _ended(chain[1]) <= QUICK:
        return f"{what}, twice within ten minutes"
    return None


def _progress(earlier: Attempt, later: Attempt) -> bool:
    return later.progress_step is not None and later.progress_step > (earlier.progress_step or 0)


def _ended(attempt: Attempt) -> datetime:
    assert attempt.ended_at is not None, "it has a failure"
    return attempt.ended_at
