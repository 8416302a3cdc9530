"""What Slurm, the run's own record and exit statuses say about the end of an attempt. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

from fleetctl.recovery.model import Advice, CauseClass, Evidence, Finding, RunSeen, Suspected
from fleetctl.rundir.model import WITHOUT_GPUS, Attempt, Ending
from fleetctl.slurm.model import BaseState, JobRecord, StateFlag

_MOST_NODES = 8  # of one end that are named: more than that is no node's fault
_SKEW = timedelta(minutes=1)  # between the clocks of a node and of the controller, which tells whole seconds
_LAUNCH_FAILED = ("launch failed", "launch_failed", "joblaunchfailure")
# The head saw why, before Slurm did anything: it may have asked for that itself
_SEEN = frozenset({"failed", "node_lost", "saved", "stopped_early", "hung"})

_BY_STATE: Mapping[BaseState, tuple[CauseClass, Advice]] = {
    BaseState.PREEMPTED: (CauseClass.PREEMPTED, Advice.SLURM),
    BaseState.TIMEOUT: (CauseClass.TIME_LIMIT, Advice.STOP),
    BaseState.DEADLINE: (CauseClass.TIME_LIMIT, Advice.STOP),
    BaseState.BOOT_FAIL: (CauseClass.PROLOG, Advice.ELSEWHERE),
}
_DECIDED = frozenset({CauseClass.PREEMPTED, CauseClass.TIME_LIMIT, CauseClass.REQUEUED})
_REQUEUED = frozenset({StateFlag.REQUEUED, StateFlag.REQUEUE_HOLD, StateFlag.REQUEUE_FED, StateFlag.SPECIAL_EXIT})

_SAME, _ELSEWHERE, _STOP = Advice.SAME, Advice.ELSEWHERE, Advice.STOP
# What a shell's status says (bash(1), signal(7)): class, advice, the advice once it came back, words
_STATUS: Mapping[int, tuple[CauseClass, Advice, Advice | None, str]] = {
    126: (CauseClass.CONFIGURATION, _STOP, None, "the command cannot be executed"),
    127: (CauseClass.CONFIGURATION, _STOP, None, "the command was not found"),
    132: (CauseClass.PROGRAM, _STOP, None, "SIGILL: built for another processor"),
    134: (CauseClass.PROGRAM, _SAME, _ELSEWHERE, "SIGABRT, often of a rank that waited for another one"),
    135: (CauseClass.CONFIGURATION, _STOP, None, "SIGBUS, as without enough shared memory"),
    136: (CauseClass.PROGRAM, _ELSEWHERE, _STOP, "SIGFPE"),
    137: (CauseClass.UNKNOWN, _SAME, _ELSEWHERE, "SIGKILL, and nothing tells by whom"),
    139: (CauseClass.PROGRAM, _ELSEWHERE, _STOP, "SIGSEGV"),
    143: (CauseClass.UNKNOWN, _SAME, _ELSEWHERE, "SIGTERM, and nothing tells by whom"),
}
_BUS, _SIGNAL_BASE = 135, 128


def slurm_words(seen: RunSeen, attempt: Attempt, evidence: Evidence, *, lived: bool) -> Iterator[Suspected]:
    """What Slurm's accounting, and the job as it waits now, say of this end."""
    history = None if seen.facts is None else seen.facts.history
    if history is not None and history.cancelled_at is not None:
        yield Suspected(CauseClass.CANCELLED, Advice.NEVER, "record: a cancel was asked for")
    given_back = history is not None and attempt.task in history.given_back
    for record in _of_end(seen, attempt, evidence.records or ()):
        yield from _of_record(record, attempt, evidence, given_back=given_back, lived=lived)
    for job in seen.jobs or ():
        if job.reason.lower().startswith(_LAUNCH_FAILED) and attempt.ended_at is None:
            yield _launch_failed(attempt, f"Slurm: {job.reason}", had_begun=_is_of_start(seen))


def own_words(seen: RunSeen, attempt: Attempt, evidence: Evidence) -> Iterator[Suspected]:
    """What the head of the run, or its silence, says."""
    ending = "" if attempt.ending is None else attempt.ending.value
    lost = evidence.failed_nodes[:_MOST_NODES]
    if attempt.failure == WITHOUT_GPUS:  # and launch has asked for another start, or holds the run
        yield Suspected(CauseClass.REQUEUED, Advice.SLURM, f"record: {WITHOUT_GPUS}")
    elif ending == "hung":
        yield from _hang(seen, attempt, evidence)
    elif lost and ending in ("", "failed", "node_lost", "told"):
        for node in lost:
            yield Suspected(CauseClass.NODE, _ELSEWHERE, "record: the node was lost", node)
    elif ending == Ending.NODE_LOST:
        yield Suspected(CauseClass.NODE, _ELSEWHERE, "record: a node was lost")
    if ending in (Ending.SAVED, Ending.FENCED):
        yield Suspected(CauseClass.REQUEUED, Advice.SLURM, f"record: it ended to go on elsewhere ({ending})")


