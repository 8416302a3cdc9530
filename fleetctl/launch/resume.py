"""What an attempt resumes from: the claim of the checkpoints that stand, and the choice among them."""

from __future__ import annotations

import contextlib
from pathlib import Path

from msgspec import Struct

from fleetctl.checkpoint.model import Choice, Fence, Level, Outcome, load_of, suspects
from fleetctl.checkpoint.resolve import Patience, resolve
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
_VISIBLE_WITHIN_S = 60.0  # an NFS client may show a new file so late (nfs(5), acdirmax); a fall-back costs more
_LOOK_AGAIN_S = 1.0


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


class Known(Struct, frozen=True):
    """What a run knows about its checkpoints before it looks at them."""

    fence: Fence
    suspects: frozenset[str]
    once_valid: bool
    at_most_step: int | None
    newest: str | None = None  # the name of the newest that a Checkpointer says it committed, where that counts


def known(attempts: Attempts, number: AttemptNumber, history: History, task: int | None, *, latest: bool) -> Known:
    """What holds for attempt `number`. `latest`: the first attempt may take whatever lies in the folder."""
    before, run_id = attempts.stands_before(number), history.record.run_id
    fence = Fence.open(run_id) if latest else Fence(run_id, frozenset(), None)
    if before is not None:
        fence = Fence(run_id, before[1], before[0])
    committed = _committed(attempts, before)
    at_most = history.wishes[task].from_step if task in history.wishes else None
    return Known(
        fence=fence,
        suspects=_suspects(attempts, history, number, task),
        once_valid=before is not None and bool(before[1] or committed),
        at_most_step=at_most,
        newest=next(iter(standing(committed, fence, at_most)), None),
    )


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
    if order is not None:
        with contextlib.suppress(OSError):  # a container mounts it; whoever cannot save there says so better
            directory_of(order, job.task).mkdir(parents=True, exist_ok=True)
    if order is None or not judges(order):
        attempts.write_stands(number, (), clock.now(), job.job_id)
        return Resume()
    directory = directory_of(order, job.task)
    before = known(attempts, number, history, job.task, latest=order.load == "latest")
    storage = LocalStorage()
    names = _names(storage, directory, before.newest, clock)
    if names is None:
        return Resume(hold=f"{directory} cannot be read, so it is not known which checkpoints there are")
    promised = (before.newest,) if before.newest is not None else ()
    stands = standing({*names, *promised}, before.fence, before.at_most_step)
    attempts.write_stands(number, stands, clock.now(), job.job_id)
    choice = resolve(
        storage,
        directory,
        names,
        before.fence,
        suspects=before.suspects,
        once_valid=before.once_valid,
        at_most_step=before.at_most_step,
        level=Level.STRUCTURE,
        patience=Patience(clock, _VISIBLE_WITHIN_S),
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
    if order is None or not judges(order):
        return ()
    with contextlib.suppress(OSError):  # the fence holds without it, and the next attempt tries again
        return collect_stale(directory_of(order, task), run_id, number)
    return ()


def _names(storage: LocalStorage, directory: Path, wanted: str | None, clock: Clock) -> tuple[str, ...] | None:
    """One listing of the folder; None when it cannot be told. Another host's newest commit may be shown late: without
    it the run would lose what it has trained since the one before, and fence it out for ever."""
    until_s, names = clock.monotonic_s() + _VISIBLE_WITHIN_S, None
    while True:
        with contextlib.suppress(CannotTell):
            names = storage.names(directory)
        if (names is not None and (wanted is None or wanted in names)) or clock.monotonic_s() >= until_s:
            return names
        clock.sleep(_LOOK_AGAIN_S)


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


def _committed(attempts: Attempts, before: tuple[AttemptNumber, frozenset[str]] | None) -> tuple[str, ...]:
    """The names that Checkpointers say they committed since the newest claim."""
    if before is None:
        return ()
    since = [number for number in attempts.numbers() if number >= before[0]]
    return tuple(save.name for number in since for save in attempts.saves(number) if save.committed)


def _resume(choice: Choice, directory: Path) -> Resume:
    passed = tuple(f"{one.name}: {one.validity.value}: {one.reason}" for one in choice.passed_over)
    if choice.outcome is Outcome.HOLD:
        return Resume(passed_over=passed, hold=f"no checkpoint in {directory} can be resumed from: {choice.reason}")
    if choice.chosen is None or choice.chosen.entry is None:
        return Resume(passed_over=passed)
    return Resume(str(directory / choice.chosen.name), choice.chosen.entry.training_step, passed)
