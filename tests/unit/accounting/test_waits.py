"""How long jobs waited: three waits, and those that never became a start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine

from fleetctl.accounting import tables
from fleetctl.accounting.model import Window
from fleetctl.accounting.read_waits import _records, read_waits
from fleetctl.accounting.waits import Wait, Waiting, Waits, gpu_class, percentile, waits_of
from tests.accounting_rows import DAY_S, HOUR_S, T0, Rows

_WINDOW = Window(T0, T0 + DAY_S)


def _waiting(**values: Any) -> Waiting:
    """By default submitted at T0, eligible a minute later, started two minutes after that, ended after an hour."""
    usual = {"job": (1, 7), "key": ("gpu",), "user": "ada", "submitted_s": T0, "eligible_s": T0 + 60}
    return Waiting(**{**usual, "started_s": T0 + 180, "ended_s": T0 + HOUR_S, **values})


def _waits(records: list[Waiting], window: Window, as_of_s: int) -> Waits:
    return waits_of(records, window, {1: as_of_s, 2: as_of_s})


def _seconds(found: Waits) -> dict[Wait, list[int]]:
    """Each wait's records and longest."""
    return {one.wait: [one.records, one.max_s] for one in found.spreads}


@pytest.mark.parametrize(
    ("values", "per_cent", "expected"),
    [
        ([15, 20, 35, 40, 50], 30, 20),  # the textbook's example of the nearest rank
        ([15, 20, 35, 40, 50], 40, 20),
        ([15, 20, 35, 40, 50], 50, 35),
        ([15, 20, 35, 40, 50], 100, 50),
        ([7], 50, 7),
        ([7], 99, 7),
        (list(range(1, 101)), 99, 99),
        (list(range(1, 102)), 99, 100),
        ([0] * 99 + [9], 99, 0),
        ([0] * 98 + [9, 9], 99, 9),
    ],
)
def test_percentiles_are_values_that_there_were(values: list[int], per_cent: int, expected: int) -> None:
    assert percentile({value: values.count(value) for value in values}, per_cent) == expected


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="nothing"):
        percentile({}, 50)


def test_a_job_has_three_waits() -> None:
    found = _waits([_waiting()], _WINDOW, T0 + DAY_S)

    assert _seconds(found) == {Wait.BEFORE_ELIGIBLE: [1, 60], Wait.QUEUE: [1, 120], Wait.FIRST_START: [1, 180]}


def test_a_requeued_job_waits_twice_in_the_queue_and_once_for_its_first_start() -> None:
    again = _waiting(submitted_s=T0 + HOUR_S, eligible_s=T0 + HOUR_S + 121, started_s=T0 + HOUR_S + 500, ended_s=None)

    found = _waits([_waiting(), again], _WINDOW, T0 + DAY_S)

    assert _seconds(found) == {Wait.BEFORE_ELIGIBLE: [2, 121], Wait.QUEUE: [2, 379], Wait.FIRST_START: [1, 180]}


def test_a_resized_job_did_not_wait_again() -> None:
    """As 22.05.8 records it: the next size has a Submit and Eligible of its own, which is when the one before ended."""
    at_s = T0 + HOUR_S
    resized = _waiting(submitted_s=at_s, eligible_s=at_s, started_s=at_s, ended_s=at_s + 60)
    first = _waiting(resized=True)

    assert _waits([first, resized], _WINDOW, T0 + DAY_S) == _waits([_waiting()], _WINDOW, T0 + DAY_S)


@pytest.mark.parametrize(
    "other",
    [
        {"user": "bob", "submitted_s": T0 + HOUR_S},
        {"submitted_s": T0 + 3 * DAY_S},
        {"job": (1, 8), "submitted_s": T0 + HOUR_S},
        {"job": (2, 7), "submitted_s": T0 + HOUR_S},
    ],
)
def test_an_id_that_was_given_out_again_is_another_job(other: dict[str, Any]) -> None:
    submitted_s = other["submitted_s"]
    later = _waiting(**other, eligible_s=submitted_s, started_s=submitted_s + 10, ended_s=submitted_s + 20)

    found = _waits([_waiting(), later], Window(T0, T0 + 5 * DAY_S), T0 + 5 * DAY_S)

    assert _seconds(found)[Wait.FIRST_START] == [2, 180]


