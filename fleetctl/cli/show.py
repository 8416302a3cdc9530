"""`fleetctl show`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from fleetctl.cli.context import app
from fleetctl.cli.output import json_option, print_fields, print_json
from fleetctl.cli.runs import as_json as run_as_json
from fleetctl.cli.runs import look, run_argument, step_text, store_of, word_lines

if TYPE_CHECKING:
    from fleetctl.rundir.history import History
    from fleetctl.rundir.model import Attempt
    from fleetctl.rundir.store import RunDir
    from fleetctl.rundir.view import RunView


_NEWEST = 20  # lines of the timeline: with the fields above they fill one screen


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
    from fleetctl.rundir.timeline import timeline

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
                "timeline": [{"time": one.time.isoformat(), "text": one.text} for one in timeline(found.events())],
            }
        )
        return
    print_fields(_fields(seen, history, found))


def _fields(seen: RunView, history: History, run: RunDir) -> list[tuple[str, str]]:
    from fleetctl.rundir.timeline import timeline

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
        *(("word", text) for text in word_lines(app(), run, history)),
    ]
    shown = [(name, value) for name, value in fields if value]
    moments = timeline(run.events())
    lines = [f"{one.time.astimezone():%m-%d %H:%M:%S}  {one.text}" for one in moments[-_NEWEST:]]
    if len(moments) > _NEWEST:
        lines.insert(0, f"({len(moments) - _NEWEST} older lines: --json has them)")
    return shown + [("timeline" if number == 0 else "", line) for number, line in enumerate(lines)]


def _time(moment: datetime | None) -> str:
    return "?" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def _attempt_json(attempt: Attempt) -> dict[str, object]:
    names = type(attempt).__struct_fields__
    raw = {"attempt" if name == "name" else name: getattr(attempt, name) for name in names}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in raw.items()}
