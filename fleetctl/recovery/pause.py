"""What a person says to pause the daemon: in its database, for everything or for one run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec
from sqlalchemy import Connection, Engine, delete

from fleetctl.accounting import bulk
from fleetctl.accounting.database import explained
from fleetctl.accounting.tables import daemon_state as state
from fleetctl.recovery import recall
from fleetctl.recovery.lease import Place
from fleetctl.recovery.model import Incident
from fleetctl.recovery.recall import Kind
from fleetctl.recovery.wire import read, written

COLUMNS = ("cluster", "scope", "kind", "name", "at_ms", "value")
KEY = ("cluster", "scope", "kind", "name")


def pause(engine: Engine, place: Place, key: str, by: str, why: str, at: datetime) -> None:
    """From now on nothing is done to one run, or to any ("")."""
    said = recall.plain(f"{by}: {why}" if why else by)
    with explained(engine), engine.begin() as connection:
        row = (place.cluster, place.scope, Kind.PAUSE, key, recall.ms(at), said)
        bulk.upsert(connection, state, COLUMNS, [row], KEY)


def resume(engine: Engine, place: Place, key: str, at: datetime) -> bool:
    """End a pause; that of everything ("") also the incidents for which the daemon paused itself. False: there was
    none."""
    of_key = (*recall.here(state, place), state.c.kind == Kind.PAUSE, state.c.name == key)
    with explained(engine), engine.begin() as connection:
        ended = bool(connection.execute(delete(state).where(*of_key)).rowcount)
        found = not key and [_end_incidents(connection, one, at) for one in (place.acting, place.observing)]
        return bool(found and any(found)) or ended


def paused(engine: Engine, place: Place) -> Mapping[str, str]:
    """Key of a run, or "" for all, to who said so and why."""
    with explained(engine), engine.begin() as connection:
        return {row.name: row.value for row in recall.rows_of(connection, place, Kind.PAUSE)}


def _end_incidents(connection: Connection, place: Place, at: datetime) -> bool:
    rows = []
    for row in recall.rows_of(connection, place, Kind.INCIDENT):
        found = read(row.value, Incident)
        if found.until is None or found.until > at:
            ended = written(msgspec.structs.replace(found, until=at))
            rows.append((place.cluster, place.scope, Kind.INCIDENT, row.name, row.at_ms, ended))
    bulk.upsert(connection, state, COLUMNS, rows, KEY)
    return bool(rows)
