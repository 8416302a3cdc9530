"""`fleetctl account`: what was used, by whom, at what price, and what took the rest."""

from __future__ import annotations

import click

from fleetctl.cli.lazy import Lazy

# name -> (module with a click command named `command`, help line)
_COMMANDS = {
    "sync": ("fleetctl.cli.account_sync", "Read what is new in Slurm's accounting into the database."),
    "jobs": ("fleetctl.cli.account_jobs", "Every record of Slurm's accounting, one a line, the newest first."),
    "usage": ("fleetctl.cli.account_usage", "GPU-hours held, by account, user, model, run or time."),
    "cost": ("fleetctl.cli.account_cost", "What that costs, by the prices of its time."),
    "price": ("fleetctl.cli.account_price", "Prices of a GPU-hour, and from when they hold."),
    "shares": ("fleetctl.cli.account_shares", "Fair share: what accounts were promised and what they used."),
    "goodput": ("fleetctl.cli.account_goodput", "How much of a run's time made progress that was kept."),
    "failures": ("fleetctl.cli.account_failures", "What interrupts jobs, how often, and on which nodes."),
    "waits": ("fleetctl.cli.account_waits", "How long jobs wait before they start."),
    "idle": ("fleetctl.cli.account_idle", "GPUs that were held and did nothing."),
    "reconcile": ("fleetctl.cli.account_reconcile", "Our sums beside those of sreport, and why they differ."),
}


@click.command(cls=Lazy, table=_COMMANDS)
def command() -> None:
    """What was used, by whom, at what price, and what took the rest.

    `sync` reads Slurm's accounting into a database; all others read that database alone.

    \b
    Example:
      fleetctl account sync
      fleetctl account usage --since last-month --until this-month
      fleetctl account cost --by user --csv
    """
