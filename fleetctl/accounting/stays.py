"""When a run held nodes: the records of Slurm and the attempts of the run directory, put together. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from fleetctl.accounting.allocations import CLOCKS_MS
from fleetctl.accounting.run_facts import AttemptFacts, RecordFacts, RunFacts
from fleetctl.rundir.model import AttemptNumber

_RESIZING = "RESIZING"  # the state of a record that another size of the same job followed


class Stay(Struct, frozen=True):
    """An unbroken time on nodes: one record, the components of a hetjob, or the sizes of a job that was resized.

    `state` is that of the record which ended last, "" where no record tells of this time.
    """

    start_ms: int
    end_ms: int
    state: str
    attempts: tuple[AttemptFacts, ...] = ()


def held(record: RecordFacts) -> tuple[int, int] | None:
    """From when to when it held nodes, as far as that is known; None: it has not started."""
    if record.started_ms is None:
        return None
    end_ms = record.ended_ms if record.ended_ms is not None else record.alive_ms
    return record.started_ms, max(record.started_ms, record.started_ms if end_ms is None else end_ms)


def has_unknown_end(record: RecordFacts) -> bool:
    """Whether it has started, and nobody has seen it alive since or gone."""
    return (
        record.started_ms is not None
        and record.ended_ms is None
        and (record.alive_ms is None or record.alive_ms <= record.started_ms)
    )


def waited(record: RecordFacts, as_of_ms: int) -> tuple[int | None, int]:
    """From when to when it could have started (None: never yet), or until it was gone."""
    ends = (record.started_ms, record.ended_ms, record.purged_ms, as_of_ms)
    return record.eligible_ms, next(end for end in ends if end is not None)


def stays_of(facts: RunFacts) -> tuple[Stay, ...]:
    """By time; they do not overlap, and every attempt that lasted is in one of them."""
    found = _merged([stay for record in facts.records if (stay := _stay(record)) is not None])
    signs = _signs(facts)
    lone: list[Stay] = []
    placed: dict[int, list[AttemptFacts]] = {}
    for _, group in groupby(sorted(facts.attempts, key=_number), key=lambda one: one.number[0]):
        attempts = tuple(group)
        reach = min(one.started_ms for one in attempts), max(max(signs[one.number]) for one in attempts)
        where = _where(found, *reach)
        if where is None:
            lone.append(Stay(*reach, "", attempts=attempts))
        else:
            placed.setdefault(where, []).extend(attempts)
    whole = [replace(stay, attempts=tuple(placed.get(at, ()))) for at, stay in enumerate(found)]
    return tuple(_merged([*whole, *(stay for stay in lone if stay.start_ms < stay.end_ms)]))


def _number(attempt: AttemptFacts) -> tuple[AttemptNumber, int]:
    return attempt.number, attempt.started_ms


def _stay(record: RecordFacts) -> Stay | None:
    span = held(record)
    if span is None or span[0] == span[1]:
        return None
    return Stay(*span, record.state)


def _merged(stays: Sequence[Stay]) -> list[Stay]:
    """Those that overlap, or follow each other as sizes of one job, are one."""
    found: list[Stay] = []
    for stay in sorted(stays, key=lambda one: (one.start_ms, one.end_ms, one.state)):
        before = found[-1] if found else None
        if (
            before is None
            or stay.start_ms > before.end_ms
            or (stay.start_ms == before.end_ms and before.state != _RESIZING)
        ):
            found.append(stay)
            continue
        last = max(before, stay, key=lambda one: (one.end_ms, one.start_ms))
        attempts = tuple(sorted((*before.attempts, *stay.attempts), key=_number))
        found[-1] = Stay(before.start_ms, last.end_ms, last.state, attempts)
    return found


def _signs(facts: RunFacts) -> dict[AttemptNumber, list[int]]:
    """When each attempt gave a sign of life."""
    signs: dict[AttemptNumber, list[int]] = {}
    for one in facts.attempts:
        told = (one.started_ms, one.ended_ms, one.first_step_ms, one.last_step_ms)
        signs[one.number] = [at_ms for at_ms in told if at_ms is not None]
    for save in facts.saves:
        if save.saved_ms is not None and save.number in signs:
            signs[save.number].append(save.saved_ms)
    return signs


def _where(stays: Sequence[Stay], start_ms: int, end_ms: int) -> int | None:
    """The stay that overlaps most; else the nearest, as near as clocks may differ. `stays` are in the order of time."""

    def nearness(at: int) -> tuple[int, int, int]:
        stay = stays[at]
        overlap = min(end_ms, stay.end_ms) - max(start_ms, stay.start_ms)  # below 0: how far away
        return overlap, -abs(stay.start_ms - start_ms), -at

    low = bisect_left(stays, start_ms, key=lambda stay: stay.end_ms)  # the first that could; the one before is near
    high = bisect_right(stays, end_ms, key=lambda stay: stay.start_ms)
    best = max(range(max(0, low - 1), min(high + 1, len(stays))), key=nearness, default=None)
    return best if best is not None and nearness(best)[0] >= -CLOCKS_MS else None
