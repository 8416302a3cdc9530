"""Removing what lies in the trash: where no start looks, and without following a link."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextlib.contextmanager
def closing(handle: int) -> Iterator[int]:
    """The handle, closed at the end."""
    try:
        yield handle
    finally:
        os.close(handle)


def delete(name: str, folder: int) -> None:
    """Remove a name of this folder, as far as it goes. rmtree follows no links; too deep a tree ends its recursion."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)  # a file of such a name
