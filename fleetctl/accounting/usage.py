"""GPU-seconds held, added up by whom or when. Held is what Slurm had given out, suspended time included.

What Slurm does not say of a record (how many GPUs, until when) is never 0: such records are counted beside the sums,
and a sum of nothing but such records is None.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta, tzinfo
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from operator import add
from typing import NamedTuple

from msgspec import Struct

from fleetctl.accounting.model import Window
from fleetctl.accounting.tres import gpu_equivalents

_REPEATS = 4096  # a cluster's jobs hold the same few sets of GPUs
_ZERO = Fraction(0)


class By(StrEnum):
    """What usage can be added up by."""

    ACCOUNT = "account"
    USER = "user"
    PARTITION = "partition"
    MODEL = "model"  # type of GPU, "gpu" where Slurm gives none
    RUN = "run"  # null: jobs that fleetctl did not submit
    CLUSTER = "cluster"
    DAY = "day"  # of the asked time zone: some have 23 or 25 hours
    MONTH = "month"


Keys = tuple[str | None, ...]
Exact = Fraction | int


class Held(Struct, frozen=True):
    """What one record held. `ended_s` is for an open record when it was last seen alive; None: it never was."""

    keys: Keys
    gpu_models: str
    gpus: int | None
    started_s: int
    ended_s: int | None
    billing: int | None = None  # Slurm's billing units, where they were asked for


class Bucket(Struct, frozen=True):
    """A sum over records with the same keys and GPUs, cut at the edges of a window.

    `keys` are in the order that was asked, None in the place of the model. `gpu_models` "" stands for GPUs each of
    which is a whole one, whatever their types, or for none.
    """

    keys: Keys
    gpu_models: str
    gpu_seconds: int
    records: int
    unknown_gpus: int = 0  # of the records, those of which Slurm does not say how many GPUs they held
    unknown_end: int = 0  # of the others, those that are open, and nobody has seen alive
    billing_seconds: Exact = 0
    billed: int = 0  # of the records, those of which it is known what is billed


class Usage(Struct, frozen=True):
    """A row of the answer. None: all its records are unknown.

    `equivalents` counts a MIG slice as the part of a GPU that it is. With By.MODEL a record that held two models counts
    in both rows.
    """

    keys: Keys
    gpu_seconds: Exact | None
    equivalents: Exact | None
    records: int
    unknown_gpus: int
    unknown_end: int
    billing_seconds: Exact | None = None


@lru_cache(maxsize=_REPEATS)
def models_of(gpu_models: str) -> tuple[tuple[str, Exact], ...]:
    """The types in `a100=2,h100=6`, and which part of the GPUs each is; ("", 1) where it says none."""
    named = (part.rpartition("=") for part in gpu_models.split(","))
    counts = [(model, int(count)) for model, _, count in named if model]
    if len(counts) < 2:
        return ((counts[0][0] if counts else "", 1),)
    total = sum(count for _, count in counts)
    return tuple((model, Fraction(count, total)) for model, count in counts if count)


@lru_cache(maxsize=_REPEATS)
def _equivalents(gpu_models: str) -> Exact:
    weight = sum((part * gpu_equivalents(model) for model, part in models_of(gpu_models)), _ZERO)
    return 1 if weight == 1 else weight  # whole numbers are quicker than fractions, and mostly all are


def by_key(buckets: Iterable[Bucket], by: Sequence[By]) -> tuple[Usage, ...]:
    """One row for each set of keys, the largest first, unknown ones last; by days or months in their order."""
    sums: dict[Keys, _Sum] = {}
    for bucket in buckets:
        for keys, seconds, equivalents, billing in _split(bucket, by):
            counts = (bucket.records, bucket.unknown_gpus, bucket.unknown_end)
            part = _Sum(seconds, equivalents, *counts, billing, bucket.billed)
            sums[keys] = _plus(sums[keys], part) if keys in sums else part
    return tuple(sorted((_usage(keys, one) for keys, one in sums.items()), key=lambda usage: _order(usage, by)))


class Weighed(Struct, frozen=True):
    """What weights bill for the records of a row. None: of none of them is known what it held."""

    seconds: Exact | None
    unknown: int = 0  # records of which it is not known


def weighed_by_key(buckets: Iterable[Bucket], by: Sequence[By]) -> dict[Keys, Weighed]:
    """What is billed, by the keys of by_key."""
    sums: dict[Keys, Weighed] = {}
    for bucket in buckets:
        for keys, _, _, billing in _split(bucket, by):
            part = Weighed(billing if bucket.billed else None, bucket.records - bucket.billed)
            sums[keys] = weighed_in_all((sums[keys], part)) if keys in sums else part
    return sums


def weighed_in_all(parts: Iterable[Weighed]) -> Weighed:
    known, unknown = None, 0
    for part in parts:
        unknown += part.unknown
        known = known if part.seconds is None else part.seconds + (known or 0)
    return Weighed(known, unknown)


def total_of(usages: Iterable[Usage]) -> Usage:
    """All rows together. With By.MODEL records that are in two rows count twice."""
    total, told = _Sum(0, 0, 0, 0, 0, 0, 0), False
    for one in usages:
        told = told or one.gpu_seconds is not None
        held = (one.gpu_seconds or 0, one.equivalents or 0)
        counts = (one.records, one.unknown_gpus, one.unknown_end)
        total = _plus(total, _Sum(*held, *counts, one.billing_seconds or 0, int(one.billing_seconds is not None)))
    seconds, equivalents = (total.seconds, total.equivalents) if told else (None, None)
    billing = total.billing if total.billed else None
    return Usage((), seconds, equivalents, total.records, total.unknown_gpus, total.unknown_end, billing)


class _Sum(NamedTuple):
    seconds: Exact
    equivalents: Exact
    records: int
    unknown_gpus: int
    unknown_end: int
    billing: Exact
    billed: int


def _plus(one: _Sum, other: _Sum) -> _Sum:
    return _Sum(*map(add, one, other))


def _split(bucket: Bucket, by: Sequence[By]) -> Iterator[tuple[Keys, Exact, Exact, Exact]]:
    if By.MODEL not in by:
        seconds = bucket.gpu_seconds
        yield bucket.keys, seconds, seconds * _equivalents(bucket.gpu_models), bucket.billing_seconds
        return
    place = by.index(By.MODEL)
    for model, part in models_of(bucket.gpu_models):
        keys = (*bucket.keys[:place], model or None, *bucket.keys[place + 1 :])
        of_model = bucket.gpu_seconds * part
        yield keys, of_model, of_model * gpu_equivalents(model), bucket.billing_seconds * part


def _usage(keys: Keys, one: _Sum) -> Usage:
    told = one.records > one.unknown_gpus + one.unknown_end
    seconds, equivalents = (one.seconds, one.equivalents) if told else (None, None)
    billing = one.billing if one.billed else None
    return Usage(keys, seconds, equivalents, one.records, one.unknown_gpus, one.unknown_end, billing)


def _order(usage: Usage, by: Sequence[By]) -> tuple[tuple[str, ...], bool, Exact, tuple[tuple[bool, str], ...]]:
    names = tuple((key is None, key or "") for key in usage.keys)
    return dates_of(usage.keys, by), usage.gpu_seconds is None, -(usage.gpu_seconds or 0), names


def dates_of(keys: Keys, by: Sequence[By]) -> tuple[str, ...]:
    """The days and months among these keys: rows of dates are read in their order."""
    return tuple(key or "" for one, key in zip(by, keys, strict=False) if one in (By.DAY, By.MONTH))


class Calendar(Struct, frozen=True):
    """The days or months that a window touches: the start of each, the end of the last, and their names."""

    starts: tuple[int, ...]
    names: tuple[str, ...]


def calendar(window: Window, zone: tzinfo, by: Sequence[By]) -> Calendar:
    """Days where By.DAY is asked, else months, of `zone`. The first may begin before the window, the last end after."""
    days = By.DAY in by
    day = datetime.fromtimestamp(window.since_s, zone).date()
    day = day if days else day.replace(day=1)
    starts, names = [midnight(day, zone)], []
    while starts[-1] < window.until_s:
        names.append(day.isoformat() if days else day.isoformat()[: len("2026-11")])
        day = day + timedelta(days=1) if days else (day + timedelta(days=32)).replace(day=1)
        starts.append(midnight(day, zone))
    return Calendar(tuple(starts), tuple(names))


def midnight(day: date, zone: tzinfo) -> int:
    """The first moment of a day: where clocks skip midnight that change, where they show it twice the first."""
    return int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp())


def add_up(rows: Iterable[Held], window: Window, by: Sequence[By], parts: Calendar | None = None) -> tuple[Bucket, ...]:
    """What was held within the window, by keys and GPUs; with a calendar cut at its days or months as well.

    A record counts in each stretch that it touches; one without an end only in that of its start.
    """
    sums: dict[tuple[Keys, str], list[int]] = {}
    asked = tuple(by)
    for row in rows:
        start = max(row.started_s, window.since_s)
        end = max(min(start if row.ended_s is None else row.ended_s, window.until_s), start)  # clocks are set back
        if parts is None:
            _count(sums, row, row.keys, end - start)
            continue
        number = bisect_right(parts.starts, start) - 1
        while (upper := parts.starts[number + 1]) < end:
            _count(sums, row, _dated(row.keys, asked, parts.names[number]), upper - start)
            start, number = upper, number + 1
        _count(sums, row, _dated(row.keys, asked, parts.names[number]), end - start)
    return tuple(Bucket(keys, models, *values) for (keys, models), values in sums.items())


def _count(sums: dict[tuple[Keys, str], list[int]], row: Held, keys: Keys, seconds: int) -> None:
    values = sums.setdefault((keys, row.gpu_models), [0, 0, 0, 0, 0, 0])
    values[1] += 1
    if row.gpus is None:
        values[2] += 1
    elif row.ended_s is None:
        values[3] += 1
    else:
        values[0] += row.gpus * seconds
    if row.billing is not None and row.ended_s is not None:
        values[4] += row.billing * seconds
        values[5] += 1


@lru_cache(maxsize=_REPEATS)
def _dated(keys: Keys, by: tuple[By, ...], name: str) -> Keys:
    named = {By.DAY: name, By.MONTH: name[: len("2026-11")]}
    return tuple(named.get(one, key) for one, key in zip(by, keys, strict=True))
