"""What lines of a log mean, as data: rows of patterns, each with a cause and an advice. Pure.

A pattern is looked for in one line, in any case. `*` stands for anything, `#` for digits, `~` for what may stand
between a name and its value (blanks, colons, equal signs, quotes), `{a|b}` for one of several. Where it begins or ends
with a letter or digit, so must a word. There is nothing else: any line is searched in linear time, which no regular
expression of a site promises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from fleetctl.errors import UsageError
from fleetctl.recovery.model import Advice, CauseClass

SCHEMA = 1
MOST_BYTES = 1 << 20  # of a file of patterns
_MOST_PATTERNS = 1000  # of all rows; each costs a look through the whole log
_MOST_ALTERNATIVES = 64  # of one pattern
_MOST_CHARS = 200
_LEAST_CHARS = 3  # of the longest plain text in a pattern: shorter ones are everywhere
_TO_HASHES = bytes.maketrans(b"0123456789", b"##########")
_DIGITS = re.compile(rb"[0-9]+")
_JOINTS = re.compile(rb"[ \t:=|'\"(]+")
_WORD = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_#")
_CHARS = re.compile(r"[ -~]+")
_BRACES = re.compile(r"\{([^{}]*)\}")


class Pattern(Struct, frozen=True):
    """One pattern, taken apart. `parts` stand between its stars, with # for digits; `exact` has them as they are, where
    they are its own. `needles` are plain texts that a line must hold, the longest first."""

    text: str
    parts: tuple[bytes, ...]
    exact: tuple[bytes, ...]
    needles: tuple[bytes, ...]
    joints: bool
    begins_word: bool
    ends_word: bool


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """What lines of one kind mean.

    `cascade`: it follows from something before it, and only counts where nothing else was found. `again`: the advice
    once the same came back. `lived`: the advice instead, where the attempt had made progress for hours. `one_node`: the
    advice instead, where one of several nodes alone says so. `early_s`: after so long it is a cascade. `late`: it says
    something only at the end of the log, where the last of `at_least` lines counts. `anyway`: also in lines that only
    give advice.
    """

    name: str
    cause: CauseClass
    advice: Advice
    patterns: tuple[str, ...]
    cascade: bool = False
    again: Advice | None = None
    lived: Advice | None = None
    one_node: Advice | None = None
    early_s: float | None = None
    late: bool = False
    at_least: int = 1
    anyway: bool = False


class File(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of rows. `hints` are lines that only give advice, `progress` what only a training that goes on says."""

    schema: int
    rows: tuple[Row, ...] = ()
    hints: tuple[str, ...] = ()
    progress: tuple[str, ...] = ()


class Patterns(Struct, frozen=True):
    """All rows, the more telling of two for the same line first."""

    rows: tuple[tuple[Row, tuple[Pattern, ...]], ...]
    hints: tuple[Pattern, ...]
    progress: tuple[Pattern, ...]


def patterns_in(data: bytes, where: str, base: Patterns | None = None) -> Patterns:
    """The patterns of a file. Its rows come before those of `base`, and replace those of the same name.

    :raises UsageError: the first mistake in it, in one line with its place.
    """
    if len(data) > MOST_BYTES:
        raise UsageError(f"{where} has more than {MOST_BYTES} bytes")
    file = _file(data, where)
    rows = tuple((row, _compiled(row.patterns, f"{where}: row {row.name!r}")) for row in file.rows)
    names = [row.name for row in file.rows]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"{where}: two rows are called {twice!r}")
    if bare := next((row.name for row in file.rows if not row.patterns), None):
        raise UsageError(f"{where}: row {bare!r} has no patterns")
    rest = () if base is None else tuple(pair for pair in base.rows if pair[0].name not in names)
    made = Patterns(
        (*rows, *rest),
        (*_compiled(file.hints, f"{where}: hints"), *(() if base is None else base.hints)),
        (*_compiled(file.progress, f"{where}: progress"), *(() if base is None else base.progress)),
    )
    if sum(len(patterns) for _, patterns in made.rows) > _MOST_PATTERNS:
        raise UsageError(f"{where}: more than {_MOST_PATTERNS} patterns in all, with each {{a|b}} counted")
    return made


def _file(data: bytes, where: str) -> File:
    try:
        raw = json.loads(data)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}:{error.lineno}:{error.colno}: no JSON: {error.msg}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{where}: no JSON") from None
    if not isinstance(raw, Mapping) or raw.get("schema") != SCHEMA:
        raise UsageError(f"{where}: schema: not {SCHEMA}")
    try:
        return msgspec.convert(raw, File)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {_place(raw, str(error))}") from None


