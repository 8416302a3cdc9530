"""Many rows at once, in the quickest way of each database. The caller commits.

Rows are tuples in the order of `columns`, of int, str, bytes and None; whole numbers up to 2^63 - 1, text as
framing.text_of makes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, MetaData, Row, Table, any_, bindparam, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

Values = tuple[Any, ...]
_Insert = sqlite.Insert | postgresql.Insert


def insert(connection: Connection, table: Table, columns: Sequence[str], rows: Sequence[Values]) -> None:
    """New rows. A key that is there already is an error of the driver or of SQLAlchemy, and the transaction is over."""
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        _execute_many(connection, sqlite.insert(table), columns, rows)
    else:
        _copy(connection, table, columns, rows)


def upsert(
    connection: Connection, table: Table, columns: Sequence[str], rows: Sequence[Values], key: Sequence[str]
) -> None:
    """Insert, or where `key` (a unique constraint) is there set all other `columns`.

    Of rows with the same key the last one counts.
    """
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        _execute_many(connection, _on_conflict(sqlite.insert(table), columns, key), columns, rows)
        return
    with _scratch(connection, table, columns) as scratch:
        _copy(connection, scratch, columns, _last_of_each(columns, rows, key))
        fresh = postgresql.insert(table).from_select(list(columns), select(scratch))
        connection.execute(_on_conflict(fresh, columns, key))


def delete_where(connection: Connection, column: Column[Any], values: Sequence[int | str]) -> None:
    """All rows with one of these values."""
    if values:
        connection.execute(delete(column.table).where(_is_one_of(connection, column, values)))


def known(
    connection: Connection,
    table: Table,
    key: Column[Any],
    values: Sequence[int | str],
    columns: Sequence[Column[Any]],
    where: ColumnElement[bool] | None = None,
) -> list[Row[Any]]:
    """`columns` of the rows of `table` whose `key` is one of the values, and for which `where` holds; in no order."""
    if not values:
        return []
    found = select(*columns).select_from(table).where(_is_one_of(connection, key, values))
    return list(connection.execute(found if where is None else found.where(where)).all())


def _is_one_of(connection: Connection, column: Column[Any], values: Sequence[int | str]) -> ColumnElement[bool]:
    """One parameter for all: SQLite takes at most 32,766 of them, PostgreSQL 65,535."""
    if connection.dialect.name == "sqlite":
        listed = func.json_each(json.dumps(list(values))).table_valued("value")
        return column.in_(select(listed.c.value))
    return column == any_(bindparam(None, list(values), postgresql.ARRAY(column.type), unique=True))


def _on_conflict(statement: Any, columns: Sequence[str], key: Sequence[str]) -> Any:
    others = {name: statement.excluded[name] for name in columns if name not in key}
    if not others:
        return statement.on_conflict_do_nothing(index_elements=list(key))
    return statement.on_conflict_do_update(index_elements=list(key), set_=others)


def _execute_many(connection: Connection, statement: _Insert, columns: Sequence[str], rows: Sequence[Values]) -> None:
    """The driver's own executemany of tuples: SQLAlchemy's takes dicts, and half as long again."""
    compiled = statement.inline().compile(dialect=connection.dialect, column_keys=list(columns))
    places = [columns.index(name) for name in compiled.positiontup or ()]  # it follows the table's order
    ordered = places == list(range(len(columns)))
    connection.exec_driver_sql(str(compiled), list(rows) if ordered else [itemgetter(*places)(row) for row in rows])


@contextmanager
def _scratch(connection: Connection, table: Table, columns: Sequence[str]) -> Iterator[Table]:
    """A table of this transaction alone, with these columns and no constraint."""
    scratch = Table(
        f"fresh_{table.name}",
        MetaData(),
        *(Column(name, table.c[name].type) for name in columns),
        prefixes=["TEMPORARY"],
        postgresql_on_commit="DROP",
    )
    scratch.create(connection, checkfirst=False)
    yield scratch
    scratch.drop(connection, checkfirst=False)  # after an error the transaction is over, and takes it along


def _copy(connection: Connection, table: Table, columns: Sequence[str], rows: Sequence[Values]) -> None:
    """PostgreSQL's COPY, several times as quick as INSERT."""
    quoted = connection.dialect.identifier_preparer
    names = ", ".join(quoted.quote(name) for name in columns)
    if not connection.in_transaction():
        connection.begin()  # SQLAlchemy does not see what the driver does, and would commit nothing
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(f"COPY {quoted.format_table(table)} ({names}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


def _last_of_each(columns: Sequence[str], rows: Sequence[Values], key: Sequence[str]) -> Sequence[Values]:
    """PostgreSQL refuses to change a row twice in one statement; SQLite takes one row after the other."""
    of_key = itemgetter(*(columns.index(name) for name in key))
    last = {of_key(row): row for row in rows}
    return rows if len(last) == len(rows) else list(last.values())
