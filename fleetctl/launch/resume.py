"""What an attempt resumes from: the claim of the checkpoints that stand, and the choice among them."""

from __future__ import annotations

import contextlib
from pathlib import Path

from msgspec import Struct

from fleetctl.checkpoint.model import Choice, Fence, Level, Outcome, load_of, suspects
from fleetctl.checkpoint.resolve import resolve
from fleetctl.checkpoint.select import standing
from fleetctl.checkpoint.stale import collect_stale
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.clock import Clock
from fleetctl.errors import CannotTell
from fleetctl.launch.model import CheckpointOrder, JobIdentity
from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.history import History
from fleetctl.rundir.model import SCHEMA_VERSION, AttemptNumber, Ending, attempt_number

_OURS = frozenset({"auto", "own"})  # the formats that we can judge
_READ_AGAIN_S = (0.0, 1.0, 5.0, 15.0)  # a shared file system that fails over answers again within seconds


class Resume(Struct, frozen=True):
    """Where an attempt starts: `path` and `training_step` of a checkpoint, both None for none.

    `hold` says why the run must not start at all.
    """

    path: str | None = None
    training_step: int | None = None
    passed_over: tuple[str, ...] = ()  # `NAME: why not`, newest first
    hold: str | None = None


def directory_of(order: CheckpointOrder, task: int | None) -> Path:
    """The folder of the checkpoints: each element of a sweep has its own in it."""
    return Path(order.directory) if task is None else Path(order.directory) / str(task)


def choose(
    order: CheckpointOrder | None,
    attempts: Attempts,
    number: AttemptNumber,
    history: History,
    job: JobIdentity,
    clock: Clock,
) -> Resume:
    """Complete the claim of attempt `number` and choose. The names are listed once, after the folder was claimed: what
    an older attempt commits later stands in no claim.

    :raises RunDirError: the claim cannot be written.
    """
    if order is None or order.format not in _OURS:
        attempts.write_stands(number, (), clock.now(), job.job_id)
        return Resume()
    directory, run_id = directory_of(order, job.task), history.record.run_id
    before = attempts.stands_before(number)
    if before is not None:
        fence = Fence(run_id, before[1], before[0])
    else:
        fence = Fence.open(run_id) if order.load == "latest" else Fence(run_id, frozenset(), None)
    at_most = history.wish.from_step if history.wish is not None else None
    storage = LocalStorage()
    names = _names(storage, directory, clock)
    if names is None:
        return Resume(hold=f"{directory} cannot be read, so it is not known which checkpoints there are")
    attempts.write_stands(number, standing(names, fence, at_most), clock.now(), job.job_id)
    choice = resolve(
        storage,
        directory,
        names,
        fence,
        suspects=_suspects(attempts, history, number, job.task),
        once_valid=_once_valid(attempts, before),
        at_most_step=at_most,
        level=Level.STRUCTURE,
    )
    found = _resume(choice, directory)
    value = {name: getattr(found, name) for name in ("path", "training_step", "passed_over", "hold")}
    attempts.write(number, "resume.json", {"schema": SCHEMA_VERSION, "reason": choice.reason, **value})
    return found


def judges(order: CheckpointOrder | None) -> bool:
    """Whether we can tell which checkpoints are valid; else the training finds its own."""
    return order is not None and order.format in _OURS


def collect(order: CheckpointOrder | None, number: AttemptNumber, run_id: str, task: int | None) -> tuple[str, ...]:
    """Remove what older attempts of this run left in staging; off the way to the first step, since it may be much."""
    if order is None or order.format not in _OURS:
        return ()
    return collect_stale(directory_of(order, task), run_id, number)


def _names(storage: LocalStorage, directory: Path, clock: Clock) -> tuple[str, ...] | None:
    """None when it cannot be told."""
    for pause_s in _READ_AGAIN_S:
        clock.sleep(pause_s)
        with contextlib.suppress(CannotTell):
            return storage.names(directory)
    return None


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


def _once_valid(attempts: Attempts, before: tuple[AttemptNumber, frozenset[str]] | None) -> bool:
    """Whether a checkpoint of this run ever stood: in the newest claim, or committed since."""
    if before is None:
        return False
    since = (number for number in attempts.numbers() if number >= before[0])
    return bool(before[1]) or any(save.committed for number in since for save in attempts.saves(number))


def _resume(choice: Choice, directory: Path) -> Resume:
    passed = tuple(f"{one.name}: {one.validity.value}: {one.reason}" for one in choice.passed_over)
    if choice.outcome is Outcome.HOLD:
        return Resume(passed_over=passed, hold=f"no checkpoint in {directory} can be resumed from: {choice.reason}")
    if choice.chosen is None or choice.chosen.entry is None:
        return Resume(passed_over=passed)
    return Resume(str(directory / choice.chosen.name), choice.chosen.entry.training_step, passed)
