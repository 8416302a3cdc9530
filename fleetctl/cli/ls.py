"""`fleetctl ls`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fleetctl.cli.context import App, app
from fleetctl.cli.output import json_option, note, print_json, print_table
from fleetctl.cli.runs import as_json, ask, keep_end, see, slurm_of, step_text, store_of, user_name

if TYPE_CHECKING:
    from fleetctl.rundir.view import Queue, RunView

_COLUMNS = ("RUN", "JOB", "STATE", "ATTEMPT", "NODES", "STEP", "LOSS", "SUBMITTED", "REASON")


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also the finished runs beyond the newest ones.")
@click.option("--finished", default=20, show_default=True, help="How many finished runs to show.")
@json_option
def command(everything: bool, finished: int, as_json: bool) -> None:
    """List runs, newest first: every unfinished one, and the newest finished ones.

    \b
    Example:
      fleetctl ls
      fleetctl ls --all --json | jq '.[] | select(.state == "failed")'
    """
    seen = _views(app())
    shown, left = [], finished
    for view in seen:
        if view.state.is_finished and not everything:
            left -= 1
            if left < 0:
                continue
        shown.append(view)
    _print(shown, len(seen) - len(shown), json_wanted=as_json)


def _views(here: App) -> list[RunView]:
    """All runs by one query to Slurm, newest first; what cannot be read is named, not dropped."""
    from fleetctl.errors import CannotTell, RunDirError, SlurmError

    runs = store_of(here).runs()
    if not runs:
        note(f"no runs under {here.runs_root}; `fleetctl submit` starts one")
        return []
    queue: Queue | None = None
    try:
        queue = ask(slurm_of(here), user_name())
    except (CannotTell, SlurmError) as error:
        note(f"{error.message}: states are as the run directories tell")
    views = []
    for run in runs:
        try:
            history = run.history()
        except RunDirError as error:
            if (run.path / "run.json").exists():
                note(f"left out: {error.message}")
            continue
        view = see(history, run, queue)
        keep_end(here, run, history, view)
        views.append(view)
    return sorted(views, key=lambda view: view.submitted_at, reverse=True)


def _print(shown: Sequence[RunView], hidden: int, *, json_wanted: bool) -> None:
    if json_wanted:
        print_json([as_json(view) for view in shown])
        return
    if not shown:
        return
    print_table(_COLUMNS, [_row(view) for view in shown])
    if hidden:
        note(f"{hidden} more finished runs: --all")


def _row(view: RunView) -> tuple[str, ...]:
    state = view.state.value
    if view.tasks_by_state is not None:
        state = " ".join(f"{count} {name}" for name, count in sorted(view.tasks_by_state.items()))
    return (
        view.run_id,
        view.job_id or "",
        state,
        view.attempt or "",
        str(view.nodes),
        step_text(view),
        "" if view.loss is None else f"{view.loss:.4g}",
        view.submitted_at.astimezone().strftime("%m-%d %H:%M"),
        view.reason or "",
    )
