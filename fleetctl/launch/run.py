"""The job side: claim, start the steps, wait, write down how it ended. Runs on the first node as the user."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

from msgspec import Struct

from fleetctl import process
from fleetctl.clock import Clock
from fleetctl.errors import FleetctlError, JobSideError, ProgramMissing
from fleetctl.launch.code import code_state
from fleetctl.launch.environment import claim_attempt, rendezvous, run_environment
from fleetctl.launch.model import JobIdentity, Order, Step, exit_status, step_nodes
from fleetctl.rundir.model import EventKind, finished_well
from fleetctl.rundir.store import EventLog, RunDir
from fleetctl.spec.env_file import read_env_file

_POLL_S = 0.2
_KILL_AFTER_S = 30.0  # slurm.conf.5, KillWait: what Slurm itself grants between TERM and KILL
_NOT_FOUND = 127  # the shell's status for a command that does not exist
_NEEDED_WITHIN_S = 90.0  # an NFS client may show another host's new file 60 s late (nfs(5), acdirmax)


class World(Struct, frozen=True):
    """The edges: time, Slurm's environment, and the address of a node's name."""

    clock: Clock
    environ: Mapping[str, str]
    address_of: Callable[[str], str]  # Slurm's host list -> address of its first node
    say: Callable[[str], None]


def launch(order: Order, job: JobIdentity, world: World) -> int:
    """Run the steps once and return the exit status of the batch script.

    :raises JobSideError: this job is not the owner of its submission, or what it needs did not finish well.
    :raises RunDirError, UsageError: the run directory or the env_file cannot be used.
    """
    run = RunDir(Path(order.run_dir))
    log = run.event_log(f"job-{job.job_id}")
    _claim(run, order.submission, job, log, world)
    try:
        for needed in order.needs:
            _await_needed(RunDir(Path(needed)), world.clock)
        secrets = read_env_file(Path(order.env_file)) if order.env_file else {}
    except FleetctlError as error:
        log.append(
            world.clock.now(),
            EventKind.NOT_STARTED,
            submission=order.submission,
            job_id=job.job_id,
            exit_code=error.exit_code,
            why=error.message,
        )
        raise
    attempt = claim_attempt(run.attempts_dir(job.task))
    facts = {"submission": order.submission, "attempt": attempt, "task": job.task, "job_id": job.job_id}
    nodes = step_nodes(world.environ, 0)
    log.append(
        world.clock.now(),
        EventKind.ATTEMPT_STARTED,
        **facts,
        host=job.host,
        nodes=nodes,
        restart_count=job.restart_count,
        code=code_state(Path.cwd(), world.environ),
    )
    world.say(f"fleetctl: run {run.run_id}, attempt {attempt}, job {job.job_id} on {nodes}")
    environment = run_environment(world.environ, run, attempt, job, secrets)
    codes, terminated = _run_steps(order.steps, environment, run.attempt_dir(attempt, job.task) / "output.log", world)
    status = exit_status(tuple(codes.values()))
    log.append(
        world.clock.now(), EventKind.ATTEMPT_ENDED, **facts, exit_code=status, terminated=terminated, steps=codes
    )
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


def _await_needed(needed: RunDir, clock: Clock) -> None:
    """Slurm started us `afterany`; whether the run before us ended well is for its own record to say."""
    deadline = clock.monotonic_s() + _NEEDED_WITHIN_S
    while (well := finished_well(needed.history())) is not True:
        if well is False or clock.monotonic_s() > deadline:
            raise JobSideError(f"run {needed.run_id}, which this one depends on, did not finish well")
        clock.sleep(_POLL_S * 10)


def _run_steps(
    steps: tuple[Step, ...], environment: Mapping[str, str], output: Path, world: World
) -> tuple[dict[str, int], bool]:
    """Start all steps, wait for all; the first that fails ends the others. Returns status by name, and whether we
    were told to end (Slurm sends TERM to our whole process group: cancel, time limit, preemption)."""
    told: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        told.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        children = {
            step.name: _start(
                step,
                {**environment, **rendezvous(environment, world.address_of(step_nodes(environment, index)))},
                output,
                world.say,
            )
            for index, step in enumerate(steps)
        }
        codes = _wait(children, world.clock)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return codes, bool(told)


def _start(
    step: Step, environment: Mapping[str, str], output: Path, say: Callable[[str], None]
) -> process.Child[bytes] | None:
    """The child stays in our process group, so that what Slurm sends to the batch script reaches it too."""
    try:
        return process.start(step.argv, env=environment, log=output, session=False)
    except ProgramMissing as error:
        say(f"fleetctl: step {step.name}: {error.message}")
        return None


def _wait(children: Mapping[str, process.Child[bytes] | None], clock: Clock) -> dict[str, int]:
    kill_at: float | None = None
    while True:
        codes = {name: child.poll() if child else _NOT_FOUND for name, child in children.items()}
        running = [child for name, child in children.items() if child and codes[name] is None]
        if not running:
            return {name: code for name, code in codes.items() if code is not None}
        if kill_at is None and any(codes.values()):
            kill_at = clock.monotonic_s() + _KILL_AFTER_S
            for child in running:
                child.terminate()
        elif kill_at is not None and clock.monotonic_s() > kill_at:
            for child in running:
                child.kill()
        clock.sleep(_POLL_S)
