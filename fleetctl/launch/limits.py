"""When an attempt has to save because its time is up. Pure; times are monotonic seconds of the head."""

from __future__ import annotations

from msgspec import Struct

_UNKNOWN_SAVE_S = 120.0  # before the first measured save; ByteCheckpoint's paper has 51 s for a model of 405B
_SLACK_S = 30.0  # to notice the request between two training steps, and for a slower file system than last time
_SAVES = 2.0  # the request may come while a save is under way: that one ends first
_SHARE = 0.25  # of the whole limit at most, so that a short limit still trains
LEAVE_S = 5.0  # before the end: end the steps and ask for the requeue, saved or not


class Horizon(Struct, frozen=True):
    """The end of this allocation. `ends_at_s` None: no limit, or not known."""

    ends_at_s: float | None
    whole_s: float
    preempted: bool = False


NO_HORIZON = Horizon(None, 0.0)


def horizon(
    now_s: float, started_s: float | None, *, wall_left_s: float | None, limit_s: float | None, preempted: bool
) -> Horizon:
    """The nearer of two ends: by Slurm's clock against ours, and by the limit counted from our own start.

    A node's clock that is behind would promise too much time; the limit counted from our start only forgets the little
    between Slurm's start of the job and ours (`started_s`, None for who took over later). A preemption's end has no
    such second witness.
    """
    ends = [now_s + wall_left_s] if wall_left_s is not None else []
    if limit_s is not None and started_s is not None and not preempted:
        ends.append(started_s + limit_s)
    return Horizon(min(ends, default=None), limit_s or (wall_left_s or 0.0), preempted)


def save_at_s(found: Horizon, slowest_save_s: float | None, now_s: float) -> float | None:
    """When to ask for the last save: now before a preemption, else just early enough by what saves have taken."""
    if found.ends_at_s is None:
        return None
    if found.preempted:
        return now_s
    wanted_s = _UNKNOWN_SAVE_S if slowest_save_s is None else _SAVES * slowest_save_s
    return found.ends_at_s - min(wanted_s + _SLACK_S, _SHARE * found.whole_s)
