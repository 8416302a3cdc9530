"""`fleetctl ckpt interval` as its user calls it, and `interval: auto` on a real Slurm."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fleetctl.rundir.model import EventKind, RunKind, RunRecord
from fleetctl.rundir.store import RunDir, Store
from fleetctl.sandbox.cluster import Sandbox
from fleetctl.train.checkpointer import Checkpointer
from tests.support import Cli, write_spec

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli({"HOME": str(tmp_path), "PATH": "/nonexistent"}, tmp_path / "runs")


def make_run(runs: Path, *, kind: RunKind = RunKind.PLAIN, nodes: int = 4, tasks: int = 1) -> RunDir:
    record = RunRecord("demo-abc234", "demo", "me", NOW, kind, "d", "train.yaml", "/w", nodes, tasks, "c", "0")
    store = Store(runs)
    store.ensure()
    assert store.reserve(record.run_id)
    return store.fill(record, "name: demo\n", {})


def ran(run: RunDir, ending: str, for_s: timedelta, task: int | None = None) -> None:
    """One attempt with two saves by a real Checkpointer, and its end."""
    facts: dict[str, Any] = {"submission": 1, "attempt": "1.0", "task": task, "job_id": "7"}
    log, folder = run.event_log("job-7"), run.attempt_dir("1.0", task)
    folder.mkdir(parents=True)
    log.append(NOW - for_s, EventKind.ATTEMPT_STARTED, **facts, host="n1")
    environ = {"FLEETCTL_RUN_ID": run.run_id, "FLEETCTL_ATTEMPT": "1.0", "FLEETCTL_ATTEMPT_DIR": str(folder)}
    environ |= {"FLEETCTL_CHECKPOINT_DIR": str(run.path / "checkpoints")}
    with Checkpointer(environ=environ) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"x": bytes(1000)}, wait=True)
    log.append(NOW, EventKind.ATTEMPT_ENDED, **facts, exit_code=1, terminated=False, ending=ending)


def asked(cli: Cli, *args: str, code: int = 0) -> Any:
    done = cli("ckpt", "interval", *args, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout if code == 0 else done.stderr)


def test_given_numbers(cli: Cli) -> None:
    found = asked(cli, "--cost", "37s", "--mtbf", "3.69h", "--restart", "10m")
    assert found["interval_s"] == found["young_interval_s"] == pytest.approx(991.5, abs=0.1)
    assert found["daly_interval_s"] == pytest.approx(967, abs=1)
    assert found["overhead"] == pytest.approx(0.0746, abs=1e-4)
    assert found["hourly_overhead"] == pytest.approx(0.1458, abs=1e-4)
    assert found["restart_share"] == pytest.approx(600 / 13_284, abs=1e-6)
    assert found["effective"] == pytest.approx(1 - 0.0746 - 0.0452, abs=1e-4)
    assert {found[f"{name}_source"] for name in ("cost", "mtbf", "restart")} == {"given"}
    assert found["run_id"] is None


def test_the_words_for_people(cli: Cli) -> None:
    done = cli("ckpt", "interval", "--cost", "0.06s", "--nodes", "128")
    assert done.returncode == 0
    assert done.stderr == ""
    lines = {line[:10].strip(): line[11:] for line in done.stdout.splitlines()}
    assert lines["interval"] == "1m52s from the start of one save to the next"
    assert lines["save cost"] == "0.06s (given)"
    assert lines["a failure"].startswith("every 1d4h (assumed: 128 nodes, each with 6.5 failures in 1,000 days")
    assert "constant rate" in lines["if only"]
    assert "4,096 GPUs" in done.stdout


def test_where_bounds_count_they_are_said(cli: Cli) -> None:
    assert "the shortest that fleetctl takes" in cli("ckpt", "interval", "--cost", "0.014s", "--mtbf", "5h").stdout
    assert "the longest that fleetctl takes" in cli("ckpt", "interval", "--cost", "30s", "--nodes", "1").stdout


def test_what_a_run_has_measured(cli: Cli) -> None:
    run = make_run(cli.runs)
    ran(run, "node_lost", 2 * DAY)
    found = asked(cli, "demo")
    assert (found["run_id"], found["cost_source"], found["mtbf_source"]) == (run.run_id, "measured", "measured")
    assert 0 < found["cost_s"] < 60
    prior_s = 86_400 / (4 * 6.5e-3)
    assert found["mtbf_s"] == pytest.approx((prior_s + 2 * 86_400) / 2, rel=1e-3)
    assert "1 failure in 2d on 4 nodes" in found["mtbf_why"]
    assert found["cost_why"] == "the median of 2 saves"
    assert found["restart_source"] == "assumed"
    assert asked(cli, "demo", "--cost", "5m")["cost_source"] == "given"
    assert asked(cli, "demo", "--nodes", "8")["mtbf_s"] == pytest.approx(found["mtbf_s"] / 2, rel=1e-6)


def test_an_element_of_a_sweep(cli: Cli) -> None:
    run = make_run(cli.runs, kind=RunKind.SWEEP, nodes=1, tasks=3)
    ran(run, "finished", DAY, task=2)
    assert asked(cli, "demo", "--task", "2")["cost_source"] == "measured"
    assert asked(cli, "demo", "--task", "0")["cost_source"] == "assumed"
    assert "--task I" in asked(cli, "demo", code=2)["remedy"]
    assert "no task 3" in asked(cli, "demo", "--task", "3", code=2)["error"]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("--mtbf", "1h", "--nodes", "4"), 2, "give one of them"),
        (("--mtbf", "1h", "--failures-per-node-day", "1"), 2, "give one of them"),
        (("--task", "1"), 2, "name the run"),
        (("--cost", "37"), 2, "a duration with a unit"),
        (("--cost", "0s"), 2, "above 0"),
        (("--cost", "0.0s"), 2, "above 0"),
        (("--cost", "-1s"), 2, "a duration such as"),
        (("--nodes", "0"), 2, "--nodes"),
        (("--failures-per-node-day", "nan"), 2, "from 1e-09"),
        (("--failures-per-node-day", "inf"), 2, "from 1e-09"),
        (("--failures-per-node-day", "0"), 2, "from 1e-09"),
        (("--failures-per-node-day", "1e306"), 2, "to 1000"),
        (("--failures-per-node-day", "1e-320"), 2, "from 1e-09"),
        (("nothing",), 12, "no run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_answered(cli: Cli, args: tuple[str, ...], code: int, said: str) -> None:
    found = asked(cli, *args, code=code)
    assert said in found["error"]
    assert found["exit_code"] == code


PROGRAM = """\
import os, time
from fleetctl.train.checkpointer import Checkpointer
with Checkpointer() as checkpoints:
    checkpoints.load()
    for step in (1, 2, 3):
        checkpoints.save(step, {"x": bytes(1 << 20)}, wait=True)
