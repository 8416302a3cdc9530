"""The ledger of the GPU time that a run held: every GPU-millisecond of its records has one class. Pure.

A record holds its GPUs from its start to its end, suspended time included; an open one up to when it was last seen
alive. The classes are those of the wall time (ledger.py) at that moment, and `spare`.

Records of which nobody knows how many GPUs they held, or until when, are counted apart, and never as none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from fleetctl.accounting.model import Window
from fleetctl.accounting.run_facts import RecordFacts, RunFacts
from fleetctl.accounting.spans import Span, Spent, clipped, is_hidden, touched, within
from fleetctl.accounting.stays import has_unknown_end, held
from fleetctl.accounting.timeline import Timeline, timeline
from fleetctl.rundir.model import AttemptNumber


class GpuLedger(Struct, frozen=True):
    """GPU-milliseconds of each class; they add up to `held_ms`, the sum over records of GPUs times the time held.

    `unknown_records` held something, and Slurm does not say how many GPUs, or nobody has seen yet how long.
    `productive` is the share of the held GPU time; None: nothing tells of the training, or no GPU is known to have been
    held.
    """

    ms: Mapping[Spent, int]
    held_ms: int
    unknown_records: int
    productive: float | None

    def known_ms(self, spent: Spent) -> int | None:
        """As `ms`; None where nobody tells, or no record's GPUs are known."""
        if self.unknown_records and not self.held_ms:
            return None
        return None if self.productive is None and is_hidden(self.ms, spent) else self.ms[spent]


class GpuCost(Struct, frozen=True):
    """GPU-milliseconds that one interruption took: of the hang before it was seen, and of the work that it lost."""

    number: AttemptNumber
    detection_ms: int
    lost_ms: int


def gpu_ledger(facts: RunFacts, as_of_ms: int, window: Window | None = None) -> GpuLedger:
    """As `ledger.wall_ledger`."""
    return gpu_of(facts, timeline(facts, as_of_ms), window)


def gpu_of(facts: RunFacts, line: Timeline, window: Window | None = None) -> GpuLedger:
    return gpus_by(facts, line, window, lambda record: "").get("", GpuLedger(dict.fromkeys(Spent, 0), 0, 0, None))


def gpus_by(
    facts: RunFacts, line: Timeline, window: Window | None, key: Callable[[RecordFacts], str]
) -> dict[str, GpuLedger]:
    """One ledger for each key of a record that held nodes within the window, or may have; their sum is the run's."""
    records: dict[str, list[RecordFacts]] = {}
    for record in facts.records:
        if _spans(line.spans, record, window) or _is_open_in(record, window):
            records.setdefault(key(record), []).append(record)
    return {name: _ledger(facts, line, window, of) for name, of in sorted(records.items())}


def gpu_costs(facts: RunFacts, line: Timeline) -> dict[AttemptNumber, GpuCost]:
    """Of each interruption that took known GPU time."""
    sums: dict[AttemptNumber, list[int]] = {}
    for one, spent, gpu_ms in _shares(facts, line, None, facts.records):
        if spent is Spent.HANG and one.attempt is not None:
            sums.setdefault(one.attempt, [0, 0])[0] += gpu_ms
        if spent is Spent.LOST and one.charged is not None:
            sums.setdefault(one.charged, [0, 0])[1] += gpu_ms
    return {number: GpuCost(number, *of) for number, of in sums.items()}


def _ledger(facts: RunFacts, line: Timeline, window: Window | None, records: Iterable[RecordFacts]) -> GpuLedger:
    ms = dict.fromkeys(Spent, 0)
    for _, spent, gpu_ms in _shares(facts, line, window, records):
        ms[spent] += gpu_ms
    held_ms = sum(ms.values())
    productive = ms[Spent.PRODUCTIVE] / held_ms if line.is_told and held_ms else None
    return GpuLedger(ms, held_ms, sum(map(_is_unknown, records)), productive)


def _is_unknown(record: RecordFacts) -> bool:
    return record.gpus is None or (record.gpus > 0 and has_unknown_end(record))


def _is_open_in(record: RecordFacts, window: Window | None) -> bool:
    """Whether it may have held something within the window, and nobody knows."""
    if record.started_ms is None or not has_unknown_end(record):
        return False
    return window is None or (
        record.started_ms < window.until_s * 1000
        and (record.purged_ms is None or record.purged_ms > window.since_s * 1000)
    )


def _shares(
    facts: RunFacts, line: Timeline, window: Window | None, records: Iterable[RecordFacts]
) -> Iterable[tuple[Span, Spent, int]]:
    """Every stretch of every record: the span it is from, what it was spent on, GPU-milliseconds."""
    used = {one.number: one.nodes for one in facts.attempts}
    for record in records:
        gpus = record.gpus or 0
        for one in _spans(line.spans, record, window) if gpus else ():
            nodes = facts.nodes if one.attempt is None else used.get(one.attempt)
            spare = _spare_gpus(record, nodes)
            yield one, one.spent, (gpus - spare) * one.ms
            yield one, Spent.SPARE, spare * one.ms


def _spans(spans: Sequence[Span], record: RecordFacts, window: Window | None) -> tuple[Span, ...]:
    stretch = held(record)
    return () if stretch is None else clipped(within(spans[touched(spans, *stretch)], *stretch), window)


def _spare_gpus(record: RecordFacts, used_nodes: int | None) -> int:
    """GPUs of the nodes that the training does not use, where all nodes of a record have as many. A hetjob's nodes are
    not told by component, and it has no spare ones."""
    if record.gpus is None or not record.nodes or used_nodes is None or record.het_offset is not None:
        return 0
    return record.gpus * max(0, record.nodes - max(0, used_nodes)) // record.nodes
