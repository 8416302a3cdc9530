"""The rows of one run, from what its directory says. Pure; only what a database can hold comes out.

A user writes that directory: what no fleetctl writes there (a number beyond 64 bits, a time without its zone, an
attempt without a number) is a ValueError, and the run is put aside as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from fleetctl.accounting.ingest_ends import Key, after_of, interruptions_of
from fleetctl.accounting.ingest_values import LARGEST, Row, milliseconds_of, ms_of, task_of, whole_of, words_of
from fleetctl.accounting.node_lists import hosts_of
from fleetctl.rundir.history import History, add_up, finished_well, last_attempts
from fleetctl.rundir.model import (
    Attempt,
    AttemptNumber,
    Claim,
    Ending,
    Event,
    EventKind,
    Progress,
    RunRecord,
    Save,
    attempt_number,
)
from fleetctl.slurm.model import JobId

_MOST_HOSTS = 4_000_000  # names in the node lists of one run that are counted: some 5 s; of the rest it is not known
CLOCKS_S = 600  # a login node's clock may be that far ahead of the controller's; no job id comes again so soon

RUNS = (
    *("run_id", "cluster", "name", "user", "kind", "nodes", "tasks", "spec_digest", "created_ms", "cancelled_ms"),
    *("finished", "held", "checkpoints", "digest"),
)
RUN_JOBS = ("run_id", "cluster", "job_id", "user", "since_s")
ATTEMPTS = (
    *("run_id", "task", "major", "minor", "job_id", "host", "nodes", "node_count", "started_ms", "ended_ms"),
    *("exit_status", "ending", "failure", "terminated", "resume_step", "first_step", "first_step_ms", "last_step"),
    *("last_step_ms", "done"),
)
CHECKPOINTS = (
    *("run_id", "task", "major", "minor", "sequence", "training_step", "name", "committed", "saved_ms"),
    *("blocked_ms", "total_ms", "bytes"),
)
ACTIONS = ("run_id", "sequence", "at_ms", "task", "kind", "by", "why")

# What was done to the run, or to the world for it; the rest tells how it goes on
_ACTIONS: Mapping[EventKind, str] = {
    EventKind.INTENT: "comment",
    EventKind.REFUSED: "text",
    EventKind.VOIDED: "",
    EventKind.CANCEL: "",
    EventKind.OBSERVED_END: "state",
    EventKind.DUPLICATE: "",
    EventKind.NOT_STARTED: "why",
    EventKind.NODE_LOST: "evidence",
    EventKind.HUNG: "phase",
    EventKind.SAVE_ASKED: "why",
    EventKind.FENCED: "",
    EventKind.RETENTION: "keep",
    EventKind.GIVEN_BACK: "why",
    EventKind.REQUEUE: "why",
    EventKind.REQUEUED: "",
    EventKind.HELD: "why",
    EventKind.WORD: "why",
}
_GOES_ON = frozenset(
    {Ending.SAVED, Ending.NODE_LOST, Ending.HUNG, Ending.FENCED, Ending.TOLD}
)  # something else follows


class AttemptRead(Struct, frozen=True):
    """What one attempt's own files say; `task` None: the run is no sweep."""

    task: int | None
    number: AttemptNumber
    progress: Progress | None
    saves: tuple[Save, ...]


class RunRead(Struct, frozen=True):
    """All that counts of one run. `checkpoints` is the format in its spec, "" for none, None where it is not known."""

    record: RunRecord
    events: tuple[Event, ...]
    claims: dict[int, Claim]
    attempts: tuple[AttemptRead, ...]
    checkpoints: str | None


class RunRows(Struct, frozen=True):
    """The rows of each table, in the order of its columns above."""

    runs: tuple[Row, ...]
    run_jobs: tuple[Row, ...]
    attempts: tuple[Row, ...]
    checkpoints: tuple[Row, ...]
    interruptions: tuple[Row, ...]
    actions: tuple[Row, ...]


def run_rows(read: RunRead, user: str, digest: int) -> RunRows:
    """All rows of one run; the causes of its interruptions are ranked by what its own record says.

    :param user: who owns the folder.
    :raises Exception: ValueError, KeyError, TypeError and their like for what fleetctl never wrote.
    """
    record, run_id = read.record, words_of(read.record.run_id)
    events = tuple(sorted(read.events, key=lambda event: event.time))  # stable: of one writer they stay in order
    history = add_up(record, events, read.claims)
    attempts = _numbered(history.attempts)
    progress = {(of.task, of.number): of for of in read.attempts}
    run = (
        *(run_id, words_of(record.cluster), words_of(record.name), user, record.kind.value),
        *(whole_of(record.nodes), whole_of(record.tasks), words_of(record.spec_digest), ms_of(record.created_at)),
        *(None if history.cancelled_at is None else ms_of(history.cancelled_at), _finished(history, events)),
        int(bool(history.held) and history.cancelled_at is None),
        None if read.checkpoints is None else words_of(read.checkpoints),
        digest,
    )
    return RunRows(
        (run,),
        tuple(_run_jobs(read, run_id, user, events)),
        tuple(_attempts(run_id, attempts, progress)),
        tuple(row for of in read.attempts for row in _checkpoints(run_id, of)),
        tuple(interruptions_of(run_id, history, attempts, events)),
        tuple(_actions(run_id, events)),
    )


