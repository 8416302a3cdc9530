"""Where the checkpoints are that `fleetctl ckpt` was asked about, and which of them count."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import Struct

from fleetctl.checkpoint import select
from fleetctl.checkpoint.apart import Apart
from fleetctl.checkpoint.eyes import Eyes
from fleetctl.checkpoint.model import Checked, Choice, Entry, Fence, Level, Needs, Survey, one_line
from fleetctl.checkpoint.resolve import Examine, resolve
from fleetctl.checkpoint.retention import Keep
from fleetctl.checkpoint.staging import list_staged
from fleetctl.checkpoint.storage import Kind
from fleetctl.errors import CannotTell, FleetctlError, RunUnknown, UsageError
from fleetctl.launch.memory import Folder, known, narrowed
from fleetctl.launch.resume import examiner as examiner_of
from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.files import read_json
from fleetctl.rundir.history import History, finished_well
from fleetctl.rundir.model import Attempt, AttemptNumber, RunKind, attempt_name
from fleetctl.rundir.store import RunDir
from fleetctl.units import Duration

if TYPE_CHECKING:
    from fleetctl.cli.context import App

_LINK = "a link: it is not followed"
_MOST_NEAR = 50  # names that are looked at for the folder that was meant


class Place(Struct, frozen=True):
    """A folder of checkpoints, listed once, and what a restart of its run knows about them."""

    directory: Path
    found: Survey
    staged: tuple[Checked, ...]
    fence: Fence
    eyes: Eyes
    suspects: frozenset[str] = frozenset()
    once_valid: bool = False
    at_most_step: int | None = None
    format: str = "auto"
    needs: Needs = Needs()
    run: RunDir | None = None  # None for a folder that was named by hand
    may_be_written: bool = True
    keep: Keep | None = None
    used: frozenset[str] = frozenset()  # what the newest attempt resumed from
    passed_over: frozenset[str] = frozenset()  # and what it did not take
    newest: AttemptNumber = (0, 0)  # which one that was
    is_one: bool = False  # one checkpoint was named, not a folder of them

    @property
    def is_empty(self) -> bool:
        """Whether nothing is there, and nothing is known to have been."""
        return not (self.found.entries or self.staged or self.once_valid or self.fence.stands)

    def counts(self, found: Checked) -> bool:
        """Whether a restart would look at it."""
        if found.entry is None or not self.fence.accepts(found.entry):
            return False
        return self.at_most_step is None or found.entry.training_step <= self.at_most_step


def examiner(place: Place) -> Examine:
    """How the checkpoints of this place are looked at."""
    return examiner_of(place.directory, place.format, place.needs, place.eyes)


def as_they_are(place: Place, found: Sequence[Checked], now: datetime) -> tuple[Checked, ...]:
    """What was found, with what may be being written just now told from what is broken."""
    return select.in_progress(found, now) if place.may_be_written else tuple(found)


def with_links(place: Place, foreign: Sequence[Checked]) -> tuple[Checked, ...]:
    """The names that are no checkpoints, those of links with that reason."""
    here = frozenset(place.found.foreign)  # the others lie in staging
    return tuple(
        msgspec.structs.replace(one, reason=_LINK) if one.name in here and _is_link(place, one.name) else one
        for one in foreign
    )


def _is_link(place: Place, name: str) -> bool:
    """Whether it is one; not, where that cannot be told now."""
    with contextlib.suppress(OSError):
        found = place.eyes.storage.look(place.directory, name)
        return found is not None and found.kind is Kind.LINK
    return False


def near(place: Place) -> str:
    """Which folder in this one holds checkpoints, and how many, in words; "" if none of the first ones does."""
    shown = sorted(name for name in place.found.foreign if not name.startswith("."))
    for name in shown[:_MOST_NEAR]:
        with contextlib.suppress(OSError, CannotTell):
            found = place.eyes.storage.look(place.directory, name)
            if found is not None and found.kind is Kind.FOLDER:
                held = len(place.eyes.survey(place.directory / name, place.format).entries)
                if held:
                    return f"{one_line(name)}/ holds {held}"
    return ""


def choose(place: Place, at_most_step: int | None) -> Choice:
    """What a restart would take now, not after `at_most_step`."""
    return resolve(
        examiner(place),
        place.found,
        place.fence,
        suspects=place.suspects,
        once_valid=place.once_valid,
        at_most_step=at_most_step,
        needs=place.needs,
    )


def find_place(here: App, target: str, task: int | None) -> Place:
    """A run, by its id, the start of one or its job's id; or a folder of checkpoints; or one checkpoint.

    :raises RunUnknown, UsageError: there is no such run, folder or file.
    :raises CannotTell: it cannot be read now.
    """
    from fleetctl.rundir.store import Store

    if not target:  # of a variable that is not set; it would mean the current folder
        raise UsageError("RUN_OR_PATH is empty", remedy="name a run, a folder of checkpoints, or one checkpoint")
    store, eyes = Store(here.runs_root), click.get_current_context().with_resource(Apart())
    if "/" not in target and target not in (".", ".."):
        try:
            return _of_run(here, store.find(target, whole=True), task, eyes)
        except RunUnknown:
            if _kind(here.cwd / target, eyes) not in (Kind.FOLDER, Kind.FILE):
                return _of_run(here, store.find(target), task, eyes)
    if task is not None:
        raise UsageError("--task chooses an element of a sweep; name the folder of that element, or the run")
    return _of_path(here, here.cwd / target, eyes)


@contextlib.contextmanager
def _looking_at(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotTell(f"cannot look at {one_line(str(path))}: {error.strerror}") from None


def _kind(path: Path, eyes: Eyes) -> Kind | None:
    """What is there, by whatever links its user went; None for nothing."""
    with _looking_at(path):
        return eyes.kind(path)


def _of_path(here: App, path: Path, eyes: Eyes) -> Place:
    kind = _kind(path, eyes)
    if kind not in (Kind.FOLDER, Kind.FILE):
        shown = one_line(str(path))
        text = f"there is no {shown}" if kind is None else f"{shown} is no folder and no file"
        raise UsageError(text, remedy="name a run, a folder of checkpoints, or one checkpoint")
    path = Path(os.path.abspath(path))  # `.` inside a checkpoint has a name then
    real = Path(os.path.realpath(path)) if path.is_symlink() else path
    with _looking_at(path):
        entry = eyes.single(real, kind)
    if entry is not None:
        return Place(real.parent, Survey((entry,)), (), Fence.open(""), eyes, is_one=True)
    staged = list_staged(eyes.storage, path, here.clock.now(), lambda _: None)
    return Place(path, eyes.survey(path, "auto"), staged, Fence.open(""), eyes)


def _of_run(here: App, run: RunDir, task: int | None, eyes: Eyes) -> Place:
    history = run.history()
    sweep = history.record.kind is RunKind.SWEEP
    if sweep and task is None:
        raise UsageError(f"run {run.run_id} is a sweep of {history.record.tasks}", remedy="choose one: --task I")
    if task is not None and not (sweep and 0 <= task < history.record.tasks):
        raise UsageError(f"run {run.run_id} has no task {task}")
    section = _section(run)
    directory = Path(history.record.workdir) / section["dir"]
    directory = directory if task is None else directory / str(task)
    attempts = Attempts(run.attempts_dir(task))
    newest = attempts.newest()
    folder = Folder(directory, section.get("format", "auto"), section.get("load", "latest") == "latest")
    before = known(attempts, (newest[0] + 1, 0), history, task, folder, eyes.storage)
    found, form = narrowed(eyes.survey(directory, folder.format), before, folder.format)
    live = newest if _lives(history, task, newest) else None
    return Place(
        directory=directory,
        found=found,
        staged=list_staged(eyes.storage, directory, here.clock.now(), _owner(run.run_id, live)),
        fence=before.fence,
        eyes=eyes,
        suspects=before.suspects,
        once_valid=before.once_valid,
        at_most_step=before.at_most_step,
        format=form,
        needs=Needs(_level(section), _ranks(run, history)),
        run=run,
        may_be_written=live is not None,
        keep=_keep(section),
        used=attempts.resumed(newest),
        passed_over=attempts.passed_over(newest),
        newest=newest,
    )


def _section(run: RunDir) -> Mapping[str, Any]:
    """The `checkpoint` section of the run's spec."""
    raw = read_json(f"{run.path}/spec.json")
    section = raw.get("checkpoint") if isinstance(raw, dict) else None
    if not isinstance(section, dict) or not isinstance(section.get("dir"), str):
        raise UsageError(f"run {run.run_id} has no checkpoint section", remedy="name the folder of the checkpoints")
    return section


