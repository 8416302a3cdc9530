"""What a node remembers between two looks at itself. Pure: reading the text of the state, writing it, merging.

Every list is bounded, and every part stands alone: one that makes no sense is dropped with a note, the others stay.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Mapping, NoReturn, Optional, Tuple

from fleetctl.health.model import Baseline, Care, Event
from fleetctl.health.record import NamedTuple
from fleetctl.health.wire import from_wire, to_wire

VERSION = 1

# About 300 bytes each: the whole state stays below 1 MiB, so that a prolog reads it in a few milliseconds.
MOST_EVENTS = 256
MOST_JOBS = 256
MOST_APP_XIDS = 512
MOST_JOBS_OF_AN_XID = 16
MOST_RETURNS = 64
_MOST_COUNTERS = 4096
_MOST_FINDINGS = 128


class Drain(NamedTuple):
    """A drain of ours that stands. `at` is seconds since the epoch; `findings` are its (check, part) pairs."""

    reason: str
    at: float
    boot_id: str
    findings: Tuple[Tuple[str, str], ...] = ()
    care: Care = Care.DRAIN


class JobStart(NamedTuple):
    """A job as its prolog saw it.

    `at` and `ended_at` are seconds since the epoch, `uptime_s` is CLOCK_MONOTONIC at `at`. `gpus` are the uuids of its
    GPUs; `counters` are theirs and the node's by stable key, as usage.job_counters folds them.
    """

    at: float
    boot_id: str
    gpus: Tuple[str, ...] = ()
    counters: Mapping[str, int] = {}
    uptime_s: Optional[float] = None
    uid: Optional[int] = None
    ended_at: Optional[float] = None


class State(NamedTuple):
    """All that is remembered. `app_xids` maps "0000:1b:00/31" to the jobs that had that Xid there, each with its time
    (seconds since the epoch); `jobs` maps a job id to its start; `nvml_s` is how long NVML took for its last answer of
    this boot; `extra` holds what a newer fleetctl wrote, so that it is still there when that one comes back."""

    boot_id: str = ""
    cursor: Optional[int] = None
    events: Tuple[Event, ...] = ()
    baseline: Optional[Baseline] = None
    drain: Optional[Drain] = None
    returned: Tuple[float, ...] = ()
    app_xids: Mapping[str, Tuple[Tuple[str, float], ...]] = {}
    jobs: Mapping[str, JobStart] = {}
    nvml_s: Optional[float] = None
    extra: Mapping[str, Any] = {}


Change = Callable[[State], State]
_KNOWN = frozenset((*State._fields, "version"))


def for_boot(state: State, boot_id: str) -> State:
    """The state as it counts in this boot: counters, log and jobs of another boot are over, a drain of ours is not.

    An unknown boot id ("") changes nothing: then nobody can say that the node was started anew.
    """
    if not boot_id or state.boot_id == boot_id:
        return state
    return state._replace(boot_id=boot_id, cursor=None, events=(), baseline=None, jobs={}, nvml_s=None)


def bounded(state: State) -> State:
    """The same with its oldest entries dropped where a list is too long."""
    newest = sorted(state.jobs.items(), key=lambda item: item[1].at)[-MOST_JOBS:]
    jobs = {name: start._replace(counters=_first(start.counters, _MOST_COUNTERS)) for name, start in newest}
    baseline, drain = state.baseline, state.drain
    if baseline is not None:
        baseline = baseline._replace(counters=_first(baseline.counters, _MOST_COUNTERS))
    if drain is not None:
        drain = drain._replace(findings=drain.findings[:_MOST_FINDINGS])
    return state._replace(
        events=state.events[-MOST_EVENTS:],
        baseline=baseline,
        drain=drain,
        returned=state.returned[-MOST_RETURNS:],
        app_xids={key: ids[-MOST_JOBS_OF_AN_XID:] for key, ids in list(state.app_xids.items())[-MOST_APP_XIDS:]},
        jobs=jobs,
    )


def _first(counters: Mapping[str, int], most: int) -> Dict[str, int]:
    return dict(list(counters.items())[:most])


def with_job(state: State, job_id: str, start: JobStart) -> State:
    """A job has started (or started again: a requeued job keeps its id)."""
    return state._replace(jobs={**state.jobs, job_id: start})


def with_job_ended(state: State, job_id: str, at: float) -> State:
    """A job has ended: the first end stays, whatever a second epilog says, and its counters have been used.

    A job without a start is not remembered.
    """
    start = state.jobs.get(job_id)
    if start is None or start.ended_at is not None:
        return state
    return with_job(state, job_id, start._replace(ended_at=at, counters={}))


def with_app_xid(state: State, pci: str, number: int, job_id: str, at: float, window_s: float) -> State:
    """An Xid of an application, seen in this job: the pair counts as the youngest, a job counts once, at its last time.
    What is older than `window_s` is forgotten, of all pairs."""
    key = f"{pci}/{number}"
    kept = {name: tuple(job for job in jobs if at - job[1] <= window_s) for name, jobs in state.app_xids.items()}
    others = {name: jobs for name, jobs in kept.items() if jobs and name != key}
    mine = tuple(job for job in kept.get(key, ()) if job[0] != job_id)
    return state._replace(app_xids={**others, key: (*mine, (job_id, at))})


def with_drain(state: State, drain: Optional[Drain]) -> State:
    """A drain of ours stands now; None: none stands any more."""
    return state._replace(drain=drain)


def with_return(state: State, at: float) -> State:
    """The node went back into service by our hand: the drain is over, and this return counts against the cap."""
    return state._replace(drain=None, returned=(*state.returned, at))


def living_jobs(state: State, uid: int, but: str) -> Tuple[str, ...]:
    """Jobs on the node that are, or may be, of this user, and whose end nobody saw; without the job `but`."""
    jobs = ((name, start) for name, start in state.jobs.items() if name != but)
    return tuple(name for name, start in jobs if start.uid in (uid, None) and start.ended_at is None)


def to_text(state: State) -> str:
    """The state as one JSON object."""
    raw: Dict[str, Any] = {key: value for key, value in state.extra.items() if key not in _KNOWN}
    raw.update(to_wire(state._replace(extra={})), version=VERSION)
    del raw["extra"]
    return json.dumps(raw, separators=(",", ":"), allow_nan=False)


def from_text(text: str) -> Tuple[State, Tuple[str, ...]]:
    """The state, and what in it made no sense, one line each. Never raises."""
    try:
        raw = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return State(), ("the state is no JSON (torn, or not ours): going on without it",)
    if not isinstance(raw, dict):
        return State(), ("the state is no JSON object: going on without it",)
    known = {key: raw[key] for key in raw if key in State._fields and key != "extra"}
    extra = {key: raw[key] for key in raw if key not in _KNOWN}
    if isinstance(known.get("app_xids"), dict):
        known["app_xids"] = {key: ids for key, ids in known["app_xids"].items() if not _untimed(ids)}
    try:
        return bounded(from_wire(State, known)._replace(extra=extra)), ()
    except ValueError:
        state, notes = _by_parts(known)
        return bounded(state._replace(extra=extra)), notes


def _untimed(jobs: object) -> bool:
    """Job ids without times, as fleetctl once wrote them: nobody knows how old they are."""
    return isinstance(jobs, list) and any(isinstance(job, str) for job in jobs)


def _by_parts(raw: Mapping[str, Any]) -> Tuple[State, Tuple[str, ...]]:
    state, notes = State(), []
    for key, value in raw.items():
        try:
            part = from_wire(State, {key: value})
        except ValueError as error:
            notes.append(f"the state's {key} makes no sense ({error}): going on without it")
        else:
            state = state._replace(**{key: getattr(part, key)})
    return state, tuple(notes)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN and Infinity compare as nothing else does
