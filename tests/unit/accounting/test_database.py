"""Opening SQLite: which file, what is refused, and what goes wrong in one line."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError, ProgrammingError

from fleetctl.accounting.database import HEAD, database_url, explained, name_of, one_sync, open_database, revision
from fleetctl.errors import DatabaseBusy, DatabaseError, SchemaMismatch, UsageError


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def local(fstype: str = "ext4") -> str:
    return f"22 1 8:1 / / rw - {fstype} /dev/sda1 rw\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with the newest schema."""
    path = tmp_path / "state" / "accounting.db"
    open_database(url_of(path), create=True).dispose()
    return path


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    engine = open_database(url_of(path))
    yield engine
    engine.dispose()


@pytest.mark.parametrize(
    ("given", "environ", "url"),
    [
        (None, {}, "sqlite:////home/me/.local/state/fleetctl/accounting.db"),
        (None, {"XDG_STATE_HOME": "/state"}, "sqlite:////state/fleetctl/accounting.db"),
        (None, {"FLEETCTL_DATABASE": "/db/x y.db"}, "sqlite:////db/x y.db"),
        ("/given.db", {"FLEETCTL_DATABASE": "/other.db"}, "sqlite:////given.db"),
        ("sqlite:////a/b.db", {}, "sqlite:////a/b.db"),
        ("postgres://me:p%40ss@h:5433/d", {}, "postgresql+psycopg://me:p%40ss@h:5433/d"),
        ("postgresql://h/d?sslmode=require", {}, "postgresql+psycopg://h/d?sslmode=require"),
        ("postgresql+psycopg:///d", {}, "postgresql+psycopg:///d"),
    ],
)
def test_the_database_is_what_was_given_or_the_environment_says(
    given: str | None, environ: dict[str, str], url: str
) -> None:
    assert database_url({"HOME": "/home/me", **environ}, given) == url


def test_a_bare_path_begins_where_the_user_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert database_url({}, "some/accounts.db") == url_of(tmp_path / "some/accounts.db")


@pytest.mark.parametrize(
    "given",
    [
        "mysql://h/d",
        "postgresql+psycopg2://h/d",
        "sqlite+pysqlite:////a",
        "sqlite://host/a",
        "sqlite:////a?mode=ro",
        "a:b",
        "postgresql://[::1/d",
    ],
)
def test_another_kind_of_database_is_a_mistake_of_the_user(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        database_url({}, given)
    assert "postgresql://" in str(caught.value.remedy)


def test_no_message_says_a_password() -> None:
    with pytest.raises(UsageError) as caught:
        database_url({}, "mysql://me:secret@h/d?password=secret")
    assert "secret" not in caught.value.message
    assert name_of("postgresql://me:secret@h/d?password=secret") == "postgresql://me@h/d"


def test_a_missing_file_is_not_made_by_whoever_reads(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="there is no accounting database at") as caught:
        open_database(url_of(tmp_path / "none.db"), read_only=True)
    assert "fleetctl account sync" in str(caught.value.remedy)
    assert not [*tmp_path.iterdir()]


def test_a_new_database_is_for_its_owner_alone_and_has_the_newest_schema(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    engine = open_database(url_of(path))
    assert revision(engine) == HEAD
    engine.dispose()


def test_a_database_in_memory_can_be_made() -> None:
    engine = open_database("sqlite://", create=True)
    with one_sync(engine), engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM job_records")).scalar() == 0
    engine.dispose()


@pytest.mark.parametrize("content", [b"no database at all, but a text of more than sixteen bytes" * 20, b"SQLite"])
def test_a_file_that_is_no_database_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(DatabaseError, match=r"notes\.txt is no SQLite database"):
        open_database(url_of(path), create=True)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("written", "remedy"), [("0000", None), ("9999", "newer fleetctl"), ("ae1027a6acf", "newer fleetctl")]
)
def test_a_schema_of_another_fleetctl_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, written: str, remedy: str | None
) -> None:
    monkeypatch.setattr("fleetctl.accounting.database.REVISIONS", ("0000", HEAD))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (written,))
    with pytest.raises(SchemaMismatch, match=written) as caught:
        open_database(url_of(path), create=True)
    assert (remedy or "fleetctl db upgrade") in str(caught.value.remedy)


def test_an_empty_file_is_a_database_without_schema(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    with pytest.raises(SchemaMismatch, match="no schema yet"):
        open_database(url_of(path))
    open_database(url_of(path), create=True).dispose()


def test_the_tables_of_another_program_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE theirs (x)")
    with pytest.raises(DatabaseError, match=r"holds other tables \(theirs\)"):
        open_database(url_of(path), create=True)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]


