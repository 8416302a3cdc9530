"""Whether a training goes on after a resume where it was before: the losses that are kept for that, and the verdict.
Pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from fleetctl.recovery.ground import Case, Ground, why_over
from fleetctl.recovery.losses import canary, jump
from fleetctl.rundir.pulse import MOST_LOSSES, Pulse

LOSSES = "losses/"  # + the run's key: an attempt, and losses of it and of those before
MOST_KEPT = 64  # the newest ones, and ever fewer of the older ones
_NEWS = MOST_LOSSES // 2  # so many new ones are worth a word to the journal
_STAYS = 3  # losses: one may be a hard batch

Numbers = tuple[tuple[int, float], ...]  # (training step, loss), oldest first


def misfit(case: Case, on: Ground) -> str | None:
    """How the first losses of the newest attempt are worse than those before its resume; None: they are not, or it
    cannot be told. Only while its pulse still tells its first losses."""
    pulse, newest = case.seen.pulse, case.attempt
    attempt, before = _kept(case, on)
    if pulse is None or newest is None or newest.name != pulse.attempt or attempt in ("", pulse.attempt):
        return None
    resumed = newest.resume_step
    if not resumed or not before or resumed < before[0][0] or len(pulse.losses) >= MOST_LOSSES:
        return None
    found = canary(before, pulse.losses, resumed)
    return found.why if found.fits is False else None


def jumped(pulse: Pulse) -> int | None:
    """The training step at which the loss jumped, and since which it has stayed so for some steps."""
    step = jump(pulse.losses)
    return step if step is not None and sum(at >= step for at, _ in pulse.losses) >= _STAYS else None


def losses_note(case: Case, on: Ground) -> str:
    """The losses to be kept: of the attempt before, until those of the newest have been judged beside them."""
    pulse, newest = case.seen.pulse, case.attempt
    before = on.memory.notes.get(LOSSES + case.key, "")
    if why_over(case) is not None:
        return ""
    if pulse is None or newest is None or newest.name != pulse.attempt:
        return before
    attempt, kept = _kept(case, on)
    told = tuple((step, loss) for step, loss in pulse.losses if loss is not None)
    if attempt == pulse.attempt:
        news = sum(step > (kept[-1][0] if kept else -1) for step, _ in told)
        ended = pulse.over or newest.ended_at is not None
        return _text(attempt, _thinned(kept, told)) if news >= (1 if ended else _NEWS) else before
    is_open = bool(kept) and len(pulse.losses) < MOST_LOSSES
    if not told or (is_open and (len(told) < _NEWS or misfit(case, on) is not None)):
        return before
    return _text(pulse.attempt, _thinned(kept, told))


def _thinned(kept: Numbers, told: Numbers) -> Numbers:
    """What was trained again has its new losses."""
    found = [one for one in kept if one[0] < told[0][0]] + list(told)
    while len(found) > MOST_KEPT:
        found = found[:-MOST_LOSSES:2] + found[-MOST_LOSSES:]
    return tuple(found)


def _text(attempt: str, losses: Numbers) -> str:
    return f"{attempt} {json.dumps([[step, float(f'{loss:.6g}')] for step, loss in losses], separators=(',', ':'))}"


def _kept(case: Case, on: Ground) -> tuple[str, Numbers]:
    attempt, _, text = on.memory.notes.get(LOSSES + case.key, "").partition(" ")
    raw: Sequence[tuple[int, float]] = json.loads(text) if text else ()
    return attempt, tuple((step, loss) for step, loss in raw)