def _level(section: Mapping[str, Any]) -> Level:
    """What the spec wants before a restart."""
    return Level.CONTENT if section.get("verify") == "content" else Level.STRUCTURE


def _ranks(run: RunDir, history: History) -> int | None:
    """How many the training has; None where the spec does not tell."""
    from fleetctl.render.steps import ranks_of
    from fleetctl.submission.plan import recorded_plan

    with contextlib.suppress(FleetctlError):  # a spec that another fleetctl has written tells nothing
        return ranks_of(recorded_plan(run, history.record).spec)
    return None


def _keep(section: Mapping[str, Any]) -> Keep | None:
    """What the spec wants to keep; None: all of it."""
    last, every = section.get("keep"), section.get("keep_every")
    if not isinstance(last, int):
        return None
    return Keep(last, Duration.parse(every) if isinstance(every, str) else None)


def _lives(history: History, task: int | None, newest: AttemptNumber) -> bool:
    """Whether the newest attempt may still write: neither it nor its run has ended, by the run's own record."""
    if newest == (0, 0) or finished_well(history) is not None:
        return False
    return all(one.exit_code is None for one in _of_task(history, task) if one.name == attempt_name(newest))


def _of_task(history: History, task: int | None) -> list[Attempt]:
    return [attempt for attempt in history.attempts if attempt.task == task]


def _owner(run_id: str, live: AttemptNumber | None) -> Callable[[Entry], bool | None]:
    """Of our run it is known who lives; of another, nothing."""
    return lambda entry: entry.attempt == live if entry.run_id == run_id else None
