"""What of the database belongs to which run and which element."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.engine import Engine

from fleetctl.accounting import tables
from fleetctl.accounting.database import open_database
from fleetctl.accounting.model import Window
from fleetctl.accounting.read_runs import find_run, find_runs, read_runs
from fleetctl.accounting.run_facts import InterruptionFacts, RunFacts
from fleetctl.errors import RunUnknown
from tests.unit.accounting import runs_told
from tests.unit.accounting.run_rows import (
    T0,
    put,
    put_attempt,
    put_cluster,
    put_crashed,
    put_job,
    put_record,
    put_run,
)

EVER = Window(T0 - 1_000_000, T0 + 10_000_000)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{tmp_path}/a.db", create=True)
    yield engine
    engine.dispose()


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        put_cluster(connection, 1, "c")
        put_cluster(connection, 2, "d")
        yield connection


def records_of(found: tuple[RunFacts, ...]) -> dict[tuple[str, int], list[str]]:
    return {(one.run_id, one.task): [record.record for record in one.records] for one in found}


def test_a_run_is_read_with_all_that_is_known_of_it(connection: Connection) -> None:
    put_crashed(connection)
    (facts,) = read_runs(connection, (), EVER, ("c",))
    assert runs_told.wall(facts)["lost"] == 290
    assert facts.finished is True
    assert (facts.name, facts.user, facts.cluster, facts.nodes, facts.checkpoints) == ("train", "ada", "c", 2, "own")
    assert facts.interruptions == (InterruptionFacts((1, 0), (T0 + 1090) * 1000, "gpu", False),)


def test_a_job_id_that_slurm_gave_out_again_is_that_of_the_newer_run(connection: Connection) -> None:
    for run_id, since in (("old", 0), ("new", 500)):
        put_run(connection, run_id)
        put_job(connection, run_id, 7, since=since)
    put_record(connection, 1, 7, (-100, 0, 10, 20))  # before either
    put_record(connection, 2, 7, (10, 10, 20, 30))
    put_record(connection, 3, 7, (600, 600, 610, 620))
    put_record(connection, 4, 7, (600, 600, 610, 620), user="bob")
    put_record(connection, 5, 7, (600, 600, 610, 620), cluster_id=2)
    put_record(connection, 6, 8, (600, 600, 610, 620))
    assert records_of(read_runs(connection, (), None, ("c",))) == {("new", -1): ["3"], ("old", -1): ["2"]}


def test_elements_of_a_sweep_have_their_own_records_and_share_what_has_not_started(connection: Connection) -> None:
    put_run(connection, "s", kind="sweep", tasks=4)
    put_job(connection, "s", 7)
    put_record(connection, 1, 7, (0, 0, 10, 20), array_index=0)
    put_record(connection, 2, 7, (0, 0, 15, 25), array_index=1)
    put_record(connection, 3, 7, (0, 0, None, None), pending_tasks="2-3%2")
    put_attempt(connection, "s", "1.0", 12, 20, task=0)
    found = read_runs(connection, (), EVER, ("c",))
    assert records_of(found) == {("s", 0): ["1"], ("s", 1): ["2"], ("s", 2): ["3"], ("s", 3): ["3"]}
    assert [len(one.attempts) for one in found] == [1, 0, 0, 0]


def test_a_run_that_failed_and_waits_in_slurm_again_is_not_over(connection: Connection) -> None:
    for run_id, job, ended in (("a", 7, 30), ("b", 8, None)):
        put_run(connection, run_id, finished=0)
        put_job(connection, run_id, job)
        put_record(connection, job, job, (0, 0, 20 if ended else None, ended))
    assert [one.finished for one in read_runs(connection, (), EVER, ("c",))] == [False, None]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (Window(T0, T0 + 50), {"early", "open", "tried"}),
        (Window(T0 + 100, T0 + 200), {"open"}),
        (Window(T0 - 100, T0), set()),
        (Window(T0 + 99, T0 + 100), {"early", "open"}),
    ],
)
def test_runs_of_a_window_are_those_with_time_in_it(connection: Connection, window: Window, expected: set[str]) -> None:
    for number, (run_id, ended) in enumerate((("early", 100), ("open", None)), 1):
        put_run(connection, run_id)
        put_job(connection, run_id, number)
        put_record(connection, number, number, (0, 0, 10, ended))
    put_run(connection, "tried")
    put_attempt(connection, "tried", "1.0", 10, 90)
    put_run(connection, "elsewhere", cluster="d")
    put_attempt(connection, "elsewhere", "1.0", 10, 90)
    assert {one.run_id for one in read_runs(connection, (), window, ("c",))} == expected


def test_a_named_run_is_read_whatever_the_window(connection: Connection) -> None:
    put_run(connection, "never")
    (facts,) = read_runs(connection, ("never",), Window(T0 + 5, T0 + 6), ())
    assert (facts.run_id, facts.task, facts.records, facts.attempts) == ("never", -1, (), ())


def test_the_number_of_queries_is_the_same_however_many_runs(engine: Engine, connection: Connection) -> None:
    asked: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda _c, _u, statement, *_: asked.append(statement))
    counts = []
    for number in range(1, 61):
        put_run(connection, f"r{number}")
        put_job(connection, f"r{number}", number)
        put_record(connection, number, number, (0, 0, 10, 20))
        if number in (1, 60):
            asked.clear()
            assert len(read_runs(connection, (), EVER, ("c",))) == number
            counts.append(len(asked))
    assert counts == [5, 5]


def test_a_run_is_found_by_its_id_its_job_or_the_start_of_its_id(connection: Connection) -> None:
    for run_id, job in (("train-a1", 7), ("train-a12", 8), ("other_%", 9)):
        put_run(connection, run_id)
        put_job(connection, run_id, job)
    assert find_run(connection, "train-a1") == "train-a1"
    assert find_run(connection, "8") == "train-a12"
    assert find_run(connection, "oth") == "other_%"
    assert find_run(connection, "other_%") == "other_%"
    for wanted, why in (
        ("train", "several runs: train-a1, train-a12"),
        ("%", "no run '%'"),
        ("", "no run ''"),
        ("99", "no"),
    ):
        with pytest.raises(RunUnknown, match=why):
            find_run(connection, wanted)


def test_causes_that_nobody_ranked_are_none(connection: Connection) -> None:
    put_run(connection, "r")
    for major, causes in ((1, ""), (2, "[]")):
        values = {"run_id": "r", "task": -1, "major": major, "minor": 0, "causes": causes}
        put(connection, tables.interruptions, **values)
    put_attempt(connection, "r", "1.0", 0, 10)
    (facts,) = read_runs(connection, ("r",), None, ())
    assert [one.cause for one in facts.interruptions] == ["", ""]


def test_records_are_known_up_to_the_last_sync_and_without_one_not_at_all(connection: Connection) -> None:
    put_cluster(connection, 8, "synced", synced=500)
    put_cluster(connection, 9, "never", synced=None)
    for name in ("synced", "never"):
        put_run(connection, f"{name}-1", cluster=name)
    found = find_runs(connection, (), None, ("synced", "never"))
    assert found.as_of_ms == {"synced": (T0 + 500) * 1000, "never": 0}
