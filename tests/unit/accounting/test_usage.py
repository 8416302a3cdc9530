"""GPU-seconds held, cut at windows and added up; unknown stays unknown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import text
from sqlalchemy.dialects import sqlite

from fleetctl.accounting import tables
from fleetctl.accounting.database import open_database
from fleetctl.accounting.model import Window
from fleetctl.accounting.read_jobs import read_jobs
from fleetctl.accounting.read_runs import read_runs
from fleetctl.accounting.read_usage import read_costs, read_usage, sums_by
from fleetctl.accounting.usage import Bucket, By, Held, Usage, add_up, by_key, calendar, models_of, total_of
from tests.accounting_rows import DAY_S, HOUR_S, T0, Rows

DAY = Window(T0, T0 + DAY_S)


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Rows]:
    engine = open_database(f"sqlite:///{tmp_path}/a.db", create=True)
    with engine.begin() as connection:
        yield Rows(connection)
    engine.dispose()


def usage(rows: Rows, *by: By, window: Window = DAY, zone: ZoneInfo | None = None) -> dict[object, Usage]:
    found = by_key(read_usage(rows.connection, window, by, [rows.cluster_id], zone or UTC), by)
    return {one.keys[0] if len(by) == 1 else one.keys: one for one in found}


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("h100=8", [("h100", 1)]),
        ("a100=2,h100=6", [("a100", Fraction(1, 4)), ("h100", Fraction(3, 4))]),
        ("a100_3g.20gb=1,gpu=1", [("a100_3g.20gb", Fraction(1, 2)), ("gpu", Fraction(1, 2))]),
        ("", [("", 1)]),
    ],
)
def test_models_have_their_part_of_the_gpus(said: str, wanted: list[tuple[str, Fraction]]) -> None:
    assert list(models_of(said)) == wanted


def test_held_time_is_cut_at_the_edges_of_the_window(rows: Rows) -> None:
    rows.record(1, started_s=T0 - HOUR_S, ended_s=T0 + HOUR_S, gpus=8)
    rows.record(2, started_s=T0 + DAY_S - 10, ended_s=T0 + 2 * DAY_S, gpus=1)
    rows.record(3, started_s=T0 - HOUR_S, ended_s=T0, gpus=64)  # ended before
    rows.record(4, started_s=T0 + DAY_S, ended_s=T0 + 2 * DAY_S, gpus=64)  # began after
    rows.record(5, started_s=T0 - DAY_S, ended_s=T0 + 3 * DAY_S, gpus=2)

    wanted = 8 * HOUR_S + 10 + 2 * DAY_S
    assert usage(rows, By.ACCOUNT) == {"lab": Usage(("lab",), wanted, wanted, records=3, unknown_gpus=0, unknown_end=0)}


def test_time_in_which_a_job_was_suspended_counts_since_its_gpus_were_not_free(rows: Rows) -> None:
    rows.record(1, suspended_s=HOUR_S, started_s=T0, ended_s=T0 + 2 * HOUR_S, gpus=8)
    assert usage(rows, By.ACCOUNT)["lab"].gpu_seconds == 16 * HOUR_S


def test_open_records_count_up_to_when_they_were_last_seen_and_never_up_to_now(rows: Rows) -> None:
    rows.record(1, ended_s=None, alive_s=T0 + HOUR_S, gpus=8)
    rows.record(2, ended_s=None, alive_s=T0 + 9 * DAY_S, gpus=1)  # seen after the window
    rows.record(3, started_s=T0 - DAY_S, ended_s=None, alive_s=T0 - HOUR_S, gpus=64)  # a runaway of earlier
    rows.record(4, ended_s=None, alive_s=None, gpus=64)  # nobody has seen it
    rows.record(5, started_s=None, ended_s=None, gpus=None)  # waits

    found, wanted = usage(rows, By.ACCOUNT)["lab"], 8 * HOUR_S + DAY_S
    assert found == Usage(("lab",), wanted, wanted, records=3, unknown_gpus=0, unknown_end=1)


def test_records_without_gpu_data_are_counted_apart_and_their_sum_is_no_zero(rows: Rows) -> None:
    rows.record(1, account="told", gpus=0, gpu_models="")
    rows.record(2, account="untold", gpus=None, gpu_models="")
    rows.record(3, account="both", gpus=None, gpu_models="")
    rows.record(4, account="both", gpus=1, gpu_models="gpu=1")

    found = usage(rows, By.ACCOUNT)
    assert (found["told"].gpu_seconds, found["told"].unknown_gpus) == (0, 0)
    assert (found["untold"].gpu_seconds, found["untold"].equivalents, found["untold"].unknown_gpus) == (None, None, 1)
    assert (found["both"].gpu_seconds, found["both"].records, found["both"].unknown_gpus) == (HOUR_S, 2, 1)
    assert total_of(found.values()) == Usage((), HOUR_S, HOUR_S, 4, 2, 0)
    assert total_of([found["untold"]]).gpu_seconds is None


@pytest.mark.parametrize("by", [(By.ACCOUNT,), (By.USER,), (By.PARTITION,), (By.DAY,), (By.CLUSTER,), (By.RUN,)])
def test_a_slice_is_its_part_of_a_gpu_in_the_equivalents_whatever_it_is_added_up_by(
    by: tuple[By, ...], rows: Rows
) -> None:
    rows.record(1, gpus=2, gpu_models="a100_3g.20gb=2")
    rows.record(2, gpus=2, gpu_models="A100_3G.20GB=1,h100=1")
    rows.record(3, gpus=8, gpu_models="h100=8")

    (found,) = usage(rows, *by).values()
    assert found.gpu_seconds == 12 * HOUR_S
    assert found.equivalents == (Fraction(3 * 3, 7) + 9) * HOUR_S
    assert (found.records, found.unknown_gpus) == (3, 0)


def test_by_model_a_record_is_split_by_its_types(rows: Rows) -> None:
    rows.record(1, gpus=8, gpu_models="a100=2,h100=6")
    rows.record(2, gpus=7, gpu_models="a100_3g.20gb=7")
    rows.record(3, gpus=0, gpu_models="")

    found = usage(rows, By.MODEL)
    assert {key: one.gpu_seconds for key, one in found.items()} == {
        "a100_3g.20gb": 7 * HOUR_S,
        "h100": 6 * HOUR_S,
        "a100": 2 * HOUR_S,
        None: 0,
    }
    assert found["a100_3g.20gb"].equivalents == 3 * HOUR_S


def test_several_keys_stand_in_the_order_that_was_asked(rows: Rows) -> None:
    rows.record(1, user="ada", partition="long", gpus=1, gpu_models="h100=1")
    rows.record(2, user="bob", partition="long", gpus=2, gpu_models="h100=2")

    found = usage(rows, By.MODEL, By.PARTITION, By.USER, By.ACCOUNT, By.CLUSTER, By.MONTH)
    assert list(found) == [
        ("h100", "long", "bob", "lab", "lab", "2026-11"),
        ("h100", "long", "ada", "lab", "lab", "2026-11"),
    ]


@pytest.mark.parametrize("by", [(By.ACCOUNT,), (By.USER,), (By.MODEL,), (By.DAY,), (By.RUN,)])
def test_what_slurm_bills_is_told_where_it_was_asked_for(by: tuple[By, ...], rows: Rows) -> None:
    rows.record(1, started_s=T0 - HOUR_S, ended_s=T0 + HOUR_S, billing=16)
    rows.record(2, billing=None)
    rows.record(3, ended_s=None, alive_s=T0 + HOUR_S, billing=4)

    (found,) = by_key(read_usage(rows.connection, DAY, by, [rows.cluster_id], billing=True), by)
    assert found.billing_seconds == 20 * HOUR_S
    assert [one.billing_seconds for one in usage(rows, *by).values()] == [None]
    assert total_of([found]).billing_seconds == 20 * HOUR_S


def test_days_are_those_of_the_zone(rows: Rows) -> None:
    rows.record(1, started_s=T0, ended_s=T0 + DAY_S, gpus=1)

    assert {day: one.gpu_seconds for day, one in usage(rows, By.DAY).items()} == {"2026-11-01": DAY_S}
    # clocks go back there on this day, so four hours of it are Saturday's
    assert {day: one.gpu_seconds for day, one in usage(rows, By.DAY, zone=ZoneInfo("America/New_York")).items()} == {
        "2026-11-01": 20 * HOUR_S,
        "2026-10-31": 4 * HOUR_S,
    }


def test_a_record_belongs_to_the_run_that_had_its_job_id_when_it_was_submitted(rows: Rows) -> None:
    rows.put(tables.run_jobs, run_id="old", job_id=7, user="ada", since_s=T0 - DAY_S)
    rows.put(tables.run_jobs, run_id="new", job_id=7, user="ada", since_s=T0 + HOUR_S)
    rows.put(tables.run_jobs, run_id="foreign", job_id=8, user="ada", since_s=T0 + DAY_S)
    for index in range(2):
        rows.record(7, raw_id=100 + index, array_index=index, gpus=1)  # elements of a sweep
    rows.record(7, submitted_s=T0 + HOUR_S, started_s=T0 + HOUR_S, ended_s=T0 + 2 * HOUR_S, gpus=4)
    rows.record(8, gpus=8)

    found = {run: one.gpu_seconds for run, one in usage(rows, By.RUN).items()}
    assert found == {None: 8 * HOUR_S, "new": 4 * HOUR_S, "old": 2 * HOUR_S}


def test_a_record_of_somebody_else_is_none_of_the_run_that_had_its_job_id(rows: Rows) -> None:
    """`usage --by run`, `jobs --run` and goodput tell the same."""
    rows.put(tables.runs, run_id="mine", user="ada", created_ms=(T0 - DAY_S) * 1000, tasks=1)
    rows.put(tables.run_jobs, run_id="mine", job_id=7, user="ada", since_s=T0 - DAY_S)
    rows.record(7, gpus=1, gpu_models="h100=1")
    rows.record(7, user="eve", submitted_s=T0 + HOUR_S, started_s=T0 + HOUR_S, ended_s=T0 + 2 * HOUR_S, gpus=64)

    assert usage(rows, By.RUN)["mine"].gpu_seconds == HOUR_S
    assert [one.gpus for one in read_jobs(rows.connection, DAY, [rows.cluster_id], run_id="mine")] == [1]
    (facts,) = read_runs(rows.connection, ["mine"], None, [rows.cluster])
    assert [one.gpus for one in facts.records] == [1]


def test_a_record_that_ended_before_its_start_held_nothing(rows: Rows) -> None:
    rows.record(1, started_s=T0 + HOUR_S, ended_s=T0 + 60, gpus=8)
    rows.record(2, started_s=T0 + HOUR_S, ended_s=None, alive_s=T0 + 60, gpus=8)
    for by in (By.ACCOUNT, By.DAY, By.RUN):
        assert [(one.gpu_seconds, one.records) for one in usage(rows, by).values()] == [(0, 2)]


def test_days_stand_in_their_order_and_the_largest_of_each_first(rows: Rows) -> None:
    rows.record(1, started_s=T0 + DAY_S, ended_s=T0 + DAY_S + HOUR_S, gpus=64)
    rows.record(2, gpus=1)
    rows.record(3, user="bob", gpus=2)
    found = usage(rows, By.USER, By.DAY, window=Window(T0, T0 + 2 * DAY_S))
    assert list(found) == [("bob", "2026-11-01"), ("ada", "2026-11-01"), ("ada", "2026-11-02")]


def test_costs_count_unknown_records_once_and_every_price_ends_the_one_before(rows: Rows) -> None:
    rows.record(1, gpus=1, gpu_models="h100=1", started_s=T0 - HOUR_S, ended_s=T0 + HOUR_S)
    rows.record(2, gpus=None, gpu_models="", started_s=T0 - HOUR_S, ended_s=T0 + HOUR_S)
    rows.put(tables.prices, id=1, since_s=0, currency="EUR", per_gpu_hour="1")
    rows.put(tables.prices, id=2, since_s=T0, currency="USD", per_gpu_hour="2")

    window = Window(T0 - DAY_S, T0 + DAY_S)
    for currency, amount in (("EUR", 1), ("USD", 2)):
        total = read_costs(rows.connection, window, (By.ACCOUNT,), [rows.cluster_id], currency=currency).total
        assert total.amount == amount
        assert total.unknown_gpus == 1
        assert total.unpriced_gpu_seconds == HOUR_S


def test_a_cluster_that_was_not_asked_for_does_not_count(rows: Rows) -> None:
    other = rows.add_cluster("other")
    rows.record(1, cluster_id=other, gpus=64)
    assert usage(rows, By.CLUSTER) == {}
    assert read_usage(rows.connection, DAY, (By.ACCOUNT,), ()) == ()


@pytest.mark.parametrize(
    ("by", "sorted_too"), [((), False), ((By.ACCOUNT,), False), ((By.USER, By.MODEL), True), ((By.PARTITION,), True)]
)
def test_sums_read_one_covering_index_and_skip_what_ended_before(
    by: tuple[By, ...], sorted_too: bool, rows: Rows
) -> None:
    compiled = sums_by(by).compile(dialect=sqlite.dialect())
    values = {**compiled.params, "cluster": 1, "since": T0, "until": T0 + 1}
    statement = f"EXPLAIN QUERY PLAN {compiled}"
    cursor = rows.connection.exec_driver_sql(statement, tuple(values[name] for name in compiled.positiontup or ()))
    plan = [row[3] for row in cursor]

    wanted = "SEARCH job_records USING COVERING INDEX ix_job_records_usage (cluster_id=? AND account=? AND ended_s>?)"
    assert plan[0] == wanted
    assert all("ix_job_records_usage" in line for line in plan if "job_records" in line)
    assert ("USE TEMP B-TREE FOR GROUP BY" in plan) is sorted_too


def test_slices_are_found_by_an_index_of_their_own(rows: Rows) -> None:
    plan = rows.connection.execute(
        text(
            "EXPLAIN QUERY PLAN SELECT count(*) FROM job_records WHERE cluster_id = 1 AND ended_s > 1 AND "
            "replace(lower(gpu_models), 'g.', '') != lower(gpu_models)"
        )
    ).all()
    assert "ix_job_records_sliced" in plan[0][3]


def test_rows_that_a_stretch_ends_with_do_not_touch_the_next() -> None:
    window = Window(T0 - DAY_S, T0 + DAY_S)
    held = Held((None,), "h100=1", 1, T0 - 60, T0)
    assert add_up([held], window, (By.DAY,), calendar(window, UTC, (By.DAY,))) == (
        Bucket(("2026-10-31",), "h100=1", 60, 1),
    )
