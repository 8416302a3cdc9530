"""Exactly-once submission: one lock for each spec, an intent on disk before sbatch, its answer in files, and no
second sbatch while the fate of the first is open.

Order, and why a crash between any two steps is safe:
  index entry -> run folder -> script -> INTENT -> sbatch (answer into files) -> SUBMITTED
Before INTENT nothing was started; after it the next submit first settles what became of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from fleetctl.assets import TRAIN_DIR
from fleetctl.clock import Clock
from fleetctl.errors import CannotTell, FleetctlError, RunDirError, SlurmRefused, SlurmUnreachable
from fleetctl.render import sweep_size
from fleetctl.rundir import files
from fleetctl.rundir.model import EventKind, RunRecord, SubmissionState, comment_of
from fleetctl.rundir.store import EventLog, RunDir, Store, new_run_id
from fleetctl.rundir.view import RunState
from fleetctl.slurm.model import Accepted, NotSent, Refused, SubmitAnswer, Unknown
from fleetctl.spec.record import spec_to_builtins
from fleetctl.submission.known import Submitted, dependencies, unfinished, unknown_error
from fleetctl.submission.plan import Plan, Scripts, check_files, render_plan, run_kind, spec_digest, total_nodes
from fleetctl.submission.settle import Settler
from fleetctl.version import VERSION

if TYPE_CHECKING:
    from fleetctl.slurm.port import Slurm

_LOOK_AGAIN_S = (0.0, 1.0, 2.0, 4.0, 8.0)  # after an sbatch without answer: the job is usually there within seconds
_NEW_IDS = 5  # of 30 random bits each: five taken ones in a row do not happen


class Site(Struct, frozen=True):
    """Where and by whom runs are submitted."""

    slurm: Slurm
    settler: Settler
    store: Store
    clock: Clock
    scripts: Scripts
    user: str
    host: str
    cluster: str
    note: Callable[[str], None]


def submit(plan: Plan, site: Site, *, again: bool) -> Submitted:
    """Submit `plan`, unless a run of the same spec by the same user is unfinished: then that run is returned.

    :raises SlurmRefused: Slurm said no.
    :raises SubmissionUnknown: sbatch gave no answer; the same call again settles it and never makes a second job.
    :raises SlurmUnreachable: the controller does not answer; nothing was submitted.
    :raises RunDirError: the run root cannot be used; nothing was submitted.
    """
    check_files(plan)
    site.store.ensure()
    digest = spec_digest(plan, site.user)
    with site.store.locked_index(digest, site.clock, site.note) as index:
        if not again and (known := unfinished(index, digest, site)) is not None:
            return known
        needed = dependencies(plan.spec.depends_on, site)
        for _ in range(_NEW_IDS):
            run = RunDir(site.store.root / new_run_id(plan.spec.name))
            script = render_plan(plan, run, 1, site.scripts, needed)
            index.add(run.run_id)
            if site.store.reserve(run.run_id):
                log = _prepare(plan, run, script, digest, site)
                return _settle_answer(_send(run, log, plan.workdir, site), run, log, site)
        raise RunDirError(f"no free run id under {site.store.root}")


def _prepare(plan: Plan, run: RunDir, script: str, digest: str, site: Site) -> EventLog:
    """The reserved folder with its record and its intent, or nothing at all."""
    record = RunRecord(
        run_id=run.run_id,
        name=plan.spec.name,
        user=site.user,
        created_at=site.clock.now(),
        kind=run_kind(plan.spec),
        spec_digest=digest,
        spec_source=str(plan.source),
        workdir=str(plan.workdir),
        nodes=total_nodes(plan.spec),
        tasks=sweep_size(plan.spec),
        cluster=site.cluster,
        fleetctl_version=VERSION,
    )
    try:
        site.store.fill(record, plan.text, spec_to_builtins(plan.spec))
        with files.explained(run.path, "write"):
            run.submission_dir(1).mkdir()
            files.write_synced(run.script(1), script)
            shutil.copytree(TRAIN_DIR, run.path / "python" / "fleetctl" / "train", ignore=_no_caches)
        log = run.event_log(f"submit-{site.host}")
        log.append(site.clock.now(), EventKind.INTENT, submission=1, comment=comment_of(run.run_id, 1))
    except BaseException:
        shutil.rmtree(run.path, ignore_errors=True)  # ours, reserved a moment ago, and nothing was sent yet
        raise
    return log


def _no_caches(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "__pycache__"]


def _send(run: RunDir, log: EventLog, workdir: Path, site: Site) -> SubmitAnswer:
    """Start sbatch and wait for it. What keeps it from starting at all is written down as a refusal."""
    folder = run.submission_dir(1)
    try:
        return site.slurm.submit(run.script(1), stdout=folder / "sbatch.out", stderr=folder / "sbatch.err", cwd=workdir)
    except CannotTell:  # it ran, and its answer cannot be read: open
        raise
    except (FleetctlError, OSError) as error:
        text = f"sbatch could not be started: {error}"
        log.append(site.clock.now(), EventKind.REFUSED, submission=1, code=1, text=text)
        if isinstance(error, OSError):
            raise RunDirError(text) from None
        raise
    except KeyboardInterrupt:
        site.note(f"sbatch goes on by itself and its answer is kept: `fleetctl resolve {run.run_id}` reads it")
        raise


def _settle_answer(answer: SubmitAnswer, run: RunDir, log: EventLog, site: Site) -> Submitted:
    now = site.clock.now()
    match answer:
        case Accepted(job_id):
            try:
                cluster = job_id.cluster
                how = "sbatch's answer"
                log.append(now, EventKind.SUBMITTED, submission=1, job_id=str(job_id), how=how, cluster=cluster)
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
