"""The facts of an accounting database as bytes: two databases that say the same give the same bytes.

Rows are told by natural keys instead of our ids, and what a sync keeps about itself (sync_state, quarantine, digests,
`alive_s`, `steps_s`, `purged_s`) is left out. So are the tables of the recovery daemon, which no sync touches.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import ColumnElement, Engine, FromClause, Table, select

from fleetctl.accounting import tables

_OWN = frozenset({"id", "cluster_id", "record_id", "node_id", "digest", "alive_s", "steps_s", "purged_s"})
_LEFT_OUT = frozenset({"clusters", "nodes", "sync_state", "quarantine"})  # names of the first two are in other rows
_OF_DAEMON = "daemon_"
_OF_RECORD = frozenset({"record_nodes", "steps"})


def dump(engine: Engine) -> bytes:
    """One line for each row, `["table", {column: value}]`, sorted."""
    lines = [
        line
        for table in tables.metadata.sorted_tables
        if table.name not in _LEFT_OUT and not table.name.startswith(_OF_DAEMON)
        for line in _lines(engine, table)
    ]
    return "\n".join(sorted(lines)).encode()


def _lines(engine: Engine, table: Table) -> list[str]:
    source, keys = _joined(table)
    facts: Sequence[ColumnElement[object]] = [column for column in table.c if column.name not in _OWN]
    with engine.connect() as connection:
        rows = connection.execute(select(*keys, *facts).select_from(source)).mappings().all()
    return [json.dumps([table.name, dict(row)], sort_keys=True) for row in rows]


def _joined(table: Table) -> tuple[FromClause, list[ColumnElement[object]]]:
    """The table beside those that name what its ids stand for."""
    cluster, records, nodes = tables.clusters, tables.job_records, tables.nodes
    named: list[ColumnElement[object]] = [cluster.c.name.label("of_cluster")]
    if table.name in _OF_RECORD:
        source: FromClause = table.join(records, records.c.id == table.c.record_id)
        source = source.join(cluster, cluster.c.id == records.c.cluster_id)
        named.append(records.c.record.label("of_record"))
        if table is tables.record_nodes:
            source = source.join(nodes, nodes.c.id == table.c.node_id)
            named.append(nodes.c.name.label("of_node"))
        return source, named
    if "cluster_id" in table.c:
        return table.join(cluster, cluster.c.id == table.c.cluster_id), named
    return table, []
