"""The bar of `fleetctl ckpt verify` on a terminal."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fleetctl.checkpoint.storage import Kind

if TYPE_CHECKING:
    from fleetctl.checkpoint.model import Entry
    from fleetctl.checkpoint.storage import Storage

_MOST_FOLDERS = 1000  # of one checkpoint, whose sizes are asked for: the rest is read without being announced

Watch = Callable[["Entry"], Callable[[int], None]]  # of the one that is looked at now; told the bytes of each read


@contextlib.contextmanager
def progress(storage: Storage, directory: Path, entries: Sequence[Entry]) -> Iterator[Watch]:
    """A bar on a terminal while content is read; nothing in a pipe. Its total grows by each one that is begun."""
    if not sys.stderr.isatty():
        yield unwatched
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    sizes = DownloadColumn(binary_units=True)
    columns = (TextColumn("{task.description}"), BarColumn(), sizes, TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task(f"0 of {len(entries)}", total=None)

        def watch(entry: Entry) -> Callable[[int], None]:
            total_bytes = bar.tasks[0].completed + size_of(storage, directory, entry)
            bar.update(shown, description=f"{entries.index(entry) + 1} of {len(entries)}", total=total_bytes)
            return functools.partial(bar.advance, shown)

        yield watch


def unwatched(_entry: Entry) -> Callable[[int], None]:
    """Nobody watches."""
    return lambda _size_bytes: None


def size_of(storage: Storage, directory: Path, entry: Entry) -> int:
    """Bytes of all its files, by their folders alone. What cannot be told counts for nothing."""
    size_bytes, folders, asked = 0, list[tuple[str, ...]](), 0
    with contextlib.suppress(OSError):
        found = storage.look(directory, entry.name)
        size_bytes = found.size_bytes if found is not None and found.kind is Kind.FILE else 0
        folders = [(entry.name,)] if found is not None and found.kind is Kind.FOLDER else []
        while folders and asked < _MOST_FOLDERS:
            inside, asked = folders.pop(), asked + 1
            for name, one in storage.look_all(directory, *inside).items():
                size_bytes += one.size_bytes if one.kind is Kind.FILE else 0
                folders += [(*inside, name)] if one.kind is Kind.FOLDER else []
    return size_bytes
