"""The example training as fault tests run it: on a sandbox of its own, watched through its run directory."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.model import attempt_name
from fleetctl.sandbox.cluster import Sandbox
from tests.support import EXAMPLES, Cli, committed, processes_with, wait_until, write_spec

STEPS = 260
STEP_TIME_MS = 50

# Two nodes with two ranks each, or one with four: the same training. It saves every second, so that every fault has a
# checkpoint before it.
SPEC = """\
name: train
resources: {{nodes: {nodes}, spare_nodes: {spares}, gpus_per_node: 8, tasks_per_node: {tasks_per_node},
  cpus_per_task: 1, time: {time}}}
checkpoint: {{dir: {folder}/checkpoints, format: own, interval: {interval}}}
recovery: {recovery}
{env_file}workdir: {workdir}
command: |
  echo "$RANK $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES" >> {folder}/placed.$FLEETCTL_ATTEMPT
  exec python3 {program} --steps {steps} --step-time-ms {step_time_ms} {more}
"""


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


class Training:
    """One run of the example."""

    def __init__(self, cli: Cli, folder: Path, sandbox: Sandbox) -> None:
        self.cli, self.folder, self.sandbox = cli, folder, sandbox
        self.run_id = self.job_id = ""

    def submit(
        self,
        *,
        nodes: int = 2,
        tasks_per_node: int = 2,
        spares: int = 0,
        time: str = "10m",
        recovery: str = "{max_failures: 3}",
        steps: int = STEPS,
        step_time_ms: int = STEP_TIME_MS,
        program: str = "train_numpy.py",
        more: str = "",
        interval: str = "1s",
        env_file: str = "",
    ) -> None:
        text = SPEC.format(
            nodes=nodes,
            tasks_per_node=tasks_per_node,
            spares=spares,
            folder=self.folder,
            time=time,
            recovery=recovery,
            workdir=EXAMPLES,
            program=program,
            steps=steps,
            step_time_ms=step_time_ms,
            more=more,
            interval=interval,
            env_file=f"env_file: {env_file}\n" if env_file else "",
        )
        answer = self.cli.json("submit", str(write_spec(self.folder, text)))
        self.run_id, self.job_id = answer["run_id"], answer["job_id"]

    @property
    def run_dir(self) -> Path:
        return self.cli.runs / self.run_id

    @property
    def attempts(self) -> list[str]:
        return [attempt_name(number) for number in Attempts(self.run_dir / "attempts").numbers()]

    def progress(self, attempt: str) -> int:
        """The training step of one attempt; 0 before its first."""
        try:
            return int(json.loads((self.run_dir / "attempts" / attempt / "progress.json").read_text())["training_step"])
        except FileNotFoundError:
            return 0

    def has_begun(self, attempt: str) -> bool:
        """Whether an attempt has done a step of its own."""
        return attempt in self.attempts and self.steps_of(attempt) >= 1

    def steps_of(self, attempt: str) -> int:
        """How many steps an attempt has done itself."""
        done = self.progress(attempt)
        return done - self.resumed_at(attempt) if done else 0

    def resumed_at(self, attempt: str) -> int:
        """The step that an attempt was told to resume from; 0 for scratch."""
        path = self.run_dir / "attempts" / attempt / "resume.json"
        return int(json.loads(path.read_text())["training_step"] or 0) if path.exists() else 0

    def saved(self, attempt: str = "1.0") -> list[int]:
        """The training steps that were committed by an attempt."""
        return committed(self.run_dir, attempt)

    def await_checkpoint(self, attempt: str = "1.0", more_than: int = 0) -> None:
        """A checkpoint, and steps after it that a fault will cost."""
        wait_until(lambda: len(self.saved(attempt)) > more_than, f"a checkpoint of attempt {attempt}")
        at = self.progress(attempt)
        wait_until(lambda: self.progress(attempt) > at + 5, "steps after the checkpoint")

    def await_steps(self, attempt: str, count: int = 50, within_s: float = 60.0) -> float:
        """Seconds until an attempt has done so many steps of its own."""
        began = time.monotonic()
        wait_until(lambda: self.steps_of(attempt) >= count, f"{count} steps of attempt {attempt}", within_s)
        return time.monotonic() - began

    def rank_pid(self, rank: int) -> int:
        """The process of one rank, of the newest attempt."""
        found = self.ranks(self.attempts[-1], f"RANK={rank}")
        assert found, f"rank {rank} does not run"
        return found[0]

    def ranks(self, attempt: str, *more: str) -> list[int]:
        """The processes of the training of one attempt that have `more` in their environment."""
        return [pid for pid in self._processes(attempt, *more) if "python" in _program(pid)]

    def sruns(self, attempt: str) -> list[int]:
        """The srun of one attempt, without its second half, which is its child."""
        found = [pid for pid in self._processes(attempt) if _program(pid).endswith("srun")]
        return [pid for pid in found if _parent(pid) not in found]

    def _processes(self, attempt: str, *more: str) -> list[int]:
        return processes_with(f"FLEETCTL_RUN_ID={self.run_id}", f"FLEETCTL_ATTEMPT={attempt}", *more)

    def kill_rank(self, rank: int) -> None:
        os.kill(self.rank_pid(rank), signal.SIGKILL)

    def placed(self, attempt: str) -> dict[str, list[str]]:
        """Node -> CUDA_VISIBLE_DEVICES of each of its ranks."""
        found: dict[str, list[str]] = {}
        for line in sorted((self.folder / f"placed.{attempt}").read_text().splitlines()):
            _, node, devices = line.split(" ", 2)
            found.setdefault(node, []).append(devices)
        return found

    def batch_host(self) -> str:
        text = self.cli.slurm("scontrol", "show", "job", self.job_id, "--oneliner")
        return str(re.findall(r"BatchHost=(\S+)", text)[0])

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = [line for path in (self.run_dir / "events").iterdir() for line in path.read_text().splitlines()]
        found = [event for event in map(json.loads, lines) if event["kind"] == kind]
        return sorted(found, key=lambda event: str(event["time"]))

    def end(self) -> str:
        """The state at the end of the run."""
        return str(json.loads(self.cli("wait", self.run_id, "--json", "--timeout", "100").stdout)["state"])

    def digest(self) -> str:
        """Of all parameters at the end. A training that began again from scratch would end with the same ones: so each
        attempt must have loaded what it was told to, and have done no step twice."""
        for attempt in self.attempts[1:]:
            self.check_resumed(attempt)
        text = (self.run_dir / "attempts" / self.attempts[-1] / "output.log").read_text()
        found = re.findall(r"parameters sha256 ([0-9a-f]{64})", text)
        assert len(found) == 1, text[-2000:]
        return str(found[0])

    def check_resumed(self, attempt: str) -> None:
        folder = self.run_dir / "attempts" / attempt
        if not self.resumed_at(attempt) or not self.progress(attempt):
            return
        load = json.loads((folder / "load.json").read_text())
        assert (load["state"], load["training_step"]) == ("loaded", self.resumed_at(attempt))
        steps = [int(step) for step in re.findall(r"^training step +(\d+)", (folder / "output.log").read_text(), re.M)]
        assert not steps or min(steps) > self.resumed_at(attempt)

    def accounted(self) -> str:
        """State and node count of each record of the job, oldest first."""
        return self.cli.slurm("sacct", "-D", "-X", "-n", "-P", "-j", self.job_id, "-o", "State,NNodes")

    def log(self) -> str:
        """What the heads said."""
        return "".join(path.read_text() for path in sorted((self.run_dir / "logs").iterdir()))
