"""The ledger of wall time, against sums made by hand. Times are seconds after the first submission."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.accounting.ledger import DEFINITIONS, ETTR, wall_ledger
from fleetctl.accounting.spans import Spent
from tests.unit.accounting.runs_told import AS_OF, at, attempt, costs, interruption, record, run, save, wall

CRASHED = {
    "records": (
        record(0, 0, 100, 1100, state="REQUEUED"),
        record(1100, 1221, 1300, 2400),
    ),
    "attempts": (
        attempt("1.0", 110, 1090, "failed", (1, 200), (90, 1000)),
        attempt("2.0", 1310, 2380, "finished", (61, 1400), (150, 2370), resume=60, done=True),
    ),
    "saves": (save("1.0", 30, 490, 10), save("1.0", 60, 700, 10), save("2.0", 120, 2000, 20)),
    "interruptions": (interruption("1.0", 1090, "crash"),),
    "finished": True,
}


def test_a_calm_run_waits_starts_trains_saves_and_ends() -> None:
    facts = run(
        records=(record(0, 40, 100, 1000),),
        attempts=(attempt("1.0", 110, 990, "finished", (1, 160), (80, 960), done=True),),
        saves=(save("1.0", 40, 500, 15), save("1.0", 80, 940, 5, total=20)),
        finished=True,
    )
    assert wall(facts) == {"queue": 100, "startup": 60, "productive": 780, "stall": 20, "teardown": 40}
    ledger = wall_ledger(facts, AS_OF)
    assert (ledger.wall_ms, ledger.ettr) == (1_000_000, 0.78)
    assert not ledger.provisional
    assert not ledger.estimated
    assert (ledger.unsaved_ms, ledger.silent_ms) == (None, None)


def test_a_crash_costs_detection_restart_and_the_work_since_the_checkpoint() -> None:
    facts = run(**CRASHED)
    assert wall(facts) == {
        "queue": 100 + 79,
        "startup": 100 + 100,
        "productive": (700 - 200 - 10) + (2370 - 1400 - 20),
        "stall": 10 + 10 + 20,
        "lost": 1000 - 710,
        "hang": 90,
        "teardown": 10 + 30,
        "requeue": 121,
    }
    assert costs(facts) == [("1.0", "crash", 90, 1400 - 1090, 290)]


def test_a_node_loss_inside_the_allocation_needs_no_queue() -> None:
    """The record is closed by the resize and goes on as another; attempt 1.1 has a spare node."""
    facts = run(
        records=(
            record(0, 0, 10, 700, state="RESIZING", nodes=3, gpus=24),
            record(0, 0, 700, 1000, nodes=2, gpus=16),
        ),
        attempts=(
            attempt("1.0", 20, 520, "node_lost", (1, 50), (40, 500)),
            attempt("1.1", 530, 990, "finished", (31, 560), (70, 980), resume=30, done=True),
        ),
        saves=(save("1.0", 30, 400, 0),),
        interruptions=(interruption("1.0", 520, "node_failure"),),
        finished=True,
    )
    assert wall(facts) == {
        "queue": 10,
        "startup": 40 + 40,
        "productive": 350 + 420,
        "lost": 100,
        "hang": 20,
        "teardown": 20,
    }
    assert costs(facts) == [("1.0", "node_failure", 20, 40, 100)]


def test_a_preempted_run_that_saved_in_time_loses_nothing() -> None:
    facts = run(
        records=(record(0, 0, 0, 500, state="PREEMPTED"), record(500, 620, 620, 1000)),
        attempts=(
            attempt("1.0", 0, 490, "saved", (1, 20), (46, 470)),
            attempt("2.0", 630, 980, "finished", (47, 650), (80, 980), resume=46),
        ),
        saves=(save("1.0", 46, 470, 15),),
        interruptions=(interruption("1.0", 490, "preempted"),),
        finished=True,
    )
    assert wall(facts) == {
        "startup": 20 + 30,
        "productive": 450 + 330,
        "stall": 15,
        "teardown": 5 + 10 + 20,
        "requeue": 120,
    }
    assert costs(facts) == [("1.0", "preempted", 0, 160, 0)]


def test_a_fallback_charges_the_work_of_both_attempts_to_the_interruption_that_forced_it() -> None:
    facts = run(
        records=(record(0, 0, 0, 1000), record(1000, 1000, 1100, 2000), record(2000, 2000, 2100, 3000)),
        attempts=(
            attempt("1.0", 0, 1000, "failed", (1, 100), (100, 1000)),
            attempt("2.0", 1100, 2000, "failed", (81, 1200), (160, 2000), resume=80),
            attempt("3.0", 2100, 3000, "finished", (41, 2200), (120, 3000), resume=40),
        ),
        saves=(save("1.0", 40, 400, 0), save("1.0", 80, 800, 0), save("2.0", 120, 1600, 0)),
        interruptions=(interruption("1.0", 1000, "crash"), interruption("2.0", 2000, "silent_corruption")),
        finished=True,
    )
    assert wall(facts) == {"startup": 300, "queue": 200, "productive": 300 + 800, "lost": 200 + 400 + 800}
    assert costs(facts) == [("1.0", "crash", 0, 200, 200), ("2.0", "silent_corruption", 0, 200, 400 + 800)]


@pytest.mark.parametrize(
    ("ended", "spent"),
    [(700, {"teardown": 100 + 0}), (1300, {"hang": 700}), (1199.999, {"teardown": 599.999}), (1200, {"hang": 600})],
)
def test_a_training_that_somebody_cancelled_had_hung_when_it_was_silent_for_ten_minutes(
    ended: float, spent: dict[str, float]
) -> None:
    facts = run(
        records=(record(0, 0, 0, ended, state="CANCELLED"),),
        attempts=(attempt("1.0", 0, ended, "told", (1, 100), (50, 600)),),
        saves=(save("1.0", 50, 600, 0),),
        finished=False,
    )
    assert wall(facts) == {"startup": 100, "productive": 500, **spent}


def test_an_attempt_whose_end_nobody_could_write_ended_as_its_record_did() -> None:
    died = attempt("1.0", 0, None, "", (1, 100), (50, 600))
    of_node = run(records=(record(0, 0, 0, 800, state="NODE_FAIL"),), attempts=(died,), finished=False)
    told = run(records=(record(0, 0, 0, 800, state="TIMEOUT"),), attempts=(died,), finished=False)
    assert wall(of_node) == {"startup": 100, "lost": 500, "hang": 200}
    assert wall(told) == {"startup": 100, "lost": 500, "teardown": 200}


def test_what_was_cancelled_before_any_checkpoint_is_lost() -> None:
    facts = run(
        records=(record(0, 0, 50, 500, state="CANCELLED"),),
        attempts=(attempt("1.0", 60, 490, "told", (1, 80), (40, 480)),),
        finished=False,
    )
    assert wall(facts) == {"queue": 50, "startup": 30, "lost": 400, "teardown": 20}
    assert wall_ledger(facts, AS_OF).ettr == 0
    assert costs(facts) == [("1.0", "", 0, None, 400)]


def test_without_word_of_its_checkpoints_nobody_knows_what_a_cancelled_training_kept() -> None:
    facts = run(
        records=(record(0, 0, 50, 500, state="CANCELLED"),),
        attempts=(attempt("1.0", 60, 490, "told", (1, 80), (40, 480)),),
        finished=False,
        checkpoints="torch_dcp",
    )
    assert wall(facts) == {"queue": 50, "startup": 30, "untold": 400, "teardown": 20}
    assert costs(facts) == [("1.0", "", 0, None, None)]


@pytest.mark.parametrize(("eligible", "ended"), [(30, 400), (None, 400), (30, None)])
def test_a_run_that_never_started_only_waited(eligible: float | None, ended: float | None) -> None:
    facts = run(records=(record(0, eligible, None, ended, state="CANCELLED"),), finished=False if ended else None)
    ledger = wall_ledger(facts, at(400))
    assert wall(facts, at(400)) == {"queue": 400}
    assert ledger.ettr is None
    assert ledger.provisional is (ended is None)


def test_while_it_trains_what_it_did_since_its_newest_checkpoint_counts_provisionally() -> None:
    facts = run(
        records=(record(0, 0, 100, None, state="RUNNING", alive=1000),),
        attempts=(attempt("1.0", 100, None, "", (1, 200), (80, 995)),),
        saves=(save("1.0", 40, 600, 10),),
    )
    ledger = wall_ledger(facts, AS_OF)
    assert wall(facts) == {"queue": 100, "startup": 100, "productive": 785, "stall": 10, "untold": 5}
    assert ledger.provisional
    assert (ledger.unsaved_ms, ledger.silent_ms) == ((995 - 610) * 1000, 5_000)
    assert costs(facts) == []


def test_of_a_training_that_tells_nothing_nobody_knows_what_is_at_risk() -> None:
    calm = attempt("1.0", 0, 500, "failed", (1, 100), (40, 500))
    for before in ((), (calm,)):
        facts = run(
            records=(record(0, 0, 0, 500, state="FAILED"), record(500, 500, 500, None, state="RUNNING", alive=9000)),
            attempts=(*before, attempt("2.0", 500, None, resume=40)),
            saves=(save("1.0", 40, 450, 0),) if before else (),
        )
        ledger = wall_ledger(facts, AS_OF)
        assert (ledger.unsaved_ms, ledger.silent_ms) == (None, None)


def test_a_run_that_waited_for_a_person_waited_from_its_end_until_slurm_could_start_it_again() -> None:
    facts = run(
        records=(record(0, 0, 0, 300, state="FAILED"), record(8000, 8000, 8100, 9000)),
        attempts=(
            attempt("1.0", 0, 290, "failed", (1, 100), (20, 280)),
            attempt("2.0", 8100, 9000, "finished", (1, 8200), (80, 9000)),
        ),
        interruptions=(interruption("1.0", 290, "crash", by_person=True),),
        finished=True,
    )
    assert wall(facts) == {
        "startup": 200,
        "lost": 180,
        "hang": 10,
        "teardown": 10,
        "requeue": 7700,
        "queue": 100,
        "productive": 800,
    }
    assert costs(facts) == [("1.0", "crash", 10, 8200 - 290, 180)]


def test_an_attempt_that_made_no_step_was_start_up_when_others_tell_theirs() -> None:
    facts = run(
        records=(record(0, 0, 0, 500), record(500, 500, 600, 700), record(700, 700, 800, 1000)),
        attempts=(
            attempt("1.0", 0, 500, "failed", (1, 100), (41, 500)),
            attempt("2.0", 600, 690, "failed", resume=21),
            attempt("3.0", 800, 1000, "finished", (22, 850), (40, 1000), resume=21),
        ),
        saves=(save("1.0", 21, 300, 0),),
        finished=True,
    )
    assert wall(facts) == {
        "startup": 100 + 90 + 50,
        "productive": 200 + 150,
        "lost": 200,
        "queue": 200,
        "teardown": 10,
    }
    assert costs(facts) == [("1.0", "", 0, 190, 200), ("2.0", "", None, 160, 0)]


def test_the_guide_defines_each_class_in_the_same_words() -> None:
    guide = " ".join((Path(__file__).parents[3] / "docs/accounting.md").read_text().split())
    assert set(DEFINITIONS) == set(Spent)
    for words in (*DEFINITIONS.values(), ETTR):
        assert words in guide
