"""How the job side gives its run up, for a while or until a person says so. Each deed is an event before it is done."""

from __future__ import annotations

from collections.abc import Callable

from fleetctl.errors import FleetctlError, SlurmUnreachable
from fleetctl.launch.lead import Lead
from fleetctl.rundir.history import BY_JOB, attempts_of
from fleetctl.rundir.model import AttemptNumber, EventKind, attempt_name

_ASK_AGAIN_S = 10.0
_TRIES = 3  # of a requeue that Slurm accepts and does not do
_SEEN_WITHIN_S = 30.0
_POLL_S = 1.0


def hold(lead: Lead, why: str) -> None:
    """Nothing restarts the run from now on until `fleetctl requeue`: whatever Slurm or an admin starts ends itself.

    :raises RunDirError: it could not be written down.
    """
    lead.log.append(
        lead.world.clock.now(),
        EventKind.HELD,
        submission=lead.order.submission,
        task=lead.job.task,
        attempts=_attempts(lead),
        why=why,
    )
    lead.world.say(f"fleetctl: the run is held: {why} (`fleetctl requeue {lead.run.run_id}` starts it again)")


def requeue(lead: Lead, number: AttemptNumber, why: str) -> bool:
    """Ask Slurm to end this job and start it again, and see that it does; false: it will not.

    `Incomplete` does nothing to a job that was cancelled meanwhile, with status 0: so Restarts is what counts.

    :raises RunDirError: it could not be written down, so it was not done.
    """
    lead.log.append(
        lead.world.clock.now(),
        EventKind.REQUEUE,
        submission=lead.order.submission,
        task=lead.job.task,
        by=BY_JOB,
        why=why,
        attempts=_attempts(lead),
        from_step=None,
        exclude="",
        holds=0,
    )
    lead.world.say(f"fleetctl: this job requeues itself: {why}")
    for _ in range(_TRIES):
        if not _ask(lead, lambda: lead.world.slurm.requeue(lead.job_id)):
            return False
        if _was_requeued(lead):
            lead.note(EventKind.REQUEUED, number, restarts=lead.job.restart_count + 1)
            return True
    return False


def _ask(lead: Lead, deed: Callable[[], None]) -> bool:
    """Ask until Slurm has answered: a controller that is away enforces no limit either. False: it refused, or we were
    told to end."""
    while not lead.world.told_to_end():
        try:
            deed()
        except SlurmUnreachable as error:
            lead.world.say(f"fleetctl: {error.message}; asking again")
            lead.world.clock.sleep(_ASK_AGAIN_S)
        except FleetctlError as error:
            lead.world.say(f"fleetctl: {error.message}")
            return False
        else:
            return True
    return False


def _was_requeued(lead: Lead) -> bool:
    """Slurm ends this very process soon after; being told to end is the other sign."""
    deadline_s = lead.world.clock.monotonic_s() + _SEEN_WITHIN_S
    while lead.world.clock.monotonic_s() < deadline_s:
        found = lead.ask(lambda: lead.world.slurm.allocation(lead.raw_job_id))
        if found is not None and (found.restarts or 0) > lead.job.restart_count:
            return True
        lead.world.clock.sleep(_POLL_S)
    return False


def give_back(lead: Lead, number: AttemptNumber, why: str) -> None:
    """Cancel our own job, whose batch script died with its host: nothing else would end it before its time limit.

    :raises RunDirError: it could not be written down, so it was not done.
    """
    lead.log.append(
        lead.world.clock.now(),
        EventKind.GIVEN_BACK,
        submission=lead.order.submission,
        attempt=attempt_name(number),
        task=lead.job.task,
        attempts=_attempts(lead),
        why=why,
    )
    lead.world.say(f"fleetctl: this job is given back: {why}")
    _ask(lead, lambda: lead.world.slurm.cancel(lead.job_id))


def _attempts(lead: Lead) -> int:
    """How many attempts this task has had: what a reader compares, since clocks may differ."""
    return attempts_of(lead.run.history().attempts, lead.job.task)
