"""Runs the Slurm commands: in which environment, for how long, and what it means when they fail."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from fleetctl import process
from fleetctl.errors import ProcessTimeout, ProgramMissing, SlurmMissing, SlurmUnreachable
from fleetctl.slurm.model import SBATCH_LIMIT_S
from fleetctl.slurm.parse import command_error

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

REMEDY = "load the site's Slurm module, or go to a login node"


class Limits(Struct, frozen=True):
    """How long a command may take, in seconds."""

    submit_s: int = SBATCH_LIMIT_S
    query_s: float = 60.0  # a hung controller makes squeue give up by itself after 20 s (2 x MessageTimeout)
    accounting_s: float = 120.0


class Commands:
    """The Slurm commands of one machine, for one cluster."""

    def __init__(self, environ: Mapping[str, str], limits: Limits) -> None:
        self.submit_environ = scrubbed(environ)
        self.limits = limits
        self._query_environ = self.submit_environ | _QUERY_ENVIRON

    def query(self, *argv: str, timeout_s: float | None = None) -> process.Completed:
        """What a command said that ended with status 0.

        :raises SlurmError: Slurm said no; which one, parse.command_error tells.
        :raises SlurmUnreachable: it did not answer.
        """
        said = self.run(argv, timeout_s or self.limits.query_s)
        if said.returncode != 0:
            raise command_error(said.returncode, said.stdout, said.stderr)
        return said

    def run(self, argv: Sequence[str], timeout_s: float) -> process.Completed:
        """A command's end, whatever its status.

        :raises SlurmUnreachable: it did not end in time.
        :raises SlurmMissing: there is no such command, or SLURM_CONF names no file.
        """
        self._check_conf()
        try:
            return process.run(argv, timeout_s=timeout_s, env=self._query_environ)
        except ProcessTimeout as error:
            raise SlurmUnreachable(f"Slurm does not answer: {error}") from None
        except ProgramMissing as error:
            raise SlurmMissing(str(error), remedy=REMEDY) from None

    def is_installed(self, command: str) -> bool:
        return any(os.access(Path(folder, command), os.X_OK) for folder in os.get_exec_path(self.submit_environ))

    def _check_conf(self) -> None:
        """Slurm's commands try for 60 s to read a configuration that is not there."""
        conf = self._query_environ.get("SLURM_CONF")
        if conf and not Path(conf).exists():
            raise SlurmMissing(f"SLURM_CONF names {conf}, which does not exist", remedy="unset it, or mend its path")


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what belongs to another Slurm job, or would change what a Slurm command does."""
    return {name: value for name, value in environ.items() if name in _KEPT or not name.startswith(_SCRUBBED)}
