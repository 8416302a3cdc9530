"""The one way to Slurm: domain verbs, each with its contract.

Every method may raise SlurmMissing (no Slurm commands here), and SlurmUnreachable (nothing is known; ask later).
A reply that cannot be read raises CannotTell. An empty result always means that Slurm answered and there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from fleetctl.slurm.model import AdminLevel, Job, JobId, JobRecord, Node, Partition, SubmitAnswer


class Slurm(Protocol):
    """A Slurm cluster. Reads may be repeated at will; `submit` may not."""

    def version(self) -> str:
        """The version of the commands on this machine, such as `22.05.8`. Contacts no daemon."""
        ...

    def ping(self) -> None:
        """Returns when a controller answers.

        :raises SlurmUnreachable: none does.
        """
        ...

    def submit(
        self, script: Path, *, stdout: Path, stderr: Path, cwd: Path, extra_args: Sequence[str] = ()
    ) -> SubmitAnswer:
        """Submit `script` once, from `cwd`; **not** idempotent, never repeated by a wrapper.

        What the submitting command printed is written to `stdout` and `stderr` as it comes, which must not exist yet:
        `parse.classify_submit` can read them again after our own death. The job inherits the caller's environment
        without the variables of another Slurm job. Every outcome is a value: a time-out is Unknown, not an error.
        """
        ...

    def jobs(self, *, user: str | None = None, ids: Sequence[JobId] = ()) -> tuple[Job, ...]:
        """The controller's jobs, ended ones included until it forgets them (MinJobAge), in one query.

        With `ids`, only those: an array's or hetjob's id means all of it; an id that Slurm does not know is absent.
        With `user`, only that user's.
        :raises SlurmRefused: for one, no such user.
        """
        ...

    def history(self, *, since: datetime, user: str | None = None, ids: Sequence[JobId] = ()) -> tuple[JobRecord, ...]:
        """Accounting records of jobs in any state since `since`: one per run, so a requeued job has several.

        Without `user`, of every user that the caller may see.
        :raises SlurmRefused: this cluster keeps no accounting, or no such user.
        """
        ...

    def nodes(self) -> tuple[Node, ...]:
        """Every node, hidden partitions' included."""
        ...

    def address(self, node: str) -> str:
        """The name or address at which `node` is reached (slurm.conf.5, NodeAddr).

        :raises SlurmRefused: no such node.
        """
        ...

    def partitions(self) -> tuple[Partition, ...]:
        """Every partition, hidden ones included."""
        ...

    def config(self) -> Mapping[str, str]:
        """The controller's configuration, names as in slurm.conf; a setting that is not set is an empty text."""
        ...

    def admin_level(self, user: str) -> AdminLevel:
        """What accounting lets `user` do; NONE also for a user that it does not have.

        :raises SlurmRefused: this cluster keeps no accounting.
        """
        ...

    def cancel(self, job_id: JobId) -> None:
        """Ask for the end of a job, an array element or a whole hetjob. Idempotent; returns before the job ended.

        :raises JobUnknown: Slurm does not know it, or it has ended already: nothing was cancelled.
        :raises SlurmRefused: not the caller's job, or one component of a pending hetjob.
        """
        ...
