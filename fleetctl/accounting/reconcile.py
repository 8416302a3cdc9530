"""Our GPU-seconds beside those of sreport, and what explains a difference. Pure.

sreport adds up what slurmdbd's hourly roll-ups charged to accounts. Suspended time is in both: it takes only CPUs off
(tried on 22.05.8). Two differences are by design and their size is known from our records: records that have not ended
(we count up to when they were last seen alive), and hours that are not rolled up yet. Others have no size that we could
know, above all reservations: sreport charges the idle part of one to its accounts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction

from msgspec import Struct

from fleetctl.accounting.model import Window

HOUR_S = 3_600
_MOST_HOURS = 48  # roll-ups run every hour; who is further behind than that has another problem
_ROUNDED_S = 1  # sreport's whole seconds


class Verdict(StrEnum):
    EQUAL = "equal"
    EXPLAINED = "explained"
    TOLERATED = "tolerated"  # a rest, below what was asked for
    UNEXPLAINED = "unexplained"


class Ours(Struct, frozen=True):
    """GPU-seconds of one account within the window.

    `open_short_s` is what its records that have not ended may have held beyond `gpu_seconds`, `without_gpus` its
    records of which Slurm does not say what they held.
    """

    account: str
    gpu_seconds: int
    open_short_s: int = 0
    without_gpus: int = 0


class Line(Struct, frozen=True):
    """`theirs_s` None: sreport has no line of this account. `difference_s` is ours less theirs."""

    account: str
    ours_s: int
    theirs_s: int | None
    difference_s: int
    unexplained_s: int
    verdict: Verdict
    why: tuple[str, ...]


def whole_hours(window: Window, known_until_s: int) -> Window | None:
    """The full hours of the window of which all is known; None: there are none yet."""
    since_s = -(-window.since_s // HOUR_S) * HOUR_S
    until_s = min(window.until_s, known_until_s) // HOUR_S * HOUR_S
    return Window(since_s, until_s) if since_s < until_s else None


def rolled_up(window: Window, ours: Callable[[Window], int], theirs: Callable[[Window], int]) -> int:
    """Up to when sreport has what we have: hours at the end for which we have something and it has nothing are not
    rolled up yet. `ours` and `theirs` tell GPU-seconds of an hour; the window is whole hours."""
    until_s = window.until_s
    if not theirs(window):
        return window.since_s if ours(window) else until_s
    start_s = window.until_s - HOUR_S
    while start_s >= max(window.since_s, window.until_s - _MOST_HOURS * HOUR_S):
        hour = Window(start_s, start_s + HOUR_S)
        if theirs(hour):
            break
        if ours(hour):
            until_s = start_s
        start_s -= HOUR_S
    return until_s


def compare(ours: Sequence[Ours], theirs: Mapping[str, int], tolerance: Fraction) -> tuple[Line, ...]:
    """One line for each account, the largest difference first. `tolerance` is a share of the larger of the two."""
    known = {one.account: one for one in ours}
    names = sorted(known.keys() | theirs.keys())
    lines = [_line(known.get(name, Ours(name, 0)), theirs.get(name), tolerance) for name in names]
    return tuple(sorted(lines, key=lambda line: (-line.unexplained_s, -abs(line.difference_s), line.account)))


def _line(ours: Ours, theirs_s: int | None, tolerance: Fraction) -> Line:
    difference_s = ours.gpu_seconds - (theirs_s or 0)
    rest_s = _beyond(difference_s, -ours.open_short_s - _ROUNDED_S, _ROUNDED_S)
    if difference_s == 0:
        verdict = Verdict.EQUAL
    elif rest_s == 0:
        verdict = Verdict.EXPLAINED
    elif rest_s <= tolerance * max(ours.gpu_seconds, theirs_s or 0):
        verdict = Verdict.TOLERATED
    else:
        verdict = Verdict.UNEXPLAINED
    why = () if difference_s == 0 else _why(ours, theirs_s, difference_s, rest_s)
    return Line(ours.account, ours.gpu_seconds, theirs_s, difference_s, rest_s, verdict, why)


def _beyond(value: int, low: int, high: int) -> int:
    """How far outside of [low, high]."""
    return max(low - value, value - high, 0)


def _why(ours: Ours, theirs_s: int | None, difference_s: int, rest_s: int) -> tuple[str, ...]:
    words = []
    if difference_s < 0 and ours.open_short_s:
        words.append(f"records that go on may have held {ours.open_short_s} more than they were seen to")
    if difference_s < 0 and ours.without_gpus:
        words.append(f"of {ours.without_gpus} records Slurm does not say what they held")
    if rest_s and theirs_s is None:
        words.append("sreport has nothing of this account: deleted, or its roll-up is behind")
    elif rest_s and difference_s < 0:
        words.append("sreport adds idle reserved time; else records are missing here")
    elif rest_s:
        words.append("a roll-up of a day or month may be behind; `sacctmgr show runaway` shows records without an end")
    return tuple(words)
