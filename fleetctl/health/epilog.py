"""What an epilog does before it looks at the hardware: end what the job left running, remove what it left lying about.

Run twice, it finds nothing to do the second time. All of it happens in a child, because reading the environment of a
process that hangs in the kernel may hang, too.
"""

from __future__ import annotations

import signal
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

from fleetctl.health.apart import Done, Task
from fleetctl.health.asked import job_of, uid_of
from fleetctl.health.births import births
from fleetctl.health.file_systems import mounted
from fleetctl.health.in_use import look_for_users
from fleetctl.health.leavings import Clock, Left, Rule, Window, clear
from fleetctl.health.model import Answer, Asked, Care, Finding, Outcome, Readings
from fleetctl.health.process_table import Job
from fleetctl.health.processes import Ended, World, end_processes, here
from fleetctl.health.record import NamedTuple
from fleetctl.health.state import Change, JobStart, State, living_jobs, with_job_ended
from fleetctl.health.store import load_state
from fleetctl.health.usage import use_of

CLEAN_S = 4.0  # half of what an epilog has: TERM, KILL and ten thousand files take less than 3 s
_KILL_SHARE = 0.6
_ANSWER_SHARE = 0.9
_MOST_NAMED = 3
_NEVER_KNOWN = "its start is not known: its prolog left no word in this boot"


class Place(NamedTuple):
    """Where a node keeps its state, and where jobs leave files."""

    folder: str
    boot_id: str
    leavings: Tuple[str, ...]


class Cleaned(NamedTuple):
    """What came of it. `record` belongs into the verdict's usage; `ended_at` is when the job's last process was seen
    to be gone, in seconds since the epoch; None: it was not."""

    findings: Tuple[Finding, ...] = ()
    record: Mapping[str, Any] = {}
    ended_at: Optional[float] = None


Apart = Callable[[Sequence[Task]], Dict[str, Done]]


def job_from(environ: Mapping[str, str]) -> Optional[Job]:
    """The job that Slurm's epilog is about; its user only where SLURM_JOB_UID is a number."""
    job_id = job_of(environ)
    return None if job_id is None else Job(job_id, uid_of(environ))


def clean_up(job: Job, place: Place, apart: Apart, within_s: float = CLEAN_S) -> Cleaned:
    """End the job's processes and remove its leavings, in a child that is given up after `within_s`."""
    world = here()
    task = Task("clean", lambda: clean(job, place, world, within_s * _ANSWER_SHARE), within_s)
    done = apart([task])["clean"]
    if done.answer is not Answer.ANSWERED:
        words = f"what job {job.job_id} left could not be cleaned up: {done.answer.value}: {done.detail}"
        return Cleaned((Finding("stuck", Outcome.CANNOT_TELL, "node", "node", words, care=Care.WATCH),))
    raw: Mapping[str, Any] = done.value
    left = [(pid, name, state) for pid, name, state in raw["living"]]
    return Cleaned(survivors(job, left), raw["record"], raw["ended_at"])


def clean(job: Job, place: Place, world: World, within_s: float) -> Dict[str, Any]:
    """The work itself, in the child; what it returns is JSON."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # what breaks a lease sends it, and it would end us
    until = world.monotonic() + within_s
    ended = end_processes(job, world, until=until - within_s * (1 - _KILL_SHARE))
    state = load_state(place.folder, boot_id=place.boot_id)
    window, why = window_of(job, state, ended, world.wall(), world.monotonic())
    left = Left()
    if job.uid:
        rule = Rule(job.uid, window, why, births() if window else _never_born, mounted(world.proc))
        clock = Clock(world.monotonic, until)
        in_use = lambda: look_for_users(world.proc, until=until, monotonic=world.monotonic)  # noqa: E731
        left = clear(place.leavings, rule, in_use, clock)
    return {
        "living": [[seen.pid, seen.name, seen.state] for seen in ended.left],
        "record": {"killed": ended.killed, "left": left._asdict()},
        "ended_at": ended.clean_at,
    }


def _never_born(folder: int, name: str) -> Optional[float]:
    return None


def window_of(job: Job, state: State, ended: Ended, wall: float, uptime_s: float) -> Tuple[Optional[Window], str]:
    """When files must have been made to be the job's; None, and why: nothing may be removed.

    `wall` and `uptime_s` are now. Where the clock was set since the prolog, the later of the two starts counts: a file
    that was there before the job must never look like one of it.
    """
    start = state.jobs.get(job.job_id)
    why = _keep_all(job, state, ended, start)
    if why or start is None or ended.clean_at is None:
        return None, why or _NEVER_KNOWN
    began = start.at if start.uptime_s is None else max(start.at, wall - (uptime_s - start.uptime_s))
    end = ended.clean_at if start.ended_at is None else min(start.ended_at, ended.clean_at)
    return Window(began, end), ""


def _keep_all(job: Job, state: State, ended: Ended, start: Optional[JobStart]) -> str:
    if not job.uid:
        return "it is a job of root, or of nobody knows whom"
    if ended.others is None or ended.clean_at is None:
        return "processes of the job live on" if ended.left else "the node's processes could not be looked at"
    if ended.others:
        return f"its user has other processes here ({ended.others[0].pid} and {len(ended.others) - 1} more)"
    jobs = living_jobs(state, job.uid, job.job_id)
    if jobs:
        return f"its user has another job here ({jobs[0]})"
    return _NEVER_KNOWN if start is None else ""


def survivors(job: Job, living: Sequence[Tuple[int, str, str]]) -> Tuple[Finding, ...]:
    """The finding about processes that SIGKILL did not end: (pid, name, state) of each."""
    if not living:
        return ()
    named = ", ".join(f"{pid} ({_plain(name)}, state {state})" for pid, name, state in living[:_MOST_NAMED])
    more = f" and {len(living) - _MOST_NAMED} more" if len(living) > _MOST_NAMED else ""
    cause = "hang in the kernel" if any(state == "D" for _, _, state in living) else "live on"
    words = f"processes of job {job.job_id} {cause} after SIGKILL: {named}{more}"
    return (Finding("stuck", Outcome.FAIL, "node", "node", words, value=len(living), expected=0, care=Care.WATCH),)


def _plain(name: str) -> str:
    return "".join(c if " " < c <= "~" else "?" for c in name[:16])


def usage_of(cleaned: Cleaned, start: Optional[JobStart], readings: Readings, asked: Asked) -> Dict[str, Any]:
    """What the verdict of an epilog records: use since the prolog, and what was cleaned up."""
    return {**use_of(start, readings, asked), **cleaned.record}


def job_ended(job_id: str, at: float) -> Change:
    """The change of state after an epilog, at the end of the job's last process, or now where that was not seen."""
    return lambda state: with_job_ended(state, job_id, at)
