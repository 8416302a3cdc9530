"""Which checkpoint a start takes. Pure: it judges names and what was found, it looks at nothing itself.

Two questions, in this order: whose commits count (the fence, on names only, so that a new claim can be written before
anything slow is read), then which of those is whole (newest first). A listing's order never matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from fleetctl.checkpoint.model import (
    Checked,
    Choice,
    Entry,
    Fence,
    Level,
    Needs,
    Outcome,
    Survey,
    Validity,
    entry_of,
    staged_entry_of,
)

_GONE = "it stood in an earlier claim and is gone"
_FENCED = "not in the newest claim, and not committed by that attempt or a later one"
_ASIDE = "set aside: it was there before this run, or a person went back to an older step"
NOT_KNOWN = "not a checkpoint that fleetctl knows"  # by its name, or by what is in it
_ANY = Needs()
SETTLED = timedelta(minutes=10)  # a framework's files that were touched since may still be being written
ALONE = "there are weights alone"
_SUSPECT = "an attempt died while it loaded this"


def acceptable(found: Survey, fence: Fence, at_most_step: int | None) -> tuple[tuple[Entry, ...], tuple[Checked, ...]]:
    """What may be taken, newest first, and what may not whatever it holds, with the reason.

    Foreign names and those behind the fence are UNKNOWN: nobody looked. A name that stood and is not there any more is
    INCOMPLETE.
    """
    taken = list[Entry]()
    passed = [Checked(None, name, Validity.UNKNOWN, None, NOT_KNOWN) for name in found.foreign]
    for entry in found.entries:
        name = entry.name
        if not fence.accepts(entry):
            passed.append(Checked(entry, name, Validity.UNKNOWN, None, _FENCED if entry.is_own else _ASIDE))
        elif at_most_step is not None and entry.training_step > at_most_step:
            passed.append(
                Checked(entry, name, Validity.UNKNOWN, None, f"after step {at_most_step}, the last one wanted")
            )
        else:
            taken.append(entry)
    present = _names(found)
    passed += [Checked(entry_of(name), name, Validity.INCOMPLETE, None, _GONE) for name in fence.stands - present]
    taken.sort(key=lambda entry: entry.age_order, reverse=True)
    return tuple(taken), newest_first(passed)


def standing(found: Survey, fence: Fence, at_most_step: int | None) -> tuple[str, ...]:
    """What a new claim must list: every committed name that counts now, newest first. Nothing is looked into."""
    return tuple(entry.name for entry in acceptable(found, fence, at_most_step)[0])


def something_stood(found: Survey, fence: Fence, at_most_step: int | None) -> bool:
    """Whether anything may ever have been saved whole that counts, be it gone by now or later than what is wanted.

    Our own format has its name only when it is whole. What a framework has named may never have been finished: then
    what lies there tells, and what has gone, or is not looked into, is taken for whole.
    """
    counts = [entry for entry in found.entries if fence.accepts(entry)]
    late = any(at_most_step is not None and entry.training_step > at_most_step for entry in counts)
    gone = fence.stands - {entry.name for entry in found.entries}  # or it is not to be recognised any more
    return late or any(entry.is_own for entry in counts) or bool(gone)


def why_not(found: Checked, suspects: frozenset[str], needs: Needs) -> str:
    """Why a start passes this one over, "" if it takes it."""
    if found.validity is not Validity.VALID:
        return found.reason
    if not found.resumable:
        return "weights alone: no training can go on from them"
    if found.ranks is not None and needs.ranks is not None and found.ranks != needs.ranks:
        return f"saved by {found.ranks} ranks, and {needs.ranks} cannot load it"
    if (found.level or Level.NAMES) < max(Level.STRUCTURE, min(needs.level, found.deepest)):
        return found.reason or f"only its {(found.level or Level.NAMES).name.lower()} was looked at"
    return _SUSPECT if found.name in suspects else ""


def decide(
    seen: Sequence[Checked],
    suspects: frozenset[str],
    *,
    once_valid: bool,
    needs: Needs = _ANY,
    passed_over: Sequence[Checked] = (),
) -> Choice:
    """Take the newest usable one of `seen`; else a suspect whose content was checked; else hold, or start anew.

    `seen` are the acceptable ones that were looked into. A start from scratch is chosen only where nothing was
    `once_valid` and none is there but saves that were never finished and weights alone.
    """
    ordered = newest_first(seen)
    chosen = next((found for found in ordered if not why_not(found, suspects, needs)), None)
    reason = "the newest valid one"
    if chosen is None:
        chosen = next((found for found in ordered if _proved_suspect(found, suspects, needs)), None)
        reason = "the only valid one left: an attempt died while it loaded this, but its whole content is as written"
    others = [_passed_over(found, suspects, needs) for found in ordered if found is not chosen]
    others += [found for found in passed_over if found.entry is not None and _is_newer(found.entry, chosen)]
    if chosen is not None:
        return Choice(Outcome.RESUME, chosen, newest_first(others), reason)
    judged = [found for found in ordered if found.entry is not None]
    if not once_valid and all(found.uncommitted or not found.resumable for found in judged):
        return Choice(Outcome.SCRATCH, None, newest_first(others), _why_nothing(judged))
    return Choice(Outcome.HOLD, None, newest_first(others), _why_none(newest_first(others)[: len(judged)]))


def staged(name: str, *, lives: bool | None) -> Checked:
    """What a folder in staging is. `lives`: whether its writer does; None is not known, so it may."""
    entry = staged_entry_of(name)
    if entry is None:
        return Checked(None, name, Validity.UNKNOWN, None, NOT_KNOWN)
    if lives is False:
        return Checked(entry, name, Validity.INCOMPLETE, None, "its save was never finished; nobody writes it any more")
    reason = "it is being written" if lives else "it may still be being written"
    return Checked(entry, name, Validity.IN_PROGRESS, None, reason)


def newest_first(found: Sequence[Checked]) -> tuple[Checked, ...]:
    """By training step and attempt; foreign names last, by name."""
    foreign = sorted((one for one in found if one.entry is None), key=lambda one: one.name)
    return (*sorted((one for one in found if one.entry is not None), key=_age_order, reverse=True), *foreign)


def _passed_over(found: Checked, suspects: frozenset[str], needs: Needs) -> Checked:
    """With the reason why it was not taken."""
    found = as_suspect(found, suspects)
    return msgspec.structs.replace(found, reason=why_not(found, suspects, needs))


def in_progress(found: Sequence[Checked], now: datetime) -> tuple[Checked, ...]:
    """As `as_in_progress`, of what is newer than the newest valid one: what is older is written by nobody any more."""
    whole = [one for one in found if one.validity in (Validity.VALID, Validity.SUSPECT) and one.resumable]
    newest = next(iter(newest_first(whole)), None)
    return tuple(
        as_in_progress(one, now) if one.entry is not None and _is_newer(one.entry, newest) else one for one in found
    )


def as_in_progress(found: Checked, now: datetime) -> Checked:
    """What a framework may be writing just now is not broken. For a folder whose writer lives, or may."""
    young = found.touched_at is not None and found.touched_at > now - SETTLED
    own = found.entry is None or found.entry.is_own  # these have their names only when they are whole
    read = found.level is not None and found.level >= Level.STRUCTURE  # all of it is there: it is its content
    if own or read or not young or found.validity not in (Validity.INCOMPLETE, Validity.CORRUPT):
        return found
    reason = f"it may be being written: {found.reason}"
    return msgspec.structs.replace(found, validity=Validity.IN_PROGRESS, reason=reason)


def as_suspect(found: Checked, suspects: frozenset[str]) -> Checked:
    """A valid one that an attempt died of is a suspect; whatever is wrong with the others says more."""
    if found.validity is not Validity.VALID or found.name not in suspects:
        return found
    return msgspec.structs.replace(found, validity=Validity.SUSPECT, reason=_SUSPECT)


def _names(found: Survey) -> frozenset[str]:
    return frozenset((*found.foreign, *(entry.name for entry in found.entries)))


def _age_order(found: Checked) -> tuple[int, tuple[int, int], str, str]:
    assert found.entry is not None, "newest_first keeps the others apart"
    return found.entry.age_order


def _is_newer(entry: Entry, chosen: Checked | None) -> bool:
    return chosen is None or chosen.entry is None or entry.age_order > chosen.entry.age_order


def _proved_suspect(found: Checked, suspects: frozenset[str], needs: Needs) -> bool:
    return found.level is Level.CONTENT and found.name in suspects and not why_not(found, frozenset(), needs)


def _why_nothing(seen: Sequence[Checked]) -> str:
    if not seen:
        return "nothing was ever saved"
    return "no save was ever finished" if any(found.resumable for found in seen) else ALONE


def _why_none(seen: Sequence[Checked]) -> str:
    if not seen:
        return "something was saved, and nothing that counts is there now"
    return f"none of {len(seen)} is valid; the newest, {seen[0].name}: {seen[0].reason}"
