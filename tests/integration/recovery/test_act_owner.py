"""What the daemon does to a user's own runs, on real daemons: one thing, once, and never what was not meant."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fleetctl.recovery import pause
from fleetctl.recovery.act import World, act, settle
from fleetctl.recovery.model import Action, Deed, Outcome
from fleetctl.recovery.order import note_of
from fleetctl.rundir.history import BY_DAEMON
from fleetctl.rundir.words import word_in
from fleetctl.sandbox.cluster import Sandbox
from fleetctl.slurm.hosts import fold
from tests.databases import FreshDatabase
from tests.integration.recovery.scene import CLOCK, Run, a_world, done, on_cluster, three_nodes
from tests.support import wait_until

pytestmark = pytest.mark.slurm
QUICK = (("MessageTimeout", "5"), ("AuthInfo", "cred_expire=5"), ("KillWait", "2"), ("MinJobAge", "300"))


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
    wait_until(lambda: not made.cli.slurm("squeue", "-h"), "an empty queue")


@pytest.fixture
def world(run: Run, fresh_database: FreshDatabase) -> Iterator[World]:
    with a_world(fresh_database("sqlite"), run.cli) as made:
        yield made


def test_a_running_job_is_requeued_once_and_the_record_says_by_whom(run: Run, world: World) -> None:
    run.submit().await_attempt("1.0")
    first = done(world, run, Deed.REQUEUE)
    assert (first.outcome, run.shown("Restarts")) == (Outcome.DONE, "1"), first.detail
    assert [wish["by"] for wish in run.requeues()] == [BY_DAEMON]
    again = done(world, run, Deed.REQUEUE)  # it stands in the journal
    assert (again.outcome, again.detail) == (Outcome.DONE, first.detail)
    run.await_attempt("2.0")
    assert run.shown("Restarts") == "1"
    assert [each.outcome for each in world.journal.memory().done] == [Outcome.DONE]


def test_a_job_that_slurm_has_started_again_meanwhile_is_left_alone(run: Run, world: World) -> None:
    run.submit().await_attempt("1.0")
    run.cli.slurm("scontrol", "requeue", run.job_id)
    for deed in (Deed.REQUEUE, Deed.HOLD, Deed.ROLL_BACK, Deed.EXCLUDE, Deed.START_NOW):
        found = done(world, run, deed)
        assert (found.outcome, "1 times again" in found.detail) == (Outcome.CHANGED, True), found.detail
    assert (run.shown("Restarts"), run.requeues()) == ("1", [])


def test_a_failed_job_comes_back(run: Run, world: World) -> None:
    run.submit(failures=9).await_attempt("1.0")
    run.cli.slurm("scancel", "--signal=KILL", "--batch", run.job_id)
    run.await_state("FAILED")
    found = done(world, run, Deed.REQUEUE_ENDED)
    assert found.outcome is Outcome.DONE, found.detail
    assert run.shown("Restarts") == "1"


def test_a_cancelled_job_never_comes_back(run: Run, world: World) -> None:
    run.submit().await_attempt("1.0")
    run.cli.slurm("scancel", run.job_id)
    run.await_state("CANCELLED")
    for deed in (Deed.REQUEUE, Deed.REQUEUE_ENDED, Deed.RESUBMIT):
        found = done(world, run, deed)
        assert found.outcome is Outcome.CHANGED, found.detail
    assert (run.shown("Restarts"), run.shown("JobState")) == ("0", "CANCELLED")
    assert len(run.cli.jobs()) == len({*run.cli.jobs()})


def test_a_run_that_its_user_cancelled_is_neither_held_nor_told_anything(run: Run, world: World) -> None:
    run.submit().await_attempt("1.0")
    run.cli("cancel", run.run_id)
    for deed in (Deed.REQUEUE, Deed.HOLD, Deed.ROLL_BACK, Deed.EXCLUDE):
        found = done(world, run, deed)
        assert (found.outcome, found.detail) == (Outcome.CHANGED, "it was cancelled, or has finished")
    assert not (run.dir.path / "word.json").exists()


def test_exclusions_of_ours_come_and_go_and_those_of_others_stay(run: Run, world: World) -> None:
    run.submit(resources=", exclude: node1")
    run.await_attempt("1.0")
    where = run.shown("NodeList")
    run.cli.slurm("scontrol", "requeue", run.job_id)
    run.await_state("PENDING")
    run.cli.slurm("scontrol", "update", f"JobId={run.job_id}", "StartTime=now+1hour")
    other = next(node for node in ("node2", "node3") if node != where)
    found = done(world, run, Deed.EXCLUDE, run.start(1), nodes=(where,))
    assert found.outcome is Outcome.DONE, found.detail
    assert run.shown("ExcNodeList") == fold(["node1", where])
    assert world.journal.note(note_of(run.run_id)) == where
    found = done(world, run, Deed.EXCLUDE, run.start(1), nodes=(where, other))
    assert (found.outcome, "would remain" in found.detail) == (Outcome.CHANGED, True), found.detail
    found = done(world, run, Deed.EXCLUDE, run.start(1), nodes=())
    assert (found.outcome, run.shown("ExcNodeList")) == (Outcome.DONE, "node1"), found.detail
    found = done(world, run, Deed.EXCLUDE, run.start(1), nodes=("node1", where))
    assert (found.outcome, world.journal.note(note_of(run.run_id))) == (Outcome.DONE, where), found.detail


def test_a_waiting_job_begins_now(run: Run, world: World) -> None:
    run.submit().await_attempt("1.0")
    run.cli.slurm("scontrol", "requeue", run.job_id)
    run.await_state("PENDING")
    run.cli.slurm("scontrol", "update", f"JobId={run.job_id}", "StartTime=now+1hour")
    found = done(world, run, Deed.START_NOW, run.start(1))
    assert found.outcome is Outcome.DONE, found.detail
    run.await_attempt("2.0")


def test_a_running_job_takes_no_exclusion_and_no_start(run: Run, world: World) -> None:
    run.submit().await_attempt("1.0")
    for deed in (Deed.EXCLUDE, Deed.START_NOW, Deed.REQUEUE_ENDED, Deed.RESUBMIT):
        found = done(world, run, deed)
        assert found.outcome is Outcome.CHANGED, (deed, found.detail)
    assert run.shown("Restarts") == "0"


def test_a_held_run_is_held_until_a_person_says_so(run: Run, world: World) -> None:
    run.submit().await_attempt("1.0")
    found = done(world, run, Deed.HOLD)
    assert found.outcome is Outcome.DONE, found.detail
    assert run.dir.history().held == {None: "the daemon: node3 died"}
    found = done(world, run, Deed.REQUEUE)
    assert (found.outcome, "only a person ends that" in found.detail) == (Outcome.CHANGED, True), found.detail
    assert run.cli("requeue", run.run_id).returncode == 0
    assert run.dir.history().held == {}
    run.await_attempt("2.0")


def test_a_roll_back_is_a_word_that_joins_the_one_before(run: Run, world: World) -> None:
    run.submit().await_attempt("1.0")
    path = run.dir.path / "word.json"
    found = done(world, run, Deed.ROLL_BACK, at_most_step=300, suspects=("step-400",))
    assert found.outcome is Outcome.DONE, found.detail
    found = done(world, run, Deed.ROLL_BACK, at_most_step=200, suspects=("step-300",))
    assert found.outcome is Outcome.DONE, found.detail
    word = word_in(json.loads(path.read_text()))
    assert (word.at_most_step, word.suspects, word.hold) == (200, ("step-400", "step-300"), False)
    assert (word.by, word.attempts, word.wishes) == (BY_DAEMON, 1, 0)
    assert run.shown("Restarts") == "0"


def test_a_job_that_slurm_may_not_requeue_is_submitted_again_once(run: Run, world: World) -> None:
    run.submit(requeue="false", failures=9, resources=", exclude: node1").await_attempt("1.0")
    run.cli.slurm("scancel", "--signal=KILL", "--batch", run.job_id)
    run.await_state("FAILED")
    found = done(world, run, Deed.RESUBMIT, nodes=("node1", "node3"))
    assert found.outcome is Outcome.DONE, found.detail
    newest = run.dir.history().job_id
    assert newest is not None
    assert newest != run.job_id
    assert (run.shown("ExcNodeList", newest), world.journal.note(note_of(run.run_id))) == ("node[1,3]", "node3")
    assert done(world, run, Deed.RESUBMIT, nodes=("node1", "node3")).outcome is Outcome.DONE  # as the journal says
    found = done(world, run, Deed.RESUBMIT)
    assert (found.outcome, found.detail) == (Outcome.CHANGED, f"its job is {newest} now")
    run.await_attempt("2.0")
    assert len(run.cli.jobs()) >= 2


def test_a_resubmission_whose_process_was_killed_is_settled_and_makes_no_second_job(
    run: Run, world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run.submit(requeue="false", failures=9).await_attempt("1.0")
    run.cli.slurm("scancel", "--signal=KILL", "--batch", run.job_id)
    run.await_state("FAILED")
    before = len(run.cli.jobs())
    killing = 'kill -KILL $(ps -o ppid= $PPID); exec $REAL "$@"'  # its parent is `timeout`
    with monkeypatch.context() as deadly:
        deadly.setenv("PATH", run.cli.shadow(tmp_path / "bin", "sbatch", killing))
        found = done(world, run, Deed.RESUBMIT)
    wait_until(lambda: len(run.cli.jobs()) == before + 1, "sbatch goes on by itself")
    assert found.outcome in (Outcome.OPEN, Outcome.DONE), found.detail
    wait_until(lambda: settle(world) == (), "what became of it can be told")
    again = done(world, run, Deed.RESUBMIT)
    assert (again.outcome, run.job_id in again.detail) == (Outcome.DONE, False), again.detail
    assert len(run.cli.jobs()) == before + 1
    run.await_attempt("2.0")


@pytest.mark.parametrize("how", ["pause", "pause of all", "file", "spec"])
def test_what_a_person_forbids_is_not_done_and_not_written_down(
    run: Run, world: World, tmp_path: Path, how: str
) -> None:
    run.submit(recovery=", daemon: false" if how == "spec" else "").await_attempt("1.0")
    stop = tmp_path / "stop"
    world = msgspec.structs.replace(world, stop_file=stop)
    if how.startswith("pause"):
        engine = world.journal._engine
        key = "" if how == "pause of all" else run.run_id
        pause.pause(engine, world.leader.place, key, "user ann", "why", CLOCK.now())
    elif how == "file":
        stop.touch()
    found = done(world, run, Deed.REQUEUE)
    assert found.outcome is Outcome.CHANGED
    words = {"file": "is there", "spec": "recovery.daemon"}.get(how, "paused by user ann: why")
    assert words in found.detail
    assert run.shown("Restarts") == "0"
    if how != "spec":
        assert world.journal.memory().done == ()


def test_other_clusters_jobs_and_unknown_ones_are_left_alone(run: Run, world: World) -> None:
    run.submit().await_attempt("1.0")
    for start in (f"other/{run.job_id}/0", f"{run.cluster}/999999/0", "nonsense", f"{run.cluster}/x/0"):
        found = done(world, run, Deed.REQUEUE, start)
        assert found.outcome is Outcome.CHANGED, (start, found.detail)
    assert run.shown("Restarts") == "0"


def test_what_slurm_cannot_be_asked_about_is_left_open(
    run: Run, world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run.submit().await_attempt("1.0")
    path = run.cli.shadow(
        tmp_path / "bin",
        "squeue",
        "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
    )
    with monkeypatch.context() as away:
        away.setenv("PATH", path)
        found = done(world, run, Deed.REQUEUE)
    assert found.outcome is Outcome.OPEN
    assert len(world.journal.unfinished()) == 1
    (settled,) = settle(world)
    assert (settled.outcome, run.shown("Restarts")) == (Outcome.FAILED, "0")
    assert settle(world) == ()
    assert done(world, run, Deed.REQUEUE).outcome is Outcome.DONE


def test_to_tell_is_to_write_it_down(run: Run, world: World) -> None:
    found = act(Action(Deed.TELL, "", "", "many runs fail", "burst"), None, world)
    assert found.outcome is Outcome.DONE


def test_one_element_of_a_sweep_is_meant_alone_also_the_one_whose_number_is_the_arrays(run: Run, world: World) -> None:
    run.submit(more="sweep: {parameters: {x: [1, 2, 3]}}")
    for index in range(3):
        run.await_attempt("1.0", index)
    rows = run.cli.slurm("squeue", "--noheader", "--array", "--format=%K %A").splitlines()
    raw = {row.split()[0]: row.split()[1] for row in rows}
    last = next(task for task, number in raw.items() if number == run.job_id)  # its row has the array's own number
    other = next(task for task in raw if task != last)
    for task in (last, other):
        found = done(world, run, Deed.REQUEUE, run.start(0, raw[task]), f"{run.run_id}/{task}")
        assert found.outcome is Outcome.DONE, found.detail
    restarts = {task: run.shown("Restarts", f"{run.job_id}_{task}") for task in raw}
    assert restarts == {task: "1" if task in (last, other) else "0" for task in raw}
    third = next(task for task in raw if task not in (last, other))
    found = done(world, run, Deed.HOLD, run.start(0, raw[third]), f"{run.run_id}/{third}")
    assert (found.outcome, [*run.dir.history().held]) == (Outcome.DONE, [int(third)]), found.detail
    found = done(world, run, Deed.REQUEUE, run.start(0, raw[third]), f"{run.run_id}/{other}")
    assert found.outcome is Outcome.CHANGED, found.detail
