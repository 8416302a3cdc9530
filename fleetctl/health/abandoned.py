"""Remembers the children that may hang for ever: a node with a dead driver gathers one of them, and not one a job.

One empty file per child, made as it starts and gone when it is buried; everything is in its name, because a name is
written whole or not at all, and needs no block of a full disk:

    nvml.4711.918273.6000.0a1b2c3d-...   reader, pid, start (clock ticks since boot), deadline (ms), boot id

Pid and start together are one process: a pid used again has another start. A child hangs when it lives longer than
its deadline, by the kernel's own clock: so nobody has to come back to write that down, and a prolog that Slurm killed
on the way has left its word all the same.
"""

from __future__ import annotations

import os
import time
from typing import List, Optional, Union

from fleetctl.health.record import NamedTuple

Folder = Union[str, os.PathLike[str]]  # not as a text: typing would compile it, for half of a bare start

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Hanging(NamedTuple):
    """A child of an earlier look that is still there, `for_s` seconds after its start."""

    pid: int
    for_s: float


class Mark(NamedTuple):
    """What a file's name says."""

    name: str
    pid: int
    start: int
    deadline_ms: int
    boot_id: str

    def file(self) -> str:
        return ".".join(str(part) for part in self)


def hanging(folder: Folder, name: str) -> Optional[Hanging]:
    """The longest living of the children called `name` that are past their deadline. Clears the marks of dead ones."""
    boot_id, worst = _boot_id(), None
    for file in _files(folder):
        mark = _read_mark(file)
        if mark is None or mark.name != name:
            continue
        if mark.boot_id != boot_id or _start(mark.pid) != mark.start:
            remove(os.path.join(folder, file))
            continue
        age_s = _age_s(mark.start)
        if age_s * 1000 >= mark.deadline_ms and (worst is None or age_s > worst.for_s):
            worst = Hanging(mark.pid, age_s)
    return worst


def remember(folder: Folder, name: str, pid: int, deadline_s: float) -> Optional[str]:
    """Marks a child that has just been started; the path of the mark, or None when the folder takes none."""
    start = _start(pid)
    if start is None:
        return None
    path = os.path.join(folder, Mark(name, pid, start, int(deadline_s * 1000), _boot_id()).file())
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    except OSError:  # full, read-only: the look goes on without
        return None
    return path


def extend(path: str, more_s: float) -> None:
    """Gives a child that has answered more time to end: closing a GPU may take the driver seconds."""
    folder, file = os.path.split(path)
    mark = _read_mark(file)
    if mark is not None:
        later = mark._replace(deadline_ms=mark.deadline_ms + int(more_s * 1000))
        try:
            os.rename(path, os.path.join(folder, later.file()))
        except OSError:
            return


def remove(path: str) -> None:
    """Takes a mark away; somebody else may have been quicker."""
    try:
        os.unlink(path)
    except OSError:
        return


def _files(folder: Folder) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read_mark(file: str) -> Optional[Mark]:
    parts = file.split(".")
    if len(parts) != len(Mark._fields) or not all(part.isdecimal() for part in parts[1:4]):
        return None  # not ours
    return Mark(parts[0], int(parts[1]), int(parts[2]), int(parts[3]), parts[4])


def _start(pid: int) -> Optional[int]:
    """When a process started, in clock ticks since boot (field 22 of proc_pid_stat(5)); None: it is dead."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            text = stream.read(4096)
    except OSError:
        return None
    fields = text.rpartition(b")")[2].split()  # the name in parentheses may hold spaces and parentheses itself
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])


def _age_s(start: int) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start / os.sysconf("SC_CLK_TCK")


def _boot_id() -> str:
    try:
        with open(_BOOT_ID, encoding="ascii") as stream:
            return stream.read(64).strip()
    except (OSError, ValueError):
        return "unknown"
