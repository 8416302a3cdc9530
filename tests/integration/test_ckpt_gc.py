"""Old checkpoints go as the spec says: by `fleetctl ckpt gc`, and by the job itself while it trains."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fleetctl.checkpoint.here import Here
from fleetctl.checkpoint.model import Fence, Survey
from fleetctl.cli.ckpt_gc import _permit
from fleetctl.cli.ckpt_place import Place
from fleetctl.rundir.model import EventKind
from fleetctl.rundir.store import RunDir, Store
from fleetctl.sandbox.cluster import Sandbox
from tests.checkpoints import write_checkpoint
from tests.integration.test_ckpt_cli import asked, claim, make_run, name
from tests.support import EXAMPLES, Cli, wait_until, write_spec


@pytest.fixture
def alone(tmp_path: Path) -> Cli:
    """No Slurm is asked."""
    return Cli({"HOME": str(tmp_path), "PATH": "/nonexistent"}, tmp_path / "runs")


def old_run(tmp_path: Path, **section: Any) -> RunDir:
    """A run that is over, with four checkpoints of its own; attempt 1.0 resumed from none, 2.0 from the oldest."""
    run = make_run(tmp_path / "runs", tmp_path, **section)
    for step in (10, 20, 30, 40):
        write_checkpoint(tmp_path / "ckpt", step, run_id=run.run_id)
    claim(run, (1, 0), *[name(step) for step in (10, 20, 30, 40)], over=True)
    return run


def left(tmp_path: Path) -> list[int]:
    return sorted(int(path.name[5:14]) for path in (tmp_path / "ckpt").glob("step-*"))


def events(run: RunDir) -> list[dict[str, Any]]:
    return [event.data for event in run.events() if event.kind is EventKind.RETENTION]


def test_without_apply_nothing_is_removed(alone: Cli, tmp_path: Path) -> None:
    run = old_run(tmp_path, keep=2)
    shown = alone("ckpt", "gc", run.run_id)
    assert shown.returncode == 0, shown
    assert [line.split("\t")[3] for line in shown.stdout.splitlines()] == ["WHAT", "stays", "stays", "goes", "goes"]
    assert shown.stderr.startswith("would remove 2 checkpoints, 4.6 KiB; nothing was: --apply does")
    assert (left(tmp_path), events(run)) == ([10, 20, 30, 40], [])


def test_what_the_spec_lets_go_is_written_down_and_removed(alone: Cli, tmp_path: Path) -> None:
    run = old_run(tmp_path, keep=3)
    found = asked(alone, 0, "gc", run.run_id, "--apply")
    assert [(one["training_step"], one["goes"], one["removed"]) for one in found] == [
        (40, False, False),
        (30, False, False),
        (20, False, False),
        (10, True, True),
    ]
    assert left(tmp_path) == [20, 30, 40]
    (event,) = events(run)
    assert (event["names"], event["keep"]) == ([name(10)], 3)
    assert "removes 1 old checkpoint" in alone("show", run.run_id).stdout


def test_options_win_and_without_any_policy_nothing_goes(alone: Cli, tmp_path: Path) -> None:
    run = old_run(tmp_path, format="own")
    refused = alone("ckpt", "gc", run.run_id, "--apply")
    assert (refused.returncode, left(tmp_path)) == (2, [10, 20, 30, 40])
    assert "--keep N" in refused.stderr
    assert alone("ckpt", "gc", run.run_id, "--keep", "1").returncode == 2
    assert alone("ckpt", "gc", run.run_id, "--keep", "2", "--every", "soon").returncode == 2
    assert alone("ckpt", "gc", str(tmp_path / "ckpt"), "--keep", "2", "--apply").returncode == 0
    assert left(tmp_path) == [30, 40]


def test_what_an_attempt_resumed_from_and_what_is_tagged_stay(alone: Cli, tmp_path: Path) -> None:
    run = old_run(tmp_path, keep=2)
    claim(run, (2, 0), *[name(step) for step in (10, 20, 30, 40)])
    resume = {"schema": 1, "path": str(tmp_path / "ckpt" / name(10)), "training_step": 10}
    (run.attempt_dir("2.0", None) / "resume.json").write_text(str(resume).replace("'", '"'))
    (tmp_path / "ckpt" / ".keep").mkdir()
    (tmp_path / "ckpt" / ".keep" / name(20)).touch()
    found = asked(alone, 0, "gc", run.run_id, "--apply")
    assert [one["why"] for one in found] == ["one of the newest 2", "one of the newest 2", "tagged", "in use"]
    assert left(tmp_path) == [10, 20, 30, 40]


def resumed(run: RunDir, tmp_path: Path, step: int, *passed_over: str) -> None:
    """What launch writes once attempt 2.0 has chosen."""
    resume = {"path": str(tmp_path / "ckpt" / name(step)), "training_step": step, "passed_over": passed_over}
    (run.attempt_dir("2.0", None) / "resume.json").write_text(json.dumps(resume))


def test_what_a_start_passed_over_stays_and_so_does_all_that_was_saved_since(alone: Cli, tmp_path: Path) -> None:
    run = old_run(tmp_path, keep=2)
    claim(run, (2, 0), *[name(step) for step in (10, 20, 30, 40)])
    resumed(run, tmp_path, 20, *[f"{name(step)}: corrupt: another content" for step in (40, 30)])
    for step in (22, 24, 26):
        write_checkpoint(tmp_path / "ckpt", step, run_id=run.run_id, attempt="2.0")
    asked(alone, 0, "gc", run.run_id, "--apply")
    assert left(tmp_path) == [20, 24, 26, 30, 40]


def test_what_killed_an_attempt_takes_no_place(alone: Cli, tmp_path: Path) -> None:
    run = old_run(tmp_path, keep=2)
    claim(run, (2, 0), *[name(step) for step in (10, 20, 30, 40)], over=True)
    resumed(run, tmp_path, 40)
    said = {"path": str(tmp_path / "ckpt" / name(40)), "state": "failed"}
    (run.attempt_dir("2.0", None) / "load.json").write_text(json.dumps(said))
    found = asked(alone, 0, "gc", run.run_id, "--apply")
    assert found[0]["why"] == "an attempt died while it loaded this: for a person to remove"
    assert left(tmp_path) == [20, 30, 40]


def test_while_a_start_chooses_nothing_goes(alone: Cli, tmp_path: Path) -> None:
    run = old_run(tmp_path, keep=2)
    claim(run, (2, 0), *[name(step) for step in (10, 20, 30, 40)])
    done = alone("ckpt", "gc", run.run_id, "--apply")
    assert done.returncode == 0
    assert done.stderr.startswith("removed 0 checkpoints")
    assert left(tmp_path) == [10, 20, 30, 40]
    resumed(run, tmp_path, 40)
    assert [one["removed"] for one in asked(alone, 0, "gc", run.run_id, "--apply")] == [False, False, True, True]


def test_nothing_goes_once_another_attempt_has_started_since(tmp_path: Path) -> None:
    run = old_run(tmp_path, keep=2)
    place = Place(tmp_path, Survey(), (), Fence.open(""), Here(), run=run, may_be_written=False, newest=(1, 0))
    with _permit(place, None) as may_go:
        assert may_go
    claim(run, (2, 0))
    with _permit(place, None) as may_go:
        assert not may_go


def test_of_a_folder_it_is_said_that_its_runs_are_not_known(alone: Cli) -> None:
    assert "it is not known which runs use it" in " ".join(alone("ckpt", "gc", "--help").stdout.split())


def test_a_read_only_folder_is_told_and_nothing_goes(alone: Cli, tmp_path: Path) -> None:
    run = old_run(tmp_path, keep=2)
    folder = tmp_path / "ckpt"
    subprocess.run(["mount", "--bind", "-o", "ro", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        done = alone("ckpt", "gc", run.run_id, "--apply")
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    assert done.returncode == 3
    assert "Read-only file system" in done.stderr
    assert left(tmp_path) == [10, 20, 30, 40]


@pytest.mark.slurm
def test_a_training_keeps_its_newest_ones_by_itself(sandbox: Sandbox, tmp_path: Path) -> None:
    cli = Cli(sandbox.environment(os.environ), tmp_path / "runs")
    text = (EXAMPLES / "train.yaml").read_text().replace("dir: checkpoints/numpy", f"dir: {tmp_path}/ckpt")
    text = text.replace("interval: 3s", "interval: 1s\n  keep: 2").replace("  spare_nodes: 1", "  spare_nodes: 0")
    command = f"python3 {EXAMPLES}/train_numpy.py --steps 100000 --step-time-ms 50"
    spec = write_spec(tmp_path, text.replace("command: python3 train_numpy.py --steps 300", f"command: {command}"))
    answer = cli.json("submit", str(spec))
    run = Store(cli.runs).find(answer["run_id"])
    wait_until(lambda: events(run), "the removal is written down")
    gone = events(run)[0]["names"]
    wait_until(lambda: not any((tmp_path / "ckpt" / one).exists() for one in gone), "they are gone")
    assert len(left(tmp_path)) >= 2
    assert asked(cli, 0, "verify", answer["run_id"]), "what is left is whole"
    cli.json("cancel", answer["run_id"])
