"""`fleetctl cluster probe` on a real cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from fleetctl.cli.cluster import command
from fleetctl.cli.context import App
from fleetctl.clock import SystemClock
from fleetctl.errors import SlurmUnreachable
from fleetctl.slurm.profile import load_profile, profile_path
from fleetctl.slurm.text import TextSlurm

pytestmark = pytest.mark.slurm


def app_of(environ: Mapping[str, str], folder: Path) -> App:
    return App(clock=SystemClock(), environ=environ, cwd=folder, runs_root=folder / "runs")


def test_probe_proves_comments_and_keeps_the_profile(slurm_env: Mapping[str, str], tmp_path: Path) -> None:
    app = app_of(slurm_env, tmp_path)
    done = CliRunner().invoke(command, ["probe", "--json"], obj=app, catch_exceptions=False)
    assert done.exit_code == 0
    shown = json.loads(done.stdout)
    assert (shown["comments"], shown["schema"], shown["gpu_style"]) == ("found", 1, "gpus_per_node")
    assert "found by its comment" in done.stderr
    kept = load_profile(profile_path(app.runs_root, app.environ), app.environ, app.clock.now())
    assert kept is not None
    assert kept.slurm_version == shown["slurm_version"] == TextSlurm(slurm_env).version()


def test_probe_without_a_test_job_submits_none(slurm_env: Mapping[str, str], tmp_path: Path) -> None:
    before = {job.id for job in TextSlurm(slurm_env).jobs()}
    done = CliRunner().invoke(command, ["probe", "--no-test-job"], obj=app_of(slurm_env, tmp_path))
    assert done.exit_code == 0
    assert "unproven" in done.stdout
    assert {job.id for job in TextSlurm(slurm_env).jobs()} <= before


def test_probe_of_no_cluster_writes_nothing(slurm_env: Mapping[str, str], tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nSlurmctldPort=1\nMessageTimeout=2\nNodeName=n\n")
    done = CliRunner().invoke(command, ["probe"], obj=app_of({**slurm_env, "SLURM_CONF": str(conf)}, tmp_path))
    assert isinstance(done.exception, SlurmUnreachable)
    assert not (tmp_path / "runs").exists()
