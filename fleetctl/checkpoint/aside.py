"""What lies in a folder and does not count for a run: it was there before it, or a person went back to an older step.

What a framework writes has no run in its name: that it counts shows only in its having been written since. So each has
the times of its newest files. What is put beside them later, or taken away, is no checkpoint written anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from fleetctl.checkpoint.model import Survey
from fleetctl.checkpoint.storage import Kind, Storage
from fleetctl.checkpoint.survey import FILES
from fleetctl.errors import CannotTell

_MOST_NAMES = 10_000  # each claim lists them: some 3 MB
_MOST_FILES = 8  # of one checkpoint: its newest; what a framework writes last is among them
_MOST_FOLDERS = 8  # inside one that has no file itself, as Megatron-LM's legacy layout: a folder for each rank


def set_aside(storage: Storage, directory: Path, found: Survey) -> dict[str, dict[str, float]]:
    """All that is or may become a checkpoint of another format than our own: what cannot be read now may be later.

    :raises CannotTell: there is too much, or it cannot be read.
    """
    names = [entry.name for entry in found.entries if not entry.is_own]
    marked = {name: times_s for name in names if (times_s := _newest(storage, directory, name)) is not None}
    for name in found.foreign:
        if not _is_other_file(storage, directory, name) and (times_s := _newest(storage, directory, name)) is not None:
            marked[name] = times_s
        if len(marked) > _MOST_NAMES:
            break
    if len(marked) > _MOST_NAMES:
        raise CannotTell(
            f"{directory} has more than {_MOST_NAMES} folders and files that may be older checkpoints",
            remedy="give the run a folder of its own",
        )
    return marked


def unchanged(storage: Storage, directory: Path, aside: Mapping[str, Mapping[str, float]]) -> frozenset[str]:
    """Those that nobody has written to since. One that is gone counts: should it come back, it is the old one if its
    times are.

    :raises CannotTell: that cannot be read.
    """
    return frozenset(name for name, times_s in aside.items() if not _is_written(storage, directory, name, times_s))


def _is_other_file(storage: Storage, directory: Path, name: str) -> bool:
    """A file that is never called a checkpoint."""
    if name.endswith(FILES):
        return False
    try:
        there = storage.look(directory, name)
    except OSError:
        return False
    return there is not None and there.kind is not Kind.FOLDER


def _newest(storage: Storage, directory: Path, name: str) -> dict[str, float] | None:
    """When its newest files were written, by their paths in it, "" for a file itself; None when it is not there."""
    with _looking_at(directory / name):
        there = storage.look(directory, name)
        if there is None or there.kind is not Kind.FOLDER:
            return None if there is None else {"": there.modified_at_s}
        try:
            times_s = _files(storage, directory, name)
        except FileNotFoundError:  # it was removed meanwhile
            return None
    newest = sorted(times_s, key=lambda path: (-times_s[path], path))[:_MOST_FILES]
    return {path: times_s[path] for path in newest}


def _files(storage: Storage, directory: Path, name: str) -> dict[str, float]:
    inner = storage.look_all(directory, name)
    times_s = {child: found.modified_at_s for child, found in inner.items() if found.kind is Kind.FILE}
    folders = [] if times_s else sorted(child for child, found in inner.items() if found.kind is Kind.FOLDER)
    for folder in folders[:_MOST_FOLDERS]:
        below = storage.look_all(directory, name, folder)
        times_s |= {f"{folder}/{child}": one.modified_at_s for child, one in below.items() if one.kind is Kind.FILE}
    return times_s


def _is_written(storage: Storage, directory: Path, name: str, before_s: Mapping[str, float]) -> bool:
    """Whether one of its files is newer; where none of them is left, whether there are other ones that are."""
    with _looking_at(directory / name):
        now = {path: storage.look(directory, name, *filter(None, path.split("/"))) for path in before_s}
    times_s = {path: found.modified_at_s for path, found in now.items() if found is not None}
    if times_s:
        return any(at_s > before_s[path] for path, at_s in times_s.items())
    anew = _newest(storage, directory, name) or {}
    return max(anew.values(), default=0.0) > max(before_s.values(), default=0.0)


@contextlib.contextmanager
def _looking_at(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        shown = ascii(str(path))[1:-1]
        raise CannotTell(f"cannot look at {shown}, which was there before: {error.strerror}") from error
