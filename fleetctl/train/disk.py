"""The few changes to a file system that a commit is made of. Standard library only, Python 3.8 and newer.

Each is one system call or a fixed sequence of them, so that a test can record the calls and replay what a crash after
any of them may leave.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any, Iterable, Iterator

CHUNK_BYTES = 16 << 20  # big enough that the cost of a call does not count; Linux writes at most 2 GiB at once
# Some FUSE and cluster file systems cannot sync a folder and say so; their renames are durable or nothing helps.
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)


class Disk:
    """Every method raises OSError."""

    def __init__(self, calls: Any = os) -> None:
        """`calls` has open, write, fsync, close, mkdir, rename, unlink, rmdir as `os` has them."""
        self._calls = calls

    def make_folder(self, path: str) -> None:
        """The folder with its parents; the names of new ones are durable in their parents."""
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        self.make_folder(parent)
        with contextlib.suppress(FileExistsError):  # another rank was quicker
            self._calls.mkdir(path, 0o777)
        self.sync_folder(parent)

    def write(self, path: str, pieces: Iterable[bytes | memoryview]) -> None:
        """A new file with this content, on disk when this returns; its name is so after `sync_folder`."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = self._calls.open(path, flags, 0o666)
        try:
            for chunk in chunks(pieces):
                self._write_all(file, chunk)
            self._calls.fsync(file)
        except BaseException:
            with contextlib.suppress(OSError):
                self._calls.close(file)
            raise
        self._calls.close(file)  # a network file system may tell only here that the disk was full

    def replace(self, path: str, data: bytes) -> None:
        """A small file, written beside and renamed: it is there whole or not at all."""
        beside = f"{path}.tmp"
        self.remove(beside)
        self.write(beside, [data])
        self.rename(beside, path)

    def rename(self, old: str, new: str) -> None:
        self._calls.rename(old, new)

    def remove(self, path: str) -> None:
        """The file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._calls.unlink(path)

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        folder = self._calls.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._calls.fsync(folder)
        except OSError as error:
            if error.errno not in _CANNOT_SYNC:
                raise
        finally:
            self._calls.close(folder)

    def discard(self, folder: str, trash: str) -> None:
        """Remove a flat folder of ours; it leaves its place first, so that a late writer cannot find it any more."""
        if not os.path.isdir(folder):
            return
        moved = os.path.join(trash, f"{os.path.basename(folder)}@{os.urandom(4).hex()}")
        try:
            self.make_folder(trash)
            self.rename(folder, moved)
        except OSError:
            moved = folder  # a full disk may have no room for the trash folder
        for name in os.listdir(moved):
            self.remove(os.path.join(moved, name))
        with contextlib.suppress(FileNotFoundError):
            self._calls.rmdir(moved)

    def _write_all(self, file: int, chunk: memoryview) -> None:
        while chunk:
            written = self._calls.write(file, chunk)
            chunk = chunk[written:]


def chunks(pieces: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    """The same bytes in pieces of at most CHUNK_BYTES."""
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), CHUNK_BYTES):
            yield view[start : start + CHUNK_BYTES]
