"""What the process that leads a run's job knows and may touch: one value, handed to everything below."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from fleetctl.clock import Clock
from fleetctl.errors import FleetctlError, RunDirError
from fleetctl.launch.decide import Policy
from fleetctl.launch.model import JobIdentity, Order
from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.model import AttemptNumber, EventKind, attempt_name
from fleetctl.rundir.store import EventLog, RunDir
from fleetctl.slurm.model import JobId

if TYPE_CHECKING:
    from fleetctl.slurm.port import Slurm


class World(Struct, frozen=True):
    """The edges: time, Slurm and its environment, which code lies here, and what Slurm told this process."""

    clock: Clock
    environ: Mapping[str, str]
    argv: tuple[str, ...]  # this process's own, without the program
    slurm: Slurm
    code: Callable[[], dict[str, object] | None]  # the git state of the working directory
    told_to_end: Callable[[], bool]  # SIGTERM or SIGINT came
    notices: Callable[[], int]  # how often SIGUSR1 came: the end is near, by the time limit or a preemption
    say: Callable[[str], None]


class Lead(Struct, frozen=True):
    """One job of one run, as its head sees it."""

    run: RunDir
    order: Order
    job: JobIdentity
    log: EventLog
    attempts: Attempts
    environments: tuple[Mapping[str, str], ...]  # of each step, without what an attempt adds
    world: World
    began_s: float | None  # monotonic, when the batch script began; None for a head that took over

    @property
    def policy(self) -> Policy:
        return Policy(self.order.nodes, self.order.max_failures, self.order.spares > 0)

    @property
    def job_id(self) -> JobId:
        return JobId.parse(self.job.job_id)

    @property
    def raw_job_id(self) -> JobId:
        """The number that srun and squeue's steps know; an array's element has one of its own."""
        return JobId.parse(self.job.raw_id or self.job.job_id)

    def note(self, kind: EventKind, number: AttemptNumber, **data: Any) -> None:
        """Write an event of this attempt; a full disk must not fail a training that goes well.

        What must be on disk before the deed uses `log.append` itself.
        """
        facts = {"submission": self.order.submission, "attempt": attempt_name(number), "task": self.job.task}
        try:
            self.log.append(self.world.clock.now(), kind, **facts, **data)
        except RunDirError as error:
            self.world.say(f"fleetctl: {error.message}")

    def ask(self, question: Callable[[], Any]) -> Any:
        """Slurm's answer, or None when there is none: nothing follows from that."""
        try:
            return question()
        except FleetctlError as error:
            self.world.say(f"fleetctl: {error.message}")
            return None
