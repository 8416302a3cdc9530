"""Remove checkpoints that a retention policy lets go: first out of sight, then out of the world."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from fleetctl.checkpoint.model import Checked
from fleetctl.checkpoint.trash import FOLDER, closing, delete
from fleetctl.train import layout

KEPT = ".keep"  # `touch DIR/.keep/NAME` keeps a checkpoint whatever the policy says
_GONE = re.compile(r".*@g[0-9a-f]{8}", re.DOTALL)
_NAME_CHARS = 200  # of a name in the trash: file systems take 255 bytes, and the token comes after it
_ROUNDED_S = 2e-6  # what a time loses as a datetime

Permit = Callable[[], AbstractContextManager[bool]]  # whether one may go now; it holds until the block ends


@contextlib.contextmanager
def always() -> Iterator[bool]:
    """Nobody forbids it."""
    yield True


def tagged(directory: Path) -> frozenset[str]:
    """The names that somebody tagged. :raises OSError: they cannot be read, so nothing may be removed."""
    try:
        return frozenset(os.listdir(directory / KEPT))
    except FileNotFoundError:
        return frozenset()


def remove(
    directory: Path,
    gone: Sequence[Checked],
    guard: Sequence[str],
    *,
    permit: Permit = always,
) -> tuple[str, ...]:
    """Remove these of a folder, from the last of `gone` to the first; returns the names that went.

    Each is renamed into the trash in one act, so that an interruption leaves every checkpoint whole or gone, and what
    is left in the trash goes next time. Before each, all of `guard` must still be there, and `permit` is asked; once it
    says no, nothing more goes. What was written to since it was looked at stays. Nothing outside the folder is touched,
    and no link is followed.

    :raises OSError: one cannot be removed, or a guard is not there.
    """
    removed = []
    with closing(os.open(directory, FOLDER)) as folder:
        with contextlib.suppress(FileExistsError):
            os.mkdir(layout.TRASH, dir_fd=folder)
        with closing(os.open(layout.TRASH, FOLDER | os.O_NOFOLLOW, dir_fd=folder)) as trash:
            for one in reversed(gone):
                _check_guard(guard, folder)
                if not _is_as_found(one, folder):
                    continue
                target = f"{one.name[:_NAME_CHARS]}@g{secrets.token_hex(4)}"
                try:
                    with permit() as may_go:
                        if not may_go:
                            break
                        os.rename(one.name, target, src_dir_fd=folder, dst_dir_fd=trash)
                except FileNotFoundError:  # somebody else removed it
                    continue
                removed.append(one.name)
                os.fsync(folder)  # out of sight on disk, too, before its first part goes
                delete(target, trash)
            for name in os.listdir(trash):
                if _GONE.fullmatch(name):  # what an interruption left
                    delete(name, trash)
    return tuple(removed)


def _check_guard(guard: Sequence[str], folder: int) -> None:
    for name in guard:
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            raise OSError(errno.ENOENT, f"{name}, one of the newest valid ones, is gone") from None


def _is_as_found(one: Checked, folder: int) -> bool:
    """Whether nobody has written to it, or directly in it, since it was looked at: a training may go on writing to one
    name, such as last.pt, and make the newest of what was the oldest."""
    try:
        there = os.stat(one.name, dir_fd=folder, follow_symlinks=False)
        times_s = [there.st_mtime]
        if stat.S_ISDIR(there.st_mode):
            with (
                closing(os.open(one.name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)) as handle,
                os.scandir(handle) as inside,
            ):
                times_s += [child.stat(follow_symlinks=False).st_mtime for child in inside]
        elif not stat.S_ISREG(there.st_mode):
            return False
    except FileNotFoundError:
        return False
    return one.touched_at is not None and max(times_s) <= one.touched_at.timestamp() + _ROUNDED_S
