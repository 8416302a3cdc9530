"""Find out what became of a submission whose answer was lost, and write it down. Never guesses."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec import Struct

from fleetctl.clock import Clock
from fleetctl.errors import CannotTell
from fleetctl.rundir.history import History
from fleetctl.rundir.model import EventKind, SubmissionState
from fleetctl.rundir.store import RunDir
from fleetctl.slurm.model import Accepted, Refused
from fleetctl.slurm.parse import classify_submit
from fleetctl.submission.decide import Absent, Found, Policy, StillUnknown, judge

if TYPE_CHECKING:
    from fleetctl.slurm.port import Slurm


def check_cluster(history: History, cluster: str) -> None:
    """:raises CannotTell: the run was submitted to another cluster than the one that we can ask."""
    if history.cluster != cluster:
        raise CannotTell(
            f"run {history.record.run_id} is on cluster {history.cluster}, and this is {cluster}",
            remedy="point SLURM_CONF at its cluster",
        )


class Settled(Struct, frozen=True):
    """The run's history after a look; `doubt` says what is missing while the submission stays open."""

    history: History
    doubt: StillUnknown | None = None


class Settler(Struct, frozen=True):
    """What it takes to look: Slurm, time, and whether this cluster's lookups were proved to show comments."""

    slurm: Slurm
    clock: Clock
    host: str
    cluster: str
    comments_proved: bool
    policy: Policy

    def settle(self, run: RunDir) -> Settled:
        """Look once and record what was learnt; the state stays UNKNOWN while there is any doubt.

        :raises SlurmUnreachable: the controller did not answer, so nothing was learnt.
        :raises CannotTell: the run belongs to another cluster, so this one has nothing to say.
        """
        history = run.history()
        if history.state is not SubmissionState.UNKNOWN:
            return Settled(history)
        check_cluster(history, self.cluster)
        log = run.event_log(f"settle-{self.host}")
        number = history.submission
        match self._late_answer(run, history):
            case Accepted(job_id):
                how = "sbatch's answer, read later"
                log.append(
                    self.clock.now(),
                    EventKind.SUBMITTED,
                    submission=number,
                    job_id=str(job_id),
                    how=how,
                    cluster=job_id.cluster,
                )
                return Settled(run.history())
            case Refused(code, text):
                log.append(self.clock.now(), EventKind.REFUSED, submission=number, code=code, text=text)
                return Settled(run.history())
        looked_at = self.clock.now()
        jobs = self.slurm.jobs(user=history.record.user)
        verdict = judge(history, jobs, looked_at, str(run.script(number)), self.comments_proved, self.policy)
        match verdict:
            case Found(found):
                log.append(looked_at, EventKind.SUBMITTED, submission=number, job_id=found, how="found by its comment")
            case Absent():
                if run.claim(number, None, None, self.host, self.clock.now()):
                    log.append(looked_at, EventKind.VOIDED, submission=number)
            case StillUnknown(_, absent):
                if absent and not history.absent_lookups:
                    log.append(looked_at, EventKind.LOOKUP_ABSENT, submission=number)
                return Settled(history, verdict)
        return Settled(run.history())

    def _late_answer(self, run: RunDir, history: History) -> Accepted | Refused | None:
        """What sbatch wrote after its caller died. It may still be writing: an id counts once its line is whole, a
        refusal only when sbatch has certainly ended."""
        folder = run.submission_dir(history.submission)
        try:
            out = (folder / "sbatch.out").read_text(errors="surrogateescape")
            err = (folder / "sbatch.err").read_text(errors="surrogateescape")
        except FileNotFoundError:
            return None
        answer = classify_submit(1, out[: out.rfind("\n") + 1], err)
        if isinstance(answer, Accepted):
            return answer
        assert history.intent_at is not None, "an unknown submission has an intent"
        ended = self.clock.now() >= history.intent_at + timedelta(seconds=self.policy.sbatch_limit_s)
        return answer if isinstance(answer, Refused) and ended else None
