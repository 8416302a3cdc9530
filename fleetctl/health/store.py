"""The state of a node on its disk, and the way to write a file there that no crash tears.

root writes here, so the folder must be ours alone: nothing is read or written where others could have put files.
Nothing here raises for what a sick disk does, and nothing waits longer than `wait_s` for another fleetctl.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import stat
import time
from typing import Callable, Iterator, Optional

from fleetctl.health.state import Change, State, bounded, for_boot, from_text, to_text

STATE = "state.json"
LOCK_WAIT_S = 1.0  # a prolog has 8 s for everything; a writer needs a few milliseconds
_POLL_S = 0.02
_MOST_BYTES = 8 << 20  # eight times what `bounded` lets a state grow to: more is not ours

Note = Callable[[str], object]
Monotonic = Callable[[], float]


class Foreign(Exception):
    """A file or folder that fleetctl did not make, or that others may write; the text says which and what to do."""


def silent(_: str) -> None:
    """A note that nobody wants."""


def load_state(folder: str, *, boot_id: str = "", note: Note = silent) -> State:
    """The state as it counts in this boot; an empty one, with a note, where it cannot be had."""
    try:
        with opened(folder) as here:
            return for_boot(_read_state(here, note), boot_id)
    except FileNotFoundError:
        pass  # the first look of this node
    except (OSError, Foreign) as error:
        note(f"no state from {folder}: {words_of(error)}")
    return for_boot(State(), boot_id)


def update_state(
    folder: str,
    change: Change,
    *,
    boot_id: str = "",
    note: Note = silent,
    monotonic: Monotonic = time.monotonic,
    wait_s: float = LOCK_WAIT_S,
) -> State:
    """Read the state, change it and write it while no other fleetctl does; returns what the change made of it.

    `change` is called once and is pure. Where the state cannot be written (full disk, read-only, another writer for
    longer than `wait_s`) the file keeps its old state, a note says so, and the changed state is returned all the same.
    """
    before: Optional[State] = None
    after: Optional[State] = None
    try:
        with opened(folder, make=True) as here, locked(here, STATE, monotonic=monotonic, wait_s=wait_s) as why:
            before = _read_state(here, note)
            after = bounded(change(for_boot(before, boot_id)))
            if why:
                note(f"{folder}/{STATE} not written: {why}")
            elif after != before:
                replace(here, STATE, to_text(after).encode())
    except (OSError, Foreign, ValueError) as error:
        note(f"{folder}/{STATE} not written: {words_of(error)}")
    return bounded(change(for_boot(State(), boot_id))) if after is None else after


@contextlib.contextmanager
def opened(folder: str, *, make: bool = False) -> Iterator[int]:
    """The folder's descriptor. :raises OSError, Foreign: it is not there, or not ours alone."""
    if make:
        make_folder(folder)
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(here)
        if found.st_uid != os.geteuid():
            raise Foreign(f"{folder} belongs to uid {found.st_uid}, not to us: remove it, or name another folder")
        if found.st_mode & 0o022:
            raise Foreign(f"{folder} can be written by others, so its files prove nothing: remove it")
        if make and found.st_mode & 0o077:
            os.fchmod(here, 0o700)
        yield here
    finally:
        os.close(here)


def make_folder(folder: str) -> None:
    """Make the folder for us alone, if it is not there, and those above it as usual."""
    parent = os.path.dirname(folder.rstrip("/"))
    if parent and not os.path.isdir(parent):
        os.makedirs(parent, 0o755, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)


@contextlib.contextmanager
def locked(
    here: int, name: str, *, monotonic: Monotonic = time.monotonic, wait_s: float = LOCK_WAIT_S
) -> Iterator[str]:
    """Hold `<name>.lock` of the folder; gives "", or why it is not held: then nothing must be written.

    The lock goes with its process, however that ends. A process that hangs in the kernel keeps it: hence the limit.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        lock = os.open(name + ".lock", flags, 0o600, dir_fd=here)
    except OSError as error:  # a full or read-only disk: what is there can be read all the same
        yield words_of(error)
        return
    try:
        yield _lock(lock, monotonic, wait_s)
    finally:
        os.close(lock)


def _lock(lock: int, monotonic: Monotonic, wait_s: float) -> str:
    until = monotonic() + wait_s
    while True:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return ""
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                return words_of(error)
        if monotonic() >= until:
            return f"another fleetctl held its lock for {wait_s:g} s"
        select.select((), (), (), _POLL_S)


def read_bounded(here: int, name: str, most: int, *, ours: bool = True) -> bytes:
    """All bytes of a plain file in the folder, no link followed.

    :raises Foreign: it is no plain file, larger than `most`, or (with `ours`) of another owner.
    :raises OSError: it is not there, or cannot be read.
    """
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Foreign(f"{name} is a symbolic link") from None
        raise
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise Foreign(f"{name} is no plain file")
        if ours and found.st_uid != os.geteuid():
            raise Foreign(f"{name} belongs to uid {found.st_uid}, not to us")
        parts = []
        left = most + 1
        while left > 0:
            part = os.read(handle, min(left, 1 << 20))
            if not part:
                break
            parts.append(part)
            left -= len(part)
        if left <= 0:
            raise Foreign(f"{name} is larger than {most} bytes")
        return b"".join(parts)
    finally:
        os.close(handle)


def replace(here: int, name: str, data: bytes, mode: int = 0o600) -> None:
    """Give the file this content: after a crash at any moment it has the old one or the new one.

    The caller keeps other writers of this name away. :raises OSError: it could not be written; the old one stands.
    """
    part = f".{name}.part"  # one name, so that crashes leave one file at most
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part, dir_fd=here)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(part, flags, mode, dir_fd=here)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        os.rename(part, name, src_dir_fd=here, dst_dir_fd=here)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part, dir_fd=here)
        raise
    os.fsync(here)


def words_of(error: BaseException) -> str:
    """What went wrong, without Python's numbers and quotes."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _read_state(here: int, note: Note) -> State:
    """:raises OSError: the disk would not say, so that nothing must be written over it."""
    try:
        data = read_bounded(here, STATE, _MOST_BYTES)
    except FileNotFoundError:
        return State()
    except Foreign as error:
        note(f"{error}: going on without the state")
        return State()
    state, notes = from_text(data.decode("utf-8", "replace"))
    for one in notes:
        note(one)
    return state
