"""Exactly-once submission: one lock for each spec, an intent on disk before sbatch, its answer in files, and no
second sbatch while the fate of the first is open.

Order, and why a crash between any two steps is safe:
  index entry -> run folder -> script -> INTENT -> sbatch (answer into files) -> SUBMITTED
Before INTENT nothing was started; after it the next submit first settles what became of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from fleetctl.assets import TRAIN_DIR
from fleetctl.clock import Clock
from fleetctl.errors import RunDirError
from fleetctl.render.script import sweep_size
from fleetctl.rundir import files
from fleetctl.rundir.model import RunRecord
from fleetctl.rundir.store import EventLog, RunDir, Store, new_run_id
from fleetctl.spec.record import spec_to_builtins
from fleetctl.submission.known import Submitted, dependencies, unfinished
from fleetctl.submission.plan import Plan, Scripts, check_files, render_plan, run_kind, spec_digest, total_nodes
from fleetctl.submission.send import announce, send
from fleetctl.submission.settle import Settler
from fleetctl.version import VERSION

if TYPE_CHECKING:
    from fleetctl.slurm.port import Slurm

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
                return send(run, 1, plan.workdir, log, site)
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
            shutil.copytree(TRAIN_DIR, run.path / "python" / "fleetctl" / "train", ignore=_no_caches)
        log = run.event_log(f"submit-{site.host}")
        announce(run, 1, script, log, site)
    except BaseException:
        shutil.rmtree(run.path, ignore_errors=True)  # ours, reserved a moment ago, and nothing was sent yet
        raise
    return log


def _no_caches(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "__pycache__"]
