"""A run whose training writes what frameworks write: which checkpoint it goes on from, and how the training is told."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.model import attempt_name
from fleetctl.sandbox.cluster import Sandbox
from tests.formats.deepspeed import write_zero
from tests.formats.huggingface import write_trainer
from tests.support import ROOT, Cli, wait_until, write_spec

pytestmark = pytest.mark.slurm

PROGRAM = Path(__file__).parent / "train_formats.py"


class Training:
    """One run; `plan` says what each of its attempts does."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self.cli, self.folder = cli, folder
        self.directory = folder / 'it\'s "$HOME" $(touch x)'
        self.directory.mkdir()
        self.run_id = ""

    def plan(self, attempt: str, *deeds: str) -> None:
        (self.folder / f"plan.{attempt}").write_text(json.dumps(deeds))

    def submit(self, form: str = "huggingface", *, words: bool = True, **checkpoint: str) -> None:
        argv = ["python3", str(PROGRAM), str(self.folder), "a b"]
        text = f"exec python3 {PROGRAM} {self.folder} 'a b' \"$@\""
        spec = {
            "name": "train",
            "resources": {"cpus_per_task": "1", "time": "10m"},
            "checkpoint": {"dir": str(self.directory), "format": form, **checkpoint},
            "env": {"PYTHONPATH": str(ROOT), "FORMAT": form},
            "command": argv if words else text,
        }
        answer = self.cli.json("submit", str(write_spec(self.folder, json.dumps(spec))))
        self.run_id = answer["run_id"]

    def end(self) -> str:
        return str(json.loads(self.cli("wait", self.run_id, "--json", "--timeout", "100").stdout)["state"])

    @property
    def run_dir(self) -> Path:
        return self.cli.runs / self.run_id

    @property
    def attempts(self) -> list[str]:
        return [attempt_name(number) for number in Attempts(self.run_dir / "attempts").numbers()]

    def seen(self, attempt: str) -> dict[str, Any]:
        """What the program was given."""
        return dict(json.loads((self.folder / f"seen.{attempt}").read_text()))

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted((self.run_dir / "logs").glob("slurm-*")))

    def shown(self) -> list[str]:
        return [moment["text"] for moment in self.cli.json("show", self.run_id)["timeline"]]


@pytest.fixture
def training(sandbox: Sandbox, tmp_path: Path) -> Training:
    return Training(Cli(sandbox.environment(os.environ), tmp_path / "runs"), tmp_path)


def test_a_first_save_that_was_cut_off_is_no_reason_to_hold(training: Training) -> None:
    training.plan("1.0", "tear 100", "crash")
    training.plan("1.1", "save 100")
    training.submit()
    assert training.end() == "completed", training.log()
    assert [training.seen(attempt)["path"] for attempt in training.attempts] == [None, None]
    assert "fleetctl: it starts from scratch\nfleetctl: not from checkpoint-100: incomplete: " in training.log()
    assert [line for line in training.shown() if line.startswith("  not from checkpoint-100: incomplete: ")]


def test_after_a_torn_newest_one_a_restart_takes_seconds(training: Training) -> None:
    training.plan("1.0", "save 100", "cut 100", "save 90", "tear 110", "crash")
    training.plan("1.1")
    training.submit()
    wait_until(lambda: (training.folder / "seen.1.0").exists(), "the first attempt")
    began = time.monotonic()
    wait_until(lambda: (training.folder / "seen.1.1").exists(), "the second", 30)
    assert time.monotonic() - began < 30
    assert training.end() == "completed", training.log()
    assert training.seen("1.1")["path"] == f"{training.directory}/checkpoint-90"
    assert "not from checkpoint-110: incomplete: " in training.log()
    assert "not from checkpoint-100: corrupt: optimizer.pt" in training.log()
    asked = training.cli.json("ckpt", "resolve", training.run_id)
    assert (asked["training_step"], asked["format"]) == (90, "huggingface")
    assert [one["validity"] for one in asked["passed_over"]] == ["incomplete", "corrupt"]


def test_what_an_older_training_left_is_not_taken_until_it_was_written_over(training: Training) -> None:
    """It is newer by its number. Each attempt crashes in the same way, and each has come further."""
    write_trainer(training.directory, 500)
    training.plan("1.0", "save 100", "crash")
    training.plan("1.1", "save 200", "crash")
    training.plan("1.2", "save 500", "crash")
    training.plan("1.3")
    training.submit(load="none")
    assert training.end() == "completed", training.log()
    assert [training.seen(attempt)["step"] for attempt in training.attempts] == [None, "100", "200", "500"]
    claims = [
        json.loads((training.run_dir / "attempts" / name / "claim.json").read_text()) for name in training.attempts
    ]
    assert [list(claim.get("aside", ())) for claim in claims] == [["checkpoint-500"]] * 3 + [[]]


