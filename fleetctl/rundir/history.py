"""The events of one run, added up. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from fleetctl.rundir.model import Attempt, Claim, Ending, Event, EventKind, RunRecord, SubmissionState

BY_JOB = "job"  # `by` of a requeue that the job side asks for itself; a person's is the user's name after "user "
BY_DAEMON = "daemon"  # the same, of the recovery daemon
NOT_PERSONS = frozenset({BY_JOB, BY_DAEMON})  # what they ask for lifts no hold and resets no brake
Counts = Counter[int | None]  # how many attempts each task has had
_ENDINGS = {ending.value: ending for ending in Ending}  # a newer fleetctl may know more of them


class Wish(Struct, frozen=True):
    """What a person asked for with `fleetctl requeue`: resume from this training step at most, stay off these nodes.
    It lifts the `holds` that there were then, and none that came after it."""

    from_step: int | None
    exclude: str
    by: str
    holds: int = 0


class Heeded(Struct, frozen=True):
    """What the daemon said and no person has overruled since: the next attempt resumes from this training step at most,
    and none from the `suspects`, which are names of checkpoints."""

    at_most_step: int | None = None
    suspects: frozenset[str] = frozenset()


class History(Struct, frozen=True):
    """The events of one run, added up. `submission` counts from 1; 0 means none."""

    record: RunRecord
    submission: int
    state: SubmissionState
    job_id: str | None
    cluster: str  # where the job is
    intent_at: datetime | None
    detail: str  # Slurm's words for REFUSED and UNKNOWN
    absent_lookups: tuple[datetime, ...]  # start times of answered lookups that found nothing, of this submission
    cancelled_at: datetime | None
    observed_end: str | None  # a state of the run, as Slurm told it after the newest attempt
    not_started: dict[int | None, str]  # task -> why its job ended before the first step, since its newest attempt
    attempts: tuple[Attempt, ...]  # by task and number
    held: dict[int | None, str] = {}  # task -> why, until somebody asks for a requeue
    holds: dict[int | None, int] = {}  # task -> how often it was held since its newest attempt
    given_back: frozenset[int | None] = frozenset()  # tasks whose job was cancelled by their own last head
    wishes: dict[int | None, Wish] = {}  # of the newest `fleetctl requeue`, until an attempt has followed it
    asked: dict[int | None, int] = {}  # how many attempts a task had had when a person last asked for a requeue
    asks: dict[int | None, int] = {}  # how often persons have asked for a requeue of a task
    heeded: dict[int | None, Heeded] = {}  # of the daemon's words, by task


def add_up(record: RunRecord, events: tuple[Event, ...], claims: dict[int, Claim]) -> History:
    """Merge what all writers wrote. Their clocks need not agree: kinds and numbers decide, not times."""
    intents = {int(event.data["submission"]): event for event in events if event.kind is EventKind.INTENT}
    newest = max(intents, default=0)
    of_newest = [event for event in events if event.data.get("submission") == newest]
    kinds = {event.kind: event for event in of_newest}
    cancel = next((event for event in events if event.kind is EventKind.CANCEL), None)
    state, job_id, detail = _submission(kinds, claims.get(newest), cancelled=cancel is not None)
    attempts = _attempts(events)
    counts = Counter(attempt.task for attempt in attempts)
    holds, asked = _holds(events, counts), _asked(events)
    asks = Counter(event.data.get("task") for event in events if _is_by_person(event))
    open_ = {task: data for task, data in asked.items() if data.get("attempts") == counts[task]}
    wishes = {task: _wish(data) for task, data in open_.items()}
    submitted = kinds[EventKind.SUBMITTED].data if EventKind.SUBMITTED in kinds else {}
    return History(
        record=record,
        submission=newest,
        state=state if newest else SubmissionState.NONE,
        job_id=job_id,
        cluster=submitted.get("cluster") or record.cluster,
        intent_at=intents[newest].time if newest else None,
        detail=detail,
        absent_lookups=tuple(sorted(e.time for e in of_newest if e.kind is EventKind.LOOKUP_ABSENT)),
        cancelled_at=cancel.time if cancel else None,
        observed_end=_observed_end(of_newest, attempts),
        not_started=_not_started(of_newest, counts),
        attempts=attempts,
        held={task: why[-1] for task, why in holds.items() if len(why) > (wishes[task].holds if task in wishes else 0)},
        given_back=frozenset(e.data.get("task") for e in events if _is_of_newest(e, EventKind.GIVEN_BACK, counts)),
        holds={task: len(why) for task, why in holds.items()},
        wishes=wishes,
        asked={task: int(data.get("attempts") or 0) for task, data in asked.items()},
        asks=asks,
        heeded=_heeded(events, counts, asks),
    )


def _submission(
    kinds: dict[EventKind, Event], claim: Claim | None, *, cancelled: bool
) -> tuple[SubmissionState, str | None, str]:
    """A claim by a job is the strongest word, then a void, then sbatch's answer."""
    if claim is not None:
        if claim.job_id is not None:
            return SubmissionState.SUBMITTED, claim.job_id, ""
        gone = "the job never reached Slurm"
        given_up = "cancelled while it was not known whether there is a job; should one start, it ends itself"
        return SubmissionState.VOIDED, None, given_up if cancelled else gone
    if EventKind.SUBMITTED in kinds:
        return SubmissionState.SUBMITTED, str(kinds[EventKind.SUBMITTED].data["job_id"]), ""
    if EventKind.REFUSED in kinds:
        return SubmissionState.REFUSED, None, str(kinds[EventKind.REFUSED].data["text"])
    unknown = kinds.get(EventKind.UNKNOWN)
    return SubmissionState.UNKNOWN, None, str(unknown.data["text"]) if unknown else "submit ended before sbatch did"


