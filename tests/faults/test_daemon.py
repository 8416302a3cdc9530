"""The recovery daemon on a real Slurm: what Slurm does late it does soon, and it does nothing that it should not."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetctl.sandbox.cluster import Sandbox
from fleetctl.sandbox.model import SandboxConfig
from tests.faults.training import Training
from tests.integration.conftest import MakeSandbox
from tests.support import BIN, Cli, wait_until

pytestmark = pytest.mark.slurm

ALL_GPUS = ["0,1,2,3,4,5,6,7"] * 2
BEGIN_WAIT_S = 90  # what a requeued job waits (cred_expire and 1 s): 121 s by default
SETTINGS = (("SlurmdTimeout", "10"), ("AuthInfo", f"cred_expire={BEGIN_WAIT_S - 1}"))


class Daemon:
    """`fleetctl daemon run`, as its service manager sees it."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self.cli, self.folder = cli, folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> Daemon:
        with (self.folder / "daemon.log").open("ab") as log:
            command = [str(BIN / "fleetctl"), "daemon", "run", "--every", "2s", *options]
            self.process = subprocess.Popen(command, env=self.cli.environ, stdout=log, stderr=log)
        return self

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

    def log(self) -> str:
        path = self.folder / "daemon.log"
        return path.read_text() if path.exists() else ""

    def passes(self) -> int:
        return len(re.findall(r"\d+ runs? .*in \d", self.log()))

    def await_pass(self, more: int = 1) -> None:
        before = self.passes()
        wait_until(lambda: self.passes() >= before + more, f"{more} passes: {self.log()[-2000:]}")

    def actions(self, run_id: str) -> list[dict[str, Any]]:
        """What the journal has of a run, oldest first."""
        found: list[dict[str, Any]] = self.cli.json("daemon", "explain", run_id)["actions"]
        return found


class Scene:
    """A training on a sandbox of its own, and a daemon beside it."""

    def __init__(self, own: Sandbox, folder: Path) -> None:
        environ = {**own.environment(os.environ), "FLEETCTL_DATABASE": str(folder / "fleetctl.db")}
        self.cli = Cli(environ, folder / "runs")
        self.training = Training(self.cli, folder, own)
        self.daemon = Daemon(self.cli, folder)

    def kill_a_node(self) -> str:
        """Not the one with the batch script: it has the head, which would be missed in another way."""
        training = self.training
        dead = next(node for node in training.placed("1.0") if node != training.batch_host())
        training.sandbox.node(dead).kill()
        return dead

    def job(self, field: str) -> str:
        text = self.cli.slurm("scontrol", "show", "job", self.training.job_id, "--oneliner")
        return str(re.findall(rf"(?:^| ){field}=(\S*)", text)[0])


Stage = Callable[..., Scene]


@pytest.fixture
def stage(make_sandbox: MakeSandbox, tmp_path: Path) -> Iterator[Stage]:
    made: list[Scene] = []

    def make(nodes: int = 3, settings: tuple[tuple[str, str], ...] = SETTINGS) -> Scene:
        own = make_sandbox(SandboxConfig(nodes=nodes, settings=settings, accounting=True))
        made.append(Scene(own, tmp_path))
        return made[-1]

    yield make
    for scene in made:
        process = scene.daemon.process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        print(scene.daemon.log(), scene.training.run_id and scene.training.log())  # where the test failed


