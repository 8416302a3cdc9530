"""How `fleetctl ckpt` prints what it found: as a table, as fields, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from fleetctl.cli.context import app
from fleetctl.cli.output import note, print_fields, print_json, print_table

if TYPE_CHECKING:
    from fleetctl.checkpoint.model import Checked, Choice
    from fleetctl.cli.ckpt_place import Place

SHOWN = 50  # of `ls` without --all, and of what `resolve` passed over: each costs some reads
FOLDS = ("REASON", "WHY", "NAME")  # the columns that may take several lines
_COLUMNS = ("STEP", "AGE", "SIZE", "FORMAT", "VALIDITY", "LEVEL", "REASON", "NAME")
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def print_found(place: Place, found: Sequence[Checked], *, as_json: bool) -> None:
    if as_json:
        print_json([as_json_value(place, one) for one in found])
    elif found:
        now = app().clock.now()
        print_table(_COLUMNS, [_row(one, now) for one in found], folds=FOLDS)


def print_choice(place: Place, choice: Choice, passed: Sequence[Checked], *, as_json: bool) -> None:
    if as_json:
        chosen = as_json_value(place, choice.chosen)
        why = {"outcome": choice.outcome.value, "why": choice.reason}
        print_json({**why, **chosen, "passed_over": [as_json_value(place, one) for one in passed]})
        return
    fields = [("outcome", choice.outcome.value), ("why", choice.reason)]
    if choice.chosen is not None and choice.chosen.entry is not None:
        fields += [
            ("step", str(choice.chosen.entry.training_step)),
            ("path", f"{place.directory}/{choice.chosen.name}"),
        ]
        fields += [("saved", f"{age} ago")] if (age := age_of(choice.chosen.saved_at, app().clock.now())) else []
    for number, one in enumerate(passed[:SHOWN]):
        fields.append(("" if number else "not", f"{one.name}  {one.validity.value}: {one.reason}"))
    print_fields(fields)
    if len(passed) > SHOWN:
        note(f"{len(passed) - SHOWN} more were passed over: --json")


def as_json_value(place: Place, found: Checked | None) -> dict[str, object]:
    """The keys of a checkpoint; docs/json.md describes them. All null for none."""
    entry = found.entry if found is not None else None
    own = entry is not None and entry.is_own
    inner = ".staging/" if entry is not None and entry.staging else ""
    return {
        "name": found and found.name,
        "path": found and f"{place.directory}/{inner}{found.name}",
        "training_step": entry and entry.training_step,
        "run_id": entry.run_id if entry and own else None,
        "attempt": f"{entry.attempt[0]}.{entry.attempt[1]}" if entry and own else None,
        "saved_at": found and found.saved_at and found.saved_at.isoformat(),
        "size_bytes": found and found.size_bytes,
        "format": found and found.format,
        "resumable": found and found.resumable,
        "ranks": found and found.ranks,
        "validity": found and found.validity.value,
        "level": found and found.level and found.level.name.lower(),
        "reason": found and (found.reason or None),
        "pieces": found
        and [{"name": one.name, "validity": one.validity.value, "reason": one.reason} for one in found.pieces],
        "faults": found and found.faults,
        "bytes_read": found and found.bytes_read,
    }


def _row(found: Checked, now: datetime) -> tuple[str, ...]:
    return (
        "" if found.entry is None else str(found.entry.training_step),
        age_of(found.saved_at, now),
        size_of(found.size_bytes),
        found.format or "",
        found.validity.value if found.resumable else f"{found.validity.value} (weights)",
        "" if found.level is None else found.level.name.lower(),
        found.reason,
        found.name,
    )


def age_of(moment: datetime | None, now: datetime) -> str:
    """Like 3h, "" when it is not known."""
    if moment is None:
        return ""
    seconds = int((now - moment).total_seconds())
    if seconds < 0:
        return "in the future"
    unit, size_s = next(((unit, size_s) for unit, size_s in _UNITS if seconds >= size_s), ("s", 1))
    return f"{seconds // size_s}{unit}"


def size_of(size_bytes: int | None) -> str:
    """Like 1.5 GiB, "" when it is not known."""
    if size_bytes is None:
        return ""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
