"""Bring a run back because a person says so: look, decide, write it down, do one thing, see that it happened.

Order, and why a crash between any two steps is safe:
  REQUEUE (the wish) -> scontrol requeue -> REQUEUED -> exclusions
What Slurm has done shows in the job's Restarts, and what came of it in its attempts: so the same call again goes on
where the first one ended. All of it happens under the lock of the spec: never two at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from fleetctl.errors import CannotTell, FleetctlError, SlurmRefused, SlurmUnreachable
from fleetctl.render.script import parts
from fleetctl.rundir.history import History, last_attempts
from fleetctl.rundir.model import WITHOUT_GPUS, EventKind
from fleetctl.rundir.store import RunDir
from fleetctl.slurm.hosts import fold
from fleetctl.slurm.model import BaseState, Job, JobId
from fleetctl.submission.decide_nodes import check_exclusion, hosts
from fleetctl.submission.decide_requeue import (
    Deed,
    Look,
    NotYet,
    Phase,
    Wanted,
    cancelled,
    decide,
    is_noted,
    phase,
)
from fleetctl.submission.look import (
    Brought,
    Try,
    begin,
    copied,
    finish_earlier,
    look_at,
    needs,
    rows,
    settled,
    write_wish,
)
from fleetctl.submission.resubmit import submit_again

if TYPE_CHECKING:
    from fleetctl.submission.submit import Site

_SEEN_WITHIN_S = 30.0  # Restarts rises at once; a controller that restarts meanwhile needs some seconds
_POLL_S = 0.5
_TRIES = 3  # a pending job may start at any moment between two of our steps, but hardly three times
_RUNS = (BaseState.RUNNING, BaseState.SUSPENDED)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0  # sites ask for seconds between queries, not fractions


def requeue(run: RunDir, wanted: Wanted, site: Site, check_step: Callable[[], None], *, wait: bool) -> Brought:
    """Bring `run` back, once; the same call again never does it twice. `wait` for the moment at which it is safe.

    `check_step` raises where nothing can be resumed from at or below the wanted step.
    :raises UsageError: it must not come back, or not so.
    :raises CannotTell: Slurm does not answer or tells nothing of it, its submission is open, it is not safe now, or it
        was not seen to come back.
    :raises SlurmError: Slurm said no.
    """
    waiting = _Waiting(site)
    while True:
        done = _try(run, wanted, site, check_step)
        if isinstance(done, Brought):
            return done
        if not wait:
            raise CannotTell(done.why, remedy="--wait waits until it is safe; or ask again later")
        waiting.pause(done.why)


def await_restart(run: RunDir, wanted: Wanted, site: Site) -> None:
    """Until the job has begun again, with the GPUs that its spec asks for. Slurm may be away meanwhile.

    :raises FleetctlError: it has ended, or Slurm has started it without its GPUs.
    :raises CannotTell: Slurm has forgotten it.
    """
    this, waiting = begin(run, wanted, site), _Waiting(site)
    while True:
        history = run.history()
        try:
            jobs = rows(this, history) or ()
            if not jobs:
                raise FleetctlError(f"job {this.job_id(history)} is gone before it was seen to begin again")
            if all(job.state.base in _RUNS and phase(job.state) is Phase.LIVES for job in jobs):
                return _check_gpus(this, jobs)
            if all(phase(job.state) is Phase.ENDED for job in jobs):
                _check_gpus(this, jobs)  # without them it ends within seconds, and Slurm still tells them
                raise FleetctlError(f"job {this.job_id(history)} has ended: {jobs[0].state}")
            reason = f" ({jobs[0].reason})" if jobs[0].reason else ""
            waiting.pause(
                f"job {this.job_id(history)} is {str(jobs[0].state).lower()}{reason}{_lost_gpus(this, history)}"
            )
        except SlurmUnreachable as error:
            waiting.pause(error.message)


class _Waiting:
    """Says why we wait whenever that changes, and pauses longer and longer."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._said = ""
        self._pause_s = _FIRST_PAUSE_S

    def pause(self, why: str) -> None:
        if why != self._said:
            self._site.note(f"waiting: {why}. Ctrl-C is safe")
            self._said = why
        self._site.clock.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 1.5, _LONGEST_PAUSE_S)


def _try(run: RunDir, wanted: Wanted, site: Site, check_step: Callable[[], None]) -> Brought | NotYet:
    record = run.record()
    if record.run_id != run.run_id:
        raise copied(run, f"its record is of {record.run_id}")
    site.store.ensure()
    with site.store.locked_index(record.spec_digest, site.clock, site.note):
        this = begin(run, wanted, site)
        for _ in range(_TRIES):
            if (done := _once(this, check_step)) is not None:
                return done
    raise CannotTell(f"run {run.run_id} starts again and again just now", remedy="ask again")


def _once(this: Try, check_step: Callable[[], None]) -> Brought | NotYet | None:
    """None: the job began to start meanwhile, so it must be looked at again."""
    before = this.run.history()
    if finish_earlier(this, before):
        now = this.run.history()
        return this.brought(now, Deed.NOTHING, rows(this, now) or ())
    history = settled(this, before)
    look = look_at(this, history)
    if look.past.wish is not None:  # exclusions add up, also those that a call before this one did not come to set
        exclude = this.wanted.exclude | hosts(look.past.wish.exclude)
        this = msgspec.structs.replace(this, wanted=msgspec.structs.replace(this.wanted, exclude=exclude))
    deed = decide(look, this.wanted)
    if isinstance(deed, NotYet):
        return deed
    if deed is Deed.NOTHING:
        return this.brought(history, deed, look.jobs or ())
    if this.wanted.exclude:
        check_exclusion(this.wanted.exclude, needs(this, look), this.site.slurm.nodes())
    if this.wanted.from_step is not None:
        check_step()
    if deed is Deed.SUBMIT:
        return submit_again(this, history)
    if deed is Deed.WISH:
        return _wish(this, history)
    _requeue(this, look, deed)
    try:
        return this.brought(history, deed, _exclude(this, history))
    except SlurmRefused as error:
        remedy = "the job was requeued; the same command again sets the excluded nodes"
        raise SlurmRefused(error.code, error.text, remedy=remedy) from None


