"""What the job side costs before the training starts: claim, choice among 200 checkpoints, watch, environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from fleetctl.rundir.model import EventKind, RunKind, RunRecord
from fleetctl.rundir.store import Store
from fleetctl.train.checkpointer import Checkpointer
from tests.bench.measure import Row, alternate
from tests.support import Cli

_CHECKPOINTS = 200
_LIMIT_MS = 500.0


def bench_launch(cli: Cli, folder: Path) -> Row:
    """From the start of the batch script's program to the first line of the training, on the wall clock."""
    checkpoints = folder / "checkpoints"
    with Checkpointer(directory=str(checkpoints), environ={}) as opened:
        for step in range(1, _CHECKPOINTS + 1):
            opened.save(step, {"state": b"x" * 1000}, wait=True)
    assert len(list(checkpoints.glob("step-*"))) == _CHECKPOINTS
    _, ours = alternate(lambda: 0.0, lambda: _launch_ms(cli, folder, checkpoints), 9)
    return Row(f"launch, {_CHECKPOINTS} checkpoints", "the limit of the issue, wall clock", 0, ours, _LIMIT_MS)


def _launch_ms(cli: Cli, folder: Path, checkpoints: Path) -> float:
    store, began_at = Store(folder / "launched"), folder / "began"
    shutil.rmtree(store.root, ignore_errors=True)
    store.ensure()
    assert store.reserve("bench")
    now = datetime.now(UTC)
    record = RunRecord("bench", "bench", "root", now, RunKind.PLAIN, "d", "/s", "/w", 2, 1, "c", "0")
    run = store.fill(record, "name: bench\n", {"name": "bench"})
    run.submission_dir(1).mkdir()
    run.event_log("submit").append(now, EventKind.INTENT, submission=1)
    argv = [sys.executable, "-I", "-m", "fleetctl.launch", "--run-dir", str(run.path), "--submission", "1"]
    argv += ["--nodes", "2", "--spares", "0", "--max-failures", "1", "--checkpoint-dir", str(checkpoints)]
    argv += ["--checkpoint-format", "own", "--checkpoint-load", "latest", "--step", "train", "0", "3"]
    argv += ["sh", "-c", f"date +%s%N >{began_at}; exit 3"]
    environ = {**cli.environ, "SLURM_JOB_ID": "4000000", "SLURM_JOB_NODELIST": "node[1-2]", "SLURMD_NODENAME": "node1"}
    began_ns = time.time_ns()
    launched = subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    launched.wait(60)
    assert (run.path / "attempts" / "1.0" / "resume.json").read_text().count("step-000000200@") >= 1
    return (int(began_at.read_text()) - began_ns) / 1e6
