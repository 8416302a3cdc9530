"""What a sync knows of one cluster, as it stands in the database, and how far the one under way has come."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import Connection, func, select

from fleetctl.accounting import bulk
from fleetctl.accounting.plan import SyncState
from fleetctl.accounting.tables import clusters, job_records, sync_state


class Phase(StrEnum):
    RECORDS = "records"
    MISSING = "missing"
    STEPS = "steps"


class Progress(Struct, frozen=True):
    """`done` of `total`: seconds of history for records, records for the other two. `rows`: of this reply."""

    phase: Phase
    done: int
    total: int
    rows: int


class Cluster(Struct, frozen=True):
    id: int
    name: str


def cluster_of(connection: Connection, name: str) -> Cluster:
    """With its id, which is given out here when the cluster is new."""
    found = connection.scalar(select(clusters.c.id).where(clusters.c.name == name))
    if found is None:
        found = (connection.scalar(select(func.max(clusters.c.id))) or 0) + 1
        bulk.insert(connection, clusters, ("id", "name"), [(found, name)])
    return Cluster(found, name)


def load_state(connection: Connection, cluster_id: int) -> SyncState:
    names = SyncState.__struct_fields__
    query = select(*(sync_state.c[name] for name in names)).where(sync_state.c.cluster_id == cluster_id)
    row = connection.execute(query).one_or_none()
    return SyncState() if row is None else SyncState(*row)


def holds_gpus(connection: Connection, cluster_id: int) -> bool:
    """Whether a record of this cluster says that it held any."""
    record = job_records.c
    found = select(record.id).where(record.cluster_id == cluster_id, record.gpus > 0).limit(1)
    return connection.scalar(found) is not None


def save_state(connection: Connection, cluster_id: int, state: SyncState) -> None:
    values = asdict(state)
    row = (cluster_id, *values.values())
    bulk.upsert(connection, sync_state, ("cluster_id", *values), [row], ("cluster_id",))
