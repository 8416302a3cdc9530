"""Cancel a run: written down first, then asked of Slurm, and only for a job that is certainly this run's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from fleetctl.clock import Clock
from fleetctl.errors import JobUnknown, SubmissionUnknown
from fleetctl.rundir.model import EventKind, SubmissionState
from fleetctl.rundir.store import RunDir
from fleetctl.rundir.view import own_jobs, view
from fleetctl.slurm.model import JobId

if TYPE_CHECKING:
    from fleetctl.slurm.port import Slurm


class Cancelled(Struct, frozen=True):
    """What became of the wish."""

    run_id: str
    job_id: str | None
    cancelled: bool
    why: str


def cancel(run: RunDir, slurm: Slurm, clock: Clock, host: str, user: str) -> Cancelled:
    """Cancel the run's job.

    A submission whose fate is open is voided: should its job appear after all, it ends itself at its start.
    :raises SlurmUnreachable: nothing is known, and nothing was cancelled in Slurm; the wish is written down.
    :raises SlurmRefused: Slurm will not (somebody else's job).
    """
    history = run.history()
    if history.state in (SubmissionState.REFUSED, SubmissionState.VOIDED, SubmissionState.NONE):
        return Cancelled(run.run_id, None, False, "was never submitted")
    if history.job_id is not None:
        jobs = own_jobs(history, str(run.path), slurm.jobs(ids=[JobId.parse(history.job_id)]))
        state = view(history, None, jobs).state
        if state.is_finished:
            return Cancelled(run.run_id, history.job_id, False, f"has ended already: {state.value}")
    log = run.event_log(f"cancel-{host}")
    log.append(clock.now(), EventKind.CANCEL, submission=history.submission, by=user)
    if history.job_id is None:
        if run.claim(history.submission, None, None, host, clock.now()):
            log.append(clock.now(), EventKind.VOIDED, submission=history.submission)
            return Cancelled(run.run_id, None, True, "will not start; whether a job exists is not known")
        history = run.history()  # its job started just now
    if history.job_id is None:
        raise SubmissionUnknown(f"run {run.run_id}: its job is not known", remedy=f"fleetctl resolve {run.run_id}")
    try:
        slurm.cancel(JobId.parse(history.job_id))
    except JobUnknown:
        return Cancelled(run.run_id, history.job_id, False, f"job {history.job_id} has ended already")
    return Cancelled(run.run_id, history.job_id, True, f"job {history.job_id} cancelled")
