"""`fleetctl account reconcile`: our sums beside those of sreport, and why they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fleetctl.cli.account_options import Asked, Form, Place, database_options, form_options, reading, window_options
from fleetctl.cli.context import app

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from fleetctl.accounting.model import Window
    from fleetctl.accounting.reconcile import Line, Ours
    from fleetctl.cli.account_print import About, Column
    from fleetctl.slurm.books import Books

_DEFINITION = (
    "GPU-seconds that an account's records held in whole hours, beside what `sreport cluster AccountUtilizationByUser` "
    "charged to its users for gres/gpu; explained: by what records that go on may have held, or by one second"
)


@click.command("reconcile")
@window_options
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 100),
    default=1.0,
    show_default=True,
    metavar="PER_CENT",
    help="A rest up to this share is let pass.",
)
@database_options
@form_options
def command(asked: Asked, tolerance: float, place: Place, form: Form) -> None:
    """Our GPU time of each account beside that of sreport, and what explains the difference.

    sreport knows whole hours, once slurmdbd has rolled them up: both sides are cut to those. It asks the cluster that
    the environment points to.

    Exit code 0: equal, explained, or within the tolerance; 1: not; 3: nothing is rolled up yet.

    \b
    Example:
      fleetctl account reconcile --since yesterday --until today
      fleetctl account reconcile --since last-month --until this-month --tolerance 0.1 --csv
    """
    from fractions import Fraction

    from msgspec.structs import replace

    from fleetctl.accounting.reconcile import Verdict, compare
    from fleetctl.cli.account_print import print_rows
    from fleetctl.cli.output import note
    from fleetctl.errors import FleetctlError
    from fleetctl.slurm.connect import connect_books

    edges = app()
    books = connect_books(edges.environ, edges.clock, note if edges.debug else None)
    with reading(place, (books.cluster(),), asked) as (connection, about):
        window, notes = _compared(connection, books, about)
        theirs = _by_account(books, window)
        lines = compare(_ours(connection, window, about), theirs, Fraction(tolerance) / 100)
    shown = replace(about, window=window, notes=(*about.notes, *notes), definition=_DEFINITION)
    print_rows(_columns(), [_values(line) for line in lines], form, shown)
    if bad := [line for line in lines if line.verdict is Verdict.UNEXPLAINED]:
        raise FleetctlError(
            f"{len(bad)} of {len(lines)} accounts differ by more than {tolerance:g} %, the first by "
            f"{bad[0].unexplained_s} GPU-seconds: {bad[0].account}",
            remedy="the rows say what may be the reason; `fleetctl account sync` reads what is missing",
        )


def _compared(connection: Connection, books: Books, about: About) -> tuple[Window, tuple[str, ...]]:
    """The whole hours that both sides know, and what was left out.

    :raises CannotTell: there are none yet.
    """
    from fleetctl.accounting.model import Window
    from fleetctl.accounting.reconcile import rolled_up, whole_hours
    from fleetctl.cli.account_time import shown
    from fleetctl.errors import CannotTell

    assert about.window is not None, "a window was asked for"
    window = None if about.as_of_s is None else whole_hours(about.window, about.as_of_s)
    if window is None:
        raise CannotTell(
            "no whole hour of the window is over and read yet",
            remedy="`fleetctl account sync`, or --since yesterday --until today",
        )
    until_s = rolled_up(
        window,
        lambda part: sum(one.gpu_seconds for one in _ours(connection, part, about)),
        lambda part: sum(_by_account(books, part).values()),
    )
    if until_s == window.since_s:
        raise CannotTell(
            "sreport has no GPU time of this window: it is not rolled up yet, or the cluster does not track gres/gpu",
            remedy="ask again after the next full hour; AccountingStorageTRES=gres/gpu in slurm.conf",
        )
    notes = []
    if until_s < window.until_s:
        notes.append(f"from {shown(until_s, about.zone)} on nothing is rolled up yet: not compared")
    if about.quarantined:
        notes.append(f"{about.quarantined} rows in quarantine are in our sums of no account")
    return Window(window.since_s, until_s), tuple(notes)


def _ours(connection: Connection, window: Window, about: About) -> tuple[Ours, ...]:
    from fleetctl.accounting.read_reconcile import read_ours

    return read_ours(connection, window, about.cluster_ids[0])


def _by_account(books: Books, window: Window) -> dict[str, int]:
    """Of its own users: sreport's line of an account as a whole has those of the accounts below it as well."""
    found: dict[str, int] = {}
    for one in books.used(window.since_s, window.until_s):
        if one.user:
            found[one.account] = found.get(one.account, 0) + one.seconds
    return found


def _columns() -> tuple[Column, ...]:
    from fleetctl.cli.account_print import Column, Unit

    return (
        Column("account", "ACCOUNT"),
        Column("ours_gpu_seconds", "OURS", Unit.NUMBER),
        Column("sreport_gpu_seconds", "SREPORT", Unit.NUMBER),
        Column("difference_gpu_seconds", "DIFFERENCE", Unit.NUMBER),
        Column("unexplained_gpu_seconds", "UNEXPLAINED", Unit.NUMBER),
        Column("verdict", "VERDICT"),
        Column("why", "WHY"),
    )


def _values(line: Line) -> tuple[object, ...]:
    return (
        line.account,
        line.ours_s,
        line.theirs_s,
        line.difference_s,
        line.unexplained_s,
        line.verdict.value,
        "; ".join(line.why) or None,
    )
