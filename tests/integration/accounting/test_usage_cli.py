"""`fleetctl account usage`, on both databases."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

import pytest

from fleetctl.accounting.tables import run_jobs
from tests.accounting_rows import DAY_S, HOUR_S, T0, Rows, writing
from tests.support import Cli

_WINDOW = ("--since", "2026-11-01", "--until", "2026-11-02", "--utc")


@pytest.fixture
def cli(tmp_path: Path, database: str) -> Cli:
    with writing(database) as rows:
        _fill(rows)
    return Cli({**os.environ, "FLEETCTL_DATABASE": database, "TZ": "America/New_York"}, tmp_path / "runs")


def _fill(rows: Rows) -> None:
    rows.record(1, started_s=T0 - HOUR_S, ended_s=T0 + HOUR_S, gpus=8, gpu_models="a100=2,h100=6")
    rows.record(2, user="bob", started_s=T0 + DAY_S - 60, ended_s=T0 + 2 * DAY_S, gpus=1, gpu_models="h100=1")
    rows.record(3, user="=cmd()", account="evil\tname", gpus=7, gpu_models="a100_3g.20gb=7")
    rows.record(4, account="untold", gpus=None, gpu_models="")
    rows.record(5, account="cpu", gpus=0, gpu_models="")
    rows.record(6, user="bob", ended_s=None, alive_s=T0 + 2 * HOUR_S, gpus=1, gpu_models="h100=1")
    rows.put(run_jobs, run_id="demo", job_id=1, user="ada", since_s=T0 - DAY_S)
    other = rows.add_cluster("other", synced_s=T0 + DAY_S, sees_all=0)
    rows.record(1, cluster_id=other, gpus=64, gpu_models="h100=64")


def _by(cli: Cli, by: str, *more: str) -> dict[str, object]:
    rows = cli.json("account", "usage", *_WINDOW, "--by", by, *more)["rows"]
    return {row[by]: row["gpu_seconds"] for row in rows}


def test_by_account_across_clusters(cli: Cli) -> None:
    found = cli.json("account", "usage", *_WINDOW)

    rows = {row.pop("account"): row for row in found["rows"]}
    assert list(rows) == ["lab", "evil\tname", "cpu", "untold"]
    assert rows["evil\tname"] == {
        "gpu_seconds": 7 * HOUR_S,
        "gpu_hours": 7,
        "equivalent_gpu_seconds": 3 * HOUR_S,
        "equivalent_gpu_hours": 3,
        "records": 1,
        "records_without_gpu_data": 0,
        "records_without_end": 0,
    }
    assert rows["lab"]["gpu_seconds"] == (8 + 64) * HOUR_S + 60 + 2 * HOUR_S
    assert (rows["cpu"]["gpu_seconds"], rows["cpu"]["records"]) == (0, 1)
    assert (rows["untold"]["gpu_seconds"], rows["untold"]["records_without_gpu_data"]) == (None, 1)
    assert found["total"]["gpu_seconds"] == rows["lab"]["gpu_seconds"] + 7 * HOUR_S
    assert (found["since"], found["until"]) == ("2026-11-01T00:00:00Z", "2026-11-02T00:00:00Z")
    assert (found["as_of"], found["clusters"]) == ("2026-11-02T00:00:00Z", ["lab", "other"])
    assert found["notes"] == ["other: Slurm shows the one who synced only their own jobs; others' are missing"]


def test_each_key_sees_the_same_seconds(cli: Cli) -> None:
    lab = ("--cluster", "lab")
    whole = 8 * HOUR_S + 60 + 7 * HOUR_S + 2 * HOUR_S
    for by in ("account", "user", "partition", "model", "run", "cluster", "day", "month"):
        assert sum(int(str(value)) for value in _by(cli, by, *lab).values() if value) == whole, by
    assert _by(cli, "run", *lab) == {"demo": 8 * HOUR_S, None: whole - 8 * HOUR_S}
    assert _by(cli, "model", *lab)["a100"] == 2 * HOUR_S
    assert _by(cli, "cluster") == {"lab": whole, "other": 64 * HOUR_S}


def test_days_are_those_of_the_local_zone_and_times_are_shown_in_it(cli: Cli) -> None:
    said = cli("account", "usage", "--since", "2026-10-31", "--until", "2026-11-03", "--by", "day", "--cluster", "lab")

    assert said.returncode == 0, said.stderr
    assert said.stderr.startswith("America/New_York: 2026-10-31 00:00:00 to 2026-11-03 00:00:00; data as of ")
    days = {line.split("\t")[0]: line.split("\t")[1] for line in said.stdout.splitlines()[1:]}
    # T0 is 20:00 of the 31st there: 8 GPUs for two hours, 7 slices for one, and two hours of the open record
    assert days["2026-10-31"] == "25.00"
    assert list(days) == ["2026-10-31", "2026-11-01", "2026-11-02"]


def test_csv_is_fit_for_a_spreadsheet(cli: Cli) -> None:
    said = cli("account", "usage", *_WINDOW, "--by", "user,account", "--cluster", "lab", "--csv")

    rows = list(csv.DictReader(io.StringIO(said.stdout)))
    evil = next(row for row in rows if row["user"].endswith("cmd()"))
    assert (evil["user"], evil["account"], evil["gpu_seconds"]) == ("'=cmd()", r"evil\tname", "25200")
    assert "UTC: 2026-11-01" in said.stderr


def test_a_window_without_records_is_an_empty_answer_and_not_an_error(cli: Cli) -> None:
    found = cli.json("account", "usage", "--since", "2020-01-01", "--until", "2020-02-01")
    assert found["rows"] == []
    assert found["total"]["gpu_seconds"] is None


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--by", "gpu"), 2, "account, user, partition, model"),
        (("--cluster", "nowhere"), 2, "clusters in this database: lab, other"),
        (("--since", "soon"), 2, "--since soon: expected a moment"),
        (("--database", "/nowhere/a.db"), 16, "there is no accounting database"),
        (("--database", "mysql://x/y"), 2, "mysql"),
    ],
)
def test_what_cannot_be_answered_is_said_in_one_line(cli: Cli, args: tuple[str, ...], code: int, words: str) -> None:
    said = cli("account", "usage", *args)
    assert said.returncode == code
    assert words in said.stderr
    assert "Traceback" not in said.stderr
