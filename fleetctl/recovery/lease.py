"""Who leads: of all daemons with one scope on one cluster, the one that may act.

The lease is a row with a token that rises whenever another daemon takes it. Its end is told by the clock of the
database (PostgreSQL: `clock_timestamp()`), or on SQLite, whose file belongs to one host, by that host's monotonic
clock, which no correction of the time moves. The leader itself counts from before it asked, so it gives up first. Slurm
checks no token: so what a leader does ends before its lease can, and it looks at the row again before each deed.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, Engine, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from fleetctl.accounting.database import explained
from fleetctl.accounting.tables import daemon_lease as table
from fleetctl.clock import Clock
from fleetctl.errors import LeaseLost

TTL_S = 60.0  # a daemon that died is followed after so long; passes are 30 s apart at most
MARGIN_S = 10.0  # for a child to be killed, and for what it had asked of Slurm to be done
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # proc_sys_kernel.5
# A leader that was stopped in a transaction must not keep the others out for ever: PostgreSQL ends it
_LOCK_MS, _IDLE_MS = 5_000, 20_000
_PATIENCE = (
    text(f"SET LOCAL lock_timeout = {_LOCK_MS}"),
    text(f"SET LOCAL idle_in_transaction_session_timeout = {_IDLE_MS}"),
)
_SERVER_MS = text("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")


OBSERVING = " observing"  # ends the scope of daemons that only observe: they keep no acting one from leading


class Place(Struct, frozen=True):
    """Whose daemon: `scope` is "user NAME" for a user's own runs, or "operator"; with OBSERVING for one that only
    observes, which has a lease and a journal of its own."""

    cluster: str
    scope: str

    @property
    def acting(self) -> Place:
        """Of the daemon that acts: what people say to it is said to both."""
        return Place(self.cluster, self.scope.removesuffix(OBSERVING))

    @property
    def observing(self) -> Place:
        """Of the one that only observes."""
        return Place(self.cluster, self.acting.scope + OBSERVING)


class _Row(Struct, frozen=True):
    holder: str
    token: int
    epoch: str
    expires_ms: int


class Leader:
    """One daemon's claim to lead. `holder` is a name that no other process has, not even the next one on this host:
    what a dead daemon began may still be under way."""

    def __init__(
        self,
        engine: Engine,
        place: Place,
        holder: str,
        clock: Clock,
        *,
        boot_id: str,
        ttl_s: float = TTL_S,
        margin_s: float = MARGIN_S,
    ) -> None:
        self.place, self.holder, self.ttl_s, self.margin_s = place, holder, ttl_s, margin_s
        self.token = 0
        self.other = ""  # who leads in our place, as of the last look
        self._engine, self._clock = engine, clock
        self._epoch = boot_id if engine.dialect.name == "sqlite" else ""
        self._until_s = clock.monotonic_s()

    @property
    def leads(self) -> bool:
        """Whether there is time for a deed."""
        return self.left_s() > self.margin_s

    @property
    def until_s(self) -> float:
        """When the lease may be another's, by the monotonic clock."""
        return self._until_s

    def left_s(self) -> float:
        """Seconds until then."""
        return max(0.0, self._until_s - self._clock.monotonic_s())

    def lead(self) -> bool:
        """Take the lease, or renew it: at the beginning of a pass.

        :raises DatabaseError: it is not known who leads; what is left of ours counts.
        """
        began_s = self._clock.monotonic_s()
        with explained(self._engine), self._engine.begin() as connection:
            _be_patient(connection)
            row, now_ms = self._locked(connection), self._now_ms(connection)
            if row.holder not in ("", self.holder) and self._stands(row, now_ms):
                self._until_s, self.other = began_s, row.holder
                return False
            ours = row.holder == self.holder and self._stands(row, now_ms)
            token = row.token if ours else row.token + 1
            self._write(connection, token, now_ms, self.ttl_s)
        self.token, self.other, self._until_s = token, "", began_s + self.ttl_s
        return self.leads

    def renew_for(self, wanted_s: float) -> None:
        """So many seconds from now on, of the lease under which this pass began: what was decided under one that lapsed
        meanwhile is not done under another.

        :raises LeaseLost: it has lapsed, or is another's.
        """
        began_s = self._clock.monotonic_s()
        with explained(self._engine), self._engine.begin() as connection:
            self.require(connection)
            self._write(connection, self.token, self._now_ms(connection), wanted_s)
        self._until_s = began_s + wanted_s

    def require(self, connection: Connection) -> None:
        """Nobody can take the lease before this transaction ends.

        :raises LeaseLost: we do not have it.
        """
        _be_patient(connection)
        row = self._locked(connection)
        held = row.holder == self.holder and row.token == self.token and self._stands(row, self._now_ms(connection))
        if not held or not self.left_s():
            self._until_s = self._clock.monotonic_s()
            self.other = row.holder if row.holder != self.holder else ""
            raise LeaseLost(
                f"the lease of {self.place.scope} on {self.place.cluster} is lost"
                + (f" to {self.other}" if self.other else "")
            )

    def release(self) -> None:
        """The next one need not wait. Only once nothing that we began is under way."""
        self._until_s = self._clock.monotonic_s()
        with explained(self._engine), self._engine.begin() as connection:
            ours = (table.c.holder == self.holder, table.c.token == self.token)
            connection.execute(update(table).where(*self._here(), *ours).values(holder="", expires_ms=0))

    def _write(self, connection: Connection, token: int, now_ms: int, wanted_s: float) -> None:
        expires_ms = now_ms + round(wanted_s * 1000)
        values = {"holder": self.holder, "token": token, "epoch": self._epoch, "expires_ms": expires_ms}
        connection.execute(update(table).where(*self._here()).values(values))

    def _here(self) -> tuple[ColumnElement[bool], ...]:
        return (table.c.cluster == self.place.cluster, table.c.scope == self.place.scope)

    def _stands(self, row: _Row, now_ms: int) -> bool:
        """A lease by the clock of an earlier boot of this host ended with that boot."""
        return row.epoch == self._epoch and now_ms < row.expires_ms

    def _locked(self, connection: Connection) -> _Row:
        """The row, which is made where it is missing; nobody else changes it before our transaction ends."""
        columns = (table.c.holder, table.c.token, table.c.epoch, table.c.expires_ms)
        asked = select(*columns).where(*self._here()).with_for_update()
        found = connection.execute(asked).one_or_none()
        if found is None:
            first = {"cluster": self.place.cluster, "scope": self.place.scope, "holder": "", "token": 0, "epoch": ""}
            made = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)
            connection.execute(made.values(**first, expires_ms=0).on_conflict_do_nothing())
            found = connection.execute(asked).one()
        return _Row(*found)

    def _now_ms(self, connection: Connection) -> int:
        """By the clock that all who want the lease share. Asked for once the row is ours: waiting for it takes time."""
        if connection.dialect.name == "sqlite":
            return int(self._clock.monotonic_s() * 1000)
        return int(connection.execute(_SERVER_MS).scalar_one())


def who_leads(engine: Engine, place: Place) -> str:
    """Who took the lease last and did not give it back; "": nobody. It may have lapsed."""
    asked = select(table.c.holder).where(table.c.cluster == place.cluster, table.c.scope == place.scope)
    with explained(engine), engine.begin() as connection:
        return connection.execute(asked).scalar() or ""


def boot_id() -> str:
    """Names this boot of this host."""
    return _BOOT_ID.read_text().strip()


def _be_patient(connection: Connection) -> None:
    if connection.dialect.name != "sqlite":
        for setting in _PATIENCE:
            connection.execute(setting)
