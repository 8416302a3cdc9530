"""How long jobs waited before they started. Pure.

Three waits, because they have different owners:

    before_eligible  Submit to Eligible: a dependency, --begin, a hold; the queue has no part in it
    queue            Eligible to Start: what the cluster made it wait. Slurm resets Submit and Eligible when it requeues
                     a job, so that a requeued job has one such wait for each start
    first_start      the first Submit to the first Start: what its user felt, once for each job

A job that has not started by the end of the window waits still, and one that ended without a start never will: both are
counted apart, since the wait that they had is no wait for a start.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from fleetctl.accounting.model import Window

BY = ("partition", "account", "user", "qos", "gpus", "cluster")
DAY_S = 86_400
# A requeued job gets its new Submit at once, a finished one up to MinJobAge (300 s by default) after its end; no
# cluster comes round to the same job id within a day (slurm.conf.5, MaxJobId: 67 million)
_REQUEUED_WITHIN_S = DAY_S


class Wait(StrEnum):
    """What was waited for."""

    BEFORE_ELIGIBLE = "before_eligible"
    QUEUE = "queue"
    FIRST_START = "first_start"
    STILL_WAITING = "still_waiting"  # since its submission
    NEVER_STARTED = "never_started"  # from its submission to its end


class Waiting(Struct, frozen=True):
    """What of one record says how long it waited. `key` is what the answer is grouped by."""

    job: tuple[int, int]  # cluster, raw id: the same for all starts of one job
    key: tuple[str | None, ...]
    user: str
    submitted_s: int | None
    eligible_s: int | None
    started_s: int | None
    ended_s: int | None  # or when Slurm was seen to have forgotten it
    resized: bool = False  # the job goes on in another size, which has a record and a Submit of its own


class Spread(Struct, frozen=True):
    """One wait of one group, in whole seconds; `unordered` records have times that run backwards (clamped to 0)."""

    key: tuple[str | None, ...]
    wait: Wait
    records: int
    p50_s: int
    p90_s: int
    p99_s: int
    max_s: int
    unordered: int


class Waits(Struct, frozen=True):
    """`untimed` are records that started at a time, but when they were submitted or eligible is not known."""

    spreads: tuple[Spread, ...]
    untimed: int


def percentile(counted: Mapping[int, int], per_cent: int) -> int:
    """The nearest-rank percentile of so many of each value: the least one that at least so many per cent do not exceed.

    :raises ValueError: there are none.
    """
    total = sum(counted.values())
    rank = -(-total * per_cent // 100)
    for value in sorted(counted):
        rank -= counted[value]
        if rank <= 0:
            return value
    raise ValueError("there is no percentile of nothing")


def waits_of(records: Iterable[Waiting], window: Window, as_of_s: Mapping[int, int]) -> Waits:
    """The waits that ended in the window, and those that had not by its end (`as_of_s` of the cluster, where that is
    earlier).

    `records` come sorted by job, then by submission and start, with all that a job's first start needs: also records
    from before the window.
    """
    counts: defaultdict[tuple[tuple[str | None, ...], Wait], Counter[int]] = defaultdict(Counter)
    unordered: Counter[tuple[tuple[str | None, ...], Wait]] = Counter()
    untimed = 0
    before: Waiting | None = None
    for record in records:
        follows = before is not None and _follows(before, record)
        goes_on = follows and before is not None and before.resized and before.ended_s == record.started_s
        before = record
        if goes_on:
            continue
        end_s = min(window.until_s, as_of_s[record.job[0]])
        found, backwards = _waits(record, window, end_s, first=not follows)
        if found is None:
            untimed += 1
            continue
        for wait, seconds in found:
            counts[record.key, wait][seconds] += 1
            unordered[record.key, wait] += backwards
    spreads = tuple(_spread(key, wait, counted, unordered[key, wait]) for (key, wait), counted in counts.items())
    order = list(Wait)
    return Waits(tuple(sorted(spreads, key=lambda one: (_sortable(one.key), order.index(one.wait)))), untimed)


def gpu_class(gpus: int | None) -> str | None:
    """`1`, `2`, `3-4`, `5-8`, `9-16`: jobs of like size in one row. None: not known."""
    if gpus is None:
        return None
    if gpus <= 2:
        return str(gpus)
    top = 1 << (gpus - 1).bit_length()
    return f"{top // 2 + 1}-{top}"


def _follows(before: Waiting, record: Waiting) -> bool:
    """Whether it is the same job, come back or resized, and not another one that was given the same id later."""
    if before.job != record.job or before.user != record.user:
        return False
    if before.submitted_s is None or record.submitted_s is None or before.ended_s is None:
        return before.submitted_s == record.submitted_s
    return before.submitted_s == record.submitted_s or record.submitted_s - before.ended_s <= _REQUEUED_WITHIN_S


def _waits(
    record: Waiting, window: Window, end_s: int, *, first: bool
) -> tuple[Sequence[tuple[Wait, int]] | None, bool]:
    """What it waited for and how long, and whether its times ran backwards; None where they are not known."""
    started_s = record.started_s
    if started_s is None or started_s >= end_s:
        return _without_start(record, window, end_s)
    if started_s < window.since_s:
        return (), False
    if record.submitted_s is None or record.eligible_s is None:
        return None, False
    submitted_s = min(record.submitted_s, started_s)
    eligible_s = min(max(record.eligible_s, submitted_s), started_s)
    backwards = (submitted_s, eligible_s) != (record.submitted_s, record.eligible_s)
    found = [(Wait.BEFORE_ELIGIBLE, eligible_s - submitted_s), (Wait.QUEUE, started_s - eligible_s)]
    if first:
        found.append((Wait.FIRST_START, started_s - submitted_s))
    return found, backwards


def _without_start(record: Waiting, window: Window, end_s: int) -> tuple[Sequence[tuple[Wait, int]] | None, bool]:
    if record.submitted_s is None:
        return None, False
    if record.submitted_s >= end_s:
        return (), False
    if record.started_s is None and record.ended_s is not None and record.ended_s < end_s:
        if record.ended_s < window.since_s:
            return (), False
        return [(Wait.NEVER_STARTED, max(0, record.ended_s - record.submitted_s))], record.ended_s < record.submitted_s
    return [(Wait.STILL_WAITING, end_s - record.submitted_s)], False


def _spread(key: tuple[str | None, ...], wait: Wait, counted: Mapping[int, int], unordered: int) -> Spread:
    return Spread(
        key=key,
        wait=wait,
        records=sum(counted.values()),
        p50_s=percentile(counted, 50),
        p90_s=percentile(counted, 90),
        p99_s=percentile(counted, 99),
        max_s=max(counted),
        unordered=unordered,
    )


def _sortable(key: tuple[str | None, ...]) -> tuple[tuple[bool, int, str], ...]:
    """Numbers by their size, unknown last."""
    return tuple((part is None, _leading(part), part or "") for part in key)


def _leading(part: str | None) -> int:
    digits = (part or "").split("-")[0]
    return int(digits) if digits.isdecimal() and digits.isascii() else -1
