"""`fleetctl requeue`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fleetctl.cli.context import App, app
from fleetctl.cli.output import json_option, note, print_json
from fleetctl.cli.runs import run_argument, store_of
from fleetctl.cli.site import site_of

if TYPE_CHECKING:
    from fleetctl.submission.look import Brought

_WORDS = {
    "requeue": "requeued",
    "requeue_ended": "requeued",
    "submit": "submitted again",
    "wish": "waits already, and starts as you asked",
    "nothing": "was asked for already, and is coming",
}


@click.command()
@run_argument
@click.option("--from", "from_step", type=click.IntRange(min=0), metavar="STEP", help="Resume from STEP or before it.")
@click.option("--exclude", metavar="NODE", multiple=True, help="A node, or a host list, to stay off from now on.")
@click.option("--task", type=int, metavar="I", help="Element I of a sweep.")
@click.option("--wait", is_flag=True, help="Wait until it is safe, and then until the run has begun again.")
@json_option
def command(
    run: str, from_step: int | None, exclude: tuple[str, ...], task: int | None, wait: bool, as_json: bool
) -> None:
    """Bring a run back: one that is held, that failed, or that should begin again elsewhere.

    It goes on from its checkpoints. A run that was cancelled, or has completed, does not come back. The same call
    again never does it twice. RUN is a whole id, or a job id.

    \b
    Example:
      fleetctl requeue RUN
      fleetctl requeue RUN --exclude node[3-4] --wait
      fleetctl requeue RUN --from 12000
    """
    from fleetctl.submission.decide_requeue import Wanted
    from fleetctl.submission.requeue import await_restart, requeue

    here = app()
    found = store_of(here).find(run, whole=True)
    wanted = Wanted(task, from_step, _names(exclude))
    site = site_of(here, ())
    done = requeue(found, wanted, site, lambda: _check_step(here, found.run_id, task, from_step or 0), wait=wait)
    _print(done, as_json=as_json)
    if wait:
        await_restart(found, wanted, site)
        note("it runs again")


def _names(given: tuple[str, ...]) -> frozenset[str]:
    from fleetctl.errors import UsageError
    from fleetctl.slurm.hosts import expand

    try:
        return frozenset(name for text in given for name in expand(text))
    except ValueError as error:
        raise UsageError(f"--exclude: {error}") from None


def _check_step(here: App, run_id: str, task: int | None, step: int) -> None:
    """What the next attempt will find at or below `step`, before anything is asked of Slurm.

    :raises NoValidCheckpoint: nothing that it may resume from.
    :raises CannotTell: not all of it could be read.
    :raises UsageError: the run has no checkpoints, or none that we can judge.
    """
    from fleetctl.checkpoint.model import Outcome, Validity
    from fleetctl.cli.ckpt_place import choose, find_place
    from fleetctl.errors import CannotTell, NoValidCheckpoint

    place = find_place(here, run_id, task)
    choice = choose(place, step)
    if choice.outcome is Outcome.RESUME:
        return
    unread = [one for one in choice.passed_over if one.validity is Validity.UNKNOWN and one.entry is not None]
    if any(place.fence.accepts(one.entry) and one.entry.training_step <= step for one in unread if one.entry):
        raise CannotTell(f"not all checkpoints up to step {step} could be read", remedy="ask again later")
    raise NoValidCheckpoint(
        f"--from {step}: there is no valid checkpoint of step {step} or before it", remedy=f"fleetctl ckpt ls {run_id}"
    )


def _print(done: Brought, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "run_id": done.run_id,
                "task": done.task,
                "job_id": done.job_id,
                "done": done.deed.value,
                "submission": done.submission,
                "excluded_nodes": done.excluded_nodes or None,
                "from_step": done.from_step,
                "reason": done.reason or None,
            }
        )
        return
    click.echo(f"run {done.run_id}  job {done.job_id}  {_WORDS[done.deed.value]}")
    if done.excluded_nodes:
        note(f"it stays off {done.excluded_nodes}")
    if done.from_step is not None:
        note(f"it resumes from training step {done.from_step} or before it")
    if done.reason.startswith("JobHeld"):
        note(f"Slurm holds the job ({done.reason}): `fleetctl why {done.run_id}`")
