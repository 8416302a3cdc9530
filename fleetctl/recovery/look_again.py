"""What one deed sees just before it is done: the job of its start, as Slurm has it now."""

from __future__ import annotations

from msgspec import Struct

from fleetctl.clock import Clock
from fleetctl.errors import JobUnknown
from fleetctl.recovery.model import Outcome
from fleetctl.recovery.order import Answer, Order, Start, run_of, start_of
from fleetctl.recovery.stop import stopped
from fleetctl.slurm.model import Job, JobId, Node
from fleetctl.submission.decide_nodes import hosts, unresponsive
from fleetctl.submission.decide_requeue import Phase, phase
from fleetctl.submission.submit import Site

POLL_S = 0.5
LEAST_S = 1.0  # before the deadline: less is not enough for one command


class Hands(Struct, frozen=True):
    """One deed, and what it takes to do it."""

    order: Order
    site: Site

    @property
    def clock(self) -> Clock:
        return self.site.clock

    @property
    def task(self) -> int | None:
        return run_of(self.order.action.key)[1]

    @property
    def why(self) -> str:
        return self.order.action.why

    def left_s(self) -> float:
        return self.order.deadline_s - self.clock.monotonic_s()

    def forbidden(self) -> str:
        """Why it must not be done now; to be asked last of all before the deed."""
        if self.left_s() < LEAST_S:
            return "the time of this lease is over"
        return stopped_of(self.order)


class Target(Struct, frozen=True):
    """The job of an action's start. `restarts` is what Slurm counts now."""

    start: Start
    job_id: JobId
    rows: tuple[Job, ...]
    restarts: int

    @property
    def phases(self) -> frozenset[Phase]:
        return frozenset(phase(job.state) for job in self.rows)

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(node for job in self.rows for node in hosts(job.node_list))

    @property
    def changed(self) -> str:
        """Why this start is none any more; "": it is still the newest."""
        if self.restarts == self.start.restarts:
            return ""
        return f"Slurm has started job {self.job_id} {self.restarts} times again, and {self.start.restarts} was meant"


def stopped_of(order: Order) -> str:
    from pathlib import Path

    return stopped(Path(order.stop_file)) if order.stop_file else ""


def target(hands: Hands) -> Target | Answer:
    """The job, or why there is none to do anything to.

    :raises SlurmUnreachable: nothing is known.
    """
    if why := foreign_start(hands):
        return Answer(Outcome.CHANGED, why)
    start = start_of(hands.order.action.start)
    assert start is not None, "foreign_start has looked"
    slurm, gone = hands.site.slurm, Answer(Outcome.CHANGED, f"Slurm knows job {start.raw_id} no more")
    found = slurm.jobs(ids=[JobId(start.raw_id)])
    own = next((job for job in found if job.raw_id == start.raw_id), None)
    if own is None:
        return gone
    job_id = JobId(own.id.base, array_index=hands.task)
    rows = tuple(job for job in found if job.is_part_of(job_id))
    try:
        restarts = slurm.allocation(job_id).restarts
    except JobUnknown:
        return gone
    return Target(start, job_id, rows, restarts or 0) if rows else gone


def foreign_start(hands: Hands) -> str:
    """Why the action's start can be of no job here; "": it can."""
    start = start_of(hands.order.action.start)
    if start is None:
        return f"{hands.order.action.start!r} names no start of a job"
    if start.cluster != hands.site.cluster:
        return f"job {start.raw_id} is of cluster {start.cluster}, not of {hands.site.cluster}"
    return ""


def silent_nodes(hands: Hands, of: Target) -> tuple[str, ...]:
    """Nodes of the job that Slurm does not reach and has not found DOWN."""
    return unresponsive(hands.site.slurm.nodes(), of.nodes)


def node_of(hands: Hands, name: str) -> Node | None:
    return next((node for node in hands.site.slurm.nodes() if node.name == name), None)


def see_restart(hands: Hands, of: Target) -> Answer:
    """Wait until Restarts has risen: Slurm says yes to a requeue that it does not do."""
    until_s = min(hands.clock.monotonic_s() + SEEN_WITHIN_S, hands.order.deadline_s)
    while True:
        found = hands.site.slurm.allocation(of.job_id)
        if (found.restarts or 0) > of.restarts:
            return Answer(Outcome.DONE, f"Slurm has requeued job {of.job_id} (restart {found.restarts})")
        if phase(found.state) is Phase.ENDED and of.phases != {Phase.ENDED}:
            return Answer(Outcome.CHANGED, f"job {of.job_id} ended meanwhile: {found.state}")
        if hands.clock.monotonic_s() >= until_s:
            return Answer(Outcome.FAILED, f"Slurm did not requeue job {of.job_id}, which is {found.state}")
        hands.clock.sleep(POLL_S)


SEEN_WITHIN_S = 30.0  # Restarts rises at once; a controller that restarts meanwhile needs some seconds
