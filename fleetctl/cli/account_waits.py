"""`fleetctl account waits`: how long jobs waited before they started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fleetctl.accounting.waits import BY
from fleetctl.cli.account_by import by_option
from fleetctl.cli.account_options import (
    Asked,
    Form,
    Place,
    cluster_option,
    database_options,
    form_options,
    reading,
    window_options,
)

if TYPE_CHECKING:
    from fleetctl.cli.account_print import Column

_DEFINITION = (
    "before_eligible: Submit to Eligible (dependency, --begin, hold); queue: Eligible to Start, of each start of a "
    "job; first_start: first Submit to first Start, once for each job; still_waiting: not started by the end of the "
    "data of its cluster; never_started: ended, or was forgotten by Slurm, without a start; "
    "percentiles by the nearest rank"
)


@click.command("waits")
@window_options
@by_option(BY, "partition")
@cluster_option
@database_options
@form_options
def command(asked: Asked, by: tuple[str, ...], clusters: tuple[str, ...], place: Place, form: Form) -> None:
    """How long jobs waited: half of them, nine in ten, 99 in a hundred, and the longest.

    Waits for a dependency, waits in the queue, and waits from the first submission to the first start are told apart.
    A job counts where it started within the window. Those that have not started are rows of their own.

    \b
    Example:
      fleetctl account waits --since 7d
      fleetctl account waits --by partition,gpus --json
    """
    from msgspec.structs import replace

    from fleetctl.accounting.read_state import read_state
    from fleetctl.accounting.read_waits import read_waits
    from fleetctl.cli.account_print import print_rows

    with reading(place, clusters, asked) as (connection, about):
        assert about.window is not None, "a window was asked for"
        states = [one for one in read_state(connection) if one.cluster_id in about.cluster_ids]
        as_of_s = {one.cluster_id: about.now_s if one.synced_s is None else one.synced_s for one in states}
        found = read_waits(connection, about.window, by, as_of_s)
    notes = about.notes
    if found.untimed:
        notes += (f"{found.untimed} records started, but when they were submitted or eligible is not known",)
    if backwards := sum(one.unordered for one in found.spreads if one.wait.value in ("queue", "never_started")):
        notes += (f"{backwards} records have times that run backwards; what would be negative counts as 0",)
    rows = [
        (*one.key, one.wait.value, one.records, one.p50_s, one.p90_s, one.p99_s, one.max_s, one.unordered)
        for one in found.spreads
    ]
    print_rows(_columns(by), rows, form, replace(about, notes=notes, definition=_DEFINITION))


def _columns(by: tuple[str, ...]) -> tuple[Column, ...]:
    from fleetctl.cli.account_print import Column, Unit

    return (
        *(Column(key, key.upper()) for key in by),
        Column("wait", "WAIT"),
        Column("records", "RECORDS", Unit.NUMBER),
        Column("p50_s", "P50", Unit.SECONDS),
        Column("p90_s", "P90", Unit.SECONDS),
        Column("p99_s", "P99", Unit.SECONDS),
        Column("max_s", "MAX", Unit.SECONDS),
        Column("unordered", "", Unit.NUMBER),
    )
