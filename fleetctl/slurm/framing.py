"""Finds the rows in a reply of sacct, whatever people wrote into names and comments.

Fields are joined by a mark that was drawn at random for this one call: texts that were written before do not contain
it, so the number of marks is certain, and a row ends where its last field does, JobIDRaw, which nobody can edit. Not
proof against intent: the command line of sacct shows the mark while it runs, and a user of that host who renames a job
before slurmdbd has been asked could forge a row. sacct has no quoting that would prevent it.
"""

from __future__ import annotations

import re

from fleetctl.errors import CannotTell
from fleetctl.slurm.books import Rows

_RAW_ID = r"[0-9]+(?:\.[A-Za-z0-9+]+)?"  # JobIDRaw: 123, 123.batch, 123.0+1
_RAW = re.compile(_RAW_ID)
_END = re.compile(rf"{_RAW_ID}\n")
_BEGINNING = re.compile(r"[0-9]*")
_JOB_ID = re.compile(r"[0-9]+(?:_(?:[0-9]+|\[[^\n\]]*\]?)|\+[0-9]+)?(?:\.[A-Za-z0-9+]+)?")
_FIRST, _LAST = "DBIndex", "JobIDRaw"


def frame(text: str, mark: str) -> Rows:
    """The header and the rows of `sacct --parsable2 --delimiter=MARK --format=DBIndex,JobID,...,JobIDRaw`.

    :raises CannotTell: there is no header, or the last row is not whole. A row in the middle that is not whole is no
        error: its text is in `unframed`.
    """
    head, newline, body = text.partition("\n")
    columns = tuple(head.split(mark))
    if not newline or len(columns) < 3 or columns[0] != _FIRST or columns[-1] != _LAST:
        raise CannotTell(f"sacct's reply cannot be read: it begins with {head[:80]!r} instead of its header")
    if not body:
        return Rows(columns, ())
    rows = [tuple(line.split(mark)) for line in body.split("\n")]
    if rows.pop() == ("",) and all(_is_whole(row, len(columns)) for row in rows):
        return Rows(columns, tuple(rows))
    return _piecewise(columns, body.split(mark), mark)


def _is_whole(row: tuple[str, ...], width: int) -> bool:
    """Whether a line is a row. A row with a newline in it is none in any of its lines: each has too few marks."""
    return len(row) == width and _BEGINNING.fullmatch(row[0]) is not None and _RAW.fullmatch(row[-1]) is not None


def _piecewise(columns: tuple[str, ...], pieces: list[str], mark: str) -> Rows:
    """Takes what is a row for certain, from one sure beginning to a sure end, and what lies between as it came.

    The last field of a row and the first of the next are one piece, with the newline between them.
    """
    step, end = len(columns) - 1, len(pieces) - 1
    if _END.fullmatch(pieces[-1]) is None:
        raise CannotTell(f"sacct's reply cannot be read: it was cut, and ends in {pieces[-1][-80:]!r}")
    rows: list[tuple[str, ...]] = []
    unframed: list[str] = []
    at = 0
    rest = pieces[0]  # of the piece at `at`: what belongs to no row yet
    while at < end:
        if _is_row(pieces, at, step):
            before, _, first = rest.rpartition("\n")
            unframed += [before] if before.strip() else []
            last, _, rest = pieces[at + step].partition("\n")
            rows.append((first, *pieces[at + 1 : at + step], last))
            at += step
            continue
        start = next((place for place in range(at + 1, end) if _is_row(pieces, place, step)), None)
        if start is None:
            raise CannotTell(f"sacct's reply cannot be read: its last row is not whole, {pieces[-1][-80:]!r}")
        tail, _, first = pieces[start].rpartition("\n")
        unframed.append(mark.join([rest, *pieces[at + 1 : start], tail]))
        at, rest = start, first
    return Rows(columns, tuple(rows), tuple(unframed))


def _is_row(pieces: list[str], at: int, step: int) -> bool:
    end = at + step
    if end >= len(pieces) or not _begins(pieces, at):
        return False
    ends = _END.match(pieces[end]) is not None
    return ends and (end == len(pieces) - 1 or _begins(pieces, end))


def _begins(pieces: list[str], at: int) -> bool:
    """Whether a row can begin in the last line of this piece."""
    _, newline, first = pieces[at].rpartition("\n")
    if at and not newline:
        return False
    return _BEGINNING.fullmatch(first) is not None and _JOB_ID.fullmatch(pieces[at + 1]) is not None
