"""A sync over accounting in memory: steps, and what it does where Slurm tells less than all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import update

from fleetctl.accounting import tables
from fleetctl.accounting.database import open_database
from fleetctl.accounting.model import Window
from fleetctl.accounting.read_usage import read_usage
from fleetctl.accounting.usage import By
from fleetctl.errors import CannotTell, SlurmUnreachable
from tests.accounting_books import NOW_S, job, step
from tests.unit.accounting.sync_world import World

HOUR, DAY = 3600, 86_400
FAILED = {"State": "FAILED", "ExitCode": "1:0"}
NO_GPUS = {"AllocTRES": "billing=8,cpu=16,mem=1024M,node=2"}


@pytest.fixture
def world() -> Iterator[World]:
    engine = open_database("sqlite://", create=True)
    yield World(engine)
    engine.dispose()


def test_steps_are_read_by_job_id_for_what_did_not_end_well(world: World) -> None:
    failed = job(1, NOW_S - 9 * DAY, NOW_S - HOUR, State="FAILED", ExitCode="1:0")
    well = job(2, NOW_S - HOUR, NOW_S - 60)
    world.books.rows = [failed, well]
    world.books.step_rows = [step(failed, "batch"), step(failed, "0", State="CANCELLED", ExitCode="0:11")]
    world.books.step_rows += [step(well, "batch")]
    assert world.sync().steps == 2
    assert [call for call in world.books.calls if call[0] == "steps"] == [("steps", (1,), NOW_S - 9 * DAY)]
    found = {row["step"]: (row["state"], row["exit_signal"]) for row in world.rows(tables.steps)}
    assert found == {"batch": ("FAILED", 0), "0": ("CANCELLED", 11)}
    world.books.calls.clear()
    world.sync(later_s=60)
    assert not any(call[0] == "steps" for call in world.books.calls)
    assert world.sync(all_steps=True).steps == 1
    assert len(world.rows(tables.steps)) == 3


def test_steps_that_trail_their_record_are_asked_for_again_and_then_no_more(world: World) -> None:
    row = job(1, NOW_S - HOUR, NOW_S - 60, State="FAILED", ExitCode="1:0")
    world.books.rows = [row]
    assert world.sync().steps == 0
    world.books.step_rows = [step(row, "batch")]
    assert world.sync(later_s=60).steps == 1
    world.books.rows.append(job(2, NOW_S - HOUR, NOW_S - 60, State="FAILED", ExitCode="1:0"))
    world.sync(later_s=60)
    world.sync(later_s=600)
    calls = len(world.books.calls)
    world.sync(later_s=60)
    assert not any(call[0] == "steps" for call in world.books.calls[calls:])


def test_steps_of_an_other_attempt_of_the_same_job_stay_with_it(world: World) -> None:
    first = job(1, NOW_S - 5 * HOUR, NOW_S - 4 * HOUR, State="FAILED", ExitCode="1:0")
    second = job(1, NOW_S - 4 * HOUR, NOW_S - HOUR)
    world.books.rows = [first, second]
    world.books.step_rows = [step(first, "batch"), step(second, "batch")]
    assert world.sync().steps == 1
    assert [row["state"] for row in world.rows(tables.steps)] == ["FAILED"]


def test_steps_that_slurm_does_not_tell_fail_nothing_and_are_asked_for_again(world: World) -> None:
    row = job(1, NOW_S - 2 * HOUR, NOW_S - HOUR, State="FAILED", ExitCode="1:0")
    world.books.rows, world.books.step_rows = [row], [step(row, "batch")]
    world.books.trouble["steps"] = SlurmUnreachable("no answer")
    assert world.sync().state.to_s == NOW_S
    assert any("steps" in note for note in world.notes)
    world.books.trouble = {}
    assert world.sync(later_s=60).steps == 1


@pytest.mark.parametrize("state", ["TIMEOUT", "PREEMPTED", "REQUEUED", "NODE_FAIL", "OUT_OF_MEMORY", "CANCELLED by 7"])
def test_steps_are_not_read_where_the_record_says_it_all(world: World, state: str) -> None:
    row = job(1, NOW_S - HOUR, NOW_S - 1200, State=state, ExitCode="0:15")
    world.books.rows, world.books.step_rows = [row], [step(row, "batch")]
    assert world.sync().steps == 0
    assert world.asked("steps") == []
    assert world.sync(all_steps=True).steps == 1


def test_a_cause_is_told_by_the_steps_and_stays_so_when_the_row_changes(world: World) -> None:
    row = job(1, NOW_S - 3 * HOUR, NOW_S - HOUR, **FAILED)
    world.books.rows = [row]
    world.books.step_rows = [step(row, "batch"), step(row, "0", State="CANCELLED", ExitCode="0:11")]
    world.sync()
    assert world.record(1)["cause"] == "crash"
    world.books.rows, world.books.step_rows = [{**row, "Comment": "seen"}], []  # purged meanwhile
    world.sync(later_s=60)
    assert (world.record(1)["comment"], world.record(1)["cause"]) == ("seen", "crash")
    assert len(world.rows(tables.steps)) == 2
    calls = len(world.asked("steps"))
    world.sync(later_s=60)
    assert len(world.asked("steps")) == calls


@pytest.mark.parametrize("partial", ["extern", "batch"])
def test_steps_that_were_told_by_half_are_asked_for_again(world: World, partial: str) -> None:
    row = job(1, NOW_S - HOUR, NOW_S - 5, **FAILED)
    going_on = {"State": "RUNNING", "End": "Unknown"} if partial == "batch" else {}
    world.books.rows, world.books.step_rows = [row], [step(row, partial, **going_on)]
    assert world.sync().steps == 1
    world.books.step_rows = [step(row, "extern"), step(row, "batch"), step(row, "0", ExitCode="0:11")]
    assert world.sync(later_s=60).steps == 3
    assert world.record(1)["cause"] == "crash"
    assert world.sync(later_s=60).steps == 0


def test_steps_that_are_never_answered_keep_no_others_back(world: World) -> None:
    world.books.rows = [job(n, NOW_S - 5 * HOUR + n, NOW_S - HOUR, **FAILED) for n in range(1, 601)]
    world.books.step_rows = [step(row, "batch") for row in world.books.rows]
    world.books.poison = frozenset({1, 2, 300})
    assert world.sync().steps == 597
    assert [note for note in world.notes if "not all steps" in note and "3 of 600 records" in note]
    assert len(world.asked("steps")) < 60
    world.books.poison = frozenset()
    assert world.sync(later_s=60).steps == 3


def test_a_slurm_that_answers_nothing_is_not_asked_about_every_record(world: World) -> None:
    world.books.rows = [job(n, NOW_S - 5 * HOUR + n, NOW_S - HOUR, **FAILED) for n in range(1, 601)]
    world.books.trouble["steps"] = SlurmUnreachable("no answer")
    assert world.sync().steps == 0
    assert len(world.asked("steps")) == 12
    assert any("600 of 600 records: no answer" in note for note in world.notes)


def test_of_records_that_lie_too_far_back_for_a_question_the_younger_are_asked_for(world: World) -> None:
    world.books.rows = [job(n, NOW_S - 9 * DAY + n * HOUR, None) for n in range(1, 41)]
    world.sync()
    world.sync(later_s=5 * HOUR)
    world.books.rows = [job(n, NOW_S - 9 * DAY + n * HOUR, NOW_S + 60) for n in range(1, 41)]
    world.books.widest_s = 9 * DAY + 5 * HOUR - 21 * HOUR
    synced = world.sync()
    assert (synced.counts.changed, synced.purged) == (20, 0)
    assert any("20 of 40 records" in note for note in world.notes)


def test_a_job_that_started_after_the_sync_began_is_not_confirmed_before_its_start(world: World) -> None:
    world.books.rows, world.books.running = [job(1, NOW_S - 30, None)], {1}
    world.sync()
    assert world.record(1)["alive_s"] is None
    world.sync(later_s=60)
    assert world.record(1)["alive_s"] == NOW_S + 60


def test_no_record_holds_less_than_nothing(world: World) -> None:
    world.books.rows = [job(1, NOW_S - HOUR, None)]
    world.sync()
    with world.engine.begin() as connection:
        connection.execute(update(tables.job_records).values(alive_s=NOW_S - 2 * HOUR))
        (bucket,) = read_usage(connection, Window(NOW_S - DAY, NOW_S), (By.ACCOUNT,), (1,))
    assert bucket.gpu_seconds == 0


@pytest.mark.parametrize("silent", [True, False])
def test_what_a_clock_that_was_ahead_confirmed_is_taken_back(world: World, silent: bool) -> None:
    world.books.rows, world.books.running = [job(1, NOW_S - HOUR, None)], {1}
    world.sync(later_s=300 * DAY)
    world.clock.now_s, world.books.running = NOW_S, set()
    if silent:
        world.books.trouble["alive"] = CannotTell("no answer")
    world.sync()
    assert world.record(1)["alive_s"] == NOW_S


def test_one_look_at_which_no_record_waits_is_enough(world: World) -> None:
    world.sync()
    world.books.waits = 2

    def drain(_: int) -> None:
        world.books.waits = 0 if len(world.asked("waiting")) == 5 else 2

    world.books.before_reply = drain
    world.books.calls.clear()
    state = world.sync(later_s=HOUR).state
    assert (state.to_s, state.waiting) == (NOW_S + HOUR, 0)
    assert world.clock.now_s == NOW_S + HOUR + 8


def test_history_that_was_read_without_others_jobs_is_read_anew(world: World) -> None:
    mine, others = job(1, NOW_S - 60 * DAY, NOW_S - 59 * DAY), {"User": "bea"}
    world.books.rows, world.books.shows_all = [mine], False
    world.books.rows += [job(2, NOW_S - 60 * DAY, NOW_S - 59 * DAY, **others), job(3, NOW_S - 9 * DAY, None, **others)]
    world.sync(since_s=NOW_S - 100 * DAY)
    assert world.raw_ids() == [1]
    world.books.shows_all = True
    world.books.trouble["records"] = SlurmUnreachable("no answer")
    with pytest.raises(SlurmUnreachable):
        world.sync(later_s=60)
    assert world.state()["sees_all"] == 0
    world.books.trouble = {}
    world.sync(later_s=60)
    assert (world.raw_ids(), world.state()["sees_all"]) == ([1, 2, 3], 1)
    world.books.calls.clear()
    world.sync(later_s=60)
    assert len(world.books.windows()) == 1


@pytest.mark.parametrize(("tracked", "gpus"), [(True, 0), (False, None), (None, None)])
def test_where_slurm_does_not_count_gpus_they_are_not_known(
    world: World, tracked: bool | None, gpus: int | None
) -> None:
    world.books.rows, world.books.tracked = [job(1, NOW_S - HOUR, NOW_S - 60, **NO_GPUS)], tracked
    synced = world.sync()
    assert (world.record(1)["gpus"], synced.gpus_known) == (gpus, tracked is True)
    assert any("AccountingStorageTRES has no gres/gpu" in note for note in world.notes) is (tracked is False)


def test_where_records_told_of_gpus_a_silent_controller_changes_nothing(world: World) -> None:
    world.books.rows = [job(1, NOW_S - HOUR, NOW_S - 60)]
    world.sync()
    world.books.rows.append(job(2, NOW_S - HOUR, NOW_S - 60, **NO_GPUS))
    world.books.trouble["tracks_gpus"] = CannotTell("no answer")
    world.sync(later_s=60)
    assert (world.record(1)["gpus"], world.record(2)["gpus"]) == (8, 0)
