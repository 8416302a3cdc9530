"""Remove what a job left in /dev/shm and the temporary folders: its user's, made while it ran, used by nobody.

Only on file systems of this node alone: on a shared one, other nodes use files that nobody uses here.
The names, trees and links below are a user's and may be hostile, and root looks at them: every step is by descriptor,
no link is followed, no mount point is crossed, and what changes between the look and the act stays.
"""

from __future__ import annotations

import os
import stat
from itertools import islice
from typing import Callable, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from fleetctl.health.births import Born
from fleetctl.health.file_systems import LOCAL, Mounted, kind_at, kind_of, mount_id
from fleetctl.health.in_use import Used, is_free
from fleetctl.health.record import NamedTuple

MOST_ENTRIES = 10_000
MOST_NAMES = 200_000  # in one folder, of all users
MOST_DEPTH = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BLOCK = 512  # what st_blocks counts
_TICK_S = 0.02  # files are stamped by a clock that may be this late


class Window(NamedTuple):
    """When the job ran: from its prolog to the first look that found no process of it, in seconds since the epoch."""

    start: float
    end: float


class Entry(NamedTuple):
    """Something of the user's below a root: its names from there, and its lstat. `doomed`: made in the window."""

    parts: Tuple[str, ...]
    found: os.stat_result
    doomed: bool


class Left(NamedTuple):
    """What became of it, in entries and bytes of disk or memory. `why` says why some were kept; "": none were."""

    removed: int = 0
    removed_bytes: int = 0
    kept: int = 0
    kept_bytes: int = 0
    why: str = ""


class Rule(NamedTuple):
    """Whose leavings; `window` None: nothing is removed, and `why` says so. `born` tells when an inode was made;
    `mounts` is what is mounted, by mount id."""

    uid: int
    window: Optional[Window]
    why: str
    born: Born
    mounts: Mapping[str, Mounted]


class Clock(NamedTuple):
    """When to stop."""

    monotonic: Callable[[], float]
    until: float

    def over(self) -> bool:
        return self.monotonic() >= self.until


def clear(roots: Sequence[str], rule: Rule, in_use: Callable[[], Used], clock: Clock) -> Left:
    """Remove the leavings below these folders, and count the others of this user. `in_use` is asked after the look and
    only if something would go."""
    left = Left()
    for root in roots:
        kind = kind_at(root, rule.mounts)
        if kind not in LOCAL:  # not even opened: it may hang
            left = _joined(left, Left(why=_not_local(root, kind)))
            continue
        try:
            top = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
        except OSError as error:
            left = _joined(left, Left(why="" if isinstance(error, FileNotFoundError) else f"{root}: {error.strerror}"))
            continue
        try:
            left = _joined(left, _clear(top, root, rule, in_use, clock))
        finally:
            os.close(top)
    return left


def _clear(top: int, root: str, rule: Rule, in_use: Callable[[], Used], clock: Clock) -> Left:
    if os.fstat(top).st_uid not in (0, os.geteuid()):
        return Left(why=f"{root} belongs to a user")
    kind = kind_of(top, rule.mounts)
    if kind not in LOCAL:
        return Left(why=_not_local(root, kind))
    entries: List[Entry] = []
    why = survey(top, rule, entries, clock)
    doomed = [entry for entry in entries if entry.doomed]
    gone = _remove(top, entries, doomed, _seen_by(in_use(), kind), clock) if doomed else set()
    kept = [entry for entry in entries if entry.parts not in gone]
    return Left(
        removed=len(gone),
        removed_bytes=_bytes(entry for entry in entries if entry.parts in gone),
        kept=len(kept),
        kept_bytes=_bytes(kept),
        why=(rule.why or why or "older than the job, changed after it, or in use") if kept else why,
    )


def _not_local(root: str, kind: Optional[str]) -> str:
    return f"{root} is on {kind or 'a file system that is not known'}, and only local file systems are cleaned"


def _seen_by(used: Used, kind: Optional[str]) -> Used:
    """Where no lease can be asked for, what processes show is believed on tmpfs only: the kernel's own knfsd and the
    like show nothing, and they serve disks."""
    return used._replace(complete=used.complete and kind == "tmpfs")


def survey(top: int, rule: Rule, entries: List[Entry], clock: Clock) -> str:
    """Collect the user's entries below `top`, what is in a folder before the folder; returns why some were not looked
    at ("": all were)."""
    return _survey(top, (), rule, entries, clock, mount_id(top))


def _survey(
    folder: int, parts: Tuple[str, ...], rule: Rule, entries: List[Entry], clock: Clock, mount: Optional[str]
) -> str:
    why = ""
    for name in _names(folder):
        if len(entries) >= MOST_ENTRIES or clock.over():
            return f"only the first {len(entries)} entries were looked at"
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            continue  # gone meanwhile
        if found.st_uid != rule.uid:
            continue
        here = (*parts, name)
        doomed = _made_in(rule, folder, name, found)
        if stat.S_ISDIR(found.st_mode):
            deep = len(here) >= MOST_DEPTH
            inner = "deeper than looked at" if deep else _inside(folder, found, here, rule, entries, clock, mount)
            why = inner or why
        entries.append(Entry(here, found, doomed))
    return why


