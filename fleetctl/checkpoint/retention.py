"""Which checkpoints may go. Pure: it judges what was found, it removes nothing.

Whatever is not known to be a whole checkpoint of this run stays: it is for a person. Of the whole ones the newest two
always stay, and all that any rule of the policy asks for. A start may have gone back to an older one: then the newest
by their training steps are not those that were written last, and both stay.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from fleetctl.checkpoint.model import AttemptNumber, Checked, Validity, one_line
from fleetctl.checkpoint.select import SETTLED, newest_first
from fleetctl.units import Duration

LEAST = 2  # what no policy goes below: the newest may turn out to be unloadable
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class Keep(Struct, frozen=True):
    """What its user wants to keep: the newest `last`, and of the older ones one for every `every`, if given."""

    last: int
    every: Duration | None = None


class Shunned(Struct, frozen=True):
    """What a start does not take, whatever it holds. `passed_over` are names, as `one_line` writes them, of what the
    start of the newest attempt did not take."""

    suspects: frozenset[str] = frozenset()
    passed_over: frozenset[str] = frozenset()
    at_most_step: int | None = None


NOTHING = Shunned()


_GUESSED = "its training step is a guess: for a person to remove"


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
    shunned: Shunned = NOTHING,
    guessed: Collection[str] = (),
) -> Plan:
    """Judge everything in a folder that counts for the run.

    Whatever is `shunned` takes no place among the newest. `tagged` are names that a person wants to keep; `used` those
    that an attempt has loaded or a framework's pointer names. Of the `guessed` the training step may be no more than a
    number in the name. `may_be_written`: an attempt lives, or it is not known that none does. `run_id` is empty where
    the folder was named by hand: then checkpoints of any run are judged.
    """
    ordered = [one for one in newest_first(found) if one.entry is not None]
    apart = {
        one.name: _why_shunned(one, shunned)
        or _why_apart(one, run_id, now, may_be_written=may_be_written)
        or (_GUESSED if one.name in guessed else "")
        for one in ordered
    }
    whole = [one for one in ordered if not apart[one.name]]
    written = sorted(whole, key=lambda one: _when_written(one, run_id), reverse=True)
    newest = max(keep.last, LEAST)
    last, lately = ({one.name for one in some[:newest]} for some in (whole, written))
    older = [one for one in whole if one.name not in last | lately]
    rules: tuple[tuple[Collection[str], str], ...] = (
        (last, f"one of the newest {newest}"),
        (lately, f"one of the {newest} written last"),
        (tagged, "tagged"),
        (used, "in use"),
        ({one.name for one in older if one.saved_at is None}, "not known when it was saved"),
        (_spaced(older, keep.every) if keep.every is not None else (), f"the first one in {keep.every}"),
    )
    verdicts = []
    for one in ordered:
        reason = apart[one.name] or next((why for names, why in rules if one.name in names), "")
        verdicts.append(Verdict(one, not reason, reason or "older than what is kept"))
    guard = dict.fromkeys(one.name for one in (*whole[:LEAST], *written[:LEAST]))
    return Plan(tuple(verdicts), tuple(guard))


def _why_shunned(one: Checked, shunned: Shunned) -> str:
    """Why no start takes it, "" if one may. It is left alone: what is wrong with it is for a person to find out."""
    assert one.entry is not None, "names that are no checkpoint were left out"
    if one.validity is not Validity.VALID:
        return f"{one.validity.value}: for a person to remove"
    if one.name in shunned.suspects:
        return "an attempt died while it loaded this: for a person to remove"
    if one_line(one.name) in shunned.passed_over:
        return "a start passed it over: for a person to remove"
    if shunned.at_most_step is not None and one.entry.training_step > shunned.at_most_step:
        return f"after step {shunned.at_most_step}, the last one wanted: for a person to remove"
    return ""


def _when_written(one: Checked, run_id: str) -> tuple[AttemptNumber, datetime, int]:
    """Greater is later. Of our own format of one run the attempts tell, whatever the clocks of their hosts say."""
    assert one.entry is not None, "names that are no checkpoint were left out"
    attempt = one.entry.attempt if run_id else (0, 0)
    return attempt, one.saved_at or one.touched_at or _LONG_AGO, one.entry.training_step


def _why_apart(one: Checked, run_id: str, now: datetime, *, may_be_written: bool) -> str:
    """Why no rule is asked about it, "" if it is a whole checkpoint of this run."""
    assert one.entry is not None, "names that are no checkpoint were left out"
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
