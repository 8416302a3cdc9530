"""Our sums beside sreport's: what explains a difference, and what does not."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest
from sqlalchemy import create_engine

from fleetctl.accounting import tables
from fleetctl.accounting.model import Window
from fleetctl.accounting.read_reconcile import read_ours
from fleetctl.accounting.reconcile import Ours, Verdict, compare, rolled_up, whole_hours
from tests.accounting_rows import DAY_S, HOUR_S, T0, Rows

_ONE_PER_CENT = Fraction(1, 100)


@pytest.mark.parametrize(
    ("since_s", "until_s", "known_s", "expected"),
    [
        (T0, T0 + DAY_S, T0 + DAY_S, (T0, T0 + DAY_S)),
        (T0 + 1, T0 + DAY_S - 1, T0 + DAY_S, (T0 + HOUR_S, T0 + DAY_S - HOUR_S)),
        (T0, T0 + DAY_S, T0 + 2 * HOUR_S + 5, (T0, T0 + 2 * HOUR_S)),
        (T0, T0 + HOUR_S - 1, T0 + DAY_S, None),
        (T0, T0 + DAY_S, T0, None),
    ],
)
def test_only_whole_hours_of_which_all_is_known_are_compared(
    since_s: int, until_s: int, known_s: int, expected: tuple[int, int] | None
) -> None:
    assert whole_hours(Window(since_s, until_s), known_s) == (expected and Window(*expected))


def _rolled(ours: dict[int, int], theirs: dict[int, int], hours: int = 6) -> int:
    """Up to which hour of T0 it is rolled up, where each hour of the maps has so many GPU-seconds."""

    def total(of: dict[int, int], window: Window) -> int:
        return sum(seconds for hour, seconds in of.items() if window.since_s <= T0 + hour * HOUR_S < window.until_s)

    window = Window(T0, T0 + hours * HOUR_S)
    until_s = rolled_up(window, lambda part: total(ours, part), lambda part: total(theirs, part))
    return (until_s - T0) // HOUR_S


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ({0: 5, 3: 5, 5: 5}, {0: 5, 3: 5, 5: 5}, 6),
        ({0: 5, 3: 5, 5: 5}, {0: 5, 3: 5}, 5),
        ({0: 5, 3: 5, 5: 5}, {0: 5}, 3),  # hour 4 was idle: nobody can tell, and it does not matter
        ({0: 5, 3: 5}, {0: 5, 3: 5}, 6),  # idle hours at the end are no gap
        ({0: 5, 5: 5}, {0: 4, 5: 3}, 6),  # less is a difference, no missing hour
        ({0: 5, 3: 5}, {}, 0),
        ({}, {}, 6),
        ({}, {2: 5}, 6),
        ({1: 5, 4: 5}, {4: 5}, 6),  # a hole in the middle is a difference
    ],
)
def test_hours_at_the_end_that_sreport_does_not_have_are_not_rolled_up_yet(
    ours: dict[int, int], theirs: dict[int, int], expected: int
) -> None:
    assert _rolled(ours, theirs) == expected


def test_sreport_is_asked_for_two_days_of_hours_at_most() -> None:
    asked: list[Window] = []

    def theirs(part: Window) -> int:
        asked.append(part)
        return int(part.until_s - part.since_s > HOUR_S)

    assert rolled_up(Window(T0, T0 + 90 * DAY_S), lambda part: 1, theirs) == T0 + 88 * DAY_S
    assert len(asked) == 49


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict", "unexplained_s"),
    [
        (Ours("lab", 1_000), 1_000, Verdict.EQUAL, 0),
        (Ours("lab", 1_001), 1_000, Verdict.EXPLAINED, 0),  # a second is sreport's rounding
        (Ours("lab", 1_005), 1_000, Verdict.TOLERATED, 4),
        (Ours("lab", 1_100), 1_000, Verdict.UNEXPLAINED, 99),
        (Ours("lab", 900, open_short_s=100), 1_000, Verdict.EXPLAINED, 0),
        (Ours("lab", 900, open_short_s=50), 1_000, Verdict.UNEXPLAINED, 49),
        (Ours("lab", 1_100, open_short_s=100), 1_000, Verdict.UNEXPLAINED, 99),
        (Ours("lab", 900, without_gpus=3), 1_000, Verdict.UNEXPLAINED, 99),  # how much that is nobody knows
        (Ours("lab", 1_000), None, Verdict.UNEXPLAINED, 999),
    ],
)
def test_what_is_explained(ours: Ours, theirs: int | None, verdict: Verdict, unexplained_s: int) -> None:
    (line,) = compare([ours], {} if theirs is None else {"lab": theirs}, _ONE_PER_CENT)

    assert (line.verdict, line.unexplained_s, line.theirs_s) == (verdict, unexplained_s, theirs)
    assert line.difference_s == ours.gpu_seconds - (theirs or 0)
    assert bool(line.why) == (line.difference_s not in (0, 1)), line.why


def test_an_account_that_only_sreport_knows_is_a_line_too() -> None:
    (line,) = compare([], {"gone": 500}, _ONE_PER_CENT)

    assert (line.account, line.ours_s, line.theirs_s, line.verdict) == ("gone", 0, 500, Verdict.UNEXPLAINED)


def test_the_largest_riddle_comes_first() -> None:
    ours = [Ours("a", 10), Ours("b", 5_000), Ours("c", 900)]

    assert [line.account for line in compare(ours, {"a": 10, "b": 100, "c": 100}, _ONE_PER_CENT)] == ["b", "c", "a"]


@pytest.fixture
def rows() -> Iterator[Rows]:
    engine = create_engine("sqlite://")
    tables.metadata.create_all(engine)
    with engine.begin() as connection:
        yield Rows(connection)
    engine.dispose()


def _ours(rows: Rows) -> list[Ours]:
    window = Window(T0, T0 + DAY_S)
    return sorted(read_ours(rows.connection, window, rows.cluster_id), key=lambda one: one.account)


def test_our_side_is_read_by_account(rows: Rows) -> None:
    rows.record(1, account="a", started_s=T0 - 50, ended_s=T0 + 50, gpus=2)
    rows.record(2, account="a", gpus=1)
    rows.record(3, account="b", gpus=4, cluster_id=rows.add_cluster("other"))
    rows.record(4, account="c", gpus=0)

    assert _ours(rows) == [Ours("a", 100 + HOUR_S)]


def test_records_that_go_on_say_what_is_missing_of_them(rows: Rows) -> None:
    rows.record(1, account="a", ended_s=None, alive_s=T0 + 100, gpus=2)
    rows.record(2, account="b", ended_s=None, alive_s=None, gpus=2)
    rows.record(3, account="c", ended_s=None, alive_s=T0 - 7, started_s=T0 - 9, gpus=1)
    rows.record(4, account="d", ended_s=None, alive_s=T0 + 2 * DAY_S, gpus=1)

    assert _ours(rows) == [
        Ours("a", 200, open_short_s=2 * (DAY_S - 100)),
        Ours("b", 0, open_short_s=2 * DAY_S),
        Ours("c", 0, open_short_s=DAY_S),
        Ours("d", DAY_S),
    ]


def test_records_that_slurm_forgot_held_nothing_afterwards(rows: Rows) -> None:
    rows.record(1, account="a", ended_s=None, alive_s=T0 - 7, started_s=T0 - 9, gpus=2, purged_s=T0)
    rows.record(2, account="b", ended_s=None, alive_s=T0 + 100, gpus=2, purged_s=T0 + 500)

    assert _ours(rows) == [Ours("b", 200, open_short_s=800)]


def test_records_without_gpu_data_are_counted_apart(rows: Rows) -> None:
    rows.record(1, account="a", gpus=None)
    rows.record(2, account="a", gpus=1)

    assert _ours(rows) == [Ours("a", HOUR_S, without_gpus=1)]
