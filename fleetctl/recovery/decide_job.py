"""What is done about one run, by the phase of its job. Pure."""

from __future__ import annotations

from fleetctl.recovery.choice import Choice, leave, tell, wait
from fleetctl.recovery.decide_ended import ended, resubmission
from fleetctl.recovery.decide_lives import lives
from fleetctl.recovery.decide_nodes import Fleet
from fleetctl.recovery.decide_waits import waits
from fleetctl.recovery.ground import Case, Ground, why_over
from fleetctl.recovery.invariants import SAID, spent, tried
from fleetctl.recovery.model import Action, Deed, Done, Outcome
from fleetctl.rundir.model import SubmissionState
from fleetctl.submission.decide_requeue import Phase


def choose(case: Case, on: Ground, fleet: Fleet) -> Choice:
    """At most one action, and why."""
    held = _held_by_us(case, on)
    if (over := why_over(case)) is not None:
        return tell(case, on, *over) if over[0] == "held" and held is not None else leave(*over)
    if (open_ := _open(case, on)) is not None:
        return _settling(case, on, open_)
    if case.history.state is not SubmissionState.SUBMITTED:
        return resubmission(case, on)
    if held is not None:
        return tell(case, on, "held", f"it was told not to start again: {held.action.why}")
    return _or_tell(_by_phase(case, on, fleet), case, on)


def _or_tell(choice: Choice, case: Case, on: Ground) -> Choice:
    """A person learns of what Slurm refuses, and of what does not happen."""
    action = choice.action
    if action is None or action.deed in SAID:
        return choice
    deed, tries = action.deed.value.replace("_", " "), len(tried(action, on))
    if (why := spent(action, on)) is not None:
        said = f"{choice.why}; but {deed}: {why}"
        return tell(case, on, f"{choice.rule}_refused", said) if _is_refused(action, on) else wait(choice.rule, said)
    if tries <= on.policy.retries:
        return choice
    said_so = tell(case, on, f"{choice.rule}_in_vain", f"{choice.why}; but {deed} was tried {tries} times")
    return said_so if said_so.action is not None else choice


def _is_refused(action: Action, on: Ground) -> bool:
    mine = on.done.get(action.key, ())
    return any(
        e.outcome is Outcome.REFUSED and (e.action.deed, e.action.start) == (action.deed, action.start) for e in mine
    )


def _by_phase(case: Case, on: Ground, fleet: Fleet) -> Choice:
    match case.phase:
        case Phase.WAITS:
            return waits(case, on, fleet)
        case Phase.LIVES:
            return lives(case, on, fleet.silent)
        case Phase.COMPLETES:
            return wait("completing", "Slurm is still cleaning up after its job")
        case Phase.STRANGE:
            return leave("strange", f"its job is in a state that is not known here: {case.jobs[0].state}")
    return ended(case, on, fleet)


def _settling(case: Case, on: Ground, entry: Done) -> Choice:
    deed = entry.action.deed.value.replace("_", " ")
    if on.age_s(entry) > on.policy.settle_s:
        return tell(case, on, "unsettled", f"what came of {deed} cannot be told")
    return wait("unsettled", f"it is not known yet what came of {deed}")


def _open(case: Case, on: Ground) -> Done | None:
    return next((entry for entry in on.done.get(case.key, ()) if entry.outcome is Outcome.OPEN), None)


def _held_by_us(case: Case, on: Ground) -> Done | None:
    """A hold of ours on this start: a person's requeue makes another one."""
    return on.did(case.key, case.start, Deed.HOLD)