def _numbered(attempts: Iterable[Attempt]) -> dict[Key, Attempt]:
    """In their order; of two that tell they are the same, the first."""
    found: dict[Key, Attempt] = {}
    for attempt in attempts:
        number = attempt_number(attempt.name)
        if number is None:
            raise ValueError(f"{attempt.name[:40]!r} is no attempt")
        whole_of(number[0]), whole_of(number[1]), task_of(attempt.task)
        found.setdefault((attempt.task, number), attempt)
    return found


def _finished(history: History, events: Sequence[Event]) -> int | None:
    """1: every task ended well. 0: it is over and did not. None: it goes on, waits for a person, or nobody knows."""
    if finished_well(history):
        return 1
    if history.cancelled_at is not None:
        return 0
    if history.held or history.wishes:
        return None
    if history.observed_end is not None:
        return 0
    asked = {after_of(event) for event in events if event.kind is EventKind.REQUEUE}
    counts = Counter(attempt.task for attempt in history.attempts)
    newest = last_attempts(history).items()
    over = {task for task, attempt in newest if attempt.exit_code is not None and attempt.ending not in _GOES_ON}
    over = {task for task in over | history.not_started.keys() if (task, counts[task]) not in asked}
    return 0 if len(over) == history.record.tasks else None


def _run_jobs(read: RunRead, run_id: str, user: str, events: Sequence[Event]) -> Iterator[Row]:
    """Every job that was ever the run's. A job id says nothing of records older than its submission."""
    intents = {event.data.get("submission"): ms_of(event.time) for event in events if event.kind is EventKind.INTENT}
    named: dict[tuple[str, int], int] = {}
    jobs = [
        (event.data["job_id"], event.data.get("cluster"), event.data.get("submission"), ms_of(event.time))
        for event in events
        if event.kind is EventKind.SUBMITTED
    ]
    jobs += [(claim.job_id, claim.cluster, number, ms_of(claim.time)) for number, claim in read.claims.items()]
    for job_id, cluster, submission, at_ms in jobs:
        if job_id is None:  # a void
            continue
        since_s = min(intents.get(submission, at_ms), at_ms) // 1000 - CLOCKS_S
        key = words_of(cluster or read.record.cluster), JobId.parse(str(job_id)).base
        named[key] = min(named.get(key, since_s), since_s)
    for (cluster, base), since_s in sorted(named.items()):
        yield run_id, cluster, base, user, since_s


def _attempts(run_id: str, attempts: Mapping[Key, Attempt], own: Mapping[Key, AttemptRead]) -> Iterator[Row]:
    counts: dict[str, int | None] = {}
    left = _MOST_HOSTS
    for key, attempt in attempts.items():
        nodes = words_of(attempt.nodes)
        if nodes not in counts:
            count = len(hosts_of.__wrapped__(nodes)) if left > 0 else 0  # a user's lists are not worth keeping
            counts[nodes], left = count or None, left - count
        yield _attempt(run_id, key, attempt, own.get(key), nodes, counts[nodes])


def _attempt(
    run_id: str, key: Key, attempt: Attempt, own: AttemptRead | None, nodes: str, node_count: int | None
) -> Row:
    told = own.progress if own is not None else None
    if told is None or told.attempt not in (None, attempt.name):  # a process of another attempt wrote it
        told = Progress(None, None, None)
    return (
        *(run_id, task_of(key[0]), *key[1], words_of(str(attempt.job_id)), words_of(str(attempt.host)), nodes),
        *(node_count, ms_of(attempt.started_at)),
        None if attempt.ended_at is None else ms_of(attempt.ended_at),
        None if attempt.exit_code is None else whole_of(attempt.exit_code),
        *("" if attempt.ending is None else attempt.ending.value, words_of(attempt.failure or "")),
        *(int(attempt.terminated), None if attempt.resume_step is None else whole_of(attempt.resume_step)),
        *(told.first_step, None if told.first_at is None else ms_of(told.first_at)),
        *(told.training_step, None if told.at is None else ms_of(told.at), int(told.done)),
    )


def _checkpoints(run_id: str, of: AttemptRead) -> Iterator[Row]:
    for sequence, save in enumerate(of.saves):
        if abs(save.training_step) <= LARGEST:
            yield (
                *(run_id, task_of(of.task), *of.number, sequence, save.training_step, words_of(save.name)),
                *(int(save.committed), None if save.saved_at is None else ms_of(save.saved_at)),
                *(milliseconds_of(save.blocked_s), milliseconds_of(save.total_s), save.size_bytes),
            )


def _actions(run_id: str, events: Iterable[Event]) -> Iterator[Row]:
    told = [event for event in events if event.kind in _ACTIONS]
    for sequence, event in enumerate(told):
        data = event.data
        by = data.get("by") or (f"attempt {data['attempt']}" if data.get("attempt") else "")
        why = str(data.get(_ACTIONS[event.kind]) or "")
        if event.kind in (EventKind.NODE_LOST, EventKind.HUNG):
            why = f"{data['node']}: {why}"
        yield (
            run_id,
            sequence,
            ms_of(event.time),
            task_of(data.get("task")),
            event.kind.value,
            words_of(str(by)),
            words_of(why),
        )
