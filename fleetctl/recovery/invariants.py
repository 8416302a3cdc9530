"""What no action may do, whatever asked for it: looked at once more before each is emitted. Pure.

The rules of `decide` choose; these promises (README, "What it never does") only forbid, so a wrong rule does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fleetctl.errors import FleetctlError
from fleetctl.recovery.decide_ended import road
from fleetctl.recovery.decide_nodes import enough_left, ours, why_no_drain, why_not_down
from fleetctl.recovery.decide_waits import why_not_now
from fleetctl.recovery.ground import (
    COMEBACKS,
    Case,
    Ground,
    case_of,
    ground,
    job_nodes,
    old_nodes,
    open_incidents,
    under_maintenance,
    why_over,
)
from fleetctl.recovery.model import Action, Deed, Done, Memory, Outcome, Snapshot
from fleetctl.recovery.policy import Mode, Policy
from fleetctl.rundir.model import SubmissionState
from fleetctl.submission.decide_requeue import NotYet, Phase

_OF_NODES = frozenset({Deed.DRAIN, Deed.SET_DOWN})
SAID = frozenset({Deed.TELL, Deed.PAUSE})  # to people: they change nothing
_SPENT = frozenset({Outcome.OPEN, Outcome.DONE, Outcome.REFUSED})
_TRIED = frozenset({Outcome.CHANGED, Outcome.FAILED})  # seen not to have happened
_ONCE = frozenset({*COMEBACKS, Deed.START_NOW, Deed.HOLD})


def check(action: Action, snapshot: Snapshot, memory: Memory, policy: Policy) -> str | None:
    """Why this must not be done; None: it may."""
    return forbidden(action, ground(snapshot, memory, policy))


def forbidden(action: Action, on: Ground, emitted: Sequence[Action] = ()) -> str | None:
    """As `check`, with the actions that this pass has emitted before."""
    if (why := spent(action, on)) is not None or action.deed in SAID:
        return why
    if (why := _blocked(on) or _too_soon(action, on)) is not None:
        return why
    if action.deed in _OF_NODES:
        return _nodes(action, on, emitted)
    if any(other.key == action.key and other.deed not in SAID for other in emitted):
        return "this pass has done something to the run already"
    seen = next((run for run in on.snapshot.runs or () if run.key == action.key), None)
    if seen is None:
        return "the run was not seen"
    case = case_of(seen, on)
    return case if isinstance(case, str) else _run(action, case, on)


def _blocked(on: Ground) -> str | None:
    """What forbids everything."""
    memory, snapshot = on.memory, on.snapshot
    if memory.paused_by:
        return f"paused by {memory.paused_by}"
    if incidents := open_incidents(memory):
        return f"there is an incident: {incidents[0].kind} {incidents[0].subject}"
    if snapshot.nodes is None:
        return "Slurm tells nothing of its nodes"
    if snapshot.maintenance is None:
        return "Slurm tells nothing of maintenance"
    if snapshot.controller_since is None:
        return "it is not known since when the controller runs"
    if (snapshot.at - snapshot.controller_since).total_seconds() < on.policy.controller_s:
        return "Slurm's controller has just begun, and does not know its nodes yet"
    return None


def spent(action: Action, on: Ground) -> str | None:
    """Why this is not done again, however the world is; None: it may be."""
    for entry in on.done.get(action.key, ()):
        if _is_same(entry.action, action) and entry.outcome in _SPENT | on.policy.standing:
            return f"it was asked for before ({entry.outcome.value})"
        if _is_alike(entry.action, action) and entry.outcome in on.policy.standing:
            return f"the run was brought back before ({entry.action.deed.value})"
    return None


def tried(action: Action, on: Ground) -> list[Done]:
    """How often it was tried, and seen not to have happened; oldest first."""
    mine = on.done.get(action.key, ())
    return [entry for entry in mine if entry.action.identity == action.identity and entry.outcome in _TRIED]


def _too_soon(action: Action, on: Ground) -> str | None:
    """What was tried in vain is tried again later and later; nothing is done beside what is not settled."""
    if action.key and any(entry.outcome is Outcome.OPEN for entry in on.done.get(action.key, ())):
        return "it is not known yet what came of the deed before"
    before = tried(action, on)
    if before and on.age_s(before[-1]) < min(on.policy.busy_s * 2 ** min(len(before), 16), on.policy.longest_retry_s):
        return f"it was tried {len(before)} times, and just now"
    return None


def _is_same(before: Action, action: Action) -> bool:
    if before.identity == action.identity:
        return True
    return action.deed in _ONCE and (before.deed, before.key, before.start) == (action.deed, action.key, action.start)


def _is_alike(before: Action, action: Action) -> bool:
    return action.deed in COMEBACKS and before.deed in COMEBACKS and before.start == action.start


def _nodes(action: Action, on: Ground, emitted: Sequence[Action]) -> str | None:
    if not on.policy.may_drain:
        return "Slurm lets only its administrators do that"
    if (name := under_maintenance(on, action.nodes)) != "":
        return f"reservation {name} has it under maintenance"
    for node in action.nodes:
        why = why_no_drain(on, node, emitted) if action.deed is Deed.DRAIN else why_not_down(on, node)
        if why:
            return why
    return None if action.nodes else "it names no node"


def _run(action: Action, case: Case, on: Ground) -> str | None:
    if (over := why_over(case)) is not None:
        return over[1]
    if case.key in on.memory.paused_runs:
        return f"paused by {on.memory.paused_runs[case.key]}"
    if action.start != case.start:
        return "its job has begun again since"
    if (name := under_maintenance(on, (*job_nodes(case), *old_nodes(case)))) != "":
        return f"reservation {name} has its nodes under maintenance"
    if action.deed is not Deed.HOLD and on.did(case.key, case.start, Deed.HOLD) is not None:
        return "it was told not to start again"
    return _RULES[action.deed](action, case, on)


def _comes_back(action: Action, case: Case, on: Ground) -> str | None:
    if action.deed is Deed.RESUBMIT and on.policy.mode is not Mode.OWNER:
        return "only its user submits a run"
    if not case.facts.may_restart:
        return "its spec lets nothing start it again"
    if case.look.unresponsive:
        return f"Slurm does not reach {', '.join(case.look.unresponsive)}, and does not call it DOWN"
    if action.nodes and not enough_left(case, on, frozenset(action.nodes)):
        return "too few nodes would be left"
    if case.history.state is SubmissionState.UNKNOWN:
        mine = any(entry.action.deed is Deed.RESUBMIT for entry in on.done.get(case.key, ()))
        return None if mine and case.history.submission > 1 else "its submission is unknown"
    try:
        found = road(case)
    except FleetctlError as error:
        return error.message
    if isinstance(found, NotYet):
        return found.why
    return None if found is action.deed else f"its way back is {found.value}"


def _excludes(action: Action, case: Case, on: Ground) -> str | None:
    if case.phase is not Phase.WAITS:
        return "its job does not wait"
    mine, nodes = ours(case, on), frozenset(action.nodes)
    if unknown := sorted(nodes - mine - on.nodes.keys()):
        return f"Slurm does not list {unknown[0]}"
    if nodes == mine:
        return "it stays off these already"
    return None if not nodes or enough_left(case, on, nodes, mine - nodes) else "too few nodes would be left"


def _starts(action: Action, case: Case, on: Ground) -> str | None:
    return why_not_now(case, on) if case.phase is Phase.WAITS else "its job does not wait"


def _rolls_back(action: Action, case: Case, on: Ground) -> str | None:
    if action.at_most_step is None and not action.suspects:
        return "it names neither a step nor a checkpoint"
    return "there is no checkpoint below the first" if (action.at_most_step or 0) < 0 else None


def _holds(action: Action, case: Case, on: Ground) -> str | None:
    return None if action.why else "it gives no reason"


_RULES: Mapping[Deed, Callable[[Action, Case, Ground], str | None]] = {
    Deed.REQUEUE: _comes_back,
    Deed.REQUEUE_ENDED: _comes_back,
    Deed.RESUBMIT: _comes_back,
    Deed.EXCLUDE: _excludes,
    Deed.START_NOW: _starts,
    Deed.ROLL_BACK: _rolls_back,
    Deed.HOLD: _holds,
}
