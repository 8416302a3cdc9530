"""The ledger of wall time where evidence is missing, partial, or of another clock."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fleetctl.accounting.ledger import wall_ledger
from fleetctl.accounting.model import Window
from tests.unit.accounting.runs_told import AS_OF, T0, at, attempt, costs, record, run, save, seconds, wall


def test_a_training_that_tells_nothing_has_untold_time_and_no_effective_share() -> None:
    facts = run(
        records=(record(0, 0, 100, 1100, state="FAILED"), record(1100, 1100, 1200, 2000)),
        attempts=(attempt("1.0", 110, 1090, "failed"), attempt("2.0", 1210, 1990, "finished")),
        finished=True,
        checkpoints=None,
    )
    assert wall(facts) == {"queue": 200, "startup": 20, "untold": 980 + 780, "teardown": 20}
    assert wall_ledger(facts, AS_OF).ettr is None
    assert costs(facts) == [("1.0", "", None, None, None)]


def test_steps_without_times_make_no_times() -> None:
    """An older fleetctl told the last step alone, or the resumed one."""
    first = attempt("1.0", 0, 500, "failed", (1, 0), (90, 0))
    first = replace(first, first_step_ms=None, last_step_ms=None)
    facts = run(
        records=(record(0, 0, 0, 500, state="FAILED"), record(500, 500, 600, 1000)),
        attempts=(first, attempt("2.0", 600, 1000, "finished", resume=60)),
        finished=True,
    )
    assert wall(facts) == {"queue": 100, "untold": 900}
    assert wall_ledger(facts, AS_OF).ettr is None
    assert costs(facts) == [("1.0", "", None, None, None)]


def test_saves_alone_tell_of_the_time_between_them() -> None:
    facts = run(
        records=(record(0, 0, 0, 1000),),
        attempts=(attempt("1.0", 0, 1000, "finished"),),
        saves=(save("1.0", 10, 300, 10), save("1.0", 20, 600, 10, total=50)),
        finished=True,
    )
    assert wall(facts) == {"untold": 300 + 390, "productive": 290, "stall": 20}


def test_a_save_whose_moment_is_not_known_still_made_the_training_wait() -> None:
    facts = run(
        records=(record(0, 0, 0, 1000),),
        attempts=(attempt("1.0", 0, 1000, "finished", (1, 100), (90, 1000)),),
        saves=(save("1.0", 10, None, 30), save("1.0", 20, None, 25)),
        finished=True,
    )
    assert wall(facts) == {"startup": 100, "productive": 845, "stall": 55}


def test_a_resumed_step_between_told_ones_has_its_moment_between_theirs() -> None:
    """A framework's own checkpoints: fleetctl knows which was resumed from, and not when it was saved."""
    facts = run(
        records=(record(0, 0, 0, 1000, state="FAILED"), record(1000, 1000, 1000, 2000)),
        attempts=(
            attempt("1.0", 0, 1000, "failed", (100, 100), (200, 900)),
            attempt("2.0", 1000, 2000, "finished", (151, 1100), (300, 2000), resume=150),
        ),
        checkpoints="lightning",
        finished=True,
    )
    assert wall(facts) == {"startup": 200, "productive": 400 + 900, "lost": 400, "hang": 100}
    assert wall_ledger(facts, AS_OF).estimated


def test_a_training_that_finds_its_own_checkpoint_resumed_where_it_told_its_first_step() -> None:
    facts = run(
        records=(record(0, 0, 0, 1000, state="FAILED"), record(1000, 1000, 1000, 2000)),
        attempts=(
            attempt("1.0", 0, 1000, "failed", (100, 100), (200, 1000)),
            attempt("2.0", 1000, 2000, "finished", (150, 1100), (300, 2000)),
        ),
        checkpoints="",
        finished=True,
    )
    assert wall(facts) == {"startup": 200, "productive": 450 + 900, "lost": 450}


