"""What the site's daemon does, on real daemons: through Slurm and its own folder, never below a user's."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fleetctl.cli.runs import user_name
from fleetctl.recovery.act import World, act, settle
from fleetctl.recovery.model import Action, Deed, Done, Outcome
from fleetctl.recovery.order import note_of
from fleetctl.recovery.policy import Mode
from fleetctl.rundir.words import word_in
from fleetctl.sandbox.cluster import Sandbox
from fleetctl.sandbox.model import SandboxConfig
from fleetctl.slurm.model import AdminLevel
from tests.databases import FreshDatabase
from tests.integration.conftest import MakeSandbox, short_dir
from tests.integration.recovery.scene import Run, a_world, done, on_cluster, three_nodes
from tests.support import wait_until

pytestmark = pytest.mark.slurm
QUICK = (("MessageTimeout", "5"), ("AuthInfo", "cred_expire=5"), ("KillWait", "2"))
PATIENT = (("SlurmdTimeout", "60"), ("MessageTimeout", "2"))


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandbox]:
    """Three nodes for the tests that break none."""
    with three_nodes(QUICK) as started:
        yield started


@pytest.fixture
def run(shared: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    made = on_cluster(shared, tmp_path, monkeypatch)
    yield made
    made.cli.slurm("scancel", "--user", str(os.getuid()))
    for node in ("node1", "node2", "node3"):
        made.cli.slurm("sh", "-c", f"scontrol update nodename={node} state=resume 2>/dev/null || true")

    def states() -> set[str]:
        return {*made.cli.slurm("sinfo", "-h", "-N", "-o", "%T").split()}

    wait_until(lambda: states() == {"idle"}, "all nodes answer: a resumed one reads idle* for a moment")
    wait_until(lambda: not made.cli.slurm("squeue", "-h"), "an empty queue")


@pytest.fixture
def world(run: Run, fresh_database: FreshDatabase, tmp_path: Path) -> Iterator[World]:
    words = tmp_path / "words"
    words.mkdir(mode=0o755)
    with a_world(fresh_database("sqlite"), run.cli, mode=Mode.OPERATOR, words=words) as made:
        yield made


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below, as it is."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".out"]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def to_node(world: World, deed: Deed, *nodes: str, why: str = "three runs of two users failed there") -> Done:
    return act(Action(deed, "", "", why, "lemon", nodes=nodes), None, world)


def reason(run: Run, node: str) -> str:
    return run.cli.slurm("sinfo", "--noheader", f"--nodes={node}", "--format=%E").strip()


def state(run: Run, node: str) -> str:
    return run.cli.slurm("sinfo", "--noheader", f"--nodes={node}", "--format=%T").strip()


def test_a_running_job_is_requeued_once_and_its_folder_is_as_it_was(run: Run, world: World) -> None:
    run.submit().await_attempt("1.0")
    found = done(world, run, Deed.REQUEUE)
    assert (found.outcome, run.shown("Restarts")) == (Outcome.DONE, "1"), found.detail
    assert run.requeues() == []
    again = done(world, run, Deed.REQUEUE)
    assert (again.outcome, run.shown("Restarts")) == (Outcome.DONE, "1")


@pytest.mark.parametrize("how", ["cancelled", "completed", "pending", "restarted"])
def test_what_is_not_alive_or_not_that_start_is_not_requeued(run: Run, world: World, how: str) -> None:
    run.submit(resources=", exclude: 'node[1-2]'").await_attempt("1.0")
    if how == "cancelled":
        run.cli.slurm("scancel", run.job_id)
        run.await_state("CANCELLED")
    elif how == "completed":
        run.end(0).await_state("COMPLETED")
    else:
        run.cli.slurm("scontrol", "requeue", run.job_id)
        run.await_state("PENDING")
    restarts = int(run.shown("Restarts"))
    start = run.start(restarts if how == "pending" else 0)
    for deed in (Deed.REQUEUE, Deed.REQUEUE_ENDED):
        found = done(world, run, deed, start)
        assert found.outcome is Outcome.CHANGED, found.detail
    assert run.shown("Restarts") == str(restarts)


def test_a_failed_job_comes_back_and_a_cancelled_one_never(run: Run, world: World) -> None:
    run.submit(failures=9).await_attempt("1.0")
    run.cli.slurm("scancel", "--signal=KILL", "--batch", run.job_id)
    run.await_state("FAILED")
    found = done(world, run, Deed.REQUEUE_ENDED)
    assert (found.outcome, run.shown("Restarts")) == (Outcome.DONE, "1"), found.detail


def test_nobody_is_submitted_again(run: Run, world: World) -> None:
    run.submit(requeue="false").await_attempt("1.0")
    jobs = run.cli.jobs()
    found = done(world, run, Deed.RESUBMIT)
    assert (found.outcome, found.detail) == (Outcome.CHANGED, "only the run's own user can do that")
    assert run.cli.jobs() == jobs


def test_exclusions_of_ours_join_those_of_others(run: Run, world: World) -> None:
    run.submit(resources=", exclude: node1").await_attempt("1.0")
    run.cli.slurm("scontrol", "requeue", run.job_id)
    run.await_state("PENDING")
    run.cli.slurm("scontrol", "update", f"JobId={run.job_id}", "StartTime=now+1hour")
    found = done(world, run, Deed.EXCLUDE, run.start(1), nodes=("node2",))
    assert (found.outcome, run.shown("ExcNodeList")) == (Outcome.DONE, "node[1-2]"), found.detail
    assert world.journal.note(note_of(run.run_id)) == "node2"
    found = done(world, run, Deed.START_NOW, run.start(1))
    assert found.outcome is Outcome.DONE, found.detail
    run.await_attempt("2.0")
    assert run.shown("NodeList") == "node3"


def test_a_hold_and_a_roll_back_are_one_word_in_the_sites_folder(run: Run, world: World, tmp_path: Path) -> None:
    run.submit().await_attempt("1.0")
    before = tree(run.dir.path)
    found = done(world, run, Deed.ROLL_BACK, at_most_step=300, suspects=("step-400",))
    assert found.outcome is Outcome.DONE, found.detail
    found = done(world, run, Deed.HOLD)
    assert found.outcome is Outcome.DONE, found.detail
    path = tmp_path / "words" / f"{user_name()}:{run.run_id}.json"
    word = word_in(json.loads(path.read_text()))
    assert (word.hold, word.at_most_step, word.suspects, word.attempts) == (True, 300, ("step-400",), 1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert tree(run.dir.path) == before
    assert [*path.parent.iterdir()] == [path]


def test_a_word_of_ours_holds_the_run_at_its_next_start(
    shared: Sandbox, fresh_database: FreshDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = short_dir()
    run = on_cluster(shared, tmp_path, monkeypatch)
    run.cli.environ["FLEETCTL_WORDS"] = str(words)
    run.submit().await_attempt("1.0")
    with a_world(fresh_database("sqlite"), run.cli, mode=Mode.OPERATOR, words=words) as world:
        found = done(world, run, Deed.HOLD)
        assert found.outcome is Outcome.DONE, found.detail
    run.cli.slurm("scontrol", "requeue", run.job_id)
    wait_until(lambda: run.dir.history().held, "the run is held")
    assert "node3 died" in run.dir.history().held[None]
    assert run.attempts() == ["1.0"]
    shutil.rmtree(words)


def test_a_node_is_drained_with_our_reason_once(run: Run, world: World) -> None:
    found = to_node(world, Deed.DRAIN, "node2", why='bad "GPU" = 3 | \u2620\nnow')
    assert (found.outcome, state(run, "node2")) == (Outcome.DONE, "drained"), found.detail
    assert reason(run, "node2") == "fleetctl: bad 'GPU' : 3 / ? now"
    found = to_node(world, Deed.DRAIN, "node2")
    assert (found.outcome, "ours stands already" in found.detail) == (Outcome.DONE, True)
    assert reason(run, "node2").startswith("fleetctl: bad")


@pytest.mark.parametrize("what", ["state=drain reason=fans", "state=fail reason=fans"])
def test_a_node_with_somebody_elses_word_is_left_alone(run: Run, world: World, what: str) -> None:
    run.cli.slurm("scontrol", "update", "nodename=node2", *what.split())
    before = run.cli.slurm("scontrol", "show", "node", "node2", "--oneliner")
    found = to_node(world, Deed.DRAIN, "node2")
    assert (found.outcome, what.rpartition("=")[2] in found.detail) == (Outcome.CHANGED, True), found.detail
    assert reason(run, "node2") == what.rpartition("=")[2]
    assert ("drain" in state(run, "node2")) == ("drain" in what)
    assert before.split("Reason=")[1] == run.cli.slurm("scontrol", "show", "node", "node2", "-o").split("Reason=")[1]


def test_a_node_that_answers_is_not_called_down(run: Run, world: World) -> None:
    found = to_node(world, Deed.SET_DOWN, "node2")
    assert (found.outcome, "Slurm reaches node2" in found.detail) == (Outcome.CHANGED, True), found.detail
    for nodes in (("nosuch",), ("node1", "node2"), ()):
        assert to_node(world, Deed.DRAIN, *nodes).outcome is Outcome.CHANGED
    assert state(run, "node2") == "idle"


@pytest.mark.parametrize("deed", [Deed.DRAIN, Deed.SET_DOWN])
def test_without_the_level_nothing_is_done_to_nodes(run: Run, world: World, deed: Deed) -> None:
    lesser = msgspec.structs.replace(world, level=AdminLevel.OPERATOR)
    found = to_node(lesser, deed, "node2")
    assert found.outcome is Outcome.CHANGED
    assert found.detail == "Slurm's level Administrator is needed, and root has Operator"
    assert (state(run, "node2"), world.journal.memory().done) == ("idle", ())


def test_an_open_drain_is_settled_by_what_stands(run: Run, world: World) -> None:
    drained, open_one = (Action(Deed.DRAIN, "", "", "w", "lemon", nodes=(name,)) for name in ("node1", "node2"))
    for action in (drained, open_one, Action(Deed.TELL, "", "", "w", "burst")):
        assert isinstance(world.journal.begin(action), int)
    run.cli.slurm("scontrol", "update", "nodename=node1", "state=drain", "reason=fleetctl: w")
    found = settle(world)
    assert [each.outcome for each in found] == [Outcome.DONE, Outcome.FAILED, Outcome.FAILED]
    assert (settle(world), state(run, "node2")) == ((), "idle")


def test_a_dead_node_is_set_down_and_not_before_is_its_job_requeued(
    make_sandbox: MakeSandbox, fresh_database: FreshDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = make_sandbox(SandboxConfig(nodes=3, gpus=2, settings=PATIENT))
    run = on_cluster(own, tmp_path, monkeypatch).submit(nodes=2).await_attempt("1.0")
    with a_world(fresh_database("sqlite"), run.cli, mode=Mode.OPERATOR, words=tmp_path) as world:
        own.node("node2").kill()
        noticed = lambda: "NOT_RESPONDING" in run.cli.slurm("scontrol", "show", "node", "node2")  # noqa: E731
        wait_until(noticed, "Slurm misses the node", 120)
        found = done(world, run, Deed.REQUEUE)
        assert (found.outcome, "does not reach node2" in found.detail) == (Outcome.CHANGED, True), found.detail
        found = to_node(world, Deed.SET_DOWN, "node2", why="the fence says that it is off")
        assert (found.outcome, "DOWN" in found.detail) == (Outcome.DONE, True), found.detail
        assert reason(run, "node2") == "fleetctl: the fence says that it is off"
    wait_until(lambda: run.shown("Restarts") == "1", "Slurm requeues the job itself")
