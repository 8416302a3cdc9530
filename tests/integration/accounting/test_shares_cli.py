"""`fleetctl account shares`: beside a stub of sshare, on both databases."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fleetctl.accounting.database import open_database
from fleetctl.accounting.tables import sync_state
from tests.accounting_rows import DAY_S, HOUR_S, writing
from tests.stub_sacct import StubSlurm
from tests.support import Cli

_CONFIG = """\
PriorityType            = priority/multifactor
ClusterName             = lab
SLURM_VERSION           = 25.11.8
"""
_SSHARE = """\
root|||1.000000|100|1.000000||
 lab||3|0.750000|75|0.500000||1.500000
  lab|ada|1|0.500000|70|0.900000|0.250000|0.555556
  lab|bob|parent|0.500000|5|0.100000|0.500000|inf
 vision||1|0.250000|25|0.500000||nan
"""
Site = tuple[Cli, StubSlurm]


@pytest.fixture
def site(tmp_path: Path, database: str) -> Site:
    """ada held 8 GPUs for an hour a week ago, vision 8 for an hour until just now."""
    stub = StubSlurm(tmp_path / "stub", cluster="lab")
    stub.answer("scontrol", "show", "config", said=_CONFIG)
    stub.answer("sshare", said=_SSHARE)
    now_s = int(time.time())
    with writing(database) as rows:
        week_ago = now_s - 7 * DAY_S
        rows.record(1, submitted_s=week_ago - HOUR_S, started_s=week_ago - HOUR_S, ended_s=week_ago, gpus=8)
        rows.record(2, account="vision", user="eve", started_s=now_s - HOUR_S, ended_s=now_s, gpus=8)
        rows.record(3, account="vision", user="eve", started_s=now_s - HOUR_S, ended_s=now_s, gpus=None)
    return Cli(stub.environ({**os.environ, "FLEETCTL_DATABASE": database}), tmp_path / "runs"), stub


def test_shares_stand_beside_what_was_used_and_decayed(site: Site) -> None:
    cli, _ = site
    found = cli.json("account", "shares", "--base", "1000")

    rows = {(row["account"], row["user"]): row for row in found["rows"]}
    assert list(rows) == [("root", None), ("lab", None), ("lab", "ada"), ("lab", "bob"), ("vision", None)]
    lab, vision = rows["lab", None], rows["vision", None]
    assert lab["decayed_gpu_seconds"] == pytest.approx(4 * HOUR_S, rel=0.01)  # half of what was held a week ago
    assert vision["decayed_gpu_seconds"] == pytest.approx(8 * HOUR_S, rel=0.01)
    assert lab["used_share"] == pytest.approx(1 / 3, rel=0.01)
    assert lab["effective_priority"] == pytest.approx(1000 * 0.75 / (1 / 3 + 0.01), rel=0.01)
    assert (rows["lab", "ada"]["used_share"], rows["lab", "bob"]["used_share"]) == (1, 0)
    assert rows["lab", "bob"]["effective_priority"] == 50_000
    assert (rows["lab", "bob"]["raw_shares"], rows["lab", "bob"]["level_fs"]) == (None, "Infinity")
    assert (rows["root", None]["raw_shares"], vision["level_fs"]) == (None, None)
    assert (found["since"], found["until"]) == (None, None)
    assert "norm_shares / (used_share + 0.01)" in found["definition"]
    assert found["notes"][-1] == "in no sum: records of which nobody knows the GPUs or the end, 1"


def test_a_shorter_half_life_forgets_sooner(site: Site) -> None:
    cli, _ = site
    rows = cli.json("account", "shares", "--half-life", "1d")["rows"]
    assert rows[1]["decayed_gpu_seconds"] == pytest.approx(8 * HOUR_S / 2**7, rel=0.03)


def test_a_table_has_dashes_where_slurm_says_nothing(site: Site) -> None:
    cli, _ = site
    lines = [line.split("\t") for line in cli("account", "shares").stdout.splitlines()]
    assert lines[1][:3] == ["root", "-", "-"]
    assert lines[4][-1] == "Infinity"
    assert {len(line) for line in lines} == {len(lines[0])}


def test_a_gap_before_the_half_lives_that_count_is_said(site: Site, database: str) -> None:
    cli, _ = site
    engine = open_database(database)
    with engine.begin() as connection:
        connection.execute(sync_state.update().values(from_s=int(time.time()) - 60 * DAY_S))
    engine.dispose()
    assert "were not read" in cli("account", "shares").stderr
    assert "were not read" not in cli("account", "shares", "--half-life", "1d").stderr


def test_a_cluster_without_fair_share_says_so(site: Site) -> None:
    cli, stub = site
    stub.answer("scontrol", "show", "config", said=_CONFIG.replace("multifactor", "basic"))
    said = cli("account", "shares")
    assert said.returncode == 10
    assert "PriorityType=priority/basic, and no fair share" in said.stderr


@pytest.mark.parametrize("text", ["0s", "soon", "-7d"])
def test_a_half_life_is_some_time(site: Site, text: str) -> None:
    cli, _ = site
    assert cli("account", "shares", f"--half-life={text}").returncode == 2
