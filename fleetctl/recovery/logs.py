"""What the log of one attempt says: lines that mean something, told exceptions, and the tasks that srun saw end. Pure.

A log is bytes of any value, of any length, from many ranks at once. Only its beginning and its end are looked at, and
lines that differ in their numbers alone are taken as one: a training prints the same for weeks, and from all ranks.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from msgspec import Struct

from fleetctl.recovery.patterns import Pattern, Patterns, Row, has_shape, matches, shape

HEAD_BYTES = 1 << 20  # of the beginning: wrong configurations and failed loads show there
TAIL_BYTES = 4 << 20  # of the end: thousands of ranks may tell the same there before the log ends
LATE_BYTES = 32 << 10  # what counts only at the end must stand in these last bytes
_MOST_LINES = 100_000  # from the end of the two
_PIECE_BYTES = 4000  # a longer line is taken as several
_SHAPES_HEAD, _SHAPES_TAIL = 256 << 10, 768 << 10  # bytes of different lines that are looked at, first and last
_MOST_HITS = 500  # lines that hold a text of a pattern
_MOST_OF_ROW = 100  # lines: those after them say the same, or follow from them
_SURVIVED = 3  # lines of progress after it: the ranks that live may still print one or two
_MOST_TRACEBACKS = 400
_MOST_FRAMES = 400  # lines of one of them
_MOST_ENDS = 10_000  # lines of srun

_ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_TRACEBACK = b"traceback (most recent call last)"
_EXCEPTION = re.compile(rb"[A-Za-z_][A-Za-z0-9_.]{0,100}(?::|$)")
# What may stand between the lines of a traceback: Slurm tells an end before it has passed on all that was printed
_NOT_RAISED = (b"the above exception was", b"during handling of the above", b"srun:", b"slurmstepd")
_TASK_ENDED = re.compile(rb"srun: error: ([A-Za-z0-9._-]{1,255}): tasks? ([0-9,-]{1,200}): ([ -~]{1,80})")
_TASK_SHAPE = b"srun: error: "
_ROOT_CAUSE = b"root cause (first observed failure)"
_ROOT_FIELD = re.compile(rb"\s*(time|host)\s*: ([!-~]{1,255})")
_ROOT_LINES = 8  # of torchrun's block about its first failure


class LogText(Struct, frozen=True):
    """The part of a log that is looked at: its lines, their shapes, and where each ends, in bytes."""

    lines: Sequence[bytes]
    shapes: Sequence[bytes]
    ends: Sequence[int]

    def since(self, last_bytes: int) -> int:
        """The index of the first line in the last so many bytes."""
        return bisect_left(self.ends, self.ends[-1] - last_bytes) if self.ends else 0


class Hit(Struct, frozen=True):
    """A line that means something: `at` is its index, `count` how many of its row there are."""

    at: int
    line: bytes
    row: Row
    count: int = 1
    survived: bool = False  # the training went on after it


class Told(Struct, frozen=True):
    """An exception that a program printed: its last line, without the name of the rank before it."""

    at: int
    line: bytes


class TaskEnd(Struct, frozen=True):
    """What srun says of tasks that ended badly, in its order."""

    node: str
    tasks: int
    how: str


class _Different(Struct, frozen=True):
    """The different shapes of a log in one text, each with a newline after it, and where they stand in the log."""

    text: bytes
    first: dict[bytes, int]
    last: dict[bytes, int]
    count: Counter[bytes]


def cut(log: bytes) -> LogText:
    """The beginning and the end, each in whole lines where they were cut."""
    if len(log) > HEAD_BYTES + TAIL_BYTES:
        head, tail = log[:HEAD_BYTES], log[-TAIL_BYTES:]
        log = head[: head.rfind(b"\n") + 1] + tail[tail.find(b"\n") + 1 :]
    lines = [line for line in log.replace(b"\r", b"\n").split(b"\n") if line][-_MOST_LINES:]
    if any(len(line) > _PIECE_BYTES for line in lines):
        lines = [line[at : at + _PIECE_BYTES] for line in lines for at in range(0, len(line), _PIECE_BYTES)]
    shapes = shape(b"\n".join(lines).lower()).split(b"\n")
    return LogText(lines, shapes if lines else [], list(accumulate(len(line) + 1 for line in lines)))


def hits(log: LogText, patterns: Patterns) -> tuple[Hit, ...]:
    """Lines of all rows, by where they stand; a line belongs to the first row that it matches."""
    finder = _Finder(log, patterns)
    return tuple(sorted((hit for row, compiled in patterns.rows for hit in finder.of_row(row, compiled)), key=_where))


def _where(hit: Hit) -> int:
    return hit.at


class _Finder:
    """Looks for one row after the other, and never gives a line to two of them."""

    def __init__(self, log: LogText, patterns: Patterns) -> None:
        self._log, self._patterns = log, patterns
        self._went_on = _went_on(log, patterns)
        self._whole, self._late = _different(log, 0), _different(log, log.since(LATE_BYTES))
        self._after = _firsts(log.shapes, self._went_on)
        self._counts: dict[bytes, int] = {}
        self._taken: set[bytes] = set()  # whole shapes
        self._lines: dict[bytes, set[int]] = {}  # of shapes of which some lines are taken, by their digits

    def of_row(self, row: Row, compiled: tuple[Pattern, ...]) -> list[Hit]:
        """What counts of a row's lines: the first ones, if possible of those after which nothing went on; or the last,
        where only the end of a log says something."""
        seen = self._late if row.late else self._whole
        own: dict[bytes, list[Pattern]] = {}
        for pattern in compiled:
            for one in _shapes(pattern, seen, {} if row.late else self._counts):
                if one not in self._taken and (row.anyway or not _is_hint(one, self._patterns)):
                    own.setdefault(one, []).append(pattern)
        found = {one: lines for one, by in own.items() if (lines := self._take(one, by, seen))}
        count = sum(seen.count[one] for one in found)
        if not found or count < row.at_least:
            return []
        if row.late:
            return [self._hit(row, max(seen.last[one] for one in found), count)]
        told = [
            self._hit(row, next((at for at in lines if at >= self._went_on), lines[0]), count)
            for lines in found.values()
        ]
        return sorted(told, key=lambda hit: (hit.survived, hit.at))[:_MOST_OF_ROW]

    def _take(self, one: bytes, by: list[Pattern], seen: _Different) -> list[int]:
        """The lines of a shape that these patterns match and no row before had: the first, and the first of the end."""
        exact = by if all(pattern.exact for pattern in by) else []
        if not exact and one not in self._lines:
            self._taken.add(one)
            return sorted({seen.first[one], self._after.get(one, seen.first[one])})
        had = self._lines.setdefault(one, set())
        free = [at for at in self._all(one) if at not in had]
        lines = [at for at in free if not exact or any(matches(p, one, self._log.lines[at].lower()) for p in exact)]
        had.update(lines)
        return lines

    def _all(self, one: bytes) -> list[int]:
        """The lines of a shape; of very many the first and the last."""
        found = [at for at, other in enumerate(self._log.shapes) if other == one]
        return found if len(found) <= _MOST_OF_ROW else [*found[: _MOST_OF_ROW // 2], *found[-_MOST_OF_ROW // 2 :]]

    def _hit(self, row: Row, at: int, count: int) -> Hit:
        return Hit(at, self._log.lines[at], row, count, at < self._went_on)


def exceptions(log: LogText, patterns: Patterns) -> tuple[Told, ...]:
    """The last lines of Python's tracebacks, by where they stand; of very many the last ones."""
    begins = [at for at, one in enumerate(log.shapes) if _TRACEBACK in one][-_MOST_TRACEBACKS:]
    found = (_raised(log, at) for at in begins)
    return tuple(told for told in found if told is not None and not _is_hint(log.shapes[told.at], patterns))


