"""A run survives what breaks under it, and ends with the same parameters. Everything is real but the GPUs."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from fleetctl.sandbox.cluster import Sandbox
from fleetctl.sandbox.model import Partition, SandboxConfig
from fleetctl.slurm.hosts import fold
from tests.faults.training import STEPS, Training
from tests.integration.conftest import MakeSandbox
from tests.support import Cli, wait_until

pytestmark = pytest.mark.slurm

ALL_GPUS = ["0,1,2,3,4,5,6,7"] * 2
PATIENT = (("SlurmdTimeout", "300"),)  # Slurm's default: it notices a dead node after five minutes


@pytest.fixture(scope="session")
def undisturbed(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the parameters of a run that nothing happens to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    training = Training(Cli(sandbox.environment(os.environ), folder / "runs"), folder, sandbox)
    training.submit(step_time_ms=0)
    assert training.end() == "completed", training.log()
    assert training.attempts == ["1.0"]
    return training.digest()


Start = Callable[..., Training]


@pytest.fixture
def start(make_sandbox: MakeSandbox, tmp_path: Path) -> Iterator[Start]:
    """A training on a sandbox of its own, not submitted yet."""

    begun: list[Training] = []

    def begin(nodes: int = 3, settings: tuple[tuple[str, str], ...] = PATIENT, *, accounting: bool = False) -> Training:
        own = make_sandbox(SandboxConfig(nodes=nodes, settings=settings, accounting=accounting))
        begun.append(Training(Cli(own.environment(os.environ), tmp_path / "runs"), tmp_path, own))
        return begun[-1]

    yield begin
    for training in begun:
        if training.run_id:
            print(training.attempts, training.log())  # pytest shows it where the test failed


def test_a_killed_rank_costs_seconds_and_no_allocation(start: Start, undisturbed: str) -> None:
    training = start(2)
    training.submit()
    training.await_checkpoint()
    training.kill_rank(3)
    killed = time.monotonic()
    wait_until(lambda: "1.1" in training.attempts and training.steps_of("1.1") >= 1, "a new training step", 10)
    assert time.monotonic() - killed < 10
    training.await_steps("1.1")
    assert training.end() == "completed", training.log()
    assert training.attempts == ["1.0", "1.1"]
    assert training.resumed_at("1.1") == training.saved("1.0")[-1] > 0
    assert training.placed("1.1") == {"node1": ALL_GPUS, "node2": ALL_GPUS}
    assert training.digest() == undisturbed


def test_a_spare_takes_the_place_of_a_dead_node_long_before_slurm_notices(start: Start, undisturbed: str) -> None:
    training = start(accounting=True)
    training.submit(spares=1)
    training.await_checkpoint()
    dead = next(node for node in training.placed("1.0") if node != training.batch_host())
    training.sandbox.node(dead).kill()
    killed = time.monotonic()
    wait_until(lambda: "1.1" in training.attempts and training.steps_of("1.1") >= 1, "a step on the spare", 30)
    assert time.monotonic() - killed < 30
    alive = {"node1", "node2", "node3"} - {dead}
    assert training.placed("1.1") == dict.fromkeys(sorted(alive), ALL_GPUS)
    training.cli.slurm("scontrol", "update", f"nodename={dead}", "state=down", "reason=test")
    training.await_steps("1.1")
    assert training.end() == "completed", training.log()
    (lost,) = training.events("node_lost")
    assert (lost["node"], lost["attempt"]) == (dead, "1.0")
    assert training.digest() == undisturbed
    wait_until(lambda: "COMPLETED" in training.accounted(), "accounting")
    assert training.accounted().splitlines() == ["RESIZING|3", "COMPLETED|2"]


def test_another_node_takes_over_from_a_dead_batch_host(start: Start, undisturbed: str) -> None:
    training = start(accounting=True)
    training.submit(spares=1)
    training.await_checkpoint()
    dead = training.batch_host()
    training.sandbox.node(dead).kill()
    killed = time.monotonic()
    wait_until(lambda: "1.1" in training.attempts and training.steps_of("1.1") >= 1, "a step under a new head", 30)
    assert time.monotonic() - killed < 30
    assert training.placed("1.1") == dict.fromkeys(sorted({"node1", "node2", "node3"} - {dead}), ALL_GPUS)
    training.cli.slurm("scontrol", "update", f"nodename={dead}", "state=down", "reason=test")
    training.await_steps("1.1")
    assert training.end() == "completed", training.log()
    assert training.attempts == ["1.0", "1.1"]
    assert training.digest() == undisturbed
    wait_until(lambda: training.job_id not in training.cli.slurm("squeue", "-h", "-o", "%i"), "the job's end")
    assert [event["attempt"] for event in training.events("given_back")] == ["1.1"]
    assert training.cli.json("show", training.run_id)["state"] == "completed", "our own cancel is nobody's wish"


def test_a_third_node_takes_over_from_the_second_head(start: Start, undisturbed: str) -> None:
    training = start(4)
    training.submit(spares=2, steps=STEPS)
    training.await_checkpoint()
    for attempt in ("1.1", "1.2"):
        head = training.events("attempt_started")[-1]["host"]
        training.sandbox.node(head).kill()
        wait_until(partial(training.has_begun, attempt), f"a step of attempt {attempt}", 45)
        training.await_checkpoint(attempt)
    assert training.end() == "completed", training.log()
    assert training.attempts == ["1.0", "1.1", "1.2"]
    assert training.digest() == undisturbed


def test_a_frozen_node_is_not_a_dead_one(start: Start, undisturbed: str) -> None:
    training = start()
    training.submit(spares=1)
    training.await_checkpoint()
    frozen = training.sandbox.node(next(node for node in training.placed("1.0") if node != training.batch_host()))
    frozen.freeze()
    time.sleep(20)  # the fault itself
    frozen.wake()
    assert training.end() == "completed", training.log()
    assert len(training.attempts) <= 2
    assert not training.events("node_lost")
    assert training.digest() == undisturbed


def test_a_frozen_batch_host_is_not_a_dead_one(start: Start, undisturbed: str) -> None:
    training = start()
    training.submit(spares=1)
    training.await_checkpoint()
    host = training.sandbox.node(training.batch_host())
    host.freeze()
    time.sleep(20)  # the fault itself
    host.wake()
    assert training.end() == "completed", training.log()
    assert len(training.attempts) <= 2
    assert not training.events("node_lost")
    assert not training.events("given_back")
    assert training.digest() == undisturbed


def test_without_a_spare_slurm_brings_the_run_back_elsewhere(start: Start, undisturbed: str) -> None:
    training = start(3, (("SlurmdTimeout", "10"),))
    training.submit()
    training.await_checkpoint()
    dead = next(node for node in training.placed("1.0") if node != training.batch_host())
    training.sandbox.node(dead).kill()
    wait_until(lambda: "2.0" in training.attempts, "Slurm's requeue", 120)
    training.await_steps("2.0")
    text = training.cli.slurm("scontrol", "show", "job", training.job_id, "--oneliner", "--details")
    assert "Restarts=1 " in text
    others = fold({"node1", "node2", "node3"} - {dead})
    assert re.findall(r" Nodes=(\S+) .*?GRES=(\S+)", text) == [(others, "gpu:8(IDX:0-7)")]
    assert training.end() == "completed", training.log()
    assert dead not in training.placed("2.0")
    assert list(training.placed("2.0").values()) == [ALL_GPUS, ALL_GPUS]
    assert training.digest() == undisturbed


def test_a_run_that_only_fails_is_held_and_stays_so(start: Start) -> None:
    training = start(2)
    training.submit(more="--no-such-option", recovery="{max_failures: 3}")
    assert training.end() == "held"
    assert len(training.attempts) == 2, "two same failures within ten minutes"
    shown = training.cli.json("show", training.run_id)
    assert "twice within ten minutes" in shown["reason"]
    training.cli.slurm("scontrol", "requeue", training.job_id)  # an admin who does not know
    wait_until(lambda: "is held" in training.log(), "the job ends itself")
    assert len(training.attempts) == 2


def test_a_chain_goes_on_over_three_time_limits(start: Start, undisturbed: str) -> None:
    training = start(2)
    training.submit(time="1m", recovery="{chain: true}", step_time_ms=700)
    wait_until(lambda: "2.0" in training.attempts and training.steps_of("2.0") >= 1, "the second link", 120)
    assert training.resumed_at("2.0") == training.saved("1.0")[-1], "nothing is lost: it saved just before the limit"
    wait_until(lambda: "4.0" in training.attempts and training.steps_of("4.0") >= 50, "the fourth link", 300)
    assert [event["why"] for event in training.events("save_asked")[:3]] == ["time limit"] * 3
    assert [event["by"] for event in training.events("requeue")[:3]] == ["job"] * 3
    assert training.end() == "completed", training.log()
    assert training.digest() == undisturbed


PREEMPTING = (*PATIENT, ("PreemptType", "preempt/partition_prio"), ("PreemptMode", "REQUEUE"))


@pytest.mark.parametrize("settings", [(), (("SlurmctldParameters", "preempt_send_user_signal"),)], ids=["TERM", "USR1"])
def test_a_preempted_run_saves_in_its_grace_time(
    make_sandbox: MakeSandbox, tmp_path: Path, undisturbed: str, settings: tuple[tuple[str, str], ...]
) -> None:
    low = Partition("low", (("Nodes", "ALL"), ("PriorityTier", "1"), ("GraceTime", "60")))
    high = Partition("high", (("Nodes", "ALL"), ("PriorityTier", "9")))
    own = make_sandbox(SandboxConfig(nodes=2, settings=(*PREEMPTING, *settings), partitions=(low, high)))
    environ = {**own.environment(os.environ), "SBATCH_PARTITION": "low"}
    training = Training(Cli(environ, tmp_path / "runs"), tmp_path, own)
    training.submit(interval="1h")  # only what it saves in the grace time is there
    wait_until(lambda: training.progress("1.0") > 30, "some steps")
    urgent = training.cli.slurm("sbatch", "--parsable", "-p", "high", "-N2", "--gpus-per-node=8", "--wrap", "sleep 5")
    wait_until(lambda: "2.0" in training.attempts and training.steps_of("2.0") >= 1, "the run is back", 120)
    assert training.resumed_at("2.0") >= training.saved("1.0")[0] > 30
    assert training.events("save_asked")[0]["why"] == "preemption"
    training.await_steps("2.0")
    assert training.end() == "completed", training.log()
    assert training.digest() == undisturbed
    assert urgent.strip() not in training.cli.slurm("squeue", "-h", "-o", "%i")


def cancel_while_training(training: Training) -> None:
    training.await_checkpoint()


def cancel_while_restarting(training: Training) -> None:
    training.await_checkpoint()
    training.kill_rank(3)
    wait_until(lambda: training.events("attempt_ended"), "the attempt's end")


def cancel_under_a_new_head(training: Training) -> None:
    training.await_checkpoint()
    training.sandbox.node(training.batch_host()).kill()
    wait_until(lambda: "1.1" in training.attempts and training.steps_of("1.1") >= 1, "a step under a new head")


def cancel_while_it_requeues_itself(training: Training) -> None:
    wait_until(lambda: training.events("requeue"), "the chain's requeue", 90)


def cancel_while_it_waits_to_begin_again(training: Training) -> None:
    wait_until(lambda: training.events("requeue"), "the chain's requeue", 90)
    wait_until(lambda: "BeginTime" in training.cli.slurm("squeue", "-h", "-o", "%r"), "BeginTime")


def cancel_while_it_saves(training: Training) -> None:
    wait_until(lambda: training.events("save_asked"), "the last save", 90)


@pytest.mark.parametrize(
    "moment",
    [
        cancel_while_training,
        cancel_while_restarting,
        cancel_under_a_new_head,
        cancel_while_it_requeues_itself,
        cancel_while_it_waits_to_begin_again,
        cancel_while_it_saves,
    ],
)
def test_a_cancelled_run_never_comes_back(start: Start, moment: Callable[[Training], None]) -> None:
    training = start()
    training.submit(spares=1, time="1m", recovery="{chain: true}", step_time_ms=500)
    moment(training)
    assert training.cli("cancel", training.run_id).returncode == 0
    alive = ("squeue", "-h", "-o", "%i", "--states=PENDING,RUNNING")  # COMPLETING until a dead node is DOWN
    wait_until(lambda: training.cli.slurm(*alive) == "", "no job is left", 90)
    for node in ("node1", "node2", "node3"):
        if not training.sandbox.node(node).alive():
            training.cli.slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    assert training.end() == "cancelled", training.log()
    attempts = training.attempts
    time.sleep(10)  # longer than BeginTime here: whoever would bring it back had the time
    assert training.cli.slurm(*alive) == ""
    assert training.attempts == attempts
    assert training.cli.json("show", training.run_id)["state"] == "cancelled"


@pytest.mark.parametrize("way", ["cut", "freeze"])
def test_an_old_attempt_that_lives_on_changes_nothing(start: Start, undisturbed: str, way: str) -> None:
    """Slurm has lost the node and runs the next attempt elsewhere, while the ranks of the old one go on, or stand still
    and go on later; a third attempt must resume from the second's checkpoint all the same."""
    training = start(2, (("SlurmdTimeout", "10"),))
    training.submit(nodes=1, tasks_per_node=4, step_time_ms=250)
    training.await_checkpoint()
    old = training.sandbox.node(training.batch_host())
    getattr(old, way)()
    wait_until(lambda: "2.0" in training.attempts and len(training.saved("2.0")) > 1, "the second attempt saves", 120)
    if way == "freeze":
        old.wake()
    else:
        old.heal()
    # A late word of the old node may end the new step, which has the same name: then it is 2.1 that goes on.
    before = sum(map(len, second(training).values()))
    wait_until(lambda: sum(map(len, second(training).values())) > before + 2, "it goes on")
    training.cli.slurm("scontrol", "requeue", training.job_id)
    training.await_steps("3.0", within_s=90)
    claim = json.loads((training.run_dir / "attempts" / "3.0" / "claim.json").read_text())
    stood = json.loads((training.run_dir / "attempts" / "2.0" / "claim.json").read_text())["stands"]
    assert not [name for name in claim["stands"] if name.endswith("@1.0") and name not in stood]
    assert training.resumed_at("3.0") == max(map(max, filter(None, second(training).values())))
    assert training.end() == "completed", training.log()
    assert training.attempts == ["1.0", *second(training), "3.0"]
    assert training.digest() == undisturbed


