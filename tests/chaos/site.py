"""The cluster that chaos breaks: a sandbox of its own, what its administrator does, and how it is mended."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fleetctl.clock import SystemClock
from fleetctl.errors import FleetctlError
from fleetctl.recovery.policy import Policy
from fleetctl.sandbox import cluster
from fleetctl.sandbox.cluster import Sandbox
from fleetctl.sandbox.model import Partition, SandboxConfig
from tests.support import Cli, wait_until

NODES = 4
_DISK = "48m"
_EPILOG = """#!/bin/bash
sleep $(cat {folder}/cleaning 2>/dev/null || echo 0)
"""
_MEND_S = 45.0


class Site:
    """One sandbox with slurmdbd, a small disk for checkpoints, and an administrator. Not for several threads."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        self.folder, self.sandbox, self.began = folder, sandbox, time.monotonic()
        self.disk = folder / "disk"
        self.environ = {**sandbox.environment(os.environ), "SBATCH_PARTITION": "low"}
        self.admin = Cli(self.environ, folder / "none")

    def settle(self) -> None:
        """Wait until a daemon acts here: it lets a controller find its nodes first."""
        wait_until(lambda: time.monotonic() - self.began >= Policy().controller_s, "a settled controller", 300)

    def slurm(self, *argv: str) -> str:
        return self.admin.slurm(*argv)

    def ask(self, *argv: str) -> str | None:
        """None: Slurm did not answer, or said no."""
        with contextlib.suppress(subprocess.SubprocessError):
            return self.slurm(*argv)
        return None

    def job(self, job_id: str) -> dict[str, str]:
        """What scontrol shows of a job; empty where it does not."""
        text = self.ask("scontrol", "show", "job", job_id, "--oneliner") or ""
        return dict(re.findall(r"(?:^| )([A-Za-z/:]+)=(\S*)", text))

    def nodes(self) -> dict[str, tuple[str, str]]:
        """Node -> its state and the reason that stands there."""
        text = self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%N|%T|%E") or ""
        rows = [line.split("|", 2) for line in text.splitlines()]
        return {name: (state, "" if reason == "none" else reason) for name, state, reason in rows}

    def leaked_gpus(self) -> dict[str, str]:
        """Nodes on which Slurm counts GPUs as used."""
        text = self.slurm("scontrol", "show", "nodes", "--oneliner", "--details")
        return {
            name: used
            for name, used in re.findall(r"NodeName=(\S+) .*?GresUsed=gpu:(?:\S+:)?(\d+)", text)
            if used != "0"
        }

    def alive_jobs(self) -> str:
        return self.slurm("squeue", "-h", "-a", "-o", "%i %T %r").strip()

    def resume_nodes(self) -> None:
        """All that Slurm itself has drained."""
        for name, (_, reason) in self.nodes().items():
            if reason and not reason.startswith("admin"):
                self.ask("scontrol", "update", f"nodename={name}", "state=resume")

    def mend(self) -> bool:
        """Make everything whole again and empty the queue. False: it could not be done; take another site."""
        try:
            self._mend()
            deadline = time.monotonic() + _MEND_S
            while time.monotonic() < deadline:
                if not (self.ask("squeue", "-h", "-a", "-o", "%i") or "").strip() and self._is_whole():
                    return not self.leaked_gpus()
                self.ask("scancel", "--user=root")
                self.ask("scontrol", "update", "nodename=ALL", "state=resume")
                time.sleep(0.5)
        except (FleetctlError, subprocess.SubprocessError):
            pass
        return False

    def _mend(self) -> None:
        (self.disk / "filler").unlink(missing_ok=True)
        (self.folder / "cleaning").unlink(missing_ok=True)
        for daemon in (self.sandbox.dbd, self.sandbox.ctld):
            if daemon.alive():
                daemon.cont()
            daemon.start()
        for name in self.sandbox.config.node_names():
            node = self.sandbox.node(name)
            if node.alive():
                node.wake()
            node.start(wait=False)

    def _is_whole(self) -> bool:
        states = self.nodes()
        return len(states) == NODES and all(state == "idle" for state, _ in states.values()) and not self._orphans()

    def _orphans(self) -> bool:
        """Steps that live on: of a job that a killed slurmctld has forgotten. Its id would be given again."""
        names = self.sandbox.config.node_names()
        return any(stat.name == "slurmstepd" for name in names for stat in self.sandbox.node(name).members())


@contextlib.contextmanager
def a_site() -> Iterator[Site]:
    """A site of one's own. BeginTime is short (cred_expire), and so is Slurm's patience with nodes."""
    folder = Path(tempfile.mkdtemp(prefix="fx-", dir="/tmp"))
    folder.chmod(0o755)
    epilog = folder / "epilog.sh"
    epilog.write_text(_EPILOG.format(folder=folder))
    epilog.chmod(0o755)
    disk = folder / "disk"
    disk.mkdir()
    # Before the nodes start: each has its own mounts from then on
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(disk)], check=True)
    settings = (
        ("SlurmdTimeout", "10"),
        ("AuthInfo", "cred_expire=5"),
        ("PreemptType", "preempt/partition_prio"),
        ("PreemptMode", "REQUEUE"),
        ("Epilog", str(epilog)),
    )
    low = Partition("low", (("Nodes", "ALL"), ("PriorityTier", "1"), ("GraceTime", "20")))
    high = Partition("high", (("Nodes", "ALL"), ("PriorityTier", "9")))
    config = SandboxConfig(nodes=NODES, accounting=True, settings=settings, partitions=(low, high))
    try:
        yield Site(folder, cluster.up(config, folder / "slurm", SystemClock()))
    finally:
        cluster.down(folder / "slurm", SystemClock())
        subprocess.run(["umount", "-l", str(disk)], check=False)
        shutil.rmtree(folder, ignore_errors=True)
