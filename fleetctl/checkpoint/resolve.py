"""Look for the checkpoint that a start takes: newest first, only as far as needed, and only as deep as asked."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from fleetctl.checkpoint import select
from fleetctl.checkpoint.model import Checked, Choice, Entry, Fence, Level, Needs, Survey, Validity
from fleetctl.clock import Clock

Examine = Callable[[Entry, Level], Checked]  # fleetctl.checkpoint.examine, of one folder


class Patience(Struct, frozen=True):
    """How long to look again at the newest one before it is called incomplete.

    An NFS client may show a folder and, for up to a minute, not the files that another host put there (nfs(5),
    acdirmax); an answer may also be lost for a moment. `shows_late` false: this file system shows all at once, so only
    what cannot be read is looked at again.
    """

    clock: Clock
    limit_s: float
    every_s: float = 1.0
    shows_late: bool = True

    def waits_for(self, found: Checked) -> bool:
        """Whether this may be found otherwise soon."""
        if found.validity is Validity.UNKNOWN:
            return self.shows_late or found.entry is not None
        return self.shows_late and found.validity is Validity.INCOMPLETE


def resolve(
    examine: Examine,
    found: Survey,
    fence: Fence,
    *,
    suspects: frozenset[str],
    once_valid: bool,
    at_most_step: int | None,
    needs: Needs,
    patience: Patience | None = None,
) -> Choice:
    """The newest valid checkpoint of those that the fence accepts, or what to do without one.

    `found` is one listing. A suspect is used only when no other is valid, after its content was read.
    """
    entries, passed_over = select.acceptable(found, fence, at_most_step)
    once = once_valid or select.something_stood(found, fence, at_most_step)
    seen: list[Checked] = []
    for entry in entries:
        waits = patience if not seen else None
        seen.append(_look(examine, entry, max(needs.level, Level.STRUCTURE), waits))  # names prove nothing
        if not select.why_not(seen[-1], suspects, needs):
            break
    else:
        _prove_a_suspect(examine, seen, needs)
    return select.decide(seen, suspects, once_valid=once, needs=needs, passed_over=passed_over)


def _look(examine: Examine, entry: Entry, level: Level, patience: Patience | None) -> Checked:
    found = examine(entry, level)
    if patience is None:
        return found
    deadline_s = patience.clock.monotonic_s() + patience.limit_s
    while patience.waits_for(found) and patience.clock.monotonic_s() < deadline_s:
        patience.clock.sleep(patience.every_s)
        found = examine(entry, level)
    return found


def _prove_a_suspect(examine: Examine, seen: list[Checked], needs: Needs) -> None:
    """All that are usable here are suspects: read them, newest first, until one is as written."""
    for index, found in enumerate(seen):
        if found.entry is None or select.why_not(found, frozenset(), needs):
            continue
        seen[index] = examine(found.entry, Level.CONTENT)
        if seen[index].level is Level.CONTENT and not select.why_not(seen[index], frozenset(), needs):
            return
