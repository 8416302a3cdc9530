"""Many rows at once, the same on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Column, Connection, Table, select
from sqlalchemy.exc import IntegrityError

from fleetctl.accounting import bulk
from fleetctl.accounting.database import database_url, open_database
from fleetctl.accounting.framing import text_of
from fleetctl.accounting.tables import actions, clusters, nodes, quarantine, record_nodes, steps

ACTION = ("run_id", "sequence", "at_ms", "task", "kind", "by", "why")
EVERY_BYTE = bytes(range(256)).decode("utf-8", "surrogateescape")
NUMBERS = (0, 1, -1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63))
TEXTS = (
    "",
    "NULL",
    "\\N",
    "\\.",
    "a\tb\nc\rd\\n",
    "'; DROP TABLE runs; --",
    '"quoted" %s %(x)s :x ?',
    "\N{SNOWMAN}\N{ZERO WIDTH JOINER}\N{CAT FACE}\U0010ffff\ud7ff",
    *(text_of(chr(code)) for code in range(256)),
    text_of(EVERY_BYTE),
)


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    engine = open_database(database_url({}, database))
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def action(number: int, run: str = "r", **other: object) -> tuple[Any, ...]:
    values = {"at_ms": number, "task": 0, "kind": "k", "by": "me", "why": "w", **other}
    return (run, number, *values.values())


def stored(connection: Connection, table: Table = actions) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))]


def test_rows_are_inserted_in_any_order_of_columns(connection: Connection) -> None:
    bulk.insert(connection, nodes.metadata.tables["clusters"], ("name", "id"), [("b", 2), ("a", 1)])
    assert stored(connection, clusters) == [(1, "a"), (2, "b")]
    bulk.upsert(connection, clusters, ("name", "id"), [("z", 2), ("c", 3)], ("id",))
    assert stored(connection, clusters) == [(1, "a"), (2, "z"), (3, "c")]


def test_an_upsert_sets_all_other_columns(connection: Connection) -> None:
    bulk.insert(connection, actions, ACTION, [action(1), action(2), action(1, run="s")])
    new = action(2, at_ms=9, task=9, kind="new", by="you", why="why")
    bulk.upsert(connection, actions, ACTION, [new, action(3)], ("run_id", "sequence"))
    assert stored(connection) == [action(1), new, action(3), action(1, run="s")]


def test_a_row_that_was_committed_is_changed_in_the_next_transaction(connection: Connection) -> None:
    for by in ("one", "two", "three"):
        bulk.upsert(connection, actions, ACTION, [action(1, by=by)], ("run_id", "sequence"))
        connection.commit()
    assert stored(connection) == [action(1, by="three")]


def test_of_rows_with_the_same_key_the_last_counts(connection: Connection) -> None:
    rows = [action(1, by="one"), action(2), action(1, by="two")]
    bulk.upsert(connection, actions, ACTION, rows, ("run_id", "sequence"))
    bulk.upsert(connection, actions, ACTION, [*rows, action(1, by="three")], ("run_id", "sequence"))
    assert stored(connection) == [action(1, by="three"), action(2)]


def test_a_table_that_is_all_key(connection: Connection) -> None:
    columns = ("record_id", "node_id")
    bulk.upsert(connection, record_nodes, columns, [(1, 1), (1, 2)], columns)
    bulk.upsert(connection, record_nodes, columns, [(1, 2), (2, 1), (2, 1)], columns)
    assert stored(connection, record_nodes) == [(1, 1), (1, 2), (2, 1)]


def test_a_key_that_is_no_primary_key(connection: Connection) -> None:
    """Columns that are not named stay as they are: here the id."""
    bulk.insert(connection, clusters, ("id", "name"), [(1, "c")])
    columns = ("id", "cluster_id", "name")
    bulk.insert(connection, nodes, columns, [(1, 1, "n1")])
    bulk.upsert(connection, nodes, columns, [(7, 1, "n1"), (8, 1, "n2")], ("cluster_id", "name"))
    assert stored(connection, nodes) == [(7, 1, "n1"), (8, 1, "n2")]


def test_no_rows_are_nothing_to_do(connection: Connection) -> None:
    bulk.insert(connection, actions, ACTION, [])
    bulk.upsert(connection, actions, ACTION, [], ("run_id", "sequence"))
    bulk.delete_where(connection, actions.c.run_id, [])
    assert bulk.known(connection, actions, actions.c.run_id, [], [actions.c.run_id]) == []
    assert not connection.in_transaction()


def test_a_key_that_is_there_is_no_insert(connection: Connection) -> None:
    bulk.insert(connection, actions, ACTION, [action(1)])
    connection.commit()
    with pytest.raises(Exception, match=r"(?i)unique"):
        bulk.insert(connection, actions, ACTION, [action(2), action(1)])
    connection.rollback()
    assert stored(connection) == [action(1)]


def test_what_was_committed_stays_and_the_rest_goes(connection: Connection) -> None:
    """Also where nothing but COPY was done, of which SQLAlchemy knows nothing."""
    bulk.insert(connection, actions, ACTION, [action(1)])
    connection.commit()
    bulk.insert(connection, actions, ACTION, [action(2)])
    connection.rollback()
    assert stored(connection) == [action(1)]


def test_numbers_of_64_bits_and_missing_ones_come_back(connection: Connection) -> None:
    columns = ("record_id", "step", "name", "state", "exit_status", "node_list", "started_s")
    rows = [(number, str(place), "", "", None, "", number) for place, number in enumerate(NUMBERS)]
    bulk.insert(connection, steps, columns, rows)
    for _ in range(2):
        found = connection.execute(select(*(steps.c[name] for name in columns)).order_by(steps.c.step))
        assert [tuple(row) for row in found] == rows
        bulk.upsert(connection, steps, columns, rows, ("record_id", "step"))
    wanted = (steps.c.record_id, steps.c.started_s)
    known = bulk.known(connection, steps, steps.c.record_id, NUMBERS, wanted)
    assert sorted(tuple(row) for row in known) == sorted((number, number) for number in NUMBERS)


def test_texts_of_every_byte_come_back(connection: Connection) -> None:
    rows = [action(number, why=text, run=f"{number}{text}") for number, text in enumerate(TEXTS)]
    for _ in range(2):
        bulk.upsert(connection, actions, ACTION, rows, ("run_id", "sequence"))
        assert sorted(stored(connection)) == sorted(rows)
    keys = [row[0] for row in rows]
    known = bulk.known(connection, actions, actions.c.run_id, keys, [actions.c.run_id])
    assert sorted(row[0] for row in known) == sorted(keys)
    bulk.delete_where(connection, actions.c.run_id, keys[1:])
    assert stored(connection) == rows[:1]


def test_bytes_come_back(connection: Connection) -> None:
    columns = ("cluster", "source", "at_s", "why", "digest", "raw")
    rows = [("c", "sacct", 1, "w", str(number), bytes([number, 0, 255])) for number in range(256)]
    bulk.insert(connection, quarantine, columns, rows[:9])
    bulk.upsert(connection, quarantine, columns, rows, ("cluster", "source", "digest"))
    found = connection.execute(select(*(quarantine.c[name] for name in columns)))
    assert sorted(tuple(row) for row in found) == sorted(rows)


def test_more_values_than_a_database_takes_parameters(connection: Connection) -> None:
    many = [action(number) for number in range(70_000)]
    bulk.insert(connection, actions, ACTION, many)
    wanted = [*range(-70_000, 70_000)]
    asked: tuple[Column[Any], ...] = (actions.c.sequence, actions.c.at_ms)
    where = actions.c.sequence >= 10
    known = bulk.known(connection, actions, actions.c.sequence, wanted, asked, where)
    assert sorted(tuple(row) for row in known) == [(number, number) for number in range(10, 70_000)]
    bulk.delete_where(connection, actions.c.sequence, wanted[:-3])
    assert [row[1] for row in stored(connection)] == [69_997, 69_998, 69_999]


def test_a_row_that_the_table_refuses_takes_all_along(connection: Connection) -> None:
    key = ("run_id", "sequence")
    with pytest.raises(Exception, match=r"(?i)not.null"):
        bulk.upsert(connection, actions, ACTION, [action(1), action(2, kind=None)], key)
    connection.rollback()
    assert stored(connection) == []
    bulk.upsert(connection, actions, ACTION, [action(1)], key)  # the connection is as good as before
    assert stored(connection) == [action(1)]


def test_keys_that_point_to_nothing_are_refused(connection: Connection) -> None:
    def write() -> None:
        bulk.insert(connection, nodes, ("id", "cluster_id", "name"), [(1, 5, "n")])
        connection.commit()

    with pytest.raises(Exception, match=r"(?i)foreign key") as caught:
        write()
    assert isinstance(caught.value, IntegrityError) or type(caught.value).__name__ == "ForeignKeyViolation"
