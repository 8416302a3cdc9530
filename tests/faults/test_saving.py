"""What a run resumes from after kills in the middle of a save, and with trainings that behave badly."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path

import pytest

from fleetctl.sandbox.model import SandboxConfig
from tests.faults.big_state import advance
from tests.faults.training import Training
from tests.integration.conftest import MakeSandbox
from tests.support import Cli, wait_until

pytestmark = pytest.mark.slurm

KILLS = 30
PROGRAM = str(Path(__file__).with_name("big_state.py"))


@pytest.fixture
def training(make_sandbox: MakeSandbox, tmp_path: Path) -> Training:
    own = make_sandbox(SandboxConfig(nodes=1, gpus=8, settings=(("SlurmdTimeout", "300"),)))
    return Training(Cli(own.environment(os.environ), tmp_path / "runs"), tmp_path, own)


def expected(steps: int) -> str:
    chain = b""
    for step in range(1, steps + 1):
        chain = advance(chain, step)
    return chain.hex()


def staged(training: Training) -> list[str]:
    folder = training.folder / "checkpoints" / ".staging"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def is_over(training: Training, attempt: str) -> bool:
    return training.attempts[-1] != attempt


def kill_while_staging(training: Training) -> bool:
    """Kill the rank once a save of the newest attempt is under way; whether it still was when the rank was dead."""
    attempt = training.attempts[-1]
    wait_until(lambda: len(training.saved(attempt)) > 0, "a checkpoint of this attempt")
    mine = f"@{attempt}@"
    deadline = time.monotonic() + 30
    while not any(mine in name for name in staged(training)):
        assert time.monotonic() < deadline, "no save begins"
    training.kill_rank(0)
    return any(mine in name for name in staged(training))


def test_thirty_kills_in_the_middle_of_a_save(training: Training) -> None:
    training.submit(
        nodes=1, tasks_per_node=1, program=PROGRAM, steps=6000, step_time_ms=20, interval="1s", more="--mib 96"
    )
    wait_until(lambda: training.attempts, "the first attempt")
    landed = kills = 0
    while landed < KILLS:
        attempt = training.attempts[-1]
        landed += kill_while_staging(training)
        kills += 1
        assert kills < 2 * KILLS, "most kills should land while staging exists"
        wait_until(partial(is_over, training, attempt), "the next attempt")
        wait_until(lambda: training.progress(training.attempts[-1]) > 0, "it trains")
        before, after = attempt, training.attempts[-1]
        assert training.resumed_at(after) >= training.saved(before)[-1], "the newest that was committed, or a later one"
    assert not [name for name in staged(training) if f"@{training.attempts[-1]}@" not in name], "nothing stale is left"
    found = training.cli("ckpt", "verify", training.run_id, "--json")
    assert found.returncode == 0
    assert {one["validity"] for one in json.loads(found.stdout)} <= {"valid", "in_progress"}
    text = training.log()
    assert "held" not in text
    training.cli("cancel", training.run_id)


def test_a_training_that_stops_half_way_with_0_has_not_finished(training: Training) -> None:
    training.submit(nodes=1, tasks_per_node=1, program=PROGRAM, steps=150, step_time_ms=20, more="--stop-at 100")
    assert training.end() == "completed", training.log()
    assert training.attempts == ["1.0", "1.1"]
    assert [event["ending"] for event in training.events("attempt_ended")] == ["stopped_early", "finished"]
    assert training.digest() == expected(150)


def test_a_training_that_ignores_the_request_to_save_is_ended_in_time(training: Training) -> None:
    training.submit(
        nodes=1,
        tasks_per_node=1,
        program=PROGRAM,
        steps=3000,
        step_time_ms=20,
        time="1m",
        recovery="{chain: true}",
        more="--deaf",
    )
    wait_until(lambda: "2.0" in training.attempts and training.progress("2.0") > 0, "the second link", 120)
    assert training.events("save_asked")[0]["why"] == "time limit"
    assert training.events("attempt_ended")[0]["ending"] == "saved"
    assert training.resumed_at("2.0") == training.saved("1.0")[-1] <= 100
    training.cli("cancel", training.run_id)


def test_where_a_valid_checkpoint_once_was_nothing_starts_from_scratch(training: Training) -> None:
    training.submit(nodes=1, tasks_per_node=1, program=PROGRAM, steps=3000, step_time_ms=20)
    training.await_checkpoint()
    training.kill_rank(0)
    for path in (training.folder / "checkpoints").glob("step-*/shard-00000.bin"):
        path.write_bytes(path.read_bytes()[:-1])
    assert training.end() == "held"
    assert "no checkpoint" in training.cli.json("show", training.run_id)["reason"]
    assert not [attempt for attempt in training.attempts if training.progress(attempt) and attempt != "1.0"]
