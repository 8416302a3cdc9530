"""A run that is being played: what is there of it, and what was done to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from fleetctl.sandbox.nodes import Node
from fleetctl.slurm.hosts import expand
from tests.chaos.scenario import Fault, Planned, Scenario
from tests.chaos.site import Site
from tests.faults.training import Training

Mend = Callable[[], object]
T = TypeVar("T")


class Missed(Exception):
    """There is nothing that this fault could break: it does not count."""


class Did(Struct, frozen=True):
    """What was done, in words, and how it is undone; None: it needs no undoing."""

    what: str
    mend: Mend | None = None


class Stage:
    """One run, on one site, in a folder of its own."""

    def __init__(self, site: Site, training: Training, scenario: Scenario, folder: Path, checkpoints: Path) -> None:
        self.site, self.training, self.scenario = site, training, scenario
        self.folder, self.checkpoints = folder, checkpoints
        self.applied: list[Fault] = []
        self.damaged: dict[str, str] = {}  # checkpoint -> the newest attempt when it was damaged
        self.drained: dict[str, str] = {}  # node -> the admin's reason
        self.priority = ""  # that an admin gave the job
        self.attempts_when_held: int | None = None  # by an admin; None: it is not
        self.broken: list[str] = []  # promises, in words

    @property
    def job_id(self) -> str:
        return self.training.job_id

    def check_held(self) -> None:
        """What an admin holds stays in the queue and does not start."""
        job = self.site.job(self.job_id)
        if job and (job.get("JobState"), job.get("Priority")) != ("PENDING", "0"):
            self.broken.append(f"an admin held the job, and it is {job.get('JobState')} now, {job.get('Reason')}")
        if len(self.training.attempts) != self.attempts_when_held:
            self.broken.append(f"an admin held the job, and attempt {self.training.attempts[-1]} began")

    def attempt(self) -> str:
        return chosen(self.training.attempts, 1.0)

    def nodes(self) -> list[str]:
        """Of the job."""
        return list(expand((self.site.ask("squeue", "-h", "-j", self.job_id, "-o", "%N") or "").strip()))

    def host(self) -> str:
        """Its batch host."""
        host = self.site.job(self.job_id).get("BatchHost")
        if not host:
            raise Missed("the job has no batch host")
        return host

    def node(self, planned: Planned, *, is_host: bool = False) -> Node:
        host = self.host()
        others = [name for name in self.nodes() if name != host]
        node = self.site.sandbox.node(host if is_host or not others else chosen(others, planned.pick))
        if not node.alive():
            raise Missed(f"{node.name} is dead already")
        return node

    def heads(self) -> list[int]:
        """The processes that lead the run: of the batch script, or of who took over."""
        return self._ours(lambda words: "fleetctl.launch" in words)

    def agents(self) -> list[int]:
        return self._ours(lambda words: "python" in words[0] and words[1:3] == ["-I", "-"])

    def _ours(self, wanted: Callable[[list[str]], bool]) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                text = path.read_text(errors="replace")
            except OSError:
                continue
            words = text.split("\0")
            if str(self.training.run_dir) in text and wanted(words):
                found.append(int(path.parent.name))
        return sorted(found)


def chosen(among: Sequence[T], pick: float) -> T:
    """The one at `pick` (0 to 1) of the way."""
    if not among:
        raise Missed("nobody is there")
    return among[min(int(pick * len(among)), len(among) - 1)]
