"""What interrupts jobs that hold GPUs, and how often. Pure.

An *interruption* is the end of a record that held GPUs otherwise than well, or the end of an attempt of a run within
its record, after which the run went on or could have. A record's end and the end of the last attempt within it are one
interruption: what the run knows of it counts, which is more than Slurm's state says (a run that requeues itself after
a failure leaves a record that only says REQUEUED).

A *failure* is an interruption that nobody decided: no cancel, preemption, requeue of somebody, or time limit, and no
head that another one fenced off. A step that failed in a job that completed is none either: its script saw that and
went on. Rates and times between failures count failures alone, over the GPU time that was held.

Run directories are their users' own words. They count for records of that user alone (`Tried.records`), and blame no
node that was not among those of the record.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from fleetctl.accounting.allocations import JobKey, Record, joined
from fleetctl.accounting.causes import DECIDED, ENDED_WELL, HARDWARE, Cause, Ranked
from fleetctl.accounting.model import Window

NO_FAILURE = DECIDED | ENDED_WELL | {Cause.FENCED, Cause.GOING_ON, Cause.MASKED_FAILURE}
OF_NODES = HARDWARE | {Cause.LAUNCH}  # that a node is charged with; the others are a program's own


class Place(Struct, frozen=True):
    """One record that held GPUs, `record` its id, on `nodes` where they are known. `ranked` is what Slurm and the node
    checks say of its end: empty where it ended well or has not ended."""

    record: int
    job: JobKey
    submitted_s: int | None
    started_s: int
    ended_s: int | None
    user: str
    account: str
    partition: str
    part: int | None = None  # of a hetjob
    resized: bool = False  # the job goes on in another record
    nodes: frozenset[str] = frozenset()
    ranked: tuple[Ranked, ...] = ()


class Tried(Struct, frozen=True):
    """An attempt of a run. `records` are ids of those that it ran in, as far as they are its user's; `at_ms` is when it
    was interrupted, None where it was not or nobody knows."""

    run: str
    task: int
    number: tuple[int, int]
    records: tuple[int, ...]
    finished: bool
    at_ms: int | None = None
    ranked: tuple[Ranked, ...] = ()
    by_person: bool = False


class Interruption(Struct, frozen=True):
    """`node` is "" where it is no node's, or not known whose. `by_person`: only a person brought the run back, or can;
    None where it was no run of fleetctl's."""

    at_s: int
    cause: Cause
    node: str
    evidence: str
    job: JobKey
    user: str
    account: str
    partition: str
    run: str | None = None
    by_person: bool | None = None

    @property
    def failed(self) -> bool:
        return self.cause not in NO_FAILURE


class _Start(Struct, frozen=True):
    """One start of one job, and the records that it has."""

    place: Place
    records: tuple[int, ...]


class Merged(Struct, frozen=True):
    """By time. `unplaced` interruptions of runs have no record that held GPUs, and are not among them."""

    interruptions: tuple[Interruption, ...]
    unplaced: int


def merge(records: Sequence[Place], tried: Sequence[Tried], window: Window) -> Merged:
    """What interrupted jobs within the window, each once, however Slurm's records and the runs tell of it."""
    starts = _starts(records)
    start_of = {record: index for index, start in enumerate(starts) for record in start.records}
    within: dict[int, list[Tried]] = {}
    unplaced = 0
    for one in tried:
        at = next((start_of[record] for record in one.records if record in start_of), None)
        if at is not None:
            within.setdefault(at, []).append(one)
        elif one.at_ms is not None and _in(window, one.at_ms // 1000):
            unplaced += 1
    found = [
        interruption
        for index, start in enumerate(starts)
        for interruption in _of_place(start.place, within.get(index, ()))
        if _in(window, interruption.at_s)
    ]
    found.sort(key=_when)
    return Merged(tuple(found), unplaced)


def _starts(records: Sequence[Place]) -> tuple[_Start, ...]:
    """The sizes of a job that was resized, and the components of a hetjob (the same Submit), are one start of it."""
    places = {place.record: place for place in records}
    starts: dict[tuple[JobKey, int | None], list[Place]] = {}
    told = [Record(one.record, one.job, one.part, one.started_s, one.ended_s, one.resized) for one in records]
    for job, held in joined(told).items():
        for allocation in held:
            sizes = [places[record] for record in allocation.records]
            starts.setdefault((job, sizes[0].submitted_s), []).extend(sizes)
    return tuple(_Start(_joined(parts), tuple(part.record for part in parts)) for parts in starts.values())


def _joined(parts: Sequence[Place]) -> Place:
    """What ended the first of them badly ended all; a failure is no consequence of a decision."""
    ended = [part.ended_s for part in parts if part.ended_s is not None]
    bad = [part for part in parts if part.ranked and part.ended_s is not None]
    bad.sort(
        key=lambda part: (
            part.ranked[0].cause in NO_FAILURE,
            part.ended_s,
            part.ranked[0].cause,
            part.ranked[0].evidence,
        )
    )
    return replace(
        min(parts, key=lambda part: (part.started_s, part.ended_s or 0, part.partition)),
        started_s=min(part.started_s for part in parts),
        ended_s=max(ended) if len(ended) == len(parts) else None,
        nodes=frozenset().union(*(part.nodes for part in parts)),
        ranked=bad[0].ranked if bad else (),
    )


def _of_place(place: Place, tried: Sequence[Tried]) -> list[Interruption]:
    """The interruptions within one record, its own end among them."""
    last = max(tried, key=lambda one: one.number, default=None)
    found = [_told(place, one, one.at_ms // 1000) for one in tried if one is not last and one.at_ms is not None]
    if last is not None and last.finished:
        return found  # the training was over: whatever ended the record afterwards interrupted nothing
    if last is not None and last.at_ms is not None:
        return [*found, _told(place, last, last.at_ms // 1000 if place.ended_s is None else place.ended_s)]
    if place.ended_s is not None and place.ranked:
        return [*found, _interruption(place, place.ended_s, place.ranked[0])]
    return found


def _told(place: Place, one: Tried, at_s: int) -> Interruption:
    """By the run's own word; where it knows nothing of its last end, by Slurm's."""
    known = one.ranked and one.ranked[0].cause is not Cause.UNKNOWN
    ranked = one.ranked if known or not place.ranked or at_s != place.ended_s else place.ranked
    first = ranked[0] if ranked else Ranked(Cause.UNKNOWN, "nothing tells why it ended")
    if ranked is one.ranked and first.node not in place.nodes:
        first = replace(first, node="")
    return _interruption(place, at_s, first, run=one.run, by_person=one.by_person)


def _interruption(
    place: Place, at_s: int, why: Ranked, *, run: str | None = None, by_person: bool | None = None
) -> Interruption:
    return Interruption(
        at_s=at_s,
        cause=why.cause,
        node=why.node,
        evidence=why.evidence,
        job=place.job,
        user=place.user,
        account=place.account,
        partition=place.partition,
        run=run,
        by_person=by_person,
    )


def _when(one: Interruption) -> tuple[object, ...]:
    index = -1 if one.job[2] is None else one.job[2]
    run = (one.run or "", one.by_person is True)
    return (one.at_s, *one.job[:2], index, run, one.cause, one.node, one.evidence, one.partition)


def _in(window: Window, at_s: int) -> bool:
    return window.since_s <= at_s < window.until_s
