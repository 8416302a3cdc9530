"""What `fleetctl requeue` sees of a run: its record, its job in Slurm, and the nodes of that job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from fleetctl.errors import JobUnknown, UsageError
from fleetctl.render.script import may_restart, parts
from fleetctl.rundir.history import NOT_PERSONS, History, attempts_of
from fleetctl.rundir.model import Event, EventKind, SubmissionState
from fleetctl.rundir.store import EventLog, RunDir
from fleetctl.rundir.view import jobs_of, queue_of
from fleetctl.slurm.hosts import fold
from fleetctl.slurm.model import Job, JobId
from fleetctl.submission.decide_nodes import Need, hosts, unresponsive
from fleetctl.submission.decide_requeue import (
    Deed,
    Look,
    Past,
    Phase,
    Wanted,
    past_of,
    phase,
)
from fleetctl.submission.known import unknown_error
from fleetctl.submission.plan import Plan, recorded_plan
from fleetctl.submission.settle import check_cluster

if TYPE_CHECKING:
    from fleetctl.submission.submit import Site

_WHY = "a person asked for it"


class Brought(Struct, frozen=True):
    """What was done. `excluded_nodes` is what Slurm says now, a host list; `reason` why the job waits."""

    run_id: str
    task: int | None
    job_id: str
    deed: Deed
    submission: int
    excluded_nodes: str
    from_step: int | None
    reason: str


class Try(Struct, frozen=True):
    """One call on one run: what stays the same in it."""

    run: RunDir
    plan: Plan
    wanted: Wanted
    site: Site
    log: EventLog

    def job_id(self, history: History) -> JobId:
        assert history.job_id is not None, "it was submitted"
        whole = JobId.parse(history.job_id)
        return whole if self.wanted.task is None else msgspec.structs.replace(whole, array_index=self.wanted.task)

    def past(self, history: History) -> Past:
        job_id = "" if history.job_id is None else str(self.job_id(history))
        return past_of(self.run.events(), history, job_id, self.wanted.task)

    def brought(self, history: History, deed: Deed, jobs: tuple[Job, ...]) -> Brought:
        return Brought(
            run_id=self.run.run_id,
            task=self.wanted.task,
            job_id=str(self.job_id(history)),
            deed=deed,
            submission=history.submission,
            excluded_nodes=fold(node for job in jobs for node in hosts(job.excluded_nodes)),
            from_step=self.wanted.from_step,
            reason=next((job.reason for job in jobs if phase(job.state) is Phase.WAITS), ""),
        )


def begin(run: RunDir, wanted: Wanted, site: Site) -> Try:
    """:raises RunDirError, SpecError: the run directory, or the spec in it, cannot be read."""
    return Try(run, recorded_plan(run, run.record()), wanted, site, run.event_log(f"requeue-{site.host}"))


def settled(this: Try, history: History) -> History:
    """The history, with a submission that was open settled.

    :raises SubmissionUnknown: it stays open.
    :raises CannotTell: the run is of another cluster than the one that answers.
    """
    check_cluster(history, this.site.cluster)
    if history.state is SubmissionState.UNKNOWN:
        now = this.site.settler.settle(this.run)
        if now.doubt is not None:
            raise unknown_error(this.run, now.doubt.why)
        history = now.history
    return history


def finish_earlier(this: Try, history: History) -> bool:
    """Whether a call before this one died while it submitted the run again, as this call asks for it, and its job is
    there: it may even run already. From now on another call is another wish.
    """
    events = this.run.events()
    of_newest = [event for event in events if event.data.get("submission") == history.submission]
    kinds = {event.kind for event in of_newest}
    asked = [event.data for event in of_newest if event.kind is EventKind.REQUEUE and _is_alike(event, this.wanted)]
    if history.submission == 1 or EventKind.SUBMITTED in kinds or len(asked) != 1:
        return False
    if asked[0].get("from_step") != this.wanted.from_step or not this.wanted.exclude <= hosts(asked[0]["exclude"]):
        return False
    now = settled(this, history)
    if now.job_id is None or now.cancelled_at is not None:
        return False
    if history.state is not SubmissionState.UNKNOWN:  # else it was written when it was settled
        this.log.append(
            this.site.clock.now(),
            EventKind.SUBMITTED,
            submission=history.submission,
            job_id=now.job_id,
            how="its job claimed it",
            cluster=None,
        )
    return True


def _is_alike(event: Event, wanted: Wanted) -> bool:
    """Whether it was asked for by a person, or by the daemon, as this call is: neither finishes the other's."""
    by = event.data.get("by")
    return by == wanted.by if wanted.by in NOT_PERSONS else by not in NOT_PERSONS