def test_a_training_that_did_not_take_the_checkpoint_that_it_was_given_did_the_work_again() -> None:
    facts = run(
        records=(record(0, 0, 0, 1000, state="FAILED"), record(1000, 1000, 1000, 2000)),
        attempts=(
            attempt("1.0", 0, 1000, "failed", (1, 100), (91, 1000)),
            attempt("2.0", 1000, 2000, "finished", (1, 1100), (100, 2000), resume=60),
        ),
        saves=(save("1.0", 60, 690, 0),),
        finished=True,
    )
    assert wall(facts) == {"startup": 200, "lost": 900, "productive": 900}


def test_suspended_time_comes_from_the_productive_time_of_its_record_first() -> None:
    facts = run(
        records=(record(0, 0, 0, 1000, suspended=300),),
        attempts=(attempt("1.0", 0, 1000, "finished", (1, 100), (90, 1000)),),
        finished=True,
    )
    assert wall(facts) == {"startup": 100, "productive": 600, "suspended": 300}
    longer = replace(facts, records=(replace(facts.records[0], suspended_ms=950_000),))
    assert wall(longer) == {"startup": 50, "suspended": 950}
    absurd = replace(facts, records=(replace(facts.records[0], suspended_ms=5_000_000),))
    assert wall(absurd) == {"suspended": 1000}


def test_time_that_two_components_were_suspended_together_counts_once() -> None:
    """Of the 100 seconds of the second 90 are those of the first."""
    parts = (record(0, 0, 0, 1000, het_offset=0, suspended=500), record(0, 0, 900, 1100, het_offset=1, suspended=100))
    facts = run(records=parts, attempts=(attempt("1.0", 0, 1100, "finished", (1, 100), (90, 990)),), finished=True)
    assert wall(facts) == {"startup": 100, "productive": 390, "suspended": 510, "teardown": 100}


def test_the_components_of_a_hetjob_are_one_for_the_wall() -> None:
    parts = (record(0, 0, 10, 1000, het_offset=0, suspended=50), record(0, 0, 20, 1100, het_offset=1, suspended=50))
    facts = run(
        records=parts,
        attempts=(attempt("1.0", 30, 990, "finished", (1, 100), (90, 990)),),
        finished=True,
    )
    assert wall(facts) == {"queue": 10, "startup": 90, "productive": 840, "suspended": 50, "teardown": 110}


@pytest.mark.parametrize("skew", [-200, -90, 90, 200])
def test_a_node_whose_clock_is_wrong_moves_no_time_out_of_its_record(skew: float) -> None:
    told = attempt("1.0", 20 + skew, 990 + skew, "finished", (1, 100 + skew), (90, 900 + skew))
    facts = run(records=(record(0, 0, 10, 1000),), attempts=(told,), finished=True)
    found = wall(facts)
    assert sum(found.values()) == 1000
    assert found["queue"] == 10
    assert found["productive"] == min(1000, 900 + skew) - max(10, 100 + skew)


def test_attempts_find_their_own_records_when_clocks_differ_by_a_little() -> None:
    facts = run(
        records=(record(0, 0, 0, 500, state="FAILED"), record(500, 500, 510, 900)),
        attempts=(
            attempt("1.0", 20, 515, "failed", (1, 100), (50, 514)),
            attempt("2.0", 490, 880, "finished", (51, 530), (90, 880), resume=50),
        ),
        saves=(save("1.0", 50, 514, 0),),
        finished=True,
    )
    assert wall(facts) == {"startup": 100 + 20, "productive": 400 + 350, "queue": 10, "teardown": 20}


def test_an_attempt_without_a_record_stands_for_itself() -> None:
    facts = run(attempts=(attempt("1.0", 100, 1000, "finished", (1, 150), (90, 1000)),), finished=True)
    assert wall(facts) == {"queue": 100, "startup": 50, "productive": 850}


def test_an_open_record_counts_up_to_when_it_was_seen_alive_and_no_further() -> None:
    facts = run(records=(record(0, 0, 100, None, state="RUNNING", alive=600),))
    assert wall(facts) == {"queue": 100, "untold": 500}
    assert wall(run(records=(record(0, 0, 100, None, state="RUNNING"),))) == {"queue": 100}


