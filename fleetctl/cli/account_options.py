"""Options that the commands of `fleetctl account` share, each a decorator that gives the function one value."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from fleetctl.accounting.model import Window
from fleetctl.cli.account_time import moment
from fleetctl.cli.context import app
from fleetctl.cli.output import json_option
from fleetctl.errors import UsageError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

    from fleetctl.cli.account_print import About

Command = TypeVar("Command", bound=Callable[..., Any])

_LOCALTIME = "/etc/localtime"  # localtime(5)
_ZONES = "/zoneinfo/"  # the folder that it points into


class Form(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class Asked(Struct, frozen=True):
    """What stands behind --since, --until and --utc."""

    since: str | None
    until: str | None
    utc: bool


class Place(Struct, frozen=True):
    """Which database."""

    url: str | None
    on_network_disk: bool


def form_options(command: Command) -> Command:
    """--json and --csv; the function takes `form: Form`."""

    def collect(as_json: bool, as_csv: bool) -> Form:
        if as_json and as_csv:
            raise UsageError("--json and --csv exclude each other", remedy="ask for one of them")
        return Form.JSON if as_json else Form.CSV if as_csv else Form.TABLE

    command = _collected(command, "form", collect, ("as_json", "as_csv"))
    command = click.option("--csv", "as_csv", is_flag=True, help="Print CSV; what it is about goes to stderr.")(command)
    return json_option(command)


def window_options(command: Command) -> Command:
    """--since, --until and --utc; the function takes `asked: Asked`."""
    command = _collected(command, "asked", Asked, ("since", "until", "utc"))
    command = _utc_option(command)
    until = "End of the window, itself not within. [default: now]"
    command = click.option("--until", metavar="TIME", help=until)(command)
    since = "Start of the window: 2026-11-05, 2026-11-05T14:30, 2026-11, 7d, last-month. [default: this-month]"
    return click.option("--since", metavar="TIME", help=since)(command)


def utc_option(command: Command) -> Command:
    """--utc alone, for commands without a window; the function takes `asked: Asked`."""
    return _utc_option(_collected(command, "asked", lambda utc: Asked(None, None, utc), ("utc",)))


def _utc_option(command: Command) -> Command:
    return click.option("--utc", is_flag=True, help="Read and show times in UTC, not in the local time zone.")(command)


def database_options(command: Command) -> Command:
    """--database and --on-network-disk; the function takes `place: Place`."""
    command = _collected(command, "place", Place, ("url", "on_network_disk"))
    network = "Use SQLite on a network file system, where one process at a time is all it bears."
    command = click.option("--on-network-disk", is_flag=True, help=network)(command)
    url = "postgresql://... or the path of an SQLite file [env FLEETCTL_DATABASE]."
    return click.option("--database", "url", metavar="URL", help=url)(command)


def cluster_option(command: Command) -> Command:
    """--cluster, repeatable; the function takes `clusters: tuple[str, ...]`, empty for all."""
    said = "Only this cluster; may be repeated. [default: all in the database]"
    return click.option("--cluster", "clusters", metavar="NAME", multiple=True, help=said)(command)


def _collected(command: Command, name: str, collect: Callable[..., object], parts: Sequence[str]) -> Command:
    """`command`, given the value `name` that `collect` makes of the options `parts`."""

    @functools.wraps(command)
    def collected(*args: Any, **values: Any) -> Any:
        made = collect(*(values.pop(part) for part in parts))
        return command(*args, **values, **{name: made})

    return collected  # type: ignore[return-value]  # the decorators of click name the options


def zone_of(asked: Asked) -> tzinfo:
    """The local time zone by TZ, else that of this machine; UTC where --utc is given.

    :raises UsageError: TZ names none that is known here.
    """
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    if asked.utc:
        return UTC
    name = app().environ.get("TZ", "").removeprefix(":")
    if not name:
        return _machine_zone()
    if name in ("UTC", "UTC0", "Etc/UTC"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(f"TZ={name} is no time zone known here", remedy="--utc, or TZ=Europe/Berlin") from None


def _machine_zone() -> tzinfo:
    import os
    from zoneinfo import ZoneInfo

    name = os.path.realpath(_LOCALTIME).partition(_ZONES)[2] or "local"
    if name in ("UTC", "Etc/UTC"):
        return UTC
    try:
        with open(_LOCALTIME, "rb") as file:
            return ZoneInfo.from_file(file, key=name)
    except (OSError, ValueError):
        return UTC  # as the C library does


def window_of(asked: Asked) -> Window:
    """The window that was asked for, from the start of this month until now unless said otherwise.

    :raises UsageError: a moment cannot be read, or the window is empty.
    """
    zone, now = zone_of(asked), app().clock.now()

    def read(option: str, text: str) -> int:
        try:
            return moment(text, zone, now)
        except ValueError as error:
            raise UsageError(f"{option} {text}: expected {error}") from None

    window = Window(read("--since", asked.since or "this-month"), read("--until", asked.until or "now"))
    if window.until_s <= window.since_s:
        raise UsageError("the window is empty: --until is not after --since", remedy="--until is not within the window")
    return window


@contextmanager
def opened(place: Place, *, writing: bool = False) -> Iterator[Engine]:
    """The database, its errors in one line each; made when it is written to and missing."""
    from fleetctl.accounting.database import database_url, explained, open_database

    url = database_url(app().environ, place.url)
    engine = open_database(url, force_network=place.on_network_disk, create=writing, read_only=not writing)
    try:
        with explained(engine):
            yield engine
    finally:
        engine.dispose()


@contextmanager
def reading(
    place: Place, clusters: Sequence[str], asked: Asked, counted: Window | None = None
) -> Iterator[tuple[Connection, About]]:
    """One read transaction, and what every answer from it has to say of itself (window, zone, age, gaps).

    :param counted: the window of the answer, where it is not the one that was asked for.
    :raises UsageError: the window, a cluster or the time zone is none.
    """
    from fleetctl.accounting.read_state import read_state
    from fleetctl.cli.account_print import about

    zone, window = zone_of(asked), window_of(asked) if counted is None else counted
    with opened(place) as engine, engine.connect() as connection:
        states = read_state(connection)
        if missing := set(clusters) - {state.cluster for state in states}:
            known = ", ".join(state.cluster for state in states) or "none"
            raise UsageError(f"no records of cluster {min(missing)}", remedy=f"clusters in this database: {known}")
        chosen = [state for state in states if not clusters or state.cluster in clusters]
        yield connection, about(chosen, window, zone, int(app().clock.now().timestamp()))
