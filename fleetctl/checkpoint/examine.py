"""Look at one checkpoint, as deep as asked: what it is, whether it is whole, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fleetctl.checkpoint import known
from fleetctl.checkpoint.format import Facts, Format
from fleetctl.checkpoint.look import Ledger, Look, moment
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity, one_line
from fleetctl.checkpoint.select import NOT_KNOWN
from fleetctl.checkpoint.storage import Kind, Storage, silent
from fleetctl.checkpoint.verified import NoNotes, Notes

_NO_NOTES = NoNotes()


def examine(
    storage: Storage,
    directory: Path,
    entry: Entry,
    level: Level,
    *,
    wanted: str = known.AUTO,
    ranks: int | None = None,
    pulse: Callable[[int], None] = silent,
    notes: Notes = _NO_NOTES,
) -> Checked:
    """Look at the checkpoint `entry` below `directory`. Never raises for what lies there.

    `wanted` is the format that it must have. `ranks` is the training's, where known. `pulse` is told the bytes of
    every read, 0 for names: a sign that the storage answers. `notes` know what of its content was right before.
    """
    ledger = Ledger(pulse)
    look = Look(storage, directory, (entry.name,), ledger, ranks=ranks)
    form, facts, note = None, Facts(), ""
    try:
        kind = look.kind()
        if kind is None:
            look.missing("", "is gone")
        elif kind is Kind.LINK:
            look.unread("", "is a link, and links are not followed")
        elif kind is Kind.OTHER:
            look.wrong("", "is no file and no folder")
        else:
            form = known.recognise(look, wanted)
            if form is None:
                return Checked(None, entry.name, Validity.UNKNOWN, None, NOT_KNOWN, ledger.bytes_read)
            facts, note = _examine(look, form, level, notes)
    except OSError as error:
        look.unread("", f"cannot be read: {one_line(error.strerror or str(error))}")
    return _checked(entry, look, form, facts, note)


def _examine(look: Look, form: Format, level: Level, notes: Notes) -> tuple[Facts, str]:
    facts = Facts()
    with look.judging(""):
        facts = form.examine(look, min(level, Level.STRUCTURE))
    note = ""
    if level >= Level.CONTENT and not look.ledger.faults:
        from fleetctl.checkpoint.content import check_content  # a start that reads no content needs no threads

        with look.judging(""):
            note = check_content(look, facts.content(), notes) or _unproved(facts)
        if not note:
            look.passed(Level.CONTENT)
    return facts, note


def _unproved(facts: Facts) -> str:
    """Why not all of its content could be compared, "" if it was."""
    if not facts.unproved:
        return ""
    more = f" and {len(facts.unproved) - 1} more" if len(facts.unproved) > 1 else ""
    return f"{one_line(facts.unproved[0])}{more}: the format has no checksum"


def _checked(entry: Entry, look: Look, form: Format | None, facts: Facts, note: str) -> Checked:
    ledger = look.ledger
    reason, validity = note, Validity.VALID
    if ledger.worst is not None:
        validity = ledger.worst.validity
        more = f" (and {ledger.faults - 1} more)" if ledger.faults > 1 else ""
        reason = f"{ledger.worst.reason}{more}"
    return Checked(
        entry=entry,
        name=entry.name,
        validity=validity,
        level=ledger.passed,
        reason=reason,
        bytes_read=ledger.bytes_read,
        size_bytes=facts.size_bytes,
        saved_at=facts.saved_at,
        format=None if form is None else form.name,
        pieces=tuple(ledger.pieces),
        faults=ledger.faults,
        deepest=Level.STRUCTURE if facts.unproved else Level.CONTENT,
        resumable=facts.resumable,
        uncommitted=facts.uncommitted,
        ranks=facts.ranks,
        touched_at=moment(ledger.touched_at_s),
        training_step=facts.training_step,
    )
