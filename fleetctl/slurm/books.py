"""What slurmdbd keeps, and how to ask for it: the second way to Slurm, beside slurm.port, for accounting only.

Every method may raise SlurmMissing, SlurmUnreachable (nothing is known; ask later), SlurmRefused (Slurm's final word,
such as a window that is too wide) and CannotTell (a reply that cannot be read as a whole). An answer is complete or it
is an error: never fewer rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Rows(Struct, frozen=True):
    """Rows of sacct: the columns it printed, and one tuple of texts for each row, foreign bytes as surrogates.

    `unframed` are pieces of the reply that are no row of so many columns, as they came: to be kept, not dropped.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    unframed: tuple[str, ...] = ()


class Used(Struct, frozen=True):
    """One line of sreport: TRES-seconds that Slurm's own hourly roll-ups charged to an account or a user of it."""

    account: str
    user: str  # "": the account as a whole, with all below it
    tres: str
    seconds: int


class Share(Struct, frozen=True):
    """One line of sshare. None: Slurm gives none (`parent`, no multifactor priority); infinity is one."""

    account: str
    user: str  # "": the account itself
    raw_shares: int | None
    norm_shares: float | None
    raw_usage: int | None
    effective_usage: float | None
    fair_share: float | None
    level_fs: float | None


class Happened(Struct, frozen=True):
    """One line of `sacctmgr show event`; seconds since the epoch, `ended_s` None: it goes on."""

    node: str
    started_s: int
    ended_s: int | None
    state: str
    reason: str
    user: str


class Books(Protocol):
    """Slurm's accounting of one cluster. Reads only."""

    def cluster(self) -> str:
        """The name of the cluster, by its controller's configuration."""
        ...

    def tracks_gpus(self) -> bool | None:
        """Whether Slurm's accounting counts GPUs (slurm.conf.5, AccountingStorageTRES; by default it does not).

        None: not known. Where it does not, no record says that it held any.
        """
        ...

    def records(self, since_s: int, until_s: int | None) -> Rows:
        """Every record that was open or ended at or after `since_s` and was eligible before `until_s` (None: now).

        All users' as far as the caller may see them, every attempt of a job (-D), no steps, no state filter. Jobs that
        were never eligible (held since their submission) are in no window: only `records_of` shows them.
        """
        ...

    def records_of(self, job_ids: Sequence[int], since_s: int) -> Rows:
        """Every record of these jobs that ended since `since_s` or has not: of arrays and hetjobs all parts."""
        ...

    def steps(self, job_ids: Sequence[int], since_s: int) -> Rows:
        """The steps of these jobs, each under the DBIndex of its record. Their own rows are left out."""
        ...

    def alive(self) -> frozenset[int]:
        """The raw ids of the jobs that the controller runs or keeps suspended now: all of which records are shown.

        :raises CannotTell: the controller shows only the caller's own jobs, and slurmdbd everybody's records.
        """
        ...

    def waiting(self) -> int:
        """Records that slurmctld has not been able to hand to slurmdbd yet."""
        ...

    def sees_all(self, user: str) -> bool | None:
        """Whether `user` is shown everybody's records (slurmdbd.conf.5, PrivateData); None: not known."""
        ...

    def node_events(self, since_s: int) -> tuple[Happened, ...]:
        """What nodes went through since then, stretches that had begun before and still went on included."""
        ...

    def used(self, since_s: int, until_s: int, tres: str = "gres/gpu") -> tuple[Used, ...]:
        """What sreport says of this window, which must begin and end at full hours: by account and user."""
        ...

    def shares(self) -> tuple[Share, ...]:
        """Fair share of every account and user.

        :raises SlurmRefused: this cluster does not schedule by it.
        """
        ...