def second(training: Training) -> dict[str, list[int]]:
    """The second start by Slurm: what each of its attempts saved."""
    return {attempt: training.saved(attempt) for attempt in training.attempts if attempt.startswith("2.")}


def agents_of(training: Training) -> list[int]:
    """The agent processes of this run, on all nodes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text().split("\0")
        except OSError:
            continue
        if "python" in words[0] and words[1:3] == ["-I", "-"] and str(training.run_dir) in path.read_text():
            found.append(int(path.parent.name))
    return found


def test_a_node_whose_agent_died_is_as_good_as_any(start: Start, undisturbed: str) -> None:
    training = start(2)
    training.submit()
    training.await_checkpoint()
    wait_until(lambda: len(agents_of(training)) == 1, "the agent")
    os.kill(agents_of(training)[0], signal.SIGKILL)
    training.kill_rank(3)
    training.await_steps("1.1")
    wait_until(lambda: len(agents_of(training)) == 1, "a new agent")
    assert training.end() == "completed", training.log()
    assert training.digest() == undisturbed


def test_no_rank_of_an_attempt_lives_when_the_next_one_starts(start: Start, undisturbed: str) -> None:
    """An srun that is killed leaves its tasks running. Only fleetctl's own Checkpointer is fenced against them."""
    training = start(2)
    training.submit()
    training.await_checkpoint()
    (pid,) = training.sruns("1.0")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "1.1" in training.attempts, "the next attempt")
    wait_until(lambda: training.progress("1.1") > 0, "it trains")
    assert not training.ranks("1.0")
    assert training.end() == "completed", training.log()
    assert training.digest() == undisturbed


def test_a_head_that_cannot_go_on_after_a_dead_one_lets_slurm_start_the_job_again(start: Start) -> None:
    training = start(4, (("SlurmdTimeout", "10"),))
    secret = training.folder / "secret.env"
    secret.write_text("TOKEN=x\n")
    secret.chmod(0o600)
    training.submit(spares=1, env_file=str(secret))
    training.await_checkpoint()
    hidden = secret.rename(training.folder / "moved.env")
    training.sandbox.node(training.batch_host()).kill()
    wait_until(lambda: training.events("requeue"), "the new head gives the job back to the queue", 90)
    hidden.rename(secret)
    training.await_steps("2.0", within_s=90)
    assert "cannot go on after" in training.events("requeue")[0]["why"]
    training.cli("cancel", training.run_id)
