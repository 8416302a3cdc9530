"""What interrupted jobs, and how long GPUs were held, as it stands in the database."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import pytest
from sqlalchemy import create_engine

from fleetctl.accounting import tables
from fleetctl.accounting.causes import Cause, Ranked
from fleetctl.accounting.failures import Interruption
from fleetctl.accounting.model import Window
from fleetctl.accounting.read_exposure import read_exposures, read_nodes, read_total
from fleetctl.accounting.read_failures import causes_of, read_interruptions
from tests.accounting_rows import DAY_S, HOUR_S, T0, Rows

_WINDOW = Window(T0, T0 + DAY_S)


@pytest.fixture
def rows() -> Iterator[Rows]:
    engine = create_engine("sqlite://")
    tables.metadata.create_all(engine)
    with engine.begin() as connection:
        yield Rows(connection)
    engine.dispose()


def _found(rows: Rows) -> tuple[Interruption, ...]:
    return read_interruptions(rows.connection, _WINDOW, {rows.cluster_id: rows.cluster}).merged.interruptions


def _told(rows: Rows) -> list[tuple[str, str, int]]:
    return [(one.cause.value, one.node, one.at_s - T0) for one in _found(rows)]


def _run(rows: Rows, run: str, job: str, *attempts: dict[str, Any], user: str = "ada", task: int = -1) -> None:
    """A run whose folder belongs to `user`, and says that it was submitted a minute before `T0`."""
    rows.put(tables.runs, run_id=run, name=run, user=user, kind="plain", created_ms=T0 * 1000)
    base = job.split("_")[0]
    if base.isdecimal():
        rows.put(tables.run_jobs, run_id=run, job_id=int(base), user=user, since_s=T0 - 60)
    for minor, values in enumerate(attempts):
        at_ms, why, person = (values.pop(key, None) for key in ("at_ms", "causes", "by_person"))
        key = {"run_id": run, "task": task, "major": 1, "minor": minor}
        rows.put(tables.attempts, **key, job_id=job, **{"started_ms": T0 * 1000 + minor, **values})
        if at_ms is not None:
            causes = json.dumps([{"cause": one[0], "evidence": "seen", "node": one[1]} for one in why])
            rows.put(tables.interruptions, **key, at_ms=at_ms, causes=causes, by_person=person or 0)


def _finding(rows: Rows, node: str, **values: Any) -> None:
    usual = {"at_ms": (T0 + HOUR_S + 60) * 1000, "check_id": "xid", "outcome": "fail", "care": "drain", "words": "79"}
    rows.put(tables.node_findings, node=node, phase="epilog", job_id="1", **{**usual, **values})


def test_only_records_that_held_gpus_and_ended_badly_within_the_window_count(rows: Rows) -> None:
    rows.record(1, cause="program", state="FAILED")
    rows.record(2, cause="program", state="FAILED", gpus=0)
    rows.record(3, cause="completed")
    rows.record(4, cause="program", state="FAILED", ended_s=T0 - 1, started_s=T0 - HOUR_S)
    rows.record(5, cause="program", state="FAILED", ended_s=T0 + DAY_S)
    rows.record(6, cause="cancelled_by_user", state="CANCELLED", started_s=None)
    rows.record(7, cause="", state="RUNNING", ended_s=None)
    rows.record(8, cause="program", state="FAILED", cluster_id=rows.add_cluster("other"))

    assert [one.job for one in _found(rows)] == [("lab", 1, None)]


def test_a_bad_end_of_a_record_without_gpu_data_is_told_and_not_counted(rows: Rows) -> None:
    rows.record(1, cause="program", state="FAILED", gpus=None)

    found = read_interruptions(rows.connection, _WINDOW, {rows.cluster_id: "lab"})

    assert (found.without_gpus, found.merged.interruptions) == (1, ())


@pytest.mark.parametrize(
    ("values", "nodes", "node"),
    [
        ({"failed_node": "n2"}, ("n1", "n2"), "n2"),
        ({}, ("n1",), "n1"),  # of one node only that one can be lost
        ({}, ("n1", "n2"), ""),
        ({}, (), ""),
    ],
)
def test_a_lost_node_is_charged_where_it_is_known(
    rows: Rows, values: dict[str, Any], nodes: Sequence[str], node: str
) -> None:
    rows.record(1, state="NODE_FAIL", cause="node", exit_status=1, nodes=nodes, **values)

    assert _told(rows) == [("node", node, HOUR_S)]


def test_a_finding_on_a_node_near_the_end_explains_a_program_s_failure(rows: Rows) -> None:
    rows.record(1, state="FAILED", cause="program", exit_status=1, nodes=("n1", "n2"))
    rows.record(2, state="FAILED", cause="program", exit_status=1, nodes=("n3",))
    _finding(rows, "n2")
    _finding(rows, "n3", at_ms=(T0 + 3 * HOUR_S) * 1000)  # two hours later
    _finding(rows, "n3", sequence=1, outcome="pass")
    _finding(rows, "n3", sequence=2, care="watch")

    assert _told(rows) == [("gpu", "n2", HOUR_S), ("program", "", HOUR_S)]


def test_a_finding_explains_no_decision_away(rows: Rows) -> None:
    rows.record(1, state="CANCELLED", cause="cancelled_by_user", state_by=1000, nodes=("n1",))
    _finding(rows, "n1")

    assert _told(rows) == [("cancelled_by_user", "", HOUR_S)]


def test_a_node_that_went_down_at_the_end_is_charged(rows: Rows) -> None:
    rows.record(1, state="NODE_FAIL", cause="node", exit_status=1, nodes=("n1", "n2"))
    rows.put(tables.node_events, node="n2", started_s=T0 + HOUR_S + 5, state="DOWN", reason="Not responding")

    assert _told(rows) == [("node", "n2", HOUR_S)]


def test_interruptions_of_runs_are_joined_to_their_records(rows: Rows) -> None:
    rows.record(1, state="REQUEUED", cause="requeued", nodes=("n1", "n2"))
    lost = {"ended_ms": (T0 + 600) * 1000, "at_ms": (T0 + 600) * 1000, "causes": [("node", "n2")]}
    own = {"ended_ms": (T0 + 3_590) * 1000, "at_ms": (T0 + 3_590) * 1000, "causes": [("program", "")], "by_person": 1}
    _run(rows, "r1", "1", {**lost, "ending": "node_lost"}, {**own, "ending": "failed"})

    assert _told(rows) == [("node", "n2", 600), ("program", "", HOUR_S)]
    assert [(one.run, one.by_person) for one in _found(rows)] == [("r1", False), ("r1", True)]


def test_an_array_element_is_its_own_job(rows: Rows) -> None:
    rows.record(11, job_id=10, array_index=1, cause="requeued", state="REQUEUED")
    rows.record(12, job_id=10, array_index=2, cause="requeued", state="REQUEUED")
    _run(rows, "r1", "10_2", {"ending": "failed", "at_ms": (T0 + 3_590) * 1000, "causes": [("crash", "")]}, task=2)

    assert _told(rows) == [("requeued", "", HOUR_S), ("crash", "", HOUR_S)]
    assert [one.job[2] for one in _found(rows) if one.run] == [2]


def test_a_finished_run_s_record_was_not_interrupted(rows: Rows) -> None:
    rows.record(1, state="CANCELLED", cause="cancelled_by_user")
    _run(rows, "r1", "1", {"ending": "finished", "ended_ms": (T0 + 3_000) * 1000})

    assert _found(rows) == ()


def test_a_run_of_a_job_that_is_not_known_is_told(rows: Rows) -> None:
    _run(rows, "r1", "1", {"ending": "failed", "at_ms": (T0 + 60) * 1000, "causes": [("crash", "")]})
    _run(rows, "r2", "no job", {"ending": "failed", "at_ms": (T0 + 60) * 1000, "causes": [("crash", "")]})

    found = read_interruptions(rows.connection, _WINDOW, {rows.cluster_id: "lab"}).merged

    assert (found.interruptions, found.unplaced) == ((), 2)


_BLAME = {"ending": "failed", "ended_ms": (T0 + 3_590) * 1000, "at_ms": (T0 + 3_590) * 1000, "causes": [("gpu", "n1")]}
_OVER = {"ending": "finished", "ended_ms": (T0 + 3_590) * 1000}


@pytest.mark.parametrize(
    ("run", "record"),
    [
        ({**_BLAME}, {"user": "bob"}),  # the job is somebody else's
        ({**_OVER}, {"user": "bob"}),
        ({**_BLAME}, {"submitted_s": T0 - 61}),  # or was there before the run: its id was given out again
        ({**_OVER, "started_ms": (T0 - DAY_S) * 1000, "ended_ms": (T0 - HOUR_S) * 1000}, {}),  # or it is another start
    ],
)
def test_a_run_says_nothing_of_records_that_are_not_its_own(
    rows: Rows, run: dict[str, Any], record: dict[str, Any]
) -> None:
    rows.record(1, state="FAILED", cause="program", nodes=("n1",), **record)
    _run(rows, "r1", "1", run)

    assert [(one.cause.value, one.node, one.run) for one in _found(rows)] == [("program", "", None)]


def test_a_run_charges_no_node_that_it_did_not_hold(rows: Rows) -> None:
    rows.record(1, state="FAILED", cause="program", nodes=("n1", "n2"))
    rows.record(2, nodes=("n3",))
    _run(rows, "r1", "1", {**_BLAME, "causes": [("node", "n3")]})

    assert _told(rows) == [("node", "", HOUR_S)]


def test_a_resized_job_of_a_run_ends_once(rows: Rows) -> None:
    """As slurmdbd writes it: the later size has a Submit of its own (tests/recorded/22.05, job 10)."""
    rows.record(7, state="RESIZING", cause="resized", ended_s=T0 + 600, nodes=("n3", "n4"))
    later: dict[str, Any] = {"submitted_s": T0 + 600, "eligible_s": T0 + 600, "started_s": T0 + 600, "nodes": ("n4",)}
    rows.record(7, state="NODE_FAIL", cause="node", failed_node="n4", **later)
    _run(rows, "r", "7", {**_BLAME, "causes": [("program", "")]})

    assert _told(rows) == [("program", "", HOUR_S)]


def test_components_that_end_in_two_windows_fall_in_one(rows: Rows) -> None:
    for offset, ended_s in enumerate([T0 + HOUR_S - 1, T0 + HOUR_S]):
        rows.record(1 + offset, job_id=1, het_offset=offset, state="NODE_FAIL", cause="node", ended_s=ended_s)
    windows = [Window(T0, T0 + HOUR_S), Window(T0 + HOUR_S, T0 + DAY_S)]

    found = [read_interruptions(rows.connection, one, {rows.cluster_id: "lab"}).merged for one in windows]

    assert [len(one.interruptions) for one in found] == [0, 1]


def test_causes_of_a_newer_fleetctl_are_unknown_and_not_lost() -> None:
    text = '[{"cause": "gremlins", "evidence": "seen", "node": "n1"}, {"cause": "gpu"}]'

    assert causes_of(text) == (Ranked(Cause.UNKNOWN, "seen", "n1"), Ranked(Cause.GPU, ""))


def test_gpu_time_is_cut_at_the_edges_of_the_window(rows: Rows) -> None:
    rows.record(1, started_s=T0 - 100, ended_s=T0 + 50, gpus=2)
    rows.record(2, started_s=T0 + DAY_S - 10, ended_s=T0 + 2 * DAY_S, gpus=3)
    rows.record(3, started_s=T0 - 100, ended_s=T0 + 2 * DAY_S, gpus=1)
    rows.record(4, started_s=T0 - 100, ended_s=T0, gpus=8)
    rows.record(5, started_s=T0 + DAY_S, ended_s=T0 + 2 * DAY_S, gpus=8)
    rows.record(6, gpus=None)
    rows.record(7, gpus=0)

    assert read_total(rows.connection, _WINDOW, [rows.cluster_id]) == 2 * 50 + 3 * 10 + DAY_S


def test_an_open_record_counts_up_to_when_it_was_seen_alive(rows: Rows) -> None:
    rows.record(1, ended_s=None, alive_s=T0 + 70, gpus=2)
    rows.record(2, ended_s=None, alive_s=None, gpus=2)
    rows.record(3, ended_s=None, alive_s=T0 - 5, started_s=T0 - 10, gpus=2)

    assert read_total(rows.connection, _WINDOW, [rows.cluster_id]) == 140


def test_an_empty_database_held_nothing(rows: Rows) -> None:
    assert read_total(rows.connection, _WINDOW, [rows.cluster_id]) == 0
    assert read_exposures(rows.connection, _WINDOW, "user", [rows.cluster_id]) == {}


def test_gpu_time_by_user(rows: Rows) -> None:
    rows.record(1, user="ada", gpus=1)
    rows.record(2, user="bob", gpus=2)
    rows.record(3, user="bob", gpus=3, cluster_id=rows.add_cluster("other"))

    assert read_exposures(rows.connection, _WINDOW, "user", [rows.cluster_id]) == {"ada": 3_600, "bob": 7_200}


def test_gpu_time_of_nobody_has_the_key_of_failures_of_nobody(rows: Rows) -> None:
    rows.record(1, account="", gpus=1)

    assert read_exposures(rows.connection, _WINDOW, "account", [rows.cluster_id]) == {None: 3_600}


def test_gpu_time_by_node_is_spread_evenly_and_adds_up(rows: Rows) -> None:
    rows.record(1, nodes=("n1", "n2", "n3"), gpus=4)
    rows.record(2, nodes=("n1",), gpus=8)
    rows.record(3, gpus=2)  # on nodes that nobody could read

    found = read_nodes(rows.connection, _WINDOW, [rows.cluster_id], lambda cluster, node: node)

    third = Fraction(4 * HOUR_S, 3)
    assert found == {"n1": third + 8 * HOUR_S, "n2": third, "n3": third, None: 2 * HOUR_S}
    assert sum(found.values()) == read_total(rows.connection, _WINDOW, [rows.cluster_id])
