"""Before a job starts: are its GPUs, their links, the network and the machine well? The epilog asks the same after it.

Fails closed on a measured fault, open on everything else; silent on the good path, where Slurm is not asked anything.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Sequence, Tuple

from fleetctl.health import phases, remember
from fleetctl.health.decide import Choice, decide, without_budget
from fleetctl.health.deltas import counters_of
from fleetctl.health.gather import Where
from fleetctl.health.model import Asked, Decision, Finding, Phase, Verdict
from fleetctl.health.phases import Look, Plan, Tools
from fleetctl.health.record import NamedTuple
from fleetctl.health.site import Site
from fleetctl.health.state import Change
from fleetctl.health.tell import Reply, Told, drain, meant, standing
from fleetctl.health.usage import start_of

_FAILING = (Phase.PROLOG, Phase.EPILOG)  # their exit status 1 makes slurmctld drain the node
STALE_S = 3600.0  # where no periodic check renews the counters' baseline: "since the last look" is no longer than that


class Ended(NamedTuple):
    """How a phase ended: the exit status for Slurm, one line for its log ("" for none), and what went wrong beside."""

    status: int
    line: str
    verdict: Verdict
    findings: Tuple[Finding, ...]
    notes: Tuple[str, ...] = ()


class Job(NamedTuple):
    """What a phase around a job was asked: `told` are findings made before the look."""

    asked: Asked
    uid: Optional[int] = None
    told: Tuple[Finding, ...] = ()


class Beside(NamedTuple):
    """What a phase around a job keeps beside the look: changes of the state for a node that stays open, and for any
    node; and what the job used."""

    if_open: Sequence[Change] = ()
    always: Sequence[Change] = ()
    usage: Optional[Mapping[str, Any]] = None


NOTHING = Beside()


class Closed(NamedTuple):
    """What came of closing a node; `reply` is Slurm's, None where it was not asked."""

    choice: Choice
    findings: Tuple[Finding, ...]
    verdict: Verdict
    reply: Optional[Reply]
    notes: Tuple[str, ...]

    @property
    def line(self) -> str:
        """The reason, and what Slurm had to say to it."""
        detail = "" if self.reply is None else self.reply.detail
        return self.choice.reason + (f" ({detail})" if detail else "")


def run_prolog(site: Site, where: Where, job: Job, tools: Tools, began: float) -> Ended:
    """The whole prolog. `began` is when its process started, on the monotonic clock."""
    until = phases.plan(site, began)
    seen = look_for_job(site, where, job, tools, until)
    beside = NOTHING
    if job.asked.job_id is not None:
        beside = Beside((remember.job_began(job.asked.job_id, start_of(seen.readings, job.asked, job.uid)),))
    return answer(site, where, job, tools, until, began, seen, beside)


def look_for_job(site: Site, where: Where, job: Job, tools: Tools, until: Plan) -> Look:
    """Look at what the job has; findings made before are put first."""
    seen = phases.look(tools, where, until.look, site.settle_s)
    return seen._replace(findings=(*job.told, *seen.findings))


def answer(
    site: Site,
    where: Where,
    job: Job,
    tools: Tools,
    until: Plan,
    began: float,
    seen: Look,
    beside: Beside,
) -> Ended:
    """Decide; close the node where it is not well; say how to end."""
    choice = decide(seen.findings)
    if choice.decision is not Decision.DRAIN:
        took_s = tools.monotonic() - began
        verdict = phases.verdict_of(seen, job.asked.phase, choice, took_s, job_id=job.asked.job_id, usage=beside.usage)
        changes = (*log_and_counters(seen, tools, anew=_stale(seen)), *beside.always, *beside.if_open)
        notes = phases.keep(tools, verdict, remember.all_of(changes), until.keep)
        return Ended(0, "", verdict, seen.findings, notes)
    closed = close(site, where, job.asked, tools, until, began, seen, choice, beside)
    if closed.choice.decision is not Decision.DRAIN:
        return Ended(0, "", closed.verdict, closed.findings, closed.notes)
    return Ended(1, closed.line, closed.verdict, closed.findings, closed.notes)


