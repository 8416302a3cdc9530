"""Where the checkpoints are that `fleetctl ckpt` was asked about, and which of them count."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from fleetctl.checkpoint.model import Checked, Entry, Fence, entry_of, one_line
from fleetctl.checkpoint.staging import list_staged
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.errors import CannotTell, RunUnknown, UsageError
from fleetctl.launch.resume import known
from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.files import read_json
from fleetctl.rundir.history import History, finished_well
from fleetctl.rundir.model import Attempt, AttemptNumber, RunKind, attempt_name

if TYPE_CHECKING:
    from fleetctl.cli.context import App
    from fleetctl.rundir.store import RunDir

_OURS = ("auto", "own")  # the formats that can be judged so far


class Place(Struct, frozen=True):
    """A folder of checkpoints, listed once, and what a restart of its run knows about them."""

    directory: Path
    names: tuple[str, ...]
    staged: tuple[Checked, ...]
    fence: Fence
    suspects: frozenset[str] = frozenset()
    once_valid: bool = False
    at_most_step: int | None = None

    def counts(self, found: Checked) -> bool:
        """Whether a restart would look at it."""
        if found.entry is None or not self.fence.accepts(found.entry):
            return False
        return self.at_most_step is None or found.entry.training_step <= self.at_most_step


def find_place(here: App, target: str, task: int | None) -> Place:
    """A run, by its id, the start of one or its job's id; or a folder, of checkpoints or one checkpoint itself.

    :raises RunUnknown, UsageError: there is no such run or folder.
    :raises CannotTell: the folder cannot be read now.
    """
    from fleetctl.rundir.store import Store

    store = Store(here.runs_root)
    if "/" not in target and target not in (".", ".."):
        try:
            return _of_run(here, store.find(target, whole=True), task)
        except RunUnknown:
            if not _is_folder(here.cwd / target):
                return _of_run(here, store.find(target), task)
    if task is not None:
        raise UsageError("--task chooses an element of a sweep; name the folder of that element, or the run")
    return _of_path(here, here.cwd / target)


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError:  # a name with a zero byte
        return False
    except OSError as error:
        raise CannotTell(f"cannot look at {one_line(str(path))}: {error.strerror}") from None


def _of_path(here: App, path: Path) -> Place:
    if not _is_folder(path):
        raise UsageError(f"{one_line(str(path))} is no folder", remedy="name a run, or a folder of checkpoints")
    path = Path(os.path.abspath(path))  # `.` inside a checkpoint has a name then; links stay as they are
    if entry_of(path.name) is not None:
        return Place(path.parent, (path.name,), (), Fence.open(""))
    storage = LocalStorage()
    return Place(
        path, storage.names(path), list_staged(storage, path, here.clock.now(), lambda _: None), Fence.open("")
    )


def _of_run(here: App, run: RunDir, task: int | None) -> Place:
    history = run.history()
    sweep = history.record.kind is RunKind.SWEEP
    if sweep and task is None:
        raise UsageError(f"run {run.run_id} is a sweep of {history.record.tasks}", remedy="choose one: --task I")
    if task is not None and not (sweep and 0 <= task < history.record.tasks):
        raise UsageError(f"run {run.run_id} has no task {task}")
    directory, latest = _section(run, history)
    directory = directory if task is None else directory / str(task)
    attempts = Attempts(run.attempts_dir(task))
    storage = LocalStorage()
    names = storage.names(directory)
    newest = attempts.newest()
    restart = (newest[0] + 1, 0)
    before = known(attempts, restart, history, task, latest=latest)
    live = newest if _lives(history, task, newest) else None
    return Place(
        directory=directory,
        names=names,
        staged=list_staged(storage, directory, here.clock.now(), _owner(run.run_id, live)),
        fence=before.fence,
        suspects=before.suspects,
        once_valid=before.once_valid,
        at_most_step=before.at_most_step,
    )


def _section(run: RunDir, history: History) -> tuple[Path, bool]:
    """The folder that the spec names, and whether a first start takes what is there."""
    raw = read_json(f"{run.path}/spec.json")
    section = raw.get("checkpoint") if isinstance(raw, dict) else None
    if not isinstance(section, dict) or not isinstance(section.get("dir"), str):
        raise UsageError(f"run {run.run_id} has no checkpoint section", remedy="name the folder of the checkpoints")
    if section.get("format", "auto") not in _OURS:
        raise UsageError(f"checkpoints of format {one_line(str(section['format']))} cannot be judged by this version")
    return Path(history.record.workdir) / section["dir"], section.get("load", "latest") == "latest"


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
