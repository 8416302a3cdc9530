"""How the commands of `fleetctl account` print rows: as a table, as JSON, as CSV; and what they say of themselves."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, tzinfo
from enum import StrEnum
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from fleetctl.accounting.model import Window
from fleetctl.cli.account_options import Form
from fleetctl.cli.account_time import iso, shown
from fleetctl.cli.output import note, one_line, print_table
from fleetctl.units import Duration

if TYPE_CHECKING:
    from fleetctl.accounting.read_state import State

# Spreadsheets take a cell that begins so for a formula (OWASP, CSV Injection); some also with the wide forms
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")


class Unit(StrEnum):
    """What a column holds. Values are what Python has: whole numbers, Fraction or float; None is unknown everywhere."""

    TEXT = "text"
    ID = "id"  # a text that is of no use in pieces
    NUMBER = "number"  # as it is; a Fraction with up to six decimals
    HOURS = "hours"  # a number of hours, shown with two decimals
    SECONDS = "seconds"  # a number of seconds, shown as 1d12h
    MONEY = "money"  # already rounded to the cent
    SHARE = "share"  # 0.25 shown as 25.0%
    TIME = "time"  # seconds since the epoch
    WORDS = "words"  # a sequence of texts: a list in JSON


_NUMBERS = frozenset({Unit.NUMBER, Unit.HOURS, Unit.SECONDS, Unit.MONEY, Unit.SHARE})


class Column(Struct, frozen=True):
    """`key` in JSON and CSV; `heading` in tables, "" where tables leave it out."""

    key: str
    heading: str
    unit: Unit = Unit.TEXT


class Cluster(Struct, frozen=True):
    id: int
    name: str


class About(Struct, frozen=True):
    """What an answer says of itself. `window` None: it is about no window; `as_of_s` None: nothing was ever synced."""

    window: Window | None
    zone: tzinfo
    now_s: int
    as_of_s: int | None
    clusters: tuple[Cluster, ...]
    quarantined: int
    notes: tuple[str, ...] = ()
    definition: str | None = None

    @property
    def cluster_ids(self) -> tuple[int, ...]:
        return tuple(cluster.id for cluster in self.clusters)

    @property
    def cluster_names(self) -> tuple[str, ...]:
        return tuple(cluster.name for cluster in self.clusters)


def about(states: Sequence[State], window: Window, zone: tzinfo, now_s: int) -> About:
    """The oldest of the clusters counts, and each one's gaps are said."""
    synced = [state.synced_s for state in states]
    oldest = None if not synced or None in synced else min(at_s for at_s in synced if at_s is not None)
    notes = [words for state in states for words in _gaps(state, window, zone)]
    chosen = tuple(Cluster(state.cluster_id, state.cluster) for state in states)
    return About(window, zone, now_s, oldest, chosen, sum(state.quarantined for state in states), tuple(notes))


def _gaps(state: State, window: Window, zone: tzinfo) -> list[str]:
    words = []
    if state.from_s is None:
        words.append(f"{state.cluster}: no sync has ended yet; `fleetctl account sync`")
    elif window.since_s < state.from_s:
        read = f"records that ended before {shown(state.from_s, zone)} were not read"
        words.append(f"{state.cluster}: {read}; `fleetctl account sync --since ...`")
    vouched_s = None if state.to_s is None or state.synced_s is None else min(window.until_s, state.synced_s)
    if vouched_s is not None and state.to_s is not None and state.to_s < vouched_s:
        words.append(f"{state.cluster}: records after {shown(state.to_s, zone)} may be missing")
    if state.sees_all is False:
        words.append(f"{state.cluster}: Slurm shows the one who synced only their own jobs; others' are missing")
    if state.waiting:
        words.append(f"{state.cluster}: {state.waiting} records have not reached slurmdbd yet")
    return words


def print_rows(
    columns: Sequence[Column],
    rows: Iterable[Sequence[object]],
    form: Form,
    about: About,
    total: Sequence[object] | None = None,
) -> None:
    """Rows of values in the order of `columns`. CSV, JSON and piped tables are written as the rows come.

    :param total: a row that is the sum of the others: the last of a table on a terminal, apart in JSON, else left out.
    """
    if form is Form.JSON:
        _print_json(columns, rows, about, total)
        return
    head = head_line(about)
    if form is Form.TABLE and sys.stdout.isatty():
        click.echo(head)
    else:
        note(head)
    if form is Form.CSV:
        _print_csv(columns, rows, about.zone)
    else:
        _print_table(columns, rows, about.zone, total)
    for line in (*((about.definition,) if about.definition else ()), *about.notes):
        note(one_line(line))


def head_line(about: About) -> str:
    """Like `Europe/Berlin: 2026-11-01 00:00:00 to 2026-11-08 00:00:00; data as of ..., 12s old`."""
    parts = [] if about.window is None else [" to ".join(shown(at_s, about.zone) for at_s in _ends(about.window))]
    if about.as_of_s is None:
        parts.append("no sync has ended yet")
    else:
        parts.append(f"data as of {shown(about.as_of_s, about.zone)}, {_age(about.now_s - about.as_of_s)}")
    if about.quarantined:
        parts.append(f"{about.quarantined} row{'s' if about.quarantined > 1 else ''} in quarantine")
    return one_line(f"{about.zone}: {'; '.join(parts)}")


