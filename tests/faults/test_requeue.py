"""`fleetctl requeue` on real daemons: a run comes back once, whole, and never when somebody cancelled it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fleetctl.clock import SystemClock
from fleetctl.rundir import files
from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.history import attempts_of
from fleetctl.rundir.model import WITHOUT_GPUS, EventKind, attempt_name
from fleetctl.rundir.store import RunDir
from fleetctl.rundir.words import WORD, Word, word_out
from fleetctl.sandbox import cluster
from fleetctl.sandbox.cluster import Sandbox
from fleetctl.sandbox.model import SandboxConfig
from fleetctl.slurm.hosts import fold
from tests.checkpoints import write_checkpoint
from tests.integration.conftest import MakeSandbox, short_dir
from tests.support import Cli, wait_until, write_spec

pytestmark = pytest.mark.slurm

PATIENT = ("SlurmdTimeout", "36")  # a dead node is missed after a third of it, and not DOWN for the rest
FORGETFUL = (("MinJobAge", "2"),)

# It runs until `end` says with which status it ends; `cleaning` says how long an epilog takes.
SPEC = """\
name: back
env: {{MOOD: "\U0001f680"}}
resources: {{nodes: {nodes}, gpus_per_node: 2, time: 10m{resources}}}
recovery: {{requeue: {requeue}, max_failures: 1}}
command: |
  while [ ! -e {folder}/end ]; do sleep 0.1; done
  exit $(cat {folder}/end)
{more}
"""
EPILOG = """#!/bin/bash
sleep $(cat {folder}/cleaning 2>/dev/null || echo 0)
"""


class Run:
    """One run, and Slurm's own word about it."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self.cli, self.folder = cli, folder
        self.run_id = self.job_id = ""

    def submit(self, *, nodes: int = 1, requeue: str = "true", resources: str = "", more: str = "") -> Run:
        text = SPEC.format(nodes=nodes, requeue=requeue, folder=self.folder, more=more, resources=resources)
        answer = self.cli.json("submit", str(write_spec(self.folder, text)))
        self.run_id, self.job_id = answer["run_id"], answer["job_id"]
        return self

    @property
    def dir(self) -> RunDir:
        return RunDir(self.cli.runs / self.run_id)

    def attempts(self, task: int | None = None) -> list[str]:
        started = [event.data for event in self.dir.events() if event.kind is EventKind.ATTEMPT_STARTED]
        return sorted(str(data["attempt"]) for data in started if data["task"] == task)

    def await_attempt(self, name: str, task: int | None = None) -> None:
        wait_until(lambda: name in self.attempts(task), f"attempt {name}")

    def wishes(self) -> list[dict[str, Any]]:
        found = [event.data for event in self.dir.events() if event.kind is EventKind.REQUEUE]
        return sorted((data for data in found if data["by"] != "job"), key=lambda data: str(data["time"]))

    def own_wishes(self) -> list[str]:
        """Why the job has asked for a requeue of itself."""
        found = [event.data for event in self.dir.events() if event.kind is EventKind.REQUEUE]
        return [str(data["why"]) for data in found if data["by"] == "job"]

    def end(self, status: int) -> None:
        (self.folder / "end").write_text(str(status))

    def go_on(self) -> None:
        (self.folder / "end").unlink()

    def shown(self, what: str, job_id: str | None = None) -> str:
        """One field of scontrol."""
        text = self.cli.slurm("scontrol", "show", "job", job_id or self.job_id, "--oneliner", "--details")
        return str(re.findall(rf"(?:^| ){what}=(\S*)", text)[0])

    def await_state(self, state: str, job_id: str | None = None) -> None:
        wait_until(lambda: self.shown("JobState", job_id) == state, f"job state {state}")

    def await_forgotten(self) -> None:
        wait_until(lambda: self.job_id not in " ".join(self.cli.jobs()), "Slurm forgets the job", 90)

    def held(self) -> Run:
        """A run that failed once, which is once too often."""
        self.end(3)
        wait_until(lambda: self.dir.history().held, "the run is held")
        return self

    def requeue(self, *options: str, code: int = 0, **environ: str) -> str:
        done = self.cli("requeue", self.run_id, *options, **environ)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Sandbox, Path]]:
    """Three nodes for the tests that break none, and the folder in which `cleaning` slows the epilog down."""
    folder, directory = short_dir(), short_dir()
    (folder / "epilog.sh").write_text(EPILOG.format(folder=folder))
    (folder / "epilog.sh").chmod(0o755)
    settings = (("Epilog", str(folder / "epilog.sh")), ("MessageTimeout", "5"))
    try:
        yield cluster.up(SandboxConfig(nodes=3, gpus=2, settings=settings), directory, SystemClock()), folder
    finally:
        cluster.down(directory, SystemClock())
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def run(shared: tuple[Sandbox, Path], tmp_path: Path) -> Iterator[Run]:
    made = Run(Cli(shared[0].environment(os.environ), tmp_path / "runs"), tmp_path)
    yield made
    made.cli.slurm("scancel", "--user", str(os.getuid()))
    wait_until(lambda: not made.cli.slurm("squeue", "-h"), "an empty queue")


