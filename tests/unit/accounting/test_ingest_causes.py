"""Causes of interruptions, once Slurm and the nodes have told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, literal, select, update

from fleetctl.accounting import tables
from fleetctl.accounting.database import open_database
from fleetctl.accounting.ingest_causes import rank_interruptions
from fleetctl.accounting.ingest_runs import Ingested, ingest_runs
from fleetctl.accounting.read_allocations import Held
from fleetctl.rundir.store import Store
from tests.accounting_dump import dump
from tests.accounting_rows import Rows
from tests.unit.accounting.run_folders import ME, NOW_MS, NOW_S, Folder, lived, writes

Ingest = Callable[[], Ingested]
LATE_S = NOW_S + 100 * 86400


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{tmp_path}/a.db", create=True)
    yield engine
    engine.dispose()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


@pytest.fixture
def ingest(engine: Engine, store: Store) -> Ingest:
    def once() -> Ingested:
        with engine.connect() as connection:
            return ingest_runs(connection, store, print, cluster="lab", now_s=NOW_S + 900)

    return once


def causes_of(engine: Engine) -> list[tuple[int, list[tuple[str, str]]]]:
    row = tables.interruptions.c
    with engine.connect() as connection:
        rows = connection.execute(select(row.at_ms, row.causes).order_by(row.at_ms)).all()
    return [(at_ms - NOW_MS, [(one["cause"], one["node"]) for one in json.loads(text)]) for at_ms, text in rows]


def slurm_tells(engine: Engine, **record: Any) -> None:
    with engine.begin() as connection:
        rows = Rows(connection)
        usual = {"user": ME, "submitted_s": NOW_S, "started_s": NOW_S + 5, "ended_s": NOW_S + 105}
        rows.record(7, **{"nodes": ("n1", "n2", "n4"), **usual, **record})
        finding = {"node": "n2", "at_ms": NOW_MS + 90_000, "phase": "epilog", "job_id": "7", "check_id": "xid"}
        rows.put(tables.node_findings, **finding, outcome="fail", care="reboot", words="Xid 79")
        for node in ("n3", "n4"):  # another's, and a spare one
            rows.put(tables.node_findings, **{**finding, "node": node}, outcome="fail", care="reboot", words="Xid 79")
        rows.put(tables.node_events, node="n2", started_s=NOW_S + 160, state="DOWN", reason="Not responding", user="x")


def test_causes_are_ranked_again_once_slurm_and_the_nodes_have_told(
    engine: Engine, store: Store, ingest: Ingest
) -> None:
    lived(store)
    ingest()
    assert causes_of(engine) == [(100_000, [("program", "")])]
    slurm_tells(engine, cause="node", state="NODE_FAIL", failed_node="n2")
    assert ingest().changed == 0
    assert causes_of(engine) == [(100_000, [("gpu", "n2"), ("program", ""), ("node", "n2")])]
    written = writes(engine)
    ingest()
    assert written == []


def test_it_makes_no_difference_who_tells_first(engine: Engine, store: Store, ingest: Ingest) -> None:
    slurm_tells(engine, cause="node", state="NODE_FAIL", failed_node="n2")
    lived(store)
    ingest()
    assert causes_of(engine) == [(100_000, [("gpu", "n2"), ("program", ""), ("node", "n2")])]


@pytest.mark.parametrize(
    "other",
    [{"user": "mallory"}, {"submitted_s": NOW_S - 5000}, {"started_s": None}, {"ended_s": NOW_S}],
)
def test_a_record_that_is_not_this_attempts_says_nothing(
    engine: Engine, store: Store, ingest: Ingest, other: dict[str, Any]
) -> None:
    slurm_tells(engine, **{"cause": "time_limit", "state": "TIMEOUT", **other})
    lived(store)
    ingest()
    assert causes_of(engine) == [(100_000, [("program", "")])], "nor does any node"


def test_a_job_id_that_a_later_run_of_the_same_user_was_given_says_nothing(
    engine: Engine, store: Store, ingest: Ingest
) -> None:
    lived(store)
    Folder(store, "r-2").submitted(seconds=5000)
    slurm_tells(engine, cause="time_limit", state="TIMEOUT", submitted_s=NOW_S + 5000)
    ingest()
    assert causes_of(engine) == [(100_000, [("program", "")])]


def test_a_record_that_is_open_says_on_which_nodes_it_runs(engine: Engine, store: Store, ingest: Ingest) -> None:
    slurm_tells(engine, cause="", state="RUNNING", ended_s=None)
    lived(store)
    ingest()
    assert causes_of(engine) == [(100_000, [("gpu", "n2"), ("program", ""), ("node", "n2")])]


def test_slurm_says_when_an_attempt_ended_that_could_not(engine: Engine, store: Store, ingest: Ingest) -> None:
    Folder(store).submitted().started("1.0", 10)
    ingest()
    assert causes_of(engine) == []
    slurm_tells(engine, cause="node", state="NODE_FAIL")
    ingest()
    assert causes_of(engine) == [(105_000, [("gpu", "n2"), ("node", "n2")])]
    before = dump(engine)
    ingest()
    assert dump(engine) == before


def test_the_end_of_a_record_says_nothing_of_the_attempts_before_the_last_in_it(
    engine: Engine, store: Store, ingest: Ingest
) -> None:
    folder = Folder(store).submitted().started("1.0", 10).ended("1.0", 40, "failed", 1)
    folder.started("1.1", 50).ended("1.1", 100, "failed", 1)
    slurm_tells(engine, cause="out_of_memory", state="OUT_OF_MEMORY")
    ingest()
    found = causes_of(engine)
    assert [cause for cause, _ in found[0][1]] == ["gpu", "program", "node"]
    assert found[1][1][0][0] == "out_of_memory"


@pytest.mark.parametrize(("cause", "found"), [("time_limit", "time_limit"), ("node", "node"), ("crash", "crash")])
@pytest.mark.parametrize("failure", ["", 'Slurm: x", "cause": "node", "crash", "time_limit"'])
def test_an_old_end_is_explained_once_slurms_record_of_it_comes(
    engine: Engine, store: Store, cause: str, found: str, failure: str
) -> None:
    Folder(store).submitted().started("1.0", 10).ended("1.0", 100, "failed", 1, failure=failure)
    with engine.connect() as connection:
        ingest_runs(connection, store, print, cluster="lab", now_s=LATE_S)
        assert causes_of(engine) == [(100_000, [("program", "")])]
        slurm_tells(engine, cause=cause, state="X")
        ingest_runs(connection, store, print, cluster="lab", now_s=LATE_S)
    assert (found, "n2" if found == "node" else "") in causes_of(engine)[0][1]


def looked_at(engine: Engine, monkeypatch: pytest.MonkeyPatch, now_s: int) -> int:
    """How many ends cost more than the one question for them."""
    seen: list[object] = []
    of = Held.of

    def noting(held: Held, *asked: Any) -> Any:
        seen.append(asked)
        return of(held, *asked)

    monkeypatch.setattr(Held, "of", noting)
    with engine.begin() as connection:
        rank_interruptions(connection, now_s)
    return len(seen)


@pytest.mark.parametrize("cause", ["program", "completed", "node", "time_limit", "unknown"])
def test_an_old_end_that_cannot_become_clearer_is_looked_at_no_more(
    engine: Engine, store: Store, ingest: Ingest, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    folder = Folder(store).submitted().started("1.0", 10).ended("1.0", 40, "failed", 1)
    folder.started("1.1", 50).ended("1.1", 100, "failed", 1)
    slurm_tells(engine, cause=cause, state="X")
    ingest()
    assert looked_at(engine, monkeypatch, NOW_S + 900) == 2
    assert looked_at(engine, monkeypatch, LATE_S) == 0


def test_an_end_in_a_future_that_a_user_wrote_is_none_that_is_fresh(
    engine: Engine, store: Store, ingest: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    Folder(store).submitted().started("1.0", 10).ended("1.0", 1e10, "failed", 1)
    slurm_tells(engine, cause="program", state="FAILED")
    with engine.begin() as connection:
        connection.execute(update(tables.node_findings).values(at_ms=NOW_MS + 10**13))
    ingest()
    assert causes_of(engine) == [(10**13, [("program", "")])]
    assert looked_at(engine, monkeypatch, NOW_S + 900) == 0


def test_a_list_of_nodes_that_a_user_made_long_names_only_those_that_slurm_gave(
    engine: Engine, store: Store, ingest: Ingest
) -> None:
    Folder(store).submitted().started("1.0", 10, nodes="n[1-65000]").ended("1.0", 100, "failed", 1)
    slurm_tells(engine, cause="program", state="FAILED", nodes=("n1", "n2"))
    ingest()
    assert causes_of(engine) == [(100_000, [("gpu", "n2"), ("program", ""), ("node", "n2")])]


def test_of_too_many_ends_on_too_many_nodes_the_newest_are_explained_by_them(
    engine: Engine, store: Store, ingest: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetctl.accounting.ingest_causes._MOST_PAIRS", 5)
    folder = Folder(store).submitted().started("1.0", 10).ended("1.0", 40, "failed", 1)
    folder.started("1.1", 50).ended("1.1", 100, "failed", 1)
    slurm_tells(engine, cause="program", state="FAILED")
    ingest()
    assert [[cause for cause, _ in causes] for _, causes in causes_of(engine)] == [
        ["program"],
        ["gpu", "program", "node"],
    ]


def test_a_resized_jobs_last_record_says_how_it_ended(engine: Engine, store: Store, ingest: Ingest) -> None:
    lived(store)
    slurm_tells(engine, cause="resized", state="RESIZING", started_s=NOW_S + 5, ended_s=NOW_S + 50)
    with engine.begin() as connection:
        connection.execute(
            tables.job_records.insert().from_select(
                [column.name for column in tables.job_records.c],
                select(*(_later(column) for column in tables.job_records.c)),
            )
        )
    ingest()
    assert [cause for cause, _ in causes_of(engine)[0][1]] == ["out_of_memory", "program", "gpu", "node"]


def _later(column: Any) -> Any:
    """The next record of a resized job."""
    later: dict[str, object] = {"id": 99, "record": "99", "started_s": NOW_S + 50, "ended_s": NOW_S + 104}
    later |= {"cause": "out_of_memory", "state": "OUT_OF_MEMORY"}
    return literal(later[column.name]).label(column.name) if column.name in later else column
