"""What a run directory or a node says, as a database can hold it. Pure.

Users write there: what no fleetctl ever writes is a ValueError.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from fleetctl.accounting.framing import text_of

Row = tuple[Any, ...]

NO_TASK = -1
LARGEST = (1 << 63) - 1  # of a column
_MOST_TEXT = 4000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def task_of(task: object) -> int:
    """The element of a sweep, NO_TASK where the run is none."""
    if task is None:
        return NO_TASK
    if type(task) is not int or not 0 <= task <= LARGEST:
        raise ValueError(f"{str(task)[:40]!r} is no element of a sweep")
    return task


def whole_of(value: object) -> int:
    """A whole number that a column holds."""
    if type(value) is not int or not -LARGEST <= value <= LARGEST:
        raise ValueError(f"{str(value)[:40]!r} is no whole number of 64 bits")
    return value


def words_of(value: object) -> str:
    """A text that a column holds, cut where nobody would read on."""
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:40]!r} is no text")
    return text_of(value[:_MOST_TEXT])


def ms_of(time: datetime) -> int:
    """Milliseconds since the epoch; a time without its zone could be any."""
    if time.utcoffset() is None:
        raise ValueError(f"{time} says no time zone")
    return (time - _EPOCH) // timedelta(milliseconds=1)


def milliseconds_of(seconds: float | None) -> int | None:
    """None for what no clock measures: NaN, infinities, a negative time."""
    return round(seconds * 1000) if seconds is not None and 0 <= seconds < 1e12 else None
