"""`fleetctl sandbox` as a person types it: one line for eval on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetctl import process
from fleetctl.clock import SystemClock
from fleetctl.process import Completed
from fleetctl.sandbox import cluster
from tests.integration.conftest import short_dir
from tests.integration.test_sandbox import traces

pytestmark = pytest.mark.slurm
FLEETCTL = [sys.executable, "-c", "from fleetctl.cli.app import main; main()", "sandbox"]


@pytest.fixture
def home() -> Iterator[Path]:
    made = short_dir()
    yield made
    cluster.down(made / ".fleetctl" / "sandbox", SystemClock())
    shutil.rmtree(made)


def fleetctl(home: Path, *args: str, code: int = 0) -> Completed:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    done = process.run([*FLEETCTL, *args], timeout_s=60, env={**kept, "HOME": str(home)})
    assert done.returncode == code, done
    return done


def test_a_day_in_the_sandbox(home: Path) -> None:
    where = home / ".fleetctl" / "sandbox"
    up = fleetctl(home, "up", "--nodes", "2", "--gpus", "2", "--cpu-nodes", "1", "--set", "SlurmdTimeout=60")
    assert up.stdout == f"export SLURM_CONF={where}/etc/slurm.conf\n"
    assert "Starting slurmctld and 3 nodes." in up.stderr
    listed = process.run(
        ["sh", "-c", 'eval "$1"; sinfo -h -N -o "%N %G"', "sh", up.stdout],
        timeout_s=20,
        env={"PATH": os.environ["PATH"]},
    )
    assert listed.stdout.splitlines() == ["cpu1 (null)", "node1 gpu:2", "node2 gpu:2"]

    again = fleetctl(home, "up", "--nodes", "2", "--gpus", "2", "--cpu-nodes", "1", "--set", "SlurmdTimeout=60")
    assert again.stdout == up.stdout
    assert "is up already" in again.stderr
    other = fleetctl(home, "up", "--nodes", "3", code=13)
    assert other.stdout == ""
    assert "down first" in other.stderr

    fleetctl(home, "node", "kill", "node2")
    status = fleetctl(home, "status")
    assert status.stdout.splitlines()[0] == "NODE\tSLURMD\tSLURM"
    assert status.stdout.splitlines()[2].startswith("node2\tkilled\t")
    assert fleetctl(home, "node", "dead", "node2").stderr == "node2 is dead: nothing of it runs.\n"
    started = fleetctl(home, "node", "start", "node2")
    assert started.stdout == ""
    assert started.stderr == "node2 is up again.\n"
    for verb, condition in (("freeze", "frozen"), ("wake", "running"), ("cut", "cut"), ("heal", "running")):
        fleetctl(home, "node", verb, "node1")
        seen = json.loads(fleetctl(home, "status", "--json").stdout)
        assert {row["name"]: row["slurmd"] for row in seen["nodes"]}["node1"] == condition
        assert "node1 is not dead" in fleetctl(home, "node", "dead", "node1", code=13).stderr
    assert "no node node9" in fleetctl(home, "node", "kill", "node9", code=2).stderr

    assert fleetctl(home, "down").stdout == ""
    assert traces(home) == []
    assert "No sandbox was up" in fleetctl(home, "down").stderr
    assert "no sandbox is up" in fleetctl(home, "status", code=13).stderr


def test_status_says_which_daemon_died(home: Path) -> None:
    shown = json.loads(fleetctl(home, "up", "--nodes", "1", "--gpus", "0", "--json").stdout)
    assert shown["nodes"] == [{"name": "node1", "slurmd": "running", "slurm": "IDLE"}]
    assert shown["slurm_conf"] == f"{shown['directory']}/etc/slurm.conf"
    cluster.find(Path(shown["directory"]), SystemClock()).ctld.kill()
    dead = fleetctl(home, "status", code=13)
    assert "died: slurmctld" in dead.stderr
    assert dead.stdout.splitlines()[1] == "node1\trunning\tunknown"
    assert json.loads(fleetctl(home, "down", "--json").stdout)["was_up"] is True


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("up", "--set", "SlurmdTimeout"), "expected KEY=VALUE"),
        (("up", "--partition", "debug:MaxTime"), "expected NAME:KEY=VALUE"),
        (("up", "--nodes", "99"), "expected 0 to 64"),
        (("up", "--dir", "/tmp/" + "x" * 80), "too long by"),
    ],
)
def test_a_wrong_option_changes_nothing(home: Path, args: tuple[str, ...], said: str) -> None:
    assert said in fleetctl(home, *args, code=2).stderr
    assert list(home.iterdir()) == []


def test_help_shows_an_example(home: Path) -> None:
    assert "eval" in fleetctl(home, "up", "--help").stdout
    for verb in ("kill", "start", "freeze", "wake", "cut", "heal", "dead"):
        assert f"Example:\n    fleetctl sandbox node {verb} node2" in fleetctl(home, "node", verb, "--help").stdout
