"""Exactly-once submission: one lock for each spec, an intent on disk before sbatch, its answer in files, and no
second sbatch while the fate of the first is open.

Order, and why a crash between any two steps is safe:
  index entry -> run folder -> script -> INTENT -> sbatch (answer into files) -> SUBMITTED
Before INTENT nothing was started; after it the next submit first settles what became of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from fleetctl.assets import TRAIN_DIR
from fleetctl.clock import Clock
from fleetctl.errors import (
    CannotTell,
    RunDirError,
    SlurmMissing,
    SlurmRefused,
    SlurmUnreachable,
    SubmissionUnknown,
    UsageError,
)
from fleetctl.render import sweep_size
from fleetctl.rundir import files
from fleetctl.rundir.model import EventKind, History, RunRecord, SubmissionState, comment_of
from fleetctl.rundir.store import EventLog, Index, RunDir, Store, new_run_id
from fleetctl.rundir.view import RunState, jobs_by_base, own_jobs, view
from fleetctl.slurm.model import Accepted, NotSent, Refused, Unknown
from fleetctl.submission.plan import Dependencies, Plan, Scripts, check_files, render_plan, run_kind, total_nodes
from fleetctl.submission.settle import Settler
from fleetctl.version import VERSION

if TYPE_CHECKING:
    from fleetctl.slurm.port import Slurm

_LOOK_AGAIN_S = (0.0, 1.0, 2.0, 4.0, 8.0)  # after an sbatch without answer: the job is usually there within seconds


class Site(Struct, frozen=True):
    """Where and by whom runs are submitted."""

    slurm: Slurm
    settler: Settler
    store: Store
    clock: Clock
    scripts: Scripts
    user: str
    host: str
    slurm_conf: str
    note: Callable[[str], None]


class Submitted(Struct, frozen=True):
    """The run that this spec is now, new or not."""

    run_id: str
    job_id: str
    created: bool
    state: RunState


def submit(plan: Plan, site: Site, *, again: bool) -> Submitted:
    """Submit `plan`, unless a run of the same spec by the same user is unfinished: then that run is returned.

    :raises SlurmRefused: Slurm said no.
    :raises SubmissionUnknown: sbatch gave no answer; the same call again settles it and never makes a second job.
    :raises SlurmUnreachable: the controller does not answer; nothing was submitted.
    :raises RunDirError: the run root cannot be used; nothing was submitted.
    """
    check_files(plan)
    site.store.ensure()
    if site.store.index_is_locked(plan.digest):
        site.note("another submit of this spec is under way; waiting for its answer")
    with site.store.locked_index(plan.digest) as index:
        if not again and (known := _unfinished(index, site)) is not None:
            return known
        site.slurm.ping()  # with the controller down, fail before anything is written
        return _submit_new(plan, index, site)


def _unfinished(index: Index, site: Site) -> Submitted | None:
    """The newest run of this spec that may still be in Slurm."""
    for run_id in reversed(index.run_ids()):
        run = RunDir(site.store.root / run_id)
        if not (run.path / "run.json").exists():
            continue  # its submit died before anything was sent
        history = run.history()
        if history.state is SubmissionState.UNKNOWN:
            site.note(f"the submission of run {run_id} has no answer yet; looking for its job")
            settled = site.settler.settle(run)
            if settled.doubt is not None:
                raise unknown_error(run, settled.doubt.why)
            history = settled.history
        if history.state is not SubmissionState.SUBMITTED or history.job_id is None:
            continue
        state = current_state(run, history, site.slurm)
        if not state.is_finished:
            return Submitted(run_id, history.job_id, False, state)
    return None


def current_state(run: RunDir, history: History, slurm: Slurm) -> RunState:
    """The run's state by its record, and by Slurm where the record does not tell an end.

    :raises SlurmUnreachable: Slurm must be asked and does not answer.
    """
    jobs = slurm.jobs(user=history.record.user)
    mine = own_jobs(history, str(run.path), jobs_by_base(jobs).get(history.job_id or "", []))
    return view(history, None, mine).state


def dependencies(wanted: Sequence[str], store: Store, slurm: Slurm) -> Dependencies:
    """What the runs named in `depends_on` mean for Slurm and for the job's own check at its start.

    :raises RunUnknown: no such run.
    :raises UsageError: a run that can no longer finish well.
    """
    after, needs = [], []
    for name in wanted:
        run = store.find(name)
        history = run.history()
        state = current_state(run, history, slurm) if history.job_id else RunState.NOT_SUBMITTED
        if state is RunState.COMPLETED:
            continue
        if state.is_finished or history.job_id is None:
            raise UsageError(f"depends_on: run {run.run_id} is {state.value}, so this run could never start")
        after.append(history.job_id)
        needs.append(str(run.path))
    return Dependencies(tuple(after), tuple(needs))


def _submit_new(plan: Plan, index: Index, site: Site) -> Submitted:
    needed = dependencies(plan.spec.depends_on, site.store, site.slurm) if plan.spec.depends_on else Dependencies()
    run = RunDir(site.store.root / new_run_id(plan.spec.name))
    script = render_plan(plan, run, 1, site.scripts, needed)
    index.add(run.run_id)
    log = _prepare(plan, run, script, site)
    return _send(run, log, plan.workdir, site)


def _prepare(plan: Plan, run: RunDir, script: str, site: Site) -> EventLog:
    """The run's folder with its intent, or nothing at all."""
    record = RunRecord(
        run_id=run.run_id,
        name=plan.spec.name,
        user=site.user,
        created_at=site.clock.now(),
        kind=run_kind(plan.spec),
        spec_digest=plan.digest,
        spec_source=str(plan.source),
        workdir=str(plan.workdir),
        nodes=total_nodes(plan.spec),
        tasks=sweep_size(plan.spec),
        slurm_conf=site.slurm_conf,
        fleetctl_version=VERSION,
    )
    try:
        site.store.create(record, plan.text)
        with files.explained(run.path, "write"):
            run.submission_dir(1).mkdir()
            files.write_synced(run.script(1), script)
            shutil.copytree(TRAIN_DIR, run.path / "python" / "fleetctl" / "train", ignore=_no_caches)
        log = run.event_log(f"submit-{site.host}")
        log.append(record.created_at, EventKind.INTENT, submission=1, comment=comment_of(run.run_id, 1))
    except BaseException:
        shutil.rmtree(run.path, ignore_errors=True)  # ours, made a moment ago, and nothing was sent yet
        raise
    return log


