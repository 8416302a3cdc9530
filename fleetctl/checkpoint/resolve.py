"""Look for the checkpoint that a start takes: newest first, only as far as needed, and only as deep as asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from fleetctl.checkpoint import select
from fleetctl.checkpoint.formats import own
from fleetctl.checkpoint.model import Checked, Choice, Entry, Fence, Level, Validity
from fleetctl.checkpoint.storage import Storage
from fleetctl.clock import Clock


class Patience(Struct, frozen=True):
    """How long to look again at the newest one before it is called incomplete.

    An NFS client may show a folder and, for up to a minute, not the files that another host put there (nfs(5),
    acdirmax); an answer may also be lost for a moment.
    """

    clock: Clock
    limit_s: float
    every_s: float = 1.0


def resolve(
    storage: Storage,
    directory: Path,
    names: Sequence[str],
    fence: Fence,
    *,
    suspects: frozenset[str],
    once_valid: bool,
    at_most_step: int | None,
    level: Level,
    patience: Patience | None = None,
) -> Choice:
    """The newest valid checkpoint of those that the fence accepts, or what to do without one.

    `names` is one listing of `directory`. A suspect is used only when no other is valid, after its content was read.
    """
    entries, passed_over = select.acceptable(names, fence, at_most_step)
    once = once_valid or select.something_stood(names, fence)
    seen: list[Checked] = []
    for entry in entries:
        waits = patience if not seen else None
        seen.append(_look(storage, directory, entry, level, waits))
        if select.usable(seen[-1], suspects):
            break
    else:
        _prove_a_suspect(storage, directory, seen)
    return select.decide(seen, suspects, once_valid=once, passed_over=passed_over)


def _look(storage: Storage, directory: Path, entry: Entry, level: Level, patience: Patience | None) -> Checked:
    found = own.check(storage, directory, entry, level)
    if patience is None:
        return found
    deadline_s = patience.clock.monotonic_s() + patience.limit_s
    while found.validity in (Validity.INCOMPLETE, Validity.UNKNOWN) and patience.clock.monotonic_s() < deadline_s:
        patience.clock.sleep(patience.every_s)
        found = own.check(storage, directory, entry, level)
    return found


def _prove_a_suspect(storage: Storage, directory: Path, seen: list[Checked]) -> None:
    """No other is valid, so all that are valid here are suspects: read them, newest first, until one is as written."""
    for index, found in enumerate(seen):
        if found.validity is not Validity.VALID or found.entry is None:
            continue
        seen[index] = own.check(storage, directory, found.entry, Level.CONTENT)
        if seen[index].validity is Validity.VALID and seen[index].level is Level.CONTENT:
            return
