"""Files below a user's folder: no link is followed, nothing that waits is opened, only plain files of its owner."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from fleetctl.errors import FleetctlError
from fleetctl.health.store import Foreign

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_AT_ONCE_BYTES = 1 << 20
_MOST_WORDS = 300


def words_of(error: BaseException) -> str:
    """What went wrong, in one bounded line that can be printed."""
    if isinstance(error, FleetctlError):
        words = error.message
    elif isinstance(error, OSError):
        words = error.strerror or str(error)
    elif isinstance(error, Foreign):
        words = str(error)
    else:
        words = f"not what fleetctl writes ({type(error).__name__}: {error})"
    line = " ".join("".join(char if char.isprintable() else " " for char in words).split())
    return line.encode("utf-8", "replace").decode()[:_MOST_WORDS] or type(error).__name__


def plain(handle: int, most: int, uid: int) -> bytes:
    """All of a small file of this owner; closes it. :raises OSError, Foreign: it is none."""
    try:
        found = os.fstat(handle)
        _check_plain(found, uid)
        if found.st_size > most:
            raise Foreign(f"it has more than {most} bytes")
        data = os.read(handle, most + 1)
        while more := os.read(handle, most + 1 - len(data)):  # a network may give less than was asked for
            data += more
        if len(data) > most:
            raise Foreign(f"it has more than {most} bytes")
        return data
    finally:
        os.close(handle)


def ends(here: int, name: str, first: int, last: int, uid: int) -> tuple[bytes, bool]:
    """The beginning and the end of a file, in bytes, and whether that is all of it. :raises OSError, Foreign."""
    handle = os.open(name, FILE, dir_fd=here)
    try:
        found = os.fstat(handle)
        _check_plain(found, uid)
        if found.st_size <= first + last:
            return _at(handle, 0, first + last), True
        return _at(handle, 0, first) + b"\n" + _at(handle, found.st_size - last, last), False
    finally:
        os.close(handle)


def _at(handle: int, offset: int, most: int) -> bytes:
    parts: list[bytes] = []
    while most > 0 and (part := os.pread(handle, min(most, _AT_ONCE_BYTES), offset)):
        parts.append(part)
        offset, most = offset + len(part), most - len(part)
    return b"".join(parts)


def _check_plain(found: os.stat_result, uid: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise Foreign("it is no plain file")
    if found.st_uid != uid:
        raise Foreign(f"it belongs to uid {found.st_uid}, and the folder to uid {uid}")


def stat_of(here: int, name: str) -> os.stat_result | None:
    """None: it is not there."""
    try:
        return os.stat(name, dir_fd=here, follow_symlinks=False)
    except FileNotFoundError:
        return None


def names(here: int, pattern: re.Pattern[str], most: int) -> list[str]:
    """The names of a folder that are of this pattern. :raises Foreign: there are more than `most`."""
    found = []
    with os.scandir(here) as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name):
                found.append(entry.name)
            if len(found) > most:
                raise Foreign(f"it has more than {most} files")
    return sorted(found)


@contextmanager
def below(here: int, path: tuple[str, ...]) -> Iterator[int]:
    if not path:
        yield here
        return
    with folder(os.fsencode(path[0]), here) as inside, below(inside, path[1:]) as there:
        yield there


@contextmanager
def folder(name: bytes, within: int | None = None) -> Iterator[int]:
    try:
        here = os.open(name, _FOLDER, dir_fd=within)
    except NotADirectoryError:  # what O_DIRECTORY says of a link, too (open(2))
        raise Foreign(f"{os.fsdecode(name)!r} is no folder, or a symbolic link") from None
    try:
        yield here
    finally:
        os.close(here)
