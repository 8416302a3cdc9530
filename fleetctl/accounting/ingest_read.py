"""A run directory, read as what it is for a service of the site: something that a user may have written in any way.

No link below its folder is followed, nothing that waits is opened, and the amount of files and bytes has a limit. Its
stats alone tell whether anything has changed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

from msgspec import Struct

from fleetctl.accounting.ingest_rows import AttemptRead, RunRead
from fleetctl.health.store import Foreign, read_bounded
from fleetctl.rundir.model import Event, attempt_number
from fleetctl.rundir.parse import claim_in, events_in, progress_in, record_in, saves_of

READER = 1  # part of each digest: raise it when more is made of what is read, and everything is read again
MOST_BYTES = 64 << 20  # of one run: a save each minute for half a year
MOST_EVENT_BYTES = 32 << 20  # of that: some 100,000 events, which take ten times the memory
MOST_FILES = 200_000  # of one run: a sweep of 10,000 elements with ten attempts each

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GROWTH = 1 << 20  # a file may grow between the look and the reading

# As fleetctl writes them: 01 and 1 would be one number
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_ATTEMPT = re.compile(rf"({_NUMBER.pattern})\.({_NUMBER.pattern})", re.ASCII)
_EVENTS = re.compile(r".{1,200}\.jsonl")

RelativePath = tuple[str, ...]


class _Tree(Struct, frozen=True):
    """What is looked for in a folder: files and folders by name, and all entries of a pattern (None: files)."""

    files: tuple[str, ...] = ()
    folders: Mapping[str, _Tree] = {}
    each: tuple[re.Pattern[str], _Tree | None] | None = None


_ATTEMPTS = _Tree(each=(_ATTEMPT, _Tree(files=("progress.json", "saves.jsonl"))))
_RUN = _Tree(
    files=("run.json", "spec.json"),
    folders={
        "events": _Tree(each=(_EVENTS, None)),
        "submissions": _Tree(each=(_NUMBER, _Tree(files=("claim.json",)))),
        "attempts": _ATTEMPTS,
        "tasks": _Tree(each=(_NUMBER, _Tree(folders={"attempts": _ATTEMPTS}))),
    },
)


class Look(Struct, frozen=True):
    """The files of a run that count, with their sizes in bytes, its owner, and one number for all of their stats."""

    uid: int
    sizes: Mapping[RelativePath, int]
    digest: int


@contextmanager
def opened(path: str) -> Iterator[int]:
    """The folder of a run. :raises OSError, Foreign: it is none."""
    with _folder(path, None) as here:
        yield here


def look(here: int) -> Look:
    """What there is, without reading it.

    :raises OSError: it cannot be looked at.
    :raises Foreign: something in it is not as fleetctl makes it.
    """
    uid = os.fstat(here).st_uid
    sizes: dict[RelativePath, int] = {}
    seen = blake2b(f"{READER} {uid}".encode(), digest_size=8)
    for path, found in _walk(here, _RUN, ()):
        sizes[path] = found.st_size
        if path == ("run.json",) and found.st_uid != uid:
            raise Foreign(f"its run.json belongs to uid {found.st_uid}, and its folder to uid {uid}")
        if len(sizes) > MOST_FILES:
            raise Foreign(f"it has more than {MOST_FILES} files")
        seen.update(repr((path, found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode)).encode())
    if sum(sizes.values()) > MOST_BYTES:
        raise Foreign(f"it holds more than {MOST_BYTES} bytes")
    if sum(size for path, size in sizes.items() if path[0] == "events") > MOST_EVENT_BYTES:
        raise Foreign(f"its events have more than {MOST_EVENT_BYTES} bytes")
    return Look(uid, sizes, int.from_bytes(seen.digest(), "big", signed=True))


def read(here: int, seen: Look, where: str) -> RunRead:
    """What its files say. What one attempt's own files do not say is not known; all else must be whole.

    :raises OSError, Foreign, RunDirError: it cannot be read.
    :raises Exception: ValueError, TypeError and their like for what fleetctl never wrote there.
    """
    record = record_in(_json(_bytes(here, ("run.json",), seen)), f"{where}/run.json")
    events: list[Event] = []
    claims = {}
    for path in sorted(seen.sizes):
        if path[0] == "events":
            events += events_in(_bytes(here, path, seen))
        elif path[0] == "submissions" and (raw := _json(_bytes(here, path, seen))) is not None:
            claims[int(path[1])] = claim_in(raw)
    return RunRead(record, tuple(events), claims, tuple(_attempts(here, seen)), _checkpoints(here, seen))


def _attempts(here: int, seen: Look) -> Iterator[AttemptRead]:
    for folder in sorted({path[:-1] for path in seen.sizes if path[0] in ("attempts", "tasks")}):
        number = attempt_number(folder[-1])
        assert number is not None, "_ATTEMPT is its pattern"
        task = int(folder[1]) if folder[0] == "tasks" else None
        told = _json(_loose(here, (*folder, "progress.json"), seen))
        yield AttemptRead(task, number, progress_in(told), saves_of(_loose(here, (*folder, "saves.jsonl"), seen)))


def _checkpoints(here: int, seen: Look) -> str | None:
    raw = _json(_loose(here, ("spec.json",), seen))
    if not isinstance(raw, dict):
        return None
    checkpoint = raw.get("checkpoint")
    form = checkpoint.get("format") if isinstance(checkpoint, dict) else ""
    return form if isinstance(form, str) else None


def _walk(here: int, tree: _Tree, path: RelativePath) -> Iterator[tuple[RelativePath, os.stat_result]]:
    for name in tree.files:
        yield from _stat(here, (*path, name))
    for name, below in tree.folders.items():
        yield from _into(here, name, below, path)
    if tree.each is not None:
        pattern, inside = tree.each
        for name in _names(here, pattern):
            if inside is None:
                yield from _stat(here, (*path, name))
            else:
                yield from _into(here, name, inside, path)


def _stat(here: int, path: RelativePath) -> Iterator[tuple[RelativePath, os.stat_result]]:
    try:
        yield path, os.stat(path[-1], dir_fd=here, follow_symlinks=False)
    except FileNotFoundError:
        return


def _into(here: int, name: str, tree: _Tree, path: RelativePath) -> Iterator[tuple[RelativePath, os.stat_result]]:
    try:
        with _folder(name, here) as below:
            yield from _walk(below, tree, (*path, name))
    except FileNotFoundError:  # not yet, or no more
        return


def _names(here: int, pattern: re.Pattern[str]) -> list[str]:
    found = []
    with os.scandir(here) as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name):
                found.append(entry.name)
            if len(found) > MOST_FILES:
                raise Foreign(f"it has more than {MOST_FILES} files")
    return sorted(found)


@contextmanager
def _folder(name: str, within: int | None) -> Iterator[int]:
    try:
        here = os.open(name, _FOLDER, dir_fd=within)
    except NotADirectoryError:  # what O_DIRECTORY says of a link, too (open(2))
        raise Foreign(f"{name} is no folder, or a symbolic link") from None
    try:
        yield here
    finally:
        os.close(here)


def _bytes(here: int, path: RelativePath, seen: Look) -> bytes:
    """Nothing where it is not there (any more). :raises OSError, Foreign: it cannot be read."""
    if path not in seen.sizes:
        return b""
    try:
        return _down(here, path, seen.sizes[path] + _GROWTH)
    except FileNotFoundError:
        return b""


def _down(here: int, path: RelativePath, most: int) -> bytes:
    if len(path) == 1:
        return read_bounded(here, path[0], most, ours=False)
    with _folder(path[0], here) as below:
        return _down(below, path[1:], most)


def _loose(here: int, path: RelativePath, seen: Look) -> bytes:
    """The same, and nothing either where it is no file that could be read: a training may write anything there."""
    try:
        return _bytes(here, path, seen)
    except Foreign:
        return b""


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
