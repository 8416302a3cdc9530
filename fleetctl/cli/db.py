"""`fleetctl db`: the schema of the accounting database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from fleetctl.cli.account_options import Place, database_options
from fleetctl.cli.context import app
from fleetctl.cli.output import json_option, note, print_fields, print_json

if TYPE_CHECKING:
    from sqlalchemy import Engine

_WRONG_EXIT_CODE = 1


@click.group()
def command() -> None:
    """The schema of the accounting database.

    The database is that of --database, else of FLEETCTL_DATABASE, else ~/.local/state/fleetctl/accounting.db.

    \b
    Example:
      fleetctl db current
      fleetctl db upgrade
    """


@command.command()
@database_options
@json_option
def upgrade(place: Place, as_json: bool) -> None:
    """Bring the schema to what this fleetctl needs, or make the database.

    An SQLite file is copied before, beside it; the copy stays. The schema changes as a whole or not at all.

    \b
    Example:
      fleetctl db upgrade
      fleetctl db upgrade --database postgresql://fleet@db1/accounts
    """
    from fleetctl.accounting.database import database_url
    from fleetctl.accounting.schema import upgrade as bring_up

    here = app()
    url = database_url(here.environ, place.url)
    done = bring_up(url, clock=here.clock, note=note, force_network=place.on_network_disk)
    fields = {"database": done.database, "before": done.before, "after": done.after, "backup": done.backup}
    _print(fields, as_json=as_json)


@command.command()
@database_options
@json_option
def current(place: Place, as_json: bool) -> None:
    """Which schema the database has, and which one this fleetctl needs.

    \b
    Example:
      fleetctl db current --json
    """
    from fleetctl.accounting.database import HEAD, name_of, revision

    with _there(place) as engine:
        found = revision(engine)
        _print({"database": name_of(engine), "revision": found, "needed": HEAD}, as_json=as_json)


@command.command()
@database_options
@json_option
def check(place: Place, as_json: bool) -> int:
    """Compare the schema with what it should be, and let SQLite read all of its file. Nothing is changed.

    Exit code 0: all is well; 1: something is not.

    \b
    Example:
      fleetctl db check
    """
    from fleetctl.accounting.database import name_of
    from fleetctl.accounting.schema import check as compare

    with _there(place) as engine:
        wrong = compare(engine)
        if as_json:
            print_json({"database": name_of(engine), "wrong": wrong})
        else:
            print_fields([("database", name_of(engine)), *(("wrong", one) for one in wrong)])
            note(f"{len(wrong)} wrong" if wrong else "all is well")
    return _WRONG_EXIT_CODE if wrong else 0


@contextmanager
def _there(place: Place) -> Iterator[Engine]:
    """The database as it is, for reading."""
    from fleetctl.accounting.database import connect, database_url

    url = database_url(app().environ, place.url)
    engine = connect(url, force_network=place.on_network_disk, read_only=True)
    try:
        yield engine
    finally:
        engine.dispose()


def _print(fields: dict[str, str | None], *, as_json: bool) -> None:
    if as_json:
        print_json(fields)
    else:
        print_fields([(name, value or "-") for name, value in fields.items()])
