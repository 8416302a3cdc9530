"""Deeds with the user's own rights: through the run's own record, by the roads of `fleetctl requeue`.

submission.requeue holds the lock of the spec, reads everything again and keeps its promises; here is added that it must
still be the same start, and still the same deed that the record asks for.
"""

from __future__ import annotations

from pathlib import Path

from fleetctl.recovery import act_job, say
from fleetctl.recovery.look_again import Hands, foreign_start, target
from fleetctl.recovery.model import Deed, Outcome
from fleetctl.recovery.order import Answer, start_of
from fleetctl.render.script import parts
from fleetctl.rundir.history import BY_DAEMON, History, attempts_of, ended_well, last_attempts
from fleetctl.rundir.model import EventKind, SubmissionState
from fleetctl.rundir.store import RunDir
from fleetctl.rundir.view import RunState
from fleetctl.slurm.model import JobId
from fleetctl.submission import decide_requeue
from fleetctl.submission.decide_nodes import hosts
from fleetctl.submission.decide_requeue import NotYet, Wanted
from fleetctl.submission.look import Try, begin, look_at
from fleetctl.submission.plan import recorded_plan
from fleetctl.submission.requeue import requeue

_BY_RECORD = {
    Deed.REQUEUE: decide_requeue.Deed.REQUEUE,
    Deed.REQUEUE_ENDED: decide_requeue.Deed.REQUEUE_ENDED,
    Deed.RESUBMIT: decide_requeue.Deed.SUBMIT,
}
_WITHOUT_A_JOB = frozenset({Deed.RESUBMIT, Deed.HOLD, Deed.ROLL_BACK})
_OVER = frozenset({RunState.CANCELLED, RunState.COMPLETED})


def bring_back(hands: Hands) -> Answer:
    """Requeue the job, or submit the run again. The action's nodes are excluded then.

    :raises CannotTell: it was asked for, and not seen to have happened.
    :raises UsageError: by its record it must not come back.
    """
    run, action = run_dir(hands), hands.order.action
    if why := unfit(hands, run):
        return Answer(Outcome.CHANGED, why)
    wanted = Wanted(hands.task, exclude=frozenset(action.nodes), by=BY_DAEMON, why=action.why)
    this = begin(run, wanted, hands.site)
    theirs = _excluded_by_others(hands, this)
    opened = run.history().state is SubmissionState.UNKNOWN  # a daemon died in a resubmission: this call settles it
    if not opened and (why := _not_due(hands, this)):
        return Answer(Outcome.CHANGED, why)
    if why := hands.forbidden():
        return Answer(Outcome.CHANGED, why)
    done = requeue(run, wanted, hands.site, _no_step, wait=False)
    if done.deed is not _BY_RECORD[action.deed] and not opened:
        return Answer(Outcome.CHANGED, f"it had come back meanwhile: {done.deed}")
    resubmitted = action.deed is Deed.RESUBMIT
    said = f"it is job {done.job_id} now" if resubmitted else f"Slurm has requeued job {done.job_id}"
    ours = frozenset(() if resubmitted else hands.order.ours) | wanted.exclude
    return Answer(Outcome.DONE, said, tuple(sorted(ours - theirs)))


def exclude(hands: Hands) -> Answer:
    """As act_job.exclude; what a person asked the run to stay off is theirs, whoever put it there first."""
    run = run_dir(hands)
    if why := unfit(hands, run):
        return Answer(Outcome.CHANGED, why)
    return act_job.exclude(hands, _wished(run.history(), hands.task))


def start_now(hands: Hands) -> Answer:
    why = unfit(hands, run_dir(hands))
    return Answer(Outcome.CHANGED, why) if why else act_job.start_now(hands)


def hold(hands: Hands) -> Answer:
    """Nothing restarts the run until a person says so: what Slurm starts ends itself (launch.leave.hold)."""
    run = run_dir(hands)
    if why := unfit(hands, run):
        return Answer(Outcome.CHANGED, why)
    history = run.history()
    if hands.task in history.held:
        return see_held(hands)
    if why := hands.forbidden():
        return Answer(Outcome.CHANGED, why)
    run.event_log(f"daemon-{hands.site.host}").append(
        hands.clock.now(),
        EventKind.HELD,
        submission=history.submission,
        task=hands.task,
        attempts=attempts_of(history.attempts, hands.task),
        why=f"the daemon: {hands.why}",
    )
    return see_held(hands)


