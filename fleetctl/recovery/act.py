"""Do what was decided: write it down, look again, one thing, see that it happened, write down what came of it.

The deed itself is done by a process (recovery.acting) that is told until when it may act: well before the lease can be
another daemon's. Where it dies, or we do, the entry stays open, and `settle` looks whether the deed has happened.
Nothing is ever done again because its outcome is not known.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from fleetctl import process
from fleetctl.clock import Clock
from fleetctl.errors import FleetctlError
from fleetctl.recovery.journal import Journal
from fleetctl.recovery.lease import Leader
from fleetctl.recovery.model import Action, Deed, Done, Outcome, RunSeen
from fleetctl.recovery.order import Answer, Order, Seat, note_of, run_of
from fleetctl.recovery.policy import Mode
from fleetctl.recovery.stop import stopped
from fleetctl.recovery.wire import read, written
from fleetctl.rundir.history import attempts_of
from fleetctl.slurm.hosts import expand, fold
from fleetctl.slurm.model import AdminLevel
from fleetctl.submission.submit import Site

ARGV = (sys.executable, "-I", "-m", "fleetctl.recovery.acting")
# How long a deed may take: sbatch has 150 s for itself, a requeue is waited for 30 s, each after some questions
_NEEDS_S: Mapping[Deed, float] = {Deed.RESUBMIT: 240.0, Deed.REQUEUE: 90.0, Deed.REQUEUE_ENDED: 90.0}
_OTHERWISE_S = 45.0
_DYING_S = 2.0  # between the deadline that the process knows, and its death
_SAID = frozenset({Deed.TELL, Deed.PAUSE})  # nothing that Slurm or a run would notice
_LEVELS: Mapping[Deed, AdminLevel] = {
    Deed.DRAIN: AdminLevel.ADMINISTRATOR,
    Deed.SET_DOWN: AdminLevel.ADMINISTRATOR,
}
# The password of a database, and how systemd talks with its services (systemd.exec.5, sd_notify.3)
_OF_THE_DAEMON = frozenset(
    (
        *("FLEETCTL_DATABASE", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "INVOCATION_ID", "JOURNAL_STREAM"),
        *("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "CREDENTIALS_DIRECTORY", "SYSTEMD_EXEC_PID"),
    )
)
_RANK = {AdminLevel.NONE: 0, AdminLevel.OPERATOR: 1, AdminLevel.ADMINISTRATOR: 2}


class World(Struct, frozen=True):
    """What acts, and where. `level` is what Slurm lets the daemon's user do; `words` the folder of the site's words."""

    journal: Journal
    leader: Leader
    clock: Clock
    mode: Mode
    level: AdminLevel
    site: Site
    stop_file: Path | None = None
    words: Path | None = None
    note: Callable[[str], None] = lambda _: None
    argv: tuple[str, ...] = ARGV


def needs(deed: Deed, mode: Mode) -> AdminLevel | None:
    """The level of Slurm's that a deed needs; None: it is impossible in this mode."""
    if deed is Deed.RESUBMIT and mode is Mode.OPERATOR:
        return None
    if deed in _SAID or (mode is Mode.OPERATOR and deed in (Deed.HOLD, Deed.ROLL_BACK)):
        return AdminLevel.NONE
    return _LEVELS.get(deed, AdminLevel.OPERATOR if mode is Mode.OPERATOR else AdminLevel.NONE)


def act(action: Action, run: RunSeen | None, world: World) -> Done:
    """Do one thing. `run` is what was seen of the action's run.

    CHANGED with no entry in the journal: a person has stopped or paused it.
    :raises LeaseLost: another daemon may lead.
    :raises DatabaseError: it cannot be written down, so nothing was done; or what came of it cannot, and it stays open.
    """
    if why := _forbidden(action, run, world):
        return Done(action, world.clock.now(), Outcome.CHANGED, why)
    world.leader.renew_for(_time_for(action.deed) + world.leader.margin_s)
    begun = world.journal.begin(action)
    if isinstance(begun, Done):
        return begun
    at = world.clock.now()
    answer = Answer(Outcome.DONE) if action.deed in _SAID else _answer(_order(action, run, world), world)
    return _written(begun, Done(action, at, answer.outcome, answer.detail), answer, world)


def settle(world: World) -> tuple[Done, ...]:
    """Look what became of each deed that has no outcome, and write down what can be told. Nothing is done again.

    Those of an earlier lease can be under way no more: their processes ended before it could lapse.
    """
    found = []
    for entry in world.journal.unfinished():
        action = entry.done.action
        world.leader.renew_for(_OTHERWISE_S + _DYING_S + world.leader.margin_s)
        if action.deed in _SAID:
            answer = Answer(Outcome.FAILED, "the daemon ended before it was told")
        else:
            answer = _asked(_order(action, None, world, look_only=True), world)
        if answer.outcome is not Outcome.OPEN:
            found.append(_written(entry.number, entry.done, answer, world))
    return tuple(found)