def test_the_time_of_a_job_of_which_no_attempt_is_known_is_untold() -> None:
    """Its run folder could not be read, or its head came to nothing: nobody tells which."""
    facts = run(records=(record(0, 0, 0, 36_000),), finished=True)
    assert wall(facts) == {"untold": 36_000}


def test_what_slurm_forgot_while_it_waited_waited_until_then() -> None:
    facts = run(records=(record(0, 0, None, None, state="PENDING", purged=700),))
    assert wall(facts) == {"queue": 700}


def test_without_a_record_or_an_attempt_there_is_no_time() -> None:
    ledger = wall_ledger(run(), AS_OF)
    assert (ledger.wall_ms, seconds(ledger), ledger.ettr) == (0, {}, None)


def test_a_window_cuts_the_ledger_at_its_edges() -> None:
    facts = run(
        records=(record(0, 0, 100, 1000),),
        attempts=(attempt("1.0", 100, 1000, "finished", (1, 200), (90, 900)),),
        finished=True,
    )
    assert seconds(wall_ledger(facts, AS_OF, Window(T0 + 150, T0 + 300))) == {"startup": 50, "productive": 100}
    assert wall_ledger(facts, AS_OF, Window(T0 + 150, T0 + 300)).ettr == 100 / 150
    assert wall_ledger(facts, AS_OF, Window(T0 + 5000, T0 + 6000)).ettr is None


def test_a_requeued_run_whose_next_record_waits_is_in_the_queue_from_when_it_could_start() -> None:
    facts = run(
        records=(record(0, 0, 0, 500, state="REQUEUED"), record(500, 621, None, None, state="PENDING")),
        attempts=(attempt("1.0", 0, 500, "saved", (1, 100), (41, 500)),),
        saves=(save("1.0", 41, 500, 0),),
    )
    found = wall_ledger(facts, at(1000))
    assert seconds(found) == {"startup": 100, "productive": 400, "requeue": 121, "queue": 379}
    assert found.provisional


def test_a_clock_that_is_a_few_minutes_wrong_moves_an_attempt_out_of_no_record() -> None:
    facts = run(records=(record(0, 0, 0, 1000),), attempts=(attempt("1.0", 1020, 1050, "failed"),), finished=False)
    assert wall(facts) == {"startup": 1000}
    early = run(records=(record(0, 0, 100, 1000),), attempts=(attempt("1.0", 40, 80, "failed"),), finished=False)
    assert wall(early) == {"queue": 100, "teardown": 900}
    far = run(records=(record(0, 0, 0, 1000),), attempts=(attempt("1.0", 1320, 1350, "failed"),), finished=False)
    assert wall(far) == {"requeue": 320, "untold": 1000 + 30}


def test_an_attempt_that_began_late_in_its_record_belongs_to_it() -> None:
    facts = run(
        records=(record(0, 0, 0, 600, state="FAILED"), record(600, 600, 610, 700, state="FAILED")),
        attempts=(attempt("1.0", 500, 600, "failed", (1, 510), (10, 600)),),
        finished=True,
    )
    assert wall(facts) == {"startup": 510, "productive": 90, "queue": 10, "untold": 90}


def test_a_step_after_a_save_was_begun_when_the_save_let_the_training_go_on() -> None:
    """Steps 41 to 60 took the 200 seconds after the save of step 40."""
    facts = run(
        records=(record(0, 0, 0, 1000, state="FAILED"), record(1000, 1000, 1000, 2000)),
        attempts=(
            attempt("1.0", 0, 1000, "failed", (1, 100), (60, 800)),
            attempt("2.0", 1000, 2000, "finished", (51, 1100), (99, 2000), resume=50),
        ),
        saves=(save("1.0", 40, 500, 100),),
        finished=True,
    )
    assert wall(facts) == {"startup": 200, "productive": 400 + 100 + 900, "stall": 100, "lost": 100, "hang": 200}


