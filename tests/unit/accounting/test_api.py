"""The accounting database from Python: the same answers as the commands, as values, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from fleetctl.accounting import tables
from fleetctl.accounting.api import Reader, open_reader
from fleetctl.accounting.causes import Cause
from fleetctl.accounting.database import open_database
from fleetctl.errors import DatabaseError
from tests.accounting_rows import DAY_S, HOUR_S, T0, Rows, writing

SINCE = datetime.fromtimestamp(T0, UTC)
UNTIL = SINCE + timedelta(days=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.db"
    open_database(f"sqlite:///{path}", create=True).dispose()
    with writing(f"sqlite:///{path}") as rows:
        _fill(rows)
    return path


def _fill(rows: Rows) -> None:
    rows.record(1, user="ada", gpus=8, nodes=("gpu1",))
    rows.record(2, user="bob", gpus=2, gpu_models="h100=2", state="NODE_FAIL", cause="node", failed_node="gpu2")
    other = rows.add_cluster("other", synced_s=None)
    rows.record(3, cluster_id=other, user="eve", gpus=64)
    rows.record(4, cluster_id=other, user="eve", ended_s=None)
    for digest in ("one", "other"):
        rows.put(tables.quarantine, source="sacct", digest=digest, raw=b"?")
    rows.put(tables.prices, id=1, cluster="", currency="EUR", per_gpu_hour="0.1", since_s=T0 - DAY_S)
    rows.put(tables.runs, run_id="r-1", name="r", user="ada", nodes=1, tasks=1, kind="plain", created_ms=T0 * 1000)
    rows.put(tables.run_jobs, run_id="r-1", job_id=1, user="ada", since_s=T0 - DAY_S)


@pytest.fixture
def reader(path: Path) -> Iterator[Reader]:
    with open_reader(str(path)) as reader:
        yield reader


def test_usage_and_cost_are_exact(reader: Reader) -> None:
    (bob, *_) = [one for one in reader.usage(SINCE, UNTIL, by=("user",)) if one.keys == ("bob",)]
    assert bob.gpu_seconds == 2 * HOUR_S
    found = reader.cost(SINCE, UNTIL, by=("user", "day"), clusters=("lab",), zone=ZoneInfo("Asia/Tokyo"))
    assert {one.keys: one.amount for one in found.rows} == {
        ("ada", "2026-11-01"): Fraction(8, 10),
        ("bob", "2026-11-01"): Fraction(2, 10),
    }
    assert (found.total.amount, found.currency) == (Fraction(1), "EUR")
    assert reader.cost(SINCE, UNTIL, currency="USD").total.amount is None


def test_jobs_are_records(reader: Reader) -> None:
    found = reader.jobs(SINCE, UNTIL, clusters=("lab",))
    assert [(one.job, one.run_id, one.gpu_seconds) for one in found] == [
        ("2", None, 2 * HOUR_S),
        ("1", "r-1", 8 * HOUR_S),
    ]
    assert [one.job for one in reader.jobs(SINCE, UNTIL, user="bob", state="NODE_FAIL", limit=5)] == ["2"]
    assert reader.jobs(SINCE, UNTIL, run_id="r-1", limit=1)[0].job == "1"


def test_failures_and_goodput_are_those_of_the_commands(reader: Reader) -> None:
    assert [(one.cause, one.node, one.user) for one in reader.failures(SINCE, UNTIL)] == [(Cause.NODE, "gpu2", "bob")]
    assert reader.failures(SINCE, UNTIL, clusters=("other",)) == ()
    (run,) = reader.goodput(SINCE, UNTIL)
    assert (run.run_id, run.gpus.held_ms) == ("r-1", 8 * HOUR_S * 1000)
    assert reader.goodput(SINCE, UNTIL, clusters=("other",)) == ()
    assert reader.goodput(SINCE, UNTIL, run_ids=("r-1",), clusters=("lab", "other")) == (run,)


def test_a_limit_counts_open_and_ended_records_together(reader: Reader) -> None:
    assert [one.job for one in reader.jobs(SINCE, UNTIL, user="eve")] == ["4", "3"]
    assert [one.job for one in reader.jobs(SINCE, UNTIL, user="eve", limit=1)] == ["4"]
    assert reader.jobs(SINCE, UNTIL, user="eve", limit=0) == ()


def test_the_age_of_the_data_and_what_could_not_be_read_are_told(reader: Reader) -> None:
    assert [(one.cluster, one.synced_s, one.quarantined) for one in reader.clusters()] == [
        ("lab", T0 + 2 * DAY_S, 2),
        ("other", None, 0),
    ]


def test_nothing_can_be_written(reader: Reader) -> None:
    with reader._engine.connect() as connection, pytest.raises(OperationalError, match="readonly"):
        connection.execute(text("DELETE FROM job_records"))


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda reader: reader.usage(SINCE.replace(tzinfo=None), UNTIL), "aware"),
        (lambda reader: reader.usage(UNTIL, SINCE), "until is after since"),
        (lambda reader: reader.usage(SINCE, UNTIL, by=("gpu",)), "'gpu' is not a valid By"),
        (lambda reader: reader.cost(SINCE, UNTIL, clusters=("nowhere",)), "no cluster nowhere"),
        (lambda reader: reader.goodput(SINCE, UNTIL, clusters=("nowhere",)), "no cluster nowhere"),
        (lambda reader: reader.goodput(SINCE, UNTIL, run_ids=("r-9",)), "no run 'r-9'"),
        (lambda reader: reader.goodput(SINCE, UNTIL, run_ids=("r-1",), clusters=("other",)), "r-1 is of cluster lab"),
    ],
)
def test_what_is_not_understood_is_a_value_error(reader: Reader, ask: Callable[[Reader], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ask(reader)


def test_a_database_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="no accounting database"), open_reader(str(tmp_path / "none.db")):
        pass
