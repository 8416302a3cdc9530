"""The job side: claim the run, then lead its attempts. Runs on the first node as the user."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fleetctl.errors import FleetctlError, JobSideError
from fleetctl.launch.head import Head
from fleetctl.launch.lead import Lead, World
from fleetctl.launch.model import JobIdentity, Order, step_nodes
from fleetctl.launch.take_over import take_over
from fleetctl.launch.watching import BATCH_ENVIRON, KEY, NodeWatch
from fleetctl.launch.words import heed
from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.history import History, attempts_of, finished_well
from fleetctl.rundir.model import AttemptNumber, EventKind
from fleetctl.rundir.store import EventLog, RunDir
from fleetctl.rundir.view import RunState
from fleetctl.slurm.hosts import expand
from fleetctl.spec.env_file import read_env_file

_NEEDED_WITHIN_S = 90.0  # an NFS client may show another host's new file 60 s late (nfs(5), acdirmax)
_LOOK_EVERY_S = 2.0


def launch(order: Order, job: JobIdentity, world: World) -> int:
    """Lead the run's job and return the exit status of the batch script.

    :raises JobSideError: this job is not the owner of its submission, the run was cancelled or is held, or what it
        needs did not finish well.
    :raises RunDirError, UsageError, SlurmError: the run directory, the env_file or a node's address cannot be had.
    """
    began_s = world.clock.monotonic_s()
    run = RunDir(Path(order.run_dir))
    log = run.event_log(f"job-{job.job_id}")
    attempts = Attempts(run.attempts_dir(job.task))
    if order.take_over is not None:
        return take_over(Lead(run, order, job, log, attempts, (), world, None), lambda: _environments(order, world))
    _claim(run, order.submission, job, log, world)
    history = run.history()
    before = attempts_of(history.attempts, job.task)
    try:
        _check(history, order, job)
        heed(run, order, job, log, world, history)
        for needed in order.needs:
            _await_needed(RunDir(Path(needed)), world)
        lead = Lead(run, order, job, log, attempts, _environments(order, world), world, began_s)
        if world.told_to_end():
            raise JobSideError(f"run {run.run_id} was told to end before its first step")
        number = attempts.claim_next(now=world.clock.now(), host=job.host)
        return _lead(lead, number, "requeued" if job.restart_count else "submitted")
    except FleetctlError as error:
        if attempts_of(run.history().attempts, job.task) == before:
            _note_not_started(before, order, job, log, error, world)
        raise


def _lead(lead: Lead, number: AttemptNumber, why: str) -> int:
    nodes = expand(step_nodes(lead.world.environ, 0)) if lead.order.nodes else ()
    return Head(lead, NodeWatch(lead, nodes, number), nodes).begin(number, why)


def _claim(run: RunDir, submission: int, job: JobIdentity, log: EventLog, world: World) -> None:
    """The first job to claim a submission owns it for ever; the same job may come back (requeue, array element)."""
    now = world.clock.now()
    if run.claim(submission, job.owner, job.cluster, job.host, now):
        log.append(now, EventKind.CLAIMED, submission=submission, job_id=job.owner)
        return
    owner = run.read_claim(submission)
    if owner is not None and (owner.job_id, owner.cluster) == (job.owner, job.cluster):
        return
    whose = f"job {owner.job_id} owns it" if owner and owner.job_id else "it was given up before this job started"
    log.append(now, EventKind.DUPLICATE, submission=submission, job_id=job.job_id)
    raise JobSideError(f"run {run.run_id}: this job ({job.job_id}) is a duplicate and ends: {whose}")


def _check(history: History, order: Order, job: JobIdentity) -> None:
    """Everything in its record that keeps a run from starting."""
    run_id = history.record.run_id
    if history.cancelled_at is not None or history.observed_end == RunState.CANCELLED:  # and requeued since
        raise JobSideError(f"run {run_id} was cancelled and does not start again")
    if history.submission > order.submission:
        raise JobSideError(f"run {run_id} was submitted again: this job is of submission {order.submission}")
    if job.task in history.held:
        raise JobSideError(f"run {run_id} is held: {history.held[job.task]}", remedy=f"`fleetctl requeue {run_id}`")


def _environments(order: Order, world: World) -> tuple[Mapping[str, str], ...]:
    """What each step gets from outside; what the env_file says wins over what the script exported."""
    secrets = read_env_file(Path(order.env_file)) if order.env_file else {}
    own = {name: value for name, value in world.environ.items() if name not in (KEY, BATCH_ENVIRON)}
    return ({**own, **secrets},) * len(order.steps)


def _await_needed(needed: RunDir, world: World) -> None:
    """Slurm started us `afterany`; whether the run before us ended well is for its own record to say."""
    deadline_s = world.clock.monotonic_s() + _NEEDED_WITHIN_S
    while (well := finished_well(needed.history())) is not True:
        if well is False or world.told_to_end() or world.clock.monotonic_s() > deadline_s:
            raise JobSideError(f"run {needed.run_id}, which this one depends on, did not finish well")
        world.clock.sleep(_LOOK_EVERY_S)


def _note_not_started(
    attempts: int, order: Order, job: JobIdentity, log: EventLog, error: FleetctlError, world: World
) -> None:
    log.append(
        world.clock.now(),
        EventKind.NOT_STARTED,
        submission=order.submission,
        task=job.task,
        job_id=job.job_id,
        attempts=attempts,
        exit_code=error.exit_code,
        why=error.message,
    )
