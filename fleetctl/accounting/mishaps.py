"""What a database's driver raises, in one line with a remedy."""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import DBAPIError

from fleetctl.errors import DatabaseBusy, DatabaseError

AGAIN = "what was committed is kept; run the same command again"
SHARED = "SQLite's readers write beside the file, too: where several people read, use PostgreSQL"
_REACH = f"see whether the server runs and the URL is right; {AGAIN}"
_GRANT = "ask the database's owner for the rights"
_CHECK = "see `fleetctl db check`; where that finds nothing, this is a mistake in fleetctl"
_WHOLE = "restore a backup; `fleetctl db check` tells whether it is whole again"

# https://www.sqlite.org/rescode.html, the primary codes
_SQLITE = {
    "BUSY": ("is locked by another process", "run the command again when that is done"),
    "LOCKED": ("is locked by another process", "run the command again when that is done"),
    "READONLY": ("is read-only", SHARED),
    "PERM": ("cannot be written", SHARED),
    "CANTOPEN": ("cannot be opened", SHARED),
    "FULL": ("is on a full disk", f"make room; {AGAIN}"),
    "IOERR": ("is on a disk that fails", f"see the kernel's log, make room; {AGAIN}"),
    "NOTADB": ("is no SQLite database", "name the right file"),
    "CORRUPT": ("is damaged", _WHOLE),
    "CONSTRAINT": ("refuses rows that contradict others", _CHECK),
    "NOMEM": ("does not fit into the memory", "free some"),
    "TOOBIG": ("was given too much at once", "this is a mistake in fleetctl"),
}
# https://www.postgresql.org/docs/15/errcodes-appendix.html, by code, else by class
_POSTGRES = {
    "08": ("went away", AGAIN),
    "23": ("refuses rows that contradict others", _CHECK),
    "28": ("refuses this user", "see pg_hba.conf, PGPASSFILE and the user in the URL"),
    "3D": ("does not exist", "the server's administrator makes it with `createdb`"),
    "42501": ("refuses that", _GRANT),
    "42P01": ("lacks a table", "see `fleetctl db check`"),
    "25006": ("is read-only", "use the primary server, and a user who may write"),
    "40": ("undid a transaction that met another one", AGAIN),
    "53100": ("is on a full disk", f"make room on the server; {AGAIN}"),
    "53": ("lacks resources", f"see the server's log; {AGAIN}"),
    "54": ("was given too much at once", "this is a mistake in fleetctl"),
    "55P03": ("is locked", "run the command again later"),
    "57014": ("cancelled a statement", f"see statement_timeout; {AGAIN}"),
    "57": ("went away", AGAIN),
    "58": ("failed", f"see the server's log; {AGAIN}"),
    "XX": ("failed", f"see the server's log; {AGAIN}"),
}


def told(error: Exception, name: str) -> DatabaseError | None:
    """The error for people; None where the driver did not raise it, or where our own SQL is wrong."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    driver = type(cause).__module__.partition(".")[0]
    if driver == "sqlite3":
        code = str(getattr(cause, "sqlite_errorname", "")).removeprefix("SQLITE_").partition("_")[0]
        if code not in _SQLITE:
            return None
        words, remedy = _SQLITE[code]
        kind = DatabaseBusy if code in ("BUSY", "LOCKED") else DatabaseError
        said = f": {cause}" if code == "CONSTRAINT" else ""
        return kind(f"{name} {words}{said}", remedy=remedy)
    if driver == "psycopg":
        return _of_server(cause, name)
    return None


def busy(name: str) -> DatabaseBusy:
    """Somebody else has one_sync."""
    return DatabaseBusy(f"another sync or upgrade of {name} is under way", remedy="wait until it is done")


def _of_server(cause: Any, name: str) -> DatabaseError | None:
    if cause.sqlstate is None:  # of the client: no server, no longer one, or it did not let us in
        said = " ".join(str(cause).split())
        lost = any(kind.__name__ == "OperationalError" for kind in type(cause).__mro__)
        return DatabaseError(f"{name} cannot be reached: {said}", remedy=_REACH) if lost else None
    found = next((_POSTGRES[code] for code in (cause.sqlstate, cause.sqlstate[:2]) if code in _POSTGRES), None)
    return DatabaseError(f"{name} {found[0]}: {cause.diag.message_primary}", remedy=found[1]) if found else None
