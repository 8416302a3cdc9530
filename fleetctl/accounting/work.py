"""What an attempt told of its training steps, and how much of its work was kept. Pure.

A step is worked on once for the ledger: what a later attempt began again before is lost, wherever it lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from fleetctl.accounting.run_facts import AttemptFacts, RunFacts, SaveFacts
from fleetctl.accounting.spans import Spent, clamp
from fleetctl.rundir.model import AttemptNumber

SCRATCH = -1  # below every training step
_FINISHED = "finished"  # rundir.model.Ending


class Point(Struct, frozen=True, order=True):
    """Training step `step` had been done at `at_ms`; the training went on at `on_ms`, after the wait for a save."""

    at_ms: int
    step: int
    on_ms: int


class Told(Struct, frozen=True):
    """All that one attempt told. `points` by time, their steps ascending; empty: it told nothing."""

    points: tuple[Point, ...] = ()
    last_ms: int | None = None  # the last sign of work
    first: bool = False  # its first step was told, so what came before was start-up
    last: bool = False  # its last step was told, so what came after was none

    def within(self, low_ms: int, high_ms: int) -> Told:
        """The same, as far as another clock allows."""
        points = tuple(
            Point(clamp(one.at_ms, low_ms, high_ms), one.step, clamp(one.on_ms, low_ms, high_ms)) for one in self.points
        )
        last_ms = None if self.last_ms is None else clamp(self.last_ms, low_ms, high_ms)
        return Told(points, last_ms, self.first, self.last)

    def moment_of(self, step: int) -> tuple[int, bool]:
        """When `step` had been done, and whether that was told: between two told steps all take the same time."""
        before: Point | None = None
        for point in self.points:
            if point.step == step or (point.step > step and before is None):
                return point.at_ms, True
            if point.step > step and before is not None:
                since_ms = min(before.on_ms, point.at_ms)
                way_ms = point.at_ms - since_ms
                return since_ms + way_ms * (step - before.step) // (point.step - before.step), False
            before = point
        return (0 if self.last_ms is None else self.last_ms), True


class Loss(Struct, frozen=True):
    """The work of an attempt after step `after` counts as `spent`, charged to the interruption of attempt `charged`."""

    after: int
    charged: AttemptNumber
    spent: Spent = Spent.LOST


class Kept(Struct, frozen=True):
    """What became of the work of each attempt. `losses` have falling steps: each takes what the one before left.

    `newest` is the step of the newest checkpoint that still stands; SCRATCH: there is none; None: that is not known.
    """

    losses: Mapping[AttemptNumber, tuple[Loss, ...]]
    newest: int | None
    knows_losses: frozenset[AttemptNumber]  # interruptions of which it is known how much work they took
    runs: AttemptNumber | None  # the attempt that goes on


def began(save: SaveFacts) -> int | None:
    """When a save began, at the end of its training step."""
    if save.saved_ms is None:
        return None
    took_ms = save.total_ms if save.total_ms is not None else save.blocked_ms
    return save.saved_ms - max(0, took_ms or 0, save.blocked_ms or 0)


def told_by(attempt: AttemptFacts, saves: Sequence[SaveFacts]) -> Told:
    """`saves`: those of this attempt."""
    points, signs = [], []
    for save in saves:
        at_ms = began(save)
        if at_ms is not None:
            points.append(Point(at_ms, save.training_step, at_ms + max(0, save.blocked_ms or 0)))
            signs.append(points[-1].on_ms)
    ends = []
    for step, at_ms in ((attempt.first_step, attempt.first_step_ms), (attempt.last_step, attempt.last_step_ms)):
        ends.append(step is not None and at_ms is not None)
        if step is not None and at_ms is not None:
            points.append(Point(at_ms, step, at_ms))
            signs.append(at_ms)
    rising: list[Point] = []
    for point in sorted(points):
        if rising and point.step == rising[-1].step:  # told twice: the next one was begun after the second time
            rising[-1] = Point(rising[-1].at_ms, point.step, max(rising[-1].on_ms, point.on_ms))
        elif not rising or point.step > rising[-1].step:
            rising.append(point)
    return Told(tuple(rising), max(signs, default=None), *ends)


def saves_by_attempt(facts: RunFacts) -> dict[AttemptNumber, list[SaveFacts]]:
    """The saves of each attempt that has any."""
    saves: dict[AttemptNumber, list[SaveFacts]] = {}
    for save in facts.saves:
        saves.setdefault(save.number, []).append(save)
    return saves


def kept_of(facts: RunFacts, told: Mapping[AttemptNumber, Told]) -> Kept:
    """Walk back from the last attempt: what an attempt resumed from bounds the work of all before it. The attempts of
    `facts` are in the order of their numbers."""
    attempts = facts.attempts
    resumes = [_resumed(one, told[one.number], trusts=_trusts_resume(facts)) for one in attempts]
    runs = _runs(facts, attempts)
    end, newest = _end(facts, attempts, resumes, runs)
    losses: dict[AttemptNumber, tuple[Loss, ...]] = {}
    later: tuple[Loss, ...] = () if end is None else (end,)
    for at in reversed(range(len(attempts))):
        losses[attempts[at].number] = later
        step = resumes[at]
        if at and step is not None:
            loss = Loss(step, attempts[at - 1].number)
            later = (loss, *(one for one in later if one.after < step))
    known = {before.number for before, step in zip(attempts, resumes[1:], strict=False) if step is not None}
    known |= {end.charged} if end is not None and end.spent is Spent.LOST else set()
    return Kept(losses, newest, frozenset(known), runs)


def _trusts_resume(facts: RunFacts) -> bool:
    """Whether no checkpoint to resume from means from scratch, and not that the training finds its own."""
    if facts.checkpoints is not None:
        return facts.checkpoints != ""
    return bool(facts.saves) or any(one.resume_step is not None for one in facts.attempts)


def _resumed(attempt: AttemptFacts, told: Told, *, trusts: bool) -> int | None:
    """The step that an attempt went on from, never after the first that it told; None: not known."""
    given = SCRATCH if attempt.resume_step is None and trusts else attempt.resume_step
    known = [step for step in (given, told.points[0].step if told.points else None) if step is not None]
    return max(SCRATCH, min(known)) if known else None


def _runs(facts: RunFacts, attempts: Sequence[AttemptFacts]) -> AttemptNumber | None:
    """The newest attempt, unless it is known to have ended or its record has."""
    if not attempts or attempts[-1].ended_ms is not None or facts.finished is not None:
        return None
    started = [one for one in facts.records if one.started_ms is not None]
    newest = max(started, key=lambda one: (one.started_ms, one.ended_ms is None), default=None)
    return attempts[-1].number if newest is None or newest.ended_ms is None else None


def _end(
    facts: RunFacts, attempts: Sequence[AttemptFacts], resumes: Sequence[int | None], runs: AttemptNumber | None
) -> tuple[Loss | None, int | None]:
    """What the end of the newest attempt took, and the newest checkpoint that stands."""
    standing = [step for step in resumes[-1:] if step is not None]
    bound: int | None = None
    saves = saves_by_attempt(facts)
    for attempt, step in zip(reversed(attempts), reversed(resumes), strict=True):
        saved = [one.training_step for one in saves.get(attempt.number, ()) if one.committed]
        standing += [one for one in saved if bound is None or one <= bound]
        bound = step if bound is None or (step is not None and step < bound) else bound
    says_all = facts.checkpoints == "own" or bool(facts.saves)
    newest = max(standing, default=SCRATCH)
    told = newest if says_all else None
    if (
        not attempts
        or runs is not None
        or _is_finished(facts, attempts[-1])
        or not (says_all or facts.finished is False)
    ):
        return None, told
    return Loss(newest, attempts[-1].number, Spent.LOST if says_all else Spent.UNTOLD), told


def _is_finished(facts: RunFacts, last: AttemptFacts) -> bool:
    return last.ending == _FINISHED or last.done or facts.finished is True
