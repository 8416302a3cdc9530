"""Which checkpoints may go. Pure: it judges what was found, it removes nothing.

Whatever is not known to be a whole checkpoint of this run stays: it is for a person. Of the whole ones the newest two
always stay, and all that any rule of the policy asks for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from msgspec import Struct

from fleetctl.checkpoint.model import Checked, Validity
from fleetctl.checkpoint.select import SETTLED, newest_first
from fleetctl.units import Duration

LEAST = 2  # what no policy goes below: the newest may turn out to be unloadable


class Keep(Struct, frozen=True):
    """What its user wants to keep: the newest `last`, and of the older ones one for every `every`, if given."""

    last: int
    every: Duration | None = None


class Verdict(Struct, frozen=True):
    """What becomes of one checkpoint, and why."""

    found: Checked
    removed: bool
    reason: str


class Plan(Struct, frozen=True):
    """Newest first. `guard` are the names that must be there still when something is removed."""

    verdicts: tuple[Verdict, ...]
    guard: tuple[str, ...]

    @property
    def removed(self) -> tuple[Checked, ...]:
        """What may go, newest first."""
        return tuple(one.found for one in self.verdicts if one.removed)


def plan(
    found: Sequence[Checked],
    keep: Keep,
    *,
    run_id: str,
    now: datetime,
    may_be_written: bool,
    tagged: Collection[str] = (),
    used: Collection[str] = (),
) -> Plan:
    """Judge everything in a folder that counts for the run.

    `tagged` are names that a person wants to keep; `used` those that an attempt has loaded or a framework's pointer
    names. `may_be_written`: an attempt lives, or it is not known that none does. `run_id` is empty where the folder was
    named by hand: then checkpoints of any run are judged.
    """
    ordered = [one for one in newest_first(found) if one.entry is not None]
    whole = [one for one in ordered if not _why_apart(one, run_id, now, may_be_written=may_be_written)]
    newest = max(keep.last, LEAST)
    last = {one.name for one in whole[:newest]}
    spaced = _spaced(whole[newest:], keep.every) if keep.every is not None else frozenset[str]()
    verdicts = []
    for one in ordered:
        reason = _why_apart(one, run_id, now, may_be_written=may_be_written)
        if not reason and one.name in last:
            reason = f"one of the newest {newest}"
        elif not reason and one.name in tagged:
            reason = "tagged"
        elif not reason and one.name in used:
            reason = "in use"
        elif not reason and one.saved_at is None:
            reason = "not known when it was saved"
        elif not reason and one.name in spaced:
            reason = f"the first one in {keep.every}"
        verdicts.append(Verdict(one, not reason, reason or "older than what is kept"))
    return Plan(tuple(verdicts), tuple(one.name for one in whole[:LEAST]))


def _why_apart(one: Checked, run_id: str, now: datetime, *, may_be_written: bool) -> str:
    """Why no rule is asked about it, "" if it is a whole checkpoint of this run."""
    assert one.entry is not None, "names that are no checkpoint were left out"
    if one.validity is not Validity.VALID:
        return f"{one.validity.value}: for a person to remove"
    if not one.resumable:
        return "weights alone: for a person to remove"
    if run_id and one.entry.is_own and one.entry.run_id != run_id:
        return f"of run {one.entry.run_id}"
    if not one.entry.is_own and may_be_written and (one.touched_at is None or one.touched_at > now - SETTLED):
        return "it may still be being written"
    return ""


def _spaced(older: Sequence[Checked], every: Duration) -> frozenset[str]:
    """The first one saved, and each that was saved `every` or more after the one kept before it.

    Counted from the oldest, so that what was kept once is kept again next time.
    """
    kept, last = set(), None
    dated = [(one.saved_at, one.name) for one in older if one.saved_at is not None]
    for saved_at, name in sorted(dated):
        if last is None or (saved_at - last).total_seconds() >= every.seconds:
            kept.add(name)
            last = saved_at
    return frozenset(kept)
