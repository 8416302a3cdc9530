"""What lies in staging, for people: saves under way, and saves that were never finished. Nothing here is removed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from fleetctl.checkpoint.model import Checked, Entry, Validity, one_line, staged_entry_of
from fleetctl.checkpoint.select import staged
from fleetctl.checkpoint.storage import Storage
from fleetctl.train import layout

_QUIET_S = 600.0  # a writer that has touched nothing for ten minutes is gone: storage that slow has failed
_MOST_FILES = 1000  # of one save, to look at the times of


def list_staged(
    storage: Storage, directory: Path, now: datetime, lives: Callable[[Entry], bool | None]
) -> tuple[Checked, ...]:
    """Every name in staging. `lives` says whether its writer does; where it cannot (None), the files' times say.

    A time in the future is no proof of anything, so such a save may still be under way.
    """
    try:
        names = storage.listing(directory, layout.STAGING)
    except FileNotFoundError:
        return ()
    except OSError as error:
        why = one_line(f"cannot be listed: {error.strerror or error}")
        return (Checked(None, layout.STAGING, Validity.UNKNOWN, None, why),)
    return tuple(_staged(storage, directory, name, now, lives) for name in names)


def _staged(
    storage: Storage, directory: Path, name: str, now: datetime, lives: Callable[[Entry], bool | None]
) -> Checked:
    entry = staged_entry_of(name)
    alive = None if entry is None else lives(entry)
    if alive is None and entry is not None and _is_quiet(storage, directory, name, now):
        alive = False
    return staged(name, lives=alive)


def _is_quiet(storage: Storage, directory: Path, name: str, now: datetime) -> bool:
    """Whether nothing in it was touched for long, by our clock. Not known is not quiet."""
    try:
        inner = storage.listing(directory, layout.STAGING, name)[:_MOST_FILES]
        for file in (None, *inner):
            found = storage.look(directory, layout.STAGING, name, *(() if file is None else (file,)))
            if found is not None and found.modified_at_s > now.timestamp() - _QUIET_S:
                return False
    except OSError:
        return False
    return True
