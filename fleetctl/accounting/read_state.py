"""How old and how whole the data of each cluster is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from sqlalchemy import func, select

from fleetctl.accounting.tables import clusters, quarantine, sync_state

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection


class State(Struct, frozen=True):
    """What the sync knows about itself, of one cluster. None: it never ran to its end, or does not know."""

    cluster_id: int
    cluster: str
    from_s: int | None
    to_s: int | None
    synced_s: int | None
    waiting: int | None
    sees_all: bool | None
    quarantined: int


def read_state(connection: Connection) -> tuple[State, ...]:
    """By name of the cluster."""
    kept = select(quarantine.c.cluster, func.count().label("rows")).group_by(quarantine.c.cluster).subquery()
    state = sync_state.c
    query = (
        select(clusters.c.id, clusters.c.name, state.from_s, state.to_s, state.synced_s, state.waiting, state.sees_all)
        .add_columns(func.coalesce(kept.c.rows, 0))
        .select_from(clusters.outerjoin(sync_state, state.cluster_id == clusters.c.id))
        .outerjoin(kept, kept.c.cluster == clusters.c.name)
        .order_by(clusters.c.name)
    )
    return tuple(
        State(key, name, start, end, synced, waiting, None if sees is None else bool(sees), rows)
        for key, name, start, end, synced, waiting, sees, rows in connection.execute(query)
    )