def _observed_end(events: list[Event], attempts: tuple[Attempt, ...]) -> str | None:
    """What Slurm said after the newest attempt: a word about an earlier one says nothing of a requeued run."""
    said = [event for event in events if event.kind is EventKind.OBSERVED_END]
    last = max((e for e in said if e.data.get("attempts") == len(attempts)), key=lambda e: e.time, default=None)
    return None if last is None else str(last.data["state"])


def _not_started(events: list[Event], counts: Counts) -> dict[int | None, str]:
    said = [event.data for event in events if event.kind is EventKind.NOT_STARTED]
    return {d.get("task"): str(d["why"]) for d in said if d.get("attempts") == counts[d.get("task")]}


def _is_of_newest(event: Event, kind: EventKind, counts: Counts) -> bool:
    """Whether nothing of its task has started since."""
    return event.kind is kind and event.data.get("attempts") == counts[event.data.get("task")]


def _holds(events: tuple[Event, ...], counts: Counts) -> dict[int | None, list[str]]:
    """Why each task was held since its newest attempt, in the order of its files' lines."""
    found: dict[int | None, list[str]] = {}
    for event in events:
        if _is_of_newest(event, EventKind.HELD, counts):
            found.setdefault(event.data.get("task"), []).append(str(event.data["why"]))
    return found


def _asked(events: tuple[Event, ...]) -> dict[int | None, dict[str, Any]]:
    """The newest requeue that a person asked for, of each task."""
    asked = [event for event in events if _is_by_person(event)]
    return {event.data.get("task"): event.data for event in sorted(asked, key=lambda event: event.time)}


def _is_by_person(event: Event) -> bool:
    return event.kind is EventKind.REQUEUE and event.data.get("by") not in NOT_PERSONS


def _heeded(events: tuple[Event, ...], counts: Counts, asks: Counts) -> dict[int | None, Heeded]:
    """The words of the daemon that starts of a task have heeded, while no person has asked for a requeue since."""
    found: dict[int | None, Heeded] = {}
    for event in events:
        task = event.data.get("task")
        if event.kind is not EventKind.WORD or int(event.data.get("wishes") or 0) < asks[task]:
            continue
        before = found.get(task, Heeded())
        step = event.data.get("at_most_step") if _is_of_newest(event, EventKind.WORD, counts) else None
        steps = [one for one in (before.at_most_step, step) if one is not None]
        suspects = before.suspects | frozenset(map(str, event.data.get("suspects") or ()))
        found[task] = Heeded(min(steps, default=None), suspects)
    return found


def _wish(data: Mapping[str, Any]) -> Wish:
    return Wish(
        from_step=data.get("from_step"),
        exclude=str(data.get("exclude") or ""),
        by=str(data.get("by") or ""),
        holds=int(data.get("holds") or 0),
    )


def attempts_of(attempts: tuple[Attempt, ...], task: int | None) -> int:
    """How many attempts one task has had."""
    return sum(attempt.task == task for attempt in attempts)


def _attempts(events: tuple[Event, ...]) -> tuple[Attempt, ...]:
    ends = {(e.data["attempt"], e.data.get("task")): e for e in events if e.kind is EventKind.ATTEMPT_ENDED}
    attempts = []
    for event in events:
        if event.kind is not EventKind.ATTEMPT_STARTED:
            continue
        data = event.data
        end = ends.get((data["attempt"], data.get("task")))
        attempts.append(
            Attempt(
                name=data["attempt"],
                job_id=data["job_id"],
                host=data["host"],
                started_at=event.time,
                task=data.get("task"),
                ended_at=end.time if end else None,
                exit_code=end.data["exit_code"] if end else None,
                terminated=bool(end and end.data.get("terminated")),
                code=data.get("code"),
                ending=_ENDINGS.get(end.data.get("ending", "")) if end else None,
                failure=end.data.get("failure") if end else None,
                progress_step=end.data.get("progress_step") if end else None,
                resume_step=data.get("resume_step"),
                nodes=str(data.get("nodes") or ""),
            )
        )
    return tuple(sorted(attempts, key=_order))


def _order(attempt: Attempt) -> tuple[int, int, int]:
    number, _, sub = attempt.name.partition(".")
    return -1 if attempt.task is None else attempt.task, int(number), int(sub)


def last_attempts(history: History) -> dict[int | None, Attempt]:
    """The newest attempt of each task of a sweep; a plain run has one, under None."""
    return {attempt.task: attempt for attempt in history.attempts}


def ended_well(attempt: Attempt) -> bool:
    """It ended with status 0 of its own accord: a training that saves when it is told to end has not finished, and
    neither has one that stopped before its target step."""
    return attempt.exit_code == 0 and not attempt.terminated and attempt.ending in (None, Ending.FINISHED)


def finished_well(history: History) -> bool | None:
    """Whether every task's newest attempt ended well, by the run's own record; None: the record does not tell yet."""
    newest = last_attempts(history)
    if len(newest) == history.record.tasks and all(map(ended_well, newest.values())):
        return True
    failed = any(attempt.exit_code and not attempt.terminated for attempt in newest.values())
    failed = failed or bool(history.held)
    return False if failed or history.not_started or history.cancelled_at or history.observed_end else None
