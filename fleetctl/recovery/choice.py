"""What is chosen for one run: one action at most, the rule, and a sentence. Pure."""

from __future__ import annotations

from msgspec import Struct

from fleetctl.recovery.ground import Case, Ground
from fleetctl.recovery.model import Action, Deed, Interruption


class Choice(Struct, frozen=True):
    """`action` None: nothing is done now, for the reason that `why` gives."""

    rule: str
    why: str
    action: Action | None = None
    is_quiet: bool = False  # nothing is expected to follow soon


def leave(rule: str, why: str) -> Choice:
    """Nothing is to be done, and nothing is going on."""
    return Choice(rule, why, is_quiet=True)


def wait(rule: str, why: str) -> Choice:
    """Nothing yet."""
    return Choice(rule, why)


def do(
    case: Case,
    deed: Deed,
    rule: str,
    why: str,
    *,
    after: Interruption | None = None,
    nodes: frozenset[str] = frozenset(),
    at_most_step: int | None = None,
) -> Choice:
    """One deed on the run's start. `after` is the end that it answers: its causes are the evidence."""
    evidence = tuple(cause.evidence for cause in after.causes) if after is not None else ()
    action = Action(
        deed,
        key=case.key,
        start=case.start,
        why=why,
        rule=rule,
        evidence=evidence,
        nodes=tuple(sorted(nodes)),
        at_most_step=at_most_step,
    )
    return Choice(rule, why, action)


def tell(case: Case, on: Ground, rule: str, why: str, *, after: Interruption | None = None) -> Choice:
    """Tell a person, once for each start and rule."""
    told = [entry for entry in on.done.get(case.key, ()) if entry.outcome in on.policy.standing]
    if any((e.action.deed, e.action.start, e.action.rule) == (Deed.TELL, case.start, rule) for e in told):
        return leave(rule, why)
    return do(case, Deed.TELL, rule, why, after=after)
