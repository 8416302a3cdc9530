"""Daemons on one database, with a clock of their own that only a test moves."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Engine, text

from fleetctl.accounting.database import database_url, open_database
from fleetctl.recovery.journal import Journal
from fleetctl.recovery.lease import Leader, Place
from fleetctl.recovery.model import Action, Deed
from tests.unit.clocks import START

PLACE = Place("c", "user me")


class HandClock:
    """Moved by hand. PostgreSQL's server has its own, which `lapse` overrules."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.at_s)

    def monotonic_s(self) -> float:
        return self.at_s

    def sleep(self, duration_s: float) -> None:
        self.at_s += duration_s


class Daemon:
    """A leader and its journal."""

    def __init__(self, url: str, name: str, clock: HandClock, place: Place = PLACE, boot_id: str = "boot") -> None:
        self.engine: Engine = open_database(database_url({}, url))
        self.clock = clock
        self.leader = Leader(self.engine, place, name, clock, boot_id=boot_id)
        self.journal = Journal(self.engine, self.leader, clock)

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with self.engine.begin() as connection:
            return [tuple(row) for row in connection.execute(text(query))]

    def close(self) -> None:
        self.engine.dispose()


def lapse(daemon: Daemon) -> None:
    """So much time passes, for the database alone, that whatever lease there is has ended."""
    with daemon.engine.begin() as connection:
        connection.execute(text("UPDATE daemon_lease SET expires_ms = 0"))


def an_action(deed: Deed = Deed.REQUEUE, key: str = "r-1", start: str = "c/7/0", **more: object) -> Action:
    return Action(deed, key, start, "node3 died", "orphan", **more)  # type: ignore[arg-type]
