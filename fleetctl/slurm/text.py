"""The Slurm commands, read as text with explicit formats: the adapter that works on every site."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from fleetctl import process
from fleetctl.errors import (
    CannotTell,
    JobUnknown,
    ProcessTimeout,
    ProgramMissing,
    SlurmMissing,
    SlurmRefused,
    SlurmUnreachable,
)
from fleetctl.slurm.model import SBATCH_LIMIT_S, AdminLevel, Job, JobId, JobRecord, Node, Partition, SubmitAnswer
from fleetctl.slurm.parse import classify_submit, command_error, one_line, parse_config

# Kept although they begin with SLURM_: they say which cluster, and who we are there.
_KEPT = frozenset({"SLURM_CONF", "SLURM_JWT"})
# Of another job, or options of a command in disguise: an inherited SLURM_CPUS_PER_TASK ends srun, SBATCH_* beats the
# script's directives, SQUEUE_FORMAT and SACCT_FORMAT change what we read (environment sections of the man pages).
_SCRUBBED = (
    "SLURM_",
    "SLURMD_",
    "PMI",
    "SBATCH_",
    "SQUEUE_",
    "SACCT_",
    "SINFO_",
    "SCANCEL_",
    "SCONTROL_",
    "SALLOC_",
    "SRUN_",
)
# Epoch seconds: the same instant in every time zone, and no hour that occurs twice in autumn (strftime(3), %s).
_QUERY_ENVIRON = {"LC_ALL": "C", "TZ": "UTC0", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}

_REMEDY = "load the site's Slurm module, or go to a login node"


class Limits(Struct, frozen=True):
    """How long a command may take, in seconds."""

    submit_s: int = SBATCH_LIMIT_S
    query_s: float = 60.0  # a hung controller makes squeue give up by itself after 20 s (2 x MessageTimeout)
    accounting_s: float = 120.0


class TextSlurm:
    """Slurm by its commands; see slurm.port.Slurm for the contracts."""

    def __init__(self, environ: Mapping[str, str], limits: Limits = Limits()) -> None:
        self._submit_environ = scrubbed(environ)
        self._query_environ = self._submit_environ | _QUERY_ENVIRON
        self._limits = limits

    def version(self) -> str:
        said = self._run(("sbatch", "--version"), self._limits.query_s)
        return said.stdout.split()[-1] if said.stdout.split() else ""

    def ping(self) -> None:
        self._query("scontrol", "ping")

    def submit(
        self, script: Path, *, stdout: Path, stderr: Path, cwd: Path, extra_args: Sequence[str] = ()
    ) -> SubmitAnswer:
        if not _installed("sbatch", self._submit_environ):
            raise SlurmMissing("sbatch is not on PATH", remedy=_REMEDY)
        # `timeout` bounds it even when we are dead; --parsable is unknown to some sites' wrappers (dask-jobqueue#227).
        argv = ("timeout", "--signal=KILL", str(self._limits.submit_s), "sbatch", *extra_args, str(script))
        returncode = process.run_into_files(argv, stdout=stdout, stderr=stderr, env=self._submit_environ, cwd=cwd)
        return classify_submit(returncode, _read(stdout), _read(stderr))

    def jobs(self, *, user: str | None = None, ids: Sequence[JobId] = ()) -> tuple[Job, ...]:
        from fleetctl.slurm import rows  # a submit reads no rows

        mark = _mark()
        argv = ["--noheader", "--all", "--states=all", f"--format={mark.join(rows.SQUEUE_FIELDS)}"]
        argv += [f"--user={user}"] if user is not None else []
        argv += [f"--jobs={','.join(sorted({str(wanted.base) for wanted in ids}))}"] if ids else []
        try:
            said = self._query("squeue", *argv)
        except JobUnknown:  # squeue -j of one unknown id has status 1; of two unknown ids, status 0 and no rows
            return ()
        if "Invalid user" in said.stderr:  # status 0, and no rows
            raise SlurmRefused(said.returncode, one_line(said.stderr))
        found = rows.parse_squeue(said.stdout, mark)
        return _only(found, ids) if ids else found

    def history(self, *, since: datetime, user: str | None = None, ids: Sequence[JobId] = ()) -> tuple[JobRecord, ...]:
        from fleetctl.slurm import rows

        mark = _mark()
        start = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")  # read by sacct in TZ, which is UTC here
        argv = ["--noheader", "--allocations", "--duplicates", "--parsable2", f"--delimiter={mark}", "--noconvert"]
        argv += [f"--starttime={start}", f"--format={','.join(rows.SACCT_FIELDS)}"]
        argv += [f"--user={user}"] if user is not None else ["--allusers"]
        argv += [f"--jobs={','.join(sorted({str(wanted.base) for wanted in ids}))}"] if ids else []
        said = self._query("sacct", *argv, timeout_s=self._limits.accounting_s)
        if "accounting storage is disabled" in said.stderr or "Invalid user" in said.stderr:
            raise SlurmRefused(said.returncode, one_line(said.stderr))
        return rows.parse_sacct(said.stdout, mark)

    def nodes(self) -> tuple[Node, ...]:
        from fleetctl.slurm import rows

        mark = _mark()
        fields = ",".join(f"{name}:{mark}" for name in rows.SINFO_NODE_FIELDS[:-1]) + f",{rows.SINFO_NODE_FIELDS[-1]}:"
        said = self._query("sinfo", "--noheader", "--all", "--Node", f"--Format={fields}")
        return rows.parse_sinfo_nodes(said.stdout, mark)

    def address(self, node: str) -> str:
        said = self._query("sinfo", "--noheader", "--all", "--Node", f"--nodes={node}", "--format=%o")
        if not said.stdout.strip():  # status 0 for an unknown node
            raise SlurmRefused(said.returncode, one_line(said.stderr) or f"no node {node}")
        return said.stdout.split()[0]

    def partitions(self) -> tuple[Partition, ...]:
        from fleetctl.slurm import rows

        mark = _mark()
        said = self._query("sinfo", "--noheader", "--all", f"--format={mark.join(rows.SINFO_PARTITION_FIELDS)}")
        return rows.parse_sinfo_partitions(said.stdout, mark)

    def config(self) -> Mapping[str, str]:
        return parse_config(self._query("scontrol", "show", "config").stdout)

    def admin_level(self, user: str) -> AdminLevel:
        argv = ("sacctmgr", "--noheader", "--parsable2", "show", "user", f"name={user}", "format=AdminLevel")
        said = self._query(*argv, timeout_s=self._limits.accounting_s)
        if "not running a supported accounting_storage plugin" in said.stderr:
            raise SlurmRefused(said.returncode, one_line(said.stderr))
        words = said.stdout.split()
        return AdminLevel(words[0]) if words and words[0] in set(AdminLevel) else AdminLevel.NONE

    def cancel(self, job_id: JobId) -> None:
        # Without -v an unknown job is silent and has status 0.
        said = self._query("scancel", "--verbose", str(job_id))
        error = command_error(said.returncode, said.stdout, said.stderr)
        if isinstance(error, JobUnknown | SlurmUnreachable):
            raise error

    def _query(self, *argv: str, timeout_s: float | None = None) -> process.Completed:
        said = self._run(argv, timeout_s or self._limits.query_s)
        if said.returncode != 0:
            raise command_error(said.returncode, said.stdout, said.stderr)
        return said

    def _run(self, argv: Sequence[str], timeout_s: float) -> process.Completed:
        self._check_conf()
        try:
            return process.run(argv, timeout_s=timeout_s, env=self._query_environ)
        except ProcessTimeout as error:
            raise SlurmUnreachable(f"Slurm does not answer: {error}") from None
        except ProgramMissing as error:
            raise SlurmMissing(str(error), remedy=_REMEDY) from None

    def _check_conf(self) -> None:
        """Slurm's commands try for 60 s to read a configuration that is not there."""
        conf = self._query_environ.get("SLURM_CONF")
        if conf and not Path(conf).exists():
            raise SlurmMissing(f"SLURM_CONF names {conf}, which does not exist", remedy="unset it, or mend its path")


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what belongs to another Slurm job, or would change what a Slurm command does."""
    return {name: value for name, value in environ.items() if name in _KEPT or not name.startswith(_SCRUBBED)}


def _installed(command: str, environ: Mapping[str, str]) -> bool:
    return any(os.access(Path(folder, command), os.X_OK) for folder in os.get_exec_path(environ))


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