@pytest.mark.parametrize("fstype", ["nfs", "nfs4", "cifs", "lustre", "gpfs", "ceph", "fuse.sshfs", "9p", "new"])
def test_a_network_file_system_is_refused_with_a_remedy(path: Path, fstype: str) -> None:
    with pytest.raises(DatabaseError, match="not on a disk of this host alone") as caught:
        open_database(url_of(path), mounts=lambda: local(fstype))
    assert "--on-network-disk" in str(caught.value.remedy)


def test_a_file_system_that_is_not_known_is_refused(path: Path) -> None:
    def fail() -> str:
        raise PermissionError

    for mounts in (fail, lambda: "", lambda: "nonsense\n"):
        with pytest.raises(DatabaseError, match="not on a disk of this host alone"):
            open_database(url_of(path), mounts=mounts)


def test_a_mount_with_any_bytes_in_its_name_changes_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "mountinfo"
    listed.write_bytes(local().encode() + b"23 22 0:40 / /home/me/m\xff rw - fuse x rw\n")
    monkeypatch.setattr("fleetctl.accounting.database._MOUNTS", listed)
    open_database(url_of(path)).dispose()
    listed.unlink()
    with pytest.raises(DatabaseError, match="not on a disk of this host alone"):
        open_database(url_of(path))


def test_a_link_to_a_network_file_system_is_seen_through(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "home" / "x.db")
    mounts = f"{local()}23 1 0:1 / {tmp_path.resolve() / 'home'} rw - nfs4 server:/home rw\n"
    with pytest.raises(DatabaseError, match="not on a disk of this host alone"):
        open_database(url_of(tmp_path / "link.db"), create=True, mounts=lambda: mounts)
    assert not (tmp_path / "home" / "x.db").exists()


@pytest.mark.parametrize(("fstype", "journal"), [("ext4", "wal"), ("xfs", "wal"), ("tmpfs", "wal"), ("nfs4", "delete")])
def test_the_journal_suits_the_file_system(tmp_path: Path, fstype: str, journal: str) -> None:
    url = url_of(tmp_path / "x.db")
    engine = open_database(url, create=True, force_network=True, mounts=lambda: local(fstype))
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == journal
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    engine.dispose()


def test_a_database_that_another_process_writes_to_is_busy(engine: Engine, path: Path) -> None:
    second = open_database(url_of(path), wait_s=0)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO clusters (id, name) VALUES (1, 'c')"))
        with (
            pytest.raises(DatabaseBusy, match=r"accounting\.db is locked by another process"),
            explained(second),
            second.begin(),
        ):
            pass
    second.dispose()


def test_a_reader_sees_one_state_beside_a_writer_and_cannot_write(engine: Engine, path: Path) -> None:
    count = text("SELECT count(*) FROM clusters")
    reader = open_database(url_of(path), read_only=True, wait_s=0)
    with reader.connect() as reading, engine.begin() as writing:
        assert reading.execute(count).scalar() == 0
        writing.execute(text("INSERT INTO clusters (id, name) VALUES (1, 'c')"))
        writing.commit()
        assert reading.execute(count).scalar() == 0
        reading.commit()
        assert reading.execute(count).scalar() == 1
        with pytest.raises(DatabaseError, match="is read-only"), explained(reader):
            reading.execute(text("DELETE FROM clusters"))
    reader.dispose()


def test_a_schema_change_that_is_rolled_back_leaves_nothing(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE half (x)"))
        connection.rollback()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM sqlite_master WHERE name = 'half'")).scalar() == 0


def test_mistakes_in_our_own_sql_are_not_explained_away(engine: Engine) -> None:
    with engine.begin() as connection:
        with pytest.raises(Exception, match="no such table"), explained(engine):
            connection.execute(text("SELECT * FROM nowhere"))
        with pytest.raises(ProgrammingError), explained(engine):
            connection.exec_driver_sql("SELECT ?", ())


def test_a_row_that_contradicts_another_is_told_in_one_line(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO clusters (id, name) VALUES (1, 'c')"))
        with pytest.raises(DatabaseError, match=r"refuses rows .*: UNIQUE .*clusters\.name$"), explained(engine):
            connection.execute(text("INSERT INTO clusters (id, name) VALUES (2, 'c')"))


def test_a_row_of_no_cluster_is_refused(engine: Engine) -> None:
    with pytest.raises(IntegrityError), engine.begin() as connection:
        connection.execute(text("INSERT INTO nodes (id, cluster_id, name) VALUES (1, 7, 'n1')"))


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DatabaseError, match=r"cannot be written: (Not a directory|File exists)"):
        open_database(url_of(tmp_path / "file" / "x.db"), create=True)
