"""Rows of an accounting database, written straight into its tables: for what reads them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import BigInteger, Connection, Table, insert

from fleetctl.accounting import tables
from fleetctl.accounting.database import open_database

T0 = 1_793_491_200  # 2026-11-01 00:00:00 UTC
HOUR_S = 3_600
DAY_S = 86_400


class Rows:
    """Puts rows into the database of `connection`. What is not said of a row is empty, or what is usual."""

    def __init__(self, connection: Connection, cluster: str = "lab") -> None:
        self.connection = connection
        self._ids = itertools.count(1)
        self._nodes: dict[tuple[int, str], int] = {}
        self.cluster = cluster
        self.cluster_id = self.add_cluster(cluster)

    def add_cluster(self, name: str, **state: Any) -> int:
        """A cluster, and that a sync has read all of it up to two days after `T0`."""
        key = next(self._ids)
        self._put(tables.clusters, id=key, name=name)
        usual = {"from_s": 0, "to_s": T0 + 2 * DAY_S, "synced_s": T0 + 2 * DAY_S, "waiting": 0, "sees_all": 1}
        self._put(tables.sync_state, cluster_id=key, **{**usual, **state})
        return key

    def record(self, job: int, *, nodes: Sequence[str] = (), **values: Any) -> int:
        """One record, whole GPUs on `nodes`; by default it ran well for an hour from `T0` on. Its id."""
        key = next(self._ids)
        usual: dict[str, Any] = {
            "id": key,
            "cluster_id": self.cluster_id,
            "record": str(key),
            "raw_id": job,
            "job_id": job,
            "name": "train",
            "user": "ada",
            "account": "lab",
            "partition": "gpu",
            "qos": "normal",
            "state": "COMPLETED",
            "exit_status": 0,
            "exit_signal": 0,
            "derived_status": 0,
            "derived_signal": 0,
            "submitted_s": T0,
            "eligible_s": T0,
            "started_s": T0,
            "ended_s": T0 + HOUR_S,
            "suspended_s": 0,
            "nodes": len(nodes) or 1,
            "gpus": 8 * (len(nodes) or 1),
            "gpu_models": f"h100={8 * (len(nodes) or 1)}",
            "node_list": ",".join(nodes),
            "digest": key,
        }
        self._put(tables.job_records, **{**usual, **values})
        for node in nodes:
            node_id = self._node(values.get("cluster_id", self.cluster_id), node)
            self._put(tables.record_nodes, record_id=key, node_id=node_id)
        return key

    def put(self, table: Table, **values: Any) -> None:
        """One row of any table; `cluster_id` is ours where the table has one."""
        if "cluster_id" in table.c:
            values.setdefault("cluster_id", self.cluster_id)
        if "cluster" in table.c:
            values.setdefault("cluster", self.cluster)
        self._put(table, **values)

    def _node(self, cluster_id: int, name: str) -> int:
        if (cluster_id, name) not in self._nodes:
            self._nodes[cluster_id, name] = next(self._ids)
            self._put(tables.nodes, id=self._nodes[cluster_id, name], cluster_id=cluster_id, name=name)
        return self._nodes[cluster_id, name]

    def _put(self, table: Table, **values: Any) -> None:
        missing = {
            column.name: 0 if isinstance(column.type, BigInteger) else ""
            for column in table.c
            if not column.nullable and column.name not in values and column.autoincrement is not True
        }
        self.connection.execute(insert(table), [{**missing, **values}])


@contextmanager
def writing(url: str, cluster: str = "lab") -> Iterator[Rows]:
    """Rows of the database behind `url`, committed at the end."""
    engine = open_database(url)
    with engine.begin() as connection:
        yield Rows(connection, cluster)
    engine.dispose()
