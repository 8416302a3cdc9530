"""`fleetctl daemon resume`."""

from __future__ import annotations

import click

from fleetctl.cli.account_options import Place as DatabasePlace
from fleetctl.cli.account_options import opened
from fleetctl.cli.context import app
from fleetctl.cli.daemon_options import Which, key_of, place_of, which_options
from fleetctl.cli.output import json_option, note, print_json
from fleetctl.cli.runs import complete_run


@click.command("resume")
@click.argument("run", metavar="[RUN]", required=False, shell_complete=complete_run)
@which_options
@json_option
def command(run: str | None, which: Which, place: DatabasePlace, as_json: bool) -> int:
    """Let the daemon act on RUN again, or without one on all; this also ends the incidents for which it paused itself.

    Each pause is ended by its own name: one of a single run stays when that of all runs ends.

    \b
    Example:
      fleetctl daemon resume
      fleetctl daemon resume RUN
    """
    from fleetctl.recovery.pause import resume
    from fleetctl.recovery.recall import memory

    here = app()
    key = key_of(here, run, which) if run else ""
    with opened(place, writing=True) as engine:
        meant = place_of(engine, which, asks=True)
        was = resume(engine, meant, key, here.clock.now())
        left = memory(engine, meant, here.clock.now())
    if as_json:
        print_json({"cluster": meant.cluster, "scope": meant.scope, "run_id": key or None, "paused": False, "was": was})
    else:
        about = key or "all runs"
        note(f"{about}: the daemon of {meant.scope} may act again" if was else f"{about}: there was no pause")
        if key and left.paused_by:
            note(f"all runs are still paused, by {left.paused_by}: `fleetctl daemon resume`")
        for one, why in () if key else sorted(left.paused_runs.items()):
            note(f"{one} is still paused, by {why}: `fleetctl daemon resume {one}`")
    return 0
