"""What a run remembers of its checkpoints: whose commits count, which ones killed an attempt, what once was whole."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from fleetctl.checkpoint import known as formats
from fleetctl.checkpoint.aside import unchanged
from fleetctl.checkpoint.model import Fence, Survey, entry_of, load_of, suspects
from fleetctl.checkpoint.select import standing
from fleetctl.checkpoint.storage import Storage
from fleetctl.checkpoint.survey import survey_names
from fleetctl.rundir.attempts import Aside, Attempts, Claimed
from fleetctl.rundir.history import Heeded, History
from fleetctl.rundir.model import AttemptNumber, Ending, attempt_number

_OWN = "own"
_WITH_OWN = (formats.AUTO, _OWN)


class Folder(Struct, frozen=True):
    """A folder of checkpoints as the spec has it; `latest`: the first attempt may take whatever lies in it."""

    directory: Path
    format: str
    latest: bool


class Known(Struct, frozen=True):
    """What a run knows about its checkpoints before it looks at them. `once_valid` never becomes false again: whoever
    wants to begin anew submits a new run. `aside` is what the next claim must repeat."""

    fence: Fence
    suspects: frozenset[str]
    once_valid: bool
    at_most_step: int | None
    newest: str | None = None  # the name of the newest that a Checkpointer says it committed, where that counts
    aside: Aside = {}


def known(
    attempts: Attempts, number: AttemptNumber, history: History, task: int | None, folder: Folder, storage: Storage
) -> Known:
    """What holds for attempt `number`.

    :raises RunDirError: the run directory cannot be read.
    :raises CannotTell: it cannot be told what has been written to since the run began.
    """
    before, run_id = attempts.claimed_before(number), history.record.run_id
    fence = Fence.open(run_id) if folder.latest else Fence(run_id, frozenset(), None)
    aside: Aside = {}
    if before is not None:
        same = unchanged(storage, folder.directory, before.aside)
        aside = {name: times_s for name, times_s in before.aside.items() if name in same}
        stands = before.stands - attempts.void(before.number)  # should such a one be gone, nothing is lost
        fence = Fence(run_id, stands, before.number, aside=same)
    committed = _committed(attempts, before) if folder.format in _WITH_OWN else ()
    older = [one for one in reversed(attempts.numbers()) if one < number]
    heeded = history.heeded.get(task, Heeded())
    wished = history.wishes[task].from_step if task in history.wishes else None
    at_most = min((step for step in (wished, heeded.at_most_step) if step is not None), default=None)
    return Known(
        fence=fence,
        suspects=_suspects(attempts, history, number, task) | heeded.suspects,
        once_valid=any(_had_valid(attempts, one, folder.format) for one in older),
        at_most_step=at_most,
        newest=next(iter(standing(survey_names(committed, _OWN), fence, at_most)), None),
        aside=aside,
    )


def narrowed(found: Survey, before: Known, form: str) -> tuple[Survey, str]:
    """What `auto` means for this run. Where it has, or had, checkpoints of our own format, only those count: what else
    lies there is an export, or weights to begin with."""
    own = before.newest is not None or any(entry_of(name) is not None for name in before.fence.stands)
    own = own or any(entry.is_own and before.fence.accepts(entry) for entry in found.entries)
    if form != formats.AUTO or not own:
        return found, form
    others = tuple(entry.name for entry in found.entries if not entry.is_own)
    return Survey(tuple(entry for entry in found.entries if entry.is_own), (*found.foreign, *others)), _OWN


def after(found: Survey, at_most_step: int | None) -> Survey:
    """What a person does not want any more: only what is written over it counts."""
    if at_most_step is None:
        return Survey()
    return Survey(tuple(entry for entry in found.entries if entry.training_step > at_most_step))


def gone(found: Survey, before: Known, form: str) -> tuple[str, ...]:
    """What stood and is not there, unless nobody wants it."""
    names = before.fence.stands - {entry.name for entry in found.entries}
    unwanted = after(survey_names(names, form), before.at_most_step)
    return tuple(sorted(names - {entry.name for entry in unwanted.entries}))


def fences_writers(attempts: Attempts, form: str) -> bool:
    """Whether what a rank of an older attempt may still write changes nothing: only our own format sees to that.

    :raises RunDirError: it cannot be told which one the training uses.
    """
    if form != formats.AUTO:
        return form == _OWN
    return any(save.committed for number in attempts.numbers() for save in attempts.saves(number))


def _had_valid(attempts: Attempts, number: AttemptNumber, form: str) -> bool:
    """Whether a valid checkpoint was there at an older attempt. Our own format has its name only when it is whole; what
    a framework wrote was looked at."""
    if attempts.had_valid(number):
        return True
    claimed = attempts.claimed(number)
    if claimed is not None and any(entry_of(name) is not None for name in claimed.stands):
        return True
    return form in _WITH_OWN and any(save.committed for save in attempts.saves(number))


def _suspects(attempts: Attempts, history: History, number: AttemptNumber, task: int | None) -> frozenset[str]:
    """Checkpoints that an attempt died of while it loaded them. An attempt that was ended from outside died of that."""
    outside = {
        attempt_number(attempt.name)
        for attempt in history.attempts
        if attempt.task == task and attempt.ending not in (Ending.FAILED, Ending.STOPPED_EARLY)
    }
    loads = []
    for older in attempts.numbers():
        found = [load for raw in attempts.loads(older) if (load := load_of(older, raw)) is not None]
        loads += [load for load in found if load.state != "loading" or older not in outside]
    return suspects(loads, number)


def _committed(attempts: Attempts, before: Claimed | None) -> tuple[str, ...]:
    """The names that Checkpointers say they committed since the newest claim."""
    if before is None:
        return ()
    since = [number for number in attempts.numbers() if number >= before.number]
    return tuple(save.name for number in since for save in attempts.saves(number) if save.committed)