def test_a_step_that_was_told_twice_was_left_at_the_second_time() -> None:
    facts = run(
        records=(record(0, 0, 0, 1000, state="FAILED"), record(1000, 1000, 1000, 2000)),
        attempts=(
            attempt("1.0", 0, 1000, "failed", (40, 100), (60, 800)),
            attempt("2.0", 1000, 2000, "finished", (51, 1100), (99, 2000), resume=50),
        ),
        saves=(save("1.0", 40, 500, 100),),
        finished=True,
    )
    assert wall(facts) == {"startup": 200, "productive": 400 + 100 + 900, "stall": 100, "lost": 100, "hang": 200}


def test_a_training_that_went_back_within_its_attempt_is_told_by_its_highest_steps() -> None:
    """Step 50, then 10 again, then 80: step 60 was done a third of the way from the first to the last."""
    facts = run(
        records=(record(0, 0, 0, 1000, state="FAILED"), record(1000, 1000, 1000, 2000)),
        attempts=(
            attempt("1.0", 0, 1000, "failed", (50, 100), (80, 1000)),
            attempt("2.0", 1000, 2000, "finished", (61, 1100), (99, 2000), resume=60),
        ),
        saves=(save("1.0", 10, 200, 0),),
        finished=True,
    )
    assert wall(facts) == {"startup": 200, "productive": 300 + 900, "lost": 600}


@pytest.mark.parametrize("more", [{"ending": "finished"}, {"ending": "failed", "done": True}])
def test_a_training_that_said_it_was_done_lost_nothing_though_nobody_knows_of_its_run(more: dict[str, object]) -> None:
    done = replace(attempt("1.0", 0, 1000, "", (1, 100), (90, 900)), **more)
    facts = run(records=(record(0, 0, 0, 1000),), attempts=(done,))
    assert wall(facts) == {"startup": 100, "productive": 800, "teardown": 100}
    assert wall_ledger(facts, AS_OF).provisional


def test_what_a_training_found_of_its_own_it_had_kept() -> None:
    """It went on at step 150 without fleetctl's help, then was cancelled: what it saved since nobody knows."""
    facts = run(
        records=(record(0, 0, 0, 1000, state="FAILED"), record(1000, 1000, 1000, 2000, state="CANCELLED")),
        attempts=(
            attempt("1.0", 0, 1000, "failed", (100, 100), (200, 1000)),
            attempt("2.0", 1000, 2000, "told", (150, 1100), (300, 2000)),
        ),
        checkpoints="",
        finished=False,
    )
    assert wall(facts) == {"startup": 200, "productive": 450, "lost": 450, "untold": 900}


@pytest.mark.parametrize("more", [{"ending": "finished"}, {"ending": "saved"}, {"ending": "told", "done": True}])
def test_an_end_of_its_own_may_take_as_long_as_it_likes(more: dict[str, object]) -> None:
    ended = replace(attempt("1.0", 0, 2000, "", (1, 100), (90, 1000)), **more)
    facts = run(records=(record(0, 0, 0, 2000),), attempts=(ended,), finished=True)
    assert wall(facts) == {"startup": 100, "productive": 900, "teardown": 1000}


def test_a_head_that_died_with_its_node_hung_until_another_took_over() -> None:
    facts = run(
        records=(record(0, 0, 0, 1000),),
        attempts=(
            attempt("1.0", 0, None, "", (1, 100), (40, 500)),
            attempt("1.1", 560, 1000, "finished", (41, 600), (90, 1000), resume=40),
        ),
        saves=(save("1.0", 40, 500, 0),),
        finished=True,
    )
    assert wall(facts) == {"startup": 100 + 40, "productive": 400 + 400, "hang": 60}
    assert costs(facts) == [("1.0", "", 60, 40, 0)]


def test_the_restart_of_an_attempt_that_still_starts_is_not_known_yet() -> None:
    facts = run(
        records=(record(0, 0, 0, 500, state="FAILED"), record(500, 500, 500, None, state="RUNNING", alive=900)),
        attempts=(attempt("1.0", 0, 500, "failed", (1, 100), (41, 500)), attempt("2.0", 510, None, resume=41)),
        saves=(save("1.0", 41, 500, 0),),
    )
    assert wall(facts) == {"startup": 100 + 400, "productive": 400}
    assert costs(facts) == [("1.0", "", 0, None, 0)]
