"""`fleetctl logs`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from fleetctl.cli.context import App, app
from fleetctl.cli.output import json_option, note, print_json
from fleetctl.cli.runs import look, run_argument, store_of

if TYPE_CHECKING:
    from fleetctl.rundir.history import History
    from fleetctl.rundir.model import Attempt
    from fleetctl.rundir.store import RunDir

_POLL_S = 0.5
_ASK_SLURM_EVERY_S = 5.0
_CHUNK_BYTES = 1 << 16


@click.command()
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on printing until the run ends, over all its attempts.")
@click.option("--attempt", metavar="A.B", help="This attempt, not the newest.")
@click.option("--task", type=int, metavar="I", help="Element I of a sweep. [default: the one that started last]")
@json_option
def command(run: str, follow: bool, attempt: str | None, task: int | None, as_json: bool) -> None:
    """Print what the steps of a run print. --json prints where the files are.

    \b
    Example:
      fleetctl logs -f RUN
      fleetctl logs RUN --attempt 1.0 | less
    """
    from fleetctl.errors import UsageError
    from fleetctl.rundir.model import RunKind

    here = app()
    found = store_of(here).find(run)
    history = found.history()
    if task is not None and (history.record.kind is not RunKind.SWEEP or not 0 <= task < history.record.tasks):
        raise UsageError(f"run {found.run_id} has no task {task}")
    if follow and attempt is not None:
        raise UsageError("--follow goes over all attempts; leave --attempt out")
    if as_json:
        named = [one for one in history.attempts if attempt in (None, one.name) and task in (None, one.task)]
        print_json({"run_id": found.run_id, "job_logs": str(found.path / "logs"), "attempts": _files(found, named)})
    elif follow:
        if history.record.kind is RunKind.SWEEP and task is None:
            raise UsageError(f"run {found.run_id} is a sweep of {history.record.tasks}", remedy="choose one: --task I")
        _follow(here, found, task)
    else:
        _print_once(found, history, attempt, task)


def _files(run: RunDir, attempts: Sequence[Attempt]) -> list[dict[str, object]]:
    return [{"attempt": one.name, "task": one.task, "path": str(output_of(run, one))} for one in attempts]


def output_of(run: RunDir, attempt: Attempt) -> Path:
    """Where the steps of an attempt print to."""
    return run.attempt_dir(attempt.name, attempt.task) / "output.log"


def _newest(history: History, task: int | None) -> Attempt | None:
    mine = [one for one in history.attempts if task in (None, one.task)]
    if task is None and mine and mine[-1].task is not None:
        return max(mine, key=lambda one: one.started_at)  # of a sweep: numbers do not order its elements
    return mine[-1] if mine else None


def _print_once(run: RunDir, history: History, attempt: str | None, task: int | None) -> None:
    from fleetctl.errors import UsageError

    found = _newest(history, task)
    if attempt is not None:
        named = [one for one in history.attempts if one.name == attempt and task in (None, one.task)]
        if not named:
            known = ", ".join(dict.fromkeys(one.name for one in history.attempts)) or "none"
            raise UsageError(f"run {run.run_id} has no attempt {attempt}; it has: {known}")
        found = named[-1]
    if found is not None and output_of(run, found).exists():
        _Tail(output_of(run, found)).copy()
        return
    job_logs = sorted((run.path / "logs").glob("slurm-*.out"))
    if not job_logs:
        note(f"run {run.run_id} has not printed anything yet; `fleetctl why {run.run_id}` tells why")
    for path in job_logs:
        _Tail(path).copy()


def _follow(here: App, run: RunDir, task: int | None) -> None:
    """Print until the run is finished; the events in the run directory tell most, Slurm is asked every few seconds."""
    from fleetctl.errors import CannotTell
    from fleetctl.rundir.view import RunState

    tail: _Tail | None = None
    attempt, ask_at_s = None, 0.0
    while True:
        newest = _newest(run.history(), task)
        if newest is not None and newest != attempt:
            if attempt is None or (newest.name, newest.task) != (attempt.name, attempt.task):
                if tail is not None:
                    tail.copy()
                note(f"== attempt {newest.name}" + ("" if newest.task is None else f" of task {newest.task}"))
                tail = _Tail(output_of(run, newest))
            attempt, ask_at_s = newest, 0.0
        moved = tail.copy() if tail is not None else False
        now_s = here.clock.monotonic_s()
        if not moved and now_s >= ask_at_s:
            seen = look(here, run, heard_or_raise=True)
            if seen.state is RunState.SUBMISSION_UNKNOWN:
                raise CannotTell(f"run {run.run_id}: nothing to follow yet", remedy=f"fleetctl resolve {run.run_id}")
            if seen.state.is_finished or (task is not None and _has_ended(newest)):
                break
            ask_at_s = now_s + _ASK_SLURM_EVERY_S
        here.clock.sleep(_POLL_S)
    if tail is not None:
        tail.copy()
    else:
        _print_once(run, run.history(), None, task)
    note(f"run {seen.run_id}  {seen.state.value}")


def _has_ended(attempt: Attempt | None) -> bool:
    """Of its own accord: one that was told to end may be started again."""
    return attempt is not None and attempt.exit_code is not None and not attempt.terminated


class _Tail(Struct):
    """A log file and how far it was printed. Bytes go through unchanged."""

    path: Path
    offset: int = 0

    def copy(self) -> bool:
        """Print what is new; whether there was any."""
        try:
            file = open(self.path, "rb")  # noqa: SIM115 - a missing file is no error yet
        except FileNotFoundError:
            return False
        start = self.offset
        with file:
            file.seek(self.offset)
            while chunk := file.read(_CHUNK_BYTES):
                sys.stdout.buffer.write(chunk)
                self.offset += len(chunk)
        sys.stdout.buffer.flush()
        return self.offset > start
