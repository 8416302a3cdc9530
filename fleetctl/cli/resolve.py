"""`fleetctl resolve`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from fleetctl.cli.context import App, app
from fleetctl.cli.output import json_option, note, print_json
from fleetctl.cli.runs import profile_of, run_argument, slurm_of, store_of
from fleetctl.cli.site import settler_of

if TYPE_CHECKING:
    from fleetctl.rundir.history import History
    from fleetctl.rundir.store import RunDir

_PAUSE_S = 5.0


@click.command()
@run_argument
@click.option("--no-wait", is_flag=True, help="Look once, do not wait until it is certain.")
@json_option
def command(run: str, no_wait: bool, as_json: bool) -> None:
    """Find out what became of a submission that had no answer, and write it down.

    A job that is found is this run's. Its absence is certain only after two lookups, the second at least
    150 seconds after the submission; resolve waits for that. It never submits anything.

    \b
    Example:
      fleetctl resolve RUN
    """
    from fleetctl.rundir.model import SubmissionState

    here = app()
    history = _resolve(here, store_of(here).find(run), wait=not no_wait)
    submitted = history.state is SubmissionState.SUBMITTED
    if as_json:
        print_json({"run_id": history.record.run_id, "job_id": history.job_id, "submission": history.state})
        return
    what = f"was submitted as job {history.job_id}" if submitted else f"was not submitted: {history.detail}"
    click.echo(f"run {history.record.run_id}  {what}")


def _resolve(here: App, run: RunDir, *, wait: bool) -> History:
    """Look until there is no doubt; a doubt that time does not lift ends it at once."""
    from fleetctl.errors import SlurmUnreachable
    from fleetctl.rundir.model import SubmissionState
    from fleetctl.submission.known import unknown_error

    if (history := run.history()).state is not SubmissionState.UNKNOWN:
        return history
    slurm = slurm_of(here)
    store, digest = store_of(here), history.record.spec_digest
    while True:
        until: datetime | None = None
        try:
            with store.locked_index(digest, here.clock, note):  # a submit of the same spec settles it, too
                settled = settler_of(here, slurm, profile_of(here, slurm)).settle(run)
            if settled.doubt is None:
                return settled.history
            why, until = settled.doubt.why, settled.doubt.until
        except SlurmUnreachable as error:
            why, until = error.message, here.clock.now() + timedelta(seconds=_PAUSE_S)
        if not wait or until is None:
            raise unknown_error(run, why)
        left_s = max(_PAUSE_S, (until - here.clock.now()).total_seconds())
        note(f"not certain yet ({why}); looking again within {left_s:.0f} s. Ctrl-C is safe")
        here.clock.sleep(min(left_s, 4 * _PAUSE_S))
