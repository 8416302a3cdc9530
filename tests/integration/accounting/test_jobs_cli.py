"""`fleetctl account jobs`, on both databases."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fleetctl.accounting.tables import run_jobs, runs
from fleetctl.cli.app import run
from tests.accounting_rows import DAY_S, HOUR_S, T0, Rows, writing
from tests.support import Cli

_WINDOW = ("--since", "2026-11-01", "--until", "2026-11-02", "--utc")


@pytest.fixture
def cli(tmp_path: Path, database: str) -> Cli:
    with writing(database) as rows:
        _fill(rows)
    return Cli({**os.environ, "FLEETCTL_DATABASE": database}, tmp_path / "runs")


def _fill(rows: Rows) -> None:
    rows.put(runs, run_id="demo-1", name="demo", user="ada", tasks=1)
    rows.put(run_jobs, run_id="demo-1", job_id=10, user="ada", since_s=T0 - DAY_S)
    requeued: dict[str, Any] = {"state": "NODE_FAIL", "cause": "node", "failed_node": "gpu7"}
    rows.record(10, submitted_s=T0 - HOUR_S, started_s=T0 - HOUR_S, ended_s=T0 + HOUR_S, **requeued)
    running: dict[str, Any] = {"ended_s": None, "alive_s": T0 + 3 * HOUR_S, "state": "RUNNING"}
    rows.record(10, submitted_s=T0 + HOUR_S, started_s=T0 + HOUR_S, **running)
    rows.record(11, array_index=4, user="bob", ended_s=T0 + 2 * HOUR_S)
    rows.record(12, het_offset=1, user="bob", ended_s=T0 + 2 * HOUR_S, gpus=None, gpu_models="")
    rows.record(13, pending_tasks="5-10%3", started_s=None, ended_s=None, gpus=None, state="PENDING", gpu_models="")
    rows.record(14, started_s=None, ended_s=T0 + 60, state="CANCELLED", gpus=None, name="\x1b[2Jevil\n", gpu_models="")
    rows.record(15, started_s=T0 - 2 * DAY_S, ended_s=T0 - DAY_S)  # before
    rows.record(16, submitted_s=T0 + DAY_S, started_s=T0 + DAY_S, ended_s=T0 + DAY_S + 5)  # after


def _jobs(cli: Cli, *args: str) -> list[str]:
    return [row["job"] for row in cli.json("account", "jobs", *_WINDOW, *args)["rows"]]


def test_open_ones_come_first_and_then_those_that_ended_last(cli: Cli) -> None:
    found = cli.json("account", "jobs", *_WINDOW)["rows"]

    assert [row["job"] for row in found] == ["10", "13_[5-10%3]", "12+1", "11_4", "10", "14"]
    assert [row["run"] for row in found] == ["demo-1", None, None, None, "demo-1", None]
    assert [row["gpu_seconds"] for row in found] == [16 * HOUR_S, None, None, 16 * HOUR_S, 16 * HOUR_S, None]
    failed = found[4]
    assert (failed["state"], failed["cause"], failed["failed_node"]) == ("NODE_FAIL", "node", "gpu7")
    assert (failed["started"], failed["ended"]) == ("2026-10-31T23:00:00Z", "2026-11-01T01:00:00Z")
    assert (failed["held_s"], failed["gpus"], failed["gpu_hours"]) == (2 * HOUR_S, 8, 16)  # whole, whatever the window


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (("--user", "bob"), ["12+1", "11_4"]),
        (("--state", "node_fail"), ["10"]),
        (("--run", "demo-1"), ["10", "10"]),
        (("--run", "demo"), ["10", "10"]),
        (("--limit", "1"), ["10"]),
        (("--limit", "3"), ["10", "13_[5-10%3]", "12+1"]),
        (("--user", "nobody"), []),
    ],
)
def test_rows_are_chosen(cli: Cli, args: tuple[str, ...], wanted: list[str]) -> None:
    assert _jobs(cli, *args) == wanted


def test_an_open_record_that_slurm_has_forgotten_is_gone_and_does_not_come_back(database: str, tmp_path: Path) -> None:
    with writing(database) as rows:
        rows.record(1, ended_s=None, alive_s=T0 + 60, state="RUNNING", purged_s=T0 + HOUR_S)
        rows.record(2, ended_s=None, alive_s=T0 + 60, state="RUNNING", purged_s=T0)
    cli = Cli({**os.environ, "FLEETCTL_DATABASE": database, "TZ": "UTC"}, tmp_path / "runs")

    (job,) = cli.json("account", "jobs", *_WINDOW)["rows"]
    assert (job["job"], job["ended"], job["purged"]) == ("1", None, "2026-11-01T01:00:00Z")
    heads, cells = (line.split("\t") for line in cli("account", "jobs", *_WINDOW).stdout.splitlines())
    assert cells[heads.index("ENDED")] == "gone"
    assert _jobs(cli, "--since", "2026-11-01T01:00") == []


def test_what_is_left_out_is_said(cli: Cli) -> None:
    assert "only the first 3: --limit 0 shows all" in cli("account", "jobs", *_WINDOW, "--limit", "3").stderr
    for limit in ("6", "0"):
        assert "only the first" not in cli("account", "jobs", *_WINDOW, "--limit", limit).stderr


def test_an_unknown_run_is_said(cli: Cli) -> None:
    said = cli("account", "jobs", *_WINDOW, "--run", "nothing")
    assert said.returncode == 12
    assert "no run 'nothing'" in said.stderr


def test_a_hostile_name_is_one_cell(cli: Cli) -> None:
    said = cli("account", "jobs", *_WINDOW)
    assert [len(line.split("\t")) for line in said.stdout.splitlines()] == [14] * 7
    assert "\x1b" not in said.stdout
    assert r"\x1b[2Jevil\n" in said.stdout


def test_a_terminal_has_fewer_columns_and_no_time_or_id_in_pieces(
    database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with writing(database) as rows:
        rows.record(1234567, array_index=4, account="a" * 30, user="u" * 30, gpus=512)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")

    assert run(["account", "jobs", *_WINDOW, "--database", database]) == 0

    _, heads, first, *_ = capsys.readouterr().out.splitlines()
    assert heads.split() == ["JOB", "RUN", "USER", "ACCOUNT", "STATE", "ENDED", "GPUS", "GPU-HOURS"]
    job, _, _, _, *rest = first.split()
    assert (job, *rest) == ("1234567_4", "COMPLETED", "2026-11-01", "01:00:00", "512", "512.00")


def test_any_number_of_rows_comes_whole_and_in_order(database: str, tmp_path: Path) -> None:
    with writing(database) as rows:
        for number in range(5_200):  # more than a page
            rows.record(1000 + number, ended_s=T0 + 100 + number)
    cli = Cli({**os.environ, "FLEETCTL_DATABASE": database}, tmp_path / "runs")

    assert _jobs(cli, "--limit", "0") == [str(1000 + number) for number in reversed(range(5_200))]
