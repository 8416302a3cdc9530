"""How checkpoints are read: below one folder, without following links out of it, without ever waiting for a writer.

The folder itself may be reached over links: its user named it. Everything below may have been put there by anybody.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from fleetctl.errors import CannotTell

_MOST_NAMES = 1_000_000  # of one folder: some 100 MB; a listing without end must not take all memory
_PULSE_NAMES = 256  # that a listing goes on between two signs of life
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO without writer does not block


class Kind(StrEnum):
    """What a name stands for. A link is LINK, whatever it points to."""

    FOLDER = "folder"
    FILE = "file"
    LINK = "link"
    OTHER = "other"


class NotRegular(OSError):
    """What should be a regular file is a link, a folder, a FIFO, a device or a socket."""


class Found(Struct, frozen=True):
    """A name that is there. `modified_at_s` is by the file server's clock, seconds since 1970."""

    kind: Kind
    size_bytes: int
    modified_at_s: float


class Blob(Protocol):
    """An open regular file."""

    @property
    def size_bytes(self) -> int:
        """When it was opened."""
        ...

    @property
    def stamp(self) -> str:
        """Which content it was when it was opened: another one for every change, so far as the file system can tell."""
        ...

    def read(self, offset: int, size_bytes: int) -> bytes:
        """These bytes; fewer only at the end of the file. :raises OSError: it cannot be read now."""
        ...

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` from `offset`; how many bytes, fewer only at the end. :raises OSError: not readable now."""
        ...


class Storage(Protocol):
    """Where checkpoints lie. `inside` is a path below `directory`, one name per part, never followed over a link."""

    def names(self, directory: Path) -> tuple[str, ...]:
        """All names in the folder, in any order; none when it is missing.

        :raises CannotTell: it cannot be listed; an unread folder is never an empty one.
        """
        ...

    def listing(self, directory: Path, *inside: str) -> tuple[str, ...]:
        """All names in a folder inside. :raises OSError: it cannot be listed."""
        ...

    def look(self, directory: Path, *inside: str) -> Found | None:
        """What is there now; None when nothing is. :raises OSError: that cannot be told."""
        ...

    def look_all(self, directory: Path, *inside: str) -> dict[str, Found]:
        """What lies in a folder inside, by name. :raises OSError: that cannot be told."""
        ...

    def open(self, directory: Path, *inside: str) -> AbstractContextManager[Blob]:
        """Open a regular file. :raises OSError: it is missing, cannot be read, or is no regular file."""
        ...


class _LocalBlob(Struct, frozen=True):
    handle: int
    size_bytes: int
    stamp: str

    def read(self, offset: int, size_bytes: int) -> bytes:
        parts = []
        while size_bytes and (part := os.pread(self.handle, size_bytes, offset)):
            parts.append(part)
            offset, size_bytes = offset + len(part), size_bytes - len(part)
        return b"".join(parts)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        filled = 0
        while filled < len(buffer) and (count := os.preadv(self.handle, [buffer[filled:]], offset + filled)):
            filled += count
        return filled


def silent(_size_bytes: int) -> None:
    """Nobody watches."""


class LocalStorage:
    """A mounted file system. `pulse` is told 0 whenever it answers about names."""

    def __init__(self, pulse: Callable[[int], None] = silent) -> None:
        self._pulse = pulse

    def names(self, directory: Path) -> tuple[str, ...]:
        try:
            return self.listing(directory)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise CannotTell(
                f"cannot list the checkpoints in {ascii(str(directory))[1:-1]}: {error.strerror}",
                remedy="is its file system mounted here, and may you read the folder?",
            ) from error

    def listing(self, directory: Path, *inside: str) -> tuple[str, ...]:
        with _folder(directory, inside) as handle, os.scandir(handle) as entries:
            return tuple(entry.name for entry in self._bounded(entries))

    def look(self, directory: Path, *inside: str) -> Found | None:
        try:
            with _folder(directory, inside[:-1]) as handle:
                status = os.stat(_safe(inside[-1]), dir_fd=handle, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        self._pulse(0)
        return Found(_kind(status.st_mode), status.st_size, status.st_mtime)

    def look_all(self, directory: Path, *inside: str) -> dict[str, Found]:
        found = {}
        with _folder(directory, inside) as handle, os.scandir(handle) as entries:
            for entry in self._bounded(entries):
                with contextlib.suppress(FileNotFoundError):  # it was removed since it was listed
                    status = os.stat(entry.name, dir_fd=handle, follow_symlinks=False)
                    found[entry.name] = Found(_kind(status.st_mode), status.st_size, status.st_mtime)
        return found

    @contextlib.contextmanager
    def open(self, directory: Path, *inside: str) -> Iterator[Blob]:
        with _folder(directory, inside[:-1]) as folder:
            # Looked at before it is opened: to open a device can do something, such as rewind a tape
            _refuse_irregular(os.stat(_safe(inside[-1]), dir_fd=folder, follow_symlinks=False))
            handle = os.open(inside[-1], _FILE, dir_fd=folder)
        try:
            status = os.fstat(handle)
            _refuse_irregular(status)
            yield _LocalBlob(handle, status.st_size, _stamp(status))
        finally:
            os.close(handle)

    def _bounded(self, entries: Iterable[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
        for number, entry in enumerate(entries):
            if number >= _MOST_NAMES:
                raise OSError(errno.EFBIG, f"more than {_MOST_NAMES} names")
            if number % _PULSE_NAMES == 0:
                self._pulse(0)
            yield entry


@contextlib.contextmanager
def _folder(directory: Path, inside: tuple[str, ...]) -> Iterator[int]:
    handle = os.open(directory, _FOLDER)
    try:
        for part in inside:
            inner = os.open(_safe(part), _FOLDER | os.O_NOFOLLOW, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def _safe(part: str) -> str:
    """One name, no path: what a manifest says is no reason to leave its folder."""
    if part in ("", ".", "..") or "/" in part or "\0" in part:
        raise OSError(errno.EINVAL, "not a name")
    return part


def _refuse_irregular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NotRegular(errno.EINVAL, "not a regular file")


def _stamp(status: os.stat_result) -> str:
    """The number of the device is not in it: that changes with each mount."""
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _kind(mode: int) -> Kind:
    if stat.S_ISDIR(mode):
        return Kind.FOLDER
    if stat.S_ISLNK(mode):
        return Kind.LINK
    return Kind.FILE if stat.S_ISREG(mode) else Kind.OTHER
