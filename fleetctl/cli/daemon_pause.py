"""`fleetctl daemon pause`."""

from __future__ import annotations

import click

from fleetctl.cli.account_options import Place as DatabasePlace
from fleetctl.cli.account_options import opened
from fleetctl.cli.context import app
from fleetctl.cli.daemon_options import Which, key_of, place_of, which_options
from fleetctl.cli.output import json_option, note, print_json
from fleetctl.cli.runs import complete_run, user_name


@click.command("pause")
@click.argument("run", metavar="[RUN]", required=False, shell_complete=complete_run)
@click.option("--why", default="", metavar="TEXT", help="What others should know of it.")
@which_options
@json_option
def command(run: str | None, why: str, which: Which, place: DatabasePlace, as_json: bool) -> int:
    """Let the daemon do nothing to RUN, or without one to any run, until `fleetctl daemon resume`.

    It goes on to observe. The pause is looked at just before each action, so it holds at once.

    \b
    Example:
      fleetctl daemon pause --why "the file system is being moved"
      fleetctl daemon pause RUN
    """
    from fleetctl.recovery.pause import pause

    here = app()
    key = key_of(here, run, which) if run else ""
    by, at = f"user {user_name()}", here.clock.now()
    with opened(place, writing=True) as engine:
        meant = place_of(engine, which, asks=True)
        pause(engine, meant, key, by, why, at)
    if as_json:
        print_json({"cluster": meant.cluster, "scope": meant.scope, "run_id": key or None, "paused": True})
    else:
        again = f"fleetctl daemon resume{f' {key}' if key else ''}"
        note(f"nothing is done to {key or 'any run'} by the daemon of {meant.scope} until `{again}`")
    return 0
