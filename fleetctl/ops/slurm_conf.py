"""slurm.conf and its siblings as values (slurm.conf.5; the same syntax in gres.conf and cgroup.conf)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from fleetctl.errors import CannotTell

_PAIR = re.compile(r"""([A-Za-z][\w.]*)\s*\+?=\s*("[^"]*"|'[^']*'|\S*)""", re.ASCII)
_INCLUDE = re.compile(r"include\s+(\S+)", re.IGNORECASE)
_COMMENT = re.compile(r"(?<!\\)#.*")
_MANY = ("nodename", "partitionname", "nodeset", "downnodes", "frontendname", "name", "autodetect", "switchname")
_DEEPEST = 8  # Include in an Include; Slurm itself has no limit, and so never ends on a circle
_MOST_BYTES = 16 * 1024 * 1024


class Setting(Struct, frozen=True):
    """One setting, and where it stands."""

    value: str
    place: str


class Conf(Struct, frozen=True):
    """One file with all that it includes. Keys of `settings` and of each of `rows` are lower case, the last one wins.

    `rows` are the lines that may stand often, such as NodeName= and PartitionName=, in the order of the file.
    """

    settings: Mapping[str, Setting] = {}
    rows: tuple[Mapping[str, str], ...] = ()

    def get(self, key: str, default: str = "") -> str:
        found = self.settings.get(key.lower())
        return default if found is None else found.value

    def options(self, key: str) -> frozenset[str]:
        """A comma separated setting, lower case."""
        return frozenset(word.strip().lower() for word in self.get(key).split(",") if word.strip())

    def number(self, key: str, default: int) -> int | None:
        """A count of seconds or the like; None when what stands there is none (`INFINITE`, a slip)."""
        text = self.get(key, str(default))
        return int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else None

    def named(self, key: str) -> tuple[Mapping[str, str], ...]:
        """The rows that begin with this key, with those of a DEFAULT row before them filled in."""
        found: list[Mapping[str, str]] = []
        default: dict[str, str] = {}
        for row in self.rows:
            if key not in row:
                continue
            if row[key].upper() == "DEFAULT":
                default = {**default, **row}
            else:
                found.append({**default, **row})
        return tuple(found)


def read_conf(path: Path, read: Callable[[Path], str] | None = None) -> Conf:
    """The file and what it includes.

    :raises CannotTell: a file that cannot be read; nothing follows about what it says.
    """
    settings: dict[str, Setting] = {}
    rows: list[Mapping[str, str]] = []
    for place, line in _lines(path, read or _read, 0):
        pairs = [(key.lower(), value.strip("\"'")) for key, value in _PAIR.findall(line)]
        if pairs and pairs[0][0] in _MANY:
            rows.append(dict(pairs))
        else:
            settings.update((key, Setting(value, place)) for key, value in pairs)
    return Conf(settings, tuple(rows))


def _lines(path: Path, read: Callable[[Path], str], depth: int) -> Iterator[tuple[str, str]]:
    """(file:line, text) without comments, continued lines joined, included files in their place."""
    if depth > _DEEPEST:
        raise CannotTell(f"{path}: files include each other more than {_DEEPEST} deep")
    held, began = "", 0
    for number, raw in enumerate(read(path).splitlines(), start=1):
        line = held + _COMMENT.sub("", raw).rstrip()
        began = began if held else number
        if line.endswith("\\"):
            held = line[:-1]
            continue
        held = ""
        match = _INCLUDE.match(line.strip())
        if match and "%" not in match[1]:  # %c is the cluster's name, known only to Slurm
            yield from _lines(path.parent / match[1], read, depth + 1)
        else:
            yield f"{path.name}:{began}", line


def _read(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise CannotTell(f"{path}: {error.strerror}", remedy="name the file by --conf, or ask its owner") from None
