"""One run as a person sees it: its own record and Slurm's word, joined. Pure.

`jobs is None` means that Slurm was not heard, which is never the same as no jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from fleetctl.rundir.history import History, ended_well, last_attempts
from fleetctl.rundir.model import Attempt, Progress, RunKind, SubmissionState
from fleetctl.slurm.model import BaseState, Job, StateFlag, has_task


class RunState(StrEnum):
    """The state of a run."""

    SUBMISSION_UNKNOWN = "submission_unknown"  # there may or may not be a job
    NOT_SUBMITTED = "not_submitted"  # there is no job and will be none
    PENDING = "pending"
    RUNNING = "running"
    COMPLETING = "completing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    NODE_FAIL = "node_fail"
    PREEMPTED = "preempted"
    HELD = "held"  # the job side gave up: nothing restarts it until `fleetctl requeue`
    LOST = "lost"  # Slurm has forgotten the job and nothing tells how it ended
    UNKNOWN = "unknown"  # Slurm did not answer, or answered what we do not know

    @property
    def is_finished(self) -> bool:
        """Nothing of this run is in Slurm any more."""
        return self not in _UNFINISHED


_UNFINISHED = frozenset(
    {RunState.SUBMISSION_UNKNOWN, RunState.PENDING, RunState.RUNNING, RunState.COMPLETING, RunState.UNKNOWN}
)
_WORDS = {state.value: state for state in RunState}  # a newer fleetctl may know more of them
_ENDED: Mapping[BaseState, RunState] = {
    BaseState.COMPLETED: RunState.COMPLETED,
    BaseState.FAILED: RunState.FAILED,
    BaseState.OUT_OF_MEMORY: RunState.FAILED,
    BaseState.BOOT_FAIL: RunState.FAILED,
    BaseState.CANCELLED: RunState.CANCELLED,
    BaseState.TIMEOUT: RunState.TIMEOUT,
    BaseState.DEADLINE: RunState.TIMEOUT,
    BaseState.NODE_FAIL: RunState.NODE_FAIL,
    BaseState.PREEMPTED: RunState.PREEMPTED,
}
# squeue shows a flag in place of the base state. Waiting for nodes to boot, or for another start:
_NOT_STARTED = frozenset(
    {
        StateFlag.CONFIGURING,
        StateFlag.EXPEDITING,
        StateFlag.POWER_UP_NODE,
        StateFlag.REQUEUED,
        StateFlag.REQUEUE_FED,
        StateFlag.REQUEUE_HOLD,
        StateFlag.RESV_DEL_HOLD,
        StateFlag.SPECIAL_EXIT,
    }
)
_STARTED = frozenset({StateFlag.RESIZING, StateFlag.SIGNALING, StateFlag.STOPPED})
# Of several parts, the first of these that occurs names the whole: what still moves first, then the worst end.
_PRECEDENCE = (
    RunState.UNKNOWN,
    RunState.RUNNING,
    RunState.COMPLETING,
    RunState.PENDING,
    RunState.HELD,
    RunState.NODE_FAIL,
    RunState.FAILED,
    RunState.TIMEOUT,
    RunState.PREEMPTED,
    RunState.CANCELLED,
    RunState.LOST,
    RunState.COMPLETED,
)


class RunView(Struct, frozen=True):
    """The fields that `ls` and `show` print; None is unknown or not applicable."""

    run_id: str
    name: str
    job_id: str | None
    state: RunState
    reason: str | None
    attempt: str | None
    nodes: int
    node_list: str | None
    training_step: int | None
    target_step: int | None
    loss: float | None
    tasks: int
    tasks_by_state: dict[str, int] | None
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    exit_code: int | None


class Queue(Struct, frozen=True):
    """One answer of Slurm: the jobs of `asker`, or of another user, on `cluster`, by base id."""

    cluster: str
    asker: str
    by_base: dict[str, list[Job]]


def queue_of(cluster: str, asker: str, jobs: Iterable[Job]) -> Queue:
    """Jobs under their base id: the id of a plain job, an array, or a hetjob's leader."""
    by_base: dict[str, list[Job]] = {}
    for job in jobs:
        by_base.setdefault(str(job.id.base), []).append(job)
    return Queue(cluster, asker, by_base)


def jobs_of(history: History, run_path: str, queue: Queue | None) -> list[Job] | None:
    """The run's jobs in an answer of Slurm; None when the answer says nothing about this run.

    A job id may by now belong to another job, and users edit comments: one of script and comment must be the run's. An
    answer of another cluster, or the absence of somebody else's jobs, which a site may hide (slurm.conf.5,
    PrivateData), tells nothing.
    """
    if queue is None or queue.cluster != history.cluster:
        return None
    scripts, comment = f"{run_path}/submissions/", f"fleetctl:{history.record.run_id}/"
    found = queue.by_base.get(history.job_id or "", ())
    mine = [job for job in found if job.command.startswith(scripts) or job.comment.startswith(comment)]
    return mine if mine or queue.asker == history.record.user else None