def statuses(attempt: Attempt, evidence: Evidence, weak: Iterable[Finding]) -> Iterator[Suspected]:
    """What is left where nothing else is known: the statuses, of which most say little."""
    if attempt.ending is Ending.STOPPED_EARLY:
        words = "record: status 0 before the target step"
        yield Suspected(CauseClass.PROGRAM, _SAME, words, again=_STOP)
        return
    code = attempt.exit_code if attempt.exit_code is not None else _status(evidence.records or ())
    if attempt.ending is Ending.TOLD:
        yield Suspected(CauseClass.UNKNOWN, Advice.SLURM, "record: Slurm told the job to end, and does not say why")
    elif code is not None and code in _STATUS:
        cause, advice, again, words = _STATUS[code]
        if code == _BUS and any(one.check == "shm" for one in weak):
            advice, again = _ELSEWHERE, _STOP
        yield Suspected(cause, advice, f"status {code}: {words}", again=again)
    elif attempt.ending is None and attempt.exit_code is None:
        words = "record: the process that led the run is gone"
        yield Suspected(CauseClass.HEAD, _SAME, words, attempt.host, _ELSEWHERE)
    elif code:
        words = f"record: {attempt.failure}" if attempt.failure else f"status {code}: of the program"
        yield Suspected(CauseClass.UNKNOWN, _SAME, words, again=_ELSEWHERE)


def _of_end(seen: RunSeen, attempt: Attempt, records: Iterable[JobRecord]) -> list[JobRecord]:
    """The records that ended with this attempt: of its job and time, with no later attempt in them."""
    mine = [one.started_at for one in _attempts(seen) if one.task == attempt.task]
    next_at = min((at for at in mine if at > attempt.started_at), default=None)
    found = []
    for record in records:
        begun, ended = record.start_time, record.end_time
        if ended is None or ended < attempt.started_at - _SKEW:
            continue
        if begun is not None and begun > attempt.started_at + _SKEW:
            continue
        if next_at is None or ended <= next_at:
            found.append(record)
    return found


def _attempts(seen: RunSeen) -> tuple[Attempt, ...]:
    return () if seen.facts is None else seen.facts.history.attempts


def _of_record(
    record: JobRecord, attempt: Attempt, evidence: Evidence, *, given_back: bool, lived: bool
) -> Iterator[Suspected]:
    state, words = record.state, f"Slurm: {record.state}"
    if state.base is BaseState.CANCELLED:
        if not given_back:
            yield Suspected(CauseClass.CANCELLED, Advice.NEVER, words)
    elif state.base is BaseState.OUT_OF_MEMORY:
        yield Suspected(CauseClass.HOST_MEMORY, _SAME if lived else _STOP, words, again=_STOP)
    elif state.base is BaseState.NODE_FAIL:
        nodes = evidence.failed_nodes[:_MOST_NODES]
        yield from (Suspected(CauseClass.NODE, _ELSEWHERE, words, node) for node in nodes or ("",))
    elif StateFlag.LAUNCH_FAILED in state.flags:
        if not _is_seen(attempt):
            had_begun = record.end_time is not None and record.end_time > attempt.started_at
            yield _launch_failed(attempt, words, had_begun=had_begun)
    elif (found := _decided(record, lived=lived)) and not _is_seen(attempt):
        yield Suspected(*found, words)


def _launch_failed(attempt: Attempt, words: str, *, had_begun: bool) -> Suspected:
    """Slurm says so (JobLaunchFailure) of a batch script that was killed, too; but one whose attempt had begun had been
    started, so that no prolog failed."""
    if not had_begun:
        return Suspected(CauseClass.PROLOG, _ELSEWHERE, words)
    return Suspected(CauseClass.HEAD, _SAME, f"{words}, after the attempt had begun", attempt.host, _ELSEWHERE)


def _is_of_start(seen: RunSeen) -> bool:
    """Whether the newest attempt is of the start of the job that Slurm speaks of now."""
    past = None if seen.facts is None else seen.facts.past
    return past is not None and seen.restarts is not None and seen.restarts <= past.restart_count


def _decided(record: JobRecord, *, lived: bool) -> tuple[CauseClass, Advice] | None:
    state = record.state
    if state.flags & _REQUEUED:
        return CauseClass.REQUEUED, Advice.SLURM
    found = None if state.base is None else _BY_STATE.get(state.base)
    if found is not None and found[0] is CauseClass.TIME_LIMIT and lived:
        return CauseClass.TIME_LIMIT, _SAME
    return found


def _is_seen(attempt: Attempt) -> bool:
    return attempt.ending is not None and attempt.ending.value in _SEEN


def _hang(seen: RunSeen, attempt: Attempt, evidence: Evidence) -> Iterator[Suspected]:
    """The silent rank's node, by the head's own event or by its last pulse."""
    pulse = seen.pulse
    silent = pulse.silent if pulse is not None and pulse.attempt == attempt.name else ()
    nodes = evidence.failed_nodes or tuple(dict.fromkeys(one.node for one in silent if one.node))
    words = f"record: {attempt.failure or 'hang'}"
    if not nodes or len(nodes) > _MOST_NODES:
        yield Suspected(CauseClass.HANG, _SAME, words, again=_STOP)
    for node in nodes if len(nodes) <= _MOST_NODES else ():
        yield Suspected(CauseClass.HANG, _ELSEWHERE, words, node, _STOP)


def _status(records: Iterable[JobRecord]) -> int | None:
    """Of the newest record, as a shell would have it: its own, or that of its steps where the script hid it."""
    newest = max((one for one in records if one.end_time is not None), key=lambda one: str(one.end_time), default=None)
    if newest is None:
        return None
    for status, signal in filter(None, (newest.exit_code, newest.derived_exit_code)):
        if status or signal:
            return _SIGNAL_BASE + signal if signal else status
    return 0
