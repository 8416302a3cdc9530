"""`fleetctl wait`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fleetctl.cli.context import App, app
from fleetctl.cli.output import json_option, note, print_json
from fleetctl.cli.runs import as_json as run_as_json
from fleetctl.cli.runs import exit_code_of, look, run_argument, step_text, store_of

if TYPE_CHECKING:
    from fleetctl.rundir.store import RunDir

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0  # sites ask for seconds between queries, not fractions


@click.command()
@run_argument
@click.option(
    "--timeout", "timeout_s", type=float, metavar="SECONDS", help="Give up waiting (exit 3); the run goes on."
)
@json_option
def command(run: str, timeout_s: float | None, as_json: bool) -> int:
    """Wait for the end of a run. Exit code 0: completed; 1: any other end; 3: cannot tell. Ctrl-C harms nothing.

    \b
    Example:
      fleetctl wait RUN && echo trained
    """
    here = app()
    return wait_for(here, store_of(here).find(run), timeout_s=timeout_s, as_json=as_json)


def wait_for(here: App, run: RunDir, *, timeout_s: float | None, as_json: bool) -> int:
    """Poll, less and less often, until the run is finished; a Slurm that does not answer is waited for."""
    from fleetctl.errors import CannotTell
    from fleetctl.rundir.view import RunState

    started_s = here.clock.monotonic_s()
    pause_s, said = _FIRST_PAUSE_S, ""
    while True:
        seen = look(here, run, heard_or_raise=True)
        if seen.state is RunState.SUBMISSION_UNKNOWN:
            raise CannotTell(
                f"run {seen.run_id}: it is not known whether it was submitted", remedy=f"fleetctl resolve {seen.run_id}"
            )
        line = f"run {seen.run_id}  {seen.state.value}  {seen.reason or ''}{step_text(seen)}".rstrip()
        if seen.state.is_finished:
            break
        if line != said:
            note(line)
            said = line
        if timeout_s is not None and here.clock.monotonic_s() - started_s + pause_s > timeout_s:
            raise CannotTell(f"run {seen.run_id} is still {seen.state.value} after {timeout_s:g} s; it goes on")
        here.clock.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
    if as_json:
        print_json(run_as_json(seen))
    else:
        click.echo(line)
    return exit_code_of(seen)
