"""Usage over any records: windows side by side add up exactly, and SQL agrees with plain arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from fractions import Fraction
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from fleetctl.accounting.database import open_database
from fleetctl.accounting.model import Window
from fleetctl.accounting.read_usage import read_usage
from fleetctl.accounting.shares import decayed
from fleetctl.accounting.tables import job_records
from fleetctl.accounting.tres import gpu_equivalents
from fleetctl.accounting.usage import By, Held, Keys, Usage, add_up, by_key, models_of
from tests.accounting_rows import T0, Rows

_SPAN_S = 400_000  # some days
_MODELS = ("", "h100=%d", "gpu=%d", "a100_3g.20gb=%d", "a100=1,h100=%d")

Fields = Mapping[str, Any]


@pytest.fixture(scope="module")
def rows() -> Iterator[Rows]:
    engine = open_database("sqlite://", create=True)
    with engine.connect() as connection:
        yield Rows(connection)
        connection.rollback()
    engine.dispose()


@st.composite
def records(draw: st.DrawFn) -> Fields:
    start, length = draw(st.integers(T0 - _SPAN_S, T0 + _SPAN_S)), draw(st.integers(0, _SPAN_S))
    gpus, models = draw(st.none() | st.integers(0, 64)), draw(st.sampled_from(_MODELS))
    if not gpus:
        models = ""
    elif models.startswith("a100=1,"):
        models, gpus = models % gpus, gpus + 1
    else:
        models = models % gpus if models else f"gpu={gpus}"
    is_open = draw(st.booleans())
    return {
        "account": draw(st.sampled_from(("a", "b", "", "\u00e9"))),
        "user": draw(st.sampled_from(("x", "y"))),
        "partition": draw(st.sampled_from(("p", "q"))),
        "started_s": start,
        "ended_s": None if is_open else start + length,
        "alive_s": draw(st.none() | st.just(start + length)) if is_open else None,
        "gpus": gpus,
        "gpu_models": models,
    }


def fill(rows: Rows, wanted: Sequence[Fields]) -> Connection:
    rows.connection.execute(job_records.delete())
    for number, fields in enumerate(wanted):
        rows.record(number, submitted_s=fields["started_s"], **fields)
    return rows.connection


def usage(rows: Rows, window: Window, by: tuple[By, ...], zone: ZoneInfo | None = None) -> tuple[Usage, ...]:
    return by_key(read_usage(rows.connection, window, by, [rows.cluster_id], zone or UTC), by)


def seconds(found: Sequence[Usage]) -> dict[Keys, Fraction]:
    return {one.keys: Fraction(one.gpu_seconds) for one in found if one.gpu_seconds}


edges = st.lists(st.integers(T0 - _SPAN_S, T0 + 2 * _SPAN_S), min_size=3, max_size=6, unique=True).map(sorted)
keys = st.sampled_from([(By.ACCOUNT,), (By.USER, By.MODEL), (By.PARTITION,), (By.RUN,), (By.CLUSTER, By.ACCOUNT), ()])


@settings(max_examples=60, deadline=None)
@given(st.lists(records(), max_size=8), edges, keys)
def test_windows_side_by_side_add_up_exactly(
    rows: Rows, wanted: list[Fields], cuts: list[int], by: tuple[By, ...]
) -> None:
    fill(rows, wanted)
    whole = seconds(usage(rows, Window(cuts[0], cuts[-1]), by))
    parts: dict[Keys, Fraction] = {}
    for since_s, until_s in pairwise(cuts):
        for key, value in seconds(usage(rows, Window(since_s, until_s), by)).items():
            parts[key] = parts.get(key, Fraction(0)) + value
    assert parts == whole


@settings(max_examples=60, deadline=None)
@given(st.lists(records(), max_size=8), edges, st.sampled_from([By.ACCOUNT, By.USER, By.MODEL, By.RUN]))
def test_sql_agrees_with_arithmetic(rows: Rows, wanted: list[Fields], cuts: list[int], by: By) -> None:
    fill(rows, wanted)
    window = Window(cuts[0], cuts[-1])

    total = sum((Fraction(one.gpu_seconds or 0) for one in usage(rows, window, (by,))), Fraction(0))
    equivalents = sum((Fraction(one.equivalents or 0) for one in usage(rows, window, (by,))), Fraction(0))
    unknown = sum(one.unknown_gpus for one in usage(rows, window, (by,)))

    held = [(one, overlap(one, window)) for one in wanted if touches(one, window)]
    assert total == sum((one["gpus"] or 0) * length for one, length in held)
    assert equivalents == sum((one["gpus"] or 0) * length * weight(one) for one, length in held)
    assert unknown == sum(one["gpus"] is None for one, _ in held)


def touches(one: Fields, window: Window) -> bool:
    end = one["alive_s"] if one["ended_s"] is None else one["ended_s"]
    return one["started_s"] < window.until_s and (end is None or end > window.since_s)


def overlap(one: Fields, window: Window) -> int:
    end = one["alive_s"] if one["ended_s"] is None else one["ended_s"]
    return 0 if end is None else max(0, min(end, window.until_s) - max(one["started_s"], window.since_s))


def weight(one: Fields) -> Fraction:
    return sum((Fraction(part) * gpu_equivalents(model) for model, part in models_of(one["gpu_models"])), Fraction(0))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(records(), max_size=6),
    edges,
    st.sampled_from((By.DAY, By.MONTH)),
    st.sampled_from(("UTC", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe")),
)
def test_days_and_months_add_up_to_the_window(
    rows: Rows, wanted: list[Fields], cuts: list[int], by: By, zone: str
) -> None:
    fill(rows, wanted)
    window = Window(cuts[0], cuts[-1])
    of_days = seconds(usage(rows, window, (by, By.USER), ZoneInfo(zone)))
    whole = seconds(usage(rows, window, (By.USER,)))
    assert {user: sum(part for key, part in of_days.items() if key[1:] == user) for user in whole} == whole
    assert sum(of_days.values()) == sum(whole.values())


@given(st.integers(1, 10**7), st.integers(1, 10**7), st.integers(1, 64), st.integers(3600, 10**7))
def test_decayed_usage_is_less_than_what_was_held_and_a_cut_changes_nothing(
    length: int, age: int, gpus: int, half_life_s: int
) -> None:
    now_s = 2 * 10**9
    end = now_s - age
    start, middle = end - length, end - length // 2

    whole = decayed([Held(("a", "u"), "", gpus, start, end)], now_s, half_life_s).gpu_seconds.get(("a", "u"), 0.0)
    halves = [Held(("a", "u"), "", gpus, *part) for part in ((start, middle), (middle, end))]

    assert 0 <= whole <= gpus * length
    assert decayed(halves, now_s, half_life_s).gpu_seconds.get(("a", "u"), 0.0) == pytest.approx(
        whole, rel=1e-6, abs=1e-6
    )
    later = decayed([Held(("a", "u"), "", gpus, start, end)], now_s + half_life_s, half_life_s).gpu_seconds["a", "u"]
    assert later == pytest.approx(whole / 2, rel=1e-6, abs=1e-6)


@given(st.lists(records(), max_size=6), edges)
def test_the_order_of_the_records_changes_nothing(wanted: list[Fields], cuts: list[int]) -> None:
    held = [
        Held((one["user"],), one["gpu_models"], one["gpus"], one["started_s"], one["ended_s"])
        for one in wanted
        if touches(one, Window(cuts[0], cuts[-1]))
    ]
    window, by = Window(cuts[0], cuts[-1]), (By.USER,)
    assert by_key(add_up(held, window, by), by) == by_key(add_up(held[::-1], window, by), by)
