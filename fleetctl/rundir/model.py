"""What a run directory says, as frozen values: the record, the events, and the history that they add up to.

The directory is the truth about a run. Who writes what:

    run.json                      fleetctl submit, once
    spec.yaml                     fleetctl submit, once: the file as its user wrote it
    spec.json                     fleetctl submit, once: what was submitted, with --set and all defaults
    submissions/N/script.sh       fleetctl submit, once for each submission
    submissions/N/sbatch.out|err  sbatch itself
    submissions/N/claim.json      the first job of this submission, or a `void` by fleetctl; exclusive
    events/WRITER.jsonl           one writer each, appended and fsynced
    word.json                     the recovery daemon: its word to the next start (rundir.words); tasks/I/word.json
    pulse.json                    the head of its newest attempt, every few seconds: how the run is; tasks/I/pulse.json
    attempts/A.B/                 the job that claimed the attempt; output.log is what its steps print
    attempts/A.B/claim.json       the same: which checkpoints stood when it was claimed
    attempts/A.B/resume.json      the same: what it resumes from, and why not from a newer one
    attempts/A.B/interval.json    the same: how often it saves and why, under `interval: auto`
    attempts/A.B/head.json        the same: where its agents find the process that leads it
    attempts/A.B/save-now         the same: a request to save, for Checkpointer
    attempts/A.B/saves.jsonl      Checkpointer of rank 0: each save; load.json likewise, of the load
    attempts/A.B/progress.json    rank 0 of the training: of its own attempt, so a stray rank disturbs no later one
    attempts/A.B/evidence/        the head and the agents, of an attempt that seems to hang: stacks, the log's end
    tasks/I/attempts/A.B/         the same, of element I of a sweep
    logs/slurm-JOB.out            Slurm: what the batch script prints outside its steps
    python/                       fleetctl.train, for the training's PYTHONPATH
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct

SCHEMA_VERSION = 1
_ATTEMPT = re.compile(r"([0-9]+)\.([0-9]+)", re.ASCII)  # file systems and people leave other things beside attempts
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
AttemptNumber = tuple[int, int]


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
    NODE_LOST = "node_lost"  # a node of the job died, by the evidence of the node watch
    HUNG = "hung"  # the ranks are silent for longer than their phase explains: the head ends the attempt
    SAVE_ASKED = "save_asked"  # the training was asked to save now
    FENCED = "fenced"  # a newer attempt leads the run: this one ended its steps
    RETENTION = "retention"  # old checkpoints are about to be removed, as the run's policy says
    GIVEN_BACK = "given_back"  # the job has no batch script any more and is about to be cancelled by its own last head

    # Written before the deed by whoever does it: the job side itself, or `fleetctl requeue`
    REQUEUE = "requeue"
    REQUEUED = "requeued"  # Slurm was seen to have done it
    HELD = "held"  # nothing restarts the run until `fleetctl requeue`
    WORD = "word"  # the job side heeds what the daemon said to this start


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
    """progress.json as far as it could be read; a field that was not written is None.

    `at` is when the newest update was made; `first_step` and `first_at` are those of the first update of the process
    that wrote it. `attempt` is whose values these are, by its name.
    """

    training_step: int | None
    target_step: int | None
    loss: float | None
    done: bool = False
    at: datetime | None = None
    first_step: int | None = None
    first_at: datetime | None = None
    attempt: str | None = None
    loss_text: str | None = None  # of a loss that is no finite number: nan, inf, -inf, or why


class Save(Struct, frozen=True):
    """One line of saves.jsonl; `flag` is the id of the request that it answers, and `blocked_s` what the training
    waited for it, of the `total_s` that it took. `saved_at` is when it ended, `size_bytes` what was written."""

    training_step: int
    name: str
    committed: bool
    total_s: float
    flag: str | None
    blocked_s: float | None = None
    saved_at: datetime | None = None
    size_bytes: int | None = None


class SubmissionState(StrEnum):
    """What is known about the newest submission of a run."""

    NONE = "none"  # no intent yet: submit died before it
    UNKNOWN = "unknown"
    SUBMITTED = "submitted"
    REFUSED = "refused"
    VOIDED = "voided"


class Ending(StrEnum):
    """How an attempt ended, as its head saw it."""

    FINISHED = "finished"  # status 0, or the target step was reached
    STOPPED_EARLY = "stopped_early"  # status 0 before the target step
    FAILED = "failed"
    NODE_LOST = "node_lost"
    HUNG = "hung"  # its ranks were silent for too long, and the head ended it
    SAVED = "saved"  # it was asked to save and then ended, to go on in a later attempt
    TOLD = "told"  # Slurm told the job to end: cancelled, requeued, preempted, or at its limit
    FENCED = "fenced"


WITHOUT_GPUS = "Slurm started the job without its GPUs"  # a failure's name: Slurm's, and not the run's


class Attempt(Struct, frozen=True):
    """One start of the run by Slurm, or one restart inside the allocation (1.1 after 1.0), as its own events tell it;
    `exit_code` is None while it has not ended."""

    name: str
    job_id: str
    host: str
    started_at: datetime
    task: int | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    terminated: bool = False  # it was asked to end (SIGTERM) before it ended
    ending: Ending | None = None
    failure: str | None = None  # names the same failure again, over attempts
    progress_step: int | None = None  # of the newest checkpoint when it ended; else the last training step told
    resume_step: int | None = None
    nodes: str = ""
    code: dict[str, Any] | None = None  # git commit, dirty flag and diff digest of the working directory


def attempt_number(name: str) -> AttemptNumber | None:
    """`3.1` as (3, 1); None for what is no attempt's name."""
    match = _ATTEMPT.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def attempt_name(number: AttemptNumber) -> str:
    return f"{number[0]}.{number[1]}"


def comment_of(run_id: str, submission: int) -> str:
    """What the job's --comment says: the key that lookups search for."""
    return f"fleetctl:{run_id}/{submission}"
