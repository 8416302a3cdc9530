"""The Slurm commands, read as text with explicit formats: the adapter that works on every site."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fleetctl import process
from fleetctl.errors import CannotTell, JobUnknown, SlurmMissing, SlurmRefused, SlurmUnreachable
from fleetctl.slurm.allocation import Allocation, Step
from fleetctl.slurm.commands import REMEDY, Commands, Limits
from fleetctl.slurm.model import AdminLevel, Job, JobId, JobRecord, Node, Partition, Reservation, SubmitAnswer
from fleetctl.slurm.parse import classify_submit, command_error, one_line, parse_config, parse_reservations

_NODES_BY_NAME = 1000  # more are picked out of all nodes: one argument of a program holds 128 KiB (execve(2))


class TextSlurm:
    """Slurm by its commands; see slurm.port.Slurm for the contracts."""

    def __init__(self, environ: Mapping[str, str], limits: Limits = Limits()) -> None:
        self._commands = Commands(environ, limits)

    def version(self) -> str:
        said = self._commands.run(("sbatch", "--version"), self._commands.limits.query_s)
        return said.stdout.split()[-1] if said.stdout.split() else ""

    def ping(self) -> None:
        self._commands.query("scontrol", "ping")

    def submit(
        self, script: Path, *, stdout: Path, stderr: Path, cwd: Path, extra_args: Sequence[str] = ()
    ) -> SubmitAnswer:
        if not self._commands.is_installed("sbatch"):
            raise SlurmMissing("sbatch is not on PATH", remedy=REMEDY)
        # `timeout` bounds it even when we are dead; --parsable is unknown to some sites' wrappers (dask-jobqueue#227).
        argv = ("timeout", "--signal=KILL", str(self._commands.limits.submit_s), "sbatch", *extra_args, str(script))
        returncode = process.run_into_files(
            argv, stdout=stdout, stderr=stderr, env=self._commands.submit_environ, cwd=cwd
        )
        return classify_submit(returncode, _read(stdout), _read(stderr))

    def jobs(self, *, user: str | None = None, ids: Sequence[JobId] = ()) -> tuple[Job, ...]:
        from fleetctl.slurm import rows  # a submit reads no rows

        mark = _mark()
        argv = ["--noheader", "--all", "--states=all", f"--format={mark.join(rows.SQUEUE_FIELDS)}"]
        argv += [f"--user={user}"] if user is not None else []
        argv += [f"--jobs={','.join(sorted({str(wanted.base) for wanted in ids}))}"] if ids else []
        try:
            said = self._commands.query("squeue", *argv)
        except JobUnknown:  # squeue -j of one unknown id has status 1; of two unknown ids, status 0 and no rows
            return ()
        if "Invalid user" in said.stderr:  # status 0, and no rows
            raise SlurmRefused(said.returncode, one_line(said.stderr))
        found = rows.parse_squeue(said.stdout, mark)
        return _only(found, ids) if ids else found

    def starts(self, *, user: str | None = None) -> tuple[Job, ...]:
        from fleetctl.slurm import rows

        mark = _mark()
        argv = ["--noheader", "--all", "--states=all", _format(rows.RESTART_FIELDS, mark)]
        argv += [f"--user={user}"] if user is not None else []
        restarts = rows.parse_restarts(self._commands.query("squeue", *argv).stdout, mark)
        return tuple(rows.with_restarts(job, restarts) for job in self.jobs(user=user))

    def history(self, *, since: datetime, user: str | None = None, ids: Sequence[JobId] = ()) -> tuple[JobRecord, ...]:
        from fleetctl.slurm import rows

        mark = _mark()
        start = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")  # read by sacct in TZ, which is UTC here
        argv = ["--noheader", "--allocations", "--duplicates", "--parsable2", f"--delimiter={mark}", "--noconvert"]
        argv += [f"--starttime={start}", f"--format={','.join(rows.SACCT_FIELDS)}"]
        argv += [f"--user={user}"] if user is not None else ["--allusers"]
        argv += [f"--jobs={','.join(sorted({str(wanted.base) for wanted in ids}))}"] if ids else []
        said = self._commands.query("sacct", *argv, timeout_s=self._commands.limits.accounting_s)
        if "accounting storage is disabled" in said.stderr or "Invalid user" in said.stderr:
            raise SlurmRefused(said.returncode, one_line(said.stderr))
        return rows.parse_sacct(said.stdout, mark)

    def nodes(self) -> tuple[Node, ...]:
        from fleetctl.slurm import rows

        mark = _mark()
        said = self._commands.query(
            "sinfo", "--noheader", "--all", "--noconvert", "--Node", _format(rows.SINFO_NODE_FIELDS, mark)
        )
        return rows.parse_sinfo_nodes(said.stdout, mark)

    def address(self, node: str) -> str:
        said = self._commands.query(
            "sinfo", "--noheader", "--all", "--noconvert", "--Node", f"--nodes={node}", "--format=%o"
        )
        if not said.stdout.strip():  # status 0 for an unknown node
            raise SlurmRefused(said.returncode, one_line(said.stderr) or f"no node {node}")
        return said.stdout.split()[0]

    def partitions(self) -> tuple[Partition, ...]:
        from fleetctl.slurm import rows

        mark = _mark()
        said = self._commands.query(
            "sinfo", "--noheader", "--all", "--noconvert", f"--format={mark.join(rows.SINFO_PARTITION_FIELDS)}"
        )
        return rows.parse_sinfo_partitions(said.stdout, mark)

    def reservations(self) -> tuple[Reservation, ...]:
        return parse_reservations(self._commands.query("scontrol", "--all", "--oneliner", "show", "reservation").stdout)

    def config(self) -> Mapping[str, str]:
        return parse_config(self._commands.query("scontrol", "show", "config").stdout)

    def admin_level(self, user: str) -> AdminLevel:
        argv = ("sacctmgr", "--noheader", "--parsable2", "show", "user", f"name={user}", "format=AdminLevel")
        said = self._commands.query(*argv, timeout_s=self._commands.limits.accounting_s)
        if "not running a supported accounting_storage plugin" in said.stderr:
            raise SlurmRefused(said.returncode, one_line(said.stderr))
        words = said.stdout.split()
        return AdminLevel(words[0]) if words and words[0] in set(AdminLevel) else AdminLevel.NONE

    def cancel(self, job_id: JobId) -> None:
        # Without -v an unknown job is silent and has status 0.
        said = self._commands.query("scancel", "--verbose", str(job_id))
        error = command_error(said.returncode, said.stdout, said.stderr)
        if isinstance(error, JobUnknown | SlurmUnreachable):
            raise error

    def allocation(self, job_id: JobId) -> Allocation:
        from fleetctl.slurm import running

        mark = _mark()
        argv = ["--noheader", "--all", "--states=all", f"--jobs={job_id.base}"]
        try:
            said = self._commands.query("squeue", *argv, _format(running.ALLOCATION_FIELDS, mark))
        except JobUnknown as error:
            raise JobUnknown(f"Slurm does not know this job: {job_id}") from error
        row = running.find_allocation(said.stdout, mark, job_id)
        shown = ""
        if running.has_nodes(row):  # only scontrol knows the GPUs that a job really has
            argv = ["show", "job", running.single_id(row), "--details", "--oneliner"]
            shown = self._commands.query("scontrol", *argv).stdout
        return running.parse_allocation(row, shown)

    def gpus(self, job: Job) -> int | None:
        from fleetctl.slurm import running

        if not job.node_list:
            return None
        argv = ["show", "job", str(job.id), "--details", "--oneliner"]
        return running.gpus_of(job, self._commands.query("scontrol", *argv).stdout)

    def steps(self, job_id: JobId) -> tuple[Step, ...]:
        from fleetctl.slurm import running

        asked = str(job_id)
        if job_id.het_offset is not None:  # squeue would answer with the leader's steps
            asked = str(self.allocation(job_id).raw_id)
        mark = _mark()
        argv = ["--noheader", "--all", "--steps", f"--jobs={asked}", _format(running.STEP_FIELDS, mark)]
        return running.parse_steps(self._commands.query("squeue", *argv).stdout, mark)

    def endpoints(self, nodes: Sequence[str]) -> Mapping[str, tuple[str, int]]:
        from fleetctl.slurm import running

        if not nodes:
            return {}
        mark = _mark()
        names = [f"--nodes={','.join(nodes)}"] if len(nodes) <= _NODES_BY_NAME else []
        argv = ["--noheader", "--all", "--noconvert", "--Node", *names, _format(running.ENDPOINT_FIELDS, mark)]
        said = self._commands.query("sinfo", *argv)
        found = running.parse_endpoints(said.stdout, mark, nodes)
        if missing := sorted(set(nodes) - set(found)):  # status 0, and no row
            raise SlurmRefused(said.returncode, one_line(said.stderr) or f"no node {', '.join(missing[:5])}")
        return found

    def requeue(self, job_id: JobId) -> None:
        self._commands.query("scontrol", "requeue", "Incomplete", str(job_id))

    def requeue_ended(self, job_id: JobId) -> None:
        self._commands.query("scontrol", "requeue", str(job_id))

    def set_excluded(self, job_id: JobId, nodes: str) -> None:
        self._commands.query("scontrol", "update", f"JobId={job_id}", f"ExcNodeList={nodes}")

    def start_now(self, job_id: JobId) -> None:
        self._commands.query("scontrol", "update", f"JobId={job_id}", "StartTime=now")

    def drain(self, node: str, reason: str) -> None:
        self._commands.query("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def down(self, node: str, reason: str) -> None:
        self._commands.query("scontrol", "update", f"NodeName={node}", "State=DOWN", f"Reason={reason}")

    def resume(self, node: str) -> None:
        self._commands.query("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def kill_step(self, step_id: str) -> None:
        from fleetctl.slurm import running

        # Not --signal=KILL: scancel would ask each node by itself, 6 s when one is dead, and the srun would not end.
        said = self._commands.run(("scancel", running.check_step_id(step_id)), self._commands.limits.query_s)
        if said.returncode != 0:  # the low byte of Slurm's errno, such as 225: no signal
            raise command_error(min(said.returncode, 1), said.stdout, said.stderr)


def _format(fields: Sequence[str], mark: str) -> str:
    """`--Format` with the mark after every field but the last: `Name:MARK` sets no width, so that nothing is cut."""
    return f"--Format={','.join(f'{name}:{mark}' for name in fields[:-1])},{fields[-1]}:"


def _only(jobs: Sequence[Job], ids: Sequence[JobId]) -> tuple[Job, ...]:
    """squeue answers `-j 4+1` with the whole hetjob, even for a component that it has not."""
    by_base: dict[int, list[JobId]] = {}
    for wanted in ids:
        by_base.setdefault(wanted.base, []).append(wanted)
    return tuple(
        job
        for job in jobs
        if any(job.is_part_of(wanted) for base in {job.id.base, job.raw_id} for wanted in by_base.get(base, ()))
    )


def _mark() -> str:
    """A separator that no text in the reply can contain: nobody knew it when the text was written."""
    return f"\x1f{os.urandom(4).hex()}\x1f"


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise CannotTell(f"{path}: what sbatch said cannot be read: {error.strerror}") from None
