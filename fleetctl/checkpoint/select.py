"""Which checkpoint a start takes. Pure: it judges names and what was found, it looks at nothing itself.

Two questions, in this order: whose commits count (the fence, on names only, so that a new claim can be written before
anything slow is read), then which of those is whole (newest first). A listing's order never matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from fleetctl.checkpoint.model import (
    Checked,
    Choice,
    Entry,
    Fence,
    Level,
    Outcome,
    Validity,
    entry_of,
    staged_entry_of,
)
from fleetctl.train import layout

_GONE = "it stood in an earlier claim and is gone"
_FENCED = "not in the newest claim, and not committed by that attempt or a later one"
_FOREIGN = "not the name of a checkpoint"
_SUSPECT = "an attempt died while it loaded this"


def acceptable(
    names: Iterable[str], fence: Fence, at_most_step: int | None
) -> tuple[tuple[Entry, ...], tuple[Checked, ...]]:
    """What may be taken, newest first, and what may not whatever it holds, with the reason.

    Foreign names and those behind the fence are UNKNOWN: nobody looked. A name that stood and is not there any more is
    INCOMPLETE.
    """
    present = set(names) - {layout.STAGING, layout.TRASH}  # our own folders
    taken, passed = list[Entry](), list[Checked]()
    for name in present:
        entry = entry_of(name)
        if entry is None:
            passed.append(Checked(None, name, Validity.UNKNOWN, None, _FOREIGN))
        elif not fence.accepts(entry):
            passed.append(Checked(entry, name, Validity.UNKNOWN, None, _FENCED))
        elif at_most_step is not None and entry.training_step > at_most_step:
            passed.append(
                Checked(entry, name, Validity.UNKNOWN, None, f"after step {at_most_step}, the last one wanted")
            )
        else:
            taken.append(entry)
    passed += [Checked(entry_of(name), name, Validity.INCOMPLETE, None, _GONE) for name in fence.stands - present]
    taken.sort(key=lambda entry: entry.age_order, reverse=True)
    return tuple(taken), newest_first(passed)


def standing(names: Iterable[str], fence: Fence, at_most_step: int | None) -> tuple[str, ...]:
    """What a new claim must list: every committed name that counts now, newest first. Nothing is looked into."""
    return tuple(entry.name for entry in acceptable(names, fence, at_most_step)[0])


def something_stood(names: Iterable[str], fence: Fence) -> bool:
    """Whether anything was ever saved that counts, be it gone by now or later than what is wanted."""
    return bool(fence.stands) or any((entry := entry_of(name)) is not None and fence.accepts(entry) for name in names)


def usable(found: Checked, suspects: frozenset[str]) -> bool:
    """Whether looking may stop here: valid, and no attempt died of it."""
    return found.validity is Validity.VALID and found.name not in suspects


def decide(
    seen: Sequence[Checked], suspects: frozenset[str], *, once_valid: bool, passed_over: Sequence[Checked] = ()
) -> Choice:
    """Take the newest usable one of `seen`; else a suspect whose content was checked; else hold, or start anew.

    `seen` are the acceptable ones that were looked into. A start from scratch is chosen only where none is acceptable
    and nothing was `once_valid`.
    """
    ordered = newest_first(seen)
    chosen = next((found for found in ordered if usable(found, suspects)), None)
    reason = "the newest valid one"
    if chosen is None:
        chosen = next((found for found in ordered if _proved_suspect(found, suspects)), None)
        reason = "the only valid one left: an attempt died while it loaded this, but its whole content is as written"
    others = [as_suspect(found, suspects) for found in ordered if found is not chosen]
    others += [found for found in passed_over if found.entry is not None and _is_newer(found.entry, chosen)]
    if chosen is not None:
        return Choice(Outcome.RESUME, chosen, newest_first(others), reason)
    if not seen and not once_valid:
        return Choice(Outcome.SCRATCH, None, newest_first(others), "nothing was ever saved")
    return Choice(Outcome.HOLD, None, newest_first(others), _why_none(ordered))


def staged(name: str, *, lives: bool | None) -> Checked:
    """What a folder in staging is. `lives`: whether its writer does; None is not known, so it may."""
    entry = staged_entry_of(name)
    if entry is None:
        return Checked(None, name, Validity.UNKNOWN, None, _FOREIGN)
    if lives is False:
        return Checked(entry, name, Validity.INCOMPLETE, None, "its save was never finished; nobody writes it any more")
    reason = "it is being written" if lives else "it may still be being written"
    return Checked(entry, name, Validity.IN_PROGRESS, None, reason)


def newest_first(found: Sequence[Checked]) -> tuple[Checked, ...]:
    """By training step and attempt; foreign names last, by name."""
    foreign = sorted((one for one in found if one.entry is None), key=lambda one: one.name)
    return (*sorted((one for one in found if one.entry is not None), key=_age_order, reverse=True), *foreign)


def as_suspect(found: Checked, suspects: frozenset[str]) -> Checked:
    """A valid one that an attempt died of is a suspect; whatever is wrong with the others says more."""
    if found.validity is not Validity.VALID or found.name not in suspects:
        return found
    return msgspec.structs.replace(found, validity=Validity.SUSPECT, reason=_SUSPECT)


def _age_order(found: Checked) -> tuple[int, tuple[int, int], str, str]:
    assert found.entry is not None, "newest_first keeps the others apart"
    return found.entry.age_order


def _is_newer(entry: Entry, chosen: Checked | None) -> bool:
    return chosen is None or chosen.entry is None or entry.age_order > chosen.entry.age_order


def _proved_suspect(found: Checked, suspects: frozenset[str]) -> bool:
    return found.validity is Validity.VALID and found.level is Level.CONTENT and found.name in suspects


def _why_none(seen: Sequence[Checked]) -> str:
    if not seen:
        return "something was saved, and nothing that counts is there now"
    return f"none of {len(seen)} is valid; the newest, {seen[0].name}: {seen[0].reason}"
