"""What of the database says how long jobs waited."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, or_, select

from fleetctl.accounting.causes import Cause
from fleetctl.accounting.model import Window
from fleetctl.accounting.tables import clusters, job_records
from fleetctl.accounting.waits import DAY_S, Waiting, Waits, gpu_class, waits_of

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.sql.elements import ColumnElement

_ROWS = 10_000  # that are fetched at once
_column = job_records.c
_COLUMNS: dict[str, ColumnElement[Any]] = {
    "partition": _column.partition,
    "account": _column.account,
    "user": _column.user,
    "qos": _column.qos,
    "gpus": _column.gpus,
    "cluster": clusters.c.name,
}


def read_waits(connection: Connection, window: Window, by: Sequence[str], as_of_s: Mapping[int, int]) -> Waits:
    """The waits of a window, grouped by some of `waits.BY`; `as_of_s` are ids of clusters, and how far the data of each
    reaches.

    The other components of a hetjob wait as their leader does, and are not counted again.
    """
    return waits_of(_records(connection, window, by, list(as_of_s)), window, as_of_s)


def _records(
    connection: Connection, window: Window, by: Sequence[str], cluster_ids: Collection[int]
) -> Iterator[Waiting]:
    """Sorted by job, submission and start, one by one: a month may have a million."""
    record = job_records.c
    wanted = record.cluster_id.in_(cluster_ids) & (func.coalesce(record.het_offset, 0) == 0)
    # What is one job with a record of the window may have ended before that was submitted
    concerns = wanted & _lasted(window.since_s)
    first_s = connection.execute(select(func.min(record.submitted_s)).where(concerns)).scalar()
    since_s = window.since_s if first_s is None else min(window.since_s, first_s - DAY_S)
    query = (
        select(
            record.cluster_id,
            record.raw_id,
            record.user,
            record.submitted_s,
            record.eligible_s,
            record.started_s,
            func.coalesce(record.ended_s, record.purged_s),
            record.cause == Cause.RESIZED,
            *(_COLUMNS[key] for key in by),
        )
        .select_from(job_records.join(clusters, clusters.c.id == record.cluster_id))
        .where(wanted, _lasted(since_s))
        .where(func.coalesce(record.submitted_s, 0) < window.until_s)
        .order_by(record.cluster_id, record.raw_id, record.submitted_s, record.started_s, record.id)
    )
    shown = [_as_shown(key) for key in by]
    for cluster, raw, *rest in connection.execution_options(yield_per=_ROWS).execute(query):
        key = tuple(show(value) for show, value in zip(shown, rest[6:], strict=True))
        yield Waiting((cluster, raw), key, *rest[:6])


def _lasted(since_s: int) -> ColumnElement[bool]:
    """Records that had not ended before; what Slurm has forgotten ended then, for all that will ever be known."""
    forgotten = _column.purged_s < since_s
    return or_(_column.ended_s >= since_s, _column.ended_s.is_(None) & func.coalesce(~forgotten, True))


def _as_shown(key: str) -> Callable[[Any], str | None]:
    return gpu_class if key == "gpus" else str
