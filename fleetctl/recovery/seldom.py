"""What Slurm is asked for seldom: one thing a pass, the one that has waited longest.

Maintenance and the controller's start each minute, and once for each start of a job that came back whether it has its
GPUs. The first pass asks for both of the former, since nothing may be done before they are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from fleetctl.errors import FleetctlError, JobUnknown
from fleetctl.recovery.kept import Seen
from fleetctl.recovery.model import Reservation, RunSeen
from fleetctl.recovery.sources import Sources
from fleetctl.slurm.hosts import expand
from fleetctl.slurm.model import BaseState, Job
from fleetctl.slurm.model import Reservation as SlurmReservation

MAINTENANCE, CONTROLLER = "maintenance", "controller"
MOST_CALLS = 4  # of a pass
_MAINT = frozenset({"MAINT"})
_MOST_GPUS = 10_000  # starts of jobs that are remembered
_LATE, _STALE = 2, 5  # times the usual distance: from then on it goes first; from then on it is not known
_NOT_HEARD = "Slurm was not asked for long"

Ask = Callable[[Sources, Seen], Seen]


def ask_seldom(sources: Sources, seen: Seen, runs: Sequence[RunSeen], at: datetime, *, away: bool) -> Seen:
    """`away`: Slurm did not answer in this pass, so that its controller may have begun anew."""
    if away:
        seen = replace(seen, controller_since=None, asked_at=_without(seen.asked_at, CONTROLLER))
    due = [name for name in (MAINTENANCE, CONTROLLER) if _is_due(name, sources, seen, at)]
    due.sort(key=lambda name: (seen.asked_at.get(name) is not None, seen.asked_at.get(name, at), name))
    first = MAINTENANCE not in seen.asked_at and CONTROLLER not in seen.asked_at
    jobs = [] if due and _never_heard(seen) else list(_came_back(runs, seen))
    if seen.owes_records or away:
        due, jobs = [], []  # accounting's turn, or nobody's
    if jobs and not any(_is_older(name, seen, at, _LATE * sources.limits.seldom) for name in due):
        seen = _ask_gpus(sources, seen, jobs[0])
    else:
        for name in due if first else due[:1]:
            seen = _ask(name, sources, seen, at)
    return _forgotten(seen, at, sources.limits.seldom)


def with_gpus(runs: Sequence[RunSeen], seen: Seen) -> tuple[RunSeen, ...]:
    """The runs, with what their jobs really have where that is known of all their parts."""
    return tuple(replace(run, gpus=gpus) if (gpus := _gpus(run, seen)) is not None else run for run in runs)


def _is_due(name: str, sources: Sources, seen: Seen, at: datetime) -> bool:
    asked = seen.asked_at.get(name)
    every = sources.limits.retry if name in seen.troubles else sources.limits.seldom
    return asked is None or not asked <= at < asked + every


def _is_older(name: str, seen: Seen, at: datetime, age: timedelta) -> bool:
    asked = seen.asked_at.get(name)
    return asked is None or not asked <= at < asked + age


def _forgotten(seen: Seen, at: datetime, seldom: timedelta) -> Seen:
    """Without what has not been heard for long: nothing may be done by it any more."""
    if seen.maintenance is not None and _is_older(MAINTENANCE, seen, at, _STALE * seldom):
        seen = replace(seen, maintenance=None, troubles={**seen.troubles, MAINTENANCE: _NOT_HEARD})
    if seen.controller_since is not None and _is_older(CONTROLLER, seen, at, _STALE * seldom):
        seen = replace(seen, controller_since=None, troubles={**seen.troubles, CONTROLLER: _NOT_HEARD})
    return seen


def _never_heard(seen: Seen) -> bool:
    return seen.maintenance is None or seen.controller_since is None


def _ask(name: str, sources: Sources, seen: Seen, at: datetime) -> Seen:
    asked_at = {**seen.asked_at, name: at}
    seen = replace(seen, asked_at=asked_at, calls=seen.calls + 1, troubles=_without(seen.troubles, name))
    try:
        if name == MAINTENANCE:
            return replace(seen, maintenance=maintenance_in(sources.slurm.reservations()))
        return replace(seen, controller_since=_began(sources.slurm.config()))
    except (FleetctlError, ValueError, OSError) as error:
        why = error.message if isinstance(error, FleetctlError) else str(error)
        seen = replace(seen, troubles={**seen.troubles, name: why})
        return replace(seen, maintenance=None) if name == MAINTENANCE else replace(seen, controller_since=None)


def maintenance_in(found: Iterable[SlurmReservation]) -> tuple[Reservation, ...]:
    """The reservations that are maintenance.

    :raises ValueError: their nodes cannot be read.
    """
    return tuple(
        Reservation(one.name, frozenset(expand(one.node_list)), one.starts_at, one.ends_at)
        for one in found
        if one.flags & _MAINT and one.starts_at is not None and one.ends_at is not None
    )


def _began(config: Mapping[str, str]) -> datetime:
    """:raises ValueError: the controller does not say when it began."""
    text = config.get("BOOT_TIME", "")
    if not (text.isascii() and text.isdigit() and len(text) <= 11):
        raise ValueError(f"scontrol show config: BOOT_TIME {text[:40]!r} is no time")
    return datetime.fromtimestamp(int(text), UTC)


def _came_back(runs: Sequence[RunSeen], seen: Seen) -> Iterable[Job]:
    """Rows of jobs that run again, of which it is not known what they have."""
    for run in runs:
        if run.facts is None or not run.facts.gpus:
            continue
        for job in run.jobs or ():
            if job.restarts and job.state.base is BaseState.RUNNING and (job.raw_id, job.restarts) not in seen.gpus:
                yield job


def _ask_gpus(sources: Sources, seen: Seen, job: Job) -> Seen:
    assert job.restarts is not None, "_came_back takes only those"
    found: int | None = None
    try:
        found = sources.slurm.gpus(job)
    except JobUnknown:
        pass  # it has gone meanwhile
    except FleetctlError:
        return replace(seen, calls=seen.calls + 1)  # it is asked again
    gpus = {**seen.gpus, (job.raw_id, job.restarts): found}
    while len(gpus) > _MOST_GPUS:
        del gpus[next(iter(gpus))]
    return replace(seen, calls=seen.calls + 1, gpus=gpus)


def _gpus(run: RunSeen, seen: Seen) -> int | None:
    parts = [seen.gpus.get((job.raw_id, job.restarts or 0)) for job in run.jobs or ()]
    known = [one for one in parts if one is not None]
    return sum(known) if parts and len(known) == len(parts) else None


def _without(found: Mapping[str, object], name: str) -> Mapping[str, object]:
    return {key: value for key, value in found.items() if key != name}
