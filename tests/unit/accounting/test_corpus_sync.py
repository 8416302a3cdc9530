"""Public bug reports about collecting Slurm's records again and again, each with the right value."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleetctl.accounting import tables
from fleetctl.accounting.database import open_database
from fleetctl.accounting.model import Window
from fleetctl.accounting.read_usage import read_usage
from fleetctl.accounting.usage import By, by_key
from fleetctl.errors import SlurmUnreachable
from tests.accounting_books import NOW_S, job, step
from tests.unit.accounting.sync_world import World

HOUR, DAY = 3600, 86_400


@pytest.fixture
def world() -> Iterator[World]:
    engine = open_database("sqlite://", create=True)
    yield World(engine)
    engine.dispose()


def gpu_seconds(world: World, since_s: int = 0) -> dict[str | None, object]:
    """By user, up to a year after now."""
    with world.engine.connect() as connection:
        buckets = read_usage(connection, Window(since_s, NOW_S + 365 * DAY), (By.USER,), [1])
    return {usage.keys[0]: usage.gpu_seconds for usage in by_key(buckets, (By.USER,))}


def test_rocm_spur_398_a_job_id_that_is_given_out_again_keeps_both_owners(world: World) -> None:
    world.books.rows = [job(7, NOW_S - 9 * DAY, NOW_S - 9 * DAY + 60 + HOUR)]
    world.sync()
    world.books.rows.append(job(7, NOW_S - HOUR, None, User="bob"))
    world.books.running = {7}
    world.sync(later_s=HOUR)
    assert gpu_seconds(world) == {"ann": 8 * HOUR, "bob": 8 * (2 * HOUR - 60)}


def test_auditor_178_what_sacct_shows_again_counts_once(world: World) -> None:
    world.books.rows = [job(1, NOW_S - 2 * HOUR, NOW_S - 60)]  # its end is within the overlap of every sync
    for _ in range(3):
        world.sync()
    assert len(world.rows(tables.job_records)) == 1
    assert gpu_seconds(world) == {"ann": 8 * (2 * HOUR - 120)}


def test_auditor_1348_a_sacct_that_failed_is_an_error_and_the_time_is_read_again(world: World) -> None:
    world.sync()
    world.books.rows = [job(1, NOW_S, NOW_S + 600)]
    world.books.trouble = {"records": SlurmUnreachable("sacct: error: Problem talking to the database")}
    with pytest.raises(SlurmUnreachable):
        world.sync(later_s=5 * HOUR)
    world.books.trouble = {}
    world.sync(later_s=5 * HOUR)
    assert world.raw_ids() == [1]


def test_noaa_rocoto_38_a_job_that_ended_before_midnight_is_there(world: World) -> None:
    """Also reframe-hpc/reframe#1083: sacct alone begins at midnight."""
    midnight = NOW_S - NOW_S % DAY
    world.books.rows = [job(1, midnight - HOUR, midnight - 1)]
    world.sync()
    assert world.raw_ids() == [1]


def test_mflowcode_mfc_1311_a_preempted_attempt_is_not_the_end_of_its_job(world: World) -> None:
    world.books.rows = [job(1, NOW_S - 9 * HOUR, NOW_S - 5 * HOUR, State="PREEMPTED"), job(1, NOW_S - 5 * HOUR, None)]
    world.sync()
    world.books.rows[1] = job(1, NOW_S - 5 * HOUR, NOW_S + HOUR)
    world.sync(later_s=2 * HOUR)
    states = sorted((row["submitted_s"], row["state"]) for row in world.rows(tables.job_records))
    assert [state for _, state in states] == ["PREEMPTED", "COMPLETED"]


def test_aws_parallelcluster_3671_a_record_that_never_ends_does_not_grow_for_ever(world: World) -> None:
    world.books.rows = [job(1, NOW_S - HOUR - 60, None)]
    world.books.running = {1}
    world.sync()
    world.books.running = set()  # it ended, and the record of that was dropped (MaxDBDMsgs)
    for _ in range(3):
        world.sync(later_s=30 * DAY)
    assert gpu_seconds(world) == {"ann": 8 * HOUR}


def test_acorg_slurm_pipeline_45_no_more_ids_are_asked_for_at_once_than_sacct_answers(world: World) -> None:
    rows = [job(n, NOW_S - 2 * HOUR, NOW_S - HOUR, State="FAILED", ExitCode="1:0") for n in range(1, 1_302)]
    world.books.rows, world.books.step_rows = list(rows), [step(row, "0") for row in rows]
    world.sync()
    asked = [call[1] for call in world.asked("steps")]
    assert all(isinstance(ids, tuple) and len(ids) <= 500 for ids in asked)
    assert len(world.rows(tables.steps)) == len(rows)


def test_nordichpc_slurm2sql_15_a_row_that_cannot_be_read_stops_no_sync(world: World) -> None:
    poison = job(2, NOW_S - 2 * HOUR, NOW_S - HOUR, ExitCode="poison")
    world.books.rows = [job(1, NOW_S - 2 * HOUR, NOW_S - HOUR), poison, job(3, NOW_S - 2 * HOUR, NOW_S - HOUR)]
    world.sync()
    world.books.rows.append(job(4, NOW_S, NOW_S + 60))
    world.sync(later_s=60)
    assert world.raw_ids() == [1, 3, 4]
    assert len(world.rows(tables.quarantine)) == 1
