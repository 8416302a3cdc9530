"""Slurm's records, as the allocations that attempts of runs ran in. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

# Clocks of a cluster differ by less, or its credentials fail (munge.7: 5 minutes)
CLOCKS_MS = 300_000
# An attempt that began later than this after an allocation ran in the next one, even if its record is not here yet:
# Slurm starts no job again sooner (slurm.conf, cred_expire: at least 5 s)
AGAIN_MS = 5_000

JobKey = tuple[str, int, int | None]  # cluster, base id, array index


class Record(Struct, frozen=True):
    """One record that has started. `record` is its id, `part` of a hetjob; `resized`: its job goes on in another."""

    record: int
    job: JobKey
    part: int | None
    started_s: int
    ended_s: int | None
    resized: bool


class Allocation(Struct, frozen=True):
    """One record, or the sizes of a job that was resized. `records` are their ids, the last of which tells how it
    ended; `ended_s` None: it is open. Each part of a hetjob is its own."""

    job: JobKey
    part: int | None
    started_s: int
    ended_s: int | None
    records: tuple[int, ...]


def joined(records: Iterable[Record]) -> dict[JobKey, tuple[Allocation, ...]]:
    """Those of each job, by their starts. A size begins when the one before ended; its Submit is another
    (as_mysql_job.c, as_mysql_job_start)."""
    found: dict[JobKey, list[list[Record]]] = {}
    waiting: dict[tuple[JobKey, int | None, int], list[Record]] = {}  # job, part, and when the next size begins
    ordered = sorted(records, key=lambda one: (one.started_s, not one.resized, one.ended_s or 0, one.record))
    for record in ordered:
        sizes = waiting.pop((record.job, record.part, record.started_s), None)
        if sizes is None:
            sizes = []
            found.setdefault(record.job, []).append(sizes)
        sizes.append(record)
        if record.resized and record.ended_s is not None:
            waiting[record.job, record.part, record.ended_s] = sizes
    return {job: tuple(map(_allocation, of)) for job, of in found.items()}


def _allocation(sizes: Sequence[Record]) -> Allocation:
    first, last = sizes[0], sizes[-1]
    return Allocation(first.job, first.part, first.started_s, last.ended_s, tuple(one.record for one in sizes))


def allocation_of(held: Iterable[Allocation], started_ms: int, ended_ms: int | None) -> tuple[Allocation, ...]:
    """That of these allocations of one job which the attempt ran in, one for each part of a hetjob; none where none is
    as near as clocks may differ. `ended_ms` None: it goes on, or nobody knows."""
    reach = started_ms, max(started_ms, started_ms if ended_ms is None else ended_ms)
    best: dict[int | None, tuple[tuple[int, int], Allocation]] = {}
    for one in held:
        nearness = _overlap_ms(one, *reach), -abs(one.started_s * 1000 - started_ms)
        if _may_be(one, *reach) and (one.part not in best or nearness > best[one.part][0]):
            best[one.part] = nearness, one
    return tuple(one for _, one in best.values())


def _overlap_ms(one: Allocation, start_ms: int, end_ms: int) -> int:
    """Below 0: how far away."""
    until_ms = end_ms if one.ended_s is None else min(end_ms, (one.ended_s + 1) * 1000)
    return until_ms - max(start_ms, one.started_s * 1000)


def _may_be(one: Allocation, start_ms: int, end_ms: int) -> bool:
    is_early = one.started_s * 1000 - end_ms > CLOCKS_MS
    is_late = one.ended_s is not None and start_ms - (one.ended_s + 1) * 1000 > AGAIN_MS
    return not is_early and not is_late
