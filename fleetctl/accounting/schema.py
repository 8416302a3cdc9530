"""Making and changing the schema, by Alembic with db/versions, and whether a database has the one it should have."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC
from pathlib import Path
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from msgspec import Struct
from sqlalchemy import Connection, Engine, inspect, text

from fleetctl.accounting.database import HEAD, REVISIONS, connect, explained, name_of, one_sync, revision, revision_of
from fleetctl.accounting.tables import metadata
from fleetctl.assets import asset_dir
from fleetctl.clock import Clock
from fleetctl.errors import DatabaseError, SchemaMismatch


class Upgraded(Struct, frozen=True):
    """What an upgrade did. `before` None: there was no schema."""

    database: str
    before: str | None
    after: str
    backup: str | None


def upgrade(url: str, *, clock: Clock, note: Callable[[str], None], force_network: bool = False) -> Upgraded:
    """Bring the schema to HEAD, or make it. SQLite is copied before, beside the file; the copy is kept.

    The schema changes in one transaction: an upgrade that is killed changed nothing. Raises DatabaseBusy beside a sync,
    SchemaMismatch where the schema is newer, DatabaseError where the copy finds no room.
    """
    engine = connect(url, force_network=force_network, create=True)
    try:
        with one_sync(engine):
            before = revision(engine)
            if before not in (None, *REVISIONS):
                raise SchemaMismatch(
                    f"the schema of {name_of(engine)} is {before}, which this fleetctl does not know",
                    remedy="use a newer fleetctl",
                )
            if before == HEAD:
                return Upgraded(name_of(engine), before, HEAD, None)
            backup = _copied(engine, before, clock) if before is not None else None
            if backup is not None:
                note(f"a copy of the database as it was: {backup}")
            _change(engine)
            return Upgraded(name_of(engine), before, HEAD, str(backup) if backup is not None else None)
    finally:
        engine.dispose()


def make(engine: Engine) -> None:
    """The newest schema, in a database that has none. DatabaseBusy while another process makes it."""
    with one_sync(engine):
        if revision(engine) is None:  # it may just have been made
            _change(engine)


def check(engine: Engine) -> tuple[str, ...]:
    """What is not as it should be: the revision, the schema, and of SQLite the file itself. Empty: all is well."""
    found = revision(engine)
    if found != HEAD:
        return (f"the schema's revision is {found or 'missing'}, not {HEAD}",)
    with explained(engine), engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        drift = [_in_words(one) for one in compare_metadata(context, metadata)]
        return (*drift, *_wrong_keys(connection), *_damage(connection))


def alembic_config(connection: Connection) -> Config:
    """Alembic's own commands on this connection, silent. The caller commits."""
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(asset_dir("db")).replace("%", "%%"))
    return config


def _change(engine: Engine) -> None:
    with explained(engine), engine.begin() as connection:
        others = {*inspect(connection).get_table_names()} - {"alembic_version"}
        if revision_of(connection) is None and others:
            raise DatabaseError(
                f"{name_of(engine)} holds other tables ({', '.join(sorted(others)[:3])}), and no accounts of fleetctl",
                remedy="name an empty database, or a file that does not exist",
            )
        command.upgrade(alembic_config(connection), HEAD)


def _copied(engine: Engine, before: str, clock: Clock) -> Path | None:
    """A whole copy of SQLite's file, named after its schema and the time; None where there is no file."""
    if engine.dialect.name != "sqlite" or not engine.url.database:
        return None
    now = clock.now().astimezone(UTC)
    place = Path(f"{engine.url.database}.{before}-{now:%Y%m%dT%H%M%SZ}.backup")
    partial = Path(f"{place}.part")
    try:
        with explained(engine):
            _copy_to(engine, partial)
        partial.rename(place)
        _keep(place.parent)
    except OSError as error:
        raise DatabaseError(f"{place} cannot be written: {error.strerror}", remedy="nothing was changed") from None
    finally:
        partial.unlink(missing_ok=True)
    return place


def _copy_to(engine: Engine, partial: Path) -> None:
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with engine.connect() as connection, closing(sqlite3.connect(partial)) as copy:
        driver: Any = connection.connection.driver_connection
        driver.backup(copy)
    _keep(partial)


def _keep(path: Path) -> None:
    """fsync of a file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _in_words(difference: Any) -> str:
    """One difference of Alembic's: https://alembic.sqlalchemy.org/en/latest/api/autogenerate.html#getting-diffs"""
    if isinstance(difference, list):  # of one column
        return ", ".join(_in_words(one) for one in difference)
    kind, *about = difference
    change, _, what = kind.partition("_")
    if change == "modify":
        return f"{about[1]}.{about[2]} has another {what} than it should have"
    subject = about[-1]
    table = getattr(subject, "table", None)
    name = subject.name if table is None else f"{table.name}: {subject.name}"
    return f"{what} {name} {'is missing' if change == 'add' else 'is not one of ours'}"


def _wrong_keys(connection: Connection) -> list[str]:
    """Primary keys, at which Alembic does not look."""
    look = inspect(connection)
    there = {*look.get_table_names()}
    keys = {
        table: look.get_pk_constraint(table.name)["constrained_columns"]
        for table in metadata.sorted_tables
        if table.name in there
    }
    return [
        f"the primary key of {table.name} is ({', '.join(key)})"
        for table, key in keys.items()
        if [*key] != [column.name for column in table.primary_key]
    ]


def _damage(connection: Connection) -> list[str]:
    """What SQLite finds in its own file (all of it is read); PostgreSQL's server looks after its own."""
    if connection.dialect.name != "sqlite":
        return []
    said = [str(row[0]) for row in connection.execute(text("PRAGMA integrity_check(10)"))]
    orphans = connection.execute(text("PRAGMA foreign_key_check")).all()
    found = [] if said == ["ok"] else said
    return [*found, *(f"a row of {row[0]} belongs to no row of {row[2]}" for row in orphans[:10])]