def close(
    site: Site,
    where: Where,
    asked: Asked,
    tools: Tools,
    until: Plan,
    began: float,
    seen: Look,
    choice: Choice,
    beside: Beside = NOTHING,
) -> Closed:
    """Drain the node, if that is ours to do and the fleet's budget allows it: written down first, then told to Slurm.

    No token is spent on a node that is closed already.
    """
    known = meant(seen.gathered.state.drain, where.boot_id)
    reply: Optional[Reply] = None
    if phases.limited(site) or asked.phase not in _FAILING:
        reply = phases.slurm(tools, lambda run: standing(run, where.node, known), until.ask)
    writes = reply is None or _writes(reply, asked.phase)
    if writes and not (reply is not None and reply.told is Told.OWED):
        choice, seen = affordable(choice, seen, lambda: phases.take(tools, site, where, until.token))
    drains = choice.decision is Decision.DRAIN
    took_s = tools.monotonic() - began
    verdict = phases.verdict_of(seen, asked.phase, choice, took_s, job_id=asked.job_id, usage=beside.usage)
    changes = [*log_and_counters(seen, tools, anew=False), *beside.always, *(() if drains else beside.if_open)]
    if drains and writes:
        changes.append(remember.intended(choice, seen.readings))
    notes = phases.keep(tools, verdict, remember.all_of(changes), until.intent)
    if drains and writes:
        reply = phases.slurm(tools, lambda run: drain(run, where.node, choice.reason, known), until.slurm)
    after = _after(seen, choice, reply)
    if after:
        notes += phases.keep(tools, None, remember.all_of(after), until.keep)
    return Closed(choice, seen.findings, verdict, reply, notes)


def _writes(reply: Reply, phase: Phase) -> bool:
    """Whether the node gets our word. After our exit status 1 slurmctld drains it in any case, so that a prolog goes on
    where Slurm did not answer, or somebody has a remark there."""
    return reply.told in (Told.OPEN, Told.OWED) or (phase in _FAILING and not reply.told.closed)


def _after(seen: Look, choice: Choice, reply: Optional[Reply]) -> Sequence[Change]:
    """What is remembered of Slurm's reply. Counters that closed the node do not close it again; where it is not closed
    they stay as they were, and close it when that can be done."""
    stands = seen.gathered.state.drain
    if reply is None:
        return ()
    if choice.decision is Decision.DRAIN:
        told: Change = remember.drained(choice, reply, seen.readings)
        return (told, _counted(seen, anew=True)) if reply.told.closed else (told,)
    if stands is not None and reply.told in (Told.OPEN, Told.REMARK):
        return (remember.forgotten(stands, seen.readings.at),)
    return ()


def affordable(choice: Choice, seen: Look, take: Callable[[], Tuple[bool, str]]) -> Tuple[Choice, Look]:
    """What is done about findings that close the node when the fleet's budget is asked."""
    granted, why = take()
    if granted or choice.lost:
        return choice, seen
    choice, note = without_budget(choice, why)
    return choice, seen._replace(findings=(*seen.findings, note))


def log_and_counters(seen: Look, tools: Tools, *, anew: bool) -> Sequence[Change]:
    """The kernel log's cursor, the counters, and how quick NVML is; `anew`: later looks count from here."""
    gathered = seen.gathered
    return (
        remember.log_read(gathered.fresh, gathered.cursor, tools.readers.merge),
        remember.answered(seen.readings),
        _counted(seen, anew=anew),
    )


def _counted(seen: Look, *, anew: bool) -> Change:
    known = seen.gathered.state.baseline
    if not anew and known is not None and known.boot_id == seen.readings.boot_id:
        return lambda state: state  # most prologs: a thousand counters need not be gathered again
    return remember.counted(seen.readings, counters_of(seen.readings), anew=anew)


def _stale(seen: Look) -> bool:
    baseline = seen.gathered.state.baseline
    return baseline is not None and not 0 <= seen.readings.at - baseline.at < STALE_S
