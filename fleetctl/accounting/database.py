"""The accounting database: where it is, opening it, one sync at a time, and what went wrong in one line.

SQLite lies in one file on a local disk. There a connection of an engine that writes takes the write lock as its
transaction begins (BEGIN IMMEDIATE): two such connections of one process would wait for each other in vain. An engine
for reading sees one state of the data in each transaction, on both databases, and cannot write.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError

from fleetctl.accounting import mishaps, postgres
from fleetctl.checkpoint.mounts import fstype_at, parse_mounts
from fleetctl.errors import DatabaseError, SchemaMismatch, UsageError

REVISIONS = ("0001", "0002")  # of db/versions, oldest first
HEAD = REVISIONS[-1]
_WAIT_S = 30.0  # for whoever holds SQLite's write lock: a window of a sync takes some seconds
_CACHE_KIB = 65_536  # SQLite's own 2 MB make a large upsert half as slow again (measured, 10^5 rows)
_NETWORK = "put it on a local disk, use PostgreSQL, or say --on-network-disk when only one host ever uses it"
_FORMS = "say PATH, sqlite:////PATH or postgresql://USER@HOST/DATABASE"
_MOUNTS = Path("/proc/self/mountinfo")
# SQLite needs locks and shared memory that count for all its users: file systems of one host
_LOCAL = frozenset(
    (
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs"),
        *("tmpfs", "ramfs", "overlay"),
    )
)


def database_url(environ: Mapping[str, str], given: str | None) -> str:
    """`given`, else FLEETCTL_DATABASE, else a file below XDG_STATE_HOME. A bare path is SQLite.

    UsageError for what fleetctl cannot use.
    """
    said = given or environ.get("FLEETCTL_DATABASE", "")
    if not said:
        state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".local/state")
        said = f"{state}/fleetctl/accounting.db"
    if ":" not in said.split("/", 1)[0]:
        return str(URL.create("sqlite", database=str(Path(said).expanduser().absolute())))
    return _parsed(said).render_as_string(hide_password=False)


def open_database(
    url: str,
    *,
    force_network: bool = False,
    create: bool = False,
    read_only: bool = False,
    wait_s: float = _WAIT_S,
    mounts: Callable[[], str] | None = None,
) -> Engine:
    """The database at `url`, its schema the one that this fleetctl knows. `create`: make what is missing.

    Raises SchemaMismatch for an older or newer schema; DatabaseError for a file that is missing, no database or on a
    network file system (unless `force_network`), and for a server that does not answer. Dispose of the engine.
    """
    engine = connect(url, force_network=force_network, create=create, read_only=read_only, wait_s=wait_s, mounts=mounts)
    try:
        found = revision(engine)
        if found is None and create:
            from fleetctl.accounting.schema import make  # alembic: a third of a second

            make(engine)
            found = HEAD
        _require_head(engine, found)
    except BaseException:
        engine.dispose()
        raise
    return engine


def connect(
    url: str,
    *,
    force_network: bool = False,
    create: bool = False,
    read_only: bool = False,
    wait_s: float = _WAIT_S,
    mounts: Callable[[], str] | None = None,
) -> Engine:
    """As open_database, whatever the schema is."""
    parsed = _parsed(url)
    if parsed.get_backend_name() != "sqlite":
        return postgres.engine_of(parsed, name_of(url), read_only=read_only)
    if not parsed.database:
        return _sqlite(parsed, lambda: sqlite3.connect(":memory:", check_same_thread=False), "memory")
    path = Path(parsed.database).absolute()
    local = _is_local(path, mounts)
    if not local and not force_network:
        raise DatabaseError(f"{path} is not on a disk of this host alone, which SQLite needs", remedy=_NETWORK)
    if create:
        _make_file(path)
    else:
        _require_file(path)
    uri = f"file:{quote(str(path))}?mode={'ro' if read_only else 'rw'}"

    def open_file() -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, timeout=wait_s, check_same_thread=False)

    return _sqlite(parsed, open_file, "" if read_only else "wal" if local else "delete")


def revision(engine: Engine) -> str | None:
    """The schema's revision; None where there is none yet. DatabaseError where that cannot be read."""
    with explained(engine), engine.connect() as connection:
        return revision_of(connection)


