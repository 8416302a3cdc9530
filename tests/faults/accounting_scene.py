"""Everything that becomes of jobs, once, on a sandbox with slurmdbd: what accounting must get right.

Plain jobs are pinned to nodes of their own, so that each meets the fate that it is there for; trainings that fleetctl
submitted have the partition `train`, which `high` preempts without grace.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from fleetctl.clock import SystemClock
from fleetctl.sandbox.cluster import Sandbox
from fleetctl.sandbox.model import Partition, SandboxConfig
from tests.faults.training import Training
from tests.support import Cli, wait_until

_PLAIN, _TRAIN = "node[1-6]", "node[7-11]"
CONFIG = SandboxConfig(
    nodes=11,
    accounting=True,
    settings=(
        ("PreemptType", "preempt/partition_prio"),
        ("PreemptMode", "REQUEUE"),
        ("JobRequeue", "1"),
        ("SlurmdTimeout", "10"),
        ("KillWait", "2"),
    ),
    partitions=(
        Partition("main", (("Nodes", _PLAIN), ("PriorityTier", "1"))),
        Partition("train", (("Nodes", _TRAIN), ("PriorityTier", "1"))),
        Partition("high", (("Nodes", "ALL"), ("PriorityTier", "9"))),
    ),
)
# What other people name their jobs
NAMES = (
    "a|b\x1fc",
    "two\nlines",
    "prüfung",
    b"\xff\xfe broken".decode("utf-8", "surrogateescape"),
    "=cmd|' /C calc'!A0",
)
_LONG_S = 180.0


class Scene:
    """One cluster, one run root. `ids` are the job ids by what became of them."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        environ = {**sandbox.environment(os.environ), "SBATCH_PARTITION": "train", "TZ": "UTC"}
        self.folder, self.sandbox = folder, sandbox
        self.cli = Cli(environ, folder / "runs")
        self.ids: dict[str, str] = {}
        self.trainings: dict[str, Training] = {}
        self.began_s = int(SystemClock().now().timestamp())

    def play(self) -> None:
        """All of it; returns when every job has ended and slurmdbd knows so."""
        self._submit_trainings()
        dead = self._disturb_trainings()
        self._submit_jobs()
        self._disturb_jobs()
        for what in ("killed rank", "preempted", "lost node"):
            assert self.trainings[what].end() == "completed", self.trainings[what].log()
        self.sandbox.node(dead).start()
        self.await_quiet()

    def sbatch(self, what: str, *options: str, script: str = "sleep 2", part: str = "main") -> str:
        argv = ["sbatch", "--parsable", f"--partition={part}", "--output=/dev/null", "--time=5", *options]
        said = self.cli.slurm(*argv, f"--wrap={script}").strip()
        self.ids[what] = said
        return said

    def state(self, job_id: str) -> str:
        """In the controller; empty for one that it has forgotten."""
        return self.cli.slurm("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T").strip()

    def await_state(self, what: str, state: str) -> None:
        wait_until(lambda: state in self.state(self.ids[what]).split(), f"{what} is {state}", _LONG_S)

    def open_jobs(self) -> str:
        states = "--states=PENDING,RUNNING,SUSPENDED,COMPLETING,CONFIGURING,REQUEUED"
        return self.cli.slurm("squeue", "--noheader", "--all", states, "--format=%A %T")

    def queued(self) -> int:
        """Records that slurmctld still keeps for slurmdbd."""
        return int(re.findall(r"DBD Agent queue size: *(\d+)", self.cli.slurm("sdiag"))[0])

    def await_quiet(self) -> None:
        wait_until(lambda: not self.open_jobs(), f"the end of every job: {self.open_jobs()}", _LONG_S)
        wait_until(lambda: self.queued() == 0, "slurmdbd has every record", _LONG_S)

    def sacct(self, columns: str, *options: str) -> list[list[str]]:
        """sacct's own word, for comparison: rows of `columns` (no free text), every attempt; times in seconds."""
        argv = ["sacct", "-a", "-D", "-n", "-P", "--noconvert", "-S", "uts1000000", "-o", columns, *options]
        said = self.cli.slurm("env", "SLURM_TIME_FORMAT=%s", *argv)
        return [line.split("|") for line in said.splitlines()]

    def _submit_trainings(self) -> None:
        for what, nodes, ranks in (("killed rank", 1, 2), ("preempted", 1, 2), ("lost node", 2, 1), ("given up", 1, 1)):
            folder = self.folder / what.replace(" ", "-")
            folder.mkdir()
            training = Training(self.cli, folder, self.sandbox)
            training.submit(nodes=nodes, tasks_per_node=ranks, steps=260, step_time_ms=50)
            self.trainings[what] = training

    def _submit_jobs(self) -> None:
        self.sbatch("requeued", "-w", "node1", "--gpus-per-node=4", "--requeue", script="sleep 4")
        self.sbatch("array", "-w", "node1", "--gpus-per-node=1", "--array=0-3%3", script="sleep 3")
        self.sbatch("preempted", "-w", "node[2-3]", "-N2", "--gpus-per-node=8", script="sleep 6")
        self.sbatch("node-failed", "-w", "node[4-5]", "-N2", "--gpus-per-node=3", script="sleep 300")
        self.sbatch("resized", "-w", "node[4,6]", "-N2", "--no-kill", "--gpus-per-node=2", script="sleep 6")
        self.sbatch("suspended", "-w", "node6", "--gpus-per-node=2", script="sleep 3")
        self.sbatch("cancelled", "-w", "node6", "--gpus-per-node=1", script="sleep 300")
        self.sbatch("cancelled while held", "--hold", "--gpus-per-node=1")
        self.sbatch("status 137", "-w", "node6", "--gpus-per-node=1", script="exit 137")
        self.sbatch("step died", "-w", "node6", "--gpus-per-node=1", script="srun sh -c 'kill -SEGV $$'; exit 0")
        self.sbatch("no gpu", "-w", "node6", script="true")
        for number, name in enumerate(NAMES):
            self.sbatch(f"name {number}", "-w", "node6", f"--job-name={name}", f"--comment={name}", script="true")
        self._submit_hetjob()

    def _submit_hetjob(self) -> None:
        script = self.folder / "hetjob.sh"
        script.write_text(
            "#!/bin/sh\n#SBATCH --gpus-per-node=1 -w node1 --output=/dev/null\n#SBATCH hetjob\n"
            "#SBATCH --gpus-per-node=2 -w node6\nsleep 3\n"
        )
        argv = ("sbatch", "--parsable", "--partition=main", "--time=5", str(script))
        self.ids["hetjob"] = self.cli.slurm(*argv).strip()

    def _disturb_jobs(self) -> None:
        for what in ("requeued", "preempted", "node-failed", "resized", "suspended", "cancelled", "array"):
            self.await_state(what, "RUNNING")
        scontrol = ("scontrol",)
        self.cli.slurm(*scontrol, "suspend", self.ids["suspended"])
        self.cli.slurm(*scontrol, "requeue", self.ids["requeued"])
        self.cli.slurm(*scontrol, "requeue", f"{self.ids['array']}_1")
        self.cli.slurm(*scontrol, "update", f"JobId={self.ids['resized']}", "NumNodes=1")
        self.sandbox.node("node5").kill()
        self.sbatch("urgent", "-w", "node2", "--gpus-per-node=8", script="sleep 2", part="high")
        self.cli.slurm("scancel", self.ids["cancelled"], self.ids["cancelled while held"])
        self.await_state("suspended", "SUSPENDED")
        self._await_seconds(2.5)
        self.cli.slurm(*scontrol, "resume", self.ids["suspended"])
        wait_until(lambda: self._restarts("node-failed") == 1, "Slurm requeues from the dead node", _LONG_S)
        self.cli.slurm("scancel", self.ids["node-failed"])
        self.sandbox.node("node5").start()

    def _await_seconds(self, seconds: float) -> None:
        """What whole seconds are to show: the fault itself."""
        clock = SystemClock()
        until = clock.monotonic_s() + seconds
        wait_until(lambda: clock.monotonic_s() > until, "the time of the fault")

    def _restarts(self, what: str) -> int:
        shown = self.cli.slurm("scontrol", "show", "job", self.ids[what], "--oneliner")
        return int(re.findall(r"Restarts=(\d+)", shown)[0])

    def _disturb_trainings(self) -> str:
        """The node that is dead now."""
        for training in self.trainings.values():
            training.await_checkpoint()
        self.trainings["killed rank"].kill_rank(1)
        preempted = self.trainings["preempted"].batch_host()
        self.sbatch("urgent training", "-w", preempted, "--gpus-per-node=8", script="sleep 2", part="high")
        lost = self.trainings["lost node"]
        dead = next(node for node in lost.placed("1.0") if node != lost.batch_host())
        self.sandbox.node(dead).kill()
        assert self.cli("cancel", self.trainings["given up"].run_id).returncode == 0
        return dead
