"""A job that waits for its next start: keep it off our suspects, and shorten Slurm's wait where that is safe. Pure."""

from __future__ import annotations

from fleetctl.recovery.budget import is_free
from fleetctl.recovery.choice import Choice, do, leave, tell, wait
from fleetctl.recovery.decide_after import before_anything, stops
from fleetctl.recovery.decide_nodes import Fleet, ours, outlived, suspects
from fleetctl.recovery.ended import known
from fleetctl.recovery.ground import Case, Ground, is_down, old_nodes
from fleetctl.recovery.model import Deed, Interruption
from fleetctl.rundir.model import Ending
from fleetctl.slurm.model import BaseState, Job

BEGIN_TIME = "BeginTime"  # why a job waits: not before its StartTime (squeue.1, JOB REASON CODES)
_PROLOG = "launch failed requeued held"
_HELD = frozenset(
    {
        "JobHeldAdmin",
        "JobHeldUser",
        "JobHoldMaxRequeue",
        "job_requeued_in_held_state",
        "job requeued in held state",
    }
)


def waits(case: Case, on: Ground, fleet: Fleet) -> Choice:
    """What is done about a pending job."""
    reasons = {job.reason for job in case.jobs}
    if any(reason.lower().replace("_", " ") == _PROLOG for reason in reasons):
        return tell(case, on, "launch_failed", f"Slurm could not start its job and holds it ({_PROLOG})")
    if held := sorted(reasons & _HELD):
        return leave("held_in_slurm", f"somebody holds its job ({held[0]})")
    if case.attempt is None:
        return leave("first_start", f"it waits for its first start ({', '.join(sorted(reasons))})")
    if case.attempt.ending is Ending.SAVED:
        return wait("goes_on", "it saved, and goes on in its next start")
    if (first := before_anything(case, on)) is not None:
        return first
    ended = known(case, on)
    if ended is not None and (stopped := stops(case, on, fleet, ended)) is not None:
        return stopped
    return _nodes(case, on, fleet, ended) or _start(case, on, ended)


def _nodes(case: Case, on: Ground, fleet: Fleet, ended: Interruption | None) -> Choice | None:
    """Our part of the exclusions: what has had its time goes, new suspects come."""
    mine, old = ours(case, on), outlived(case, on)
    more = suspects(case, on, fleet) - old if ended is not None else frozenset()
    if not more and not old:
        return None
    nodes = (mine - old) | more
    before = [e for e in on.done.get(case.key, ()) if e.action.deed is Deed.EXCLUDE and e.action.start == case.start]
    if any(e.outcome in on.policy.standing and frozenset(e.action.nodes) == nodes for e in before):
        return None  # it was done, and somebody wants it otherwise
    said = [f"it is kept off {', '.join(sorted(more))}"] if more else []
    said += [f"it may use {', '.join(sorted(old))} again"] if old else []
    return do(case, Deed.EXCLUDE, "exclude", "; ".join(said), after=ended, nodes=nodes)


def _start(case: Case, on: Ground, ended: Interruption | None) -> Choice:
    reasons = ", ".join(sorted({job.reason for job in case.jobs}))
    if ended is None or (is_free(ended) and not _was_brought_back(case, on)):
        return leave("slurm_requeues", f"Slurm starts it again by itself ({reasons})")
    if on.did(case.key, case.start, Deed.START_NOW) is not None:
        return wait("starts", f"it was asked to start now ({reasons})")
    if (why := why_not_now(case, on)) is not None:
        return wait("begin_time", f"Slurm starts it again by itself ({reasons}); {why}")
    return do(case, Deed.START_NOW, "start_now", "nothing of its last start is left on its nodes", after=ended)


def _was_brought_back(case: Case, on: Ground) -> bool:
    """Whether it was our requeue that made this start."""
    job, _, restarts = case.start.rpartition("/")
    return on.did(case.key, f"{job}/{int(restarts) - 1}", Deed.REQUEUE, Deed.REQUEUE_ENDED) is not None


def why_not_now(case: Case, on: Ground) -> str | None:
    """Why StartTime must stand; None: it may be now.

    Slurm's wait gives old credentials and processes time to go (facts 6.2). They are gone where each old node has
    finished its epilog, or its death is proved, or, of a node that is DOWN, where a rank of an older attempt changes
    nothing because only Checkpointer writes.
    """
    if not all(_waits_for_slurm(job, on) for job in case.jobs):
        return "it waits for something else than Slurm's pause after a requeue"
    nodes = old_nodes(case)
    if not nodes:
        return "it is not known where it ran"
    for node in nodes:
        there = on.nodes.get(node)
        if there is None:
            return f"Slurm tells nothing of {node}"
        if is_down(on, node):
            if node not in on.snapshot.proved_dead and not case.facts.own_format:
                return f"{node} is DOWN, its death is not proved, and what still runs there could write"
        elif "NOT_RESPONDING" in there.flags:
            return f"Slurm does not reach {node}"
    return None


def _waits_for_slurm(job: Job, on: Ground) -> bool:
    if job.state.base is not BaseState.PENDING or job.state.flags or job.reason != BEGIN_TIME:
        return False
    if job.start_time is None:
        return False
    left_s = (job.start_time - on.snapshot.at).total_seconds()
    return left_s <= on.policy.begin_wait_s