def task_ends(log: LogText) -> tuple[TaskEnd, ...]:
    """What srun said of tasks that ended badly."""
    lines = [line for line, one in zip(log.lines, log.shapes, strict=True) if one.startswith(_TASK_SHAPE)][:_MOST_ENDS]
    found = (_TASK_ENDED.match(line) for line in lines)
    return tuple(
        TaskEnd(match[1].decode("ascii"), _many(match[2].decode("ascii")), match[3].decode("ascii"))
        for match in found
        if match is not None
    )


def root_host(log: LogText) -> str:
    """The host of the first failure that torchrun's agents observed, by the earliest of their times; "" if none did."""
    found: list[tuple[str, str]] = []
    for at in [at for at, one in enumerate(log.shapes) if _ROOT_CAUSE in one][:_MOST_TRACEBACKS]:
        matched = (_ROOT_FIELD.match(line) for line in log.lines[at + 1 : at + _ROOT_LINES])
        fields = {match[1]: match[2].decode("ascii") for match in matched if match is not None}
        if b"host" in fields:
            found.append((fields.get(b"time", "~"), fields[b"host"]))
    return min(found, default=("", ""))[1]


def bare(line: bytes) -> bytes:
    """Without colours."""
    return _ANSI.sub(b"", line).strip()


def _different(log: LogText, since: int) -> _Different:
    shapes = log.shapes[since:]
    first = _firsts(log.shapes, since)
    return _Different(
        b"".join(one + b"\n" for one in _bounded(sorted(first, key=first.__getitem__))),
        first,
        dict(zip(shapes, range(since, since + len(shapes)), strict=True)),
        Counter(shapes),
    )