def _no_caches(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "__pycache__"]


def _send(run: RunDir, log: EventLog, workdir: Path, site: Site) -> Submitted:
    folder = run.submission_dir(1)
    try:
        answer = site.slurm.submit(
            run.script(1), stdout=folder / "sbatch.out", stderr=folder / "sbatch.err", cwd=workdir
        )
    except SlurmMissing as error:
        log.append(site.clock.now(), EventKind.REFUSED, submission=1, code=error.exit_code, text=error.message)
        raise
    except KeyboardInterrupt:
        site.note(f"sbatch goes on by itself; its answer is kept. `fleetctl show {run.run_id}` tells what became of it")
        raise
    now = site.clock.now()
    match answer:
        case Accepted(job_id):
            try:
                log.append(now, EventKind.SUBMITTED, submission=1, job_id=str(job_id), how="sbatch's answer")
            except RunDirError as error:  # the job exists: say so whatever happens to the record
                site.note(f"{error.message}; the job is submitted all the same")
            return Submitted(run.run_id, str(job_id), True, RunState.PENDING)
        case Refused(code, text):
            log.append(now, EventKind.REFUSED, submission=1, code=code, text=text)
            raise SlurmRefused(code, text)
        case NotSent(text):
            log.append(now, EventKind.REFUSED, submission=1, code=1, text=text)
            raise SlurmUnreachable(f"nothing was submitted: {text}", remedy="submit again when the controller is back")
        case Unknown(text):
            log.append(now, EventKind.UNKNOWN, submission=1, text=text)
            return _look_again(run, text, site)


def _look_again(run: RunDir, text: str, site: Site) -> Submitted:
    """sbatch gave no answer; the job mostly exists. Positive evidence is safe to use at once, its absence is not."""
    site.note(f"sbatch gave no answer ({text}); looking for the job")
    why = text
    for pause_s in _LOOK_AGAIN_S:
        site.clock.sleep(pause_s)
        try:
            settled = site.settler.settle(run)
        except SlurmUnreachable as error:  # asking again would only keep the user waiting
            raise unknown_error(run, error.message) from None
        if settled.doubt is None:
            break
        why = settled.doubt.why
    else:
        raise unknown_error(run, why)
    history = settled.history
    if history.state is SubmissionState.REFUSED or history.job_id is None:
        raise SlurmRefused(1, history.detail)
    return Submitted(run.run_id, history.job_id, True, RunState.PENDING)


def unknown_error(run: RunDir, why: str) -> CannotTell:
    """The one wording of an open submission."""
    return SubmissionUnknown(
        f"run {run.run_id}: cannot tell whether it was submitted ({why})",
        remedy=f"`fleetctl resolve {run.run_id}` waits until it is known; submitting the same file again is safe",
    )
