"""Deeds on a waiting job that change nothing of its run: which nodes it may not use, and when it may begin.

Both are for the job's owner and for an operator alike, through Slurm alone.
"""

from __future__ import annotations

from fleetctl.errors import UsageError
from fleetctl.recovery.look_again import POLL_S, Hands, Target, target
from fleetctl.recovery.model import Outcome
from fleetctl.recovery.order import Answer
from fleetctl.slurm.hosts import fold
from fleetctl.slurm.model import BaseState, Job
from fleetctl.submission.decide_nodes import Need, check_exclusion, hosts
from fleetctl.submission.decide_requeue import Phase, phase

BEGIN_TIME = "BeginTime"  # the reason of a job that waits for no earlier than some moment
_SEEN_WITHIN_S = 15.0  # the scheduler looks at such a job every few seconds (bf_interval and its main loop)


def exclude(hands: Hands, kept: frozenset[str] = frozenset()) -> Answer:
    """Make our part of the job's exclusions the action's nodes; what others put there stays, and so does `kept`.

    A job that completes after a requeue takes them too, and keeps them.
    """
    found = target(hands)
    if isinstance(found, Answer):
        return found
    waits = found.phases <= {Phase.WAITS, Phase.COMPLETES}
    if found.changed or not waits:
        return Answer(Outcome.CHANGED, found.changed or f"job {found.job_id} waits no more: {found.rows[0].state}")
    wanted, ours = frozenset(hands.order.action.nodes), frozenset(hands.order.ours) - kept
    nodes = hands.site.slurm.nodes()
    for job in found.rows:
        after = (hosts(job.excluded_nodes) - ours) | wanted
        try:
            check_exclusion(wanted, [_need(job, after)], nodes)
        except UsageError as error:
            return Answer(Outcome.CHANGED, error.message.removeprefix("--exclude: "))
    theirs = frozenset(node for job in found.rows for node in hosts(job.excluded_nodes)) - ours
    for job in found.rows:
        after = (hosts(job.excluded_nodes) - ours) | wanted
        if after == hosts(job.excluded_nodes):
            continue
        if why := hands.forbidden():
            return Answer(Outcome.CHANGED, why)
        hands.site.slurm.set_excluded(found.job_id if hands.task is not None else job.id, fold(after))
    return see_excluded(hands, tuple(sorted(wanted - theirs)))


def see_excluded(hands: Hands, ours: tuple[str, ...]) -> Answer:
    """Read back whether the job stays off the action's nodes."""
    found = target(hands)
    if isinstance(found, Answer):
        return found
    wanted = frozenset(hands.order.action.nodes)
    missing = frozenset(node for job in found.rows for node in wanted - hosts(job.excluded_nodes))
    if missing:
        return Answer(Outcome.FAILED, f"job {found.job_id} does not stay off {fold(missing)}")
    said = fold(node for job in found.rows for node in hosts(job.excluded_nodes))
    return Answer(Outcome.DONE, f"job {found.job_id} stays off {said or 'no node'}", ours)


def start_now(hands: Hands) -> Answer:
    """Begin without the rest of BeginTime. That its old nodes are done with it, the decision knows."""
    found = target(hands)
    if isinstance(found, Answer):
        return found
    if found.changed:
        return Answer(Outcome.CHANGED, found.changed)
    if not all(_is_pending(job) for job in found.rows):
        return Answer(Outcome.CHANGED, f"job {found.job_id} is {found.rows[0].state}, so Slurm would forget it")
    if why := hands.forbidden():
        return Answer(Outcome.CHANGED, why)
    hands.site.slurm.start_now(found.job_id)
    return see_begun(hands, wait=True)


def see_begun(hands: Hands, *, wait: bool) -> Answer:
    """Whether the job waits for its BeginTime no more; resources it may wait for."""
    until_s = min(hands.clock.monotonic_s() + (_SEEN_WITHIN_S if wait else 0), hands.order.deadline_s)
    while True:
        found = target(hands)
        if isinstance(found, Answer):
            return found
        if not any(job.reason == BEGIN_TIME and _is_pending(job) for job in found.rows):
            return Answer(Outcome.DONE, f"job {found.job_id} is {_state(found)}")
        if hands.clock.monotonic_s() >= until_s:
            return Answer(Outcome.FAILED, f"job {found.job_id} still waits for its BeginTime")
        hands.clock.sleep(POLL_S)


def _need(job: Job, excluded: frozenset[str]) -> Need:
    partitions = frozenset(filter(None, job.partition.split(",")))
    return Need(nodes=job.node_count or 1, partitions=partitions, excluded=excluded)


def _is_pending(job: Job) -> bool:
    return job.state.base is BaseState.PENDING and phase(job.state) is Phase.WAITS and not job.state.flags


def _state(found: Target) -> str:
    job = found.rows[0]
    return f"{job.state}" + (f" ({job.reason})" if job.reason and _is_pending(job) else "")