def of_its_own(make: MakeSandbox, folder: Path, **config: Any) -> tuple[Run, Sandbox]:
    own = make(SandboxConfig(**{"nodes": 3, "gpus": 2, **config}))
    return Run(Cli(own.environment(os.environ), folder / "runs"), folder), own


# What comes back


def test_a_running_run_begins_again_once(run: Run) -> None:
    run.submit().await_attempt("1.0")
    done = run.cli.json("requeue", run.run_id)
    assert (done["done"], done["job_id"], done["submission"]) == ("requeue", run.job_id, 1)
    assert run.shown("Restarts") == "1"
    assert run.cli.json("requeue", run.run_id)["done"] == "nothing"
    run.await_attempt("2.0")
    assert (run.shown("Restarts"), len(run.wishes())) == ("1", 1)
    page = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
    table = page.partition("\n## `fleetctl requeue`\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(done)


def test_a_held_run_that_slurm_remembers_begins_again(run: Run) -> None:
    run.submit().held().await_state("FAILED")
    run.go_on()
    assert run.cli.json("requeue", run.run_id)["done"] == "requeue_ended"
    run.await_attempt("2.0")
    assert run.shown("Restarts") == "1"
    assert run.cli.json("show", run.run_id)["state"] == "running"


def test_a_held_run_that_slurm_has_forgotten_is_submitted_again(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    run, _ = of_its_own(make_sandbox, tmp_path, settings=FORGETFUL)
    run.submit(resources=", exclude: node1").held().await_forgotten()
    run.go_on()
    copy = shutil.copytree(run.dir.path, tmp_path / "elsewhere" / run.run_id)
    refused = run.cli("--runs", str(copy.parent), "requeue", run.run_id)
    assert (refused.returncode, "is not the folder of this run" in refused.stderr) == (2, True), refused
    started = tmp_path / "started"
    slow = run.cli.shadow(tmp_path / "bin", "sbatch", f'touch {started}\nsleep 1\nexec $REAL "$@"')
    client = run.cli.start("requeue", run.run_id, "--exclude", "node3", PATH=slow)
    wait_until(started.exists, "sbatch started")
    client.kill()
    client.communicate()
    run.await_attempt("2.0")  # its job goes on without the client, and runs before the next call
    done = run.cli.json("requeue", run.run_id, "--exclude", "node3", "--wait")
    assert (done["done"], done["submission"], done["excluded_nodes"]) == ("nothing", 2, "node[1,3]")
    assert len(run.cli.jobs()) == 1
    assert run.shown("Restarts", done["job_id"]) == "0"
    assert run.cli.json("show", run.run_id)["job_id"] == done["job_id"] != run.job_id
    assert run.shown("NodeList", done["job_id"]) == "node2"


def test_a_run_that_slurm_may_not_requeue_is_submitted_again_at_its_end(run: Run) -> None:
    run.submit(requeue="false").await_attempt("1.0")
    assert "recovery.requeue" in run.requeue(code=2)
    run.cli.slurm("scontrol", "update", f"JobId={run.job_id}", "Requeue=1")
    run.end(3)
    run.await_state("FAILED")
    run.go_on()
    done = run.cli.json("requeue", run.run_id)
    assert (done["done"], done["submission"]) == ("submit", 2)
    run.await_attempt("2.0")
    run.cli.slurm("scontrol", "requeue", run.job_id)  # an admin brings the old job back, too
    wait_until(lambda: "was submitted again" in _logs(run), "the old job ends itself", 30)
    assert run.attempts() == ["1.0", "2.0"]


def _logs(run: Run) -> str:
    return "".join(path.read_text() for path in (run.dir.path / "logs").iterdir())


def test_a_waiting_run_gets_the_wish_and_the_exclusions_only(run: Run) -> None:
    run.cli.slurm("scontrol", "update", "nodename=node[1-3]", "state=drain", "reason=test")
    try:
        run.submit(resources=", exclude: node1")
        assert "would remain" in run.requeue("--exclude", "node2", code=2)
        run.cli.slurm("scontrol", "update", "nodename=node[1-2]", "state=resume")
        assert "would remain" in run.requeue("--exclude", "node2", code=2), "node3 is drained"
        run.cli.slurm("scontrol", "update", "nodename=node3", "state=resume")
        assert "no node nosuch" in run.requeue("--exclude", "nosuch", code=2)
        assert not run.wishes(), "what is refused is not written down"
        done = run.cli.json("requeue", run.run_id, "--exclude", "node2")
    finally:
        run.cli.slurm("sh", "-c", "scontrol update nodename=node[1-3] state=resume || true")
    assert done["done"] in ("wish", "requeue")
    assert (done["excluded_nodes"], run.shown("ExcNodeList")) == ("node[1-2]", "node[1-2]")
    # Where it had begun on node2 in between, it was requeued: its last start counts.
    wait_until(lambda: (run.shown("JobState"), run.shown("NodeList")) == ("RUNNING", "node3"), "it runs on node3")


def test_exclusions_add_up_and_hold_over_a_requeue(run: Run) -> None:
    run.submit(resources=", exclude: node3").await_attempt("1.0")
    where = run.shown("NodeList")
    done = run.cli.json("requeue", run.run_id, "--exclude", where, "--wait")
    assert done["excluded_nodes"] == run.shown("ExcNodeList") == fold([where, "node3"])
    run.await_attempt("2.0")
    assert run.shown("NodeList") not in (where, "node3")


# What does not come back


def test_a_cancelled_run_never_comes_back(run: Run) -> None:
    run.submit().await_attempt("1.0")
    run.cli("cancel", run.run_id)
    assert "was cancelled" in run.requeue("--wait", code=2)
    run.await_state("CANCELLED")
    assert "was cancelled" in run.requeue(code=2)
    assert (run.shown("Restarts"), run.wishes()) == ("0", [])


def test_a_job_that_was_cancelled_behind_our_back_never_comes_back(run: Run, shared: tuple[Sandbox, Path]) -> None:
    (shared[1] / "cleaning").write_text("3")
    try:
        run.submit().await_attempt("1.0")
        run.cli.slurm("scancel", run.job_id)
        wait_until(lambda: run.shown("JobState") != "RUNNING", "the cancel")
        assert run.shown("JobState") in ("COMPLETING", "CANCELLED")
        assert "cleaning up" in run.requeue(code=3)
        assert "was cancelled" in run.requeue("--wait", code=2)
    finally:
        (shared[1] / "cleaning").unlink()
    assert "was cancelled" in run.requeue(code=2)
    assert (run.shown("JobState"), run.shown("Restarts"), run.wishes()) == ("CANCELLED", "0", [])
    assert run.attempts() == ["1.0"]


def test_a_cancelled_job_that_slurm_has_forgotten_is_not_submitted_again(
    make_sandbox: MakeSandbox, tmp_path: Path
) -> None:
    run, _ = of_its_own(make_sandbox, tmp_path, nodes=2, settings=FORGETFUL)
    run.submit().await_attempt("1.0")
    (tmp_path / "held").mkdir()
    held = Run(run.cli, tmp_path / "held").submit().held()
    held.go_on()
    held.await_state("FAILED")
    held.requeue()
    run.cli.slurm("scancel", run.job_id, held.job_id)
    for one in (run, held):  # once it was brought back, the hold before proves nothing any more
        one.await_forgotten()
        assert "nothing proves" in one.requeue(code=3)
    assert run.cli.jobs() == []


def test_a_cancel_at_any_moment_of_a_requeue_wins(run: Run, tmp_path: Path) -> None:
    run.submit().await_attempt("1.0")
    first = f'[ "$1" = requeue ] && scancel {run.job_id}\nexec $REAL "$@"'
    assert "did not requeue" in run.requeue(code=3, PATH=run.cli.shadow(tmp_path / "bin", "scontrol", first))
    run.await_state("CANCELLED")
    assert run.shown("Restarts") == "0"
    assert "was cancelled" in run.requeue(code=2)


def test_a_cancel_of_a_run_that_waits_to_come_back_wins(run: Run) -> None:
    run.submit().held().await_state("FAILED")
    run.go_on()
    run.requeue()
    run.cli.slurm("scancel", run.job_id)
    assert "was cancelled" in run.requeue(code=2)
    run.await_state("CANCELLED")
    assert run.attempts() == ["1.0"]


def test_a_completed_run_does_not_come_back(run: Run) -> None:
    run.submit().await_attempt("1.0")
    run.end(0)
    run.await_state("COMPLETED")
    assert "has completed" in run.requeue(code=2)
    assert run.shown("Restarts") == "0"


def test_a_copied_run_is_not_the_run(run: Run, tmp_path: Path) -> None:
    run.submit().await_attempt("1.0")
    shutil.copytree(run.dir.path, run.cli.runs / "copy-aaaaaa")
    shutil.copytree(run.dir.path, tmp_path / "other" / run.run_id)
    for root, name in ((run.cli.runs, "copy-aaaaaa"), (tmp_path / "other", run.run_id)):
        done = run.cli("--runs", str(root), "requeue", name)
        assert done.returncode == 2
        assert "is not the folder of this run" in done.stderr
    assert run.shown("Restarts") == "0"


# Nodes that die


def test_a_run_with_an_unresponsive_node_waits_until_that_is_down(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    run, own = of_its_own(make_sandbox, tmp_path, settings=(PATIENT,))
    run.submit(nodes=2).await_attempt("1.0")
    own.node("node2").kill()
    noticed = lambda: "NOT_RESPONDING" in run.cli.slurm("scontrol", "show", "node", "node2")  # noqa: E731
    wait_until(noticed, "Slurm misses the node", 120)
    assert "does not reach node2" in run.requeue(code=3)
    assert (run.shown("Restarts"), run.wishes()) == ("0", [])
    client = run.cli.start("requeue", run.run_id, "--wait", "--json")
    assert client.stderr is not None
    assert "waiting: Slurm does not reach node2" in client.stderr.readline()
    run.cli.slurm("scontrol", "update", "nodename=node2", "state=down", "reason=test")
    said, _ = client.communicate(timeout=60)
    assert client.returncode == 0
    assert json.loads(said)["done"] in ("wish", "requeue")
    run.await_attempt("2.0")
    assert (run.shown("NodeList"), run.shown("JOB_GRES")) == ("node[1,3]", "gpu:4")


def test_a_job_that_came_back_without_its_gpus_is_noticed_and_asks_for_another_start(
    make_sandbox: MakeSandbox, tmp_path: Path
) -> None:
    """22.05.8. The GPUs of the nodes that it came back on are lost until slurmctld restarts: two more have some."""
    run, own = of_its_own(make_sandbox, tmp_path, nodes=5, settings=(("SlurmdTimeout", "6"),))
    run.submit(nodes=2).await_attempt("1.0")
    own.node("node2").kill()
    run.cli.slurm("scontrol", "requeue", run.job_id)  # somebody who does not know
    client = run.cli.start("requeue", run.run_id, "--wait")
    _, said = client.communicate(timeout=90)
    assert "WITHOUT ITS GPUS" in said
    assert "slurmctld must be restarted" in said
    run.await_attempt("3.0")
    assert run.own_wishes() == [WITHOUT_GPUS]
    assert [attempt.failure or None for attempt in run.dir.history().attempts] == [None, WITHOUT_GPUS, None]
    assert (run.shown("Restarts"), run.shown("JOB_GRES"), run.dir.history().held) == ("2", "gpu:4", {})


# Clients that die


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_client_that_dies_at_the_deed_leaves_it_to_the_next(run: Run, tmp_path: Path, *, done: bool) -> None:
    run.submit().await_attempt("1.0")
    at = tmp_path / "at"
    deed = '$REAL "$@"; ' if done else ""
    text = f'if [ "$1" = requeue ]; then {deed}touch {at}; kill -KILL $PPID; exit 1; fi\nexec $REAL "$@"'
    client = run.cli.start("requeue", run.run_id, PATH=run.cli.shadow(tmp_path / "bin", "scontrol", text))
    client.communicate(timeout=30)
    assert (at.exists(), client.returncode) == (True, -signal.SIGKILL)
    assert (len(run.wishes()), run.shown("Restarts")) == (1, str(int(done)))
    assert run.cli.json("requeue", run.run_id)["done"] == ("nothing" if done else "requeue")
    assert run.shown("Restarts") == "1"


# Sweeps, and where to resume from


def test_one_element_of_a_sweep_comes_back(run: Run) -> None:
    run.submit(more='sweep: {parameters: {X: ["a", "b"]}}').await_attempt("1.0", 1)
    run.await_attempt("1.0", 0)
    assert "--task I" in run.requeue(code=2)
    done = run.cli.json("requeue", run.run_id, "--task", "1", "--exclude", "node3")
    assert (done["job_id"], done["task"], done["excluded_nodes"]) == (f"{run.job_id}_1", 1, "node3")
    run.await_attempt("2.0", 1)
    assert run.attempts(0) == ["1.0"]
    assert (run.shown("Restarts", f"{run.job_id}_1"), run.shown("Restarts", f"{run.job_id}_0")) == ("1", "0")


def test_a_run_resumes_from_the_wanted_step_or_before_it(run: Run, tmp_path: Path) -> None:
    for step in (100, 200):
        write_checkpoint(tmp_path / "checkpoints", step)
    run.submit(more=f"checkpoint: {{dir: {tmp_path}/checkpoints, format: own}}").await_attempt("1.0")
    assert "no valid checkpoint of step 99" in run.requeue("--from", "99", code=11)
    assert not run.wishes()
    run.requeue("--from", "150")
    run.await_attempt("2.0")
    attempts = Attempts(run.dir.attempts_dir(None))
    found = [json.loads((attempts.path(n) / "resume.json").read_text())["training_step"] for n in attempts.numbers()]
    assert dict(zip(map(attempt_name, attempts.numbers()), found, strict=True)) == {"1.0": 200, "2.0": 100}


def say(run: Run, **said: Any) -> None:
    """As the recovery daemon does."""
    history = run.dir.history()
    word = Word(
        run_id=run.run_id,
        task=None,
        at=datetime.now(UTC),
        by="the daemon",
        why="a test says so",
        attempts=attempts_of(history.attempts, None),
        wishes=history.asks.get(None, 0),
        **said,
    )
    files.replace_file(run.dir.path / WORD, json.dumps(word_out(word)))


def test_a_start_keeps_to_what_the_daemon_said(run: Run, tmp_path: Path) -> None:
    for step in (100, 200):
        write_checkpoint(tmp_path / "checkpoints", step)
    run.submit(more=f"checkpoint: {{dir: {tmp_path}/checkpoints, format: own}}").await_attempt("1.0")
    say(run, at_most_step=150)
    assert "from training step 150 at most: a test says so" in run.cli("show", run.run_id).stdout
    run.cli.slurm("scontrol", "requeue", run.job_id)
    run.await_attempt("2.0")
    resumed = json.loads((run.dir.attempt_dir("2.0", None) / "resume.json").read_text())
    assert resumed["training_step"] == 100
    say(run, hold=True)
    assert "the daemon says: not to start" in run.cli("why", run.run_id).stdout
    run.cli.slurm("scontrol", "requeue", run.job_id)
    run.await_state("FAILED")
    assert run.dir.history().held == {None: "the daemon: a test says so"}
    assert run.cli.json("show", run.run_id)["state"] == "held"
    assert run.attempts() == ["1.0", "2.0"]
    run.requeue()
    run.await_attempt("3.0")


def test_a_step_is_refused_where_a_framework_has_saved_nothing(run: Run, tmp_path: Path) -> None:
    run.submit(more=f"checkpoint: {{dir: {tmp_path}, format: torch}}").await_attempt("1.0")
    assert "there is no valid checkpoint of step 99 or before it" in run.requeue("--from", "99", code=11)
    assert (run.shown("Restarts"), run.wishes()) == ("0", [])
