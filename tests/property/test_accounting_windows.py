"""Any split of windows, in any order, at any times, with any ends in the middle: the same facts in the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Engine, select

from fleetctl.accounting import tables
from fleetctl.accounting.database import open_database
from fleetctl.accounting.node_lists import hosts_of
from fleetctl.accounting.plan import POLICY, Policy
from fleetctl.accounting.sync import sync
from fleetctl.accounting.sync_state import cluster_of
from fleetctl.accounting.write_records import write_records
from fleetctl.slurm.books import Rows
from fleetctl.slurm.hosts import expand
from tests.accounting_books import COLUMNS, NOW_S, Clock, FakeBooks, job, line, step
from tests.accounting_dump import dump

DAY = 86_400
BEGIN = NOW_S - 8 * DAY
_STEPS = {"extern": {}, "batch": {}, "0": {"State": "CANCELLED", "ExitCode": "0:11"}}
_ENDS = (("COMPLETED", "0:0"), ("FAILED", "1:0"), ("NODE_FAIL", "1:0"), ("CANCELLED by 0", "0:15"), ("WARPED", "3:0"))


class History(Struct, frozen=True):
    """One record as time goes by."""

    raw_id: int
    submit_s: int
    end_s: int
    told_s: int  # when slurmdbd heard of the end
    is_array: bool  # pending, it is the rest of an array
    end: tuple[str, str]
    comment_s: int  # when somebody wrote a comment

    def rows(self, now_s: int) -> list[dict[str, str]]:
        if now_s < self.submit_s:
            return []
        if self.is_array and now_s < self.submit_s + 60:
            rest = {
                "JobID": f"{self.raw_id}_[1-3]",
                "State": "PENDING",
                "Start": "Unknown",
                "NodeList": "None assigned",
            }
            return [job(self.raw_id, self.submit_s, None, **rest)]
        shown = {"JobID": f"{self.raw_id}_3"} if self.is_array else {}
        shown["User"] = "ann" if self.raw_id % 2 else "bea"
        shown["Comment"] = "seen" if now_s >= self.comment_s else ""
        shown["NodeList"] = f"n[{self.raw_id % 7}-{self.raw_id % 7 + self.raw_id % 3}]"
        if now_s < self.told_s:
            return [job(self.raw_id, self.submit_s, None, **shown)]
        return [job(self.raw_id, self.submit_s, self.end_s, **shown, State=self.end[0], ExitCode=self.end[1])]


@st.composite
def _histories(draw: st.DrawFn) -> History:
    submit_s = BEGIN + draw(st.integers(0, 8 * DAY - 120))
    end_s = submit_s + 60 + draw(st.sampled_from((0, 1, 3600, 5 * DAY, 40 * DAY)))
    late_s = draw(st.sampled_from((0, 0, 0, 3 * 3600, 3 * DAY)))
    comment_s = end_s + draw(st.sampled_from((0, DAY, 90 * DAY)))
    ending = draw(st.sampled_from(_ENDS))
    return History(draw(st.integers(1, 9)), submit_s, end_s, end_s + late_s, draw(st.booleans()), ending, comment_s)


class Try(Struct, frozen=True):
    """A sync at some time, which perhaps ends in the middle."""

    at_s: int
    since_s: int | None
    policy: Policy
    calls: int | None  # to Slurm, until it is killed
    widest_s: int | None
    sees_all: bool | None = True


_policies = st.builds(
    lambda chunk, many: Policy(chunk_s=chunk, many_rows=many, least_chunk_s=3600, first_reach_s=9 * DAY),
    st.sampled_from((7200, DAY, 9 * DAY)),
    st.integers(1, 9),
)
_tries = st.builds(
    Try,
    st.integers(-12 * DAY, 0).map(lambda ago: NOW_S + ago),  # in any order: the clock jumps
    st.none() | st.integers(BEGIN, NOW_S),
    _policies,
    st.none() | st.integers(1, 30),
    st.none() | st.sampled_from((2 * 3600, 3 * DAY)),
    st.sampled_from((True, True, False, None)),
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = open_database("sqlite://", create=True)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def other() -> Iterator[Engine]:
    engine = open_database("sqlite://", create=True)
    yield engine
    engine.dispose()


def _empty(engine: Engine) -> None:
    with engine.begin() as connection:
        for table in reversed(tables.metadata.sorted_tables):
            connection.execute(table.delete())


def _sync(engine: Engine, past: list[History], one: Try) -> None:
    clock = Clock(one.at_s)
    rows = {row["DBIndex"]: row for history in past for row in history.rows(one.at_s)}
    ended = [row for row in rows.values() if row["State"] not in ("RUNNING", "PENDING")]
    books = FakeBooks(clock, rows.values(), [step(row, name, **_STEPS[name]) for row in ended for name in _STEPS])
    books.widest_s, books.shows_all = one.widest_s, one.sees_all
    books.running = {int(row["JobIDRaw"]) for row in rows.values() if row["State"] == "RUNNING"}

    def die(call: int) -> None:
        if one.calls is not None and call > one.calls:
            raise KeyboardInterrupt

    books.before_reply = die
    with suppress(KeyboardInterrupt):
        sync(
            engine,
            books,
            clock,
            since_s=one.since_s,
            user="ann",
            note=lambda text: None,
            progress=lambda progress: None,
            policy=one.policy,
        )


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_histories(), min_size=1, max_size=12), st.lists(_tries, max_size=6), _policies)
def test_whatever_came_before_a_last_sync_gives_the_same_bytes(
    engine: Engine, other: Engine, past: list[History], tries: list[Try], policy: Policy
) -> None:
    _empty(engine)
    _empty(other)
    for one in tries:
        _sync(engine, past, one)
    _sync(engine, past, Try(NOW_S, BEGIN, policy, None, None))
    _sync(other, past, Try(NOW_S, BEGIN, POLICY, None, None))
    found = dump(engine)
    assert found == dump(other)
    assert found.count(b'["job_records"') == len({row["DBIndex"] for history in past for row in history.rows(NOW_S)})


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_histories(), min_size=1, max_size=12), st.lists(_tries, max_size=5), _policies)
def test_once_slurm_shows_everybodys_jobs_they_are_known_as_far_back_as_ours(
    engine: Engine, past: list[History], tries: list[Try], policy: Policy
) -> None:
    _empty(engine)
    for one in tries:
        _sync(engine, past, replace(one, at_s=NOW_S))
    _sync(engine, past, Try(NOW_S, None, policy, None, None))
    with engine.connect() as connection:
        from_s = connection.scalar(select(tables.sync_state.c.from_s))
        known = set(connection.scalars(select(tables.job_records.c.record)))
    assert from_s is not None
    rows = [row for history in past for row in history.rows(NOW_S)]
    ended_before = {row["DBIndex"] for row in rows if row["End"].isdigit() and int(row["End"]) < from_s}
    assert known >= {row["DBIndex"] for row in rows} - ended_before


@settings(deadline=None, max_examples=30)
@given(st.lists(_histories(), min_size=1, max_size=12), st.data())
def test_replies_in_any_pieces_and_order_give_the_same_bytes(
    engine: Engine, other: Engine, past: list[History], data: st.DataObject
) -> None:
    rows = list({row["DBIndex"]: line(row) for history in past for row in history.rows(NOW_S)}.values())
    pieces = data.draw(st.lists(st.lists(st.sampled_from(rows), max_size=6), max_size=6))
    pieces.append(data.draw(st.permutations(rows)))
    dumps = []
    for where, replies in ((engine, pieces), (other, [rows])):
        _empty(where)
        with where.begin() as connection:
            cluster = cluster_of(connection, "stub")
            for reply in replies:
                write_records(connection, cluster.id, Rows(COLUMNS, tuple(reply)), NOW_S, "stub", gpus_known=True)
        dumps.append(dump(where))
    assert dumps[0] == dumps[1]


_numbers = st.integers(0, 120).flatmap(lambda number: st.sampled_from((str(number), f"{number:03}")))
_ranges = st.builds(lambda low, high: f"{low}-{high}" if high else low, _numbers, st.just("") | _numbers)
_lists = st.builds(
    lambda prefix, ranges: f"{prefix}[{','.join(ranges)}]",
    st.sampled_from(("n", "gpu-", "rack1-node", "")),
    st.lists(_ranges, min_size=1, max_size=4),
)


@given(st.one_of(_lists, st.text("n0123456789[]-,. é", max_size=12)))
def test_the_quick_way_to_expand_a_node_list_finds_what_the_slow_one_finds(text: str) -> None:
    try:
        slow = expand(text)
    except ValueError:
        slow = ()
    assert sorted(hosts_of(text)) == sorted(slow)