def look_at(this: Try, history: History) -> Look:
    """:raises CannotTell: Slurm does not answer.
    :raises UsageError: this is a copy of a run.
    """
    past, free = this.past(history), may_restart(this.plan.spec)
    if history.job_id is None:
        return Look(history, past, None, 0, free)
    jobs, restarts, lost = rows(this, history), 0, tuple[str, ...]()
    if jobs:
        try:
            restarts = this.site.slurm.allocation(this.job_id(history)).restarts or 0
        except JobUnknown:
            jobs = ()  # it was forgotten between the two questions
    if any(phase(job.state) is Phase.LIVES for job in jobs or ()):
        of_job = [node for job in jobs or () for node in hosts(job.node_list)]
        lost = unresponsive(this.site.slurm.nodes(), of_job)
    return Look(history, past, jobs, restarts, free, lost)


def rows(this: Try, history: History) -> tuple[Job, ...] | None:
    """The rows of the run's job; none: Slurm has forgotten it; None: Slurm tells nothing of it.

    :raises UsageError: they run the script of another folder, so this one is a copy.
    """
    site, job_id = this.site, this.job_id(history)
    answer = queue_of(site.cluster, site.user, site.slurm.jobs(ids=[job_id]))
    found = jobs_of(history, str(this.run.path), answer)
    if found is None:
        return None
    if foreign := [job for job in found if not job.command.startswith(f"{this.run.path}/submissions/")]:
        raise copied(this.run, f"job {job_id} runs {foreign[0].command or 'no script'}")
    return tuple(found)


def copied(run: RunDir, evidence: str) -> UsageError:
    """The one wording for a folder that is not the run itself."""
    return UsageError(
        f"{run.path} is not the folder of this run: {evidence}",
        remedy="a copy cannot be brought back; name the folder in which it was submitted (--runs)",
    )


def needs(this: Try, look: Look) -> list[Need]:
    """What each component needs; of a job that is not there, by what the spec asks for."""
    asked = [part.resources for part in parts(this.plan.spec)]
    if look.jobs and len(look.jobs) == len(asked):
        pairs = [(job.partition, job.excluded_nodes) for job in sorted(look.jobs, key=lambda job: job.id)]
    else:
        default = ",".join(one.name for one in this.site.slurm.partitions() if one.is_default)
        pairs = [(one.partition or default, one.exclude or "") for one in asked]
    return [
        Need(
            nodes=one.nodes + one.spare_nodes,
            partitions=frozenset(filter(None, names.split(","))),
            excluded=hosts(excluded) | this.wanted.exclude,
        )
        for one, (names, excluded) in zip(asked, pairs, strict=True)
    ]


def write_wish(this: Try, history: History, submission: int) -> None:
    """:raises RunDirError: it could not be written, so nothing is done."""
    this.log.append(
        this.site.clock.now(),
        EventKind.REQUEUE,
        submission=submission,
        task=this.wanted.task,
        by=this.wanted.by or f"user {this.site.user}",
        why=this.wanted.why or _WHY,
        attempts=attempts_of(history.attempts, this.wanted.task),
        holds=history.holds.get(this.wanted.task, 0),
        from_step=this.wanted.from_step,
        exclude=fold(this.wanted.exclude),
    )
