"""What the daemon wrote into its database, read back: for the daemon itself, and for `daemon status` and `explain`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, Engine, Row, Select, Table, select

from fleetctl.accounting.database import explained
from fleetctl.accounting.tables import daemon_actions as actions
from fleetctl.accounting.tables import daemon_interruptions as interruptions
from fleetctl.accounting.tables import daemon_lease as leases
from fleetctl.accounting.tables import daemon_state as state
from fleetctl.recovery.lease import Place
from fleetctl.recovery.model import Action, Done, Incident, Interruption, Memory, Outcome, Verdict
from fleetctl.recovery.wire import read

REMEMBERED = timedelta(days=7)
LATE = timedelta(minutes=5)  # of the last pass: more than twice the longest pause between two
_MOST = 2000  # entries of each kind: the newest; a fleet that has more in a week is paused by its own rules


class Kind(StrEnum):
    """Of the rows of daemon_state."""

    NOTE = "note"
    INCIDENT = "incident"
    PAUSE = "pause"
    VERDICT = "verdict"
    PASS = "pass"


class Entry(Struct, frozen=True):
    """An entry of the journal that has a number. `token` is that of the lease under which it was begun."""

    number: int
    token: int
    done: Done


class Cost(Struct, frozen=True):
    """D, R and W of an interruption in seconds: until it was found, from there until the training went on, and the work
    that was done twice. None: not known."""

    detection_s: float | None
    restart_s: float | None
    lost_s: float | None


class Recovered(Struct, frozen=True):
    """An interruption, and once the run made progress again, when that was and what it cost."""

    interruption: Interruption
    at: datetime | None = None
    cost: Cost | None = None


def memory(engine: Engine, place: Place, now: datetime) -> Memory:
    """Of the last seven days."""
    with explained(engine), engine.begin() as connection:
        return memory_of(connection, place, now)


def memory_of(connection: Connection, place: Place, now: datetime) -> Memory:
    """As `memory`, in a transaction."""
    since = ms(now - REMEMBERED)
    asked = _entries(place).where(actions.c.at_ms >= since).order_by(actions.c.id.desc()).limit(_MOST)
    ended = select(interruptions.c.interruption).where(*here(interruptions, place), interruptions.c.at_ms >= since)
    newest = ended.order_by(interruptions.c.at_ms.desc()).limit(_MOST)
    notes = rows_of(connection, place, Kind.NOTE)
    pauses = rows_of(connection, place.acting, Kind.PAUSE)
    incidents = [read(row.value, Incident) for row in rows_of(connection, place, Kind.INCIDENT)]
    return Memory(
        done=tuple(_entry(row).done for row in reversed(connection.execute(asked).all())),
        interruptions=tuple(read(row[0], Interruption) for row in reversed(connection.execute(newest).all())),
        incidents=tuple(one for one in incidents if one.until is None or one.until > now - REMEMBERED),
        paused_by=next((row.value for row in pauses if not row.name), ""),
        paused_runs={row.name: row.value for row in pauses if row.name},
        notes={row.name: row.value for row in notes},
    )


def done_of(engine: Engine, place: Place, key: str, most: int = 50) -> tuple[Done, ...]:
    """What was done about one run ("": about nodes and the fleet), newest last."""
    asked = _entries(place).where(actions.c.run_key == key).order_by(actions.c.id.desc()).limit(most)
    with explained(engine), engine.begin() as connection:
        return tuple(_entry(row).done for row in reversed(connection.execute(asked).all()))


def unfinished(connection: Connection, place: Place) -> tuple[Entry, ...]:
    """What was begun and has no outcome yet, oldest first."""
    asked = _entries(place).where(actions.c.outcome == Outcome.OPEN).order_by(actions.c.id)
    return tuple(_entry(row) for row in connection.execute(asked))


def standing(connection: Connection, place: Place, identity: str, *outcomes: Outcome) -> Entry | None:
    """The newest entry of one identity (a digest) with one of these outcomes."""
    wanted = (actions.c.identity == identity, actions.c.outcome.in_(outcomes))
    row = connection.execute(_entries(place).where(*wanted).order_by(actions.c.id.desc()).limit(1)).one_or_none()
    return None if row is None else _entry(row)


def interruptions_of(engine: Engine, place: Place, key: str) -> tuple[Recovered, ...]:
    """Of one run, oldest first."""
    costs = (interruptions.c[name] for name in ("recovered_ms", "detection_ms", "restart_ms", "lost_ms"))
    asked = select(interruptions.c.interruption, *costs).where(*here(interruptions, place))
    ordered = asked.where(interruptions.c.run_key == key).order_by(interruptions.c.at_ms)
    with explained(engine), engine.begin() as connection:
        return tuple(_recovered(row) for row in connection.execute(ordered))


def verdict_of(engine: Engine, place: Place, key: str) -> tuple[datetime, Verdict] | None:
    """What was decided last about a run, or about the fleet (""), and since when it has been decided so."""
    row = _row(engine, place, Kind.VERDICT, key)
    return None if row is None else (row[0], read(row[1], Verdict))


def last_pass(engine: Engine, place: Place) -> tuple[datetime, Mapping[str, Any]] | None:
    """When the last pass ended, and what it told about itself."""
    row = _row(engine, place, Kind.PASS, "")
    return None if row is None else (row[0], json.loads(row[1]))


def heard(engine: Engine, place: Place, now: datetime) -> Place:
    """Whose words count: the acting daemon's, unless it is silent and one that only observes has spoken since."""
    acts, looks = last_pass(engine, place.acting), last_pass(engine, place.observing)
    if looks is None or (acts is not None and (now - acts[0] <= LATE or acts[0] >= looks[0])):
        return place.acting
    return place.observing


