"""Which checkpoint a framework's own pointer names: a file or a link beside the checkpoints."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fleetctl.checkpoint.storage import LocalStorage, NotRegular

# Of DeepSpeed, of nanotron, and of Megatron-LM, whose pointer holds a number
_NAMES = ("latest", "latest_universal", "latest.txt")
_MEGATRON = "latest_checkpointed_iteration.txt"
_MOST_BYTES = 4096  # of a pointer: a name
_MOST_LINKS = 100


def pointed(directory: Path) -> frozenset[str]:
    """The names that pointers and links in the folder name, whether they are there or not.

    :raises OSError: a pointer is there and cannot be read, so it is not known what it names.
    """
    storage, found = LocalStorage(), set[str]()
    for name in (*_NAMES, _MEGATRON):
        text = _text(storage, directory, name)
        if text is not None:
            found.add(f"iter_{int(text):07d}" if name == _MEGATRON and text.isdecimal() else text)
    with os.scandir(directory) as entries:
        links = [entry.name for entry in entries if entry.is_symlink()][:_MOST_LINKS]
    for name in links:
        with contextlib.suppress(FileNotFoundError):
            said = os.readlink(directory / name)
            found.update(_first_part(said, folder) for folder in (str(directory), os.path.realpath(directory)))
    return frozenset(found)


def _first_part(target: str, folder: str) -> str:
    """The name in the folder that a link leads to, or through: no link is followed to find out."""
    return os.path.relpath(os.path.normpath(os.path.join(folder, target)), folder).split("/")[0]


def _text(storage: LocalStorage, directory: Path, name: str) -> str | None:
    """What a pointer says; a link of that name is none, nor is a folder."""
    with contextlib.suppress(FileNotFoundError, NotRegular), storage.open(directory, name) as blob:
        return blob.read(0, min(blob.size_bytes, _MOST_BYTES)).decode("utf-8", "replace").strip()
    return None
