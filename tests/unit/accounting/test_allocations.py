"""In which record of Slurm an attempt ran."""

from __future__ import annotations

import time

import pytest

from fleetctl.accounting.allocations import AGAIN_MS, CLOCKS_MS, Allocation, JobKey, Record, allocation_of, joined
from tests.unit.accounting.test_recorded import OLD, of

JOB: JobKey = ("lab", 7, None)


def held(key: int, started_s: int, ended_s: int | None, *, part: int | None = None, resized: bool = False) -> Record:
    return Record(key, JOB, part, started_s, ended_s, resized)


def whole(*records: Record) -> list[tuple[int, ...]]:
    return [one.records for one in joined(records).get(JOB, ())]


def where(started_s: float, ended_s: float | None, *records: Record) -> list[int]:
    ended_ms = None if ended_s is None else round(ended_s * 1000)
    found = allocation_of(joined(records).get(JOB, ()), round(started_s * 1000), ended_ms)
    return [one.records[-1] for one in found]


def test_the_sizes_of_a_job_that_was_resized_are_one_and_a_requeue_is_another() -> None:
    sizes = (held(1, 0, 100, resized=True), held(2, 100, 200, resized=True), held(3, 200, None))
    assert whole(*reversed(sizes)) == [(1, 2, 3)]
    assert joined(sizes)[JOB] == (Allocation(JOB, None, 0, None, (1, 2, 3)),)
    assert whole(held(1, 0, 100), held(2, 100, 200)) == [(1,), (2,)]
    assert whole(held(1, 0, 100, resized=True), held(2, 101, 200)) == [(1,), (2,)]


def test_sizes_of_no_time_are_joined_too() -> None:
    assert whole(held(2, 5, None), held(1, 5, 5, resized=True)) == [(1, 2)]
    assert whole(held(3, 5, 9), held(1, 5, 5, resized=True), held(2, 5, 5, resized=True)) == [(1, 2, 3)]


def test_each_part_and_element_goes_on_in_its_own_record() -> None:
    records = [
        held(10 * part + size, size, size + 1, part=part, resized=size == 0) for part in (0, 1) for size in (0, 1)
    ]
    assert sorted(whole(*records)) == [(0, 1), (10, 11)]
    other = Record(2, ("lab", 7, 1), None, 100, 200, False)
    assert whole(held(1, 0, 100, resized=True), other) == [(1,)]


def test_a_resized_job_of_22_05_is_one() -> None:
    """slurmdbd gives each later size a Submit of its own."""
    first, second = of(OLD, 10)
    assert first.submitted_s != second.submitted_s
    told = [
        Record(key, JOB, None, one.started_s or 0, one.ended_s, one.cause == "resized")
        for key, one in enumerate((first, second))
    ]
    assert whole(*told) == [(0, 1)]


FIRST, SECOND = held(1, 1000, 1100), held(2, 1106, 1300)


@pytest.mark.parametrize(
    ("started_s", "ended_s", "found"),
    [
        (1010, 1090, [1]),
        (1110, None, [2]),
        (990, 1085, [1]),  # the node's clock is behind
        (1080, 1280, [2]),  # and further, by 30 s
        (1101, None, [1]),  # within the last second
        (1105, None, [2]),
        (1000 - CLOCKS_MS / 1000, None, [1]),
        (1000 - CLOCKS_MS / 1000 - 1, None, []),
        (1301 + AGAIN_MS / 1000, None, [2]),
        (1302 + AGAIN_MS / 1000, 9999, []),  # its own record is not here yet
        (1103.2, None, [1]),  # its last second counts
        (1200, 0, [2]),  # an end before its start says nothing
    ],
)
def test_an_attempt_ran_where_it_overlaps_most_or_else_is_near(
    started_s: float, ended_s: float | None, found: list[int]
) -> None:
    assert where(started_s, ended_s, FIRST, SECOND) == found


def test_an_attempt_ran_in_all_parts_of_one_start_of_a_hetjob() -> None:
    parts = [
        held(10 * start + part, 1000 * start, 1000 * start + 500, part=part) for start in (1, 2) for part in (0, 1)
    ]
    assert sorted(where(2010, 2400, *parts)) == [20, 21]
    assert where(2010, None) == []


def test_ten_thousand_elements_take_no_time() -> None:
    records = [Record(key, ("lab", 7, key), None, 0, 60, False) for key in range(10_000)]
    records += [held(key, key, key + 1, resized=True) for key in range(10_000, 20_000)]
    began = time.process_time()
    found = joined(records)
    assert time.process_time() - began < 2
    assert (len(found), len(found[JOB])) == (10_001, 1)
