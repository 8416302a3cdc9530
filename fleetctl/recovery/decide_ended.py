"""A job that has ended, or that Slurm has forgotten: bring it back, hold it, or tell a person. Pure.

Whether it may come back at all says submission.decide_requeue: what was cancelled, or may have been, never does.
"""

from __future__ import annotations

from fleetctl.errors import FleetctlError
from fleetctl.recovery.budget import cause_of
from fleetctl.recovery.choice import Choice, do, leave, tell, wait
from fleetctl.recovery.decide_after import before_anything, stops
from fleetctl.recovery.decide_nodes import Fleet, suspects
from fleetctl.recovery.ended import known, over
from fleetctl.recovery.ground import COMEBACKS, Case, Ground
from fleetctl.recovery.model import CauseClass, Deed, Interruption
from fleetctl.recovery.policy import Mode
from fleetctl.rundir.history import BY_DAEMON
from fleetctl.rundir.model import SubmissionState
from fleetctl.rundir.view import RunState
from fleetctl.slurm.model import BaseState
from fleetctl.submission import decide_requeue
from fleetctl.submission.decide_requeue import NotYet, Wanted

_LIMITS = frozenset({BaseState.TIMEOUT, BaseState.DEADLINE})
_DEEDS = {
    decide_requeue.Deed.REQUEUE: Deed.REQUEUE,
    decide_requeue.Deed.REQUEUE_ENDED: Deed.REQUEUE_ENDED,
    decide_requeue.Deed.SUBMIT: Deed.RESUBMIT,
}


def wanted(case: Case, nodes: frozenset[str] = frozenset()) -> Wanted:
    return Wanted(task=case.seen.task, exclude=nodes, by=BY_DAEMON)


def road(case: Case) -> Deed | NotYet:
    """How the run may be brought back.

    :raises FleetctlError: it must not be, or it cannot be told.
    """
    found = decide_requeue.decide(case.look, wanted(case))
    if isinstance(found, NotYet):
        return found
    return _DEEDS.get(found) or NotYet("it comes back by itself")


def ended(case: Case, on: Ground, fleet: Fleet) -> Choice:
    """What is done about a run that has no job any more."""
    if case.attempt is None or case.seen.task in case.history.not_started:
        why = case.history.not_started.get(case.seen.task, "its job ended before the first step")
        return tell(case, on, "never_began", why)
    if over(case, on) is None:
        return leave("too_old", "it ended long ago, or goes on elsewhere")
    if (first := before_anything(case, on)) is not None:
        return first
    newest = known(case, on)
    if newest is None:
        return wait("evidence", "its end is not known yet")
    if not case.facts.may_restart:
        return leave("no_restarts", f"its spec lets nothing start it again ({_words(newest)})")
    if (limit := _time_limit(case, on, newest)) is not None:
        return limit
    return stops(case, on, fleet, newest) or _come_back(case, on, fleet, newest)


def resubmission(case: Case, on: Ground) -> Choice:
    """A submission that is not known to have come to a job: ours that died half-way is finished, nobody else's."""
    history = case.history
    mine = [entry for entry in on.done.get(case.key, ()) if entry.action.deed is Deed.RESUBMIT]
    open_ = history.state in (SubmissionState.UNKNOWN, SubmissionState.VOIDED) and history.submission > 1
    if not open_ or not mine or on.policy.mode is not Mode.OWNER:
        return leave("submission", f"its submission is {history.state.value}")
    if on.did(case.key, case.start, Deed.RESUBMIT) is not None:
        return tell(case, on, "resubmission", "its submission stays unknown")
    why, nodes = "finish the submission that was begun", frozenset(mine[-1].action.nodes)
    return do(case, Deed.RESUBMIT, "resubmission", why, nodes=nodes)


def _time_limit(case: Case, on: Ground, newest: Interruption) -> Choice | None:
    """Its user gave it so much time; only a chain goes on, and only where it came forward."""
    ended = [*(RunState.TIMEOUT for job in case.jobs if job.state.base in _LIMITS), case.history.observed_end]
    if cause_of(newest).cause is not CauseClass.TIME_LIMIT and RunState.TIMEOUT not in ended:
        return None
    began = case.attempt.resume_step if case.attempt is not None else None
    if not case.facts.chain:
        return leave("time_limit", "its time limit has ended it, and its spec does not let it go on (recovery.chain)")
    if newest.progress_step is None or newest.progress_step <= (began or 0):
        return tell(case, on, "time_limit", "its time limit has ended it before it made a newer checkpoint")
    return None


def _come_back(case: Case, on: Ground, fleet: Fleet, newest: Interruption) -> Choice:
    done = on.did(case.key, case.start, *COMEBACKS)
    if done is not None:
        return wait("comes_back", f"it was brought back ({done.action.deed.value})")
    try:
        deed = road(case)
    except FleetctlError as error:
        return tell(case, on, "no_road", error.message, after=newest)
    if isinstance(deed, NotYet):
        return wait("not_yet", deed.why)
    if deed is Deed.RESUBMIT and on.policy.mode is not Mode.OWNER:
        return tell(case, on, "resubmit", "only its user can submit it again (`fleetctl requeue`)", after=newest)
    if (on.snapshot.at - newest.at).total_seconds() < on.policy.retry_s:
        return wait("retry", f"it starts again soon ({_words(newest)})")
    why = f"it ended and may go on ({_words(newest)})"
    return do(case, deed, "come_back", why, after=newest, nodes=suspects(case, on, fleet))


def _words(one: Interruption) -> str:
    cause = cause_of(one)
    return f"{cause.cause.value.replace('_', ' ')}: {cause.evidence}"