def _place(raw: Mapping[str, Any], text: str) -> str:
    """msgspec's words, and the name of the row that they are about."""
    match = re.search(r"\$\.rows\[([0-9]+)\]", text)
    rows = raw.get("rows")
    if match is None or not isinstance(rows, list):
        return text
    row = rows[int(match[1])]
    name = row.get("name") if isinstance(row, Mapping) else None
    return f"row {name!r}: {text}" if isinstance(name, str) else text


def _compiled(texts: Iterable[str], where: str) -> tuple[Pattern, ...]:
    return tuple(_pattern(text, f"{where}: {whole!r}") for whole in texts for text in _expanded(whole, where))


def _expanded(text: str, where: str) -> Iterator[str]:
    """One text for each choice of alternatives."""
    if not _CHARS.fullmatch(text) or len(text) > _MOST_CHARS:
        raise UsageError(f"{where}: {text[:60]!r} is not of 1 to {_MOST_CHARS} printable ASCII characters")
    found = [""]
    parts = _BRACES.split(text)  # plain and alternatives by turns
    for index, part in enumerate(parts):
        choices = part.split("|") if index % 2 else [part]
        if not index % 2 and set(part) & set("{}|"):
            raise UsageError(f"{where}: {text!r}: a brace without its other one, or | outside of braces")
        found = [before + choice for before in found for choice in choices]
        if len(found) > _MOST_ALTERNATIVES:
            raise UsageError(f"{where}: {text!r} has more than {_MOST_ALTERNATIVES} alternatives")
    yield from dict.fromkeys(found)


def _pattern(text: str, where: str) -> Pattern:
    low = text.lower().encode("ascii")
    digits, joints = b"#" in low, b"~" in low
    if digits and _DIGITS.search(low):
        raise UsageError(f"{where}: # beside other digits: it stands for all of a line's")
    if joints and _JOINTS.search(low):
        raise UsageError(f"{where}: ~ beside blanks, colons or quotes: it stands for all of a line's")
    parts = tuple(part for part in shape(low).split(b"*") if part)
    exact = () if digits or not _DIGITS.search(low) else tuple(part for part in low.split(b"*") if part)
    needles = tuple(chunk for part in parts for chunk in re.split(rb"[#~]", part) if len(chunk) >= _LEAST_CHARS)
    if not needles:
        raise UsageError(f"{where}: no plain text of {_LEAST_CHARS} characters in it")
    return Pattern(
        text,
        parts,
        exact,
        tuple(sorted(set(needles), key=lambda needle: (-len(needle), needle))),
        joints,
        low[0] in _WORD,
        low[-1] in _WORD,
    )


def shape(text: bytes) -> bytes:
    """With # for each run of digits: the lines of a training that goes on have few shapes. No regular expression, which
    would take a second for some megabytes of numbers."""
    text = text.translate(_TO_HASHES)
    while b"##" in text:
        text = text.replace(b"##", b"#")
    return text


def matches(pattern: Pattern, shaped: bytes, line: bytes) -> bool:
    """Whether a line, in lower case, has the parts of the pattern in their order; `shaped` is its shape. Linear in its
    length."""
    return _has(pattern, pattern.parts, shaped) and (not pattern.exact or _has(pattern, pattern.exact, line))


def has_shape(pattern: Pattern, shaped: bytes) -> bool:
    """The same for a pattern without digits of its own."""
    return all(needle in shaped for needle in pattern.needles) and _has(pattern, pattern.parts, shaped)


def _has(pattern: Pattern, parts: tuple[bytes, ...], line: bytes) -> bool:
    if pattern.joints:
        line = _JOINTS.sub(b"~", line)
    at, last = 0, len(parts) - 1
    for index, part in enumerate(parts):
        begins = pattern.begins_word and index == 0
        at = _find(line, part, at, begins=begins, ends=pattern.ends_word and index == last)
        if at < 0:
            return False
        at += len(part)
    return True


def _find(line: bytes, part: bytes, at: int, *, begins: bool, ends: bool) -> int:
    while (at := line.find(part, at)) >= 0:
        end = at + len(part)
        before = begins and at > 0 and line[at - 1] in _WORD
        after = ends and end < len(line) and line[end] in _WORD
        if not before and not after:
            return at
        at += 1
    return -1
