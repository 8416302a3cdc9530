"""Deeds of the site's daemon: through Slurm, and by words in its own folder. Nothing below a user's directory is
written. What lies there is read as something that its user may have written in any way (read_run): it can keep the
daemon from a deed, and Slurm's own words must ask for it as well.
"""

from __future__ import annotations

import os

from msgspec import Struct

from fleetctl.recovery import say
from fleetctl.recovery.look_again import Hands, Target, see_restart, silent_nodes, target
from fleetctl.recovery.model import Deed, Outcome
from fleetctl.recovery.order import Answer, run_of
from fleetctl.recovery.read_run import read_run
from fleetctl.recovery.read_wire import AskRun
from fleetctl.rundir.history import BY_DAEMON, History, attempts_of
from fleetctl.slurm.model import JobId
from fleetctl.submission import decide_requeue
from fleetctl.submission.decide_requeue import Look, NotYet, Past, Phase, Wanted, decide

_BY_RECORD = {Deed.REQUEUE: decide_requeue.Deed.REQUEUE, Deed.REQUEUE_ENDED: decide_requeue.Deed.REQUEUE_ENDED}


def bring_back(hands: Hands) -> Answer:
    """Requeue the job, where Slurm and the run's record, both read again, ask for just that.

    :raises UsageError: by its record it must not come back.
    :raises CannotTell: Slurm tells nothing of it, or it may have been cancelled.
    """
    found = target(hands)
    if isinstance(found, Answer):
        return found
    record = _record(hands)
    if isinstance(record, str):
        return Answer(Outcome.CHANGED, record)
    if why := found.changed or _unfit(record, found):
        return Answer(Outcome.CHANGED, why)
    if record.past is None:
        return Answer(Outcome.CHANGED, "it has finished")
    lost = silent_nodes(hands, found) if Phase.LIVES in found.phases else ()
    look = Look(record.history, record.past, found.rows, found.restarts, record.may_restart, lost)
    due = decide(look, Wanted(hands.task, by=BY_DAEMON, why=hands.why))
    if due is not _BY_RECORD[hands.order.action.deed]:
        return Answer(Outcome.CHANGED, due.why if isinstance(due, NotYet) else f"by its record it is to be: {due}")
    if why := hands.forbidden():
        return Answer(Outcome.CHANGED, why)
    slurm = hands.site.slurm
    (slurm.requeue if due is decide_requeue.Deed.REQUEUE else slurm.requeue_ended)(found.job_id)
    return see_restart(hands, found)


def say_word(hands: Hands) -> Answer:
    """Hold the run, or roll it back: its next start reads it."""
    order, found = hands.order, target(hands)
    if isinstance(found, Target) and found.changed:
        return Answer(Outcome.CHANGED, found.changed)
    if not order.words:
        return Answer(Outcome.REFUSED, "no folder for words is set (FLEETCTL_WORDS)")
    record = _record(hands)
    user = _user(record, found)
    if not user:
        return Answer(Outcome.CHANGED, "neither its folder nor Slurm says whose run it is, or they disagree")
    attempts, wishes = order.attempts, order.wishes
    if not isinstance(record, str):
        history = record.history
        attempts, wishes = attempts_of(history.attempts, hands.task), history.asks.get(hands.task, 0)
        if record.opted_out or history.cancelled_at is not None:
            return Answer(Outcome.CHANGED, "it was cancelled, or keeps the daemon off it")
    if why := hands.forbidden():
        return Answer(Outcome.CHANGED, why)
    path = say.sites_place(order.words, order.action.key, user)
    return say.say(path, order.action, attempts, wishes, hands.clock.now(), user)


def see_said(hands: Hands) -> Answer:
    user = _user(_record(hands), target(hands))
    if not user:
        return Answer(Outcome.FAILED, "neither its folder nor Slurm says whose run it is, or they disagree")
    return say.see(say.sites_place(hands.order.words, hands.order.action.key, user), hands.order.action)


def _user(record: _Record | str, found: Target | Answer) -> str:
    """Whose run it is, by its folder's owner and by Slurm, as far as they can be asked; "": that is not known."""
    users = set[str]() if isinstance(record, str) else {record.owner}
    users |= {job.user for job in found.rows} if isinstance(found, Target) else set()
    user = users.pop() if len(users) == 1 else ""
    return "" if "/" in user else user


def resubmit(_: Hands) -> Answer:
    return Answer(Outcome.REFUSED, "only the run's own user can submit it again")


class _Record(Struct, frozen=True):
    """What the run's folder says now."""

    owner: str
    history: History
    past: Past | None  # None: it has ended well
    may_restart: bool
    opted_out: bool


def _record(hands: Hands) -> _Record | str:
    """The record, read as something that its user may have written in any way; or why it cannot be read."""
    run_id, task = run_of(hands.order.action.key)
    told = read_run(AskRun(os.fsencode(hands.order.path), run_id, (task,)))
    if told.read is None:
        return f"its folder cannot be read: {told.trouble}"
    facts, pasts = told.read.facts, dict(told.read.pasts)
    return _Record(told.read.owner, facts.history, pasts.get(task), facts.may_restart, facts.opted_out)


def _unfit(record: _Record, found: Target) -> str:
    """Why it must not come back; "": its record allows it."""
    if record.opted_out:
        return "its spec keeps the daemon off it (recovery.daemon)"
    newest = record.history.job_id
    if newest is None or JobId.parse(newest).base != found.job_id.base:
        return f"its job is {newest} now"
    if {job.user for job in found.rows} != {record.owner}:
        return f"job {found.job_id} is not of {record.owner}, to whom the run's folder belongs"
    return ""
