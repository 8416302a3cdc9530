"""What `fleetctl requeue` does with a run, by its own record and one answer of Slurm. Pure.

Invariant: what was cancelled, or may have been, is never brought back. So an ended job is brought back only by a word
of Slurm that cannot hide a cancel, and a job that Slurm has forgotten only where the run's own record proves that its
end was no cancel: every other doubt is an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from fleetctl.errors import CannotTell, UsageError
from fleetctl.rundir.history import NOT_PERSONS, History, Wish, attempts_of, ended_well, last_attempts
from fleetctl.rundir.model import Event, EventKind, RunKind, SubmissionState
from fleetctl.rundir.view import RunState
from fleetctl.slurm.model import BaseState, Job, JobState, StateFlag
from fleetctl.submission.decide_nodes import hosts


class Deed(StrEnum):
    """What is done."""

    REQUEUE = "requeue"  # of a job that is alive: `scontrol requeue Incomplete` does nothing to a cancelled one
    REQUEUE_ENDED = "requeue_ended"  # of a job that Slurm calls ended, and not cancelled
    SUBMIT = "submit"  # the next submission of the same run; its job fences those of older ones
    WISH = "wish"  # it comes back by itself: the wish and the exclusions are for its next start
    NOTHING = "nothing"  # the same was asked for before, and it is coming


class NotYet(Struct, frozen=True):
    """It would do harm now, or cannot be told now; later it may be done."""

    why: str


class Wanted(Struct, frozen=True):
    """What is asked for: `task` names an element of a sweep, `exclude` has node names. `by` is BY_DAEMON where the
    daemon asks, and `why` its reason; "" for the person who calls. To the run a wish of the daemon is none: its next
    start resumes as it would have without it.
    """

    task: int | None = None
    from_step: int | None = None
    exclude: frozenset[str] = frozenset()
    by: str = ""
    why: str = ""


class Past(Struct, frozen=True):
    """What the events say besides the history."""

    restart_count: int  # Slurm's, at the newest start of this job that came to an attempt; 0 before the first
    asked_since: bool  # somebody asked for a requeue after the newest attempt, so its end is not the last word
    wish: Wish | None = None  # the newest of a person, for this task, that no attempt has followed


class Look(Struct, frozen=True):
    """A run as it was seen. `jobs` are the rows of its job, or of one element; none: Slurm has forgotten it; None:
    Slurm tells nothing of it. `unresponsive` are nodes of the job that do not answer and are not DOWN."""

    history: History
    past: Past
    jobs: tuple[Job, ...] | None
    restarts: int
    may_restart: bool
    unresponsive: tuple[str, ...] = ()


class Phase(StrEnum):
    """A job's state as far as it matters here."""

    WAITS = "waits"
    LIVES = "lives"
    COMPLETES = "completes"  # it was requeued, or ends in whatever way: Slurm does not show which
    ENDED = "ended"
    STRANGE = "strange"


_LIVES = frozenset(
    {
        StateFlag.CONFIGURING,
        StateFlag.POWER_UP_NODE,
        StateFlag.RESIZING,
        StateFlag.SIGNALING,
        StateFlag.STOPPED,
    }
)
_WAITS = frozenset(
    {
        StateFlag.EXPEDITING,
        StateFlag.REQUEUED,
        StateFlag.REQUEUE_FED,
        StateFlag.REQUEUE_HOLD,
        StateFlag.RESV_DEL_HOLD,
        StateFlag.SPECIAL_EXIT,
    }
)
# A plain requeue is only for these, with no flag beside them (slurm.port, requeue_ended). What was preempted for good,
# did not boot, met its deadline or may not be requeued is submitted again.
_REQUEUED_WHEN_ENDED = frozenset({BaseState.FAILED, BaseState.TIMEOUT, BaseState.NODE_FAIL, BaseState.OUT_OF_MEMORY})
_ENDS_BUT_CANCEL = frozenset({RunState.FAILED, RunState.TIMEOUT, RunState.NODE_FAIL, RunState.PREEMPTED})


