"""What a run directory says, as frozen values: the record, the events, and the history that they add up to.

The directory is the truth about a run. Who writes what:

    run.json                      fleetctl submit, once
    spec.yaml                     fleetctl submit, once: the file as its user wrote it
    spec.json                     fleetctl submit, once: what was submitted, with --set and all defaults
    submissions/N/script.sh       fleetctl submit, once for each submission
    submissions/N/sbatch.out|err  sbatch itself
    submissions/N/claim.json      the first job of this submission, or a `void` by fleetctl; exclusive
    events/WRITER.jsonl           one writer each, appended and fsynced
    attempts/A.B/                 the job that claimed the attempt; output.log is what its steps print
    attempts/A.B/progress.json    rank 0 of the training: of its own attempt, so a stray rank disturbs no later one
    tasks/I/attempts/A.B/         the same, of element I of a sweep
    logs/slurm-JOB.out            Slurm: what the batch script prints outside its steps
    python/                       fleetctl.train, for the training's PYTHONPATH
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct

SCHEMA_VERSION = 1


class RunKind(StrEnum):
    """How the run maps to Slurm."""

    PLAIN = "plain"
    HETJOB = "hetjob"
    SWEEP = "sweep"


class RunRecord(Struct, frozen=True):
    """run.json. Times are aware UTC; `nodes` is the number that the spec asks for, of one task of a sweep."""

    run_id: str
    name: str
    user: str
    created_at: datetime
    kind: RunKind
    spec_digest: str
    spec_source: str
    workdir: str
    nodes: int
    tasks: int
    cluster: str  # Slurm's ClusterName
    fleetctl_version: str


class EventKind(StrEnum):
    """What can happen to a run. The login side writes the first group, the job side the second."""

    INTENT = "intent"  # an sbatch is about to start
    SUBMITTED = "submitted"
    REFUSED = "refused"
    UNKNOWN = "unknown"  # sbatch gave no answer
    LOOKUP_ABSENT = "lookup_absent"  # an answered lookup that did not find the job
    VOIDED = "voided"  # proved absent: this submission can never start any more
    CANCEL = "cancel"
    OBSERVED_END = "observed_end"  # Slurm said how the job ended

    CLAIMED = "claimed"
    ATTEMPT_STARTED = "attempt_started"
    ATTEMPT_ENDED = "attempt_ended"
    DUPLICATE = "duplicate"  # a job that was not the owner ended itself
    NOT_STARTED = "not_started"  # the owner ended before its first step


class Event(Struct, frozen=True):
    """One line of an event file; `data` holds the kind's own fields."""

    time: datetime
    kind: EventKind
    data: dict[str, Any] = {}


class Claim(Struct, frozen=True):
    """claim.json of one submission: the job that owns it, or None when it was voided."""

    job_id: str | None
    cluster: str | None
    host: str
    time: datetime


class Progress(Struct, frozen=True):
    """progress.json as far as it could be read; a field that was not written is None."""

    training_step: int | None
    target_step: int | None
    loss: float | None


class SubmissionState(StrEnum):
    """What is known about the newest submission of a run."""

    NONE = "none"  # no intent yet: submit died before it
    UNKNOWN = "unknown"
    SUBMITTED = "submitted"
    REFUSED = "refused"
    VOIDED = "voided"


class Attempt(Struct, frozen=True):
    """One start of the run by Slurm, as its own events tell it; `exit_code` is None while it has not ended."""

    name: str
    job_id: str
    host: str
    started_at: datetime
    task: int | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    terminated: bool = False  # it was asked to end (SIGTERM) before it ended
    code: dict[str, Any] | None = None  # git commit, dirty flag and diff digest of the working directory


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


def comment_of(run_id: str, submission: int) -> str:
    """What the job's --comment says: the key that lookups search for."""
    return f"fleetctl:{run_id}/{submission}"


def add_up(record: RunRecord, events: tuple[Event, ...], claims: dict[int, Claim]) -> History:
    """Merge what all writers wrote. Their clocks need not agree: kinds and numbers decide, not times."""
    intents = {int(event.data["submission"]): event for event in events if event.kind is EventKind.INTENT}
    newest = max(intents, default=0)
    of_newest = [event for event in events if event.data.get("submission") == newest]
    kinds = {event.kind: event for event in of_newest}
    cancel = next((event for event in events if event.kind is EventKind.CANCEL), None)
    state, job_id, detail = _submission(kinds, claims.get(newest), cancelled=cancel is not None)
    attempts = _attempts(events)
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
        not_started=_not_started(of_newest, attempts),
        attempts=attempts,
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


def _not_started(events: list[Event], attempts: tuple[Attempt, ...]) -> dict[int | None, str]:
    counts: dict[int | None, int] = {}
    for attempt in attempts:
        counts[attempt.task] = counts.get(attempt.task, 0) + 1
    said = [event.data for event in events if event.kind is EventKind.NOT_STARTED]
    return {d.get("task"): str(d["why"]) for d in said if d.get("attempts") == counts.get(d.get("task"), 0)}


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
    """It ended with status 0 of its own accord: a training that saves when it is told to end has not finished."""
    return attempt.exit_code == 0 and not attempt.terminated


def finished_well(history: History) -> bool | None:
    """Whether every task's newest attempt ended well, by the run's own record; None: the record does not tell yet."""
    newest = last_attempts(history)
    if len(newest) == history.record.tasks and all(map(ended_well, newest.values())):
        return True
    failed = any(attempt.exit_code and not attempt.terminated for attempt in newest.values())
    return False if failed or history.not_started or history.cancelled_at or history.observed_end else None