def see_held(hands: Hands) -> Answer:
    held = run_dir(hands).history().held.get(hands.task)
    if held is None:
        return Answer(Outcome.FAILED, "its record does not hold it: an attempt began, or a person brought it back")
    return Answer(Outcome.DONE, f"held: {held}")


def roll_back(hands: Hands) -> Answer:
    """Tell the next start of the run from where it may go on."""
    run = run_dir(hands)
    if why := unfit(hands, run) or hands.forbidden():
        return Answer(Outcome.CHANGED, why)
    history = run.history()
    attempts, wishes = attempts_of(history.attempts, hands.task), history.asks.get(hands.task, 0)
    return say.say(say.own_place(run, hands.task), hands.order.action, attempts, wishes, hands.clock.now())


def see_said(hands: Hands) -> Answer:
    return say.see(say.own_place(run_dir(hands), hands.task), hands.order.action)


def see_resubmitted(hands: Hands) -> Answer:
    """Whether the run has a later job than that of the action's start. A submission that nobody saw the end of is
    settled, which makes no job."""
    settled, start = hands.site.settler.settle(run_dir(hands)), start_of(hands.order.action.start)
    if settled.doubt is not None:
        return Answer(Outcome.OPEN, settled.doubt.why)
    history = settled.history
    if history.job_id is None or start is None or JobId.parse(history.job_id).base == start.raw_id:
        return Answer(Outcome.FAILED, "no later submission of it has a job; asked again, it is not done twice")
    return Answer(Outcome.DONE, f"it is job {history.job_id} now")


def run_dir(hands: Hands) -> RunDir:
    return RunDir(Path(hands.order.path))


def unfit(hands: Hands, run: RunDir) -> str:
    """Why this is no longer what was decided about; "": it is. What Slurm has forgotten has not changed.

    :raises SlurmUnreachable: nothing is known.
    """
    history, may_be_gone = run.history(), hands.order.action.deed in _WITHOUT_A_JOB
    if not recorded_plan(run, run.record()).spec.recovery.daemon:
        return "its spec keeps the daemon off it (recovery.daemon)"
    newest = last_attempts(history).get(hands.task)
    if history.cancelled_at is not None or history.observed_end in _OVER or (newest and ended_well(newest)):
        return "it was cancelled, or has finished"
    if (hands.order.action.start or not may_be_gone) and (why := foreign_start(hands)):
        return why
    found = target(hands)
    if isinstance(found, Answer):
        if not may_be_gone:
            return found.detail
        return "" if _is_of(hands, history, None) else f"its job is {history.job_id} now"
    return found.changed or ("" if _is_of(hands, history, found.job_id) else f"its job is {history.job_id} now")


def _is_of(hands: Hands, history: History, found: JobId | None) -> bool:
    """Whether the action's start is of the run's newest job. Of an element that Slurm has forgotten only the number of
    its own row is known, so it counts."""
    start = start_of(hands.order.action.start)
    if start is None or history.job_id is None:
        return True
    base = found.base if found is not None else start.raw_id if hands.task is None else None
    return base is None or JobId.parse(history.job_id).base == base


def _not_due(hands: Hands, this: Try) -> str:
    """Why the run's record and Slurm ask for something else than the action; "": for the same."""
    look = look_at(this, this.run.history())
    due = decide_requeue.decide(look, this.wanted)
    if isinstance(due, NotYet):
        return due.why
    return "" if due is _BY_RECORD[hands.order.action.deed] else f"by its record it is to be: {due}"


def _excluded_by_others(hands: Hands, this: Try) -> frozenset[str]:
    asked = frozenset(node for part in parts(this.plan.spec) for node in hosts(part.resources.exclude or ""))
    found = target(hands)
    if isinstance(found, Answer):
        return asked
    stands = frozenset(node for job in found.rows for node in hosts(job.excluded_nodes))
    return asked | (stands - frozenset(hands.order.ours)) | _wished(this.run.history(), hands.task)


def _wished(history: History, task: int | None) -> frozenset[str]:
    wish = history.wishes.get(task)
    return frozenset() if wish is None else hosts(wish.exclude)


def _no_step() -> None:
    """The daemon asks for no training step: launch chooses."""