def revision_of(connection: Connection) -> str | None:
    """As `revision`, on a connection."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def name_of(database: Engine | str) -> str:
    """What people call this database, without a password."""
    url = database.url if isinstance(database, Engine) else make_url(database)
    if url.get_backend_name() == "sqlite":
        return url.database or "memory"
    return URL.create("postgresql", url.username, None, url.host, url.port, url.database).render_as_string()


@contextmanager
def one_sync(engine: Engine) -> Iterator[None]:
    """One sync or upgrade at a time, of all processes (SQLite: of this host). DatabaseBusy at once when taken.

    Whoever dies lets go of it. Where PostgreSQL took it away meanwhile, no transaction of `engine` commits any more:
    DatabaseError.
    """
    if engine.dialect.name == "sqlite":
        path = engine.url.database
        with _file_lock(Path(os.path.realpath(path))) if path else nullcontext():
            yield
        return
    with explained(engine), postgres.lock(engine, name_of(engine)):
        yield


@contextmanager
def explained(database: Engine | str) -> Iterator[None]:
    """What the database's driver raises, as a DatabaseError of one line. Mistakes in our own SQL pass."""
    try:
        yield
    except Exception as error:
        told = mishaps.told(error, name_of(database))
        if told is None:
            raise
        raise told from error


def _parsed(said: str) -> URL:
    """With psycopg 3 as the driver of PostgreSQL."""
    try:
        url = make_url(said)
    except (ArgumentError, ValueError):
        raise UsageError("the database is neither a path nor a URL", remedy=_FORMS) from None
    if url.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername == "sqlite" and not url.host and not url.query:
        return url
    raise UsageError(f"fleetctl keeps no accounts in a {url.drivername} database of this form", remedy=_FORMS)


def _sqlite(url: URL, open_file: Callable[[], sqlite3.Connection], journal: str) -> Engine:
    """`journal` "": for reading alone."""
    engine = create_engine(url, creator=open_file)

    @event.listens_for(engine, "connect")
    def _set_up(driver: Any, _record: object) -> None:
        driver.isolation_level = None  # the driver's own BEGIN comes too late: not before SELECT, CREATE TABLE
        for pragma in ("foreign_keys=ON", "synchronous=NORMAL", f"cache_size=-{_CACHE_KIB}"):
            driver.execute(f"PRAGMA {pragma}").close()
        if journal:
            driver.execute(f"PRAGMA journal_mode={journal}").close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if journal else "BEGIN")

    return engine


def _is_local(path: Path, mounts: Callable[[], str] | None) -> bool:
    try:
        listed = parse_mounts(mounts() if mounts else _MOUNTS.read_text(errors="surrogateescape"))
    except OSError:
        return False
    return fstype_at(listed, os.path.realpath(path)) in _LOCAL


def _make_file(path: Path) -> None:
    """An empty one, for its owner alone: accounts name everybody's jobs."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise _cannot_make(path, error) from None


def _require_file(path: Path) -> None:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise DatabaseError(
            f"there is no accounting database at {path}",
            remedy="`fleetctl account sync` or `fleetctl daemon run` makes and fills it",
        ) from None
    except OSError as error:
        raise DatabaseError(f"{path} cannot be opened: {error.strerror}", remedy=mishaps.SHARED) from None


def _require_head(engine: Engine, found: str | None) -> None:
    name = name_of(engine)
    if found is None:
        raise SchemaMismatch(f"{name} has no schema yet", remedy="`fleetctl db upgrade` makes it")
    if found in REVISIONS[:-1]:
        raise SchemaMismatch(f"the schema of {name} is {found}, older than {HEAD}", remedy="run `fleetctl db upgrade`")
    if found != HEAD:
        raise SchemaMismatch(
            f"the schema of {name} is {found}, which this fleetctl does not know", remedy="use a newer fleetctl"
        )


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    try:
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _cannot_make(path, error) from None
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise mishaps.busy(str(path)) from None
        yield
    finally:
        os.close(descriptor)


def _cannot_make(path: Path, error: OSError) -> DatabaseError:
    return DatabaseError(f"{path} cannot be written: {error.strerror}", remedy="FLEETCTL_DATABASE names another place")
