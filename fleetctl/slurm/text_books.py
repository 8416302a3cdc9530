"""slurmdbd by the Slurm commands, read as text; see slurm.books.Books for the contracts."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence

from fleetctl.errors import CannotTell, SlurmRefused
from fleetctl.slurm import books_parse
from fleetctl.slurm.books import Happened, Rows, Share, Used
from fleetctl.slurm.commands import Commands, Limits
from fleetctl.slurm.framing import frame
from fleetctl.slurm.model import AdminLevel
from fleetctl.slurm.parse import command_error, parse_config
from fleetctl.slurm.sacct_fields import NEWER_RECORD_FIELDS, NEWER_STEP_FIELDS, RECORD_FIELDS, STEP_FIELDS, offered

# `utsN` is epoch seconds (parse_time.c, undocumented since 18.08, and free of time zones). With fewer digits it is
# "Invalid time specification" (seen on 22.05.8).
_LEAST_UTS = 1_000_000
_ALIVE = "RUNNING,SUSPENDED,CONFIGURING,RESIZING,STOPPED,SIGNALING"  # squeue.1: a flag hides the base state


class TextBooks:
    """The accounting of the cluster that `environ` points to."""

    def __init__(self, environ: Mapping[str, str], limits: Limits = Limits()) -> None:
        self._commands = Commands(environ, limits)
        self._known: frozenset[str] | None = None  # of sacct: it never changes while we run

    def cluster(self) -> str:
        name = parse_config(self._ask("scontrol", "show", "config")).get("ClusterName", "")
        if not name:
            raise CannotTell("scontrol show config: the reply names no ClusterName")
        return name

    def tracks_gpus(self) -> bool | None:
        config = parse_config(self._ask("scontrol", "show", "config"))
        return books_parse.tracks_gpus(config.get("AccountingStorageTRES"))

    def records(self, since_s: int, until_s: int | None) -> Rows:
        end = [] if until_s is None else [f"--endtime={_uts(until_s)}"]
        return self._sacct(
            self._columns(RECORD_FIELDS, NEWER_RECORD_FIELDS), "--allocations", f"--starttime={_uts(since_s)}", *end
        )

    def records_of(self, job_ids: Sequence[int], since_s: int) -> Rows:
        columns = self._columns(RECORD_FIELDS, NEWER_RECORD_FIELDS)
        return self._sacct_of(columns, job_ids, since_s, "--allocations") if job_ids else Rows(columns, ())

    def steps(self, job_ids: Sequence[int], since_s: int) -> Rows:
        columns = self._columns(STEP_FIELDS, NEWER_STEP_FIELDS)
        found = self._sacct_of(columns, job_ids, since_s) if job_ids else Rows(columns, ())
        return Rows(columns, tuple(row for row in found.rows if "." in row[-1]), found.unframed)

    def alive(self) -> frozenset[int]:
        if self._hides_running():
            raise CannotTell("squeue shows only your own jobs (PrivateData in slurm.conf), and sacct everybody's")
        return books_parse.parse_ids(self._ask("squeue", "--noheader", "--all", f"--states={_ALIVE}", "--format=%A"))

    def waiting(self) -> int:
        return books_parse.parse_waiting(self._ask("sdiag"))

    def sees_all(self, user: str) -> bool | None:
        try:
            said = self._ask("sacctmgr", "show", "configuration")
            hides = books_parse.hides_jobs(said)
            if not hides:  # slurmdbd says it, or says nothing of it
                return hides if hides is None else True
            return self._is_operator(said, user)
        except SlurmRefused:
            return None

    def node_events(self, since_s: int) -> tuple[Happened, ...]:
        argv = ("--noheader", "--parsable2", "show", "event", "event=node", f"start={_uts(since_s)}")
        return books_parse.parse_events(self._ask("sacctmgr", *argv, f"format={','.join(books_parse.EVENT_FIELDS)}"))

    def used(self, since_s: int, until_s: int, tres: str = "gres/gpu") -> tuple[Used, ...]:
        argv = ["--noheader", "--parsable2", "-t", "Seconds", f"--tres={tres}", "cluster", "AccountUtilizationByUser"]
        argv += [f"start={_uts(since_s)}", f"end={_uts(until_s)}", f"format={','.join(books_parse.USED_FIELDS)}"]
        return books_parse.parse_used(self._ask("sreport", *argv))

    def shares(self) -> tuple[Share, ...]:
        priority = parse_config(self._ask("scontrol", "show", "config")).get("PriorityType", "")
        if priority != "priority/multifactor":
            raise SlurmRefused(0, f"this cluster has PriorityType={priority}, and no fair share")
        argv = ("--noheader", "--parsable2", "--all", f"--format={','.join(books_parse.SHARE_FIELDS)}")
        return books_parse.parse_shares(self._ask("sshare", *argv))

    def _hides_running(self) -> bool:
        """Whether slurmctld keeps jobs from us of which slurmdbd shows the records: each has a PrivateData of its own.

        Where both hide them, what is shown is all that matters here.
        """
        config = parse_config(self._ask("scontrol", "show", "config"))
        if not books_parse.names_jobs(config.get("PrivateData", "")):
            return False
        said = self._ask("sacctmgr", "show", "configuration")
        return not books_parse.hides_jobs(said) and not self._is_operator(said, _own_name())

    def _is_operator(self, configuration: str, user: str) -> bool:
        if books_parse.is_slurm_user(configuration, user):
            return True
        argv = ("--noheader", "--parsable2", "show", "user", f"name={user}", "format=AdminLevel")
        return self._ask("sacctmgr", *argv).strip() in {AdminLevel.OPERATOR, AdminLevel.ADMINISTRATOR}

    def _columns(self, fields: tuple[str, ...], newer: tuple[str, ...]) -> tuple[str, ...]:
        if self._known is None:
            self._known = frozenset(self._ask("sacct", "--helpformat").split())
        return offered(fields, newer, self._known)

    def _sacct_of(self, columns: tuple[str, ...], job_ids: Sequence[int], since_s: int, *options: str) -> Rows:
        ids = ",".join(map(str, sorted(set(job_ids))))
        return self._sacct(columns, *options, f"--jobs={ids}", f"--starttime={_uts(since_s)}")

    def _sacct(self, columns: tuple[str, ...], *options: str) -> Rows:
        """Never with --state: it would turn the time window into another one (sacct.1, --state)."""
        mark = f"\x1f{os.urandom(4).hex()}\x1f"  # nobody knew it when the texts in the reply were written
        argv = ("--allusers", "--duplicates", "--local", "--noconvert", "--parsable2", f"--delimiter={mark}")
        found = frame(self._ask("sacct", *argv, *options, f"--format={','.join(columns)}"), mark)
        if found.columns != columns:
            raise CannotTell(f"sacct was asked for {','.join(columns)} and printed {','.join(found.columns)}")
        return found

    def _ask(self, command: str, *argv: str) -> str:
        """What a command printed that ended with status 0 and had nothing to complain about.

        sacct prints its header before it asks slurmdbd, and before 23.11.4 it had status 0 when that failed.
        """
        limits = self._commands.limits
        timeout_s = limits.accounting_s if command in {"sacct", "sacctmgr", "sreport"} else limits.query_s
        said = self._commands.query(command, *argv, timeout_s=timeout_s)
        if said.stderr.strip():
            raise command_error(said.returncode, "", said.stderr)
        return said.stdout


def _own_name() -> str:
    """As whom Slurm takes us; a uid that has no name here is its number."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _uts(second: int) -> str:
    return f"uts{max(second, _LEAST_UTS)}"
