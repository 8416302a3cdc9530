"""What was held in a window, from the database: the sums by SQL, but row by row for days, months and runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, tzinfo
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Connection, Select, bindparam, case, func, literal, null, select

from fleetctl.accounting.model import Window
from fleetctl.accounting.money import Costs, costs, parts, priced_by
from fleetctl.accounting.prices import read_prices
from fleetctl.accounting.tables import SLICED, clusters, job_records, run_jobs
from fleetctl.accounting.usage import Bucket, By, Held, Keys, add_up, by_key, calendar

_PAGE = 10_000  # rows in memory at a time
_ROW_BY_ROW = frozenset({By.DAY, By.MONTH, By.RUN})
_RECORD = job_records.c
SINCE: BindParameter[int] = bindparam("since", required=True)
_UNTIL: BindParameter[int] = bindparam("until", required=True)
_CLUSTER: BindParameter[int] = bindparam("cluster", required=True)
ENDED_WITHIN = (_RECORD.cluster_id == _CLUSTER, _RECORD.ended_s > SINCE, _RECORD.started_s < _UNTIL)
OPEN = (_RECORD.cluster_id == _CLUSTER, _RECORD.ended_s.is_(None), _RECORD.started_s < _UNTIL)


def held_s(ended_s: ColumnElement[int]) -> ColumnElement[int]:
    """How long a record that touches the window held it, cut at the window's edges."""
    start_s = case((_RECORD.started_s > SINCE, _RECORD.started_s), else_=SINCE)
    held = case((ended_s < _UNTIL, ended_s), else_=_UNTIL) - start_s
    return case((ended_s < _RECORD.started_s, 0), else_=held)  # clocks are set back


# when an open record was last seen; clocks differ
SEEN_S = case((_RECORD.alive_s < _RECORD.started_s, _RECORD.started_s), else_=_RECORD.alive_s)
_HELD_S = held_s(_RECORD.ended_s)
_SUMS = (func.coalesce(func.sum(_RECORD.gpus * _HELD_S), 0), func.count(), func.count(_RECORD.gpus))
_BILLED = (func.coalesce(func.sum(_RECORD.billing * _HELD_S), 0), func.count(_RECORD.billing))
Where = tuple[ColumnElement[bool], ...]


def read_usage(
    connection: Connection,
    window: Window,
    by: Sequence[By],
    cluster_ids: Sequence[int],
    zone: tzinfo = UTC,
    *,
    billing: bool = False,
) -> tuple[Bucket, ...]:
    """Sums over all records that held something in the window, of these clusters, cut at the window's edges.

    Open records count up to when they were last seen alive. Days and months are those of `zone`. With `billing` also
    what Slurm bills for them, which no index has.
    """
    parts_of_time = calendar(window, zone, by) if {By.DAY, By.MONTH} & set(by) else None
    if not _ROW_BY_ROW.isdisjoint(by):
        return add_up(read_held(connection, window, by, cluster_ids, billing=billing), window, by, parts_of_time)
    buckets: list[Bucket] = []
    for name, asked in asked_of(connection, window, cluster_ids):
        buckets += _groups(connection, by, name, asked, billing)
        buckets += add_up(_open(connection, by, name, asked, billing), window, by)
    return tuple(buckets)


def read_held(
    connection: Connection, window: Window, by: Sequence[By], cluster_ids: Sequence[int], *, billing: bool = False
) -> Iterator[Held]:
    """What each record of the window held, page by page while the transaction lasts, not cut; dates not filled in."""
    for name, asked in asked_of(connection, window, cluster_ids):
        columns = (_RECORD.ended_s, _billing(billing))
        yield from _rows(connection, by, name, asked, ENDED_WITHIN, columns)
        yield from _open(connection, by, name, asked, billing)


def read_costs(
    connection: Connection,
    window: Window,
    by: Sequence[By],
    cluster_ids: Sequence[int],
    zone: tzinfo = UTC,
    currency: str | None = None,
) -> Costs:
    """What the GPUs of the window cost, at the prices of each part of it.

    :param currency: what a price in another one holds for is unpriced; None: whatever applies, if it is one.
    :raises ValueError: prices of several currencies apply.
    """
    prices, wanted = read_prices(connection), priced_by(by)
    read = [
        (part.since_s, by_key(read_usage(connection, part, wanted, cluster_ids, zone), wanted))
        for part in parts(prices, window)
    ]
    whole = by_key(read_usage(connection, window, by, cluster_ids, zone), by) if len(read) > 1 else None
    return costs(read, by, prices, currency, whole)


def asked_of(connection: Connection, window: Window, cluster_ids: Sequence[int]) -> list[tuple[str, dict[str, Any]]]:
    """The name of each cluster, and the parameters of its statements."""
    names = select(clusters.c.id, clusters.c.name).where(clusters.c.id.in_(cluster_ids)).order_by(clusters.c.id)
    found = connection.execute(names).all()
    within = {"since": window.since_s, "until": window.until_s}
    return [(name, {"cluster": cluster_id, **within}) for cluster_id, name in found]