def _ends(window: Window) -> tuple[int, int]:
    return window.since_s, window.until_s


def _age(seconds: int) -> str:
    return f"{Duration(seconds)} old" if seconds >= 0 else "which is in the future"


def _print_table(
    columns: Sequence[Column], rows: Iterable[Sequence[object]], zone: tzinfo, total: Sequence[object] | None
) -> None:
    wanted = [number for number, column in enumerate(columns) if column.heading]
    last = (("total", *total[1:]),) if total is not None and sys.stdout.isatty() else ()
    folds = [column.heading for column in columns if column.heading and column.unit in (Unit.TEXT, Unit.WORDS)]
    numbers = [column.heading for column in columns if column.heading and column.unit in _NUMBERS]
    cells = ([cell_of(row[number], columns[number].unit, zone) for number in wanted] for row in chain(rows, last))
    print_table([columns[number].heading for number in wanted], cells, folds=folds, numbers=numbers)


def _print_csv(columns: Sequence[Column], rows: Iterable[Sequence[object]], zone: tzinfo) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([column.key for column in columns])
    for row in rows:
        writer.writerow([csv_cell(value, column.unit, zone) for value, column in zip(row, columns, strict=True)])


def _print_json(
    columns: Sequence[Column], rows: Iterable[Sequence[object]], about: About, total: Sequence[object] | None
) -> None:
    summed = {} if total is None else {"total": _object(columns, total)}
    head = json.dumps(_head(about) | summed, indent=2)
    click.echo(head.removesuffix("\n}") + ',\n  "rows": [', nl=False)
    comma = ""
    for row in rows:
        click.echo(f"{comma}\n    {json.dumps(_object(columns, row))}", nl=False)
        comma = ","
    click.echo("\n  ]\n}" if comma else "]\n}")


def _object(columns: Sequence[Column], row: Sequence[object]) -> dict[str, object]:
    return {column.key: json_value(value, column.unit) for value, column in zip(row, columns, strict=True)}


def _head(about: About) -> dict[str, Any]:
    window = about.window
    return {
        "since": None if window is None else iso(window.since_s),
        "until": None if window is None else iso(window.until_s),
        "as_of": None if about.as_of_s is None else iso(about.as_of_s),
        "age_s": None if about.as_of_s is None else about.now_s - about.as_of_s,
        "time_zone": str(about.zone),  # in which days were told; the times here have their offset
        "clusters": list(about.cluster_names),
        "quarantined": about.quarantined,
        "notes": list(about.notes),
        **({} if about.definition is None else {"definition": about.definition}),
    }


def json_value(value: object, unit: Unit) -> object:
    """Numbers as numbers, times in UTC, lists for several words; None stays null."""
    if value is None or isinstance(value, str):
        return value
    if unit is Unit.WORDS:
        return [str(word) for word in value]  # type: ignore[attr-defined]  # a sequence, says the unit
    if unit is Unit.TIME:
        return iso(int(value))  # type: ignore[call-overload]  # seconds, says the unit
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else float(round(value, 6))
    if isinstance(value, float) and not math.isfinite(value):
        return "Infinity" if value > 0 else "-Infinity" if value < 0 else None  # JSON has no number for them
    return value


def csv_cell(value: object, unit: Unit, zone: tzinfo = UTC) -> object:
    """Numbers as they are; nothing for None; texts without control characters that no spreadsheet computes."""
    if unit is Unit.TIME and value is not None:
        return iso(int(value), zone)  # type: ignore[call-overload]
    made = json_value(value, unit)
    if isinstance(made, (int, float)) or made is None:
        return "" if made is None else made
    text = " ".join(made) if isinstance(made, list) else str(made)
    text = one_line(text)
    return f"'{text}" if text.startswith(_FORMULA) else text


def cell_of(value: object, unit: Unit, zone: tzinfo) -> str:
    """As a person reads it; `-` for None."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if unit is Unit.WORDS:
        return " ".join(str(word) for word in value)  # type: ignore[attr-defined]
    if unit is Unit.TIME:
        return shown(int(value), zone)  # type: ignore[call-overload]
    return _number(value, unit)


def _number(value: Any, unit: Unit) -> str:
    if unit is Unit.SECONDS:
        return f"{'-' if value < 0 else ''}{Duration(round(abs(value)))}"
    if unit is Unit.SHARE:
        return f"{float(value):.1%}"
    if unit in (Unit.HOURS, Unit.MONEY):
        return str(_hundredths(value))
    return str(json_value(value, unit))


def _hundredths(value: Any) -> Any:
    """With two decimals, exactly and half to even: a float has too few digits for a large site's money."""
    from decimal import Decimal

    return (Decimal(round(Fraction(value) * 100)) / 100).quantize(Decimal("0.01"))
