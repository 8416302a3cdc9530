"""slurm.conf and its siblings as values, read as Slurm reads them (slurm.conf.5; gres.conf and cgroup.conf are alike).

tests/integration/test_doctor_slurm.py compares each rule with what slurmctld makes of the same file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from fleetctl.errors import CannotTell

# Slurm takes `+=` and its like for `=`. Only a whole value in double quotes is quoted, and no other quotes count.
_PAIR = re.compile(r'\s*([A-Za-z0-9_.]+)\s*[-*+/]?=\s*(?:"([^"]*)"|(\S+))(?=\s|\Z)', re.ASCII)
_INCLUDE = re.compile(r"\s*include\s+(\S+)", re.IGNORECASE)
_NO_COMMENT = re.compile(r"(?:[^\\#]|\\.|\\\Z)*", re.DOTALL)  # up to a # that no backslash takes away, in quotes too
_GOES_ON = re.compile(r"(?<!\\)(?:\\\\)*\\\s*\Z", re.ASCII)
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
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
    `unread` are the Include lines that cannot be followed: nothing follows from a setting that is not there.
    """

    settings: Mapping[str, Setting] = {}
    rows: tuple[Mapping[str, str], ...] = ()
    unread: tuple[str, ...] = ()

    def get(self, key: str, default: str = "") -> str:
        found = self.settings.get(key.lower())
        return default if found is None else found.value

    def options(self, key: str) -> frozenset[str]:
        """A comma separated setting, lower case."""
        return frozenset(word.strip().lower() for word in self.get(key).split(",") if word.strip())

    def plugin(self, key: str, default: str) -> str:
        """The plugin's name, lower case and without its kind: `select/cons_tres` and `cons_tres` are one."""
        return _bare(self.get(key, default))

    def plugins(self, key: str) -> frozenset[str]:
        return frozenset(map(_bare, self.options(key)))

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


def _bare(plugin: str) -> str:
    return plugin.rpartition("/")[2].lower()


def read_conf(path: Path, read: Callable[[Path], str] | None = None) -> Conf:
    """The file and what it includes. `read` raises OSError for what cannot be read.

    :raises CannotTell: a file that cannot be read; nothing follows about what it says.
    """
    reader = _Reader(path, read or _read)
    reader.follow(path, reader.text(path), 0)
    return Conf(reader.settings, tuple(reader.rows), tuple(reader.unread))


class _Reader:
    def __init__(self, top: Path, read: Callable[[Path], str]) -> None:
        self._top, self._read = top, read
        self.settings: dict[str, Setting] = {}
        self.rows: list[Mapping[str, str]] = []
        self.unread: list[str] = []

    def follow(self, path: Path, text: str, depth: int) -> None:
        if depth > _DEEPEST:
            raise CannotTell(f"{path}: files include each other more than {_DEEPEST} deep")
        for number, line in _lines(text):
            place = f"{path.name}:{number}"
            if match := _INCLUDE.match(line):
                self._include(path, match[1], place, depth)
            elif pairs := _pairs(line):
                key, value = pairs[0]
                if key in _MANY:
                    self.rows.append(dict(pairs))
                else:  # a second one in the line is refused by Slurm
                    self.settings[key] = Setting(value, place)

    def _include(self, path: Path, name: str, place: str, depth: int) -> None:
        """`%c` is the cluster's name, lower case, as far as the lines before have told it."""
        cluster = self.settings.get("clustername")
        if "%c" in name and cluster is None:
            self.unread.append(f"Include {name} ({place})")
            return
        name = name.replace("%c", cluster.value.lower() if cluster else "")
        for included in dict.fromkeys((path.parent / name, self._top.parent / name)):
            try:  # 22.05 looks beside the file that includes; slurm.conf.5 says beside slurm.conf
                text = self._read(included)
            except FileNotFoundError:
                continue
            except OSError:
                text = self.text(included)
            self.follow(included, text, depth + 1)
            return
        self.text(path.parent / name)

    def text(self, path: Path) -> str:
        try:
            return self._read(path)
        except OSError as error:
            reason, remedy = error.strerror or "cannot be read", "name the file by --conf, or ask its owner"
            raise CannotTell(f"{path}: {reason}", remedy=remedy) from None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """(number, line) without comments and backslashes, continued lines joined. A comment ends a continued line, too."""
    held, began = "", 0
    for number, raw in enumerate(text.split("\n"), start=1):
        match = _NO_COMMENT.match(raw)
        line = match[0] if match else ""
        began = began or number
        if _GOES_ON.search(line):
            held += line.rstrip()[:-1]
            continue
        yield began, _ESCAPE.sub(r"\1", held + line)
        held, began = "", 0
    if began:
        yield began, _ESCAPE.sub(r"\1", held)


def _pairs(line: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    while match := _PAIR.match(line, at):
        found.append((match[1].lower(), match[3] if match[2] is None else match[2]))
        at = match.end()
    return found


def _read(path: Path) -> str:
    with open(path, "rb") as file:
        return file.read(_MOST_BYTES).decode("utf-8", "replace")
