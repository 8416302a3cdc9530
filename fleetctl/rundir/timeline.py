"""What happened to a run, one line for each event that a person wants to read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from fleetctl.rundir.history import BY_DAEMON, BY_JOB
from fleetctl.rundir.model import Event, EventKind

_SOMETHING = {BY_JOB: "the job itself", BY_DAEMON: "the daemon"}
_MOST_PASSED = 5  # checkpoints that an attempt did not resume from


class Moment(Struct, frozen=True):
    """One line; `time` is the writer's clock, aware and in UTC."""

    time: datetime
    text: str


def timeline(events: Iterable[Event]) -> tuple[Moment, ...]:
    """By time. Where the clocks of two hosts differ, so does the order of what they wrote."""
    told = [Moment(event.time, text) for event in events if event.kind in _WORDS for text in _lines(event)]
    return tuple(sorted(told, key=lambda moment: moment.time))


def _lines(event: Event) -> Iterator[str]:
    yield _WORDS[event.kind](event.data)
    passed = event.data.get("passed_over") if event.kind is EventKind.ATTEMPT_STARTED else None
    for number, one in enumerate(passed or ()):
        if number == _MOST_PASSED:
            yield f"  and not from {len(passed or ()) - number} more: resume.json"
            break
        yield f"  not from {one}"


def _started(data: Mapping[str, Any]) -> str:
    step = data.get("resume_step")
    whence = "from scratch" if step is None else f"from training step {step}"
    why = f" ({data['why']})" if data.get("why") else ""
    return f"{_attempt(data)} starts {whence} on {data.get('nodes') or data['host']}{why}"


def _ended(data: Mapping[str, Any]) -> str:
    ending = str(data.get("ending") or ("told" if data.get("terminated") else "ended")).replace("_", " ")
    what = data.get("failure") or f"status {data['exit_code']}"
    return f"{_attempt(data)} ended: {ending} ({what})"


def _attempt(data: Mapping[str, Any]) -> str:
    of = "" if data.get("task") is None else f" of element {data['task']}"
    return f"attempt {data['attempt']}{of}"


def _requeue(data: Mapping[str, Any]) -> str:
    by = str(data.get("by"))
    who = _SOMETHING.get(by, by)
    extra = f", from training step {data['from_step']}" if data.get("from_step") is not None else ""
    extra += f", without {data['exclude']}" if data.get("exclude") else ""
    return f"requeue by {who}: {data['why']}{extra}"


def word_text(data: Mapping[str, Any]) -> str:
    """What the daemon said to the next start; of an event, or as words.word_out has it."""
    said = ["not to start"] if data.get("hold") else []
    said += [f"from training step {data['at_most_step']} at most"] if data.get("at_most_step") is not None else []
    suspects = [str(one) for one in data.get("suspects") or ()]
    more = f" and {len(suspects) - _MOST_PASSED} more" if len(suspects) > _MOST_PASSED else ""
    said += [f"not from {', '.join(suspects[:_MOST_PASSED])}{more}"] if suspects else []
    return f"{data.get('by')} says: {'; '.join(said) or 'nothing'}: {data.get('why')}"


def _hung(data: Mapping[str, Any]) -> str:
    who = f"rank {data['rank']}" if data.get("rank") is not None else "every rank"
    where = f" on {data['node']}" if data.get("node") else ""
    kept = f", evidence: {', '.join(data['evidence'])}" if data.get("evidence") else ""
    return f"{_attempt(data)} hangs in {data['phase']}: {who}{where} silent for {data['silent_s']:.0f} s{kept}"


_WORDS: Mapping[EventKind, Callable[[Mapping[str, Any]], str]] = {
    EventKind.INTENT: lambda data: f"submission {data['submission']} begins",
    EventKind.SUBMITTED: lambda data: f"submitted as job {data['job_id']}",
    EventKind.REFUSED: lambda data: f"refused: {data['text']}",
    EventKind.UNKNOWN: lambda data: f"sbatch gave no answer: {data['text']}",
    EventKind.VOIDED: lambda data: f"submission {data['submission']} is void",
    EventKind.CANCEL: lambda data: f"cancel asked by {data.get('by')}",
    EventKind.OBSERVED_END: lambda data: f"Slurm says: {data['state']}",
    EventKind.ATTEMPT_STARTED: _started,
    EventKind.ATTEMPT_ENDED: _ended,
    EventKind.DUPLICATE: lambda data: f"job {data['job_id']} was a duplicate and ended itself",
    EventKind.NOT_STARTED: lambda data: f"job {data['job_id']} started nothing: {data['why']}",
    EventKind.NODE_LOST: lambda data: f"{data['node']} is lost: {data['evidence']}",
    EventKind.HUNG: _hung,
    EventKind.SAVE_ASKED: lambda data: f"{_attempt(data)} is asked to save: {data['why']}",
    EventKind.FENCED: lambda data: f"the head on {data['host']} stands by: a newer attempt leads",
    EventKind.RETENTION: lambda data: f"{data['by']} removes {len(data['names'])} old checkpoints",
    EventKind.GIVEN_BACK: lambda data: f"the job is given back: {data['why']}",
    EventKind.REQUEUE: _requeue,
    EventKind.REQUEUED: lambda data: f"Slurm requeued the job (restart {data['restarts']})",
    EventKind.WORD: word_text,
    EventKind.HELD: lambda data: f"held: {data['why']}",
}
