"""What happens to a database while it is used: one line each, and nothing half written."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from fleetctl.accounting import bulk
from fleetctl.accounting.database import database_url, explained, one_sync, open_database
from fleetctl.accounting.tables import clusters
from fleetctl.errors import DatabaseBusy, DatabaseError
from tests.databases import Postgres, hold, private_postgres
from tests.integration.conftest import short_dir
from tests.support import small_disk, wait_until

MANY = [(number, f"cluster {number} {'x' * 200}") for number in range(20_000)]  # some megabytes
COLUMNS = ("id", "name")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "2m") as place:
        yield place


@pytest.fixture
def server() -> Iterator[Postgres]:
    with private_postgres() as server:
        yield server


def names(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(text("SELECT count(*) FROM clusters")).scalar() or 0


def one_line(error: DatabaseError) -> str:
    assert "\n" not in error.message
    assert len(error.message) < 300
    assert error.remedy
    return error.message


@pytest.mark.parametrize("create", [True, False])
def test_a_full_disk_under_sqlite_leaves_what_was_committed(disk: Path, create: bool) -> None:
    path = disk / "accounting.db"
    url = f"sqlite:///{path}"
    open_database(url, create=True).dispose()
    if create:
        path.unlink()
        (disk / "ballast").write_bytes(bytes(1_950_000))
        with pytest.raises(DatabaseError, match="is on a full disk") as caught:
            open_database(url, create=True)
    else:
        engine = open_database(url)
        with pytest.raises(DatabaseError, match="is on a full disk") as caught, explained(engine):
            in_two_transactions(engine)
        assert names(engine) == 1
        engine.dispose()
    assert str(path) in one_line(caught.value)


def in_two_transactions(engine: Engine) -> None:
    with engine.begin() as connection:
        bulk.insert(connection, clusters, COLUMNS, MANY[:1])
    with engine.begin() as connection:
        bulk.insert(connection, clusters, COLUMNS, MANY[1:])


def test_a_full_disk_under_postgres_leaves_what_was_committed(server: Postgres, tmp_path: Path) -> None:
    """The tables lie on a small disk of their own: one that is full of WAL stops the whole server."""
    with small_disk(server.folder / "disk", "16m") as place:
        shutil.chown(place, server.owner)
        server.sql(f"CREATE TABLESPACE small LOCATION '{place}'")
        server.sql("CREATE DATABASE accounts TABLESPACE small")
        engine = open_database(database_url({}, server.url("accounts")), create=True)
        with pytest.raises(DatabaseError, match="accounts is on a full disk") as caught, explained(engine):
            in_two_transactions(engine)
        one_line(caught.value)
        assert names(engine) == 1
        engine.dispose()
        server.stop()


def test_a_read_only_disk_is_said(disk: Path) -> None:
    url = f"sqlite:///{disk / 'accounting.db'}"
    open_database(url, create=True).dispose()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(DatabaseError, match=r"is read-only|cannot be written") as caught:
        open_database(url, create=True)
    one_line(caught.value)
    with pytest.raises(DatabaseError, match=r"is read-only|cannot be opened") as caught:
        open_database(url, read_only=True)
    one_line(caught.value)


@pytest.mark.parametrize("signal", ["INT", "QUIT"])
def test_postgres_that_restarts_in_the_middle_leaves_what_was_committed(server: Postgres, signal: str) -> None:
    engine = open_database(database_url({}, server.url()), create=True)
    with pytest.raises(DatabaseError, match=r"postgresql://postgres@/postgres (went away|cannot)") as caught:
        restart_between(engine, server, signal)
    one_line(caught.value)
    server.start()
    assert names(engine) == 1  # on a new connection of the same engine
    engine.dispose()


def restart_between(engine: Engine, server: Postgres, signal: str) -> None:
    with explained(engine), one_sync(engine):
        with engine.begin() as connection:
            bulk.insert(connection, clusters, COLUMNS, MANY[:1])
        with engine.begin() as connection:
            bulk.insert(connection, clusters, COLUMNS, MANY[1:10_000])
            server.stop(signal)
            bulk.upsert(connection, clusters, COLUMNS, MANY[10_000:], ("id",))


def test_postgres_that_does_not_run_is_said(server: Postgres) -> None:
    server.stop()
    with pytest.raises(DatabaseError, match="cannot be reached") as caught:
        open_database(database_url({}, server.url()))
    one_line(caught.value)


@pytest.mark.parametrize(
    ("name", "setting", "words"),
    [
        ("none", "", "cannot be reached: .*does not exist"),
        ("postgres", "", r"permission denied"),
        ("model", "default_transaction_read_only=on", "is read-only"),
    ],
)
def test_rights_and_names_that_the_server_refuses(
    postgres: Postgres, fresh_database: Callable[[str], str], name: str, setting: str, words: str
) -> None:
    database = fresh_database("postgres").split("@/")[1].split("?")[0]
    if name == "postgres":
        postgres.sql("DO $$BEGIN IF to_regrole('guest') IS NULL THEN CREATE ROLE guest LOGIN; END IF; END$$")
        url = postgres.url(database).replace("postgres@", "guest@")
    else:
        url = postgres.url("none" if name == "none" else database)
    if setting:
        url += f"&options=-c%20{setting}"
    with pytest.raises(DatabaseError, match=words) as caught:
        write_into(url)
    one_line(caught.value)


def write_into(url: str) -> None:
    engine = open_database(database_url({}, url))
    try:
        with explained(engine), engine.begin() as connection:
            bulk.insert(connection, clusters, COLUMNS, MANY[:1])
    finally:
        engine.dispose()


def test_a_reader_of_postgres_sees_one_state_and_cannot_write(fresh_database: Callable[[str], str]) -> None:
    url = database_url({}, fresh_database("postgres"))
    writer, reader = open_database(url), open_database(url, read_only=True)
    count = text("SELECT count(*) FROM clusters")
    with reader.connect() as reading:
        assert reading.execute(count).scalar() == 0
        with writer.begin() as writing:
            bulk.insert(writing, clusters, COLUMNS, MANY[:3])
        assert reading.execute(count).scalar() == 0
        reading.commit()
        assert reading.execute(count).scalar() == 3
        with pytest.raises(DatabaseError, match="is read-only"), explained(reader):
            reading.execute(text("DELETE FROM clusters"))
    writer.dispose()
    reader.dispose()


@pytest.mark.parametrize("end", ["killed", "done"])
def test_one_sync_at_a_time(database: str, end: str) -> None:
    engine = open_database(database_url({}, database))
    with hold(database) as holder:
        with pytest.raises(DatabaseBusy, match=r"another sync or upgrade of .* is under way"), one_sync(engine):
            pass
        holder.kill() if end == "killed" else holder.communicate()
        holder.wait()
        take_soon(engine)
    engine.dispose()


def take_soon(engine: Engine) -> None:
    """PostgreSQL lets go of a dead client's lock once it has seen its end."""

    def taken() -> bool:
        try:
            with one_sync(engine):
                return True
        except DatabaseBusy:
            return False

    wait_until(taken, "the lock is free", 10)


def test_a_sync_that_fails_frees_the_lock(database: str) -> None:
    engine = open_database(database_url({}, database))
    with pytest.raises(KeyError), one_sync(engine):
        raise KeyError
    hold(database).communicate()
    engine.dispose()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that others may enter, unlike pytest's."""
    folder = short_dir()
    yield folder
    shutil.rmtree(folder)


def test_another_user_is_told_what_is_missing(open_folder: Path) -> None:
    folder = open_folder / "own"
    path = folder / "x.db"
    url = f"sqlite:///{path}"
    open_database(url, create=True).dispose()
    assert as_nobody(url) == f"{path} cannot be opened: Permission denied"
    folder.chmod(0o755)
    assert as_nobody(url) == f"{path} cannot be opened"
    path.chmod(0o644)
    assert as_nobody(url) == f"{path} is read-only"


def as_nobody(url: str) -> str:
    """What a forked child that gave up root is told when it opens this database for reading."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        try:
            open_database(url, read_only=True)
        except DatabaseError as error:
            os.write(writing, error.message.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said
