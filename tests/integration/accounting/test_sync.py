"""`fleetctl account sync` as people start it, with a sacct that answers in every way, into both databases."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from fleetctl.accounting.database import one_sync, open_database
from fleetctl.accounting.sync import sync
from fleetctl.clock import SystemClock
from fleetctl.errors import SlurmUnreachable
from fleetctl.slurm.commands import Limits
from fleetctl.slurm.connect import connect_books
from tests.accounting_dump import dump
from tests.databases import FreshDatabase
from tests.stub_sacct import Mode, StubRow, StubSlurm, make_rows, make_steps
from tests.support import Cli, small_disk, wait_until

DAY = 86_400


class World:
    """A stub cluster, and the command line on it."""

    def __init__(self, folder: Path, rows: Sequence[StubRow]) -> None:
        self.stub = StubSlurm(folder / "stub")
        self.stub.write(rows, list(make_steps(rows)))
        self.cli = Cli(self.stub.environ(os.environ), folder / "runs")

    def sync(self, url: str, *options: str) -> subprocess.CompletedProcess[str]:
        return self.cli("account", "sync", "--database", url, *options)


@pytest.fixture(scope="module")
def rows() -> Sequence[StubRow]:
    """A month of a small cluster, until yesterday."""
    return make_rows(400, seed=6, since_s=int(time.time()) - 30 * DAY, span_s=29 * DAY)


@pytest.fixture
def world(tmp_path: Path, rows: Sequence[StubRow]) -> World:
    return World(tmp_path, rows)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, rows: Sequence[StubRow], fresh_database: FreshDatabase) -> bytes:
    """What one undisturbed sync gives."""
    url = fresh_database("sqlite")
    done = World(tmp_path_factory.mktemp("whole"), rows).sync(url)
    assert done.returncode == 0, done.stderr
    return _dump(url)


def _dump(url: str) -> bytes:
    engine = open_database(url, read_only=True)
    try:
        return dump(engine)
    finally:
        engine.dispose()


def _query(url: str, statement: str) -> list[tuple[Any, ...]]:
    engine = open_database(url, read_only=True)
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(statement))]
    finally:
        engine.dispose()


def _watermark(url: str) -> list[tuple[Any, ...]]:
    return _query(url, "SELECT from_s, to_s, synced_s FROM sync_state")


def test_both_databases_hold_the_same_bytes_and_all_records(world: World, database: str, whole: bytes) -> None:
    done = world.sync(database, "--json")
    assert done.returncode == 0, done.stderr
    assert '"new": 400' in done.stdout
    assert _dump(database) == whole
    assert _query(database, "SELECT count(*) FROM job_records") == [(400,)]
    assert _query(database, "SELECT count(*) FROM steps")[0][0] > 100


def test_a_second_sync_touches_no_record(world: World, fresh_database: FreshDatabase) -> None:
    url = fresh_database("postgres")
    assert world.sync(url).returncode == 0
    versions = (
        "SELECT 'record', xmin::text, ctid::text FROM job_records UNION ALL "
        "SELECT 'node', xmin::text, ctid::text FROM record_nodes UNION ALL "
        "SELECT 'step', xmin::text, ctid::text FROM steps"
    )
    before = _query(url, versions)
    done = world.sync(url)
    assert done.returncode == 0
    assert "0 new, 0 changed" in done.stderr
    assert _query(url, versions) == before


@pytest.mark.parametrize("mode", [Mode.FAIL, Mode.HEADER_ONLY, Mode.NO_HEADER, Mode.STDERR, Mode.CUT])
def test_a_reply_that_is_not_whole_moves_nothing_and_the_next_sync_makes_it_good(
    world: World, database: str, whole: bytes, mode: Mode
) -> None:
    world.stub.misbehave(mode)
    done = world.sync(database)
    assert done.returncode in (3, 10)
    assert done.stderr.startswith("fleetctl: ")
    assert _query(database, "SELECT count(*) FROM job_records") == [(0,)]
    assert _watermark(database) == []
    world.stub.behave()
    assert world.sync(database).returncode == 0
    assert _dump(database) == whole


def test_a_sacct_that_hangs_ends_in_an_error(world: World, database: str, whole: bytes) -> None:
    world.stub.misbehave(Mode.HANG)
    engine = open_database(database)
    books = connect_books(world.cli.environ, SystemClock(), limits=Limits(accounting_s=0.5))
    with pytest.raises(SlurmUnreachable):
        sync(engine, books, SystemClock(), since_s=None, user="root", note=print, progress=lambda at: None)
    engine.dispose()
    assert _watermark(database) == []
    world.stub.behave()
    assert world.sync(database).returncode == 0
    assert _dump(database) == whole


def test_a_range_that_is_too_wide_is_asked_for_in_pieces(world: World, database: str, whole: bytes) -> None:
    world.stub.misbehave(Mode.TOO_WIDE, str(3 * DAY))
    assert world.sync(database).returncode == 0
    assert _dump(database) == whole
    assert len(world.stub.calls()) > 20


def test_a_second_collector_is_refused_in_one_line(world: World, database: str) -> None:
    engine = open_database(database)
    with one_sync(engine):
        done = world.sync(database)
    engine.dispose()
    assert done.returncode == 16
    assert "another sync or upgrade" in done.stderr
    assert len(done.stderr.splitlines()) == 2  # and the remedy
    assert world.stub.calls() == []


def _killed_at_call(world: World, database: str, call: int) -> int:
    """Kills a sync when it has asked sacct so often; returns how many records there are then."""
    world.stub.forget_calls()
    child = world.cli.start("account", "sync", "--database", database, "--since", "40d")
    wait_until(lambda: len(world.stub.calls()) >= call or child.poll() is not None, "sacct was asked")
    child.kill()
    child.communicate()
    return int(_query(database, "SELECT count(*) FROM job_records")[0][0])


def test_a_sync_that_is_killed_anywhere_leaves_a_whole_state(world: World, database: str, whole: bytes) -> None:
    chance = random.Random(6)
    world.stub.misbehave(Mode.TOO_WIDE, str(3 * DAY))  # for more windows
    counts = [_killed_at_call(world, database, call) for call in (12, *(chance.randint(1, 30) for _ in range(11)))]
    assert any(0 < count < 400 for count in counts), "no kill fell between two windows"
    world.stub.behave()
    orphans = _query(database, "SELECT count(*) FROM record_nodes WHERE record_id NOT IN (SELECT id FROM job_records)")
    assert orphans == [(0,)]
    done = world.sync(database, "--since", "40d")
    assert done.returncode == 0, done.stderr
    assert _dump(database) == whole


def test_an_interrupt_leaves_a_whole_state(world: World, database: str, whole: bytes) -> None:
    world.stub.misbehave(Mode.HANG)
    child = world.cli.start("account", "sync", "--database", database)
    wait_until(lambda: any("--allocations" in call for call in world.stub.calls()), "sacct was asked")
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=60) == 130
    assert "interrupted" in child.communicate()[1]
    world.stub.behave()
    assert world.sync(database).returncode == 0
    assert _dump(database) == whole


def test_a_full_disk_is_one_line_and_space_makes_it_good(world: World, tmp_path: Path, whole: bytes) -> None:
    with small_disk(tmp_path / "small", "480k") as place:
        url = f"sqlite:///{place}/accounting.db"
        done = world.sync(url)
        assert done.returncode == 16
        assert "full" in done.stderr
        world.cli.slurm("mount", "-o", "remount,size=64m", str(place))
        assert world.sync(url).returncode == 0
        assert _dump(url) == whole


def test_a_service_goes_on_after_an_error(world: World, fresh_database: FreshDatabase) -> None:
    url = fresh_database("sqlite")
    world.stub.misbehave(Mode.FAIL)
    child = world.cli.start("account", "sync", "--database", url, "--every", "5m")
    assert child.stderr is not None
    lines = iter(child.stderr.readline, "")
    assert any("the next try is in 5m" in line for line in lines)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=60) == 130
    child.communicate()


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--every", "5"), "with a unit"), (("--every", "1s"), "1m or more"), (("--since", "soon"), "a moment such as")],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_done(
    world: World, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    done = world.sync(str(tmp_path / "new.db"), *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "new.db").exists()