def test_where_the_newest_does_not_come_further_the_brake_holds(training: Training) -> None:
    training.plan("1.0", "save 100", "crash")
    training.plan("1.1", "tear 200", "crash")
    training.submit()
    assert training.end() == "held", training.log()
    assert training.attempts == ["1.0", "1.1"]
    assert "without a newer checkpoint" in training.log()


@pytest.mark.parametrize("harm", ["lose", "cut", "tear"])
def test_where_no_valid_one_is_left_the_run_is_held_and_comes_back_with_one(training: Training, harm: str) -> None:
    write_trainer(training.directory, 100)
    training.plan("1.0", f"{harm} 100", "crash")
    training.submit()
    assert training.end() == "held", training.log()
    assert training.seen("1.0")["step"] == "100"
    assert training.attempts == ["1.0", "1.1"]
    assert not (training.folder / "seen.1.1").exists(), "it never starts from scratch"
    assert training.cli("ckpt", "resolve", training.run_id).returncode == 11
    write_trainer(training.folder / "copy", 90)
    (training.folder / "copy" / "checkpoint-90").rename(training.directory / "checkpoint-90")
    training.plan("2.0")
    assert training.cli("requeue", training.run_id).returncode == 0
    wait_until(lambda: (training.folder / "seen.2.0").exists(), "it goes on", 120)
    assert training.seen("2.0")["step"] == "90"
    assert training.end() == "completed", training.log()


@pytest.mark.parametrize("words", [True, False], ids=["list", "text"])
def test_the_command_is_told_in_its_frameworks_words(training: Training, words: bool) -> None:
    training.plan("1.0", "save 100", "crash")
    training.plan("1.1")
    training.submit(tell="arguments", words=words)
    assert training.end() == "completed", training.log()
    assert training.seen("1.0")["argv"] == ["a b"]
    path = f"{training.directory}/checkpoint-100"
    assert training.seen("1.1")["argv"] == ["a b", "--resume_from_checkpoint", path]
    assert training.seen("1.1")["path"] == path
    assert not list(training.folder.rglob("x")), "nothing of a path was run"


def test_the_frameworks_pointer_is_set_before_it_starts_and_what_it_said_is_kept(training: Training) -> None:
    """It was moved to the newest one before that was whole, as asynchronous saves do."""
    training.plan("1.0", "save 100", "save 200", "tear 300", "point global_step300", "crash")
    training.plan("1.1", "save 300")
    training.submit("deepspeed", tell="pointer")
    assert training.end() == "completed", training.log()
    seen = training.seen("1.1")
    assert (seen["pointer"], seen["path"]) == ("global_step200", f"{training.directory}/global_step200")
    assert (training.directory / "latest.before-fleetctl-1.1").read_text() == "global_step300"
    assert (training.directory / "latest").read_text() == "global_step300", "the training has moved it on"
    assert "fleetctl: the pointer latest says global_step200 now" in training.log()
    resume = json.loads((training.run_dir / "attempts" / "1.1" / "resume.json").read_text())
    assert resume["pointer"]["before"] == "global_step300"


def test_a_pointer_to_an_older_training_is_moved_away_where_the_run_starts_from_scratch(training: Training) -> None:
    write_zero(training.directory, 500, data_ranks=1)
    training.plan("1.0", "save 100", "crash")
    training.plan("1.1")
    training.submit("deepspeed", tell="pointer", load="none")
    assert training.end() == "completed", training.log()
    assert training.seen("1.0")["pointer"] is None
    assert training.seen("1.1")["pointer"] == "global_step100"
    kept = [path.name for path in training.directory.iterdir() if "before" in path.name]
    assert kept == ["latest.before-fleetctl-1.0"], "one that was right stayed as it was"
    assert (training.directory / kept[0]).read_text() == "global_step500"


def test_a_pointer_that_is_a_link_is_not_followed_and_the_run_is_held(training: Training) -> None:
    write_zero(training.directory, 100, data_ranks=1)
    (training.directory / "latest").rename(training.folder / "elsewhere")
    (training.directory / "latest").symlink_to(training.folder / "elsewhere")
    training.submit("deepspeed", tell="pointer")
    assert training.end() == "held", training.log()
    assert "cannot be set, so the training would load another checkpoint" in training.log()
    assert not (training.folder / "seen.1.0").exists()
    assert (training.folder / "elsewhere").read_text() == "global_step100"
