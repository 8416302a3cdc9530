"""Run directories, node verdicts and events into both kinds of database: the same facts, once, and from kills whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Engine, event, select
from sqlalchemy.exc import OperationalError

from fleetctl.accounting import tables
from fleetctl.accounting.database import open_database
from fleetctl.accounting.ingest_events import ingest_events
from fleetctl.accounting.ingest_nodes import ingest_nodes
from fleetctl.accounting.ingest_rows import RunRead, RunRows, run_rows
from fleetctl.accounting.ingest_runs import Ingested, ingest_runs
from fleetctl.health.model import Care, Decision, Finding, Outcome, Phase, Verdict
from fleetctl.health.spool import append_verdict, publish
from fleetctl.rundir.model import EventKind
from fleetctl.rundir.store import Store
from fleetctl.slurm.books import Happened
from tests.accounting_dump import dump
from tests.accounting_rows import Rows
from tests.databases import FreshDatabase
from tests.unit.accounting.run_folders import ME, NOW_MS, NOW_S, Folder

STRANGE = "".join(map(chr, range(0x100))) + "\ud800\U0001f600"
XID = Finding("xid", Outcome.FAIL, STRANGE, "gpu/0", "Xid 79", care=Care.REBOOT)


class Interrupted(Exception):
    """A kill, at some moment."""


class Site:
    """What is to be ingested."""

    def __init__(self, folder: Path) -> None:
        self.store, self.shared = Store(folder / "runs"), folder / "shared"
        self.shared.mkdir()
        for number in range(3):
            run = Folder(self.store, f"r-{number}", name=STRANGE).submitted(str(7 + number))
            run.started("1.0", 10, job_id=str(7 + number)).told("1.0", 90, 20).saved("1.0", 60, 10)
            run.ended("1.0", 100, "failed", 1, failure=STRANGE).event(101, EventKind.HELD, attempts=1, why=STRANGE)
            if number == 2:
                (run.path / "run.json").write_bytes(STRANGE.encode("utf-8", "surrogatepass"))
        use = {"seconds": 60.0, "gpus": [{"gpu": "0000:1b:00.0", "uuid": "GPU-1", "energy_j": 1.5, "memory_bytes": 7}]}
        verdict = Verdict("n2", Phase.EPILOG, NOW_S + 95.0, "b", Decision.DRAIN, STRANGE, (XID,), 40, 1.0, "7", use)
        assert append_verdict(str(folder / "spool"), verdict)
        assert publish(str(folder / "spool"), str(self.shared), "n2")

    def node_events(self, _since_s: int) -> tuple[Happened, ...]:
        return (Happened("n2", NOW_S + 160, None, "DOWN*", "Not responding\udcff", "slurm"),)

    def ingest(self, engine: Engine) -> tuple[int, int, Ingested]:
        with engine.begin() as connection:
            cluster_id: Any = connection.scalar(select(tables.clusters.c.id))
        with engine.connect() as connection:
            events = ingest_events(connection, cluster_id, self, NOW_S)  # type: ignore[arg-type]
        with engine.begin() as connection:
            verdicts = ingest_nodes(connection, "lab", str(self.shared), print, now_s=NOW_S)
        with engine.connect() as connection:
            return events, verdicts, ingest_runs(connection, self.store, print, cluster="lab", now_s=NOW_S)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def with_slurms_word(url: str) -> Engine:
    engine = open_database(url)
    with engine.begin() as connection:
        usual: dict[str, Any] = {"nodes": ("n1", "n2"), "user": ME, "submitted_s": NOW_S}
        usual |= {"started_s": NOW_S + 5, "ended_s": NOW_S + 105}
        Rows(connection).record(7, **usual, cause="node", state="NODE_FAIL", failed_node="n2", exit_status=1)
    return engine


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    engine = with_slurms_word(database)
    yield engine
    engine.dispose()


def test_everything_is_ingested_once(engine: Engine, site: Site) -> None:
    assert site.ingest(engine) == (1, 1, Ingested(2, 0, 1))
    before = dump(engine)
    assert site.ingest(engine) == (0, 0, Ingested(0, 2, 1))
    assert dump(engine) == before
    with engine.connect() as connection:
        ends = connection.execute(select(tables.interruptions.c.run_id, tables.interruptions.c.at_ms)).all()
        kept = connection.execute(select(tables.quarantine.c.source, tables.quarantine.c.why)).all()
    assert sorted(map(tuple, ends)) == [("r-0", NOW_MS + 100_000), ("r-1", NOW_MS + 100_000)]
    assert [(source, "run.json is missing or damaged" in why) for source, why in kept] == [("run", True)]
    assert b'\\"cause\\": \\"gpu\\"' in before


def twice(rows: RunRows) -> RunRows:
    return replace(rows, checkpoints=rows.checkpoints * 2)


def too_large(rows: RunRows) -> RunRows:
    return replace(rows, actions=tuple((*row[:2], 1 << 63, *row[3:]) for row in rows.actions))


def no_text(rows: RunRows) -> RunRows:
    return replace(rows, actions=tuple((*row[:-1], None) for row in rows.actions))


@pytest.mark.parametrize("spoil", [twice, too_large, no_text])
def test_a_run_that_the_database_does_not_take_is_put_aside_and_stops_no_other(
    engine: Engine, site: Site, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[RunRows], RunRows]
) -> None:
    def spoilt(read: RunRead, user: str, digest: int) -> RunRows:
        rows = run_rows(read, user, digest)
        return spoil(rows) if read.record.run_id == "r-0" else rows

    monkeypatch.setattr("fleetctl.accounting.ingest_runs.run_rows", spoilt)
    for count in (Ingested(1, 0, 2), Ingested(0, 1, 2)):
        assert site.ingest(engine)[2] == count
    monkeypatch.undo()
    assert site.ingest(engine)[2] == Ingested(1, 1, 1)


def test_a_database_that_fails_is_no_fault_of_a_run(engine: Engine, site: Site) -> None:
    def full(_connection: Any, _cursor: Any, statement: str, *_: object) -> None:
        if "actions" in statement:
            raise OperationalError(statement, {}, Exception("disk full"))

    event.listen(engine, "before_cursor_execute", full)
    with pytest.raises(OperationalError):
        site.ingest(engine)


def test_both_kinds_of_database_hold_the_same(fresh_database: FreshDatabase, site: Site) -> None:
    dumps = []
    for kind in ("sqlite", "postgres"):
        engine = with_slurms_word(fresh_database(kind))
        site.ingest(engine)
        dumps.append(dump(engine))
        engine.dispose()
    assert dumps[0] == dumps[1]


def test_an_end_at_any_statement_leaves_whole_runs_and_the_next_ingestion_makes_up_for_it(
    fresh_database: FreshDatabase, site: Site
) -> None:
    engine = with_slurms_word(fresh_database("sqlite"))
    site.ingest(engine)
    whole, moment = dump(engine), 0
    engine.dispose()
    while True:
        moment += 1
        engine = with_slurms_word(fresh_database("sqlite"))
        left = moment

        def stop(*_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Interrupted

        event.listen(engine, "before_cursor_execute", stop)
        try:
            site.ingest(engine)
        except Interrupted:
            pass
        else:
            break
        with engine.connect() as connection:
            runs = set(connection.scalars(select(tables.runs.c.run_id)))
            assert runs == set(connection.scalars(select(tables.interruptions.c.run_id)))
            assert runs == set(connection.scalars(select(tables.actions.c.run_id)))
        site.ingest(engine)
        assert dump(engine) == whole
        engine.dispose()
    engine.dispose()
    assert moment > 20
