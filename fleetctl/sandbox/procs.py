"""Processes by pid *and* start time, and the members of a pid namespace, from /proc."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fleetctl.clock import Clock

_NS_GET_PARENT = 0xB702  # linux/nsfs.h
_PROC = Path("/proc")
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Proc:
    """One process for ever: a pid may be reused, a pid with its start time (clock ticks after boot) is not."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc/PID/stat says of one process."""

    proc: Proc
    name: str
    state: str
    parent_pid: int


def boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def stat_of(pid: int) -> Stat | None:
    """None when no such process exists (any more)."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]  # a name may hold blanks and brackets
    fields = text[text.rindex(")") + 2 :].split()
    return Stat(Proc(pid, int(fields[19])), name, fields[0], int(fields[1]))


def alive(proc: Proc) -> bool:
    """A zombie is dead, and so is a process whose pid now belongs to another."""
    stat = stat_of(proc.pid)
    return stat is not None and stat.proc == proc and stat.state not in "ZX"


def stopped(proc: Proc) -> bool:
    stat = stat_of(proc.pid)
    return stat is not None and stat.proc == proc and stat.state in "Tt"


def send(proc: Proc, signal_number: signal.Signals) -> bool:
    """Signal exactly this process: the pid is pinned first, so a reuse in between hits nobody. False: gone."""
    try:
        pinned = os.pidfd_open(proc.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(proc):
            return False
        signal.pidfd_send_signal(pinned, signal_number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pinned)
    return True


def wait_until(happened: Callable[[], bool], clock: Clock, *, within_s: float) -> bool:
    """Poll until it happened; False when the time is over."""
    deadline_s = clock.monotonic_s() + within_s
    while not happened():
        if clock.monotonic_s() >= deadline_s:
            return False
        clock.sleep(_POLL_S)
    return True


def wait_gone(procs: Iterable[Proc], clock: Clock, *, within_s: float) -> bool:
    waiting = tuple(procs)
    return wait_until(lambda: not any(alive(proc) for proc in waiting), clock, within_s=within_s)


def end(proc: Proc, clock: Clock, *, term_s: float, kill_s: float) -> bool:
    """TERM, then KILL; a stopped process is woken so that it can obey. True when it is gone."""
    if send(proc, signal.SIGTERM):
        send(proc, signal.SIGCONT)
        if wait_gone([proc], clock, within_s=term_s):
            return True
        send(proc, signal.SIGKILL)
    return wait_gone([proc], clock, within_s=kill_s)


def every() -> Iterator[Stat]:
    for entry in os.listdir(_PROC):
        if entry.isdecimal() and (stat := stat_of(int(entry))) is not None:
            yield stat


def child_of(parent: Proc) -> Stat | None:
    """The only child of `parent` (an unshare has one), if it has been forked yet."""
    return next((stat for stat in every() if stat.parent_pid == parent.pid), None) if alive(parent) else None


def pid_namespace(pid: int) -> int | None:
    """The inode of the namespace that the process lives in; None when it is gone or belongs to another user."""
    try:
        return os.stat(_PROC / str(pid) / "ns/pid").st_ino
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def members(namespace: int) -> tuple[Stat, ...]:
    """Every living process of the namespace, those in namespaces nested in it (containers) included."""
    inside: dict[int, bool] = {namespace: True}
    found = []
    for stat in every():
        inode = pid_namespace(stat.proc.pid)
        if inode is None or stat.state in "ZX":
            continue
        if inode not in inside:
            inside[inode] = namespace in _ancestors(stat.proc.pid)
        if inside[inode]:
            found.append(stat)
    return tuple(found)


def _ancestors(pid: int) -> set[int]:
    """Inodes of the namespaces around the one of `pid`, as far out as we may see."""
    seen: set[int] = set()
    try:
        handle = os.open(_PROC / str(pid) / "ns/pid", os.O_RDONLY)
    except OSError:
        return seen
    while True:
        try:
            outer = fcntl.ioctl(handle, _NS_GET_PARENT)
        except OSError:  # EPERM: the parent lies outside our own namespace
            return seen
        finally:
            os.close(handle)
        seen.add(os.fstat(outer).st_ino)
        handle = outer
