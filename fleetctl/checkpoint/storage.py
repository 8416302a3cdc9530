"""How checkpoints are read: below one folder, without following links out of it, without ever waiting for a writer.

The folder itself may be reached over links: its user named it. Everything below may have been put there by anybody.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from fleetctl.errors import CannotTell

_MOST_NAMES = 1_000_000  # of one folder: some 100 MB; a listing without end must not take all memory
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO without writer does not block


class Kind(StrEnum):
    """What a name stands for. A link is OTHER, whatever it points to."""

    FOLDER = "folder"
    FILE = "file"
    OTHER = "other"


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

    def read(self, offset: int, size_bytes: int) -> bytes:
        """These bytes; fewer only at the end of the file. :raises OSError: it cannot be read now."""
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

    def open(self, directory: Path, *inside: str) -> AbstractContextManager[Blob]:
        """Open a regular file. :raises OSError: it is missing, cannot be read, or is no regular file."""
        ...


class _LocalBlob(Struct, frozen=True):
    handle: int
    size_bytes: int

    def read(self, offset: int, size_bytes: int) -> bytes:
        parts = []
        while size_bytes and (part := os.pread(self.handle, size_bytes, offset)):
            parts.append(part)
            offset, size_bytes = offset + len(part), size_bytes - len(part)
        return b"".join(parts)


class LocalStorage:
    """A mounted file system."""

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
            names = []
            for entry in entries:
                names.append(entry.name)
                if len(names) > _MOST_NAMES:
                    raise OSError(errno.EFBIG, f"more than {_MOST_NAMES} names")
        return tuple(names)

    def look(self, directory: Path, *inside: str) -> Found | None:
        try:
            with _folder(directory, inside[:-1]) as handle:
                status = os.stat(_safe(inside[-1]), dir_fd=handle, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Found(_kind(status.st_mode), status.st_size, status.st_mtime)

    @contextlib.contextmanager
    def open(self, directory: Path, *inside: str) -> Iterator[Blob]:
        with _folder(directory, inside[:-1]) as folder:
            # Looked at before it is opened: to open a device can do something, such as rewind a tape
            _refuse_irregular(os.stat(_safe(inside[-1]), dir_fd=folder, follow_symlinks=False))
            handle = os.open(inside[-1], _FILE, dir_fd=folder)
        try:
            status = os.fstat(handle)
            _refuse_irregular(status)
            yield _LocalBlob(handle, status.st_size)
        finally:
            os.close(handle)


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
        raise OSError(errno.EINVAL, "not a regular file")


def _kind(mode: int) -> Kind:
    if stat.S_ISDIR(mode):
        return Kind.FOLDER
    return Kind.FILE if stat.S_ISREG(mode) else Kind.OTHER
