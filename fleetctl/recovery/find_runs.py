"""Which rows of Slurm belong to which run, by what both say. Pure.

A job's comment and script are its user's words: they are hints, and only count where they agree with the record in the
folder, whose owner must be the job's user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from fleetctl.rundir.history import History, ended_well, last_attempts
from fleetctl.rundir.model import RUN_ID, Attempt, RunKind, SubmissionState
from fleetctl.rundir.view import RunState
from fleetctl.slurm.model import Job, has_task

_SCRIPT = re.compile(rf"(/.*)/({RUN_ID.pattern})/submissions/[1-9][0-9]{{0,8}}/script\.sh", re.DOTALL)

_COMMENT = re.compile(rf"fleetctl:({RUN_ID.pattern})/[0-9]+", re.ASCII)

Task = int | None


def folder_of(job: Job) -> str | None:
    """The folder of the run whose script the job runs; None: it runs no script of ours."""
    return _folder_of(job.command)


@lru_cache(maxsize=16_384)  # the same jobs in each pass
def _folder_of(command: str) -> str | None:
    match = _SCRIPT.fullmatch(command)
    return None if match is None else f"{match[1]}/{match[2]}"


def run_id_of(job: Job) -> str | None:
    """The run that the job says to be of: by its script, else by its comment."""
    if (folder := folder_of(job)) is not None:
        return folder.rpartition("/")[2]
    match = _COMMENT.fullmatch(job.comment)
    return None if match is None else match[1]


def by_base(jobs: Iterable[Job]) -> Mapping[str, tuple[Job, ...]]:
    """Rows by the id that their submission was told: of a plain job, an array, or a hetjob's leader."""
    found: dict[str, list[Job]] = {}
    for job in jobs:
        found.setdefault(str(job.id.base), []).append(job)
    return {base: tuple(rows) for base, rows in found.items()}


def rows_of(history: History, path: str, rows: Mapping[str, Sequence[Job]]) -> tuple[Job, ...]:
    """The rows of a run's job: of its id and user, and with its script or its comment. An id alone may be another
    job's by now, and anybody copies a comment."""
    record, comment = history.record, f"fleetctl:{history.record.run_id}/"
    return tuple(
        job
        for job in rows.get(history.job_id or "", ())
        if job.user == record.user and (folder_of(job) == path or job.comment.startswith(comment))
    )


def of_task(rows: Sequence[Job], task: Task) -> tuple[Job, ...]:
    """Of the rows of a run, those of one element of a sweep; of any other run, all of them."""
    if task is None:
        return tuple(rows)
    own = tuple(job for job in rows if job.id.array_index == task)
    return own or tuple(job for job in rows if has_task(job.pending_tasks, task))


def tasks_of(history: History, rows: Sequence[Job]) -> tuple[Task, ...]:
    """What is watched of a run: itself; of a sweep the elements that have begun or have a row of their own. Nothing was
    lost of those that have not."""
    if history.record.kind is not RunKind.SWEEP:
        return (None,)
    begun = {attempt.task for attempt in history.attempts if attempt.task is not None}
    return tuple(sorted(begun | {job.id.array_index for job in rows if job.id.array_index is not None}))


def is_over(history: History, task: Task, newest: Attempt | None, rows: Sequence[Job], since: datetime) -> bool:
    """Whether nothing can come of a run or element any more: it has no row in Slurm that may change, and has ended well
    or by a cancel, was never submitted, or gave no sign after `since`."""
    if any(not job.state.is_terminal for job in rows):
        return False
    if newest is not None and ended_well(newest):
        return True
    if rows:
        return False
    if history.cancelled_at is not None or history.observed_end in (RunState.CANCELLED, RunState.COMPLETED):
        return True
    return last_sign(history, newest) < since


def last_sign(history: History, newest: Attempt | None) -> datetime:
    """When the run last wrote anything that is known of it."""
    signs = [history.record.created_at]
    signs += [history.intent_at] if history.intent_at is not None else []
    if newest is not None:
        signs += [newest.started_at, *([newest.ended_at] if newest.ended_at is not None else [])]
    return max(signs)


def all_over(history: History, rows: Sequence[Job], since: datetime) -> bool:
    """Whether all of a run is over. What waits has a row."""
    newest = last_attempts(history)
    if history.state is SubmissionState.UNKNOWN and last_sign(history, None) >= since:
        return False
    if history.record.kind is not RunKind.SWEEP:
        return is_over(history, None, newest.get(None), rows, since)
    if any(not job.state.is_terminal for job in rows):
        return False
    of_index: dict[Task, list[Job]] = {}
    for job in rows:
        of_index.setdefault(job.id.array_index, []).append(job)
    if not newest:
        return is_over(history, None, None, rows, since)
    return all(is_over(history, task, one, of_index.get(task, ()), since) for task, one in newest.items())
