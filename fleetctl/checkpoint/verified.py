"""What of a checkpoint's content was read and found right before, so that a verification that was interrupted goes on.

One file for each checkpoint, of fingerprints: each of a file's inode, size and times, and of the digests that its bytes
had. Whatever is changed has another fingerprint, and a damaged line is that of nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from fleetctl.checkpoint.format import Unit

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FINGERPRINT_BYTES = 16  # nothing collides by accident, and whose notes these are has no reason to forge them
_MOST_BYTES = 256 << 20  # of the notes of one checkpoint that are read: some 250 TB


class Notes(Protocol):
    """Units of one file, as one, by `stamp`: which file it was when it was read."""

    def has(self, stamp: str, units: Sequence[Unit]) -> bool:
        """Whether they were right before, and nothing was written to the file since."""
        ...

    def add(self, stamp: str, units: Sequence[Unit]) -> None:
        """They are right. Called by several threads."""
        ...


class NoNotes:
    """Everything is read."""

    def has(self, stamp: str, units: Sequence[Unit]) -> bool:
        return False

    def add(self, stamp: str, units: Sequence[Unit]) -> None:
        pass


class _Written:
    def __init__(self, handle: int, known: frozenset[str]) -> None:
        self._handle, self._known = handle, known

    def has(self, stamp: str, units: Sequence[Unit]) -> bool:
        return bool(self._known) and _fingerprint(stamp, units) in self._known

    def add(self, stamp: str, units: Sequence[Unit]) -> None:
        with contextlib.suppress(OSError):  # a full disk: then it is read again
            os.write(self._handle, f"{_fingerprint(stamp, units)}\n".encode())


def folder_of(environ: Mapping[str, str]) -> Path | None:
    """Where notes are kept; None without a home."""
    cache, home = environ.get("XDG_CACHE_HOME", ""), environ.get("HOME", "")
    if os.path.isabs(cache):  # the XDG base directory specification: a relative one is ignored
        return Path(cache) / "fleetctl" / "verified"
    return Path(home) / ".cache" / "fleetctl" / "verified" if os.path.isabs(home) else None


def path_of(folder: Path, checkpoint: Path) -> Path:
    """The notes on one checkpoint."""
    name = os.fsencode(os.path.abspath(checkpoint))
    return folder / f"{hashlib.sha256(name).hexdigest()[: 2 * _FINGERPRINT_BYTES]}.txt"


@contextlib.contextmanager
def open_notes(path: Path | None, *, trusted: bool) -> Iterator[Notes]:
    """Notes in a file, made with its folder; none where that cannot be. Only `trusted` ones spare a read."""
    handle = None
    with contextlib.suppress(OSError):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(path, _FLAGS, 0o600)
    if handle is None:
        yield NoNotes()
        return
    try:
        regular = stat.S_ISREG(os.fstat(handle).st_mode)  # a FIFO would fill
        yield _Written(handle, _read(handle) if trusted else frozenset()) if regular else NoNotes()
    finally:
        os.close(handle)


def forget(path: str) -> None:
    """All of it was checked: the next verification reads it anew."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def _read(handle: int) -> frozenset[str]:
    try:
        if os.fstat(handle).st_size > _MOST_BYTES:
            return frozenset()
        with open(os.dup(handle), encoding="ascii", errors="replace") as file:
            file.seek(0)
            return frozenset(line.strip() for line in file)
    except OSError:
        return frozenset()


def _fingerprint(stamp: str, units: Sequence[Unit]) -> str:
    told = hashlib.blake2b(stamp.encode(), digest_size=_FINGERPRINT_BYTES)
    for unit in units:
        told.update(f"\n{'/'.join(unit.file)!a} {unit.offset} {unit.size_bytes} {unit.digest}".encode())
    return told.hexdigest()