def past_of(events: Iterable[Event], history: History, job_id: str, task: int | None) -> Past:
    """`job_id` as the events of attempts name it: `4_0` for element 0 of a sweep."""
    mine = [event for event in events if event.data.get("task") == task]
    started = [event.data for event in mine if event.kind is EventKind.ATTEMPT_STARTED]
    counts = [int(data.get("restart_count") or 0) for data in started if data.get("job_id") == job_id]
    asked = [event for event in mine if event.kind is EventKind.REQUEUE]
    by_person = [event for event in asked if event.data.get("by") not in NOT_PERSONS]
    newest = max(by_person, key=lambda event: event.time, default=None)
    wish = None
    own = attempts_of(history.attempts, task)
    if newest is not None and newest.data.get("attempts") == own:
        data = newest.data
        wish = Wish(data.get("from_step"), str(data.get("exclude") or ""), str(data.get("by") or ""))
    if task in history.held:  # it was held after the wish: that one is used up, though nothing was started
        return Past(max(counts, default=0), False, None)
    return Past(max(counts, default=0), any(event.data.get("attempts") == own for event in asked), wish)


def decide(look: Look, wanted: Wanted) -> Deed | NotYet:
    """What is to be done.

    :raises UsageError: the run must not come back, or not in this way.
    :raises CannotTell: Slurm tells nothing of it, or it may have been cancelled.
    """
    history = look.history
    _check_record(history, wanted.task)
    if wanted.by in NOT_PERSONS and wanted.task in history.held:
        raise UsageError(f"run {history.record.run_id} is held, and only a person ends that")
    if history.state in (SubmissionState.REFUSED, SubmissionState.VOIDED):
        return Deed.SUBMIT  # a second submission came to nothing: it was only tried where this was safe
    if look.jobs is None:
        raise CannotTell(
            f"cluster {history.cluster} tells nothing of run {history.record.run_id}",
            remedy=f"ask as {history.record.user}",
        )
    if not look.jobs:
        return _forgotten(look, wanted)
    phases = {phase(job.state) for job in look.jobs}
    if len(phases) > 1:
        return NotYet(f"the parts of job {history.job_id} are in different states; Slurm has not finished with them")
    match phases.pop():
        case Phase.WAITS:
            return Deed.NOTHING if _covers(look, wanted) else Deed.WISH
        case Phase.LIVES:
            return _alive(look, wanted)
        case Phase.COMPLETES:
            return _completing(look, wanted)
        case Phase.ENDED:
            return _ended(look, wanted)
    raise CannotTell(f"job {history.job_id} is in a state that this fleetctl does not know: {look.jobs[0].state}")


def phase(state: JobState) -> Phase:
    """squeue shows a flag in place of the base state: a job that ends and one that was requeued read COMPLETING."""
    if state.is_terminal:
        return Phase.ENDED
    if state.unknown:
        return Phase.STRANGE
    if state.base is BaseState.PENDING and not state.flags & _LIVES:
        return Phase.WAITS
    if StateFlag.COMPLETING in state.flags:
        return Phase.COMPLETES
    if state.base in (BaseState.RUNNING, BaseState.SUSPENDED):
        return Phase.LIVES
    if state.base not in (None, BaseState.PENDING):
        return Phase.COMPLETES
    if state.flags & _LIVES:
        return Phase.LIVES
    return Phase.WAITS if state.flags & _WAITS else Phase.COMPLETES


def _check_record(history: History, task: int | None) -> None:
    run_id = history.record.run_id
    sweep = history.record.kind is RunKind.SWEEP
    if sweep and task is None:
        raise UsageError(f"run {run_id} is a sweep of {history.record.tasks}", remedy="choose one element: --task I")
    if task is not None and not (sweep and 0 <= task < history.record.tasks):
        raise UsageError(f"run {run_id} has no task {task}")
    if history.cancelled_at is not None or history.observed_end == RunState.CANCELLED:
        raise cancelled(history)
    if history.state is SubmissionState.NONE or (
        history.submission == 1 and history.state in (SubmissionState.REFUSED, SubmissionState.VOIDED)
    ):
        raise UsageError(
            f"run {run_id} was never submitted" + (f": {history.detail}" if history.detail else ""),
            remedy=f"fleetctl submit {history.record.spec_source}",
        )


def cancelled(history: History) -> UsageError:
    """The one wording."""
    return UsageError(
        f"run {history.record.run_id} was cancelled and does not come back",
        remedy=f"`fleetctl submit {history.record.spec_source}` starts another run",
    )


