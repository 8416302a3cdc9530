"""Stretches of time, what each was spent on, and how they are cut and repainted without losing a millisecond. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from fleetctl.accounting.model import Window
from fleetctl.rundir.model import AttemptNumber


class Spent(StrEnum):
    """What time was spent on; fleetctl.accounting.ledger says what each means."""

    QUEUE = "queue"
    STARTUP = "startup"
    PRODUCTIVE = "productive"
    STALL = "stall"
    LOST = "lost"
    HANG = "hang"
    REQUEUE = "requeue"
    TEARDOWN = "teardown"
    SUSPENDED = "suspended"
    UNTOLD = "untold"
    SPARE = "spare"  # of held GPUs only


class Span(Struct, frozen=True):
    """[start_ms, end_ms) of one kind. `attempt` had the nodes then; the interruption of `charged` took it away."""

    start_ms: int
    end_ms: int
    spent: Spent
    attempt: AttemptNumber | None = None
    charged: AttemptNumber | None = None

    @property
    def ms(self) -> int:
        return self.end_ms - self.start_ms


def clamp(at_ms: int, low_ms: int, high_ms: int) -> int:
    """`low_ms` <= `high_ms`."""
    return max(low_ms, min(at_ms, high_ms))


def clipped(spans: Iterable[Span], window: Window | None) -> tuple[Span, ...]:
    """What lies within the window; all of it without one. Adjacent windows share nothing and leave out nothing."""
    return tuple(spans) if window is None else within(spans, window.since_s * 1000, window.until_s * 1000)


def within(spans: Iterable[Span], start_ms: int, end_ms: int) -> tuple[Span, ...]:
    """Their parts in [start_ms, end_ms)."""
    cut = [(max(one.start_ms, start_ms), min(one.end_ms, end_ms), one) for one in spans]
    return tuple(Span(start, end, one.spent, one.attempt, one.charged) for start, end, one in cut if start < end)


def touched(spans: Sequence[Span], start_ms: int, end_ms: int) -> slice:
    """Where in `spans`, which are in the order of time, those are that have a part in [start_ms, end_ms)."""
    first = bisect_right(spans, start_ms, key=lambda one: one.end_ms)
    return slice(first, max(first, bisect_left(spans, end_ms, key=lambda one: one.start_ms)))


def painted(
    spans: Iterable[Span], stretches: Iterable[tuple[int, int]], spent: Spent, charged: AttemptNumber | None = None
) -> list[Span]:
    """The same spans, which are in the order of time, and what lies in one of the `stretches` [start, end) spent so."""
    found: list[Span] = []
    waiting = sorted(stretch for stretch in stretches if stretch[0] < stretch[1])
    at = 0
    for one in spans:
        start_ms = one.start_ms
        while at < len(waiting) and start_ms < one.end_ms:
            low, high = max(start_ms, waiting[at][0]), min(one.end_ms, waiting[at][1])
            if waiting[at][1] <= start_ms:
                at += 1
                continue
            if low >= one.end_ms:
                break
            found += [Span(start_ms, low, one.spent, one.attempt, one.charged)] if start_ms < low else []
            found.append(Span(low, high, spent, one.attempt, charged))
            start_ms = high
        found += [Span(start_ms, one.end_ms, one.spent, one.attempt, one.charged)] if start_ms < one.end_ms else []
    return found


def taken(
    spans: Iterable[Span], stretch: tuple[int, int], wanted_ms: int, order: Sequence[Spent], spent: Spent
) -> list[Span]:
    """The same spans, `wanted_ms` within `stretch` spent so: how much is known, and when is not. It comes from the
    kinds in `order`, all of the first one's time before the next one's, and of each the latest."""
    found = list(spans)
    stretches: list[tuple[int, int]] = []
    for kind in order:
        for one in reversed(within((one for one in found if one.spent is kind), *stretch)):
            if wanted_ms <= 0:
                break
            stretches.append((max(one.start_ms, one.end_ms - wanted_ms), one.end_ms))
            wanted_ms -= one.end_ms - stretches[-1][0]
    return painted(found, stretches, spent)


def total(spans: Iterable[Span]) -> dict[Spent, int]:
    """Milliseconds of every kind there is, 0 included."""
    sums = dict.fromkeys(Spent, 0)
    for one in spans:
        sums[one.spent] += one.ms
    return sums


_TOLD = frozenset({Spent.PRODUCTIVE, Spent.STALL, Spent.LOST, Spent.HANG})


def is_hidden(ms: Mapping[Spent, int], spent: Spent) -> bool:
    """Whether time of this kind may lie within what is untold: of a training that tells nothing, 0 is not known."""
    return spent in _TOLD and ms[Spent.UNTOLD] > 0
