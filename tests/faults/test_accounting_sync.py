"""However a sync is disturbed and whatever it reads into, the same facts end up in the database, byte for byte."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

import pytest

from fleetctl.accounting.database import one_sync, open_database
from fleetctl.accounting.plan import POLICY, Policy
from fleetctl.accounting.sync import sync
from fleetctl.errors import DatabaseBusy, SlurmUnreachable
from tests.accounting_dump import dump
from tests.databases import FreshDatabase, fresh_database, postgres
from tests.played_books import PlayedBooks
from tests.stub_sacct import StubRow, make_rows
from tests.support import wait_until

__all__ = ["fresh_database", "postgres"]

_SINCE_S, _SPAN_S = 1_793_000_000, 40 * 86_400
_END_S = _SINCE_S + _SPAN_S + 86_400
_SEED = int(os.environ.get("FLEETCTL_TEST_SEED", str(time.time_ns() % 1_000_000)))
# Without the sweeps, which would find again what a watermark that came too early skips
_NO_SWEEPS = Policy(overlap_s=1, nightly_after_s=1 << 40, weekly_after_s=1 << 40)
_ROWS = make_rows(1_200, _SEED, since_s=_SINCE_S, span_s=_SPAN_S, mean_s=20_000)


class At:
    """A clock that stands still."""

    def __init__(self, now_s: int) -> None:
        self._now = datetime.fromtimestamp(now_s, UTC)

    def now(self) -> datetime:
        return self._now

    def monotonic_s(self) -> float:
        return 0.0

    def sleep(self, duration_s: float) -> None:
        raise AssertionError("a sync does not wait")


def synced(
    url: str,
    now_s: int,
    rows: Sequence[StubRow] = _ROWS,
    *,
    since_s: int | None = _SINCE_S,
    policy: Policy = POLICY,
    widest_s: int | None = None,
    answers: int | None = None,
) -> None:
    """One sync as it is at `now_s`. `since_s` None: as far back as it thinks right."""
    engine = open_database(url)
    try:
        with one_sync(engine):
            books = PlayedBooks(rows, now_s, widest_s=widest_s, answers=answers)
            clock = At(now_s)
            sync(engine, books, clock, since_s=since_s, user="root", note=_silent, progress=_silent, policy=policy)
    finally:
        engine.dispose()


def _silent(said: object) -> None:
    pass


def facts(url: str) -> bytes:
    engine = open_database(url, read_only=True)
    try:
        return dump(engine)
    finally:
        engine.dispose()


@pytest.fixture(scope="module")
def undisturbed(fresh_database: FreshDatabase) -> bytes:
    """Of one sync at the end, into SQLite."""
    print("seed", _SEED)
    url = fresh_database("sqlite")
    synced(url, _END_S)
    whole = facts(url)
    assert whole.count(b'"job_records"') == len(_ROWS)
    return whole


def _killed(url: str, now_s: int, after_s: float) -> bool:
    """A sync in a process of its own, and SIGKILL after so many seconds; whether that met it at work."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            synced(url, now_s, since_s=None, policy=_NO_SWEEPS)
            status = 0
        except DatabaseBusy:  # the server has not noticed yet that the one before is dead
            status = 2
        finally:
            os._exit(status)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (0, 2, -signal.SIGKILL)
    return ended == -signal.SIGKILL


@pytest.mark.parametrize(("kind", "kills"), [("sqlite", 100), ("postgres", 20)])
def test_syncs_killed_at_any_moment_and_gone_on_tell_what_one_undisturbed_tells(
    fresh_database: FreshDatabase, undisturbed: bytes, kind: str, kills: int
) -> None:
    """Time goes on between the kills: jobs come, start and end, so that each sync has something to write."""
    chance, url, scratch = random.Random(_SEED), fresh_database(kind), fresh_database(kind)
    met = 0
    took_s = 0.0
    synced(url, _SINCE_S, since_s=_SINCE_S, policy=_NO_SWEEPS)  # else, if no other came so far, the last begins later
    for number in range(kills):
        now_s = _SINCE_S + (number + 1) * _SPAN_S // kills
        if number % 10 == 0:  # how long one takes by now
            began = time.monotonic()
            synced(scratch, now_s, since_s=None, policy=_NO_SWEEPS)
            took_s = time.monotonic() - began
        met += _killed(url, now_s, chance.uniform(0, took_s))
    print("seed", _SEED, "killed at work:", met, "of", kills)
    assert met >= kills // 3
    wait_until(partial(_goes_through, url), "the last sync")
    assert facts(url) == undisturbed
    wait_until(partial(_goes_through, scratch), "the last sync")
    assert facts(scratch) == undisturbed, "ten syncs without a kill"


