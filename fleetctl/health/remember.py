"""What a look leaves behind in the node's state: small changes, each of which holds whoever wrote in between. Pure."""

from __future__ import annotations

from typing import Callable, Dict, Iterable, Optional, Sequence, Tuple

from fleetctl.health.decide import Choice
from fleetctl.health.judge_log import mark_told
from fleetctl.health.model import Answer, Baseline, Event, Finding, Readings
from fleetctl.health.state import (
    Change,
    Drain,
    JobStart,
    State,
    with_drain,
    with_job,
    with_return,
)
from fleetctl.health.tell import Reply, Told

Merge = Callable[[Sequence[Event], Sequence[Event]], Tuple[Event, ...]]
_AT_ONCE_S = 120.0  # drains that were meant this near to each other may be of two looks that do not know of each other
_ON_ITS_WAY_S = 60.0  # from the moment that a drain is meant until Slurm shows it, or slurmctld's own word for it
_MOST_ENDED = 32  # jobs that are over: a second epilog of one may come, hardly one of the thirty-second


def all_of(changes: Iterable[Change]) -> Change:
    """One after the other."""
    kept = tuple(changes)

    def change(state: State) -> State:
        for one in kept:
            state = one(state)
        return state

    return change


def log_read(fresh: Sequence[Event], cursor: Optional[int], merge: Merge) -> Change:
    """The kernel log was read so far. What another look has noted meanwhile is not counted again."""

    def change(state: State) -> State:
        seen = state.cursor
        new = tuple(event for event in fresh if seen is None or event.sequence > seen)
        read = tuple(one for one in (seen, cursor) if one is not None)
        return state._replace(cursor=max(read) if read else None, events=merge(state.events, new))

    return change


def counted(readings: Readings, counters: Dict[str, int], *, anew: bool) -> Change:
    """The counters that later looks are compared with; without `anew` only those that nobody knew in this boot.

    A look at some of the parts leaves the counters of the others. Then the older time stays for all of them: over a
    longer span a rate looks lower, and no part fails for errors that came faster only on paper.
    """
    baseline = Baseline(readings.boot_id, readings.at, counters)

    def change(state: State) -> State:
        old = state.baseline
        if old is None or old.boot_id != readings.boot_id:
            return state._replace(baseline=baseline)
        if not anew:
            return state._replace(baseline=old._replace(counters={**counters, **old.counters}))
        if _whole(readings) or set(old.counters) <= set(counters):
            return state._replace(baseline=baseline)
        merged = Baseline(old.boot_id, min(old.at, readings.at), {**old.counters, **counters})
        return state._replace(baseline=merged)

    return change


def _whole(readings: Readings) -> bool:
    """Everything was read: a counter that is missing now is gone, and must not hold the baseline's time for ever."""
    nvml = readings.nvml
    if nvml is None or nvml.answer is not Answer.ANSWERED or any(g.code or g.uuid is None for g in nvml.gpus):
        return False
    return not readings.failed and None not in (readings.ports, readings.devices, readings.host)


def answered(readings: Readings) -> Change:
    """How long NVML took, where it answered."""
    nvml = readings.nvml
    if nvml is None or nvml.answer is not Answer.ANSWERED:
        return lambda state: state
    took_s = round(nvml.took_s, 1)
    return lambda state: state._replace(nvml_s=took_s)


def job_began(job_id: str, start: JobStart) -> Change:
    """A job starts here; of those that have ended only the newest are kept, because every look reads them all."""

    def change(state: State) -> State:
        ended = [(one.ended_at, name) for name, one in state.jobs.items() if one.ended_at is not None]
        gone = {name for _, name in sorted(ended)[:-_MOST_ENDED]}
        jobs = {name: one for name, one in state.jobs.items() if name not in gone}
        return with_job(state._replace(jobs=jobs), job_id, start)

    return change


def drained(choice: Choice, reply: Reply, readings: Readings) -> Change:
    """A drain of ours stands, or was tried: it may have reached Slurm though the answer did not reach us.

    Once the drain names what the log said, that does not close the node again after a person has opened it. A drain of
    ours that the state does not know changes nothing: no look ends it, because the reasons differ.
    """
    drain = _drain_of(choice, reply.reason or choice.reason, readings)

    def change(state: State) -> State:
        if reply.told in (Told.THEIRS, Told.REMARK):
            return with_drain(state, None)
        if reply.told is Told.UNKNOWN:
            return state if reply.reason is None else with_drain(state, _joined(state.drain, drain))
        if reply.told is Told.OURS and (state.drain is None or state.drain.reason != drain.reason):
            return state
        named = state._replace(events=mark_told(state.events, drain.findings))
        return with_drain(named, _joined(state.drain, drain))

    return change


def intended(choice: Choice, readings: Readings) -> Change:
    """The node is about to be drained. Should nobody come back to say how that went, the next look finds the word here
    and compares it with Slurm's."""
    drain = _drain_of(choice, choice.reason, readings)

    def change(state: State) -> State:
        stands = state.drain
        return with_drain(state, drain if stands is None else _with(stands, drain))

    return change


def came_back(drain: Drain, at: float) -> Change:
    """The node was returned to service, out of this drain. What another look has made of it meanwhile stays: that look
    ends with 1, and its reason is owed. Where none is left, another check has returned the node, and counted that."""

    def change(state: State) -> State:
        if state.drain is None:
            return state
        back = with_return(state, at)
        return back if state.drain == drain else with_drain(back, state.drain)

    return change


def forgotten(drain: Drain, at: float) -> Change:
    """This drain did not stand at that moment, by somebody else's hand; one that was only just meant is on its way."""

    def change(state: State) -> State:
        gone = state.drain == drain and not 0 <= at - drain.at < _ON_ITS_WAY_S
        return with_drain(state, None) if gone else state

    return change


def _drain_of(choice: Choice, reason: str, readings: Readings) -> Drain:
    return Drain(
        reason=reason,
        at=readings.at,
        boot_id=readings.boot_id,
        findings=tuple(_parts(choice.closing)),
        care=max(finding.care for finding in choice.closing),
    )


def _parts(closing: Sequence[Finding]) -> Iterable[Tuple[str, str]]:
    return dict.fromkeys((finding.check, finding.part) for finding in closing)


def _joined(before: Optional[Drain], now: Drain) -> Drain:
    """The drain that stands now. What the one before waits for stays if it is the same, or if two looks closed the
    node at once, each for its own reason; an older one for another reason has been ended by somebody."""
    if before is None or (before.reason != now.reason and abs(now.at - before.at) > _AT_ONCE_S):
        return now
    joined = _with(before, now)
    return now._replace(findings=joined.findings, care=joined.care)


def _with(drain: Drain, more: Drain) -> Drain:
    """The drain, with more that must pass before it ends."""
    findings = tuple(dict.fromkeys((*drain.findings, *more.findings)))
    return drain._replace(findings=findings, care=max(drain.care, more.care))
