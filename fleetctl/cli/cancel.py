"""`fleetctl cancel`."""

from __future__ import annotations

import click

from fleetctl.cli.context import app
from fleetctl.cli.output import json_option, print_json
from fleetctl.cli.runs import host_name, run_argument, slurm_of, store_of, user_name


@click.command()
@run_argument
@json_option
def command(run: str, as_json: bool) -> None:
    """Cancel a run: its job ends and never comes back.

    \b
    Example:
      fleetctl cancel RUN
    """
    from fleetctl.submission.cancel import cancel

    here = app()
    done = cancel(store_of(here).find(run), slurm_of(here), here.clock, host_name(), user_name())
    if as_json:
        print_json({"run_id": done.run_id, "job_id": done.job_id, "cancelled": done.cancelled, "why": done.why})
    else:
        click.echo(f"run {done.run_id}  {done.why}")
