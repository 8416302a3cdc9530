"""A run as a pass sees it, from what was read of its folder and the rows of its job. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from fleetctl.recovery.find_runs import all_over, is_over, of_task, tasks_of
from fleetctl.recovery.kept import Known, Limits
from fleetctl.recovery.model import RunSeen
from fleetctl.recovery.read_wire import Failed, RunRead, ToldRun
from fleetctl.rundir.history import last_attempts
from fleetctl.rundir.model import RunKind
from fleetctl.rundir.pulse import Pulse
from fleetctl.slurm.model import Job
from fleetctl.submission.decide_requeue import Phase, phase

_FUTURE = "its pulse is of the future"
GONE = "No such file or directory"


class Whose(Struct, frozen=True):
    """Which runs are watched: of this cluster and this user; None: of all."""

    cluster: str
    user: str | None


def see(
    path: str, read: RunRead, told: ToldRun, rows: Sequence[Job] | None, limits: Limits, at: datetime
) -> Iterator[RunSeen]:
    """The run, or its elements that are not over. `rows` None: Slurm was not heard."""
    history = read.facts.history
    newest, pasts, pulses, moved = last_attempts(history), dict(read.pasts), dict(told.pulses), dict(told.moved)
    sweep = history.record.kind is RunKind.SWEEP
    of_index = _by_index(rows or ())
    for task in tasks_of(history, rows or ()):
        mine = of_index.get(task, ()) if task is not None and task in of_index else of_task(rows or (), task)
        if sweep and rows is not None and is_over(history, task, newest.get(task), mine, at - limits.look_back):
            continue
        pulse, trouble = _pulse(pulses.get(task), limits, at)
        yield RunSeen(
            key=_key(history.record.run_id, task),
            run_id=history.record.run_id,
            task=task,
            user=read.owner,
            path=path,
            facts=replace(read.facts, past=pasts.get(task)),
            pulse=pulse,
            jobs=None if rows is None else tuple(mine),
            restarts=min(mine, key=lambda job: job.id).restarts if mine else None,
            trouble="; ".join(filter(None, (told.trouble, trouble))),
            moved_at=moved.get(task),
            is_full=told.is_full,
        )


def unseen(
    path: str, run_id: str, user: str, tasks: Iterable[int | None], rows: Sequence[Job] | None, trouble: str
) -> Iterator[RunSeen]:
    """A run whose folder could not be read in this pass."""
    for task in tasks:
        mine = None if rows is None else of_task(rows, task)
        restarts = min(mine, key=lambda job: job.id).restarts if mine else None
        yield RunSeen(_key(run_id, task), run_id, task, user, path, None, None, mine, restarts, trouble=trouble)


def all_watched(
    known: Known, told: ToldRun | Failed, rows: Sequence[Job] | None, whose: Whose, limits: Limits, at: datetime
) -> Known:
    """With whether it is to be watched on, and whether its heads are heard. `rows` None: Slurm was not heard."""
    read = known.read
    if read is None:
        return known
    if isinstance(told, Failed) or not told.state:
        gone = isinstance(told, ToldRun) and told.trouble == GONE and rows is not None and not rows
        if gone:  # should it come back, it is a new one
            return replace(known, is_fresh=False, is_watched=False, read=None)
        return replace(known, is_fresh=False)
    history = read.facts.history
    ours = history.cluster in ("", whose.cluster) and whose.user in (None, read.owner)
    over = rows is not None and all_over(history, rows, at - limits.look_back)
    return replace(known, is_watched=ours and not over, is_fresh=_is_fresh(told, rows or (), limits, at))


def _is_fresh(told: ToldRun, rows: Sequence[Job], limits: Limits, at: datetime) -> bool:
    """Whether every head that lives has been heard just now."""
    fresh = {task for task, pulse in told.pulses if not pulse.over and abs(at - pulse.at) <= limits.fresh}
    alive = {job.id.array_index for job in rows if phase(job.state) is Phase.LIVES}
    return alive <= fresh and bool(alive)


def _pulse(pulse: Pulse | None, limits: Limits, at: datetime) -> tuple[Pulse | None, str]:
    if pulse is not None and pulse.at - at > limits.future:
        return None, _FUTURE
    return pulse, ""


def _by_index(rows: Sequence[Job]) -> dict[int, tuple[Job, ...]]:
    found: dict[int, tuple[Job, ...]] = {}
    for job in rows:
        if job.id.array_index is not None:
            found[job.id.array_index] = (*found.get(job.id.array_index, ()), job)
    return found


def _key(run_id: str, task: int | None) -> str:
    return run_id if task is None else f"{run_id}/{task}"