def test_only_starts_within_the_window_count_and_its_end_is_not_within() -> None:
    records = [
        _waiting(job=(1, number), submitted_s=T0 - 500, eligible_s=T0 - 500, started_s=started_s)
        for number, started_s in enumerate([T0 - 1, T0, T0 + DAY_S - 1, T0 + DAY_S])
    ]

    found = _seconds(_waits(records, _WINDOW, T0 + 9 * DAY_S))

    assert found[Wait.QUEUE] == [2, DAY_S + 499]
    assert found[Wait.STILL_WAITING] == [1, DAY_S + 500], "it had not started by the end of the window"


def test_what_has_not_started_waits_up_to_what_the_data_knows() -> None:
    found = _waits([_waiting(started_s=None, ended_s=None)], _WINDOW, T0 + 1_000)

    assert _seconds(found) == {Wait.STILL_WAITING: [1, 1_000]}


def test_a_job_that_was_requeued_and_started_at_once_waited_again() -> None:
    at_s = T0 + HOUR_S
    again = _waiting(submitted_s=at_s, eligible_s=at_s, started_s=at_s, ended_s=at_s + 60)

    assert _seconds(_waits([_waiting(), again], _WINDOW, T0 + DAY_S))[Wait.QUEUE] == [2, 120]


def test_each_cluster_s_data_reaches_as_far_as_its_own_sync() -> None:
    """One that was retired a month ago says nothing of another one's today."""
    old = {"job": (1, 7), "submitted_s": T0 - 40 * DAY_S, "eligible_s": T0 - 40 * DAY_S}
    records = [_waiting(**old, started_s=None, ended_s=None), _waiting(job=(2, 7))]

    found = _seconds(waits_of(records, _WINDOW, {1: T0 - 30 * DAY_S, 2: T0 + DAY_S}))

    assert found == {
        Wait.BEFORE_ELIGIBLE: [1, 60],
        Wait.QUEUE: [1, 120],
        Wait.FIRST_START: [1, 180],
        Wait.STILL_WAITING: [1, 10 * DAY_S],
    }


def test_what_ended_without_a_start_is_apart() -> None:
    cancelled = _waiting(started_s=None, ended_s=T0 + 300, eligible_s=None)

    assert _seconds(_waits([cancelled], _WINDOW, T0 + DAY_S)) == {Wait.NEVER_STARTED: [1, 300]}
    assert _seconds(_waits([cancelled], Window(T0 + 301, T0 + DAY_S), T0 + DAY_S)) == {}
    assert _seconds(_waits([cancelled], Window(T0, T0 + 200), T0 + DAY_S)) == {Wait.STILL_WAITING: [1, 200]}


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"eligible_s": T0 - 50}, [0, 180, 180]),  # no gift of the queue: the parts still add up to the whole
        ({"eligible_s": T0 + 200}, [180, 0, 180]),
        ({"submitted_s": T0 + 300, "eligible_s": T0 + 300}, [0, 0, 0]),
    ],
)
def test_times_that_run_backwards_are_zero_and_counted(times: dict[str, int], expected: list[int]) -> None:
    found = _waits([_waiting(**times)], _WINDOW, T0 + DAY_S)

    assert [one.max_s for one in found.spreads] == expected
    assert [one.unordered for one in found.spreads] == [1, 1, 1]


def test_a_wait_of_nothing_is_zero_and_nothing_strange() -> None:
    at_once = _waiting(eligible_s=T0, started_s=T0)

    assert [(one.max_s, one.unordered) for one in _waits([at_once], _WINDOW, T0 + DAY_S).spreads] == [(0, 0)] * 3


@pytest.mark.parametrize("missing", ["submitted_s", "eligible_s"])
def test_a_start_whose_submission_is_not_known_is_told(missing: str) -> None:
    assert _waits([_waiting(**{missing: None})], _WINDOW, T0 + DAY_S) == Waits((), 1)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [(None, None), (0, "0"), (1, "1"), (2, "2"), (3, "3-4"), (4, "3-4"), (5, "5-8"), (8, "5-8"), (1024, "513-1024")],
)
def test_jobs_of_like_size_share_a_row(gpus: int | None, expected: str | None) -> None:
    assert gpu_class(gpus) == expected


