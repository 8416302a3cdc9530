"""A rank that stands still holds up all others: it is found, named, and the training goes on without its node."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetctl.rundir.pulse import PULSE, Pulse, pulse_in
from fleetctl.sandbox.cluster import Sandbox
from fleetctl.sandbox.model import SandboxConfig
from tests.faults.training import STEPS, Training
from tests.integration.conftest import MakeSandbox
from tests.support import Cli, wait_until

pytestmark = pytest.mark.slurm

FLOOR = {"FLEETCTL_HANG_FLOOR_S": "6"}  # and at least ten times the second in which agents look
WAITS = "--peer-timeout-s 1000"  # its ranks wait for each other as those of NCCL do
ENOUGH = 9.0  # seconds of steps, before which nothing is learned
FOUND_S = 40.0
Start = Callable[..., Training]


@pytest.fixture
def start(make_sandbox: MakeSandbox, tmp_path: Path) -> Iterator[Start]:
    """A training on a sandbox of its own, not submitted yet."""
    begun: list[Training] = []

    def begin(nodes: int) -> Training:
        own = make_sandbox(SandboxConfig(nodes=nodes, settings=(("SlurmdTimeout", "300"),)))
        begun.append(Training(Cli(own.environment({**os.environ, **FLOOR}), tmp_path / "runs"), tmp_path, own))
        return begun[-1]

    yield begin
    for training in begun:
        if training.run_id:
            print(training.attempts, training.log())  # pytest shows it where the test failed


@pytest.fixture(scope="module")
def undisturbed(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the parameters of a run that nothing happens to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    training = Training(Cli(sandbox.environment(os.environ), folder / "runs"), folder, sandbox)
    training.submit(step_time_ms=0)
    assert training.end() == "completed", training.log()
    return training.digest()


def pulse(training: Training) -> Pulse:
    found = pulse_in(json.loads((training.run_dir / PULSE).read_text()))
    assert found is not None
    return found


def freeze(training: Training, rank: int) -> str:
    """Stop one rank once enough steps were done; its node."""
    training.await_checkpoint()
    wait_until(lambda: training.steps_of("1.0") * 0.1 >= ENOUGH, "enough steps to know how long one takes", 60)
    pid = training.rank_pid(rank)
    os.kill(pid, signal.SIGSTOP)
    environ = dict(item.split("=", 1) for item in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in item)
    return environ["SLURMD_NODENAME"]


def hung(training: Training) -> dict[str, Any]:
    wait_until(lambda: training.events("hung"), "the hang is found", FOUND_S)
    (event,) = training.events("hung")
    return event


def test_a_frozen_rank_is_found_and_its_node_is_left_for_a_spare(start: Start, undisturbed: str) -> None:
    training = start(3)
    training.submit(spares=1, step_time_ms=100, more=WAITS)
    node = freeze(training, 2)
    event = hung(training)
    assert (event["attempt"], event["node"], event["rank"], event["phase"]) == ("1.0", node, 2, "step")
    assert event["silent_s"] > event["limit_s"] >= 6
    assert {"output-end.log", "rank-2.txt"} <= set(event["evidence"])
    evidence = training.run_dir / "attempts" / "1.0" / "evidence"
    assert "state T" in (evidence / "rank-2.txt").read_text()
    assert "training step" in (evidence / "output-end.log").read_text()
    wait_until(lambda: training.has_begun("1.1"), "a step of the next attempt", 30)
    assert set(training.placed("1.1")) == {"node1", "node2", "node3"} - {node}
    assert not training.ranks("1.0"), "nothing of the frozen attempt lives"
    assert training.end() == "completed", training.log()
    assert training.attempts == ["1.0", "1.1"]
    (ended, _) = training.events("attempt_ended")
    assert (ended["ending"], ended["failure"]) == ("hung", "hang in step")
    assert training.digest() == undisturbed
    last = pulse(training)
    assert (last.attempt, last.over, last.hung, last.training_step, last.ranks) == ("1.1", True, False, STEPS, 4)
    assert not list(Path("/dev/shm").glob(f"fleetctl-{training.run_id}-*"))


def test_without_a_spare_it_goes_on_where_it_was(start: Start, undisturbed: str) -> None:
    training = start(2)
    training.submit(step_time_ms=100, more=WAITS)
    node = freeze(training, 1)  # on the head's own node, which no agent watches
    assert (hung(training)["node"], hung(training)["rank"]) == (node, 1)
    wait_until(lambda: training.has_begun("1.1"), "a step of the next attempt", 30)
    assert set(training.placed("1.1")) == {"node1", "node2"}
    assert training.end() == "completed", training.log()
    assert training.digest() == undisturbed


def test_a_node_that_stands_still_as_a_whole_is_left_for_a_spare(start: Start, undisturbed: str) -> None:
    training = start(3)
    training.submit(spares=1, step_time_ms=100, more=WAITS)
    training.await_checkpoint()
    wait_until(lambda: training.steps_of("1.0") * 0.1 >= ENOUGH, "enough steps to know how long one takes", 60)
    node = next(node for node in training.placed("1.0") if node != training.batch_host())
    training.sandbox.node(node).freeze()
    event = hung(training)
    assert (event["node"], event["rank"]) == (node, 2)
    wait_until(lambda: training.has_begun("1.1"), "a step of the next attempt", 40)
    assert set(training.placed("1.1")) == {"node1", "node2", "node3"} - {node}
    training.sandbox.node(node).wake()
    assert training.end() == "completed", training.log()
    assert training.digest() == undisturbed


def test_a_silence_that_ends_while_it_is_only_suspected_ends_nothing(start: Start, undisturbed: str) -> None:
    training = start(2)
    training.submit(step_time_ms=100, more=WAITS)
    training.await_checkpoint()
    wait_until(lambda: training.steps_of("1.0") * 0.1 >= ENOUGH, "enough steps to know how long one takes", 60)
    stopped = training.ranks("1.0")
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    seen = pulse(training).suspected_at
    wait_until(lambda: pulse(training).suspected_at != seen, "all ranks are suspected", FOUND_S)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    assert training.end() == "completed", training.log()
    assert training.attempts == ["1.0"]
    assert not training.events("hung")
    assert training.digest() == undisturbed
