"""After a recovery: whether the run has passed its checkpoint again, and what the interruption cost. Pure.

D is from the last training step that was told to when the end was found, R from there until the run passed its
checkpoint, W the work between the checkpoint and the end, which is done twice. A daemon that began in between, or a run
whose head tells no pulse, has some of them unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec import Struct

from fleetctl.recovery.model import Interruption, RunSeen
from fleetctl.rundir.history import ended_well
from fleetctl.rundir.model import Attempt, AttemptNumber, attempt_number
from fleetctl.rundir.pulse import Pulse

_ATTEMPTS = 4  # of one run that are followed: an end is decided about while the next ones begin


class Last(Struct, frozen=True):
    """The first and the newest training step that an attempt told, and when they were done."""

    attempt: str
    first_step: int | None
    first_at: datetime | None
    training_step: int | None
    progress_at: datetime | None


class Recovered(Struct, frozen=True):
    """The run has passed, at `at`, the checkpoint that it resumed from after this interruption: D, R and W in seconds;
    None: not known."""

    interruption: Interruption
    at: datetime
    detection_s: float | None
    restart_s: float | None
    lost_s: float | None


Followed = Mapping[str, tuple[Last, ...]]  # key of a run -> its attempts, newest last


def follow(before: Followed, runs: Iterable[RunSeen]) -> Followed:
    """What is known of each run after this pass; runs that are not seen any more are dropped, unreadable ones kept."""
    found = dict[str, tuple[Last, ...]]()
    for run in runs:
        known = before.get(run.key, ())
        found[run.key] = known if run.pulse is None else _with(known, run.pulse)
    return found


def _with(known: tuple[Last, ...], pulse: Pulse) -> tuple[Last, ...]:
    same = known[-1] if known and known[-1].attempt == pulse.attempt else None
    kept = known[:-1] if same else known
    first = (pulse.training_step, pulse.progress_at)
    if same is not None and same.first_step is not None:
        first = (same.first_step, same.first_at)
    return (*kept, Last(pulse.attempt, *first, pulse.training_step, pulse.progress_at))[-_ATTEMPTS:]


def recovered(run: RunSeen, interruptions: Iterable[Interruption], known: tuple[Last, ...]) -> Recovered | None:
    """The run's newest interruption, where the run has passed its checkpoint since."""
    newest = max((one for one in interruptions if one.key == run.key), key=lambda one: one.at, default=None)
    attempt = _newest(run)
    if newest is None or attempt is None or _number(attempt.name) <= _number(newest.attempt):
        return None
    passed_at = _passed_at(run, attempt, newest)
    if passed_at is None:
        return None
    last = next((one for one in known if one.attempt == newest.attempt), None)
    progress_at = last.progress_at if last else None
    return Recovered(
        newest,
        passed_at,
        detection_s=_span_s(progress_at, newest.at),
        restart_s=_span_s(newest.at, passed_at),
        lost_s=_lost_s(last, attempt.resume_step or 0),
    )


def _newest(run: RunSeen) -> Attempt | None:
    attempts = run.facts.history.attempts if run.facts else ()
    return next((one for one in reversed(attempts) if one.task == run.task), None)


def _passed_at(run: RunSeen, attempt: Attempt, newest: Interruption) -> datetime | None:
    """When the attempt was beyond the step that it resumed from; an attempt that ended well was."""
    if attempt.ended_at is not None and ended_well(attempt):
        return attempt.ended_at
    pulse, checkpoint = run.pulse, attempt.resume_step or 0
    if pulse is None or pulse.attempt != attempt.name or pulse.training_step is None:
        return None
    return (pulse.progress_at or pulse.at) if pulse.training_step > checkpoint else None


def _lost_s(last: Last | None, resume_step: int) -> float | None:
    """The steps beyond the one that the next attempt resumed from, each as long as one took in the mean."""
    if last is None or last.training_step is None or last.first_step is None:
        return None
    took_s, steps = _span_s(last.first_at, last.progress_at), last.training_step - last.first_step
    if took_s is None or steps <= 0:
        return None
    return max(0, last.training_step - resume_step) * took_s / steps


def _span_s(begin: datetime | None, end: datetime | None) -> float | None:
    """Clocks of hosts differ by a little: never below zero."""
    return None if begin is None or end is None else max(0.0, (end - begin).total_seconds())


def _number(name: str) -> AttemptNumber:
    return attempt_number(name) or (0, 0)
