"""What fleetctl asks of a PostgreSQL server and of the connection to it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text

from fleetctl.accounting import bulk
from fleetctl.accounting.database import database_url, explained, one_sync, open_database
from fleetctl.accounting.tables import clusters
from fleetctl.errors import DatabaseError
from tests.databases import Postgres

COLUMNS = ("id", "name")
_END_HOLDERS = "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory'"


@pytest.fixture
def engine(fresh_database: Callable[[str], str]) -> Iterator[Engine]:
    engine = open_database(database_url({}, fresh_database("postgres")))
    yield engine
    engine.dispose()


def name_a_cluster(engine: Engine, number: int, name: str = "") -> None:
    with engine.begin() as connection:
        bulk.insert(connection, clusters, COLUMNS, [(number, name or f"c{number}")])


def names(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return [*connection.execute(text("SELECT name FROM clusters ORDER BY id")).scalars()]


def test_a_server_that_accepts_and_never_answers_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/accounts?connect_timeout=2"
        with pytest.raises(DatabaseError, match=r"accounts cannot be reached: .*timeout"):
            open_database(database_url({}, url))


def test_a_server_that_vanishes_is_noticed_by_its_connection(engine: Engine) -> None:
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        used = {option.keyword: option.val for option in driver.pgconn.info}
    expected = {
        b"connect_timeout": b"10",
        b"keepalives": b"1",
        b"keepalives_idle": b"30",
        b"keepalives_interval": b"10",
        b"keepalives_count": b"3",
        b"tcp_user_timeout": b"60000",
    }
    assert {key: used[key] for key in expected} == expected


def test_what_the_url_says_of_the_connection_counts_but_not_its_encoding(fresh_database: Callable[[str], str]) -> None:
    said = f"{fresh_database('postgres')}&connect_timeout=7&client_encoding=latin1"
    engine = open_database(database_url({}, said))
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        assert driver.info.get_parameters()["connect_timeout"] == "7"
    name_a_cluster(engine, 1, "\N{ROCKET}")
    assert names(engine) == ["\N{ROCKET}"]
    engine.dispose()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_hold_every_text_is_refused(postgres: Postgres, encoding: str) -> None:
    name = f"in_{encoding.lower()}"
    postgres.sql(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(DatabaseError, match=f"{name} keeps text as {encoding}, not UTF8") as caught:
        open_database(database_url({}, postgres.url(name)), create=True)
    assert f"`createdb --encoding=UTF8 --template=template0 {name}`" in str(caught.value.remedy)


def test_a_row_that_contradicts_another_is_told_in_one_line(engine: Engine) -> None:
    name_a_cluster(engine, 1)
    with pytest.raises(DatabaseError, match=r"refuses rows .*: duplicate key") as caught, explained(engine):
        name_a_cluster(engine, 1)
    assert "\n" not in caught.value.message


def test_nothing_is_committed_once_the_lock_of_a_sync_is_lost(engine: Engine, postgres: Postgres) -> None:
    """The session that holds it does nothing for hours, and may be cut off unseen: then another sync begins."""
    second = open_database(engine.url.render_as_string(hide_password=False))
    with explained(engine), one_sync(engine):
        name_a_cluster(engine, 1)
        postgres.sql(_END_HOLDERS)
        with one_sync(second):
            with pytest.raises(DatabaseError, match="no longer holds the lock of this sync"):
                name_a_cluster(engine, 2)
            name_a_cluster(second, 3)
    assert names(engine) == ["c1", "c3"]
    name_a_cluster(engine, 4)  # outside any sync nothing is asked
    engine.dispose()
    second.dispose()