def _forbidden(action: Action, run: RunSeen | None, world: World) -> str:
    """What a person says, or what this daemon may not do: looked at just before."""
    if why := stopped(world.stop_file):
        return why
    paused = world.journal.paused()
    if by := paused.get("") or paused.get(action.key):
        return f"paused by {by}"
    if run is not None and run.facts is not None and run.facts.opted_out:
        return "its spec keeps the daemon off it (recovery.daemon)"
    level = needs(action.deed, world.mode)
    if level is None:
        return "only the run's own user can do that"
    if _RANK[world.level] < _RANK[level]:
        return f"Slurm's level {level} is needed, and {world.site.user} has {world.level}"
    return ""


def _answer(order: Order, world: World) -> Answer:
    """What the process says; where it died, or does not know, a look by another one."""
    answer = _asked(order, world)
    if answer.outcome is not Outcome.OPEN:
        return answer
    world.note(f"{order.action.deed} for {order.action.key or ', '.join(order.action.nodes)}: {answer.detail}; looking")
    looked = _asked(_order_again(order, world), world)
    return looked if looked.outcome is not Outcome.OPEN else answer


def _asked(order: Order, world: World) -> Answer:
    left_s = order.deadline_s - world.clock.monotonic_s()
    if left_s <= 0:  # we were stopped since the entry was made
        return Answer(Outcome.OPEN if order.look_only else Outcome.CHANGED, "the time of this lease is over")
    child = process.start_piped(world.argv, _environ())
    try:
        return read(_heard(child, written(order), order.deadline_s + _DYING_S, world.clock), Answer)
    except (FleetctlError, OSError, ValueError) as error:
        return Answer(Outcome.OPEN, f"the process that acts did not answer: {error}")
    finally:
        child.end()


def _heard(child: process.Piped, order: str, until_s: float, clock: Clock) -> str:
    """One line for one line. A process that hangs in the kernel, on a file system that is away, is left behind.

    :raises FleetctlError, OSError: it has ended without an answer, or has none in time.
    """
    child.send(order.encode() + b"\n")
    said = b""
    while not said.endswith(b"\n"):
        part = child.receive(max(0.0, until_s - clock.monotonic_s()))
        if not part:
            raise FleetctlError("it has ended")
        said += part
    return said.decode()


def _environ() -> dict[str, str]:
    """Ours, but for what is about this daemon alone: a job that is submitted again inherits what is left."""
    return {name: value for name, value in os.environ.items() if name not in _OF_THE_DAEMON}


def _order(action: Action, run: RunSeen | None, world: World, *, look_only: bool = False) -> Order:
    run_id, task = run_of(action.key)
    history = run.facts.history if run is not None and run.facts is not None else None
    path = run.path if run is not None else str(world.site.store.root / run_id)
    return Order(
        action=action,
        mode=world.mode,
        seat=seat_of(world.site),
        path=path if run_id else "",
        attempts=attempts_of(history.attempts, task) if history else 0,
        wishes=history.asks.get(task, 0) if history else 0,
        deadline_s=_deadline_s(world),
        stop_file=str(world.stop_file or ""),
        words=str(world.words or ""),
        ours=tuple(expand(world.journal.note(note_of(action.key)))),
        look_only=look_only,
    )


def _order_again(order: Order, world: World) -> Order:
    from msgspec.structs import replace

    return replace(order, look_only=True, deadline_s=_deadline_s(world))


def _deadline_s(world: World) -> float:
    """On the monotonic clock."""
    return world.leader.until_s - world.leader.margin_s - _DYING_S


def _time_for(deed: Deed) -> float:
    return _NEEDS_S.get(deed, _OTHERWISE_S) + _DYING_S


def _written(number: int, done: Done, answer: Answer, world: World) -> Done:
    """The outcome in the journal; an open one stays as it is, to be settled."""
    from msgspec.structs import replace

    ended = replace(done, outcome=answer.outcome, detail=answer.detail, ended_at=world.clock.now())
    if answer.outcome is Outcome.OPEN:
        return replace(ended, ended_at=None)
    notes = {} if answer.ours is None else {note_of(done.action.key): fold(answer.ours)}
    world.journal.end(number, answer.outcome, answer.detail, notes)
    return ended


def seat_of(site: Site) -> Seat:
    """What the acting process is told of where we are."""
    return Seat(
        root=str(site.store.root),
        user=site.user,
        host=site.host,
        cluster=site.cluster,
        python=site.scripts.python,
        gpu_style=site.scripts.style.gpus,
        memory_style=site.scripts.style.memory,
        max_array_size=site.scripts.max_array_size,
        template_dirs=tuple(map(str, site.scripts.template_dirs)),
        comments_proved=site.settler.comments_proved,
        message_timeout_s=site.settler.policy.message_timeout_s,
    )
