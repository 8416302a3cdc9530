"""How much GPU time was held within a window, by whom and on which nodes: the denominator of every rate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from sqlalchemy import case, func, or_, select

from fleetctl.accounting.model import Window
from fleetctl.accounting.tables import clusters, job_records, nodes, record_nodes

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.sql.elements import ColumnElement

_record = job_records.c
_KEYS: Mapping[str, ColumnElement[Any]] = {
    "user": _record.user,
    "account": _record.account,
    "partition": _record.partition,
    "cluster": clusters.c.name,
}
Exposures = Mapping[str | None, Fraction]


def held_s(window: Window) -> ColumnElement[Any]:
    """Seconds of a record within the window. One that has not ended counts up to when it was last seen alive."""
    end = func.coalesce(_record.ended_s, _record.alive_s)
    high = case((end < window.until_s, end), else_=window.until_s)
    low = case((_record.started_s > window.since_s, _record.started_s), else_=window.since_s)
    return high - low


def holding(window: Window, cluster_ids: Collection[int]) -> ColumnElement[bool]:
    """Records that held anything within the window."""
    return (
        _record.cluster_id.in_(list(cluster_ids))
        & (_record.started_s < window.until_s)
        & or_(_record.ended_s > window.since_s, _record.ended_s.is_(None) & (_record.alive_s > window.since_s))
        & (func.coalesce(_record.ended_s, _record.alive_s) > _record.started_s)
    )


def read_total(connection: Connection, window: Window, cluster_ids: Collection[int]) -> Fraction:
    """GPU-seconds held."""
    wanted = select(func.sum(held_s(window) * _record.gpus)).where(holding(window, cluster_ids), _record.gpus > 0)
    return Fraction(int(connection.execute(wanted).scalar() or 0))


def read_exposures(connection: Connection, window: Window, by: str, cluster_ids: Collection[int]) -> Exposures:
    """GPU-seconds held by user, account, partition or cluster; None where Slurm names none."""
    key = _KEYS[by]
    query = (
        select(key, func.sum(held_s(window) * _record.gpus))
        .select_from(job_records.join(clusters, clusters.c.id == _record.cluster_id))
        .where(holding(window, cluster_ids), _record.gpus > 0)
        .group_by(key)
    )
    return {name or None: Fraction(int(seconds)) for name, seconds in connection.execute(query)}


def read_nodes(
    connection: Connection, window: Window, cluster_ids: Collection[int], name: Callable[[int, str], str | None]
) -> Exposures:
    """GPU-seconds held by node, or by whatever `name` makes of a cluster's id and a node; None where it is not known.

    The GPUs of a record are spread evenly over its nodes, as Slurm does not keep which node gave how many.
    """
    spread = (
        select(_record.cluster_id, nodes.c.name, _record.gpus, _record.nodes, func.sum(held_s(window)))
        .select_from(
            job_records.join(record_nodes, record_nodes.c.record_id == _record.id).join(
                nodes, nodes.c.id == record_nodes.c.node_id
            )
        )
        .where(holding(window, cluster_ids), _record.gpus > 0, _record.nodes > 0)
        .group_by(_record.cluster_id, nodes.c.name, _record.gpus, _record.nodes)
    )
    found: dict[str | None, Fraction] = {}
    for cluster, node, gpus, count, seconds in connection.execute(spread):
        key = name(cluster, node)
        found[key] = found.get(key, Fraction(0)) + Fraction(int(seconds) * gpus, count)
    if rest := read_total(connection, window, cluster_ids) - sum(found.values(), Fraction(0)):
        found[None] = found.get(None, Fraction(0)) + rest
    return found
