"""`fleetctl why`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fleetctl.cli.context import app
from fleetctl.cli.output import json_option, print_fields, print_json
from fleetctl.cli.runs import ask, run_argument, see, slurm_of, store_of, word_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetctl.rundir.view import RunView
    from fleetctl.slurm.model import Job


@click.command()
@run_argument
@json_option
def command(run: str, as_json: bool) -> None:
    """Why a run is not running: Slurm's reason in words, when it may start, and which nodes it may not use.

    \b
    Example:
      fleetctl why RUN
    """
    from fleetctl.rundir.view import jobs_of

    here = app()
    found = store_of(here).find(run)
    history = found.history()
    queue = ask(slurm_of(here), history.record.user) if history.job_id is not None else None
    jobs = jobs_of(history, str(found.path), queue) or ()
    seen = see(history, found, queue)
    answer = _answer(seen, jobs)
    if as_json:
        print_json({"run_id": seen.run_id, "job_id": seen.job_id, "state": seen.state, **answer})
        return
    rows = [
        ("run", f"{seen.run_id}  {seen.state.value}"),
        *((key.replace("_", " "), str(v)) for key, v in answer.items() if v),
        *(("word", text) for text in word_lines(here, found, history)),
    ]
    print_fields(rows)


def _answer(seen: RunView, jobs: Sequence[Job]) -> dict[str, str | None]:
    """The same keys whether the run waits or not; None where there is nothing to say."""
    from fleetctl.slurm.model import BaseState
    from fleetctl.slurm.reasons import explain

    waiting = next((job for job in jobs if job.state.base is BaseState.PENDING), None)
    if waiting is None:
        return {"why": _not_waiting(seen), "slurm_reason": None, "starts": None, "excluded_nodes": None, "after": None}
    start = waiting.start_time
    return {
        "why": explain(waiting.reason),
        "slurm_reason": waiting.reason,
        "starts": f"not before {start.astimezone():%Y-%m-%d %H:%M} (Slurm's estimate)" if start else None,
        "excluded_nodes": waiting.excluded_nodes or None,
        "after": waiting.dependency or None,
    }


def _not_waiting(seen: RunView) -> str:
    from fleetctl.rundir.view import RunState

    words = {
        RunState.RUNNING: f"it runs on {seen.node_list}",
        RunState.COMPLETING: "it has ended and Slurm is cleaning up",
        RunState.COMPLETED: "it has finished well",
        RunState.HELD: f"it is held ({seen.reason}); `fleetctl requeue {seen.run_id}` starts it again",
        RunState.SUBMISSION_UNKNOWN: f"it is not known whether it was submitted: fleetctl resolve {seen.run_id}",
        RunState.NOT_SUBMITTED: f"it was not submitted: {seen.reason or 'submit ended before sbatch was called'}",
        RunState.LOST: "Slurm has forgotten its job, and nothing tells how it ended",
        RunState.UNKNOWN: seen.reason or "Slurm shows a state that this fleetctl does not know",
    }
    return words.get(seen.state, f"it has ended: {seen.state.value}")
