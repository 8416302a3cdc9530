"""Making, changing and comparing the schema, on both databases."""

from __future__ import annotations

import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Engine, create_engine, inspect, text

from fleetctl.accounting import database as databases
from fleetctl.accounting import schema
from fleetctl.accounting.database import HEAD, REVISIONS, connect, database_url, open_database, revision
from fleetctl.assets import asset_dir
from fleetctl.errors import DatabaseBusy, DatabaseError, SchemaMismatch
from tests.databases import hold
from tests.unit.clocks import StillClock

NEXT = '''"""One column more."""

import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "HEAD"


def upgrade():
    op.add_column("runs", sa.Column("colour", sa.Text))
    op.create_table("flags", sa.Column("x", sa.Integer))
    op.execute("UPDATE runs SET colour = 'blue'")


def downgrade():
    op.drop_table("flags")
    op.drop_column("runs", "colour")
'''.replace("HEAD", HEAD)
NEXT_HEAD = "9999"


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    engine = open_database(database_url({}, database))
    yield engine
    engine.dispose()


@pytest.fixture
def next_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """`next_release(text of its next revision)`: from now on this is a later fleetctl."""

    def become(revision_text: str) -> None:
        folder = tmp_path / "db"
        shutil.copytree(asset_dir("db"), folder)
        (folder / "versions" / f"{NEXT_HEAD}_next.py").write_text(revision_text)
        monkeypatch.setattr(schema, "asset_dir", lambda _: folder)
        for module in (schema, databases):
            monkeypatch.setattr(module, "HEAD", NEXT_HEAD)
            monkeypatch.setattr(module, "REVISIONS", (*REVISIONS, NEXT_HEAD))

    return become


def upgrade(url: str, notes: list[str] | None = None) -> schema.Upgraded:
    heard = notes if notes is not None else list[str]()
    return schema.upgrade(database_url({}, url), clock=StillClock(), note=heard.append)


def tables(engine: Engine) -> set[str]:
    return {*inspect(engine).get_table_names()}


def rows(url: str, query: str) -> list[tuple[object, ...]]:
    engine = connect(url)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(query))]
    engine.dispose()
    return found


def a_run(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(
                'INSERT INTO runs (run_id, cluster, name, "user", kind, nodes, tasks, spec_digest, created_ms, held,'
                " digest) VALUES ('r-1', 'c', 'r', 'me', 'plain', 1, 1, '', 0, 0, 0)"
            )
        )


def test_the_revisions_in_the_code_are_those_of_alembic() -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        scripts = ScriptDirectory.from_config(schema.alembic_config(connection))
    engine.dispose()
    assert tuple(one.revision for one in scripts.walk_revisions())[::-1] == REVISIONS
    assert scripts.get_heads() == [HEAD]
    assert [*REVISIONS] == sorted(REVISIONS)
    for one in scripts.walk_revisions():
        assert Path(one.path).name.startswith(f"{one.revision}_")


def test_a_fresh_database_has_no_drift(engine: Engine) -> None:
    assert schema.check(engine) == ()


@pytest.mark.parametrize("position", range(len(REVISIONS)), ids=REVISIONS)
def test_every_revision_goes_up_down_and_up(engine: Engine, position: int) -> None:
    below = REVISIONS[position - 1] if position else "base"
    newest = tables(engine)
    for target in (below, REVISIONS[position], below, HEAD):
        with engine.begin() as connection:
            config = schema.alembic_config(connection)
            (command.downgrade if target == below else command.upgrade)(config, target)
        assert revision(engine) == (None if target == "base" else target)
        if target == "base":
            assert tables(engine) == {"alembic_version"}
    assert tables(engine) == newest
    assert schema.check(engine) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("ALTER TABLE runs ADD COLUMN colour TEXT", "column runs: colour is not one of ours"),
        ("ALTER TABLE runs DROP COLUMN spec_digest", "column runs: spec_digest is missing"),
        ("DROP INDEX ix_run_jobs_job", "index run_jobs: ix_run_jobs_job is missing"),
        ("CREATE INDEX slow ON runs (name)", "index runs: slow is not one of ours"),
        ("DROP TABLE gpu_use", "table gpu_use is missing"),
        ("CREATE TABLE theirs (x INTEGER)", "table theirs is not one of ours"),
        (
            "DROP TABLE actions; CREATE TABLE actions (run_id TEXT NOT NULL, sequence BIGINT NOT NULL, at_ms BIGINT NOT"
            ' NULL, task BIGINT NOT NULL, kind TEXT NOT NULL, "by" TEXT NOT NULL, why TEXT NOT NULL,'
            " PRIMARY KEY (sequence, run_id))",
            "the primary key of actions is (sequence, run_id)",
        ),
        (
            "DROP TABLE actions; CREATE TABLE actions (run_id TEXT NOT NULL, sequence BIGINT NOT NULL, at_ms TEXT NOT"
            ' NULL, task BIGINT, kind TEXT NOT NULL, "by" TEXT NOT NULL, why TEXT NOT NULL,'
            " PRIMARY KEY (run_id, sequence))",
            "actions.at_ms has another type than it should have",
        ),
        ("UPDATE alembic_version SET version_num = '0000'", f"the schema's revision is 0000, not {HEAD}"),
        ("DROP TABLE alembic_version", f"the schema's revision is missing, not {HEAD}"),
    ],
)
def test_check_names_what_is_not_as_it_should_be(engine: Engine, change: str, words: str) -> None:
    with engine.begin() as connection:
        for statement in change.split("; "):
            connection.exec_driver_sql(statement)
    assert words in schema.check(engine)


