"""Run directories into the database: what is new once, whose it is, and what is put aside."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, select

from fleetctl.accounting import tables
from fleetctl.accounting.database import open_database
from fleetctl.accounting.ingest_runs import Ingested, ingest_runs
from fleetctl.health.store import Foreign
from fleetctl.rundir.model import EventKind
from fleetctl.rundir.store import Store
from tests.accounting_dump import dump
from tests.unit.accounting.run_folders import ME, NOW_S, Folder, lived, writes

Ingest = Callable[[], Ingested]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(f"sqlite:///{tmp_path}/a.db", create=True)
    yield engine
    engine.dispose()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def ingest(engine: Engine, store: Store, notes: list[str]) -> Ingest:
    def once() -> Ingested:
        with engine.connect() as connection:
            return ingest_runs(connection, store, notes.append, cluster="lab", now_s=NOW_S + 900)

    return once


def aside(engine: Engine) -> list[tuple[str, str]]:
    row = tables.quarantine.c
    with engine.connect() as connection:
        rows = connection.execute(select(row.raw, row.why).where(row.source == "run").order_by(row.raw))
        return [(os.fsdecode(raw).rpartition("/")[2], why) for raw, why in rows]


def known(engine: Engine) -> dict[str, str]:
    with engine.connect() as connection:
        return dict(map(tuple, connection.execute(select(tables.runs.c.run_id, tables.runs.c.user))))


def test_twice_ingested_is_once(engine: Engine, store: Store, ingest: Ingest) -> None:
    lived(store)
    assert ingest() == Ingested(1, 0, 0)
    before, written = dump(engine), writes(engine)
    assert b"held" in before
    assert ingest() == Ingested(0, 1, 0)
    assert (dump(engine), written) == (before, [])


def test_a_run_that_went_on_is_replaced_whole(engine: Engine, store: Store, ingest: Ingest) -> None:
    folder, _ = lived(store), lived(store, "r-2")
    ingest()
    folder.event(5000, EventKind.REQUEUE, by="user ada", why="asked", attempts=1, holds=1)
    folder.started("2.0", 5100).told("2.0", 5200, 30)
    assert ingest() == Ingested(1, 1, 0)
    again = open_database("sqlite:///" + str(store.root.parent / "b.db"), create=True)
    with again.connect() as connection:
        ingest_runs(connection, store, print, cluster="lab", now_s=NOW_S)
    assert dump(engine) == dump(again)
    again.dispose()


def test_progress_alone_is_a_change(engine: Engine, store: Store, ingest: Ingest) -> None:
    folder = Folder(store).submitted().started("1.0", 10).told("1.0", 20, 1)
    ingest()
    folder.told("1.0", 30, 2)
    assert ingest().changed == 1
    with engine.connect() as connection:
        assert connection.scalar(select(tables.attempts.c.last_step)) == 2


def test_a_run_whose_folder_is_gone_stays_known(engine: Engine, store: Store, ingest: Ingest) -> None:
    folder = lived(store)
    ingest()
    before = dump(engine)
    shutil.rmtree(folder.path)
    assert ingest() == Ingested(0, 0, 0)
    assert dump(engine) == before


def as_another(folder: Folder) -> None:
    path = folder.path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "user": "mallory"}))


def as_another_run(folder: Folder) -> None:
    path = folder.path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "run_id": "r-2"}))


def torn(folder: Folder) -> None:
    (folder.path / "run.json").write_bytes((folder.path / "run.json").read_bytes()[:40])


def newer(folder: Folder) -> None:
    (folder.path / "run.json").write_text('{"schema": 2}')


def linked_record(folder: Folder) -> None:
    shutil.move(folder.path / "run.json", folder.path.parent / "elsewhere.json")
    (folder.path / "run.json").symlink_to(folder.path.parent / "elsewhere.json")


def linked_events(folder: Folder) -> None:
    shutil.move(folder.path / "events", folder.path.parent.parent / "events")
    (folder.path / "events").symlink_to(folder.path.parent.parent / "events")


def linked_event_file(folder: Folder) -> None:
    (folder.path / "events" / "x.jsonl").symlink_to("/etc/passwd")


def fifo(folder: Folder) -> None:
    os.mkfifo(folder.path / "events" / "x.jsonl")


def huge(folder: Folder) -> None:
    with (folder.path / "events" / "x.jsonl").open("wb") as file:
        file.truncate(65 << 20)


def many_events(folder: Folder) -> None:
    with (folder.path / "events" / "x.jsonl").open("wb") as file:
        file.truncate(33 << 20)


def deep(folder: Folder) -> None:
    (folder.path / "events" / "x.jsonl").write_text("[" * 100_000 + "\n")


def listed(folder: Folder) -> None:
    (folder.path / "events" / "x.jsonl").write_text('["held"]\n')


def nameless(folder: Folder) -> None:
    (folder.path / "events" / "x.jsonl").write_text('{"kind": "attempt_started", "time": "2026-11-01T00:00:00Z"}\n')


def zoneless(folder: Folder) -> None:
    (folder.path / "events" / "x.jsonl").write_text('{"kind": "held", "why": "", "time": "2026-11-01T00:00:00"}\n')


BROKEN: dict[Callable[[Folder], None], str] = {
    as_another: f"it says that it is 'mallory''s, and its folder belongs to {ME}",
    as_another_run: "it says that it is run 'r-2'",
    torn: "run.json is missing or damaged",
    newer: "run.json is of schema 2",
    linked_record: "run.json is a symbolic link",
    linked_events: "events is no folder, or a symbolic link",
    linked_event_file: "x.jsonl is a symbolic link",
    fifo: "x.jsonl is no plain file",
    huge: "it holds more than",
    many_events: "its events have more than",
    deep: "not what fleetctl writes (RecursionError",
    listed: "not what fleetctl writes (TypeError",
    nameless: "not what fleetctl writes (KeyError",
    zoneless: "not what fleetctl writes (TypeError",
}


@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
def test_a_broken_run_is_put_aside_until_it_is_whole_again_and_stops_no_other(
    engine: Engine, store: Store, ingest: Ingest, notes: list[str], damage: Callable[[Folder], None]
) -> None:
    folder, whole = lived(store), lived(store, "r-2")
    kept = shutil.copytree(folder.path, store.root.parent / "kept")
    ingest()
    before = dump(engine)
    damage(folder)
    whole.event(200, EventKind.REQUEUE, by="user ada", why="asked", attempts=1)
    for _ in range(2):
        assert ingest().quarantined == 1
    ((run_id, why),) = aside(engine)
    assert run_id == "r-1"
    assert BROKEN[damage] in why
    assert notes[-1] == f"run r-1 is not counted: {why}"
    after = dump(engine)
    assert after != before, "the other run went on"
    assert [line for line in before.splitlines() if b"r-1" in line] == [
        line for line in after.splitlines() if b"r-1" in line
    ]
    shutil.rmtree(folder.path)
    shutil.copytree(kept, folder.path)
    assert ingest().quarantined == 0
    assert aside(engine) == []


def test_folders_that_would_be_one_number_are_not_read(engine: Engine, store: Store, ingest: Ingest) -> None:
    folder, _ = lived(store), lived(store, "r-2")
    for place in ("attempts/01.0", "attempts/1.00", "tasks/01/attempts/1.0", "tasks/1/attempts/1.0"):
        (folder.path / place).mkdir(parents=True)
        shutil.copy(folder.path / "attempts" / "1.0" / "saves.jsonl", folder.path / place)
    assert ingest() == Ingested(2, 0, 0)
    with engine.connect() as connection:
        rows = connection.execute(select(tables.checkpoints.c.task).where(tables.checkpoints.c.run_id == "r-1"))
        assert sorted(rows.scalars()) == [-1, 1]


def test_a_torn_last_line_and_garbage_lines_are_no_events(engine: Engine, store: Store, ingest: Ingest) -> None:
    folder = lived(store)
    (folder.path / "events" / "a.jsonl").write_bytes(b'\x00\xff{"kind"\n#\n{"kind": "held", "why": "half')
    (folder.path / "events" / "b.jsonl").write_text('{"kind": "of a newer fleetctl"}\n')
    assert ingest() == Ingested(1, 0, 0)


def test_what_a_training_may_spoil_is_only_not_known(engine: Engine, store: Store, ingest: Ingest) -> None:
    folder = lived(store)
    attempt = folder.run.attempt_dir("1.0", None)
    (attempt / "progress.json").unlink()
    (attempt / "progress.json").symlink_to("/etc/passwd")
    (attempt / "saves.jsonl").unlink()
    os.mkfifo(attempt / "saves.jsonl")
    assert ingest() == Ingested(1, 0, 0)
    with engine.connect() as connection:
        assert connection.scalar(select(tables.attempts.c.last_step)) is None


def test_what_is_put_aside_is_forgotten_with_its_folder(engine: Engine, store: Store, ingest: Ingest) -> None:
    folder = lived(store)
    torn(folder)
    ingest()
    shutil.rmtree(folder.path)
    ingest()
    assert aside(engine) == []


def test_another_store_keeps_what_it_has_put_aside(engine: Engine, store: Store, ingest: Ingest) -> None:
    torn(lived(store))
    ingest()
    other = Store(store.root.with_name("runs-of-another"))
    other.ensure()
    with engine.connect() as connection:
        ingest_runs(connection, other, print, cluster="lab", now_s=NOW_S)
    assert [run_id for run_id, _ in aside(engine)] == ["r-1"]


def owned_by(engine: Engine, store: Store, name: str | None) -> Ingested:
    def owner(_uid: int) -> str:
        if name is None:
            raise Foreign("its folder belongs to uid 7, which has no name here")
        return name

    with engine.connect() as connection:
        return ingest_runs(connection, store, print, cluster="lab", now_s=NOW_S, owner_name=owner)


def test_the_owner_of_the_folder_counts_and_not_the_name_in_it(engine: Engine, store: Store) -> None:
    lived(store)
    assert owned_by(engine, store, "mallory").quarantined == 1
    assert owned_by(engine, store, None).quarantined == 1
    assert known(engine) == {}
    assert owned_by(engine, store, ME) == Ingested(1, 0, 0)
    assert known(engine) == {"r-1": ME}


def test_nobody_takes_over_the_id_of_anothers_run(engine: Engine, store: Store, ingest: Ingest) -> None:
    lived(store)
    ingest()
    other = Store(store.root.with_name("others"))
    Folder(other, user="mallory")
    assert owned_by(engine, other, "mallory").quarantined == 1
    assert known(engine) == {"r-1": ME}
    assert aside(engine)[0][1] == f"a run of this id is known as {ME}'s"


def test_a_record_that_another_user_put_into_the_folder_does_not_count(
    engine: Engine, store: Store, ingest: Ingest
) -> None:
    folder = lived(store)
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(folder.path / "run.json", 12345, -1)
    assert ingest().quarantined == 1
    assert aside(engine)[0][1].startswith("its run.json belongs to uid 12345")
