"""`fleetctl account failures`, on both databases."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fleetctl.accounting import tables
from tests.accounting_rows import DAY_S, HOUR_S, T0, Rows, writing
from tests.support import Cli

_WINDOW = ("--since", "2026-11-01", "--until", "2026-11-03", "--utc")


@pytest.fixture
def cli(tmp_path: Path, database: str) -> Cli:
    with writing(database) as rows:
        _fill(rows)
    return Cli({**os.environ, "FLEETCTL_DATABASE": database}, tmp_path / "runs")


def _fill(rows: Rows) -> None:
    """Four nodes in two racks. r1n1 fails again and again; a run is interrupted within its record, then by a person."""
    for job in range(1, 5):
        rows.record(job, nodes=("r1n2", "r2n1", "r2n2"), ended_s=T0 + 10 * HOUR_S, cause="completed")
    for job in range(10, 16):
        rows.record(job, nodes=("r1n1",), cause="node", state="NODE_FAIL", failed_node="r1n1", exit_status=1)
    rows.record(20, nodes=("r2n1", "r2n2"), cause="node", state="NODE_FAIL", exit_status=1)
    rows.record(21, nodes=("r2n1",), cause="program", state="FAILED", exit_status=1, user="bob")
    rows.record(22, nodes=("r2n1",), cause="time_limit", state="TIMEOUT", started_s=T0 + DAY_S, ended_s=T0 + DAY_S + 9)
    rows.record(23, cause="program", state="FAILED", exit_status=1, gpus=None)
    rows.record(30, nodes=("r2n1",), cause="requeued", state="REQUEUED", ended_s=T0 + 2 * HOUR_S)
    rows.put(tables.runs, run_id="run", name="run", user="ada", kind="plain", created_ms=T0 * 1000)
    rows.put(tables.run_jobs, run_id="run", job_id=30, user="ada", since_s=T0)
    _attempt(rows, 0, 600, {"cause": "gpu", "evidence": "Xid 79", "node": "r2n1"}, by_person=0)
    _attempt(rows, 1, 2 * HOUR_S - 5, {"cause": "crash", "evidence": "signal 11", "node": ""}, by_person=1)


def _attempt(rows: Rows, minor: int, end: int, cause: dict[str, str], by_person: int) -> None:
    key: dict[str, Any] = {"run_id": "run", "task": -1, "major": 1, "minor": minor}
    at_ms = (T0 + end) * 1000
    rows.put(tables.attempts, **key, job_id="30", started_ms=T0 * 1000 + minor, ended_ms=at_ms, ending="failed")
    rows.put(tables.interruptions, **key, at_ms=at_ms, causes=json.dumps([cause]), by_person=by_person)


def _rows(cli: Cli, *args: str) -> dict[str | None, dict[str, Any]]:
    found = cli.json("account", "failures", *_WINDOW, *args)
    return {row[args[1] if args else "cause"]: row for row in found["rows"]}


def test_causes_have_rates_limits_and_what_would_be_without_them(cli: Cli) -> None:
    found = cli.json("account", "failures", *_WINDOW)

    rows = {row["cause"]: row for row in found["rows"]}
    assert {cause: (row["interruptions"], row["failures"]) for cause, row in rows.items()} == {
        "node": (7, 7),
        "gpu": (1, 1),
        "crash": (1, 1),
        "program": (1, 1),
        "time_limit": (1, 0),
    }
    hours = 4 * 240 + 6 * 8 + 16 + 8 + 8 * 9 / 3600 + 16
    assert rows["node"]["gpu_seconds"] == pytest.approx(hours * 3600)
    assert rows["node"]["mtbf_hours"] == pytest.approx(hours / 7)
    assert rows["node"]["mtbf_low_hours"] < hours / 7 < rows["node"]["mtbf_high_hours"]
    assert rows["node"]["without_gain"] == pytest.approx(10 / 3 - 1)
    assert rows["node"]["per_1000_gpu_days"] == pytest.approx(7 * 24_000 / hours)
    assert (rows["time_limit"]["mtbf_hours"], rows["time_limit"]["mtbf_high_hours"]) == (None, None)
    assert rows["time_limit"]["mtbf_low_hours"] == pytest.approx(hours / 3.689, rel=1e-3)
    assert (rows["crash"]["persons"], rows["crash"]["of_runs"]) == (1, 1)
    assert "an interruption is a record that held GPUs" in found["definition"]
    assert any("11 interruptions, 10 of them failures" in note for note in found["notes"])
    assert any("1 of 2 interruptions of runs (50.0%) needed a person" in note for note in found["notes"])
    assert any("1 more records ended badly" in note for note in found["notes"])


def test_a_node_has_its_own_exposure_and_the_unlucky_one_is_named(cli: Cli) -> None:
    found = cli.json("account", "failures", *_WINDOW, "--by", "node", "--all")

    rows = {row["node"]: row for row in found["rows"]}
    assert {node: row["failures"] for node, row in rows.items()} == {
        "r1n1": 6,
        "r2n1": 1,
        "r1n2": 0,
        "r2n2": 0,
        None: 1,
    }
    assert rows["r1n1"]["gpu_seconds"] == 6 * 8 * 3600
    assert rows["r1n2"]["gpu_seconds"] == 4 * 80 * 3600
    assert [node for node, row in rows.items() if row["repeats"]] == ["r1n1"]
    assert (rows[None]["mtbf_hours"], rows[None]["gpu_seconds"], rows[None]["chance"]) == (None, None, None)
    assert any("1 of 4 nodes failed 2 times or more, more than chance: r1n1" in note for note in found["notes"])
    assert any(note.startswith("2 failures are no node's") for note in found["notes"])


def test_nodes_without_failures_are_left_out_and_said(cli: Cli) -> None:
    found = cli.json("account", "failures", *_WINDOW, "--by", "node")

    assert [row["node"] for row in found["rows"]] == ["r1n1", "r2n1", None]
    assert "2 more without any: --all" in found["notes"]


def test_racks_are_found_in_the_names_of_nodes(cli: Cli) -> None:
    rows = _rows(cli, "--by", "rack", "--rack", "^(r[0-9]+)n")

    assert {rack: row["failures"] for rack, row in rows.items()} == {"r1": 6, "r2": 1, None: 1}
    assert rows["r2"]["gpu_seconds"] == pytest.approx((4 * 160 + 16 + 8 + 16) * 3600 + 8 * 9)


def test_days_and_users_have_their_own_exposure(cli: Cli) -> None:
    days, users = _rows(cli, "--by", "day"), _rows(cli, "--by", "user")

    assert {day: (row["failures"], row["gpu_seconds"]) for day, row in days.items() if day != "2026-11-01"} == {
        "2026-11-02": (0, 72)
    }
    assert users["bob"]["gpu_seconds"] == 8 * 3600
    assert users["bob"]["failures"] == 1
    assert sum(row["gpu_seconds"] for row in days.values()) == sum(row["gpu_seconds"] for row in users.values())


def test_who_is_not_known_has_one_row(tmp_path: Path, database: str) -> None:
    with writing(database) as rows:
        rows.record(1, account="", cause="program", state="FAILED", exit_status=1)
    cli = Cli({**os.environ, "FLEETCTL_DATABASE": database}, tmp_path / "runs")

    found = cli.json("account", "failures", *_WINDOW, "--by", "account")

    assert [(row["account"], row["failures"], row["gpu_seconds"]) for row in found["rows"]] == [(None, 1, 8 * 3600)]


def test_a_larger_job_fails_more_often(cli: Cli) -> None:
    one, many = _rows(cli), _rows(cli, "--by", "cause", "--gpus", "64")

    assert many["node"]["mtbf_hours"] == pytest.approx(one["node"]["mtbf_hours"] / 64)
    assert many["node"]["without_gain"] == pytest.approx(one["node"]["without_gain"])


def test_a_window_without_anything_has_no_rows_and_no_zero(cli: Cli) -> None:
    found = cli.json("account", "failures", "--since", "2026-10-01", "--until", "2026-10-02", "--utc")

    assert found["rows"] == []
    assert "0 interruptions, 0 of them failures, in 0.00 GPU-hours held" in found["notes"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--by", "rack"), "go together"),
        (("--rack", "(r)"), "go together"),
        (("--by", "rack", "--rack", "r"), "one group"),
        (("--by", "rack", "--rack", "("), "regular expression"),
        (("--by", "cause,node"), "at most 1"),
    ],
)
def test_what_makes_no_sense_is_refused(cli: Cli, args: tuple[str, ...], said: str) -> None:
    done = cli("account", "failures", *_WINDOW, *args)

    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_table_says_what_it_counts(cli: Cli) -> None:
    done = cli("account", "failures", *_WINDOW)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split("\t")[:3] == ["node", "7", "7"]
    assert "a failure is one that nobody decided" in done.stderr
