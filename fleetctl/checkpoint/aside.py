"""What lay in a folder before a run that must not start from it, each with the time of the newest write to it.

What a framework writes has no run in its name: that it is of this run shows only in its having been written since.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fleetctl.checkpoint.model import Survey
from fleetctl.checkpoint.storage import Kind, Storage
from fleetctl.checkpoint.survey import FILES
from fleetctl.errors import CannotTell

_MOST_NAMES = 10_000  # each claim lists them: some 600 kB
_MOST_CHILDREN = 256  # of one checkpoint, in order: `.metadata`, which DCP writes last, is among the first


def set_aside(storage: Storage, directory: Path, found: Survey) -> dict[str, float]:
    """All that is or may become a checkpoint of another format than our own: what cannot be read now may be later.

    :raises CannotTell: there is too much, or it cannot be read.
    """
    names = [entry.name for entry in found.entries if not entry.is_own]
    marked = {name: at_s for name in names if (at_s := _mark(storage, directory, name)) is not None}
    for name in found.foreign:
        if not _is_other_file(storage, directory, name) and (at_s := _mark(storage, directory, name)) is not None:
            marked[name] = at_s
        if len(marked) > _MOST_NAMES:
            break
    if len(marked) > _MOST_NAMES:
        raise CannotTell(
            f"{directory} has more than {_MOST_NAMES} folders and files that may be older checkpoints",
            remedy="give the run a folder of its own",
        )
    return marked


def unchanged(storage: Storage, directory: Path, aside: Mapping[str, float]) -> frozenset[str]:
    """Those that nobody has written to since. One that is gone counts: should it come back, it is the old one if its
    times are.

    :raises CannotTell: that cannot be read.
    """
    return frozenset(name for name, at_s in aside.items() if _mark(storage, directory, name) in (None, at_s))


def _is_other_file(storage: Storage, directory: Path, name: str) -> bool:
    """A file that is never called a checkpoint."""
    if name.endswith(FILES):
        return False
    try:
        there = storage.look(directory, name)
    except OSError:
        return False
    return there is not None and there.kind is not Kind.FOLDER


def _mark(storage: Storage, directory: Path, name: str) -> float | None:
    """The newest write to it and to what lies directly in it; None when it is not there."""
    try:
        there = storage.look(directory, name)
        if there is None or there.kind is not Kind.FOLDER:
            return None if there is None else there.modified_at_s
        inner = sorted(storage.listing(directory, name))[:_MOST_CHILDREN]
        times_s = [child.modified_at_s for one in inner if (child := storage.look(directory, name, one)) is not None]
        return max((there.modified_at_s, *times_s))
    except FileNotFoundError:  # it was removed meanwhile
        return None
    except OSError as error:
        raise CannotTell(
            f"cannot look at {ascii(str(directory / name))[1:-1]}, which was there before the run: {error.strerror}"
        ) from error
