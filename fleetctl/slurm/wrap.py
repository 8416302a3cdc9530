"""Wrappers of the port, one concern each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fleetctl.clock import Clock
from fleetctl.errors import FleetctlError, SlurmUnreachable
from fleetctl.slurm.allocation import Allocation, Step
from fleetctl.slurm.model import AdminLevel, Job, JobId, JobRecord, Node, Partition, Reservation, SubmitAnswer

if TYPE_CHECKING:
    from fleetctl.slurm.port import Slurm

Value = TypeVar("Value")


class Retrying:
    """Tries reads again while Slurm is unreachable. Never `submit`, nor what changes a job."""

    def __init__(self, slurm: Slurm, clock: Clock, attempts: int = 2, pause_s: float = 1.0) -> None:
        self._slurm = slurm
        self._clock = clock
        self._attempts = attempts
        self._pause_s = pause_s

    def version(self) -> str:
        return self._slurm.version()

    def ping(self) -> None:
        self._again(self._slurm.ping)

    def submit(
        self, script: Path, *, stdout: Path, stderr: Path, cwd: Path, extra_args: Sequence[str] = ()
    ) -> SubmitAnswer:
        return self._slurm.submit(script, stdout=stdout, stderr=stderr, cwd=cwd, extra_args=extra_args)

    def jobs(self, *, user: str | None = None, ids: Sequence[JobId] = ()) -> tuple[Job, ...]:
        return self._again(lambda: self._slurm.jobs(user=user, ids=ids))

    def starts(self, *, user: str | None = None) -> tuple[Job, ...]:
        return self._again(lambda: self._slurm.starts(user=user))

    def history(self, *, since: datetime, user: str | None = None, ids: Sequence[JobId] = ()) -> tuple[JobRecord, ...]:
        return self._again(lambda: self._slurm.history(since=since, user=user, ids=ids))

    def nodes(self) -> tuple[Node, ...]:
        return self._again(self._slurm.nodes)

    def address(self, node: str) -> str:
        return self._again(lambda: self._slurm.address(node))

    def partitions(self) -> tuple[Partition, ...]:
        return self._again(self._slurm.partitions)

    def reservations(self) -> tuple[Reservation, ...]:
        return self._again(self._slurm.reservations)

    def config(self) -> Mapping[str, str]:
        return self._again(self._slurm.config)

    def admin_level(self, user: str) -> AdminLevel:
        return self._again(lambda: self._slurm.admin_level(user))

    def cancel(self, job_id: JobId) -> None:
        self._slurm.cancel(job_id)

    def allocation(self, job_id: JobId) -> Allocation:
        return self._again(lambda: self._slurm.allocation(job_id))

    def gpus(self, job: Job) -> int | None:
        return self._again(lambda: self._slurm.gpus(job))

    def steps(self, job_id: JobId) -> tuple[Step, ...]:
        return self._again(lambda: self._slurm.steps(job_id))

    def endpoints(self, nodes: Sequence[str]) -> Mapping[str, tuple[str, int]]:
        return self._again(lambda: self._slurm.endpoints(nodes))

    def requeue(self, job_id: JobId) -> None:
        self._slurm.requeue(job_id)

    def requeue_ended(self, job_id: JobId) -> None:
        self._slurm.requeue_ended(job_id)

    def set_excluded(self, job_id: JobId, nodes: str) -> None:
        self._slurm.set_excluded(job_id, nodes)

    def start_now(self, job_id: JobId) -> None:
        self._slurm.start_now(job_id)

    def drain(self, node: str, reason: str) -> None:
        self._slurm.drain(node, reason)

    def down(self, node: str, reason: str) -> None:
        self._slurm.down(node, reason)

    def resume(self, node: str) -> None:
        self._slurm.resume(node)

    def kill_step(self, step_id: str) -> None:
        self._slurm.kill_step(step_id)

    def _again(self, call: Callable[[], Value]) -> Value:
        for _ in range(self._attempts - 1):
            try:
                return call()
            except SlurmUnreachable:
                self._clock.sleep(self._pause_s)
        return call()


def timed(
    what: str, call: Callable[[], Value], show: Callable[[Value], str], log: Callable[[str], None], clock: Clock
) -> Value:
    """The value of `call`, and one line about it, whatever came of it."""
    began_s = clock.monotonic_s()
    outcome = "interrupted"
    try:
        value = call()
        outcome = show(value)
        return value
    except FleetctlError as error:
        outcome = f"{type(error).__name__}: {error.message}"
        raise
    finally:
        log(f"{what} -> {outcome} ({(clock.monotonic_s() - began_s) * 1000:.0f} ms)")


class Logged:
    """Writes one line per call: the verb, what came back in short, and how long it took."""

    def __init__(self, slurm: Slurm, log: Callable[[str], None], clock: Clock) -> None:
        self._slurm = slurm
        self._log = log
        self._clock = clock

    def version(self) -> str:
        return self._timed("version", self._slurm.version, str)

    def ping(self) -> None:
        self._timed("ping", self._slurm.ping, lambda _: "up")

    def submit(
        self, script: Path, *, stdout: Path, stderr: Path, cwd: Path, extra_args: Sequence[str] = ()
    ) -> SubmitAnswer:
        return self._timed(
            f"submit script={script}",
            lambda: self._slurm.submit(script, stdout=stdout, stderr=stderr, cwd=cwd, extra_args=extra_args),
            repr,
        )

    def jobs(self, *, user: str | None = None, ids: Sequence[JobId] = ()) -> tuple[Job, ...]:
        what = f"jobs user={user or '-'} ids={','.join(map(str, ids)) or '-'}"
        return self._timed(what, lambda: self._slurm.jobs(user=user, ids=ids), _rows)

    def starts(self, *, user: str | None = None) -> tuple[Job, ...]:
        return self._timed(f"starts user={user or '-'}", lambda: self._slurm.starts(user=user), _rows)

    def history(self, *, since: datetime, user: str | None = None, ids: Sequence[JobId] = ()) -> tuple[JobRecord, ...]:
        what = f"history since={since.isoformat()} user={user or '-'} ids={','.join(map(str, ids)) or '-'}"
        return self._timed(what, lambda: self._slurm.history(since=since, user=user, ids=ids), _rows)

    def nodes(self) -> tuple[Node, ...]:
        return self._timed("nodes", self._slurm.nodes, _rows)

    def address(self, node: str) -> str:
        return self._timed(f"address node={node}", lambda: self._slurm.address(node), str)

    def partitions(self) -> tuple[Partition, ...]:
        return self._timed("partitions", self._slurm.partitions, _rows)

    def reservations(self) -> tuple[Reservation, ...]:
        return self._timed("reservations", self._slurm.reservations, _rows)

    def config(self) -> Mapping[str, str]:
        return self._timed("config", self._slurm.config, lambda found: f"{len(found)} settings")

    def admin_level(self, user: str) -> AdminLevel:
        return self._timed(f"admin_level user={user}", lambda: self._slurm.admin_level(user), str)

    def cancel(self, job_id: JobId) -> None:
        self._timed(f"cancel job={job_id}", lambda: self._slurm.cancel(job_id), _asked)

    def allocation(self, job_id: JobId) -> Allocation:
        return self._timed(f"allocation job={job_id}", lambda: self._slurm.allocation(job_id), repr)

    def gpus(self, job: Job) -> int | None:
        return self._timed(f"gpus job={job.id}", lambda: self._slurm.gpus(job), str)

    def steps(self, job_id: JobId) -> tuple[Step, ...]:
        return self._timed(f"steps job={job_id}", lambda: self._slurm.steps(job_id), _rows)

    def endpoints(self, nodes: Sequence[str]) -> Mapping[str, tuple[str, int]]:
        what = f"endpoints nodes={len(nodes)}"
        return self._timed(what, lambda: self._slurm.endpoints(nodes), lambda found: f"{len(found)} nodes")

    def requeue(self, job_id: JobId) -> None:
        self._timed(f"requeue job={job_id}", lambda: self._slurm.requeue(job_id), _asked)

    def requeue_ended(self, job_id: JobId) -> None:
        self._timed(f"requeue_ended job={job_id}", lambda: self._slurm.requeue_ended(job_id), _asked)

    def set_excluded(self, job_id: JobId, nodes: str) -> None:
        what = f"set_excluded job={job_id} nodes={nodes or '-'}"
        self._timed(what, lambda: self._slurm.set_excluded(job_id, nodes), _asked)

    def start_now(self, job_id: JobId) -> None:
        self._timed(f"start_now job={job_id}", lambda: self._slurm.start_now(job_id), _asked)

    def drain(self, node: str, reason: str) -> None:
        self._timed(f"drain node={node} reason={reason!r}", lambda: self._slurm.drain(node, reason), _asked)

    def down(self, node: str, reason: str) -> None:
        self._timed(f"down node={node} reason={reason!r}", lambda: self._slurm.down(node, reason), _asked)

    def resume(self, node: str) -> None:
        self._timed(f"resume node={node}", lambda: self._slurm.resume(node), _asked)

    def kill_step(self, step_id: str) -> None:
        self._timed(f"kill_step step={step_id}", lambda: self._slurm.kill_step(step_id), _asked)

    def _timed(self, what: str, call: Callable[[], Value], show: Callable[[Value], str]) -> Value:
        return timed(f"slurm {what}", call, show, self._log, self._clock)


def _rows(found: Sequence[object]) -> str:
    return f"{len(found)} rows"


def _asked(_: None) -> str:
    return "asked"
