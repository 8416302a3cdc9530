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
    """Cancel a run: its job ends and never comes back. RUN is a whole id, or a job id.

    \b
    Example:
      fleetctl cancel RUN
    """
    from fleetctl.submission.cancel import cancel

    here = app()
    found = store_of(here).find(run, whole=True)
    done = cancel(found, slurm_of(here), here.clock, user_name(), host_name())
    if as_json:
        print_json({"run_id": done.run_id, "job_id": done.job_id, "cancelled": done.cancelled, "why": done.why})
    else:
        click.echo(f"run {done.run_id}  {done.why}")
