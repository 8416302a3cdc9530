"""From this process's edges to what submission needs: profile, style, templates, the settler."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fleetctl.cli.context import App
from fleetctl.cli.output import note
from fleetctl.cli.runs import host_name, profile_of, slurm_of, store_of, user_name

if TYPE_CHECKING:
    from fleetctl.slurm.port import Slurm
    from fleetctl.slurm.profile import ClusterProfile
    from fleetctl.submission.plan import Plan, Scripts
    from fleetctl.submission.settle import Settler
    from fleetctl.submission.submit import Site


def site_of(here: App, template_dirs: Sequence[Path]) -> Site:
    """Where we submit; probes the cluster when its profile is not known yet."""
    from fleetctl.submission.submit import Site

    slurm = slurm_of(here)
    profile = profile_of(here, slurm)
    return Site(
        slurm=slurm,
        settler=settler_of(here, slurm, profile),
        store=store_of(here),
        clock=here.clock,
        scripts=_scripts(here, profile, template_dirs),
        user=user_name(),
        host=host_name(),
        cluster=profile.cluster_name,
        note=note,
    )


def settler_of(here: App, slurm: Slurm, profile: ClusterProfile) -> Settler:
    """What settles open submissions on this cluster."""
    from fleetctl.slurm.profile import Comments
    from fleetctl.submission.decide import Policy
    from fleetctl.submission.settle import Settler

    proved = profile.comments is Comments.FOUND
    policy = Policy(message_timeout_s=profile.message_timeout_s)
    return Settler(slurm, here.clock, host_name(), profile.cluster_name, proved, policy)


def dry_script(plan: Plan, here: App, template_dirs: Sequence[Path]) -> str:
    """The script as it would be, by the cached profile or a plain one; contacts nothing and writes nothing."""
    from fleetctl.rundir.store import RunDir
    from fleetctl.slurm import profile
    from fleetctl.submission.plan import Dependencies, render_plan

    known = profile.load_profile(profile.profile_path(here.runs_root, here.environ), here.environ, here.clock.now())
    known = known or profile.DEFAULT_PROFILE
    if plan.spec.depends_on:
        note("--dry-run looks no run up: the script has no --dependency line")
    run = RunDir(here.runs_root / "RUN")
    return render_plan(plan, run, 1, _scripts(here, known, template_dirs), Dependencies())


def _scripts(here: App, profile: ClusterProfile, template_dirs: Sequence[Path]) -> Scripts:
    from fleetctl.render.steps import Style
    from fleetctl.submission.plan import Scripts

    return Scripts(
        python=sys.executable,
        style=Style(profile.gpu_style, profile.memory_style),
        max_array_size=profile.max_array_size,
        template_dirs=_template_dirs(here, template_dirs),
    )


def _template_dirs(here: App, given: Sequence[Path]) -> tuple[Path, ...]:
    """The user's folders: options, then FLEETCTL_TEMPLATES, then the one beside the user's configuration."""
    named = [Path(part) for part in here.environ.get("FLEETCTL_TEMPLATES", "").split(":") if part]
    return (*given, *named, Path.home() / ".config" / "fleetctl" / "templates")
