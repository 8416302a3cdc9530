"""`fleetctl daemon`: watch runs, bring them back after failures, explain every decision."""

from __future__ import annotations

import click

from fleetctl.cli.lazy import Lazy

# name -> (module with a click command named `command`, help line)
_COMMANDS = {
    "run": ("fleetctl.cli.daemon_run", "Watch, decide, and with --act do it."),
    "status": ("fleetctl.cli.daemon_status", "What the last pass saw and did, on one screen."),
    "explain": ("fleetctl.cli.daemon_explain", "What was seen of one run, decided, done, and what came of it."),
    "pause": ("fleetctl.cli.daemon_pause", "Let the daemon do nothing to one run, or to any."),
    "resume": ("fleetctl.cli.daemon_resume", "Let it act again."),
    "unit": ("fleetctl.cli.daemon_unit", "Print a unit of systemd for it."),
}


@click.command(cls=Lazy, table=_COMMANDS)
def command() -> None:
    """Watch runs, bring them back after failures, explain every decision.

    It only observes unless `run --act` is said. What it saw, decided and did stands in the database, which all other
    commands read.

    \b
    Example:
      fleetctl daemon run --act
      fleetctl daemon status
      fleetctl daemon explain RUN
    """
