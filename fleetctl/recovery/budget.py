"""How often a run may come back: ledgers by fingerprint and by progress, not by count. Pure.

What was nobody's failure (a preemption, maintenance, a requeue that somebody asked for, an incident of the fleet) costs
nothing; what was the machine's counts only where nothing at all goes on; a newer checkpoint, or a person's wish, clears
everything. Unknown progress is none.
"""

from __future__ import annotations

from fleetctl.recovery.ground import Case, Ground, is_excused, since_person
from fleetctl.recovery.model import Advice, CauseClass, Deed, Done, Interruption, Suspected
from fleetctl.recovery.policy import FREE, INFRASTRUCTURE

_NOTHING_FOUND = Suspected(CauseClass.UNKNOWN, Advice.SAME, "no rule knows why it ended")


def cause_of(one: Interruption) -> Suspected:
    """The likeliest cause that is one: what only follows from something before it is not."""
    return next((cause for cause in one.causes if cause.advice is not Advice.EARLIER), _NOTHING_FOUND)


def advice_of(case: Case, on: Ground, newest: Interruption) -> Advice:
    """What the likeliest cause asks for; what it asks for instead where the same failure came back without progress,
    though the suspect node was left out."""
    cause = cause_of(newest)
    if cause.again is None or is_excused(on, newest):
        return cause.advice
    earlier = [one for one in _without_progress(_counted(case, on))[1:] if one.fingerprint == newest.fingerprint]
    heeded = any(cause_of(one).node not in newest.nodes for one in earlier)
    return cause.again if heeded else cause.advice


def is_free(one: Interruption) -> bool:
    """Whether it was nobody's failure: somebody wanted it, or Slurm did it of its own accord."""
    cause = cause_of(one)
    return cause.cause in FREE or cause.advice is Advice.SLURM


def brake(case: Case, on: Ground, holes: frozenset[str]) -> str | None:
    """Why the newest interruption may not be followed by another start; None if it may.

    :param holes: nodes on which the jobs of several runs failed at once: a quick failure there says nothing.
    """
    since = _without_progress(_counted(case, on))
    if not since:
        return None
    newest, own = since[0], [one for one in since if cause_of(one).cause not in INFRASTRUCTURE]
    same = [one for one in own if one.fingerprint == newest.fingerprint]
    most = case.facts.max_failures
    if len(same) >= most:
        return f"{_words(newest)}, {len(same)} times without a newer checkpoint"
    if len(since) >= on.policy.infrastructure_share * most:
        return f"{len(since)} failures without a newer checkpoint, the last: {_words(newest)}"
    if _are_quick(since[: on.policy.quick_failures], on, holes):
        return f"{on.policy.quick_failures} failures in a row soon after its start, the last: {_words(newest)}"
    return None


def _counted(case: Case, on: Ground) -> list[Interruption]:
    """Newest first."""
    mine = since_person(case, on.interruptions.get(case.key, ()))
    counted = [one for one in mine if not is_free(one) and not is_excused(on, one)]
    return counted[::-1]


def _without_progress(failures: list[Interruption]) -> list[Interruption]:
    """Those since the last newer checkpoint."""
    since: list[Interruption] = []
    for one in failures:
        if since and is_progress(one, since[-1]):
            break
        since.append(one)
    return since


def is_progress(earlier: Interruption, later: Interruption) -> bool:
    return later.progress_step is not None and later.progress_step > (earlier.progress_step or 0)


def _are_quick(failures: list[Interruption], on: Ground, holes: frozenset[str]) -> bool:
    if len(failures) < on.policy.quick_failures:
        return False
    return all(
        one.ran_s is not None
        and one.ran_s <= on.policy.quick_s
        and cause_of(one).cause not in INFRASTRUCTURE
        and cause_of(one).advice is not Advice.OLDER  # whose tries are counted by themselves
        and not holes & set(one.nodes)
        for one in failures
    )


def roll_backs(case: Case, on: Ground, newest: Interruption | None) -> int:
    """How many older checkpoints were tried for what still stands in the way. One for a start whose end nobody knows
    is one of them: unknown progress is none."""
    everything = on.interruptions.get(case.key, ())
    all_starts, of_start = ({one.start: one for one in ones} for ones in (everything, since_person(case, everything)))
    tried = 0
    for entry in on.done.get(case.key, ()):
        if entry.action.deed is not Deed.ROLL_BACK or entry.outcome not in on.policy.standing:
            continue
        before = of_start.get(entry.action.start)
        if before is None:
            tried += entry.action.start not in all_starts and not _before_person(case, entry)
        else:
            tried += newest is None or not is_progress(before, newest)
    return tried


def _before_person(case: Case, entry: Done) -> bool:
    """Whether a person has asked for a requeue since: the attempts that they saw say when, at the earliest."""
    asked = case.history.asked.get(case.seen.task, 0)
    mine = [attempt for attempt in case.history.attempts if attempt.task == case.seen.task]
    return asked > 0 and (len(mine) <= asked or entry.at < mine[asked].started_at)


def _words(one: Interruption) -> str:
    cause = cause_of(one)
    return f"{cause.cause.value.replace('_', ' ')} ({cause.evidence})"
