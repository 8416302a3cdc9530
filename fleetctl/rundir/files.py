"""Durable small files: exclusive claims, atomic replacements, append-only event logs. Errors name path and remedy."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fleetctl.errors import RunDirError

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


def claim_file(path: Path, value: Mapping[str, Any]) -> bool:
    """Create `path` with `value` as JSON if nobody has: True for exactly one caller, content complete from the start.

    A hard link is used, since it is exclusive and atomic on NFS too (open(2), O_EXCL).
    """
    staged = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    write_synced(staged, json.dumps(value) + "\n")
    try:
        os.link(staged, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(staged)
    sync_dir(path.parent)
    return True


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one JSON line and fsync; a new file's name is made durable too."""
    new = not path.exists()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        line = (json.dumps(value) + "\n").encode()
        while line:
            line = line[os.write(handle, line) :]
        os.fsync(handle)
    finally:
        os.close(handle)
    if new:
        sync_dir(path.parent)


def read_json(path: str) -> Any:
    """The JSON value in `path`, or None when it is missing or not complete JSON (a reader never trusts a writer)."""
    try:
        with open(path, "rb") as file:
            return json.loads(file.read())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def take_lock(path: Path) -> int:
    """Wait for the exclusive POSIX lock on `path` (made if missing); closing the returned handle gives it back."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX)
    except BaseException:
        os.close(handle)
        raise
    return handle


def is_locked(path: Path) -> bool:
    """Whether another process holds the lock of `path` now."""
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    finally:
        os.close(handle)
    return False