def _billing(wanted: bool) -> ColumnElement[Any]:
    return _RECORD.billing if wanted else null()


def _open(
    connection: Connection, by: Sequence[By], cluster: str, asked: dict[str, Any], billing: bool
) -> Iterator[Held]:
    """Records that go on; not those that were last seen before the window."""
    for row in _rows(connection, by, cluster, asked, OPEN, (SEEN_S, _billing(billing))):
        if row.ended_s is None or row.ended_s > asked["since"]:
            yield row


def _groups(
    connection: Connection, by: Sequence[By], cluster: str, asked: dict[str, Any], billing: bool
) -> Iterator[Bucket]:
    inner = [one for one in by if one in COLUMNS]
    sums = sums_by(inner).add_columns(*(_BILLED if billing else (literal(0), literal(0))))
    for *values, seconds, records, told, billing_seconds, billed in connection.execute(sums, asked):
        if records:
            found = {By.CLUSTER: cluster, **dict(zip(inner, values, strict=True))}
            models = found.pop(By.MODEL, "")
            counts = (records, records - told, 0, int(billing_seconds), billed)
            yield Bucket(_keys(found, by), models, int(seconds), *counts)
    if By.MODEL not in by:
        yield from _sliced(connection, by, cluster, asked)


def _sliced(connection: Connection, by: Sequence[By], cluster: str, asked: dict[str, Any]) -> Iterator[Bucket]:
    """Slices of GPUs were added up as whole ones: taken off there, and told with their types."""
    inner = [one for one in by if one in COLUMNS]
    columns = [COLUMNS[one] for one in (*inner, By.MODEL)]
    statement = select(*columns, _SUMS[0]).where(*ENDED_WITHIN, SLICED).group_by(*columns)
    for *values, models, seconds in connection.execute(statement, asked):
        keys = _keys({By.CLUSTER: cluster, **dict(zip(inner, values, strict=True))}, by)
        yield Bucket(keys, models, int(seconds), 0)
        yield Bucket(keys, "", -int(seconds), 0)


def sums_by(inner: Sequence[By]) -> Select[Any]:
    """Sums of a cluster's records that have ended (parameters cluster, since, until): what the speed depends on.

    For each account the stretch of ix_job_records_usage that ended after `since`; SQLite goes through them in order,
    so that sums by account need no sorting.
    """
    columns = [COLUMNS[one] for one in inner]
    least = func.min(_RECORD.account)
    found = select(least.label("account")).where(_RECORD.cluster_id == _CLUSTER).cte("found", recursive=True)
    after = select(least).where(_RECORD.cluster_id == _CLUSTER, _RECORD.account > found.c.account).scalar_subquery()
    found = found.union_all(select(after).where(found.c.account.is_not(None)))
    of_them = _RECORD.account.in_(select(found.c.account))
    return select(*columns, *_SUMS).where(*ENDED_WITHIN, of_them).group_by(*columns)


def _rows(
    connection: Connection,
    by: Sequence[By],
    cluster: str,
    asked: dict[str, Any],
    where: Where,
    end_and_billing: tuple[ColumnElement[Any], ColumnElement[Any]],
) -> Iterator[Held]:
    # models and dates are put in later
    filled = COLUMNS | {By.RUN: run_of(), By.CLUSTER: literal(cluster), By.MODEL: null()}
    keys = [filled.get(one, null()) for one in by]
    statement = select(_RECORD.gpu_models, _RECORD.gpus, _RECORD.started_s, *end_and_billing, *keys).where(*where)
    for row in connection.execute(statement.execution_options(yield_per=_PAGE), asked):
        yield Held(row[5:], *row[:5])


def _keys(found: dict[By, str | None], by: Sequence[By]) -> Keys:
    return tuple(found.get(one) for one in by)


def run_of() -> ColumnElement[str]:
    """The run that a record of job_records belongs to: its user's youngest that had this job id at its submission."""
    cluster = select(clusters.c.name).where(clusters.c.id == _RECORD.cluster_id).correlate(job_records)
    return (
        select(run_jobs.c.run_id)
        .where(run_jobs.c.cluster == cluster.scalar_subquery(), run_jobs.c.job_id == _RECORD.job_id)
        .where(run_jobs.c.user == _RECORD.user, run_jobs.c.since_s <= _RECORD.submitted_s)
        .order_by(run_jobs.c.since_s.desc())
        .limit(1)
        .correlate(job_records)
        .scalar_subquery()
    )


COLUMNS: dict[By, ColumnElement[Any]] = {
    By.ACCOUNT: _RECORD.account,
    By.USER: _RECORD.user,
    By.PARTITION: _RECORD.partition,
    By.MODEL: _RECORD.gpu_models,
}