def _completed(history: History) -> UsageError:
    return UsageError(
        f"run {history.record.run_id} has completed",
        remedy=f"`fleetctl submit {history.record.spec_source}` starts another run",
    )


def is_noted(past: Past, wanted: Wanted) -> bool:
    """Whether the record tells of this wish, and of no attempt after it."""
    return past.asked_since if wanted.by in NOT_PERSONS else past.wish is not None


def _came_back(look: Look) -> bool:
    """Slurm has restarted the job since its newest attempt began."""
    return look.restarts > look.past.restart_count


def _covers(look: Look, wanted: Wanted) -> bool:
    """Whether the newest wish and the job's exclusions say all of it already. The daemon's is never written as one."""
    wish = look.past.wish
    if wanted.by not in NOT_PERSONS and (wish is None or wish.from_step != wanted.from_step):
        return False
    return all(wanted.exclude <= hosts(job.excluded_nodes) for job in look.jobs or ())


def _alive(look: Look, wanted: Wanted) -> Deed | NotYet:
    if _came_back(look) and (wanted.by in NOT_PERSONS or _covers(look, wanted)):  # the daemon meant the start before
        return Deed.NOTHING
    if not look.may_restart:
        raise UsageError(
            f"run {look.history.record.run_id} runs, and its spec does not let Slurm requeue it (recovery.requeue)",
            remedy=f"cancel it, and `fleetctl submit {look.history.record.spec_source}`",
        )
    if look.unresponsive:
        names = ", ".join(look.unresponsive)
        return NotYet(f"Slurm does not reach {names} and has not found it down: requeued now, the job loses its GPUs")
    return Deed.REQUEUE


def _completing(look: Look, wanted: Wanted) -> Deed | NotYet:
    if _came_back(look) and wanted.task not in look.history.not_started:
        return Deed.NOTHING if _covers(look, wanted) else Deed.WISH
    return NotYet(f"Slurm is still cleaning up after job {look.history.job_id} and does not tell how it ended")


def _ended(look: Look, wanted: Wanted) -> Deed | NotYet:
    history = look.history
    states = {job.state.base for job in look.jobs or ()}
    if BaseState.CANCELLED in states and wanted.task not in history.given_back:
        raise cancelled(history)
    newest = last_attempts(history).get(wanted.task)
    if states == {BaseState.COMPLETED} or (BaseState.CANCELLED in states and newest and ended_well(newest)):
        raise _completed(history)
    if any(job.state.flags for job in look.jobs or ()):
        return NotYet(f"Slurm has not finished with job {history.job_id}")
    if look.may_restart and states <= _REQUEUED_WHEN_ENDED:
        return Deed.REQUEUE_ENDED
    return _submit(history, wanted)


def _submit(history: History, wanted: Wanted) -> Deed:
    if wanted.task is not None:
        raise UsageError(
            f"Slurm cannot start element {wanted.task} again, and one element of a sweep cannot be submitted alone",
            remedy=f"`fleetctl submit {history.record.spec_source} --again` starts the whole sweep again",
        )
    return Deed.SUBMIT


def _forgotten(look: Look, wanted: Wanted) -> Deed:
    history = look.history
    newest = last_attempts(history).get(wanted.task)
    if history.observed_end == RunState.COMPLETED or (newest is not None and ended_well(newest)):
        raise _completed(history)
    if not _is_proved(look, wanted.task):
        raise CannotTell(
            f"Slurm has forgotten job {history.job_id}, and nothing proves that it was not cancelled",
            remedy=f"`fleetctl submit {history.record.spec_source} --again` starts another run",
        )
    return _submit(history, wanted)


def _is_proved(look: Look, task: int | None) -> bool:
    """Whether the record tells of an end that was no cancel, and of nothing after it.

    A failed attempt is such an end only where nobody may start the job again: else Slurm may have requeued it, and its
    user may have cancelled it while it waited.
    """
    history = look.history
    if task in history.held:
        return True
    if look.past.asked_since:
        return False
    if task in history.given_back or history.observed_end in _ENDS_BUT_CANCEL:
        return True
    newest = last_attempts(history).get(task)
    return not look.may_restart and newest is not None and bool(newest.exit_code) and not newest.terminated
