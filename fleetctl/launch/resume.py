"""What an attempt resumes from: the claim of the checkpoints that stand, and the choice among them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from fleetctl.checkpoint.apart import Apart
from fleetctl.checkpoint.aside import set_aside
from fleetctl.checkpoint.eyes import Eyes
from fleetctl.checkpoint.model import Checked, Choice, Entry, Level, Needs, Outcome, Survey, one_line
from fleetctl.checkpoint.mounts import shows_late
from fleetctl.checkpoint.resolve import Examine, Patience, resolve
from fleetctl.checkpoint.select import something_stood, standing
from fleetctl.checkpoint.stale import collect_stale
from fleetctl.checkpoint.survey import survey_names
from fleetctl.clock import Clock
from fleetctl.errors import CannotTell
from fleetctl.launch.memory import Folder, Known, after, gone, known, narrowed
from fleetctl.launch.model import CheckpointOrder, JobIdentity
from fleetctl.launch.tell import Chosen, Pointer, arguments, plan_pointer, set_pointer
from fleetctl.rundir.attempts import SEEN, Aside, Attempts
from fleetctl.rundir.history import History
from fleetctl.rundir.model import SCHEMA_VERSION, AttemptNumber, attempt_name

_VISIBLE_WITHIN_S = 60.0  # an NFS client may show a new file so late (nfs(5), acdirmax); a fall-back costs more
_LOOK_AGAIN_S = 1.0
_WHAT_TO_DO = "put a valid one back, or submit a new run"
_MOST_PASSED = 100  # of those passed over that are written down: a folder may hold thousands of an older training


class Resume(Struct, frozen=True):
    """Where an attempt starts: `path` and `training_step` of a checkpoint, both None for none.

    `hold` says why the run must not start at all. `arguments` are appended to the training's command. `void` names
    what is there and holds nothing to go on from: saves that were never finished, weights alone.
    """

    path: str | None = None
    training_step: int | None = None
    passed_over: tuple[str, ...] = ()  # `NAME: why not`, newest first
    hold: str | None = None
    arguments: tuple[str, ...] = ()
    pointer: Pointer | None = None
    void: tuple[str, ...] = ()


class Seen(Struct, frozen=True):
    """The folder at the start of an attempt. `format` is what `auto` came to mean; `aside` is for the claim."""

    known: Known
    found: Survey
    format: str
    aside: Aside

    @property
    def is_shown(self) -> bool:
        """Whether the newest that the run has committed itself is to be seen."""
        newest = self.known.newest
        return newest is None or any(entry.name == newest for entry in self.found.entries)


def directory_of(order: CheckpointOrder, task: int | None) -> Path:
    """The folder of the checkpoints: each element of a sweep has its own in it."""
    return Path(order.directory) if task is None else Path(order.directory) / str(task)


def folder_of(order: CheckpointOrder, task: int | None) -> Folder:
    """The same, with what the spec says of it."""
    return Folder(directory_of(order, task), order.format, order.load == "latest")


def needs_of(order: CheckpointOrder) -> Needs:
    """What a checkpoint must be for this run."""
    return Needs(Level[order.verify.upper()], order.ranks)


def choose(
    order: CheckpointOrder | None,
    attempts: Attempts,
    number: AttemptNumber,
    history: History,
    job: JobIdentity,
    clock: Clock,
    *,
    open_eyes: Callable[[], Eyes] = Apart,
) -> Resume:
    """Complete the claim of attempt `number`, choose, and set the framework's pointer. The names are listed once, after
    the folder was claimed: what an older attempt commits later stands in no claim.

    :raises RunDirError: the claim cannot be written.
    :raises CannotTell: the storage does not answer; it may answer the next call.
    """
    if order is None:
        attempts.write_stands(number, (), clock.now(), job.job_id)
        return Resume()
    with open_eyes() as eyes:
        return _choose(order, attempts, number, history, job, clock, eyes)


def _choose(
    order: CheckpointOrder,
    attempts: Attempts,
    number: AttemptNumber,
    history: History,
    job: JobIdentity,
    clock: Clock,
    eyes: Eyes,
) -> Resume:
    directory = directory_of(order, job.task)
    seen = _see(folder_of(order, job.task), attempts, number, history, job.task, clock, eyes)
    if not isinstance(seen, Seen):
        return Resume(hold=f"it is not known which checkpoints there are: {seen}")
    before = seen.known
    promised = survey_names((before.newest,) if before.newest is not None else (), "own").entries
    listed = Survey(tuple({*seen.found.entries, *promised}), seen.found.foreign)
    stands = standing(listed, before.fence, before.at_most_step)
    attempts.write_stands(number, stands, clock.now(), job.job_id, seen.aside)
    patience = Patience(clock, _VISIBLE_WITHIN_S, shows_late=shows_late(directory))
    choice = _resolve(directory, seen, needs_of(order), patience, eyes)
    if choice.outcome is Outcome.HOLD:  # nothing starts, so what stood still does: somebody may put it back
        stands = (*stands, *gone(seen.found, before, seen.format))
        attempts.write_stands(number, stands, clock.now(), job.job_id, seen.aside)
    if choice.outcome is Outcome.SCRATCH:  # a missing folder may be one that is not mounted: then it must not be made
        with contextlib.suppress(OSError):  # a container mounts it; whoever cannot save there says so better
            eyes.make(directory)
    resume = _told(order, directory, _resume(choice, directory), attempts, number)
    chosen = choice.chosen
    facts = {
        "reason": choice.reason,
        "format": chosen and chosen.format,
        "level": chosen and chosen.level and chosen.level.name.lower(),
        "once_valid": before.once_valid or something_stood(seen.found, before.fence, None),
    }
    _journal(attempts, number, resume, facts)
    return _pointed(directory, resume, attempts, number, facts)


def newest_step(
    order: CheckpointOrder,
    attempts: Attempts,
    number: AttemptNumber,
    history: History,
    task: int | None,
    *,
    open_eyes: Callable[[], Eyes] = Apart,
) -> int | None:
    """The training step of the newest valid checkpoint now that attempt `number` has ended; None if there is none. That
    there was one is written down: should it be gone at the next start, the run must not start from scratch.

    :raises RunDirError, CannotTell: it is not known, or cannot be written.
    """
    folder = folder_of(order, task)
    with open_eyes() as eyes:
        before = known(attempts, (number[0], number[1] + 1), history, task, folder, eyes.storage)
        found, form = narrowed(eyes.survey(folder.directory, folder.format), before, folder.format)
        seen = Seen(before, found, form, before.aside)
        choice = _resolve(folder.directory, seen, Needs(Level.STRUCTURE, order.ranks), None, eyes)
    if choice.chosen is None or choice.chosen.entry is None:
        return None
    step = choice.chosen.entry.training_step
    attempts.write(number, SEEN, {"schema": SCHEMA_VERSION, "name": choice.chosen.name, "training_step": step})
    return step


def examiner(directory: Path, form: str, needs: Needs, eyes: Eyes) -> Examine:
    """How the checkpoints of a folder are looked at."""
    return lambda entry, level: eyes.examine(directory, entry, level, wanted=form, ranks=needs.ranks)


def collect(order: CheckpointOrder | None, number: AttemptNumber, run_id: str, task: int | None) -> tuple[str, ...]:
    """Remove what older attempts of this run left in staging; off the way to the first step, since it may be much."""
    if order is None:
        return ()
    with contextlib.suppress(OSError):  # the fence holds without it, and the next attempt tries again
        return collect_stale(directory_of(order, task), run_id, number)
    return ()


def _see(
    folder: Folder,
    attempts: Attempts,
    number: AttemptNumber,
    history: History,
    task: int | None,
    clock: Clock,
    eyes: Eyes,
) -> Seen | str:
    """One listing of the folder; why not, when it cannot be told. Another host's newest commit may be shown late:
    without it the run would lose what it has trained since the one before, and fence it out for ever."""
    storage, until_s = eyes.storage, clock.monotonic_s() + _VISIBLE_WITHIN_S
    seen: Seen | str = ""
    while True:
        try:
            before = known(attempts, number, history, task, folder, storage)
            found, form = narrowed(eyes.survey(folder.directory, folder.format), before, folder.format)
            is_first = before.fence.since is None and not before.fence.everything and form != "own"
            left = found if is_first else after(found, before.at_most_step)
            aside = {**set_aside(storage, folder.directory, left), **before.aside}
            seen = Seen(before, found, form, aside)
        except CannotTell as error:
            if not eyes.answers:
                raise
            seen = seen or error.message
        if (isinstance(seen, Seen) and seen.is_shown) or clock.monotonic_s() >= until_s:
            return seen
        clock.sleep(_LOOK_AGAIN_S)


def _resolve(directory: Path, seen: Seen, needs: Needs, patience: Patience | None, eyes: Eyes) -> Choice:
    """:raises CannotTell: the storage does not answer, and would not for older ones."""
    look = examiner(directory, seen.format, needs, eyes)

    def examine(entry: Entry, level: Level) -> Checked:
        found = look(entry, level)
        if not eyes.answers:
            raise CannotTell(f"cannot look at the checkpoints in {directory}: {one_line(found.name)}: {found.reason}")
        return found

    return resolve(
        examine,
        seen.found,
        seen.known.fence,
        suspects=seen.known.suspects,
        once_valid=seen.known.once_valid,
        at_most_step=seen.known.at_most_step,
        needs=needs,
        patience=patience,
    )


def _resume(choice: Choice, directory: Path) -> Resume:
    passed = tuple(
        f"{one_line(one.name)}: {one.validity.value}: {one.reason}" for one in choice.passed_over[:_MOST_PASSED]
    )
    looked = [one for one in choice.passed_over if one.entry is not None]
    void = tuple(one.name for one in looked if one.uncommitted or not one.resumable)
    if choice.outcome is Outcome.HOLD:
        why = f"no checkpoint in {directory} can be resumed from: {choice.reason}; {_WHAT_TO_DO}"
        return Resume(passed_over=passed, hold=why, void=void)
    if choice.chosen is None or choice.chosen.entry is None:
        return Resume(passed_over=passed, void=void)
    return Resume(str(directory / choice.chosen.name), choice.chosen.entry.training_step, passed, void=void)


def _told(order: CheckpointOrder, directory: Path, resume: Resume, attempts: Attempts, number: AttemptNumber) -> Resume:
    """With what the framework is told, planned and not done yet."""
    if resume.hold is not None:
        return resume
    chosen = None if resume.path is None else Chosen(resume.path, resume.training_step or 0)
    try:
        pointer = plan_pointer(order.tell, order.format, directory, chosen, attempt_name(number))
    except OSError as error:
        return structs.replace(resume, hold=_not_pointed(directory, error))
    if pointer is not None and attempts.newest() > number:  # it is a newer head's to set; this one is about to end
        pointer = None
    return structs.replace(resume, arguments=arguments(order.tell, order.format, chosen), pointer=pointer)


def _pointed(
    directory: Path, resume: Resume, attempts: Attempts, number: AttemptNumber, facts: Mapping[str, Any]
) -> Resume:
    """Set the pointer as planned. What cannot be set holds: the framework would load another checkpoint."""
    if resume.hold is not None or resume.pointer is None:
        return resume
    try:
        set_pointer(directory, resume.pointer)
    except OSError as error:
        resume = structs.replace(resume, hold=_not_pointed(directory, error), pointer=None)
        _journal(attempts, number, resume, facts)
    return resume


def _not_pointed(directory: Path, error: OSError) -> str:
    why = error.strerror or str(error)
    return f"the pointer in {directory} cannot be set, so the training would load another checkpoint: {why}"


def _journal(attempts: Attempts, number: AttemptNumber, resume: Resume, facts: Mapping[str, Any]) -> None:
    """Before the deed."""
    attempts.write(number, "resume.json", {"schema": SCHEMA_VERSION, **facts, **_plain(resume)})


def _plain(resume: Resume) -> dict[str, Any]:
    pointer = None if resume.pointer is None else structs.asdict(resume.pointer)
    return {**structs.asdict(resume), "pointer": pointer}