names = ("FLEETCTL_CHECKPOINT_INTERVAL_S", "FLEETCTL_CHECKPOINT_MTBF_S")
print("told", *(os.environ[name] for name in names), flush=True)
"""


@pytest.mark.slurm
def test_an_attempt_is_told_its_interval(sandbox: Sandbox, tmp_path: Path) -> None:
    cli = Cli(sandbox.environment(os.environ), tmp_path / "runs")
    (tmp_path / "train.py").write_text(PROGRAM)
    text = (
        "name: auto\nresources: {nodes: 2, time: 5m}\ncommand: python3 train.py\n"
        "checkpoint: {dir: checkpoints, format: own, interval: auto}\n"
    )
    run_id = cli.json("submit", str(write_spec(tmp_path, text)))["run_id"]
    cli("wait", run_id)
    assert cli.json("show", run_id)["state"] == "completed"
    folder = cli.runs / run_id / "attempts" / "1.0"
    written = json.loads((folder / "interval.json").read_text())
    assert (written["cost_source"], written["mtbf_source"]) == ("assumed", "assumed")
    told = [line.split() for line in (folder / "output.log").read_text().splitlines() if line.startswith("told")]
    assert told == [["told", str(round(written["interval_s"])), str(round(written["mtbf_s"]))]] * 2
    log = "".join(path.read_text() for path in (cli.runs / run_id / "logs").glob("slurm-*.out"))
    assert f"fleetctl: it saves every {written['interval_s']:.0f} s: " in log
    found = asked(cli, run_id)
    assert found["cost_source"] == "measured"
    assert found["cost_why"] == "the median of 3 saves"