def _inside(
    folder: int,
    found: os.stat_result,
    here: Tuple[str, ...],
    rule: Rule,
    entries: List[Entry],
    clock: Clock,
    mount: Optional[str],
) -> str:
    """Look into a folder of the user; returns why it could not be seen in full."""
    inner = _step(folder, here[-1], found)
    if inner is None:
        return "a folder changed or could not be opened"
    try:
        if mount is None or mount_id(inner) != mount:
            return "another file system is mounted there"
        return _survey(inner, here, rule, entries, clock, mount)
    finally:
        os.close(inner)


def _made_in(rule: Rule, folder: int, name: str, found: os.stat_result) -> bool:
    """Whether it was made in the window, as far as its file system tells: by its birth, else by its last changes.

    A name of a file that has others, and a device, stay: they are not the job's alone.
    """
    window, kind = rule.window, found.st_mode
    if window is None or stat.S_ISBLK(kind) or stat.S_ISCHR(kind) or (found.st_nlink > 1 and not stat.S_ISDIR(kind)):
        return False
    born = rule.born(folder, name)
    first = min(found.st_ctime, found.st_mtime) if born is None else born
    return first >= window.start and found.st_ctime <= window.end - _TICK_S


def _remove(
    top: int, entries: Sequence[Entry], doomed: Sequence[Entry], used: Used, clock: Clock
) -> Set[Tuple[str, ...]]:
    """Remove the doomed ones, which are in such an order that a folder comes after its content; returns what went."""
    gone: Set[Tuple[str, ...]] = set()
    folders = {entry.parts: entry.found for entry in entries if stat.S_ISDIR(entry.found.st_mode)}
    for entry in doomed:
        if clock.over():
            break
        parent = _walk(top, entry.parts[:-1], folders)
        if parent is None:
            continue
        try:
            if _remove_one(parent, entry, used):
                gone.add(entry.parts)
        finally:
            os.close(parent)
    return gone


def _remove_one(parent: int, entry: Entry, used: Used) -> bool:
    """Remove what still is as it was seen and is used by nobody; a folder only if it is empty now."""
    name, was = entry.parts[-1], entry.found
    try:
        now = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not _same(now, was) or not _free(parent, name, now, used):
            return False
        if stat.S_ISDIR(now.st_mode):
            os.rmdir(name, dir_fd=parent)
            return True
        if now.st_ctime_ns != was.st_ctime_ns:
            return False
        os.unlink(name, dir_fd=parent)
    except OSError:
        return False
    return True


def _free(parent: int, name: str, now: os.stat_result, used: Used) -> bool:
    """The kernel's own count tells of a plain file. Else the processes' word counts: by number alone, and on a small
    tmpfs the numbers are those of many a folder elsewhere, so that it keeps more than it must."""
    free = is_free(parent, name) if stat.S_ISREG(now.st_mode) else None
    if free is not None:
        return free
    return now.st_ino not in used.inodes and (used.complete or not stat.S_ISREG(now.st_mode))


def _walk(top: int, parts: Tuple[str, ...], folders: Mapping[Tuple[str, ...], os.stat_result]) -> Optional[int]:
    """The descriptor of a folder below `top`, if every step on the way is the folder that was seen there."""
    here: Optional[int] = os.dup(top)
    for depth, name in enumerate(parts):
        if here is None:
            break
        below = _step(here, name, folders[parts[: depth + 1]])
        os.close(here)
        here = below
    return here


def _step(folder: int, name: str, was: os.stat_result) -> Optional[int]:
    try:
        inner = os.open(name, _FOLDER, dir_fd=folder)
    except OSError:
        return None
    if _same(os.fstat(inner), was):
        return inner
    os.close(inner)
    return None


def _same(now: os.stat_result, was: os.stat_result) -> bool:
    return (now.st_dev, now.st_ino, now.st_uid, stat.S_IFMT(now.st_mode)) == (
        was.st_dev,
        was.st_ino,
        was.st_uid,
        stat.S_IFMT(was.st_mode),
    )


def _names(folder: int) -> List[str]:
    try:
        with os.scandir(folder) as found:
            return [entry.name for entry in islice(found, MOST_NAMES)]
    except OSError:
        return []


def _bytes(entries: Iterable[Entry]) -> int:
    return sum(entry.found.st_blocks * _BLOCK for entry in entries)


def _joined(one: Left, other: Left) -> Left:
    return Left(
        one.removed + other.removed,
        one.removed_bytes + other.removed_bytes,
        one.kept + other.kept,
        one.kept_bytes + other.kept_bytes,
        "; ".join(dict.fromkeys(why for why in (one.why, other.why) if why)),
    )
