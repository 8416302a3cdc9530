"""Which checkpoint a framework's own pointer names: a file or a link beside the checkpoints."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fleetctl.checkpoint.storage import LocalStorage

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
            target = os.path.normpath(os.path.join(directory, os.readlink(directory / name)))
            found.add(os.path.relpath(target, directory).split("/")[0])
    return frozenset(found)


def _text(storage: LocalStorage, directory: Path, name: str) -> str | None:
    with contextlib.suppress(FileNotFoundError), storage.open(directory, name) as blob:
        return blob.read(0, min(blob.size_bytes, _MOST_BYTES)).decode("utf-8", "replace").strip()
    return None