def _firsts(shapes: Sequence[bytes], since: int) -> dict[bytes, int]:
    return dict(zip(reversed(shapes[since:]), range(len(shapes) - 1, since - 1, -1), strict=True))


def _bounded(shapes: Sequence[bytes]) -> Iterator[bytes]:
    """The first and the last of them."""
    sizes = list(accumulate(len(one) + 1 for one in shapes))
    size = sizes[-1] if sizes else 0
    for one, end in zip(shapes, sizes, strict=True):
        if end <= _SHAPES_HEAD or end > size - _SHAPES_TAIL:
            yield one


def _shapes(pattern: Pattern, seen: _Different, counts: dict[bytes, int]) -> list[bytes]:
    """The shapes of lines that match. Only those with the rarest of the pattern's texts are looked at."""
    for needle in pattern.needles:
        if needle not in counts:
            counts[needle] = seen.text.count(needle)
        if not counts[needle]:
            return []
    needle = min(pattern.needles, key=lambda one: counts[one])
    found: list[bytes] = []
    at = -1
    for _ in range(_MOST_HITS):
        at = seen.text.find(needle, at + 1)
        if at < 0:
            break
        end = seen.text.index(b"\n", at)
        one = seen.text[seen.text.rfind(b"\n", 0, at) + 1 : end]
        if has_shape(pattern, one):
            found.append(one)
        at = end
    return found


def _is_hint(shaped: bytes, patterns: Patterns) -> bool:
    return any(has_shape(pattern, shaped) for pattern in patterns.hints)


def _went_on(log: LogText, patterns: Patterns) -> int:
    """The index of the first of the last lines of progress: what stands before them did not end the training."""
    known: dict[bytes, bool] = {}
    left = _SURVIVED
    for at in range(len(log.shapes) - 1, -1, -1):
        one = log.shapes[at]
        if one not in known:
            known[one] = any(has_shape(pattern, one) for pattern in patterns.progress)
        left -= known[one]
        if not left:
            return at
    return 0


def _raised(log: LogText, at: int) -> Told | None:
    """The line that ends a traceback: the first that is not indented. Ranks name themselves before each line."""
    if at and b"exception ignored" in log.shapes[at - 1]:
        return None
    prefix = log.lines[at][: log.lines[at].lower().find(_TRACEBACK)]
    for index in range(at + 1, min(at + _MOST_FRAMES, len(log.lines))):
        line = log.lines[index]
        own = line[len(prefix) :] if line.startswith(prefix) else b""
        if own[:1].strip() and _EXCEPTION.match(own) and not own.lower().startswith(_NOT_RAISED):
            return Told(index, own)
    return None


def _many(tasks: str) -> int:
    """How many tasks srun's list names: `1,3-5` has 4."""
    count = 0
    for part in tasks.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and len(first) < 9:
            count += max(1, int(last) - int(first) + 1) if last.isdigit() and len(last) < 9 else 1
    return count
