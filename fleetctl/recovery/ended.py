"""Which attempts have ended before their run did, and what is remembered of it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec.structs import replace

from fleetctl.recovery.ground import Case, Ground, is_down, names, old_nodes, under_maintenance, why_over
from fleetctl.recovery.model import Advice, CauseClass, Evidence, Interruption, RunSeen, Suspected
from fleetctl.rundir.history import ended_well, last_attempts
from fleetctl.rundir.model import Attempt, Ending
from fleetctl.slurm.model import BaseState
from fleetctl.submission.decide_requeue import Phase

Classify = Callable[[RunSeen, Attempt, Evidence], tuple[tuple[Suspected, ...], str]]
WAITING = "evidence/"  # + the run's key: the attempt whose evidence is waited for, since when, its start, its progress
_WORDS = 4  # of that note
_NO_INTERRUPTION = frozenset({Ending.FINISHED, Ending.SAVED, Ending.FENCED})


def may_have_ended(seen: RunSeen) -> bool:
    """False for most runs, and quickly: the newest attempt is of the start that runs, and goes on."""
    if seen.facts is None or seen.facts.past is None or not seen.jobs:
        return True
    newest = last_attempts(seen.facts.history).get(seen.task)
    runs = all(job.state.base is BaseState.RUNNING for job in seen.jobs)
    return not (runs and newest and newest.ended_at is None and seen.restarts == seen.facts.past.restart_count)


def over(case: Case, on: Ground) -> Attempt | None:
    """The newest attempt, if it was interrupted and is fresh enough to be answered."""
    newest = case.attempt
    if newest is None or ended_well(newest) or newest.ending in _NO_INTERRUPTION:
        return None
    if (on.snapshot.at - ended_at(case, on)).total_seconds() > on.policy.fresh_s:
        return None
    if newest.ended_at is not None:
        return newest
    return newest if case.phase not in (Phase.LIVES, Phase.COMPLETES) or case.came_back else None


def ended_at(case: Case, on: Ground) -> datetime:
    """When the newest attempt ended, at the latest now: the clocks of others may be wrong."""
    newest = case.attempt
    assert newest is not None, "it was asked whether there is one"
    at = newest.ended_at
    if at is None and (pulse := case.seen.pulse) is not None and pulse.attempt == newest.name:
        at = pulse.at
    if at is None:
        at = max((job.end_time for job in case.jobs if job.end_time and not case.came_back), default=newest.started_at)
    return min(at, on.snapshot.at)


def known(case: Case, on: Ground) -> Interruption | None:
    """What is remembered of the end of the newest attempt."""
    if case.attempt is None:
        return None
    mine = [one for one in on.interruptions.get(case.key, ()) if one.attempt == case.attempt.name]
    return mine[-1] if mine else None


def awaits_evidence(case: Case, on: Ground) -> str | None:
    """The attempt whose end is to be looked into; None: there is none, or it was looked into."""
    of_end = _of_end(case, on)
    return None if of_end is None or of_end.attempt is None else of_end.attempt.name


def interruption(case: Case, on: Ground, classify: Classify) -> Interruption | str | None:
    """The end of an attempt, if it is news; a text: what is noted while its evidence is waited for. Not for long, and
    not where the next attempt has ended too: an end that was seen is known before another one is."""
    of_end = _of_end(case, on)
    if of_end is None or of_end.attempt is None or case.attempt is None:
        return None
    name, evidence = of_end.attempt.name, case.seen.evidence
    if evidence is None or evidence.attempt != name:
        note = on.memory.notes.get(WAITING + case.key, "")
        since = _since(note, name)
        if since is None:
            return _note(of_end, on)
        waits = timedelta(0) <= on.snapshot.at - since < timedelta(seconds=on.policy.evidence_s)
        if waits and (name == case.attempt.name or over(case, on) is None):
            return note
        evidence = Evidence(name, None, None)
    causes, fingerprint = classify(case.seen, of_end.attempt, evidence)
    start = _start_of(case) if name == case.attempt.name else of_end.start
    return _made(of_end, on, start, _with_maintenance(of_end, on, causes), fingerprint)


def _of_end(case: Case, on: Ground) -> Case | None:
    """The run as of the attempt whose end is to be looked into: the newest, or the one before it where its end was
    seen, and the next one began before anything was found out."""
    if why_over(case) is not None or case.attempt is None:
        return None
    earlier = _left_behind(case, on)
    if earlier is not None:
        return earlier
    return case if over(case, on) is not None and known(case, on) is None else None


def _left_behind(case: Case, on: Ground) -> Case | None:
    words = on.memory.notes.get(WAITING + case.key, "").split(" ")
    if len(words) != _WORDS or case.attempt is None or words[0] == case.attempt.name:
        return None
    name, since, start, progress = words
    mine = [one for one in case.history.attempts if (one.task, one.name) == (case.seen.task, name)]
    if not mine or any(one.attempt == name for one in on.interruptions.get(case.key, ())):
        return None
    ended = mine[-1]
    if ended_well(ended) or ended.ending in _NO_INTERRUPTION:  # its head has said so since
        return None
    at = ended.ended_at or min(datetime.fromisoformat(since), case.attempt.started_at)
    told = int(progress) if progress.isdecimal() else None
    step = told if ended.progress_step is None else ended.progress_step
    return replace(case, start=start, attempt=replace(ended, ended_at=at, progress_step=step))


def _note(case: Case, on: Ground) -> str:
    assert case.attempt is not None, "it is over"
    return f"{case.attempt.name} {on.snapshot.at.isoformat()} {_start_of(case)} {_progress(case)}"


def _start_of(case: Case) -> str:
    """The start of the job that the attempt was in."""
    return case.start if not case.came_back else f"{case.start.rpartition('/')[0]}/{case.look.past.restart_count}"


def _with_maintenance(case: Case, on: Ground, causes: tuple[Suspected, ...]) -> tuple[Suspected, ...]:
    """An end under maintenance is nobody's failure, unless it was a cancel, or would come again anywhere."""
    name = under_maintenance(on, old_nodes(case))
    if not name or any(cause.advice in (Advice.NEVER, Advice.STOP) for cause in causes[:1]):
        return causes
    words = f"Slurm: reservation {name} has its nodes under maintenance"
    return (Suspected(CauseClass.MAINTENANCE, Advice.SLURM, words), *causes)


def _since(note: str, attempt: str) -> datetime | None:
    words = note.split(" ")
    return datetime.fromisoformat(words[1]) if words[0] == attempt else None


def _made(case: Case, on: Ground, start: str, causes: tuple[Suspected, ...], fingerprint: str) -> Interruption:
    newest = case.attempt
    assert newest is not None, "it is over"
    at = ended_at(case, on)
    return Interruption(
        key=case.key,
        attempt=newest.name,
        start=start,
        at=at,
        causes=causes,
        fingerprint=fingerprint,
        nodes=names(newest.nodes),
        progress_step=_progress(case),
        ran_s=max(0.0, (at - newest.started_at).total_seconds()),
        user=case.seen.user,
    )


def _progress(case: Case) -> int | None:
    newest, pulse = case.attempt, case.seen.pulse
    assert newest is not None, "it is over"
    if newest.progress_step is not None:
        return newest.progress_step
    if pulse is not None and pulse.attempt == newest.name:
        return pulse.checkpoint_step
    return None


def dead_nodes(case: Case, on: Ground) -> tuple[str, ...]:
    """Nodes of the newest start that Slurm calls DOWN now."""
    return tuple(node for node in old_nodes(case) if is_down(on, node))
