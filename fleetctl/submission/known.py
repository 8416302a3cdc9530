"""Runs that are there already: the one that a spec has, and those that it depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from fleetctl.errors import CannotTell, SubmissionUnknown, UsageError
from fleetctl.rundir.history import History
from fleetctl.rundir.model import SubmissionState
from fleetctl.rundir.store import Index, RunDir
from fleetctl.rundir.view import Queue, RunState, jobs_of, queue_of, view
from fleetctl.submission.plan import Dependencies

if TYPE_CHECKING:
    from fleetctl.submission.submit import Site


class Submitted(Struct, frozen=True):
    """The run that a spec is now, new or not."""

    run_id: str
    job_id: str
    created: bool
    state: RunState


def ask(site: Site) -> Queue:
    """Our jobs, by one query.

    :raises SlurmUnreachable: nothing is known.
    """
    return queue_of(site.cluster, site.user, site.slurm.jobs(user=site.user))


def state_of(run: RunDir, history: History, queue: Queue) -> RunState:
    """The run's state by its record and by what Slurm answered."""
    return view(history, None, jobs_of(history, str(run.path), queue)).state


def unfinished(index: Index, digest: str, site: Site) -> Submitted | None:
    """The newest run of this spec that may still be in Slurm.

    :raises SubmissionUnknown: it is not known whether one of them was submitted.
    """
    runs = [RunDir(site.store.root / run_id) for run_id in reversed(index.run_ids())]
    there = [run for run in runs if (run.path / "run.json").exists()]  # written before anything is sent
    histories = [_settled(run, site) for run in there if run.record().spec_digest == digest]
    submitted = [one for one in histories if one.state is SubmissionState.SUBMITTED]
    queue = ask(site) if submitted else None
    for history in submitted:
        assert queue is not None
        assert history.job_id is not None, "a submitted run has a job"
        state = state_of(RunDir(site.store.root / history.record.run_id), history, queue)
        if not state.is_finished:
            return Submitted(history.record.run_id, history.job_id, False, state)
    return None


def _settled(run: RunDir, site: Site) -> History:
    history = run.history()
    if history.state is not SubmissionState.UNKNOWN:
        return history
    site.note(f"the submission of run {run.run_id} has no answer yet; looking for its job")
    settled = site.settler.settle(run)
    if settled.doubt is not None:
        raise unknown_error(run, settled.doubt.why)
    return settled.history


def dependencies(wanted: Sequence[str], site: Site) -> Dependencies:
    """What the runs named in `depends_on` mean for Slurm and for the job's own check at its start.

    :raises RunUnknown: no such run.
    :raises UsageError: a run that can no longer finish well.
    :raises CannotTell: a run of which it is not known whether it was submitted, or how it is.
    """
    if not wanted:
        return Dependencies()
    after, needs = [], []
    queue = ask(site)
    for name in wanted:
        run = site.store.find(name)
        history = _settled(run, site)
        state = RunState.NOT_SUBMITTED if history.job_id is None else state_of(run, history, queue)
        if state is RunState.COMPLETED:
            continue
        if state is RunState.UNKNOWN:
            raise CannotTell(f"depends_on: it is not known how run {run.run_id} is")
        if state.is_finished or history.job_id is None:
            raise UsageError(f"depends_on: run {run.run_id} is {state.value}, so this run could never start")
        after.append(history.job_id)
        needs.append(str(run.path))
    return Dependencies(tuple(after), tuple(needs))


def unknown_error(run: RunDir, why: str) -> SubmissionUnknown:
    """The one wording of an open submission."""
    return SubmissionUnknown(
        f"run {run.run_id}: cannot tell whether it was submitted ({why})",
        remedy=f"`fleetctl resolve {run.run_id}` waits until it is known; submitting the same file again is safe",
    )
