"""How many nodes of the fleet fleetctl may drain: slots in a shared folder, one folder for each window of time.

A slot is a file that holds the node's name and the time, made complete by link(2): two nodes never get the same one,
also on NFS. The windows start at whole multiples of their length, and what was taken in the window before counts until
it is one length old: so no span of that length sees more drains than the budget has, across a boundary neither.
Made to run in a child: the folder may hang.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Dict, List

from fleetctl.health.record import NamedTuple

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_MOST_BYTES = 512  # of a slot: a name of 255 and a time
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SLOT = "slot-"
_KEPT = 2  # windows before this one: one counts, one is for whoever asks what happened yesterday
_MOST_SWEPT = 100  # windows in one go


class Slot(NamedTuple):
    """Who took it, and when (seconds since the epoch)."""

    node: str
    at: float


class Token(NamedTuple):
    """`why` says why there is none."""

    granted: bool
    why: str = ""


def take_token(folder: str, most: int, window_s: float, node: str, now: float) -> Token:
    """A slot for this node, where fewer than `most` were taken in the `window_s` seconds before `now` (seconds since
    the epoch); a node that has taken one in them needs no other.

    :raises OSError: the folder cannot be used.
    """
    length = max(window_s, 1.0)
    number = int(now // length)
    window = os.path.join(folder, str(number))
    with contextlib.suppress(FileExistsError):
        os.mkdir(window)
    earlier = [slot for slot in _earlier(os.path.join(folder, str(number - 1)), now) if now - slot.at < length]
    handle = os.open(window, _FOLDER)
    try:
        taken = _slots(handle, now)
        if any(slot.node == node for slot in (*earlier, *taken.values())):
            return Token(True)
        token = _take(handle, most - len({slot.node for slot in earlier}), Slot(node, now), most)
    finally:
        os.close(handle)
    _sweep(folder, number - _KEPT)
    return token


def _earlier(window: str, now: float) -> List[Slot]:
    """The slots of another window; none where it is not there."""
    try:
        handle = os.open(window, _FOLDER)
    except FileNotFoundError:
        return []
    try:
        return list(_slots(handle, now).values())
    finally:
        os.close(handle)


def _take(window: int, free: int, mine: Slot, most: int) -> Token:
    draft = f".{mine.node}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=window)  # of one that was killed, when this number was its own
    _write(window, draft, mine)
    try:
        for slot in range(free):
            if _claim(window, slot, draft, mine):
                _keep_the_lowest(window, slot, mine)
                return Token(True)
    finally:
        os.unlink(draft, dir_fd=window)
    return Token(False, f"{most} nodes of the fleet were drained in this window already")


def _claim(window: int, slot: int, draft: str, mine: Slot) -> bool:
    try:
        os.link(draft, _name(slot), src_dir_fd=window, dst_dir_fd=window, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            _write(window, _name(slot), mine)
        except FileExistsError:
            return False
    return True


def _keep_the_lowest(window: int, number: int, mine: Slot) -> None:
    """Two prologs of one node may have taken two slots: both keep the lower one."""
    if any(slot.node == mine.node for other, slot in _slots(window, mine.at).items() if other < number):
        os.unlink(_name(number), dir_fd=window)


def _slots(window: int, unknown: float) -> Dict[int, Slot]:
    """The slots of a window by number; `unknown` is the time of one that tells none."""
    found = {}
    for name in os.listdir(window):
        number = name[len(_SLOT) :]
        if name.startswith(_SLOT) and number.isascii() and number.isdecimal():
            found[int(number)] = _slot(window, name, unknown)
    return found


def _slot(window: int, name: str, unknown: float) -> Slot:
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=window)
    except FileNotFoundError:
        return Slot("", unknown)  # its node has just taken a lower one
    try:
        words = os.read(handle, _MOST_BYTES).decode("utf-8", "replace").split()
    finally:
        os.close(handle)
    node, at = (*words, "", "")[:2]
    try:
        return Slot(node, float(at))
    except ValueError:
        return Slot(node, unknown)


def _write(window: int, name: str, mine: Slot) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, flags, 0o644, dir_fd=window)
    try:
        os.write(handle, f"{mine.node} {mine.at:.3f}\n".encode())
    finally:
        os.close(handle)


def _sweep(folder: str, oldest: int) -> None:
    """Remove the windows before `oldest`, as far as that can be done: what is not ours keeps its folder."""
    with contextlib.suppress(OSError):
        old = [name for name in os.listdir(folder) if name.isascii() and name.isdecimal() and int(name) < oldest]
        for name in sorted(old, key=int)[:_MOST_SWEPT]:
            with contextlib.suppress(OSError):
                _remove(os.path.join(folder, name))


def _remove(window: str) -> None:
    handle = os.open(window, _FOLDER)
    try:
        for name in os.listdir(handle):
            if name.startswith((_SLOT, ".")):
                os.unlink(name, dir_fd=handle)
    finally:
        os.close(handle)
    os.rmdir(window)


def _name(slot: int) -> str:
    return f"{_SLOT}{slot}"
