"""What is wrong with a spec, collected until the end: every problem has a place, a path and what was expected."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from fleetctl.errors import SpecError

MAX_SHOWN = 100  # nobody reads more, and a hostile file must not make a message of megabytes
_MAX_VALUE = 40  # characters of a value that are shown


class Place(Struct, frozen=True):
    """A position in a file, 1-based, or (line 0) the option or variable that a value came from."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source

    def order(self) -> tuple[bool, int, int]:
        """Sorts by position in the file; what came from elsewhere is last, in the order given."""
        return (not self.line, self.line, self.column)


class Problems(Struct):
    """The collector that the passes share."""

    _found: list[tuple[Place, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def add(self, place: Place, path: str, text: str) -> None:
        """`text` says what was expected. The path is left out where the place itself names it (`--set PATH`)."""
        named = not path or (not place.line and place.source.endswith(f" {path}"))
        self._found.append((place, f"{place}: {text}" if named else f"{place}: {path}: {text}"))

    def error(self) -> SpecError:
        """All of them, by position."""
        ordered = sorted(self._found, key=lambda found: found[0].order())
        lines = list(dict.fromkeys(line for _, line in ordered))  # an alias can lead to one mistake twice
        more = len(lines) - MAX_SHOWN
        shown = lines[:MAX_SHOWN] + ([f"and {more} more problems"] if more > 0 else [])
        return SpecError(tuple(shown))


def shown(text: str) -> str:
    """A value or name in a message: quoted, cut, and on one line whatever it holds."""
    return f'"{printable(text)}"'


def printable(text: str, limit: int = _MAX_VALUE) -> str:
    """The same without quotes."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in cut)


def listed(names: Iterable[str]) -> str:
    """`a, b or c`."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def guess(written: str, names: Iterable[str]) -> str:
    """`did you mean X?`, or else the valid names."""
    from difflib import get_close_matches

    names = tuple(names)
    close = get_close_matches(written[:_MAX_VALUE], names, n=1)
    return f"did you mean {close[0]}?" if close else f"expected {listed(names)}"
