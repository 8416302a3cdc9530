"""After an interruption: hold, roll back, or go on, whoever starts the job again. Pure."""

from __future__ import annotations

from fleetctl.recovery.budget import advice_of, brake, cause_of, is_free, roll_backs
from fleetctl.recovery.choice import Choice, do, leave, wait
from fleetctl.recovery.decide_nodes import Fleet
from fleetctl.recovery.ended import WAITING, known, over
from fleetctl.recovery.ground import Case, Ground, is_excused
from fleetctl.recovery.losses import onset
from fleetctl.recovery.model import Advice, CauseClass, Deed, Interruption
from fleetctl.rundir.pulse import MOST_LOSSES


def before_anything(case: Case, on: Ground) -> Choice | None:
    """What must be known of the newest attempt's end first."""
    if over(case, on) is None or known(case, on) is not None:
        return None
    since = on.memory.notes.get(WAITING + case.key, "")
    return wait("evidence", f"attempt {since.partition(' ')[0] or 'of it'} has ended; its evidence is gathered")


def stops(case: Case, on: Ground, fleet: Fleet, ended: Interruption) -> Choice | None:
    """Why the run must not, or not so, start again after this; None: it may."""
    cause = cause_of(ended)
    what = f"{cause.cause.value.replace('_', ' ')}: {cause.evidence}"
    if cause.advice is Advice.NEVER or cause.cause is CauseClass.CANCELLED:
        return leave("never", f"it does not come back ({what})")
    if is_free(ended) or is_excused(on, ended):
        return None
    advice = advice_of(case, on, ended)
    if advice is Advice.STOP:
        return do(case, Deed.HOLD, "stop", f"another start would end the same way ({what})", after=ended)
    if (why := brake(case, on, fleet.holes)) is not None:
        return do(case, Deed.HOLD, "brake", why, after=ended)
    return older(case, on, ended, what) if advice is Advice.OLDER else None


def older(
    case: Case, on: Ground, ended: Interruption | None, what: str, *, at_most: int | None = None
) -> Choice | None:
    """The next start begins from an older checkpoint, once for each start; None: it was told so, or none is known.

    :param at_most: the training step that it may have, where nothing else tells.
    """
    if _was_rolled_back(case, on, ended):
        return None
    tried = roll_backs(case, on, ended)
    if tried >= on.policy.older_checkpoints:
        why = f"{tried} older checkpoints did not help ({what})"
        return do(case, Deed.HOLD, "older_in_vain", why, after=ended)
    known_steps = (_older_step(case, on, ended), at_most)
    step = min((one for one in known_steps if one is not None), default=None)
    if step is None:
        return None
    if step < 0:
        why = f"there is no older checkpoint ({what})"
        return do(case, Deed.HOLD, "nothing_older", why, after=ended)
    why = f"go on from a checkpoint of at most training step {step} ({what})"
    return do(case, Deed.ROLL_BACK, "older", why, after=ended, at_most_step=step)


def _was_rolled_back(case: Case, on: Ground, ended: Interruption | None) -> bool:
    """Since this end, or for this start."""
    if on.did(case.key, case.start, Deed.ROLL_BACK) is not None:
        return True
    mine = [e for e in on.done.get(case.key, ()) if e.action.deed is Deed.ROLL_BACK and e.outcome in on.policy.standing]
    return ended is not None and any(entry.at >= ended.at for entry in mine)


def _older_step(case: Case, on: Ground, ended: Interruption | None) -> int | None:
    """The highest training step that may be resumed from: before the trouble began, and older each time."""
    steps = [
        entry.action.at_most_step - 1
        for entry in on.done.get(case.key, ())
        if entry.action.deed is Deed.ROLL_BACK
        and entry.action.at_most_step is not None
        and entry.outcome in on.policy.standing
        and roll_backs(case, on, ended)
    ]
    newest = case.attempt
    if newest is not None and newest.resume_step is not None and (steps or _failed_to_load(ended)):
        steps.append(newest.resume_step - 1)
    if (before := _before_nan(case)) is not None:
        steps.append(before)
    if not steps and ended is not None and ended.progress_step is not None:
        steps.append(ended.progress_step - 1)
    return min(steps) if steps else None


def _failed_to_load(ended: Interruption | None) -> bool:
    return ended is not None and cause_of(ended).cause is CauseClass.CHECKPOINT_LOAD


def _before_nan(case: Case) -> int | None:
    """The last training step of the newest attempt whose loss was a number, as far as its pulse tells; the one that it
    resumed from where all that it tells are none."""
    pulse, newest = case.seen.pulse, case.attempt
    if pulse is None or newest is None or pulse.attempt != newest.name or (step := onset(pulse.losses)) is None:
        return None
    numbers = [number for number, loss in pulse.losses if loss is not None and number < step]
    if numbers:
        return max(numbers)  # losses are told once in a while: it may have been the very next step
    resumed = newest.resume_step or 0
    return resumed - 1 if len(pulse.losses) < MOST_LOSSES else min(resumed, step - 1)  # not full: none ever was one
