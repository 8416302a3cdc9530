"""Which files living processes have open, mapped, or as their working directory."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Callable, FrozenSet, Iterator, Optional, Set

from fleetctl.health.process_table import read_bytes
from fleetctl.health.record import NamedTuple

_MOST_MAPS = 32 << 20  # a training process has some thousand lines; databases a hundred thousand
_MOST_FDINFO = 4096
_BUSY = (errno.EAGAIN, errno.EACCES, errno.EBUSY, errno.ETXTBSY)
# What a link in /proc/PID/fd starts with where no name in a folder can be meant.
_NAMELESS = ("/memfd:", "/dev/nvidia", "/dev/null", "/SYSV")


class Used(NamedTuple):
    """`inodes` in use, whatever their file system: maps and links name devices in their own ways, and one number too
    many only keeps a file. `complete`: every process showed all of its own."""

    inodes: FrozenSet[int]
    complete: bool


def look_for_users(proc: str, *, until: float, monotonic: Callable[[], float]) -> Used:
    """What the processes of this /proc use, as far as they show it and until the time is over."""
    found: Set[int] = set()
    try:
        pids = [name for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return Used(frozenset(), False)
    complete = True
    for pid in pids:
        if monotonic() >= until:
            return Used(frozenset(found), False)
        complete = _of_process(f"{proc}/{pid}", found) and complete
    return Used(frozenset(found), complete)


def is_free(folder: int, name: str) -> Optional[bool]:
    """Whether no process has this plain file open or mapped, by the kernel's own count: only then it grants a write
    lease (fcntl(2)). That sees processes in other namespaces, too. None: it could not be asked."""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        return False if error.errno in _BUSY else None
    try:
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        return True
    except OSError as error:
        return False if error.errno in _BUSY else None
    finally:
        os.close(handle)  # and the lease with it


def _of_process(folder: str, found: Set[int]) -> bool:
    """Add what one process uses; False: it lives and would not show it."""
    try:
        names = os.listdir(f"{folder}/fd")
        found.update(inode for name in names for inode in _of_fd(folder, name))
        with open(f"{folder}/maps", "rb") as handle:
            maps = handle.read(_MOST_MAPS)
    except (FileNotFoundError, ProcessLookupError):
        return True  # it is gone
    except OSError:
        return False
    found.update(mapped(maps))
    for name in ("cwd", "root"):
        inode = _inode(f"{folder}/{name}")
        if inode is not None:
            found.add(inode)
    return len(maps) < _MOST_MAPS


def mapped(maps: bytes) -> Iterator[int]:
    """The inode numbers in the bytes of /proc/PID/maps."""
    for line in maps.split(b"\n"):
        fields = line.split(None, 5)
        if len(fields) >= 5 and fields[4] != b"0" and fields[4].isdigit():
            yield int(fields[4])


def _of_fd(folder: str, name: str) -> Iterator[int]:
    """The inode of one descriptor, by fdinfo, which asks no file system; before Linux 5.14 it does not tell."""
    try:
        target = os.readlink(f"{folder}/fd/{name}")
    except OSError:
        return  # closed meanwhile
    if not target.startswith("/") or target.startswith(_NAMELESS):
        return
    info = read_bytes(f"{folder}/fdinfo/{name}", _MOST_FDINFO) or b""
    for line in info.split(b"\n"):
        if line.startswith(b"ino:"):
            yield int(line[4:])
            return
    inode = _inode(f"{folder}/fd/{name}")
    if inode is not None:
        yield inode


def _inode(path: str) -> Optional[int]:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None