def test_check_finds_rows_of_nobody_and_a_damaged_file(fresh_database: Callable[[str], str]) -> None:
    path = Path(fresh_database("sqlite").removeprefix("sqlite:///"))
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute("INSERT INTO nodes VALUES (1, 7, 'n1')")
    engine = open_database(f"sqlite:///{path}", read_only=True)
    assert schema.check(engine) == ("a row of nodes belongs to no row of clusters",)
    engine.dispose()
    data = bytearray(path.read_bytes())
    data[4096 * 3 :] = bytes(len(data) - 4096 * 3)
    path.write_bytes(data)
    engine = connect(f"sqlite:///{path}", read_only=True)
    with pytest.raises(DatabaseError, match="is damaged"):
        schema.check(engine)
    engine.dispose()


def test_an_upgrade_keeps_what_is_there(database: str, engine: Engine, next_release: Callable[[str], None]) -> None:
    a_run(engine)
    next_release(NEXT)
    with pytest.raises(SchemaMismatch, match=f"is {HEAD}, older than {NEXT_HEAD}") as caught:
        open_database(database_url({}, database))
    assert caught.value.remedy == "run `fleetctl db upgrade`"
    assert upgrade(database).before == HEAD
    assert rows(database_url({}, database), "SELECT run_id, colour FROM runs") == [("r-1", "blue")]
    assert upgrade(database).backup is None  # the second one has nothing to do


def test_a_failing_upgrade_changes_nothing(database: str, engine: Engine, next_release: Callable[[str], None]) -> None:
    a_run(engine)
    next_release(NEXT.replace("SET colour = 'blue'", "SET name = NULL"))
    before = tables(engine)
    with pytest.raises(Exception, match=r"(?i)not.null"):
        upgrade(database)
    assert tables(engine) == before
    assert revision(engine) == HEAD


def test_sqlite_is_copied_before_an_upgrade(
    fresh_database: Callable[[str], str], next_release: Callable[[str], None]
) -> None:
    url = fresh_database("sqlite")
    path = Path(url.removeprefix("sqlite:///"))
    engine = open_database(url)
    a_run(engine)  # in the WAL alone, which a copy of the file would miss
    next_release(NEXT)
    notes: list[str] = []
    done = upgrade(url, notes)
    engine.dispose()
    backup = Path(f"{path}.{HEAD}-20260101T000000Z.backup")
    assert done.backup == str(backup)
    assert str(backup) in notes[0]
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert not [*path.parent.glob(f"{path.name}.*part*")]
    assert rows(f"sqlite:///{backup}", "SELECT run_id FROM runs") == [("r-1",)]
    assert rows(f"sqlite:///{backup}", "SELECT version_num FROM alembic_version") == [(HEAD,)]


def test_a_copy_without_room_stops_the_upgrade(
    fresh_database: Callable[[str], str], next_release: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fresh_database("sqlite")
    next_release(NEXT)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fleetctl.accounting.schema.os.fsync", fail)
    with pytest.raises(DatabaseError, match="cannot be written: No space left on device"):
        upgrade(url)
    engine = connect(url)
    assert revision(engine) == HEAD
    engine.dispose()
    path = Path(url.removeprefix("sqlite:///"))
    assert not [*path.parent.glob(f"{path.name}.*backup*")]


def test_alembic_by_itself_lets_go_of_the_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    monkeypatch.setenv("FLEETCTL_DATABASE", str(path))
    with pytest.raises(CommandError, match="0815"):
        command.upgrade(Config(asset_dir("db") / "alembic.ini"), "0815")
    assert [*tmp_path.iterdir()] == [path]  # while it is open -wal and -shm lie beside it


def test_a_newer_schema_is_not_upgraded(database: str, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0815'"))
    with pytest.raises(SchemaMismatch, match="0815, which this fleetctl does not know"):
        upgrade(database)


def test_no_upgrade_beside_a_sync(database: str, engine: Engine, next_release: Callable[[str], None]) -> None:
    next_release(NEXT)
    with hold(database) as holder:
        with pytest.raises(DatabaseBusy, match="another sync or upgrade"):
            upgrade(database)
        assert revision(engine) == HEAD
        holder.communicate()
    upgrade(database)
    assert revision(engine) == NEXT_HEAD
