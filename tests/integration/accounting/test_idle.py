"""`fleetctl account idle`, on both databases."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetctl.accounting import tables
from tests.accounting_rows import HOUR_S, T0, Rows, writing
from tests.support import Cli

_WINDOW = ("--since", "2026-11-01", "--until", "2026-11-02", "--utc")


@pytest.fixture
def cli(tmp_path: Path, database: str) -> Cli:
    with writing(database) as rows:
        _fill(rows)
    return Cli({**os.environ, "FLEETCTL_DATABASE": database}, tmp_path / "runs")


def _fill(rows: Rows) -> None:
    rows.record(1, user="ada", gpus=2)
    rows.record(2, user="bob", gpus=2)
    rows.record(3, user="eve", gpus=None)
    for gpu, watts in enumerate((60, 400)):
        values = {"gpu": f"0000:{gpu}", "used_ms": 3_600_000, "energy_mj": watts * 3_600_000}
        rows.put(tables.gpu_use, node="n1", at_ms=(T0 + HOUR_S + 2) * 1000, job_id="1", **values)


def test_without_a_limit_energy_is_shown_and_decides_nothing(cli: Cli) -> None:
    found = cli.json("account", "idle", *_WINDOW)

    ada, bob = sorted(found["rows"], key=lambda row: str(row["user"]))
    assert (ada["idle_gpu_hours"], ada["idle_share"], ada["unknown_gpu_hours"], ada["mean_watts"]) == (
        None,
        None,
        2,
        230,
    )
    assert (bob["gpu_seconds"], bob["unknown_gpu_hours"], bob["mean_watts"]) == (7_200, 2, None)
    assert "energy was measured and decides nothing without --idle-watts" in found["notes"]
    assert "of 1 more records Slurm does not say whether they held GPUs" in found["notes"]


def test_with_a_limit_each_gpu_is_idle_or_not_and_the_unmeasured_stay_unknown(cli: Cli) -> None:
    found = cli.json("account", "idle", *_WINDOW, "--idle-watts", "100", "--by", "user,job")

    ada, bob = found["rows"]
    assert (ada["user"], ada["job"], ada["low_power_gpu_hours"], ada["idle_share"]) == ("ada", "1", 1, 0.5)
    assert (ada["unknown_gpu_hours"], ada["startup_gpu_hours"]) == (0, 0)
    assert (bob["user"], bob["idle_gpu_hours"], bob["low_power_gpu_hours"]) == ("bob", None, None)


def test_in_a_table_the_unknown_is_a_dash_and_not_a_zero(cli: Cli) -> None:
    done = cli("account", "idle", *_WINDOW, "--idle-watts", "100")

    assert done.returncode == 0, done.stderr
    head, ada, bob = (line.split("\t") for line in done.stdout.splitlines())
    assert (ada[head.index("IDLE")], ada[head.index("OF KNOWN")]) == ("1.00", "50.0%")
    assert (bob[head.index("IDLE")], bob[head.index("OF KNOWN")], bob[head.index("UNKNOWN")]) == ("-", "-", "2.00")


def test_an_idle_limit_of_nothing_is_refused(cli: Cli) -> None:
    assert cli("account", "idle", *_WINDOW, "--idle-watts", "0").returncode == 2
