"""What a lookup says about a submission whose answer was lost. Pure.

Invariant: `Absent` is only said when no job of this submission can appear any more; the caller then voids the claim
before anything else, so that even a job that appears against all rules ends itself at its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from fleetctl.rundir.history import History
from fleetctl.rundir.model import comment_of
from fleetctl.slurm.model import SBATCH_LIMIT_S, Job


class Policy(Struct, frozen=True):
    """How long to wait before an absent job counts as never submitted."""

    message_timeout_s: float  # slurm.conf.5, MessageTimeout
    sbatch_limit_s: float = SBATCH_LIMIT_S

    @property
    def safe_after_s(self) -> float:
        """After the intent: sbatch is dead, and what it sent last has been answered or dropped."""
        return self.sbatch_limit_s + self.message_timeout_s


class Found(Struct, frozen=True):
    """Exactly one job is this submission."""

    job_id: str


class Absent(Struct, frozen=True):
    """The job does not exist and never will."""


class StillUnknown(Struct, frozen=True):
    """No conclusion. `absent` tells whether this lookup counts as one that did not find the job."""

    why: str
    absent: bool
    until: datetime | None = None  # when asking again may settle it; None: waiting alone will not


Verdict = Found | Absent | StillUnknown


def judge(
    history: History, jobs: Sequence[Job], looked_at: datetime, script: str, comments_proved: bool, policy: Policy
) -> Verdict:
    """Judge one answered lookup that started at `looked_at`; `script` is the path that sbatch was given.

    Two answered lookups must miss the job, the second at least MessageTimeout after the first and after sbatch's
    own limit: a lookup right after a killed sbatch misses a job that then appears (11 of 12, Slurm 22.05.8).
    """
    comment = comment_of(history.record.run_id, history.submission)
    candidates = [job for job in jobs if job.comment == comment and job.user == history.record.user]
    ours = sorted({str(job.id.base) for job in candidates if job.command == script})
    if len(ours) == 1:
        return Found(ours[0])
    if ours:
        return StillUnknown(f"jobs {', '.join(ours)} all run its script; the first to start will own it", False)
    if alike := [job for job in candidates if job.name == history.record.name]:
        ids = ", ".join(sorted(str(job.id.base) for job in alike))
        return StillUnknown(f"job {ids} has its comment and name but another script", False)
    if not comments_proved and not any(job.comment.startswith("fleetctl:") for job in jobs):
        why = "it is not proved that lookups on this cluster show comments; `fleetctl cluster probe` proves it"
        return StillUnknown(why, False)
    return _absent_or_later(history, looked_at, policy)


def _absent_or_later(history: History, looked_at: datetime, policy: Policy) -> Verdict:
    assert history.intent_at is not None, "a submission without intent is never looked up"
    safe_at = history.intent_at + timedelta(seconds=policy.safe_after_s)
    between = timedelta(seconds=policy.message_timeout_s)
    if history.absent_lookups and looked_at >= max(safe_at, history.absent_lookups[0] + between):
        return Absent()
    first = history.absent_lookups[0] if history.absent_lookups else looked_at
    return StillUnknown("no lookup found it so far", True, until=max(safe_at, first + between))
