"""Cancel a run: written down first, then asked of Slurm, and only for a job that is certainly this run's."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from msgspec import Struct

from fleetctl.clock import Clock
from fleetctl.errors import CannotTell, JobUnknown
from fleetctl.rundir.history import History
from fleetctl.rundir.model import EventKind, SubmissionState, comment_of
from fleetctl.rundir.store import RunDir
from fleetctl.rundir.view import jobs_of, queue_of, view
from fleetctl.slurm.model import JobId
from fleetctl.submission.settle import check_cluster

if TYPE_CHECKING:
    from fleetctl.slurm.port import Slurm


class Cancelled(Struct, frozen=True):
    """What became of the wish."""

    run_id: str
    job_id: str | None
    cancelled: bool
    why: str


def cancel(run: RunDir, slurm: Slurm, clock: Clock, user: str, host: str) -> Cancelled:
    """Cancel the run's job. The wish is on disk before Slurm is asked, and a job that starts later obeys it.

    A submission whose fate is open is voided, and what can be found of it is cancelled as well.
    :raises CannotTell: Slurm does not answer, or can say nothing of this run; the wish holds.
    :raises SlurmRefused: Slurm will not (somebody else's job).
    """
    history = run.history()
    wished = history.cancelled_at is not None
    given_up = history.state is SubmissionState.VOIDED and wished
    if history.state not in (SubmissionState.SUBMITTED, SubmissionState.UNKNOWN) and not given_up:
        return Cancelled(run.run_id, None, False, "was never submitted")
    log = run.event_log(f"cancel-{host}")
    if not wished:
        log.append(clock.now(), EventKind.CANCEL, submission=history.submission, by=user)
    number = history.submission
    if history.state is SubmissionState.UNKNOWN and run.claim(number, None, None, host, clock.now()):
        log.append(clock.now(), EventKind.VOIDED, submission=number)  # its job ends itself whenever it starts
    cluster = slurm.config().get("ClusterName", "")
    check_cluster(history, cluster)
    history = run.history()
    if history.job_id is None:
        return _cancel_open(run, history, slurm)
    return _cancel_known(run, history, history.job_id, slurm, cluster, user)


def _cancel_known(run: RunDir, history: History, job_id: str, slurm: Slurm, cluster: str, user: str) -> Cancelled:
    jobs = jobs_of(history, str(run.path), queue_of(cluster, user, slurm.jobs(ids=[JobId.parse(job_id)])))
    if jobs is None:
        raise CannotTell(f"Slurm does not show {user} the jobs of {history.record.user}; the wish is written down")
    state = view(history, None, jobs).state
    if not jobs or state.is_finished:
        return Cancelled(run.run_id, job_id, False, f"has no job in Slurm any more: {state}")
    try:
        slurm.cancel(JobId.parse(job_id))
    except JobUnknown:
        return Cancelled(run.run_id, job_id, False, f"job {job_id} has ended already")
    return Cancelled(run.run_id, job_id, True, f"job {job_id} cancelled")


def _cancel_open(run: RunDir, history: History, slurm: Slurm) -> Cancelled:
    """The submission is void; end what of it is in the queue."""
    comment, script = comment_of(run.run_id, history.submission), str(run.script(history.submission))
    jobs = slurm.jobs(user=history.record.user)
    ours = [job for job in jobs if job.comment == comment and job.command == script and not job.state.is_terminal]
    found = sorted({job.id.base for job in ours})
    for base in found:
        with contextlib.suppress(JobUnknown):
            slurm.cancel(JobId(base))
    if found:
        return Cancelled(run.run_id, str(found[0]), True, f"job {', '.join(map(str, found))} cancelled")
    return Cancelled(run.run_id, None, True, "given up: no job is found; should one appear, it ends itself")
