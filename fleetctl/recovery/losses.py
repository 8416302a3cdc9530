"""What a training's losses say: where they stopped being numbers, and whether a recovery went well. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

Losses = Sequence[tuple[int, float | None]]  # (training step, loss), oldest first; None: not a finite number

JUMP = 5.0  # times the loss before: ByteRobust tells a person at that
NAN_IN_A_ROW = 3  # a loss scaler skips single steps with inf as a matter of course
_LEAST_BEFORE = 4  # losses, to know how much they scatter
_LEAST_AFTER = 3  # so many first losses after a resume tell; one may be a hard batch
_BAND = 4.0  # times the scatter before
_LEAST_BAND = 0.05  # of the loss: a smooth loss has hardly any scatter, and another order of the data shows


class Canary(Struct, frozen=True):
    """How the first losses after a resume are beside those before. `fits` None: too few were told."""

    fits: bool | None
    why: str


def onset(losses: Losses) -> int | None:
    """The training step since which the losses up to the newest are no numbers; None where that one is, or where there
    are too few of them."""
    found: list[int] = []
    for step, loss in reversed(losses):
        if loss is not None:
            break
        found.append(step)
    return min(found) if len(found) >= NAN_IN_A_ROW else None


def jump(losses: Losses) -> int | None:
    """The training step at which the loss was more than JUMP times the median of those before it, and stayed so; for a
    person to look at."""
    numbers = [(step, loss) for step, loss in losses if loss is not None]
    for index in range(_LEAST_BEFORE, len(numbers)):
        before = median(loss for _, loss in numbers[:index])
        if before > 0 and all(loss > JUMP * before for _, loss in numbers[index:]):
            return numbers[index][0]
    return None


def canary(before: Losses, after: Losses, resume_step: int) -> Canary:
    """Whether the losses after a resume from `resume_step` go on where those of older attempts were. Their band is that
    of the losses told near the step, before it and after it: what is trained again is the same data.
    """
    old = [(step, loss) for step, loss in before if loss is not None]
    new = [loss for step, loss in after if step > resume_step][: _LEAST_AFTER + 1]
    if len(new) < _LEAST_AFTER:
        return Canary(None, "too few losses were told since the resume")
    if all(loss is None for loss in new):
        return Canary(False, f"no loss since the resume from training step {resume_step} is a number")
    near = sorted(old, key=lambda one: abs(one[0] - resume_step))[: 4 * _LEAST_BEFORE]
    if len(near) < _LEAST_BEFORE:
        return Canary(None, "too few losses were told before the resume")
    return _beside([loss for _, loss in near], [loss for loss in new if loss is not None], resume_step)


def _beside(near: Sequence[float], new: Sequence[float], resume_step: int) -> Canary:
    middle = median(near)
    scatter = median(abs(loss - middle) for loss in near)
    band = max(_BAND * 1.4826 * scatter, _LEAST_BAND * abs(middle))  # 1.4826: from a median deviation to sigma
    now = median(new)
    words = (
        f"loss {now:.4g} after the resume from training step {resume_step}, {middle:.4g} within {band:.2g} before it"
    )
    return Canary(now <= middle + band, words)  # a lower loss is no harm