@pytest.fixture
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    tables.metadata.create_all(engine)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def _read(connection: Connection, rows: Rows, *by: str) -> list[tuple[object, ...]]:
    found = read_waits(connection, _WINDOW, by, {rows.cluster_id: T0 + DAY_S})
    return [(*one.key, one.wait.value, one.records, one.max_s) for one in found.spreads]


def test_rows_are_sorted_by_size_and_the_unknown_comes_last(connection: Connection) -> None:
    rows = Rows(connection)
    for job, gpus in enumerate([16, 8, 1, 0, None]):
        rows.record(job + 1, gpus=gpus)

    found = _read(connection, rows, "gpus")

    assert list(dict.fromkeys(row[0] for row in found)) == ["0", "1", "5-8", "9-16", None]


def test_components_of_a_hetjob_wait_once_and_foreign_clusters_not_at_all(connection: Connection) -> None:
    rows = Rows(connection)
    rows.record(7, het_offset=0, started_s=T0 + 9)
    rows.record(8, job_id=7, het_offset=1, started_s=T0 + 9)
    rows.record(9, cluster_id=rows.add_cluster("other"), started_s=T0 + 100)

    assert _read(connection, rows, "cluster", "user") == [
        ("lab", "ada", "before_eligible", 1, 0),
        ("lab", "ada", "queue", 1, 9),
        ("lab", "ada", "first_start", 1, 9),
    ]


def test_a_job_whose_first_start_lies_long_before_the_window_has_no_other_one_in_it(connection: Connection) -> None:
    rows = Rows(connection)
    old_s = T0 - 40 * DAY_S
    rows.record(7, state="REQUEUED", submitted_s=old_s, eligible_s=old_s, started_s=old_s, ended_s=old_s + HOUR_S)
    rows.record(7, submitted_s=old_s + HOUR_S, eligible_s=old_s + HOUR_S, started_s=T0 + 1, ended_s=None)

    assert [row[1] for row in _read(connection, rows, "partition")] == ["before_eligible", "queue"]


def test_a_resized_job_waits_once_in_the_database_too(connection: Connection) -> None:
    rows = Rows(connection)
    rows.record(7, state="RESIZING", cause="resized", started_s=T0 + 9, ended_s=T0 + 600)
    rows.record(7, submitted_s=T0 + 600, eligible_s=T0 + 600, started_s=T0 + 600)

    assert [row[1:] for row in _read(connection, rows, "partition")] == [
        ("before_eligible", 1, 0),
        ("queue", 1, 9),
        ("first_start", 1, 9),
    ]


def _forgotten(rows: Rows, purged_s: int) -> None:
    old_s = T0 - 100 * DAY_S
    values: dict[str, Any] = {"submitted_s": old_s, "eligible_s": old_s, "started_s": None, "ended_s": None}
    rows.record(7, state="PENDING", purged_s=purged_s, **values)


@pytest.mark.parametrize(
    ("purged_s", "expected"),
    [
        (T0 - 1, []),
        (T0, [("gpu", "never_started", 1, 100 * DAY_S)]),
        (T0 + DAY_S, [("gpu", "still_waiting", 1, 101 * DAY_S)]),
    ],
)
def test_what_slurm_forgot_waits_no_longer(
    connection: Connection, purged_s: int, expected: list[tuple[object, ...]]
) -> None:
    rows = Rows(connection)
    _forgotten(rows, purged_s)

    assert _read(connection, rows, "partition") == expected


def test_what_slurm_forgot_makes_nobody_read_all_that_followed(connection: Connection) -> None:
    rows = Rows(connection)
    _forgotten(rows, T0 - 90 * DAY_S)
    rows.record(8, submitted_s=T0 - 50 * DAY_S, started_s=T0 - 50 * DAY_S, ended_s=T0 - 50 * DAY_S + 9)
    rows.record(9)

    found = _records(connection, _WINDOW, (), (rows.cluster_id,))

    assert [one.job for one in found] == [(rows.cluster_id, 9)]