def _wish(this: Try, history: History) -> Brought | None:
    """The job waits. Should it have begun to start while we wrote, it may have read what was there before."""
    write_wish(this, history, history.submission)
    try:
        jobs = _exclude(this, history)
    except SlurmRefused:
        if _waits(rows(this, history) or ()):
            raise
        return None
    jobs = rows(this, history) or ()
    return this.brought(history, Deed.WISH, jobs) if _waits(jobs) or this.wanted.from_step is None else None


def _waits(jobs: tuple[Job, ...]) -> bool:
    return all(phase(job.state) in (Phase.WAITS, Phase.COMPLETES) for job in jobs)


def _requeue(this: Try, look: Look, deed: Deed) -> None:
    """Write, look again, ask, and see that Restarts rises."""
    history, slurm = look.history, this.site.slurm
    job_id = this.job_id(history)
    write_wish(this, history, history.submission)
    if this.run.history().cancelled_at is not None:
        raise cancelled(history)
    if deed is Deed.REQUEUE_ENDED:
        again = msgspec.structs.replace(look, jobs=rows(this, history))
        if decide(again, this.wanted) is not Deed.REQUEUE_ENDED:
            raise CannotTell(f"job {job_id} changed while it was looked at", remedy="ask again")
    try:
        slurm.requeue(job_id) if deed is Deed.REQUEUE else slurm.requeue_ended(job_id)
    except SlurmUnreachable as error:  # it may have been done all the same
        this.site.note(error.message)
    restarts = _see_restart(this, job_id, look.restarts)
    this.log.append(
        this.site.clock.now(),
        EventKind.REQUEUED,
        submission=history.submission,
        task=this.wanted.task,
        restarts=restarts,
    )
    now = this.run.history()
    if not is_noted(this.past(now), this.wanted):  # an attempt began before the job was taken back
        write_wish(this, now, history.submission)


def _see_restart(this: Try, job_id: JobId, before: int) -> int:
    clock = this.site.clock
    deadline_s = clock.monotonic_s() + _SEEN_WITHIN_S
    while True:
        found = this.site.slurm.allocation(job_id)
        if (found.restarts or 0) > before:
            return found.restarts or 0
        if phase(found.state) is Phase.ENDED or clock.monotonic_s() > deadline_s:
            raise CannotTell(
                f"Slurm did not requeue job {job_id}, which is {found.state} now",
                remedy="ask again: it is not done twice",
            )
        clock.sleep(_POLL_S)


def _exclude(this: Try, history: History) -> tuple[Job, ...]:
    """Add the exclusions to those of the job, and read them back. The rows as they are then.

    :raises SlurmRefused: it waits no more.
    """
    before, changed = rows(this, history) or (), False
    for job in before:
        nodes = hosts(job.excluded_nodes) | this.wanted.exclude
        if nodes != hosts(job.excluded_nodes):
            one = job.id if this.wanted.task is None else this.job_id(history)  # a row may be the rest of an array
            this.site.slurm.set_excluded(one, fold(nodes))
            changed = True
    after = (rows(this, history) or ()) if changed else before
    for job in after:
        if missing := this.wanted.exclude - hosts(job.excluded_nodes):
            raise CannotTell(f"Slurm does not show that job {job.id} stays off {fold(missing)}", remedy="ask again")
    return after


def _lost_gpus(this: Try, history: History) -> str:
    """What the job itself has seen since: it does not stay without its GPUs for long."""
    newest = last_attempts(history).get(this.wanted.task)
    if newest is None or newest.failure != WITHOUT_GPUS:
        return ""
    return (
        f"; Slurm restarted it WITHOUT ITS GPUS on {newest.nodes}, and it has asked for another start; tell your"
        " administrators that slurmctld must be restarted: it lost count of the GPUs there"
    )


def _check_gpus(this: Try, jobs: tuple[Job, ...]) -> None:
    """22.05.8 restarts a job that lost a node without its GPUs, and says that it has them all (Allocation.gpus)."""
    asked = [part.resources for part in parts(this.plan.spec)]
    for job, resources in zip(sorted(jobs, key=lambda job: job.id), asked, strict=False):
        wanted = (resources.nodes + resources.spare_nodes) * resources.gpus_per_node
        has = this.site.slurm.allocation(job.id).gpus if wanted else None
        if wanted and has is None and job.node_list:
            this.site.note(f"it cannot be told how many GPUs job {job.id} has")
        elif has is not None and has < wanted:
            raise FleetctlError(
                f"Slurm restarted job {job.id} WITHOUT ITS GPUS: it has {has} of {wanted} on {job.node_list}",
                remedy=f"`fleetctl cancel {this.run.run_id}`, then `fleetctl submit {this.plan.source} --again`; tell "
                f"your administrators that slurmctld must be restarted: it lost count of the GPUs on {job.node_list}",
            )
