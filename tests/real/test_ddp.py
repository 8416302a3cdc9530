"""The torchrun example with the real torch, in a stage of its own: `./dev test` makes .venv-real for it."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from fleetctl.sandbox.cluster import Sandbox
from tests.support import EXAMPLES, ROOT, Cli, committed, processes_with, wait_until, write_spec

pytestmark = pytest.mark.slurm

TORCH_BIN = ROOT / ".venv-real" / "bin"
STEPS = 120


@pytest.fixture
def cli(sandbox: Sandbox, tmp_path: Path) -> Cli:
    assert (TORCH_BIN / "torchrun").exists(), "run it by ./dev test, which makes .venv-real"
    cli = Cli(sandbox.environment(os.environ), tmp_path / "runs")
    cli.environ["PATH"] = f"{TORCH_BIN}:{cli.environ['PATH']}"
    return cli


def submit(cli: Cli, folder: Path, step_time_ms: int) -> Path:
    """The example's own spec with a folder of its own; returns the run's folder. It has two ranks: with more, DDP adds
    the gradients in another order in its first step after a start, and the parameters differ in their last bits."""
    text = (EXAMPLES / "ddp.yaml").read_text()
    text = text.replace("dir: checkpoints/ddp", f"dir: {folder}/checkpoints").replace("interval: 5s", "interval: 1s")
    text = text.replace("--steps 300", f"--steps {STEPS} --step-time-ms {step_time_ms}")
    folder.mkdir()
    spec = write_spec(folder, f"{text}\nworkdir: {EXAMPLES}\n", "ddp.yaml")
    return cli.runs / str(cli.json("submit", str(spec))["run_id"])


def digest(cli: Cli, run: Path, attempt: str) -> str:
    waited = cli("wait", run.name, "--json", "--timeout", "110")
    output = (run / "attempts" / attempt / "output.log").read_text()
    assert json.loads(waited.stdout)["state"] == "completed", output
    (found,) = re.findall(r"parameters sha256 ([0-9a-f]{64})", output)
    return str(found)


def test_a_ddp_training_survives_a_killed_rank_and_ends_with_the_same_parameters(cli: Cli, tmp_path: Path) -> None:
    undisturbed = digest(cli, submit(cli, tmp_path / "undisturbed", 0), "1.0")
    run = submit(cli, tmp_path / "killed", 100)
    wait_until(lambda: committed(run, "1.0"), "a checkpoint", 90)
    os.kill(processes_with(f"FLEETCTL_RUN_ID={run.name}", "RANK=1")[0], signal.SIGKILL)
    assert digest(cli, run, "1.1") == undisturbed
    resumed = json.loads((run / "attempts" / "1.1" / "resume.json").read_text())["training_step"]
    assert resumed == committed(run, "1.0")[-1] > 0
