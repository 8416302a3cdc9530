"""What nodes went through, as Slurm tells it, into the database: each stretch once, its end when it is known."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from fleetctl.accounting import bulk
from fleetctl.accounting.framing import text_of
from fleetctl.accounting.plan import POLICY, SyncState
from fleetctl.accounting.sync_state import load_state
from fleetctl.accounting.tables import node_events, sync_state
from fleetctl.slurm.books import Books

_COLUMNS = ("cluster_id", "node", "started_s", "state", "ended_s", "reason", "user")
_KEY = ("cluster_id", "node", "started_s", "state")


def ingest_events(connection: Connection, cluster_id: int, books: Books, now_s: int) -> int:
    """How many stretches are new or have changed; `connection` has no transaction open, and none waits for Slurm.

    :param now_s: when this sync began, whose records have been read.
    :raises SlurmMissing, SlurmUnreachable, SlurmRefused, CannotTell: as `Books.node_events`; nothing is written then.
    """
    row = node_events.c
    ours = row.cluster_id == cluster_id
    with connection.begin():
        state = load_state(connection, cluster_id)
    told = {}
    for one in books.node_events(_since(state, now_s)):
        key = (cluster_id, text_of(one.node), one.started_s, text_of(one.state))
        told[key] = (*key, one.ended_s, text_of(one.reason), text_of(one.user))
    asked = tuple(row[name] for name in _COLUMNS)
    oldest = min((key[2] for key in told), default=now_s)
    with connection.begin():
        there = {tuple(found) for found in connection.execute(select(*asked).where(ours, row.started_s >= oldest))}
        fresh = sorted((one for one in told.values() if one not in there), key=lambda one: one[:4])
        bulk.upsert(connection, node_events, _COLUMNS, fresh, _KEY)
        if state.waiting == 0:  # else some may still be on their way to slurmdbd, behind the records
            connection.execute(update(sync_state).where(sync_state.c.cluster_id == cluster_id).values(events_s=now_s))
    return len(fresh)


def _since(state: SyncState, now_s: int) -> int:
    """As far back as the records of this sync; what goes on since before is told, too."""
    if state.events_s is None:
        return now_s - POLICY.first_reach_s
    since_s = min(state.events_s, now_s) - POLICY.overlap_s
    if state.weekly_s == now_s:
        return min(since_s, now_s - POLICY.weekly_reach_s)
    return min(since_s, now_s - POLICY.nightly_reach_s) if state.nightly_s == now_s else since_s
