"""Remove checkpoints that a retention policy lets go: first out of sight, then out of the world."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from fleetctl.checkpoint.model import Checked
from fleetctl.checkpoint.trash import FOLDER, closing, delete
from fleetctl.train import layout

KEPT = ".keep"  # `touch DIR/.keep/NAME` keeps a checkpoint whatever the policy says
_GONE = re.compile(r".*@g[0-9a-f]{8}", re.DOTALL)
_NAME_CHARS = 200  # of a name in the trash: file systems take 255 bytes, and the token comes after it


def tagged(directory: Path) -> frozenset[str]:
    """The names that somebody tagged. :raises OSError: they cannot be read, so nothing may be removed."""
    try:
        return frozenset(os.listdir(directory / KEPT))
    except FileNotFoundError:
        return frozenset()


def remove(
    directory: Path, gone: Sequence[Checked], guard: Sequence[str], told: Callable[[str], None] = lambda _: None
) -> tuple[str, ...]:
    """Remove these of a folder, from the last of `gone` to the first; returns the names that went.

    Each is renamed into the trash in one act, so that an interruption leaves every checkpoint whole or gone, and what
    is left in the trash goes next time. Before each, all of `guard` must still be there. Nothing outside the folder is
    touched, and no link is followed. `told` hears of each that is gone from the folder.

    :raises OSError: one cannot be removed, or a guard is not there.
    """
    removed = []
    with closing(os.open(directory, FOLDER)) as folder:
        with contextlib.suppress(FileExistsError):
            os.mkdir(layout.TRASH, dir_fd=folder)
        with closing(os.open(layout.TRASH, FOLDER | os.O_NOFOLLOW, dir_fd=folder)) as trash:
            for one in reversed(gone):
                _check_guard(guard, folder)
                with contextlib.suppress(FileNotFoundError):  # somebody else removed it
                    target = f"{one.name[:_NAME_CHARS]}@g{secrets.token_hex(4)}"
                    os.rename(one.name, target, src_dir_fd=folder, dst_dir_fd=trash)
                    removed.append(one.name)
                    told(one.name)
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
