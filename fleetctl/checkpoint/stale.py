"""Clear away what older attempts of a run left in staging, so that none of them can commit it any more."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from fleetctl.checkpoint.model import AttemptNumber, Entry, staged_entry_of
from fleetctl.checkpoint.trash import FOLDER, closing, delete
from fleetctl.train import layout


def collect_stale(directory: Path, run_id: str, older_than: AttemptNumber) -> tuple[str, ...]:
    """Remove the unfinished saves of `run_id` by attempts older than `older_than`; their names, sorted.

    Each is renamed into the trash first: the rename of a writer that still lives then fails, whatever becomes of the
    removal, which may be left to the next attempt. Nothing of another run, and nothing committed, is touched.

    :raises OSError: one cannot be renamed away, so its writer could still commit it.
    """
    collected = []
    try:
        staging = os.open(directory / layout.STAGING, FOLDER | os.O_NOFOLLOW)
    except FileNotFoundError:
        return ()
    with closing(staging), _trash(directory, staging) as trash:
        for name in os.listdir(staging):
            if _is_ours(staged_entry_of(name), run_id, older_than):
                with contextlib.suppress(FileNotFoundError):  # its writer, or another cleaner, was quicker
                    os.rename(name, f"{name}@t{secrets.token_hex(4)}", src_dir_fd=staging, dst_dir_fd=trash)
                    collected.append(name)
        for name in os.listdir(trash):  # also what an earlier cleaner did not get to
            if _is_ours(staged_entry_of(name.rpartition("@")[0]), run_id, older_than):
                delete(name, trash)
    return tuple(sorted(collected))


def _is_ours(entry: Entry | None, run_id: str, older_than: AttemptNumber) -> bool:
    return entry is not None and entry.run_id == run_id and entry.attempt < older_than


@contextlib.contextmanager
def _trash(directory: Path, staging: int) -> Iterator[int]:
    """The trash folder; staging itself, under other names, where none can be made: a full disk is when it matters."""
    path = directory / layout.TRASH
    with contextlib.suppress(OSError):
        path.mkdir(exist_ok=True)
    try:
        trash = os.open(path, FOLDER | os.O_NOFOLLOW)
    except OSError:
        yield staging
        return
    with closing(trash):
        yield trash
