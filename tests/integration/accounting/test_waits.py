"""`fleetctl account waits`, on both databases."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.accounting_rows import HOUR_S, T0, Rows, writing
from tests.support import Cli

_WINDOW = ("--since", "2026-11-01", "--until", "2026-11-02", "--utc")


@pytest.fixture
def cli(tmp_path: Path, database: str) -> Cli:
    with writing(database) as rows:
        _fill(rows)
    return Cli({**os.environ, "FLEETCTL_DATABASE": database}, tmp_path / "runs")


def _fill(rows: Rows) -> None:
    for job in range(1, 101):
        rows.record(job, submitted_s=T0, eligible_s=T0 + 60, started_s=T0 + 60 + job, ended_s=T0 + HOUR_S)
    at_s = T0 + HOUR_S
    rows.record(1, submitted_s=at_s, eligible_s=at_s + 121, started_s=at_s + 200, ended_s=None)
    rows.record(200, partition="cpu", gpus=0, started_s=None, ended_s=None, eligible_s=None)
    rows.record(201, partition="cpu", gpus=0, started_s=None, ended_s=T0 + 30, state="CANCELLED", eligible_s=None)
    rows.record(202, partition="cpu", gpus=0, submitted_s=T0 + 10, eligible_s=T0 + 10, started_s=T0)
    rows.record(203, partition="cpu", gpus=0, eligible_s=None)


def test_three_waits_and_those_without_a_start_are_told_apart(cli: Cli) -> None:
    found = cli.json("account", "waits", *_WINDOW)

    rows = {(row["partition"], row["wait"]): row for row in found["rows"]}
    assert rows["gpu", "queue"] == {
        "partition": "gpu",
        "wait": "queue",
        "records": 101,
        "p50_s": 51,
        "p90_s": 90,
        "p99_s": 99,
        "max_s": 100,
        "unordered": 0,
    }
    assert (rows["gpu", "before_eligible"]["records"], rows["gpu", "before_eligible"]["max_s"]) == (101, 121)
    assert (rows["gpu", "first_start"]["records"], rows["gpu", "first_start"]["max_s"]) == (100, 160)
    assert (rows["cpu", "still_waiting"]["records"], rows["cpu", "still_waiting"]["max_s"]) == (1, 24 * HOUR_S)
    assert (rows["cpu", "never_started"]["records"], rows["cpu", "never_started"]["max_s"]) == (1, 30)
    assert (rows["cpu", "queue"]["max_s"], rows["cpu", "queue"]["unordered"]) == (0, 1)
    assert "first Submit to first Start" in found["definition"]
    assert [note for note in found["notes"] if "not known" in note or "backwards" in note] == [
        "1 records started, but when they were submitted or eligible is not known",
        "1 records have times that run backwards; what would be negative counts as 0",
    ]


def test_a_retired_cluster_hides_nothing_of_the_others(tmp_path: Path, database: str) -> None:
    with writing(database) as rows:
        _fill(rows)
        rows.add_cluster("retired", synced_s=T0 - 9)
    cli = Cli({**os.environ, "FLEETCTL_DATABASE": database}, tmp_path / "runs")

    found = cli.json("account", "waits", *_WINDOW)

    assert found["as_of"] == "2026-10-31T23:59:51Z", "the oldest is what an answer says of itself"
    assert {row["wait"]: row["records"] for row in found["rows"] if row["partition"] == "gpu"} == {
        "before_eligible": 101,
        "queue": 101,
        "first_start": 100,
    }


def test_a_table_reads_like_a_table(cli: Cli) -> None:
    done = cli("account", "waits", *_WINDOW, "--by", "gpus,user")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split("\t") == ["GPUS", "USER", "WAIT", "RECORDS", "P50", "P90", "P99", "MAX"]
    assert done.stdout.splitlines()[-3] == "5-8\tada\tbefore_eligible\t101\t1m\t1m\t1m\t2m1s"
    assert "2026-11-01 00:00:00 to 2026-11-02 00:00:00" in done.stderr


@pytest.mark.parametrize("by", ["partitions", "user,user", ""])
def test_what_cannot_be_grouped_by_is_refused(cli: Cli, by: str) -> None:
    done = cli("account", "waits", *_WINDOW, "--by", by)

    assert done.returncode == 2
    assert "expected" in done.stderr
