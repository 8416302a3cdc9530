"""What one pass does about all that it saw. Pure.

First the ends that are news, then what many of them mean together, then each run, then nodes. Every action passes the
invariants; one that does not is a sentence instead.
"""

from __future__ import annotations

from msgspec.structs import replace

from fleetctl.recovery.canary import LOSSES, losses_note
from fleetctl.recovery.choice import Choice
from fleetctl.recovery.decide_fleet import incidents, pause
from fleetctl.recovery.decide_job import choose
from fleetctl.recovery.decide_lives import MOVED, SILENT, moved_note, silence_note, silent_together
from fleetctl.recovery.decide_nodes import Fleet, drains, fleet, set_downs
from fleetctl.recovery.ended import WAITING, Classify, awaits_evidence, interruption, may_have_ended
from fleetctl.recovery.ground import Case, Ground, case_of, ground, open_incidents, with_memory
from fleetctl.recovery.invariants import SAID, forbidden
from fleetctl.recovery.model import (
    Action,
    Decision,
    Incident,
    Interruption,
    Memory,
    Snapshot,
    Verdict,
)
from fleetctl.recovery.policy import Policy
from fleetctl.submission.decide_requeue import Phase


def decide(snapshot: Snapshot, memory: Memory, policy: Policy, classify: Classify) -> Decision:
    """The actions of this pass, in order, and a sentence for each run."""
    on = ground(snapshot, memory, policy)
    cases = [(seen.key, case_of(seen, on)) for seen in snapshot.runs or ()]
    known = [case for _, case in cases if isinstance(case, Case)]
    notes, found = _news(known, on, classify)
    on = with_memory(on, replace(memory, interruptions=(*memory.interruptions, *found)))
    changed = incidents(on)
    on = with_memory(on, replace(on.memory, incidents=_with(memory.incidents, changed)))
    blamed = fleet(on, silent_together(known, on))
    choices = {case.key: choose(case, on, blamed) for case in known}
    actions, verdicts = _of_fleet(on, known, blamed)
    for key, seen in cases:
        if isinstance(seen, str):
            verdicts.append(Verdict(key, "unseen", seen))
        else:
            _add(choices[key], key, on, actions, verdicts)
    look_again_s = _look_again_s(on, known, actions, choices)
    return Decision(tuple(actions), tuple(verdicts), found, changed, notes, look_again_s)


def wanted(snapshot: Snapshot, memory: Memory, policy: Policy) -> dict[str, str]:
    """Runs whose end is to be looked into before it is decided about, and the attempt that ended."""
    on = ground(snapshot, memory, policy)
    ended = [seen for seen in snapshot.runs or () if may_have_ended(seen) or memory.notes.get(WAITING + seen.key)]
    cases = [case for seen in ended if isinstance(case := case_of(seen, on), Case)]
    return {case.key: name for case in cases if (name := awaits_evidence(case, on)) is not None}


def _news(cases: list[Case], on: Ground, classify: Classify) -> tuple[dict[str, str], tuple[Interruption, ...]]:
    """Notes as they are to be now, and ends that nobody knew."""
    notes: dict[str, str] = {}
    found: list[Interruption] = []
    for case in cases:
        new = interruption(case, on, classify)
        if isinstance(new, Interruption):
            found.append(new)
            if case.attempt is not None and new.attempt != case.attempt.name:  # the newest may have ended too
                new = interruption(case, _knowing(on, new), classify)
                found += [new] if isinstance(new, Interruption) else []
        notes[WAITING + case.key] = new if isinstance(new, str) else ""
        notes[SILENT + case.key] = silence_note(case, on) if case.phase is Phase.LIVES else ""
        notes[LOSSES + case.key] = losses_note(case, on)
        notes[MOVED + case.key] = moved_note(case, on) if case.phase is Phase.LIVES else ""
    return {name: text for name, text in notes.items() if text != on.memory.notes.get(name, "")}, tuple(found)


def _knowing(on: Ground, one: Interruption) -> Ground:
    mine = (*on.interruptions.get(one.key, ()), one)
    return replace(on, interruptions={**on.interruptions, one.key: mine})


def _with(before: tuple[Incident, ...], changed: tuple[Incident, ...]) -> tuple[Incident, ...]:
    new = {(one.kind, one.subject, one.since): one for one in (*before, *changed)}
    return tuple(new.values())


def _of_fleet(on: Ground, cases: list[Case], blamed: Fleet) -> tuple[list[Action], list[Verdict]]:
    actions: list[Action] = []
    verdicts: list[Verdict] = []
    begun = [pause(one) for one in open_incidents(on.memory)]
    for action in (*begun, *set_downs(on, cases), *drains(on, blamed)):
        _add(Choice(action.rule, action.why, action), "", on, actions, verdicts)
    return actions, verdicts


def _add(choice: Choice, key: str, on: Ground, actions: list[Action], verdicts: list[Verdict]) -> None:
    """What the invariants let through is done; of the rest remains a sentence."""
    why_not = None if choice.action is None else forbidden(choice.action, on, actions)
    if choice.action is not None and why_not is None:
        actions.append(choice.action)
    is_deed = choice.action is not None and choice.action.deed not in SAID
    said = f"{choice.why}; not done: {why_not}" if is_deed and why_not is not None else choice.why
    verdicts.append(Verdict(key, choice.rule, said, choice.is_quiet))


def _look_again_s(on: Ground, cases: list[Case], actions: list[Action], choices: dict[str, Choice]) -> float:
    """At once after something that another thing follows; soon while something goes on."""
    if any(action.deed not in SAID for action in actions):
        return 1.0
    if any(case.look.unresponsive for case in cases):
        return on.policy.urgent_s
    busy = any(not choice.is_quiet for choice in choices.values())
    return on.policy.busy_s if busy else on.policy.quiet_look_s
