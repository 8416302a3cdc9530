"""Cancel a run: written down first, then asked of Slurm, and only for a job that is certainly this run's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from fleetctl.clock import Clock
from fleetctl.errors import JobUnknown
from fleetctl.rundir.model import EventKind, History, SubmissionState, comment_of
from fleetctl.rundir.store import EventLog, RunDir
from fleetctl.rundir.view import jobs_of, queue_of, view
from fleetctl.slurm.model import JobId
from fleetctl.submission.settle import check_cluster

if TYPE_CHECKING:
    from fleetctl.slurm.port import Slurm


class Who(Struct, frozen=True):
    """Who cancels, from where, on which cluster."""

    user: str
    host: str
    cluster: str


class Cancelled(Struct, frozen=True):
    """What became of the wish."""

    run_id: str
    job_id: str | None
    cancelled: bool
    why: str


def cancel(run: RunDir, slurm: Slurm, clock: Clock, who: Who) -> Cancelled:
    """Cancel the run's job. The wish is on disk before Slurm is asked, and a job that starts later obeys it.

    A submission whose fate is open is voided, and what can be found of it is cancelled as well.
    :raises CannotTell: Slurm does not answer, or this is not the run's cluster; a wish that could be written holds.
    :raises SlurmRefused: Slurm will not (somebody else's job).
    """
    history = run.history()
    wished = history.cancelled_at is not None
    given_up = history.state is SubmissionState.VOIDED and wished
    if history.state not in (SubmissionState.SUBMITTED, SubmissionState.UNKNOWN) and not given_up:
        return Cancelled(run.run_id, None, False, "was never submitted")
    check_cluster(history, who.cluster)
    if view(history, None, None).state.is_finished and not given_up:
        return Cancelled(run.run_id, history.job_id, False, f"has ended already: {view(history, None, None).state}")
    log = run.event_log(f"cancel-{who.host}")
    if not wished:
        log.append(clock.now(), EventKind.CANCEL, submission=history.submission, by=who.user)
    if history.job_id is None:
        return _cancel_open(run, history, slurm, clock, who, log)
    return _cancel_known(run, history.job_id, slurm, who)


def _cancel_known(run: RunDir, job_id: str, slurm: Slurm, who: Who) -> Cancelled:
    history = run.history()
    queue = queue_of(who.cluster, who.user, slurm.jobs(ids=[JobId.parse(job_id)]))
    jobs = jobs_of(history, str(run.path), queue)
    state = view(history, None, jobs).state
    if not jobs or state.is_finished:
        return Cancelled(run.run_id, job_id, False, f"has no job in Slurm any more: {state}")
    try:
        slurm.cancel(JobId.parse(job_id))
    except JobUnknown:
        return Cancelled(run.run_id, job_id, False, f"job {job_id} has ended already")
    return Cancelled(run.run_id, job_id, True, f"job {job_id} cancelled")


def _cancel_open(run: RunDir, history: History, slurm: Slurm, clock: Clock, who: Who, log: EventLog) -> Cancelled:
    """Void the submission first, so that its job ends itself whenever it starts; then end what is in the queue."""
    number = history.submission
    if history.state is SubmissionState.UNKNOWN and run.claim(number, None, None, who.host, clock.now()):
        log.append(clock.now(), EventKind.VOIDED, submission=number)
    if (job_id := run.history().job_id) is not None:  # its job started just now
        return _cancel_known(run, job_id, slurm, who)
    comment, script = comment_of(run.run_id, number), str(run.script(number))
    found = sorted(
        {job.id.base for job in slurm.jobs(user=who.user) if job.comment == comment and job.command == script}
    )
    for base in found:
        slurm.cancel(JobId(base))
    if found:
        return Cancelled(run.run_id, str(found[0]), True, f"job {', '.join(map(str, found))} cancelled")
    return Cancelled(run.run_id, None, True, "given up: no job is found; should one appear, it ends itself")
