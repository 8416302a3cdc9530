"""The job side: claim, start the steps, wait, write down how it ended. Runs on the first node as the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from fleetctl.clock import Clock
from fleetctl.errors import FleetctlError, JobSideError, RunDirError
from fleetctl.launch.environment import claim_attempt, rendezvous, run_environment
from fleetctl.launch.model import JobIdentity, Order, exit_status, step_nodes
from fleetctl.launch.steps import run_steps
from fleetctl.rundir.model import EventKind, finished_well
from fleetctl.rundir.store import EventLog, RunDir
from fleetctl.rundir.view import RunState
from fleetctl.spec.env_file import read_env_file

_NEEDED_WITHIN_S = 90.0  # an NFS client may show another host's new file 60 s late (nfs(5), acdirmax)
_LOOK_EVERY_S = 2.0


class World(Struct, frozen=True):
    """The edges: time, Slurm's environment, addresses, which code lies here, and whether Slurm told us to end."""

    clock: Clock
    environ: Mapping[str, str]
    address_of: Callable[[str], str]  # Slurm's host list -> address of its first node
    code: Callable[[], dict[str, object] | None]  # the git state of the working directory
    told_to_end: Callable[[], bool]
    say: Callable[[str], None]


def launch(order: Order, job: JobIdentity, world: World) -> int:
    """Run the steps once and return the exit status of the batch script.

    :raises JobSideError: this job is not the owner of its submission, the run was cancelled, or what it needs did not
        finish well.
    :raises RunDirError, UsageError, SlurmError: the run directory, the env_file or a node's address cannot be had.
    """
    run = RunDir(Path(order.run_dir))
    log = run.event_log(f"job-{job.job_id}")
    _claim(run, order.submission, job, log, world)
    code = world.code()
    try:
        environments = _ready(run, order, job, world)
        attempt = claim_attempt(run.attempts_dir(job.task))
    except FleetctlError as error:
        _note_not_started(run, order, job, log, error, world)
        raise
    facts = {"submission": order.submission, "attempt": attempt, "task": job.task, "job_id": job.job_id}
    nodes = step_nodes(world.environ, 0)
    log.append(
        world.clock.now(),
        EventKind.ATTEMPT_STARTED,
        **facts,
        host=job.host,
        nodes=nodes,
        restart_count=job.restart_count,
        code=code,
    )
    world.say(f"fleetctl: run {run.run_id}, attempt {attempt}, job {job.job_id} on {nodes}")
    own = tuple(run_environment(one, run, attempt, job) for one in environments)
    output = run.attempt_dir(attempt, job.task) / "output.log"
    codes = run_steps(order.steps, own, output, world.clock, world.say)
    status, told = exit_status(tuple(codes.values())), world.told_to_end()
    try:
        log.append(world.clock.now(), EventKind.ATTEMPT_ENDED, **facts, exit_code=status, terminated=told, steps=codes)
    except RunDirError as error:  # a full disk must not fail a training that ended well
        world.say(f"fleetctl: {error.message}")
    world.say(f"fleetctl: attempt {attempt} ended with status {status}")
    return status


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


def _ready(run: RunDir, order: Order, job: JobIdentity, world: World) -> tuple[dict[str, str], ...]:
    """The environment of each step, once everything that may keep the run from starting has been asked."""
    history = run.history()
    if history.cancelled_at is not None or history.observed_end == RunState.CANCELLED:  # and requeued since
        raise JobSideError(f"run {run.run_id} was cancelled and does not start again")
    for needed in order.needs:
        _await_needed(RunDir(Path(needed)), world)
    secrets = read_env_file(Path(order.env_file)) if order.env_file else {}
    base = {**world.environ, **secrets}  # what the env_file says wins over what the script exported
    addresses = [world.address_of(step_nodes(world.environ, index)) for index in range(len(order.steps))]
    if world.told_to_end():
        raise JobSideError(f"run {run.run_id} was told to end before its first step")
    return tuple({**base, **rendezvous(base, address)} for address in addresses)


def _await_needed(needed: RunDir, world: World) -> None:
    """Slurm started us `afterany`; whether the run before us ended well is for its own record to say."""
    deadline_s = world.clock.monotonic_s() + _NEEDED_WITHIN_S
    while (well := finished_well(needed.history())) is not True:
        if well is False or world.told_to_end() or world.clock.monotonic_s() > deadline_s:
            raise JobSideError(f"run {needed.run_id}, which this one depends on, did not finish well")
        world.clock.sleep(_LOOK_EVERY_S)


def _note_not_started(
    run: RunDir, order: Order, job: JobIdentity, log: EventLog, error: FleetctlError, world: World
) -> None:
    log.append(
        world.clock.now(),
        EventKind.NOT_STARTED,
        submission=order.submission,
        task=job.task,
        job_id=job.job_id,
        attempts=sum(attempt.task == job.task for attempt in run.history().attempts),
        exit_code=error.exit_code,
        why=error.message,
    )
