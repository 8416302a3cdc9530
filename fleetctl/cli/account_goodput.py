"""`fleetctl account goodput`: how much of a run's time made progress that was kept, and what took the rest."""

from __future__ import annotations

import click

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
from fleetctl.cli.runs import complete_run


@click.command("goodput")
@click.argument("names", metavar="[RUN...]", nargs=-1, shell_complete=complete_run)
@window_options
@by_option(("run", "user", "account", "partition", "cause"), "run", most=1)
@cluster_option
@database_options
@form_options
def command(
    names: tuple[str, ...],
    asked: Asked,
    by: tuple[str, ...],
    clusters: tuple[str, ...],
    place: Place,
    form: Form,
) -> None:
    """How much of a run's time made progress that was kept, and what took the rest.

    Every second from the first submission to the end has one class, and so has every GPU-second held. With one RUN also
    what each of its interruptions cost: detection (D), restart (R), lost work (W). A RUN is counted as a whole unless
    --since or --until is given.

    \b
    Example:
      fleetctl account goodput --since 7d
      fleetctl account goodput RUN
      fleetctl account goodput --by cause --since last-month --until this-month --csv
    """
    from fleetctl.accounting.goodput import by_cause, goodput, totals
    from fleetctl.accounting.read_runs import find_runs
    from fleetctl.cli import account_goodput_print as shown

    with reading(place, clusters, asked) as (connection, about):
        window = about.window if not names or asked.since or asked.until else None
        runs = find_runs(connection, names, window, clusters)
    about = shown.about_of(about, window, form)
    if by[0] not in ("run", "cause"):
        shown.print_totals(by[0], totals(runs.runs, runs.as_of_ms, window, by[0]), form, about)
        return
    found = goodput(runs.runs, runs.as_of_ms, window)
    if by[0] == "cause":
        shown.print_causes(by_cause(one for run in found for one in run.interruptions), form, about)
    elif len(names) == 1 and found and form is Form.TABLE:
        shown.print_run(found[0], about)
    else:
        shown.print_runs(found, form, about)
