"""What PostgreSQL alone needs: a connection that notices when the server is gone, text of any script, and a lock that
may be taken away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from fleetctl.accounting import mishaps
from fleetctl.errors import DatabaseError

# https://www.postgresql.org/docs/15/libpq-connect.html#LIBPQ-PARAMKEYWORDS, in seconds, the last one in
# milliseconds: for a server that does not answer, one that vanishes later, a firewall that forgets idle connections
_CONNECTION = {
    "application_name": "fleetctl",
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
_LOCK_KEY = 0x666C656574  # of pg_advisory_lock: "fleet"
_TAKE = text("SELECT pg_try_advisory_lock(:key), pg_backend_pid()")
_LET_GO = text("SELECT pg_advisory_unlock(:key)")
# https://www.postgresql.org/docs/15/view-pg-locks.html: a key of 64 bits is shown in two halves
_STANDS = text(
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    " AND pid = :holder AND ((classid::bigint << 32) | objid::bigint) = :key"
)


def engine_of(url: URL, name: str, *, read_only: bool) -> Engine:
    """What `url` says of the connection counts, but for the encoding. DatabaseError at the first connection to a
    database that cannot hold every text.

    :param name: what people call it.
    """
    unsaid = {key: value for key, value in _CONNECTION.items() if key not in url.query}
    engine = create_engine(url, connect_args={**unsaid, "client_encoding": "utf8"})
    event.listen(engine, "connect", lambda driver, _: _require_utf8(driver, url, name))
    if not read_only:
        return engine
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


@contextmanager
def lock(engine: Engine, name: str) -> Iterator[None]:
    """Held by one session of all; DatabaseBusy at once when taken.

    That session is idle for as long as a sync takes. The server may cut it off, or be replaced by another one: then no
    transaction of `engine` commits any more, and ends with DatabaseError.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        taken, holder = connection.execute(_TAKE, {"key": _LOCK_KEY}).one()
        if not taken:
            raise mishaps.busy(name)
        try:
            with _proving(engine, name, holder):
                yield
        finally:
            with suppress(DBAPIError):  # the server went away, and the lock with it
                connection.execute(_LET_GO, {"key": _LOCK_KEY})


@contextmanager
def _proving(engine: Engine, name: str, holder: int) -> Iterator[None]:
    """Before each commit, the server that is to commit says whether the process `holder` has the lock there."""

    def prove(connection: Connection) -> None:
        if not connection.execute(_STANDS, {"holder": holder, "key": _LOCK_KEY}).scalar():
            raise DatabaseError(f"{name} no longer holds the lock of this sync", remedy=mishaps.AGAIN)

    event.listen(engine, "commit", prove)
    try:
        yield
    finally:
        event.remove(engine, "commit", prove)


def _require_utf8(driver: Any, url: URL, name: str) -> None:
    """Names of jobs are of any script; in another encoding the first such name would stop every sync."""
    found = driver.info.parameter_status("server_encoding")
    if found != "UTF8":
        raise DatabaseError(
            f"{name} keeps text as {found}, not UTF8",
            remedy=f"make another: `createdb --encoding=UTF8 --template=template0 {url.database}`",
        )
