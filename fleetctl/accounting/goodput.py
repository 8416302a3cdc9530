"""The ledgers of many runs, added up: by run, user, account, partition, or cause of the interruptions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby

from msgspec import Struct

from fleetctl.accounting.ledger import Cost, WallLedger, interruption_costs, wall_of
from fleetctl.accounting.ledger_gpu import GpuCost, GpuLedger, gpu_costs, gpu_of, gpus_by
from fleetctl.accounting.model import Window
from fleetctl.accounting.run_facts import RecordFacts, RunFacts
from fleetctl.accounting.spans import Spent
from fleetctl.accounting.timeline import Timeline, timeline

KEYS = ("user", "account", "partition")
_OF_RECORD: Mapping[str, Callable[[RecordFacts], str]] = {
    "account": lambda record: record.account,
    "partition": lambda record: record.partition,
}


class Interruption(Struct, frozen=True):
    """One interruption of one run; `gpu` None: no GPU time of it is known."""

    run_id: str
    task: int
    cost: Cost
    gpu: GpuCost | None


class Goodput(Struct, frozen=True):
    """One run, or all elements of one sweep together. What `accounts` and `partitions` it had is by its records."""

    run_id: str
    name: str
    user: str
    cluster: str
    accounts: tuple[str, ...]
    partitions: tuple[str, ...]
    tasks: int
    wall: WallLedger
    gpus: GpuLedger
    interruptions: tuple[Interruption, ...]


class Total(Struct, frozen=True):
    """The GPU time of all runs of one key; `runs` counts those with time in the window."""

    key: str
    runs: int
    gpus: GpuLedger


class CauseTotal(Struct, frozen=True):
    """All interruptions of one cause ("": none is known), in milliseconds and GPU-milliseconds. Sums of what is known;
    None: of none of them it is. `by_person`: those that needed one."""

    cause: str
    interruptions: int
    by_person: int
    detection_ms: int | None
    restart_ms: int | None
    lost_ms: int | None
    gpu_detection_ms: int | None
    gpu_lost_ms: int | None


def goodput(runs: Iterable[RunFacts], as_of_ms: Mapping[str, int], window: Window | None) -> tuple[Goodput, ...]:
    """Those with time in the window; elements of a sweep stand together. `as_of_ms`: of each cluster."""
    found = []
    for _, group in groupby(runs, key=lambda facts: facts.run_id):
        of_run = [(facts, timeline(facts, as_of_ms[facts.cluster])) for facts in group]
        one = _goodput(of_run, window)
        if window is None or one.wall.wall_ms or one.gpus.unknown_records:
            found.append(one)
    return tuple(found)


def _goodput(tasks: list[tuple[RunFacts, Timeline]], window: Window | None) -> Goodput:
    facts = tasks[0][0]
    records = [record for one, _ in tasks for record in one.records]
    return Goodput(
        run_id=facts.run_id,
        name=facts.name,
        user=facts.user,
        cluster=facts.cluster,
        accounts=tuple(sorted({record.account for record in records})),
        partitions=tuple(sorted({record.partition for record in records})),
        tasks=len(tasks),
        wall=wall_sum([wall_of(line, window) for _, line in tasks]),
        gpus=gpu_sum([gpu_of(one, line, window) for one, line in tasks]),
        interruptions=tuple(cost for one, line in tasks for cost in _interruptions(one, line, window)),
    )


def _interruptions(facts: RunFacts, line: Timeline, window: Window | None) -> Iterable[Interruption]:
    gpu = gpu_costs(facts, line)
    knows_gpus = any(record.gpus is not None for record in facts.records)
    for cost in interruption_costs(facts, line):
        if window is None or window.since_s * 1000 <= cost.at_ms < window.until_s * 1000:
            none = GpuCost(cost.number, 0, 0) if knows_gpus else None
            yield Interruption(facts.run_id, facts.task, cost, gpu.get(cost.number, none))


def wall_sum(ledgers: Iterable[WallLedger]) -> WallLedger:
    """`ettr` None where nothing tells of any of them."""
    of = list(ledgers)
    ms = {spent: sum(one.ms[spent] for one in of) for spent in Spent}
    wall_ms, unsaved = sum(one.wall_ms for one in of), [one.unsaved_ms for one in of if one.unsaved_ms is not None]
    silent = [one.silent_ms for one in of if one.silent_ms is not None]
    is_told = any(one.ettr is not None for one in of)
    return WallLedger(
        ms=ms,
        wall_ms=wall_ms,
        ettr=ms[Spent.PRODUCTIVE] / wall_ms if is_told and wall_ms else None,
        provisional=any(one.provisional for one in of),
        estimated=any(one.estimated for one in of),
        unsaved_ms=sum(unsaved) if unsaved else None,
        silent_ms=max(silent, default=None),
    )


def gpu_sum(ledgers: Iterable[GpuLedger]) -> GpuLedger:
    of = list(ledgers)
    ms = {spent: sum(one.ms[spent] for one in of) for spent in Spent}
    held_ms, is_told = sum(one.held_ms for one in of), any(one.productive is not None for one in of)
    productive = ms[Spent.PRODUCTIVE] / held_ms if is_told and held_ms else None
    return GpuLedger(ms, held_ms, sum(one.unknown_records for one in of), productive)


def totals(runs: Iterable[RunFacts], as_of_ms: Mapping[str, int], window: Window | None, by: str) -> tuple[Total, ...]:
    """By one of KEYS; a run whose records had several accounts or partitions counts in each with its own part."""
    ledgers: dict[str, list[GpuLedger]] = {}
    counted: dict[str, set[str]] = {}
    for facts in runs:
        key = _OF_RECORD.get(by, lambda record, user=facts.user: user)
        for name, ledger in gpus_by(facts, timeline(facts, as_of_ms[facts.cluster]), window, key).items():
            ledgers.setdefault(name, []).append(ledger)
            counted.setdefault(name, set()).add(facts.run_id)
    return tuple(Total(name, len(counted[name]), gpu_sum(of)) for name, of in sorted(ledgers.items()))


def by_cause(interruptions: Iterable[Interruption]) -> tuple[CauseTotal, ...]:
    """The one that took the most GPU time first, then the most frequent."""
    found: dict[str, list[Interruption]] = {}
    for one in interruptions:
        found.setdefault(one.cost.cause, []).append(one)
    made = [_cause(cause, of) for cause, of in found.items()]
    return tuple(
        sorted(
            made, key=lambda one: (-(one.gpu_lost_ms or 0) - (one.gpu_detection_ms or 0), -one.interruptions, one.cause)
        )
    )


def _cause(cause: str, of: list[Interruption]) -> CauseTotal:
    return CauseTotal(
        cause=cause,
        interruptions=len(of),
        by_person=sum(one.cost.by_person is True for one in of),
        detection_ms=_known([one.cost.detection_ms for one in of]),
        restart_ms=_known([one.cost.restart_ms for one in of]),
        lost_ms=_known([one.cost.lost_ms for one in of]),
        gpu_detection_ms=_known([one.gpu.detection_ms for one in of if one.gpu and one.cost.detection_ms is not None]),
        gpu_lost_ms=_known([one.gpu.lost_ms for one in of if one.gpu and one.cost.lost_ms is not None]),
    )


def _known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