@pytest.fixture(scope="module")
def undisturbed(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the parameters of a run that nothing happens to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    training = Training(Cli(sandbox.environment(os.environ), folder / "runs"), folder, sandbox)
    training.submit(step_time_ms=0)
    assert training.end() == "completed", training.log()
    return training.digest()


def test_a_dead_node_without_spares_costs_no_more_than_slurms_timeout(stage: Stage, undisturbed: str) -> None:
    scene = stage()
    training = scene.training
    training.submit()
    training.await_checkpoint()
    scene.daemon.start("--act")
    scene.daemon.await_pass(2)
    dead = scene.kill_a_node()
    wait_until(
        lambda: "Restarts=0 " not in training.cli.slurm("scontrol", "show", "job", training.job_id, "-o"),
        "NODE_FAIL",
        90,
    )
    requeued = time.monotonic()
    wait_until(lambda: training.has_begun("2.0"), "it trains again elsewhere", BEGIN_WAIT_S)
    assert time.monotonic() - requeued < BEGIN_WAIT_S - 20, "sooner than Slurm alone"
    assert scene.job("ExcNodeList") == dead
    others = sorted({"node1", "node2", "node3"} - {dead})
    assert training.placed("2.0") == dict.fromkeys(others, ALL_GPUS)
    assert training.end() == "completed", training.log()
    assert training.digest() == undisturbed
    done = [(one["deed"], one["outcome"]) for one in scene.daemon.actions(training.run_id)]
    assert done[:2] == [("exclude", "done"), ("start_now", "done")], done
    assert scene.daemon.end() == 0
    told = training.cli.json("daemon", "explain", training.run_id)
    (end,) = told["interruptions"]
    assert (end["attempt"], end["causes"][0]["cause"], end["causes"][0]["node"]) == ("1.0", "node", dead)
    assert end["recovered_at"] is not None
    assert end["cost"]["restart_s"] > 0
    said = training.cli("daemon", "explain", training.run_id).stdout
    assert f"Decided: exclude {dead}" in said


def test_a_daemon_that_only_observes_changes_nothing_and_says_what_it_would_do(stage: Stage) -> None:
    scene = stage()
    training = scene.training
    training.submit()
    training.await_checkpoint()
    scene.daemon.start()
    scene.daemon.await_pass()
    dead = scene.kill_a_node()
    wait_until(lambda: scene.job("Reason") == "BeginTime", "Slurm's own requeue", 90)
    scene.daemon.await_pass(3)
    assert scene.job("ExcNodeList") in ("", "(null)")
    assert scene.job("Reason") == "BeginTime", "nobody has shortened it"
    found = scene.daemon.actions(training.run_id)
    assert {one["outcome"] for one in found} == {"observed"}
    assert found[0]["deed"] == "exclude"
    assert found[0]["nodes"] == [dead]
    assert not [event for event in training.events("requeue") if event["by"] == "daemon"]
    assert scene.daemon.end() == 0
    training.cli("cancel", training.run_id)


def test_a_cancelled_run_stays_cancelled_under_a_daemon_that_acts(stage: Stage) -> None:
    scene = stage()
    training = scene.training
    training.submit()
    training.await_checkpoint()
    scene.daemon.start("--act")
    scene.daemon.await_pass()
    scene.kill_a_node()
    wait_until(lambda: scene.job("Restarts") == "1", "Slurm's own requeue", 90)
    assert training.cli("cancel", training.run_id).returncode == 0
    attempts = training.attempts
    time.sleep(5)  # whoever would bring it back had the time of several passes
    scene.daemon.await_pass(3)
    alive = ("squeue", "-h", "-o", "%i", "--states=PENDING,RUNNING,COMPLETING")
    wait_until(lambda: training.cli.slurm(*alive) == "", "no job is left", 60)
    assert training.attempts == attempts
    assert training.cli.json("show", training.run_id)["state"] == "cancelled"
    assert scene.daemon.end() == 0
    deeds = {one["deed"] for one in scene.daemon.actions(training.run_id) if one["outcome"] == "done"}
    assert not deeds & {"requeue", "requeue_ended", "resubmit"}


def test_a_cancelled_slurm_job_that_nobody_told_fleetctl_of_stays_cancelled(stage: Stage) -> None:
    scene = stage(2)
    training = scene.training
    training.submit()
    training.await_checkpoint()
    scene.daemon.start("--act")
    scene.daemon.await_pass()
    training.cli.slurm("scancel", training.job_id)
    wait_until(lambda: scene.job("JobState") == "CANCELLED", "it is cancelled")
    scene.daemon.await_pass(4)
    assert scene.job("JobState") == "CANCELLED"
    assert scene.daemon.end() == 0
    assert training.attempts == ["1.0"]


def test_a_signal_ends_it_and_the_next_one_leads_at_once(stage: Stage) -> None:
    scene = stage(1)
    scene.daemon.start("--act")
    scene.daemon.await_pass()
    second = scene.cli.json("daemon", "run", "--once", "--act")
    assert "another daemon leads" in second["standing_by"]
    began = time.monotonic()
    assert scene.daemon.end() == 0
    assert time.monotonic() - began < 10
    assert scene.cli.json("daemon", "run", "--once", "--act")["standing_by"] is None
    assert scene.cli("daemon", "status").returncode == 0


def test_slurm_away_for_a_while_is_said_and_nothing_is_done_meanwhile(stage: Stage) -> None:
    scene = stage(1, (*SETTINGS, ("MessageTimeout", "2")))
    scene.daemon.start("--act")
    scene.daemon.await_pass()
    controller = scene.training.sandbox.ctld
    controller.kill()
    wait_until(lambda: "no jobs: " in scene.daemon.log(), "it says so", 90)
    blind = scene.cli("daemon", "run", "--once", "--json")
    assert blind.returncode == 3, blind.stderr
    controller.start()
    wait_until(
        lambda: re.search(r"no jobs: [^\n]*\n(?:.*\n)*?[^\n]* runs in \d[^\n;]*; nothing to do", scene.daemon.log()),
        "it goes on",
        180,
    )
    assert scene.daemon.end() == 0
    assert json.loads(scene.cli("daemon", "status", "--json").stdout)["last_pass"]["blind"] is False
