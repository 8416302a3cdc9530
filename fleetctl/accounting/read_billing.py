"""What the records of a window would have been billed by other weights, from the database: no index covers this."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, tzinfo
from fractions import Fraction
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select

from fleetctl.accounting.model import Window
from fleetctl.accounting.read_usage import COLUMNS, ENDED_WITHIN, OPEN, SEEN_S, SINCE, Where, asked_of, held_s, run_of
from fleetctl.accounting.tables import job_records
from fleetctl.accounting.tres import Tres
from fleetctl.accounting.usage import Bucket, By, Keys, calendar

_RECORD = job_records.c
_TRES = (_RECORD.cpus, _RECORD.memory_mib, _RECORD.nodes, _RECORD.gpus, _RECORD.gpu_models)
_FILLED = frozenset({By.CLUSTER, By.DAY, By.MONTH, By.MODEL})  # no columns here; the model is split off later


def read_billing(
    connection: Connection,
    window: Window,
    by: Sequence[By],
    cluster_ids: Sequence[int],
    units_of: Callable[[Tres], Fraction | None],
    zone: tzinfo = UTC,
) -> Iterator[Bucket]:
    """Sums over the records that read_usage counts, but for open ones that nobody has seen; of billing alone.

    :param units_of: what is billed for a record; None: it cannot be told.
    """
    inner = [one for one in by if one not in _FILLED]
    ended = _sums(inner, ENDED_WITHIN, _RECORD.ended_s)
    still_open = _sums(inner, (*OPEN, SEEN_S > SINCE), SEEN_S)
    for day, stretch in _stretches(window, zone, by):
        for name, asked in asked_of(connection, stretch, cluster_ids):
            filled: dict[By, str | None] = {By.CLUSTER: name, By.DAY: day, By.MONTH: day[: len("2026-11")]}
            for statement in (ended, still_open):
                for row in connection.execute(statement, asked):
                    yield _bucket(row, by, filled | dict(zip(inner, row[len(_TRES) + 2 :], strict=True)), units_of)


def _stretches(window: Window, zone: tzinfo, by: Sequence[By]) -> Iterator[tuple[str, Window]]:
    """The days or months of the window where they are asked for, by their names; else all of it."""
    if not {By.DAY, By.MONTH} & set(by):
        yield "", window
        return
    parts = calendar(window, zone, by)
    for name, start_s, end_s in zip(parts.names, parts.starts, parts.starts[1:], strict=False):
        yield name, Window(max(start_s, window.since_s), min(end_s, window.until_s))


def _sums(inner: Sequence[By], where: Where, ended_s: ColumnElement[int]) -> Select[Any]:
    columns = COLUMNS | {By.RUN: run_of()}
    keys = [columns[one].label(f"key_{number}") for number, one in enumerate(inner)]
    # one by one first: PostgreSQL does not see that two subqueries are the same, and groups by none
    each = select(held_s(ended_s).label("held_s"), *_TRES, *keys).where(*where).subquery()
    groups = list(each.c)[1:]
    return select(func.sum(each.c.held_s), func.count(), *groups).group_by(*groups)


def _bucket(
    row: Sequence[Any],
    by: Sequence[By],
    found: dict[By, str | None],
    units_of: Callable[[Tres], Fraction | None],
) -> Bucket:
    seconds, records, cpus, memory_mib, nodes, gpus, models, *_ = row
    units = units_of(Tres(cpus, memory_mib, nodes, gpus, models, billing=None))
    keys: Keys = tuple(found.get(one) for one in by)
    if units is None:
        return Bucket(keys, models, 0, records)
    return Bucket(keys, models, 0, records, billing_seconds=units * int(seconds), billed=records)
