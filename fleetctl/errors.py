"""Every error that fleetctl raises on purpose, and the exit code of each family.

    FleetctlError                 1   the run, or what was asked, failed
      UsageError                  2   what the user wrote is wrong; nothing was done
        SpecError                 2   every problem of one spec file
      CannotTell                  3   the truth is not known now; asking later may tell
        SlurmUnreachable          3   the controller did not answer
        SubmissionUnknown         3   a submission may or may not have become a job
        LeaseLost                 3   another recovery daemon may lead by now
      SlurmError                 10
        SlurmRefused             10   Slurm answered no, in its own words
        SlurmMissing             10   the Slurm commands are not installed here
        JobUnknown               10   Slurm does not know (or no longer knows) this job
      NoValidCheckpoint          11   checkpoints were looked at, and none is valid
      RunDirError                12   the run directory is missing, full, read-only or not ours
        RunUnknown               12   no such run
      SandboxError               13   the sandbox cannot start, or a part of it died
      JobSideError               14   the batch script may not go on (a duplicate, a failed dependency)
      InstallError               15   a node was not installed, or not rolled back
        SshError                 15   a node cannot be reached, or its SSH server said no
          HostKeyRefused         15   a node's host key is not known, or is another than the one noted
      DatabaseError              16   the accounting database cannot be opened, read or written
        SchemaMismatch           16   its schema is older or newer than this fleetctl
        DatabaseBusy             16   another sync or upgrade works on it
      ProgramMissing              1   a program is not installed
      ProcessTimeout              1   a program did not end in time and was killed

A message is one line; a remedy says what to do. 130 stands for Ctrl-C.
"""

from __future__ import annotations


class FleetctlError(Exception):
    """Root of all errors that are reported without a traceback."""

    exit_code = 1

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class UsageError(FleetctlError):
    """What the user wrote cannot be done; nothing was changed."""

    exit_code = 2


class SpecError(UsageError):
    """Every problem of one spec file, each a `file:line:col: path: expected` line."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class CannotTell(FleetctlError):
    """The answer is not known now: neither yes nor no."""

    exit_code = 3


class SlurmUnreachable(CannotTell):
    """The controller did not answer in time; nothing follows about jobs."""


class SubmissionUnknown(CannotTell):
    """A submission may or may not have become a job."""


class LeaseLost(CannotTell):
    """This recovery daemon leads no more: another one may act."""


class SlurmError(FleetctlError):
    """Slurm answered, and the answer is final."""

    exit_code = 10


class SlurmRefused(SlurmError):
    """Slurm said no; `code` is the command's exit status, `text` its own words."""

    def __init__(self, code: int, text: str, *, remedy: str | None = None) -> None:
        super().__init__(f"Slurm refused: {text}", remedy=remedy)
        self.code = code
        self.text = text


class SlurmMissing(SlurmError):
    """A Slurm command is not installed or not on PATH."""


class JobUnknown(SlurmError):
    """The controller does not know this job (any more)."""


class NoValidCheckpoint(FleetctlError):
    """No checkpoint that was looked at is valid."""

    exit_code = 11


class RunDirError(FleetctlError):
    """The run directory cannot be used."""

    exit_code = 12


class RunUnknown(RunDirError):
    """No run of this name exists under the run root."""


class SandboxError(FleetctlError):
    """The sandbox cannot start, or a part of it died."""

    exit_code = 13


class JobSideError(FleetctlError):
    """The batch script must end itself: it is a duplicate, or what it depends on failed."""

    exit_code = 14


class InstallError(FleetctlError):
    """A node was not installed, or not rolled back; what it had is still there."""

    exit_code = 15


class SshError(InstallError):
    """A node cannot be reached by SSH, or its server said no."""


class HostKeyRefused(SshError):
    """A node's host key is not known, or is another than the one that was noted."""


class DatabaseError(FleetctlError):
    """The accounting database cannot be opened, read or written."""

    exit_code = 16


class SchemaMismatch(DatabaseError):
    """The database's schema is not the one that this fleetctl reads and writes."""


class DatabaseBusy(DatabaseError):
    """Another sync or upgrade works on the database."""


class ProgramMissing(FleetctlError):
    """A program is not installed, or not on PATH."""


class ProcessTimeout(FleetctlError):
    """A program did not end in time and was killed, its whole session with it."""


INTERRUPTED_EXIT_CODE = 130  # 128 + SIGINT, the shell's convention


def exit_codes() -> tuple[tuple[int, str, str], ...]:
    """The one table of exit codes: (code, error name, first sentence of its docstring), by code, roots first."""
    rows: list[tuple[int, str, str]] = []
    todo: list[type[FleetctlError]] = [FleetctlError]
    while todo:
        cls = todo.pop(0)
        rows.append((cls.exit_code, cls.__name__, (cls.__doc__ or "").splitlines()[0]))
        todo.extend(cls.__subclasses__())
    return tuple(sorted(rows, key=lambda row: row[0]))