def view(history: History, progress: Progress | None, jobs: Sequence[Job] | None) -> RunView:
    """Join the run's own record with its jobs in Slurm (already checked to be its own)."""
    tasks = _task_states(history, jobs)
    state, reason = _state(history, tasks, jobs)
    current = history.attempts[-1] if history.attempts else None
    running = [job for job in jobs or () if job.node_list]
    sweep = history.record.kind is RunKind.SWEEP
    return RunView(
        run_id=history.record.run_id,
        name=history.record.name,
        job_id=history.job_id,
        state=state,
        reason=reason,
        attempt=current.name if current and not sweep else None,
        nodes=history.record.nodes,
        node_list=",".join(dict.fromkeys(job.node_list for job in running)) or None,
        training_step=progress.training_step if progress else None,
        target_step=progress.target_step if progress else None,
        loss=progress.loss if progress else None,
        tasks=history.record.tasks,
        tasks_by_state=_count(tasks) if sweep and history.state is SubmissionState.SUBMITTED else None,
        submitted_at=history.intent_at or history.record.created_at,
        started_at=history.attempts[0].started_at if history.attempts else None,
        ended_at=current.ended_at if current and state.is_finished and not sweep else None,
        exit_code=current.exit_code if current and state.is_finished and not sweep else None,
    )


def _state(history: History, tasks: Sequence[RunState], jobs: Sequence[Job] | None) -> tuple[RunState, str | None]:
    if history.state is SubmissionState.UNKNOWN:
        return RunState.SUBMISSION_UNKNOWN, history.detail
    if history.state is not SubmissionState.SUBMITTED:
        return RunState.NOT_SUBMITTED, history.detail or None
    state = next(state for state in _PRECEDENCE if state in tasks)
    if state is RunState.UNKNOWN and jobs is None:
        return state, f"nothing was heard from cluster {history.cluster}"
    if not state.is_finished:
        waiting = (job.reason for job in jobs or () if _of_job(job) is RunState.PENDING)
        return state, next((reason for reason in waiting if reason not in ("", "None")), None)
    if state is RunState.HELD:
        return state, next(iter(history.held.values()), None)
    return state, next(iter(history.not_started.values()), None) if state is RunState.FAILED else None


def _task_states(history: History, jobs: Sequence[Job] | None) -> list[RunState]:
    """One state for each task of a sweep; one for the whole of any other run."""
    heard, newest = jobs is not None, last_attempts(history)
    if history.record.kind is not RunKind.SWEEP:
        seen = [_with_record(_of_job(job), history, None) for job in jobs or ()]
        return seen or [_from_record(history, newest.get(None), None, heard=heard)]
    elements = ((job.id.array_index, job) for job in jobs or () if job.id.array_index is not None)
    seen_of = {index: _with_record(_of_job(job), history, index) for index, job in elements}
    rests = [job for job in jobs or () if job.pending_tasks]

    def of_task(task: int) -> RunState:
        if task in seen_of:
            return seen_of[task]
        rest = next((job for job in rests if has_task(job.pending_tasks, task)), None)
        return _of_job(rest) if rest else _from_record(history, newest.get(task), task, heard=heard)

    return [of_task(task) for task in range(history.record.tasks)]


def _of_job(job: Job) -> RunState:
    state = job.state
    if state.is_terminal and state.base is not None:
        return _ENDED.get(state.base, RunState.UNKNOWN)
    if state.unknown:
        return RunState.UNKNOWN
    if state.base is BaseState.PENDING or state.flags & _NOT_STARTED:
        return RunState.PENDING
    if state.base in (BaseState.RUNNING, BaseState.SUSPENDED) or state.flags & _STARTED:
        return RunState.RUNNING
    return RunState.COMPLETING


def _with_record(state: RunState, history: History, task: int | None) -> RunState:
    """Slurm's word about an ended job, and what only the record knows: that the run is held, and that the job was
    cancelled by its own last head, which no user's cancel is."""
    if history.cancelled_at is None and state.is_finished and task in history.held:
        return RunState.HELD
    given_back = task in history.given_back and history.cancelled_at is None
    if given_back and state in (RunState.CANCELLED, RunState.COMPLETING):  # the latter until its dead nodes are DOWN
        return _from_record(history, last_attempts(history).get(task), task, heard=True)
    return state


def _from_record(history: History, attempt: Attempt | None, task: int | None, *, heard: bool) -> RunState:
    """How a task that is not in Slurm's answer ended, by the run's own record.

    Slurm's earlier word about the whole beats the status that the job side saw (out of memory, a node that died at the
    end); of one element of a sweep its own status tells more. While Slurm was not heard, a bad status is no end: a
    failed or stopped attempt may have been requeued. A wish to cancel is never an end by itself.
    """
    if task in history.held and history.cancelled_at is None:
        return RunState.HELD
    clean = None
    if attempt is not None and attempt.exit_code is not None and not attempt.terminated:
        clean = RunState.COMPLETED if ended_well(attempt) else RunState.FAILED
    observed = _WORDS.get(history.observed_end or "")
    if clean is not None and observed is not None:
        return clean if history.record.kind is RunKind.SWEEP else observed
    if observed is not None or clean is RunState.COMPLETED:
        return observed or RunState.COMPLETED
    if not heard:
        return RunState.UNKNOWN
    if clean is RunState.FAILED or task in history.not_started:
        return RunState.FAILED
    if history.cancelled_at is not None:
        return RunState.CANCELLED
    return RunState.FAILED if attempt is not None and attempt.exit_code else RunState.LOST


def _count(states: Sequence[RunState]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for state in states:
        counts[state.value] = counts.get(state.value, 0) + 1
    return counts
