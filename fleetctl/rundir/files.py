"""Durable small files: exclusive claims, atomic replacements, append-only event logs. Errors name path and remedy."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fleetctl.errors import RunDirError

_CHUNK_BYTES = 1 << 16
_MAX_BYTES = 64 << 20  # of one event file: years of events
_TORN = b"#\n"  # ends a line that could not be taken back, so that it is no JSON even if it was complete
_REMEDIES = {
    errno.ENOSPC: "free some space, or set FLEETCTL_RUNS to a folder with room",
    errno.EDQUOT: "your quota is used up: free some space, or set FLEETCTL_RUNS to a folder with room",
    errno.EROFS: "the file system is read-only: set FLEETCTL_RUNS to a writable shared folder",
    errno.EACCES: "set FLEETCTL_RUNS to a shared folder that you may write",
    errno.EPERM: "set FLEETCTL_RUNS to a shared folder that you may write",
    errno.ENOLCK: "this file system has no locks (mount it with locking, or set FLEETCTL_RUNS elsewhere)",
    errno.ENOSYS: "this file system has no locks (mount it with locking, or set FLEETCTL_RUNS elsewhere)",
}


@contextlib.contextmanager
def explained(path: Path, doing: str) -> Iterator[None]:
    """Turn an OSError into one line with the path and a remedy.

    :raises RunDirError: whatever the operating system refused.
    """
    try:
        yield
    except OSError as error:
        raise RunDirError(
            f"cannot {doing} {path}: {error.strerror}",
            remedy=_REMEDIES.get(error.errno or 0),
        ) from error


def sync_dir(path: Path) -> None:
    """Make new names in `path` survive a power loss."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_synced(path: Path, content: str) -> None:
    """Create `path` with `content`, on disk when this returns. FileExistsError if it is there."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with open(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: str) -> None:
    """Put `content` at `path`, whole or not at all, and on disk. Each writer stages under a name of its own."""
    staged = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        write_synced(staged, content)
        os.replace(staged, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(staged)
        raise
    sync_dir(path.parent)


def claim_file(path: Path, value: Mapping[str, Any]) -> bool:
    """Create `path` with `value` as JSON if nobody has: True for exactly one caller, content complete from the start.

    A hard link is used, since it is exclusive and atomic on NFS too (open(2), O_EXCL). The same page: an error of
    link does not mean that it failed, since the answer may have been lost; two links on our own file mean that we won.
    """
    staged = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        write_synced(staged, json.dumps(value) + "\n")
        won = _link(staged, path)
    finally:
        with contextlib.suppress(OSError):  # what stays behind is harmless, and the answer may be lost here too
            os.unlink(staged)
    if won:
        sync_dir(path.parent)
    return won


def _link(staged: Path, path: Path) -> bool:
    try:
        os.link(staged, path)
    except OSError as error:
        if _links(staged) == 2:
            return True
        if isinstance(error, FileExistsError):
            return False
        raise
    return True


def _links(path: Path) -> int:
    """Asked of an open file: opening makes an NFS client ask its server (nfs(5), close-to-open)."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(handle).st_nlink
    finally:
        os.close(handle)


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one JSON line and fsync; a new file's name is made durable too. `path` has no other writer.

    What a failed append wrote is taken back, or else kept off the next line: a full disk must not spoil what follows.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(handle).st_size
        try:
            line = (json.dumps(value) + "\n").encode()
            if size and os.pread(handle, 1, size - 1) != b"\n":
                line = _TORN + line
            while line:
                line = line[os.write(handle, line) :]
            os.fsync(handle)
            if not size:
                sync_dir(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, size)
            raise
    finally:
        os.close(handle)


def read_bounded(path: str) -> bytes | None:
    """What `path` holds; None when it is missing. Never waits: a FIFO that somebody left there is no file.

    :raises ValueError: no regular file, or larger than any file of ours.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("no regular file")
        if status.st_size > _MAX_BYTES:
            raise ValueError("larger than any file of ours")
        return b"".join(iter(lambda: os.read(handle, _CHUNK_BYTES), b""))
    finally:
        os.close(handle)


def read_end(path: Path, most_bytes: int) -> bytes:
    """The end of a file, which may be huge; nothing when it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
            return file.read(most_bytes)
    except OSError:
        return b""


def read_json(path: str) -> Any:
    """The JSON value in `path`, or None when it is missing or not complete JSON (a reader never trusts a writer).

    :raises OSError: it is not known what is there (EIO, ESTALE); whoever leads a run must not die of it.
    """
    try:
        raw = read_bounded(path)
        return None if raw is None else json.loads(raw)
    except (ValueError, RecursionError):
        return None


def try_lock(path: Path) -> int | None:
    """Take the exclusive POSIX lock on `path` (made if missing); None while another process holds it.

    Closing the returned handle gives it back.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # fcntl(2): EAGAIN or EACCES
        os.close(handle)
        return None
    except BaseException:
        os.close(handle)
        raise
    return handle
