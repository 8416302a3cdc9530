"""What an attempt's end means, and what the job side does next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from fleetctl.launch.classify import classify
from fleetctl.launch.decide import (
    Hold,
    Leave,
    Nodes,
    Policy,
    Requeue,
    Restart,
    StandBy,
    Wait,
    after_attempt,
    brake,
    go_on,
    requeue_when_safe,
    without_gpus,
)
from fleetctl.launch.limits import Horizon, horizon, save_at_s
from fleetctl.rundir.model import WITHOUT_GPUS, Attempt, Ending, Progress

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TWO = Policy(2, 3, True)
HALFWAY, THERE = Progress(10, 20, None), Progress(20, 20, None)


@pytest.mark.parametrize(
    ("codes", "stopped", "progress", "told", "ending"),
    [
        ({"train": 0}, None, None, False, Ending.FINISHED),
        ({"train": 0}, None, THERE, False, Ending.FINISHED),
        ({"train": 1}, None, THERE, False, Ending.FAILED),  # its last save may have failed
        ({"train": 137}, Ending.NODE_LOST, THERE, False, Ending.NODE_LOST),
        ({"train": 1}, None, Progress(20, 20, None, done=True), False, Ending.FINISHED),  # only its teardown failed
        ({"train": 0}, None, HALFWAY, False, Ending.STOPPED_EARLY),
        ({"train": 0}, None, HALFWAY, True, Ending.TOLD),
        ({"train": 143}, None, HALFWAY, True, Ending.TOLD),
        ({"train": -9}, None, HALFWAY, False, Ending.FAILED),
        ({"train": 137}, Ending.NODE_LOST, HALFWAY, False, Ending.NODE_LOST),
        ({"train": 137}, Ending.HUNG, HALFWAY, False, Ending.HUNG),
        ({"train": 137}, Ending.HUNG, HALFWAY, True, Ending.HUNG),
        ({"train": 137}, Ending.HUNG, Progress(20, 20, None, done=True), False, Ending.FINISHED),
        ({"train": 143}, Ending.SAVED, HALFWAY, False, Ending.SAVED),
        ({"train": 0}, Ending.SAVED, None, False, Ending.SAVED),
        ({"train": 0}, None, Progress(3, None, None, done=True), True, Ending.FINISHED),
    ],
)
def test_what_an_end_means(
    codes: dict[str, int], stopped: Ending | None, progress: Progress | None, told: bool, ending: Ending
) -> None:
    assert classify(codes, stopped, progress, told=told).ending is ending


def test_a_failure_has_a_name_a_status_and_a_signal() -> None:
    killed = classify({"train": -9}, None, None, told=False)
    assert (killed.status, killed.signal, killed.failure) == (137, 9, "step train: signal 9")
    assert classify({"b": 3, "a": 0}, None, None, told=False).failure == "step b: status 3"
    assert classify({"train": 0}, None, THERE, told=False).failure == ""


def test_the_same_failure_has_the_same_name_whatever_status_srun_makes_of_it() -> None:
    log = b"Traceback\nsrun: error: node2: tasks 2-3: Exited with exit code 2\nsrun: error: node1: task 0: Terminated\n"
    for status in (2, 143, 137):
        failure = classify({"train": status}, None, None, told=False, log=log).failure
        assert failure == "step train: Exited with exit code 2"


NO_GPUS = b"srun: error: Unable to create step for job 2: Invalid generic resource (gres) specification\n"


def test_a_job_that_came_back_without_its_gpus_is_named_so_and_a_first_start_or_a_training_that_ran_is_not() -> None:
    def failure(progress: Progress | None = None, *, came_back: bool, log: bytes = NO_GPUS) -> str:
        return classify({"train": 1}, None, progress, told=False, log=log, came_back=came_back).failure

    assert failure(came_back=True) == WITHOUT_GPUS
    assert failure(came_back=False) == "step train: status 1"
    assert failure(HALFWAY, came_back=True) == "step train: status 1"
    assert failure(came_back=True, log=b"the user says: " + NO_GPUS) == "step train: status 1"
    assert classify({"train": 1}, None, None, told=True, log=NO_GPUS, came_back=True).ending is Ending.TOLD


def test_a_start_without_gpus_is_requeued_once_when_that_is_safe_and_held_with_a_remedy_the_second_time() -> None:
    lost, other = replace(failed(1, None), failure=WITHOUT_GPUS, nodes="n[1-2]"), failed(0, None)
    assert without_gpus([lost], Nodes(("a", "b")), TWO) == Requeue(WITHOUT_GPUS)
    assert without_gpus([lost, other, lost], Nodes(("a", "b")), TWO) == Requeue(WITHOUT_GPUS)
    waiting = without_gpus([lost], Nodes(("a",), dead=("b",)), TWO)
    assert isinstance(waiting, Wait)
    assert waiting.then_requeue
    held = without_gpus([other, lost, lost], Nodes(("a", "b")), TWO)
    assert isinstance(held, Hold)
    assert held.why == (
        "Slurm started the job without its GPUs, twice in a row; tell your administrators that slurmctld must be "
        "restarted: it lost count of the GPUs on n[1-2]"
    )


def test_a_start_without_gpus_is_no_failure_of_the_run() -> None:
    lost, other = replace(failed(1, None), failure=WITHOUT_GPUS), failed(0, None, "step train: status 1")
    assert brake([lost, lost, lost], 1) is None
    assert brake([other, lost], 2) is None
    assert (brake([other, lost, replace(other, ended_at=lost.ended_at)], 3) or "").startswith("step train: status 1, 2")


def test_a_hang_is_a_failure_named_by_its_phase_and_no_node() -> None:
    log = b"srun: error: node2: tasks 2-3: Killed\n"
    hung = classify({"train": 137}, Ending.HUNG, HALFWAY, told=False, log=log, hung_in="first_step")
    assert (hung.ending, hung.failure) == (Ending.HUNG, "hang in first step")
    assert after_attempt(Ending.HUNG, Nodes(("a", "b", "c")), None, TWO) == Restart(("a", "b"), "hung")
    assert after_attempt(Ending.HUNG, Nodes(("a", "b")), "why", TWO) == Hold("why")


def test_a_last_save_that_did_not_come_counts_as_a_failure() -> None:
    assert classify({"train": 0}, Ending.SAVED, HALFWAY, told=False, saved=False).failure
    assert not classify({"train": 0}, Ending.SAVED, HALFWAY, told=False).failure
    assert after_attempt(Ending.SAVED, Nodes(("a", "b")), "why", TWO) == Hold("why")


def test_restart_where_enough_nodes_live() -> None:
    assert go_on("failed", Nodes(("a", "b", "c")), TWO) == Restart(("a", "b"), "failed")
    assert go_on("node lost", Nodes(("a", "c"), dead=("b",)), TWO) == Restart(("a", "c"), "node lost")
    assert go_on("failed", Nodes(()), Policy(0, 3, False)) == Restart((), "failed"), "a hetjob: where Slurm puts it"


def test_no_requeue_while_a_node_is_silent_and_not_down() -> None:
    """22.05.8 would bring the job back without its GPUs and leak them."""
    dead = Nodes(("a",), dead=("b",))
    assert isinstance(go_on("node lost", dead, TWO), Wait)
    assert isinstance(go_on("node lost", Nodes(("a",), paused=("b",)), TWO), Wait)
    assert isinstance(go_on("x", Nodes(("a",), dead=("b", "c"), down=frozenset("b")), TWO), Wait)
    assert isinstance(go_on("x", Nodes(("a",), dead=("b",), down=frozenset("b")), TWO), Requeue)
    without_spares = Policy(2, 3, False)
    down = Nodes(("a",), dead=("b",), down=frozenset("b"))
    assert isinstance(go_on("x", down, without_spares), Wait), "without --no-kill Slurm requeues it by itself"


@pytest.mark.parametrize("ending", [Ending.FINISHED, Ending.TOLD])
def test_what_is_not_ours_to_restart(ending: Ending) -> None:
    assert after_attempt(ending, Nodes(("a", "b")), None, TWO) == Leave()


def test_nothing_is_restarted_without_leave_and_a_brake_holds() -> None:
    assert after_attempt(Ending.FAILED, Nodes(("a", "b")), None, Policy(2, None, False)) == Leave()
    assert after_attempt(Ending.FAILED, Nodes(("a", "b")), "why", TWO) == Hold("why")
    assert after_attempt(Ending.FAILED, Nodes(("a", "b")), None, TWO) == Restart(("a", "b"), "failed")
    assert isinstance(after_attempt(Ending.SAVED, Nodes(("a", "b")), None, TWO), Requeue)
    assert after_attempt(Ending.FENCED, Nodes(("a", "b")), None, TWO) == StandBy()


def test_a_saved_run_is_not_requeued_while_a_node_is_silent_either() -> None:
    for silent in (Nodes(("a", "b"), dead=("c",)), Nodes(("a", "b"), paused=("c",))):
        waiting = after_attempt(Ending.SAVED, silent, None, TWO)
        assert isinstance(waiting, Wait)
        assert waiting.then_requeue
        assert isinstance(after_attempt(Ending.SAVED, silent, None, replace(TWO, requeue_is_safe=True)), Requeue)
    assert isinstance(requeue_when_safe("x", Nodes(("a",), dead=("c",), down=frozenset("c")), TWO), Requeue)


def test_failures_that_take_turns_are_braked_too() -> None:
    turns = [failed(11 * i, 10, f"step train: status {i % 2}") for i in range(6)]
    assert brake(turns[:5], 3) is None
    assert brake(turns, 3) is not None


def failed(minute: float, step: int | None, failure: str = "step train: signal 9") -> Attempt:
    end = NOW + timedelta(minutes=minute)
    return Attempt("1.0", "7", "n", NOW, ended_at=end, exit_code=1, failure=failure, progress_step=step)


def test_brakes_count_progress_and_not_restarts() -> None:
    assert brake([], 3) is None
    assert brake([failed(0, 10)], 3) is None
    assert brake([failed(0, 10), failed(60, 10)], 3) is None
    assert brake([failed(0, 10), failed(60, 10), failed(120, 10)], 3) is not None
    assert brake([failed(60 * i, 10 * i) for i in range(50)], 3) is None, "each one got further"
    assert brake([failed(0, 10), failed(60, 10), failed(120, 20)], 3) is None
    assert brake([failed(0, None), failed(60, None), failed(120, None)], 3) is not None, "never saved at all"
    assert brake([failed(0, 10), failed(60, 10, "status 1"), failed(120, 10)], 3) is None, "not the same failure"


def test_two_quick_failures_hold() -> None:
    assert brake([failed(0, 10), failed(5, 10)], 3) is not None
    assert brake([failed(0, 10), failed(5, 20)], 3) is None
    assert brake([failed(0, 10), failed(11, 10)], 3) is None
    assert brake([failed(0, 10)], 1) is not None


def test_what_was_nobodys_failure_neither_counts_nor_clears() -> None:
    lost = Attempt("1.1", "7", "n", NOW, ended_at=NOW, exit_code=137, failure="", ending=Ending.NODE_LOST)
    assert brake([failed(0, 10), lost, failed(5, 10)], 3) is not None
    assert brake([lost] * 9, 3) is None


def test_the_nearer_end_counts_whatever_a_clock_says() -> None:
    assert horizon(100.0, 40.0, wall_left_s=9000.0, limit_s=600.0, preempted=False).ends_at_s == 640.0
    assert horizon(100.0, 40.0, wall_left_s=30.0, limit_s=600.0, preempted=False).ends_at_s == 130.0
    assert horizon(100.0, None, wall_left_s=30.0, limit_s=None, preempted=False).ends_at_s == 130.0
    assert horizon(100.0, 0.0, wall_left_s=30.0, limit_s=10.0, preempted=True).ends_at_s == 130.0
    assert horizon(100.0, 0.0, wall_left_s=None, limit_s=None, preempted=False).ends_at_s is None


def test_the_margin_is_learned_from_measured_saves() -> None:
    day = Horizon(86_400.0, 86_400.0)
    assert save_at_s(day, 200.0, 0.0) == 86_400.0 - 430.0
    assert save_at_s(day, None, 0.0) == 86_400.0 - 150.0
    assert save_at_s(Horizon(60.0, 60.0), 0.1, 0.0) == 45.0, "a short limit still trains"
    assert save_at_s(Horizon(60.0, 3600.0, preempted=True), 1.0, 7.0) == 7.0
    assert save_at_s(Horizon(None, 0.0), 1.0, 0.0) is None