def places(engine: Engine) -> tuple[Place, ...]:
    """Every daemon that this database knows."""
    asked = select(leases.c.cluster, leases.c.scope).order_by(leases.c.cluster, leases.c.scope)
    with explained(engine), engine.begin() as connection:
        return tuple(Place(*row) for row in connection.execute(asked))


def rows_of(connection: Connection, place: Place, kind: Kind, name: str | None = None) -> list[Row[Any]]:
    """The rows of one kind, all or that of one name, with `name`, `at_ms` and `value`."""
    columns = (state.c.name, state.c.at_ms, state.c.value)
    asked = select(*columns).where(*here(state, place), state.c.kind == kind)
    named = asked if name is None else asked.where(state.c.name == name)
    return [*connection.execute(named.order_by(state.c.name))]


def here(table: Table, place: Place) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """The rows of one daemon."""
    return (table.c.cluster == place.cluster, table.c.scope == place.scope)


def plain(text: str) -> str:
    """One line of what a database takes."""
    return "".join(char if char.isprintable() else " " for char in text)


def ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def time_of(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _entries(place: Place) -> Select[Any]:
    columns = (actions.c[name] for name in ("id", "token", "at_ms", "ended_ms", "outcome", "detail", "action"))
    return select(*columns).where(*here(actions, place))


def _entry(row: Row[Any]) -> Entry:
    ended = None if row.ended_ms is None else time_of(row.ended_ms)
    done = Done(read(row.action, Action), time_of(row.at_ms), Outcome(row.outcome), row.detail, ended)
    return Entry(row.id, row.token, done)


def _recovered(row: Row[Any]) -> Recovered:
    found = read(row.interruption, Interruption)
    if row.recovered_ms is None:
        return Recovered(found)
    costs = (None if cost is None else cost / 1000 for cost in (row.detection_ms, row.restart_ms, row.lost_ms))
    return Recovered(found, time_of(row.recovered_ms), Cost(*costs))


def _row(engine: Engine, place: Place, kind: Kind, name: str) -> tuple[datetime, str] | None:
    columns = (state.c.at_ms, state.c.value)
    asked = select(*columns).where(*here(state, place), state.c.kind == kind, state.c.name == name)
    with explained(engine), engine.begin() as connection:
        row = connection.execute(asked).one_or_none()
    return None if row is None else (time_of(row.at_ms), row.value)
