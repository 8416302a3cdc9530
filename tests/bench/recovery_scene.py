"""A cluster with Slurm's own times, the example training on it, and the recovery daemon beside it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from fleetctl.clock import SystemClock
from fleetctl.recovery.policy import Policy
from fleetctl.sandbox import cluster
from fleetctl.sandbox.cluster import Sandbox
from fleetctl.sandbox.model import SandboxConfig
from tests.faults.training import Training
from tests.support import BIN, Cli, wait_until

SLURMD_TIMEOUT_S = 300
GPUS = 8
AWAY_S = 700.0  # then nobody brings a job back any more
_SETTINGS = (  # Slurm's defaults, where they decide how long a job is away
    ("SlurmdTimeout", str(SLURMD_TIMEOUT_S)),
    ("AuthInfo", "cred_expire=120"),
    ("MessageTimeout", "10"),
    ("KillWait", "30"),
)
_SHOWN = ("SlurmdTimeout", "AuthInfo", "MessageTimeout", "TCPTimeout", "KillWait", "SchedulerParameters")
_NODES = 12


@dataclass(frozen=True)
class Bench:
    """A cluster, and a folder for what runs on it."""

    folder: Path
    directory: Path

    def sandbox(self) -> Sandbox:
        """Each thread holds it by itself."""
        return cluster.find(self.directory, SystemClock())

    def cli(self, name: str) -> Cli:
        words = self.folder / name / "words"
        words.mkdir(parents=True)
        environ = self.sandbox().environment(os.environ)
        return Cli({**environ, "FLEETCTL_WORDS": str(words)}, self.folder / name / "runs")

    def training(self, name: str, *, spares: int = 0, peer_timeout_s: int = 600) -> Training:
        """Two nodes that train for longer than any of this takes, and have saved once."""
        cli = self.cli(name)
        begun = Training(cli, self.folder / name, self.sandbox())
        more = f"--peer-timeout-s {peer_timeout_s}"
        begun.submit(
            tasks_per_node=1, spares=spares, time="2h", steps=100_000, step_time_ms=200, interval="5s", more=more
        )
        begun.await_checkpoint()
        return begun

    def await_controller(self, cli: Cli) -> None:
        """Until a daemon trusts what the controller says of nodes: after it began, it has not asked them yet."""

        def has_run() -> bool:
            text = re.findall(r"BOOT_TIME\s*= (\S+)", cli.slurm("scontrol", "show", "config"))
            return (datetime.now() - datetime.fromisoformat(text[0])).total_seconds() > Policy().controller_s + 5

        wait_until(has_run, "a controller that has run for a while", 300)

    @contextmanager
    def daemon(self, training: Training, *options: str) -> Iterator[Path]:
        """The recovery daemon, acting; gives its log."""
        url, log = f"sqlite:///{training.folder}/daemon.db", training.folder / "daemon.log"
        done = training.cli("db", "upgrade", "--database", url)
        assert done.returncode == 0, done.stderr
        argv = [str(BIN / "fleetctl"), "daemon", "run", "--act", "--database", url, *options]
        with log.open("w") as out, subprocess.Popen(argv, env=training.cli.environ, stdout=out, stderr=out) as daemon:
            try:
                yield log
            finally:
                daemon.terminate()
                assert daemon.wait(60) == 0, log.read_text()


@contextmanager
def a_bench(settings: Sequence[tuple[str, str]] = _SETTINGS) -> Iterator[Bench]:
    folder = Path(tempfile.mkdtemp(prefix="fb-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        started = cluster.up(
            SandboxConfig(nodes=_NODES, gpus=GPUS, accounting=True, settings=tuple(settings)),
            folder / "slurm",
            SystemClock(),
        )
        conf = started.slurm_conf.read_text()
        lines = [line for line in conf.splitlines() if line.partition("=")[0] in _SHOWN]
        version = Cli(started.environment(os.environ), folder).slurm("sinfo", "--version").strip()
        print(f"Recovery, {version}:", "; ".join(re.sub(r"socket=[^,]*,", "", line) for line in lines), flush=True)
        yield Bench(folder, folder / "slurm")
    finally:
        cluster.down(folder / "slurm", SystemClock())
        if "FLEETCTL_BENCH_KEEP" not in os.environ:
            shutil.rmtree(folder, ignore_errors=True)


def job_now(cli: Cli, job_id: str) -> dict[str, str]:
    text = cli.slurm("scontrol", "show", "job", job_id, "--oneliner")
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


class Away(NamedTuple):
    """Seconds from a node's death until Slurm had it DOWN, and until the job ran again: its next start, with nodes."""

    down_s: float
    running_s: float


def away_of(cli: Cli, job_id: str, dead: str) -> Away:
    """To be called when the node has just died."""
    died, down_s = time.monotonic(), 0.0

    def runs() -> bool:
        nonlocal down_s
        if not down_s and "DOWN" in cli.slurm("sinfo", "--noheader", "--nodes", dead, "--format=%T").upper():
            down_s = time.monotonic() - died
        job = job_now(cli, job_id)
        return (job["JobState"], job["Restarts"]) == ("RUNNING", "1")

    wait_until(runs, f"job {job_id} RUNNING again", AWAY_S)
    return Away(down_s, time.monotonic() - died)
