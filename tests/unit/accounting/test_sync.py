"""A sync over accounting in memory: what it reads, marks and leaves for the next time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fleetctl.accounting import bulk, tables
from fleetctl.accounting.database import open_database
from fleetctl.accounting.plan import Policy
from fleetctl.accounting.sync_missing import ask_for_runs
from fleetctl.accounting.write_records import Counts
from fleetctl.errors import CannotTell, SlurmRefused, SlurmUnreachable
from tests.accounting_books import NOW_S, job
from tests.accounting_dump import dump
from tests.unit.accounting.sync_world import World

HOUR, DAY = 3600, 86_400


@pytest.fixture
def world() -> Iterator[World]:
    engine = open_database("sqlite://", create=True)
    yield World(engine)
    engine.dispose()


def test_the_first_sync_reads_35_days_and_says_up_to_when(world: World) -> None:
    ages = (HOUR, 10 * DAY, 34 * DAY, 36 * DAY)
    world.books.rows = [job(n, NOW_S - age - HOUR, NOW_S - age) for n, age in enumerate(ages, 1)]
    synced = world.sync()
    assert world.raw_ids() == [1, 2, 3]
    assert (synced.state.from_s, synced.state.to_s, synced.is_first) == (NOW_S - 35 * DAY, NOW_S, True)
    assert world.state()["synced_s"] == NOW_S
    world.sync(since_s=NOW_S - 40 * DAY)
    assert world.raw_ids() == [1, 2, 3, 4]


def test_a_second_sync_with_nothing_new_changes_no_fact_and_one_row_of_its_own(world: World) -> None:
    world.books.rows = [job(n, NOW_S - n * HOUR, NOW_S - n * HOUR + 600) for n in range(1, 20)]
    world.sync()
    before = dump(world.engine)
    with world.engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
    changes = driver.total_changes
    synced = world.sync(later_s=60)
    assert driver.total_changes - changes <= 2  # sync_state: the watermark, and the end of the sync
    assert (synced.counts.new, synced.counts.changed, synced.windows) == (0, 0, 1)
    assert dump(world.engine) == before


def test_a_record_that_arrives_late_appears_with_the_next_sweep(world: World) -> None:
    world.sync()
    world.books.rows = [job(1, NOW_S - 9 * HOUR, NOW_S - 3 * HOUR)]
    world.sync(later_s=HOUR)
    assert world.raw_ids() == []  # it ended before the overlap
    world.sync(later_s=DAY)
    assert world.raw_ids() == [1]


def test_a_record_that_was_open_and_ended_long_before_the_watermark_is_asked_for_by_its_id(world: World) -> None:
    world.books.rows = [job(1, NOW_S - 9 * HOUR, None)]
    world.sync()
    world.clock.now_s += 5 * HOUR
    world.sync()
    world.books.rows = [job(1, NOW_S - 9 * HOUR, NOW_S + 60), job(2, NOW_S - 9 * HOUR, NOW_S - 8 * HOUR, JobID="1")]
    synced = world.sync()
    assert world.record(1)["ended_s"] == NOW_S + 60
    assert world.raw_ids() == [1]  # others of the same job are no answer to the question
    assert synced.purged == 0


def test_an_open_record_that_slurm_forgot_is_marked_once_and_unmarked_when_it_comes_back(world: World) -> None:
    row = job(1, NOW_S - 9 * HOUR, None)
    world.books.rows = [row]
    world.sync()
    world.books.rows = []
    assert world.sync(later_s=60).purged == 1
    assert world.record(1)["purged_s"] == NOW_S + 60
    calls = len(world.books.calls)
    assert world.sync(later_s=60).purged == 0
    assert "records_of" not in {call[0] for call in world.books.calls[calls:]}
    world.books.rows = [row]
    world.sync(later_s=60)
    assert world.record(1)["purged_s"] is None


@pytest.mark.parametrize("sees_all", [False, None])
def test_where_slurm_hides_others_jobs_theirs_are_not_taken_for_forgotten(world: World, sees_all: bool | None) -> None:
    world.books.rows = [job(1, NOW_S - HOUR, None), job(2, NOW_S - HOUR, None, User="bea")]
    world.sync()
    world.books.rows, world.books.shows_all = [], sees_all
    assert world.sync(later_s=60).purged == 1
    assert world.record(1)["purged_s"] is not None
    assert world.record(2)["purged_s"] is None
    assert world.state()["sees_all"] == sees_all
    assert any("PrivateData" in note for note in world.notes) is (sees_all is False)


@pytest.mark.parametrize("started_ago_s", [29 * DAY, 60])
def test_open_records_count_as_alive_only_while_the_controller_has_them(world: World, started_ago_s: int) -> None:
    runaway = job(1, NOW_S - 30 * DAY, None, Start=str(NOW_S - started_ago_s))
    world.books.rows = [
        runaway,
        job(1, NOW_S - HOUR, None),
        job(2, NOW_S - HOUR, None),
        job(3, NOW_S - HOUR, NOW_S - 60),
    ]
    world.books.running = {1, 2, 3}
    world.sync()
    alive = {row["submitted_s"]: row["alive_s"] for row in world.rows(tables.job_records) if row["raw_id"] == 1}
    assert alive == {NOW_S - 30 * DAY: None, NOW_S - HOUR: NOW_S}  # an id that was given out again
    assert (world.record(2)["alive_s"], world.record(3)["alive_s"]) == (NOW_S, None)
    world.books.running = {1}
    world.sync(later_s=60)
    assert world.record(2)["alive_s"] == NOW_S


def test_where_the_controller_is_silent_what_it_said_before_stays(world: World) -> None:
    world.books.rows, world.books.running = [job(2, NOW_S - HOUR, None)], {2}
    world.sync()
    world.books.trouble["alive"] = SlurmUnreachable("no answer")
    world.books.rows = [job(2, NOW_S - HOUR, None, Comment="an open record, edited")]
    assert world.sync(later_s=60).counts.changed == 1
    assert world.record(2)["alive_s"] == NOW_S
    assert any("not known which jobs run" in note for note in world.notes)


@pytest.mark.parametrize("silent", [True, False])
def test_records_that_wait_in_slurmctld_hold_the_watermark_back(world: World, silent: bool) -> None:
    world.sync()
    if silent:
        world.books.trouble["waiting"] = CannotTell("sdiag: the reply is short")
    world.books.waits = 3
    world.books.rows = [job(1, NOW_S - HOUR, NOW_S - 60)]
    world.sync(later_s=2 * HOUR)
    state = world.state()
    assert (state["to_s"], state["waiting"]) == (NOW_S, None if silent else 3)
    assert world.raw_ids() == [1]
    world.books.trouble, world.books.waits = {}, 0
    world.books.rows.append(job(2, NOW_S - HOUR, NOW_S - 30))  # what had waited
    world.sync(later_s=60)
    assert world.raw_ids() == [1, 2]
    assert world.state()["to_s"] == world.clock.now_s


def test_a_sacct_that_fails_moves_nothing(world: World) -> None:
    world.sync()
    before = world.state()
    world.books.trouble["records"] = SlurmUnreachable("slurmdbd does not answer")
    with pytest.raises(SlurmUnreachable):
        world.sync(later_s=HOUR)
    assert world.state() == before


def test_a_refusal_that_is_not_about_the_width_is_an_error_at_once(world: World) -> None:
    world.books.trouble["records"] = SlurmRefused(1, "sacct: error: Access/permission denied")
    with pytest.raises(SlurmRefused, match="permission"):
        world.sync()
    assert len(world.books.windows()) == 1


def test_a_window_that_is_too_wide_is_halved_until_it_fits(world: World) -> None:
    world.books.rows = [job(n, NOW_S - n * DAY, NOW_S - n * DAY + 600) for n in range(1, 30)]
    world.books.widest_s = 7 * HOUR
    world.sync()
    assert world.raw_ids() == list(range(1, 30))
    assert world.state()["from_s"] == NOW_S - 35 * DAY


def test_a_back_fill_that_was_interrupted_goes_on_where_it_was(world: World) -> None:
    world.books.rows = [job(n, NOW_S - n * DAY, NOW_S - n * DAY + 600) for n in range(1, 30)]

    def stop(call: int) -> None:
        if call == 8:  # of the windows
            raise KeyboardInterrupt

    world.books.before_reply = stop
    with pytest.raises(KeyboardInterrupt):
        world.sync()
    first = world.state()
    assert NOW_S - 35 * DAY < first["from_s"] < NOW_S - DAY
    world.books.before_reply = lambda call: None
    world.books.calls.clear()
    world.sync()
    assert world.raw_ids() == list(range(1, 30))
    assert world.books.windows()[1][1] == first["from_s"]


def test_a_damaged_reply_holds_the_watermark_back_and_one_that_stays_so_does_not(world: World) -> None:
    world.sync()
    world.books.unframed = ("half a row",)
    world.sync(later_s=60)
    assert world.state()["to_s"] == NOW_S
    assert any("quarantine" in note for note in world.notes)
    world.sync(later_s=60)
    assert world.state()["to_s"] == NOW_S + 120
    assert len(world.rows(tables.quarantine)) == 1


def test_when_the_clock_jumps_nothing_is_left_out(world: World) -> None:
    world.sync()
    world.clock.now_s = NOW_S + 3 * DAY  # wrongly
    world.sync()
    world.clock.now_s = NOW_S + 5 * HOUR
    world.books.rows = [job(1, NOW_S + 60, NOW_S + HOUR)]
    world.sync()
    assert world.raw_ids() == [1]
    world.clock.now_s = NOW_S - DAY
    world.sync()
    world.clock.now_s = NOW_S + 6 * HOUR
    world.books.rows.append(job(2, NOW_S + 60, NOW_S + 2 * HOUR))
    world.sync()
    assert world.raw_ids() == [1, 2]
    assert world.state()["to_s"] == NOW_S + 6 * HOUR


def test_jobs_of_runs_that_were_never_eligible_are_asked_for_by_id(world: World) -> None:
    held = job(9, NOW_S - HOUR, NOW_S - 60, State="CANCELLED by 1000", Eligible="Unknown", Start="None")
    world.books.rows = [held, job(10, NOW_S - HOUR, NOW_S - 60)]
    cluster = world.sync().cluster
    assert world.raw_ids() == [10]
    columns = ("run_id", "cluster", "job_id", "user", "since_s")
    wanted = [("r-1", "stub", job_id, "ann", NOW_S - HOUR) for job_id in (9, 10)]
    elsewhere = ("r-2", "other", 11, "ann", NOW_S - HOUR)
    with world.engine.begin() as connection:
        bulk.insert(connection, tables.run_jobs, columns, [*wanted, elsewhere])
    counts = ask_for_runs(
        world.engine, world.books, cluster, NOW_S, NOW_S - DAY, gpus_known=True, unknown=world.notes.append
    )
    assert counts == Counts(new=1)
    assert world.books.calls[-1] == ("records_of", (9,), NOW_S - HOUR)
    assert world.record(9)["eligible_s"] is None


def test_memory_stays_bounded_when_replies_are_large(world: World) -> None:
    world.books.rows = [job(n, NOW_S - n * 600, NOW_S - n * 600 + 60) for n in range(1, 2000)]
    world.sync(policy=Policy(many_rows=200))
    assert len(world.raw_ids()) == 1999
    assert max(world.replies) <= 400


def test_open_records_in_every_reply_do_not_make_windows_ever_narrower(world: World) -> None:
    world.books.rows = [job(n, NOW_S - 40 * DAY, None) for n in range(1, 300)]
    world.sync(policy=Policy(many_rows=200, least_chunk_s=HOUR))
    assert len(world.books.windows()) < 10
