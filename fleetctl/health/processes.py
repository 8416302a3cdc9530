"""End the processes that a job left on its node, and only those: by the job's cgroup; where there is none, by user
*and* job id in the environment, and only beside slurmd in its own cgroup, never in a login's.

A user may have another job, a login or a copy of this environment here, and a process may rewrite its own environment:
what is not proved stays. A signal goes through a pidfd, so that a reused pid is never hit.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import Callable, Dict, FrozenSet, Optional, Sequence, Tuple

from fleetctl.health.process_table import Job, Seen, look, place_of, see, status_of
from fleetctl.health.record import NamedTuple

PROC = "/proc"
CGROUP = "/sys/fs/cgroup"
TERM_WAIT_S = 1.0  # Slurm has waited KillWait (30 s) for the steps already; what is left here escaped it
KILL_WAIT_S = 0.5
_SETTLE_S = 0.03  # longer than a tick of the clock that files are stamped with (10 ms at the most)
_MOST_POLLED = 256  # the limit on open files is 1024 where nobody raised it
_OURS = ("slurmd", "slurmstepd")


class Ended(NamedTuple):
    """What came of it. `left` are processes of the job that live on, `others` the living ones of the same user that
    are not proved to be of the job; None: nobody could look. `clean_at` is when the last look that found none of the
    job's began, in seconds since the epoch; None: there was no such look."""

    killed: int
    left: Tuple[Seen, ...]
    others: Optional[Tuple[Seen, ...]]
    clean_at: Optional[float]


Sent = Dict[Tuple[int, int], int]  # (pid, start) -> the last signal sent


class World(NamedTuple):
    """Where to look, whom to spare (our own process and those above it), and the clocks. `place` are the lines of our
    own cgroups, which are slurmd's; None: not known."""

    spare: FrozenSet[int]
    proc: str = PROC
    cgroup: str = CGROUP
    own_uid: int = 0
    place: Optional[str] = ""
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


def here() -> World:
    """This machine, sparing this process and all above it. Call it before any fork: a child's parents may be gone."""
    spare = {os.getpid()}
    pid: Optional[int] = os.getpid()
    while pid is not None and pid > 1:
        spare.add(pid)
        status = status_of(f"{PROC}/{pid}")
        pid = int(status["PPid"]) if status and status["PPid"].isdigit() else None
    return World(spare=frozenset(spare), own_uid=os.geteuid(), place=place_of(f"{PROC}/self"))


def proof(seen: Seen, job: Job, place: Optional[str] = "") -> str:
    """What proves that a process is of this job: "cgroup", "environment", or "" for nothing. The cgroup outranks.

    What a job leaves where Slurm makes no cgroups is in slurmd's own, as we are (`place`). Elsewhere are the shell of a
    salloc, which has the job's id in its environment and is of the login that it was begun from, and what atd and
    cron run.
    """
    if seen.group:
        return "cgroup" if seen.group == job.job_id else ""
    if seen.group is None or not job.uid or seen.uid != job.uid:  # never by uid 0: half of the node is root's
        return ""
    if seen.place != place or seen.role in ("login", "manager"):
        return ""
    return "environment" if seen.told == job.job_id else ""


def spared(seen: Seen, world: World) -> bool:
    """Whether it is never touched: init, we ourselves, Slurm's daemons, and scripts that Slurm runs as we do."""
    if seen.pid <= 1 or seen.pid in world.spare:
        return True
    slurms = seen.name in _OURS and seen.uid in (0, world.own_uid)  # a user may call his program slurmd
    return slurms or (seen.role == "script" and seen.uid == world.own_uid)


def end_processes(job: Job, world: World, *, until: float) -> Ended:
    """End all processes of the job: TERM, then KILL, until two looks in a row find none, or `until` (monotonic).

    A process that waits in the kernel (state D) gets its KILL and is not waited for.
    """
    world = world._replace(spare=world.spare | {os.getpid()})
    sent: Sent = {}
    term_until: Optional[float] = None
    clean = 0
    while True:
        at = world.wall()
        found = look(job, world.proc, world.cgroup)
        if found is None:
            return Ended(0, (), None, None)
        mine = [seen for seen in found if proof(seen, job, world.place) and not spared(seen, world)]
        waiting = [seen for seen in mine if not (seen.state == "D" and sent.get(_key(seen)) == signal.SIGKILL)]
        clean = 0 if waiting else clean + 1
        now = world.monotonic()
        if clean == 2 or now >= until:
            gone = set(sent) - {_key(seen) for seen in mine}
            others = tuple(seen for seen in found if _is_other(seen, job, world))
            return Ended(len(gone), tuple(mine), others, None if mine else at)
        if waiting and term_until is None:
            term_until = now + TERM_WAIT_S
            _strike(waiting, job, world, sent, signal.SIGTERM, min(until, term_until))
        elif waiting:
            _strike(waiting, job, world, sent, signal.SIGKILL, min(until, now + KILL_WAIT_S))


def _is_other(seen: Seen, job: Job, world: World) -> bool:
    """Whether it is another process of the job's user: of another job, of a login, or of nobody knows what."""
    return (
        seen.uid == job.uid and seen.role != "manager" and not proof(seen, job, world.place) and not spared(seen, world)
    )


def _key(seen: Seen) -> Tuple[int, int]:
    return seen.pid, seen.started


def _strike(found: Sequence[Seen], job: Job, world: World, sent: Sent, number: signal.Signals, until: float) -> None:
    """Send the signal to each that is still the same process and still of the job, and wait for their ends."""
    with contextlib.ExitStack() as stack:
        poll = select.poll()
        polled = 0
        for seen in found:
            handle = _pidfd(seen.pid)
            if handle is None:
                continue
            again = _send(handle, seen, job, world, number)
            if again is not None:
                sent[_key(seen)] = number
            if again is None or again.state == "D" or polled == _MOST_POLLED:
                os.close(handle)
                continue
            stack.callback(os.close, handle)
            poll.register(handle, select.POLLIN)
            polled += 1
        _wait(poll, polled, world.monotonic, until)
    select.select((), (), (), _SETTLE_S)


def _send(handle: int, seen: Seen, job: Job, world: World, number: signal.Signals) -> Optional[Seen]:
    """Signal the process behind this pidfd if all that was seen is still so; None: it was not signalled."""
    again = see(seen.pid, world.proc, job.uid, {seen.pid})  # after the pidfd was had: it is of the same process, then
    if again is None or again.started != seen.started or not proof(again, job, world.place) or spared(again, world):
        return None
    try:
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return None  # gone meanwhile, or not ours to signal: the next look tells
    return again


def _wait(poll: select.poll, count: int, monotonic: Callable[[], float], until: float) -> None:
    while count:
        left_s = until - monotonic()
        if left_s <= 0:
            return
        for handle, _ in poll.poll(left_s * 1000):
            poll.unregister(handle)
            count -= 1


def _pidfd(pid: int) -> Optional[int]:
    """A pidfd; None: the process is gone, or this kernel (before 5.3) has none, and then nothing is killed."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None
