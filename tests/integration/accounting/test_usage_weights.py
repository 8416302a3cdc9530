"""`fleetctl account usage --billing-weights`: what weights would have billed, on both databases."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fleetctl.accounting.tables import run_jobs
from tests.accounting_rows import DAY_S, HOUR_S, T0, Rows, writing
from tests.support import Cli

_WINDOW = ("--since", "2026-11-01", "--until", "2026-11-02", "--utc")
_WEIGHTS = ("--billing-weights", "CPU=1.0,Mem=0.25G,GRES/gpu=2.0")
# the job of slurm.schedmd.com/tres.html
_ONE: dict[str, Any] = {"cpus": 1, "memory_mib": 8 * 1024, "gpus": 1, "gpu_models": "h100=1"}
_BY = ("user,cluster", "model", "run", "month", "day,run,model,partition,month")


@pytest.fixture
def cli(tmp_path: Path, database: str) -> Cli:
    with writing(database) as rows:
        _fill(rows)
    return Cli({**os.environ, "FLEETCTL_DATABASE": database}, tmp_path / "runs")


def _fill(rows: Rows) -> None:
    rows.record(1, **_ONE, billing=3)
    rows.record(2, **_ONE, user="bob", started_s=T0 - HOUR_S, ended_s=T0 + HOUR_S)  # half of it before
    rows.record(3, **_ONE, started_s=T0 + DAY_S - 60, ended_s=T0 + 2 * DAY_S)  # but for a minute after
    rows.record(4, **_ONE, ended_s=None, alive_s=T0 + 2 * HOUR_S)
    rows.record(5, **_ONE, started_s=T0 - DAY_S, ended_s=None, alive_s=T0 - HOUR_S)  # a runaway of earlier
    rows.record(6, **_ONE, started_s=T0 - DAY_S, ended_s=T0)
    rows.record(7, **{**_ONE, "memory_mib": None}, account="part", billing=7)
    rows.record(8, **_ONE, account="part")
    rows.record(9, **{**_ONE, "gpus": None, "gpu_models": ""}, account="untold")
    rows.record(10, **_ONE, account="unseen", ended_s=None, alive_s=None)
    rows.record(11, cpus=4, memory_mib=0, gpus=0, gpu_models="", account="cpu")
    rows.put(run_jobs, run_id="demo", job_id=1, user="ada", since_s=T0 - DAY_S)


def _by(cli: Cli, by: str, *more: str) -> dict[Any, Any]:
    return {row[by]: row for row in cli.json("account", "usage", *_WINDOW, *_WEIGHTS, "--by", by, *more)["rows"]}


@pytest.mark.parametrize(("flags", "units"), [((), 5), (("MAX_TRES",), 2), (("max_tres_gres",), 4)])
def test_records_are_weighed_by_slurms_formulas_and_cut_at_the_window(
    cli: Cli, flags: tuple[str, ...], units: int
) -> None:
    row = _by(cli, "account", *(word for flag in flags for word in ("--billing-flags", flag)))["lab"]

    assert row["billing_weighted_seconds"] == units * (4 * HOUR_S + 60)
    assert row["billing_weighted_hours"] == round(units * (4 + 1 / 60), 6)
    assert (row["billing_seconds"], row["records_without_resources"], row["records"]) == (3 * HOUR_S, 0, 4)


def test_a_record_whose_resources_are_not_known_is_counted_and_is_no_zero(cli: Cli) -> None:
    rows = _by(cli, "account")

    told = {key: (row["billing_weighted_seconds"], row["records_without_resources"]) for key, row in rows.items()}
    assert told == {
        "lab": (5 * (4 * HOUR_S + 60), 0),
        "part": (5 * HOUR_S, 1),
        "untold": (None, 1),
        "unseen": (None, 0),  # told as without an end
        "cpu": (4 * HOUR_S, 0),
    }
    assert rows["unseen"]["records_without_end"] == 1
    assert _by(cli, "account", "--billing-weights", "CPU=2")["untold"]["billing_weighted_seconds"] == 2 * HOUR_S


@pytest.mark.parametrize("by", _BY)
def test_each_key_sees_the_same_units_in_the_rows_of_the_usage(cli: Cli, by: str) -> None:
    found = cli.json("account", "usage", *_WINDOW, *_WEIGHTS, "--by", by)

    whole = 5 * (5 * HOUR_S + 60) + 4 * HOUR_S
    assert sum(row["billing_weighted_seconds"] or 0 for row in found["rows"]) == whole
    assert found["total"]["billing_weighted_seconds"] == whole
    assert found["total"]["records_without_resources"] == 2


def test_days_and_runs_and_types_have_their_own_units(cli: Cli) -> None:
    window = ("--since", "2026-10-31", "--until", "2026-11-03", "--utc")
    rows = cli.json("account", "usage", *window, *_WEIGHTS, "--by", "day")["rows"]
    days = {row["day"]: row["billing_weighted_seconds"] for row in rows}
    assert days["2026-10-31"] == 5 * (1 + 24 + 23) * HOUR_S
    assert days["2026-11-02"] == 5 * DAY_S
    assert _by(cli, "run")["demo"]["billing_weighted_seconds"] == 5 * HOUR_S
    typed = _by(cli, "model", "--billing-weights", "GRES/gpu:H100=0.1")
    assert typed["h100"]["billing_weighted_seconds"] == 0.1 * (6 * HOUR_S + 60)


def test_a_day_that_the_window_touches_counts_only_within_it(cli: Cli) -> None:
    window = ("--since", "2026-11-01T00:30", "--until", "2026-11-02T00:30", "--utc")
    rows = cli.json("account", "usage", *window, *_WEIGHTS, "--by", "day,account")["rows"]
    days = {row["day"]: row["billing_weighted_seconds"] for row in rows if row["account"] == "lab"}
    assert days == {"2026-11-01": 5 * (2.5 * HOUR_S + 60), "2026-11-02": 5 * HOUR_S / 2}


def test_a_table_shows_hours(cli: Cli) -> None:
    said = cli("account", "usage", *_WINDOW, *_WEIGHTS)
    head, first = (line.split("\t") for line in said.stdout.splitlines()[:2])
    assert head[-3:] == ["BILLING-HOURS", "WEIGHTED-HOURS", "NO RESOURCES"]
    assert first[-3:] == ["3.00", "20.08", "0"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--billing-weights", "CPU=one"), "'CPU=one' is no weight"),
        (("--billing-weights", "CPU=1,Licence/x=2"), "'licence/x' is not among CPU, Mem, Node"),
        (("--billing-weights", "GRES/gpu:=2"), "'gres/gpu:' is not among"),
        (("--billing-weights", ""), "there is no weight"),
        (("--billing-flags", "MAX_TRES"), "there are none"),
    ],
)
def test_weights_that_mean_nothing_are_refused_with_the_form(tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    said = Cli(dict(os.environ), tmp_path / "runs")("account", "usage", *args)
    assert said.returncode == 2
    assert words in said.stderr
    assert "--billing-weights CPU=1.0,Mem=0.25G" in said.stderr
