"""`fleetctl show`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from fleetctl.cli.context import app
from fleetctl.cli.output import json_option, print_fields, print_json
from fleetctl.cli.runs import as_json as run_as_json
from fleetctl.cli.runs import look, run_argument, step_text, store_of

if TYPE_CHECKING:
    from fleetctl.rundir.model import Attempt, History
    from fleetctl.rundir.store import RunDir
    from fleetctl.rundir.view import RunView


@click.command()
@run_argument
@json_option
def command(run: str, as_json: bool) -> None:
    """Everything about one run: its state, its attempts, where its files are.

    \b
    Example:
      fleetctl show RUN
      fleetctl show RUN --json
    """
    here = app()
    found = store_of(here).find(run)
    seen = look(here, found)
    history = found.history()
    if as_json:
        print_json(
            {
                **run_as_json(seen),
                "user": history.record.user,
                "spec": history.record.spec_source,
                "workdir": history.record.workdir,
                "run_dir": str(found.path),
                "attempts": [_attempt_json(attempt) for attempt in history.attempts],
            }
        )
        return
    print_fields(_fields(seen, history, found))


def _fields(seen: RunView, history: History, run: RunDir) -> list[tuple[str, str]]:
    from fleetctl.rundir.model import last_attempts

    tasks = seen.tasks_by_state or {}
    fields = [
        ("run", seen.run_id),
        ("job", seen.job_id or "none"),
        ("state", seen.state.value),
        ("reason", seen.reason or ""),
        ("tasks", ", ".join(f"{count} {state}" for state, count in sorted(tasks.items()))),
        ("nodes", f"{seen.nodes}" + (f" ({seen.node_list})" if seen.node_list else "")),
        ("step", step_text(seen)),
        ("loss", "" if seen.loss is None else f"{seen.loss:.6g}"),
        ("submitted", _time(seen.submitted_at)),
        ("spec", history.record.spec_source),
        ("workdir", history.record.workdir),
        ("run dir", str(run.path)),
    ]
    shown = [(name, value) for name, value in fields if value]
    newest = [] if seen.state.is_finished else list(last_attempts(history).values())
    lines = [_attempt(one, running=one in newest) for one in history.attempts]
    return shown + [("attempt" if number == 0 else "", line) for number, line in enumerate(lines)]


def _attempt(attempt: Attempt, *, running: bool) -> str:
    name = attempt.name if attempt.task is None else f"{attempt.name} of task {attempt.task}"
    end = f"ended {_time(attempt.ended_at)} with {attempt.exit_code}"
    if attempt.exit_code is None:
        end = "runs" if running else "died without a word"
    told = ", told to end" if attempt.terminated else ""
    return f"{name}  job {attempt.job_id} on {attempt.host}  started {_time(attempt.started_at)}, {end}{told}"


def _time(moment: datetime | None) -> str:
    return "?" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def _attempt_json(attempt: Attempt) -> dict[str, object]:
    names = type(attempt).__struct_fields__
    raw = {"attempt" if name == "name" else name: getattr(attempt, name) for name in names}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in raw.items()}