@pytest.mark.parametrize("answers", [0, 1, 2, 4])
@pytest.mark.parametrize("since_s", [None, _SINCE_S], ids=["default", "since"])
def test_a_first_sync_that_broke_off_is_made_whole_by_the_next(
    fresh_database: FreshDatabase, answers: int, since_s: int | None
) -> None:
    """Its oldest windows come last: nobody may forget that they were never read."""
    whole, url = fresh_database("sqlite"), fresh_database("sqlite")
    synced(whole, _END_S, since_s=since_s)
    with pytest.raises(SlurmUnreachable):
        synced(url, _END_S, since_s=since_s, answers=answers)
    synced(url, _END_S + 60, since_s=since_s)
    assert facts(url) == facts(whole)


def _goes_through(url: str) -> bool:
    try:
        synced(url, _END_S, since_s=None, policy=_NO_SWEEPS)
    except DatabaseBusy:
        return False
    return True


@pytest.mark.parametrize(
    ("policy", "widest_s"),
    [
        (Policy(chunk_s=3_600, most_chunk_s=7_200), None),
        (Policy(chunk_s=50 * 86_400, most_chunk_s=60 * 86_400), None),
        (Policy(chunk_s=86_399, most_chunk_s=86_399), None),
        (Policy(many_rows=120), None),
        (POLICY, 100_000),
    ],
    ids=["two hours", "all at once", "odd", "by rows", "refused when wide"],
)
def test_any_split_into_windows_tells_the_same(
    fresh_database: FreshDatabase, undisturbed: bytes, policy: Policy, widest_s: int | None
) -> None:
    url = fresh_database("sqlite")
    synced(url, _END_S, policy=policy, widest_s=widest_s)
    assert facts(url) == undisturbed


def test_postgres_tells_what_sqlite_tells(fresh_database: FreshDatabase, undisturbed: bytes) -> None:
    url = fresh_database("postgres")
    synced(url, _END_S)
    assert facts(url) == undisturbed


def test_records_that_reach_slurmdbd_late_are_found_by_a_sweep(
    fresh_database: FreshDatabase, undisturbed: bytes
) -> None:
    """A tenth of the records is missing when their time is read, and there two days later: what ended in the last
    seven days is found in that night, the rest within a week."""
    chance, url = random.Random(_SEED), fresh_database("sqlite")
    late = [number for number in range(len(_ROWS)) if chance.random() < 0.1]
    in_time = [row for number, row in enumerate(_ROWS) if number not in late]
    synced(url, _END_S - 2 * 86_400, in_time)
    synced(url, _END_S, since_s=None)
    before = _END_S - 7 * 86_400
    missing = [row for row in (_ROWS[number] for number in late) if row["End"].isdigit() and int(row["End"]) < before]
    assert missing
    assert facts(url).count(b'"job_records"') == len(_ROWS) - len(missing)
    synced(url, _END_S + 5 * 86_400, since_s=None)
    beyond = [row for row in missing if int(row["End"]) < _END_S + 5 * 86_400 - 35 * 86_400]
    assert facts(url).count(b'"job_records"') == len(_ROWS) - len(beyond)
    synced(url, _END_S + 5 * 86_400)
    assert facts(url) == undisturbed


def test_a_database_keeps_what_slurm_has_purged(fresh_database: FreshDatabase, undisturbed: bytes) -> None:
    url = fresh_database("sqlite")
    synced(url, _END_S)
    kept = [row for row in _ROWS if not row["End"].isdigit() or int(row["End"]) > _END_S - 86_400]
    synced(url, _END_S + 8 * 86_400, kept, since_s=None)
    assert facts(url) == undisturbed
