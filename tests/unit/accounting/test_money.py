"""Prices: which one holds, and what that makes, to the cent."""

from __future__ import annotations

from fractions import Fraction

import pytest

from fleetctl.accounting.model import Window
from fleetctl.accounting.money import (
    Cost,
    Price,
    costs,
    parts,
    price_of,
    priced_by,
    read_amount,
    read_currency,
)
from fleetctl.accounting.tres import whole_of
from fleetctl.accounting.usage import By, Usage
from tests.accounting_rows import DAY_S, HOUR_S, T0


def price(amount: str = "1", *, since_s: int = 0, currency: str = "EUR", **scope: str) -> Price:
    named = {"cluster": "", "partition": "", "gpu_model": "", **scope}
    return Price(**named, since_s=since_s, currency=currency, per_gpu_hour=Fraction(amount))


def held(seconds: int | None, model: str | None = "h100", *, partition: str = "gpu", account: str = "lab") -> Usage:
    keys = (account, "lab", partition, model)
    return Usage(keys, seconds, seconds, 1, int(seconds is None), 0)


def test_usage_is_read_by_all_that_a_price_can_depend_on() -> None:
    assert priced_by((By.ACCOUNT,)) == (By.ACCOUNT, By.CLUSTER, By.PARTITION, By.MODEL)
    assert priced_by((By.MODEL, By.DAY)) == (By.MODEL, By.DAY, By.CLUSTER, By.PARTITION)


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        ([], None),
        ([price("1")], "1"),
        ([price("1"), price("2", cluster="lab")], "2"),
        ([price("2", cluster="lab"), price("3", partition="gpu")], "3"),
        ([price("3", partition="gpu", cluster="lab"), price("4", gpu_model="h100")], "4"),
        ([price("4", gpu_model="h100", cluster="lab"), price("5", gpu_model="h100", partition="gpu")], "5"),
        ([price("9", gpu_model="a100"), price("9", partition="cpu"), price("9", cluster="other")], None),
        ([price("1", since_s=T0), price("2", since_s=T0 - 1)], "1"),
        ([price("2", since_s=T0 + 1), price("1", since_s=T0)], "1"),
        ([price("1", gpu_model="h100", since_s=0), price("2", since_s=T0)], "1"),  # older, but more specific
    ],
)
def test_the_most_specific_price_that_holds_counts(known: list[Price], wanted: str | None) -> None:
    for order in (known, known[::-1]):
        found = price_of(order, "lab", "gpu", "h100", T0)
        assert (found and str(found.per_gpu_hour)) == wanted


@pytest.mark.parametrize(
    ("model", "whole"),
    [
        ("a100_3g.20gb", "a100"),
        ("h100_1g.10gb+me", "h100"),
        ("a100", "a100"),
        ("h100-1g.x", "h100-1g.x"),
        ("1g.5gb", "1g.5gb"),
        ("", ""),
    ],
)
def test_a_slice_belongs_to_a_gpu(model: str, whole: str) -> None:
    assert whole_of(model) == whole


def test_a_slice_costs_its_part_of_its_gpu_unless_it_has_a_price_of_its_own() -> None:
    usage = [held(7 * HOUR_S, "a100_3g.20gb")]
    for known, wanted in (
        ([price("1")], 3),
        ([price("2", gpu_model="a100"), price("1")], 6),
        ([price("5", gpu_model="a100_3g.20gb"), price("2", gpu_model="a100")], 35),
    ):
        assert costs([(T0, usage)], (By.ACCOUNT,), known).total.amount == wanted


def test_a_window_is_cut_where_prices_begin() -> None:
    known = [price(since_s=T0), price(since_s=T0 + 5, partition="a"), price(since_s=T0 + 5), price(since_s=T0 + DAY_S)]
    window = Window(T0, T0 + DAY_S)
    assert parts(known, window) == (Window(T0, T0 + 5), Window(T0 + 5, T0 + DAY_S))
    assert parts([], window) == (window,)


def test_a_price_change_in_the_month_is_right_to_the_cent() -> None:
    """By hand: 8 GPUs for 10 days at 2.45, then 8 for 5 days and a third at 2.99; a third of an hour at 0.10.

    8 x 240 h x 2.45 = 4704.00; 8 x 120 h x 2.99 = 2870.40; together 7574.40, and 0.0333... = 0.03 for the other one.
    """
    old, new = price("2.45", gpu_model="h100"), price("2.99", gpu_model="h100", since_s=T0 + 10 * DAY_S)
    cheap = price("0.10", gpu_model="a100")
    first, second = [held(8 * 10 * DAY_S)], [held(8 * 5 * DAY_S), held(1200, "a100", account="other")]

    found = costs([(T0, first), (T0 + 10 * DAY_S, second)], (By.ACCOUNT,), [old, new, cheap])

    assert [(one.keys, round(one.amount or 0, 2)) for one in found.rows] == [
        (("lab",), Fraction("7574.40")),
        (("other",), Fraction("0.03")),
    ]
    assert found.total.amount == Fraction("7574.40") + Fraction(1, 30)
    assert found.currency == "EUR"


def test_a_total_is_the_sum_before_rounding() -> None:
    usage = [held(18, account=name) for name in "abc"]  # half a cent each
    found = costs([(T0, usage)], (By.ACCOUNT,), [price("1")])
    assert [round(one.amount or 0, 2) for one in found.rows] == [0, 0, 0]
    assert round(found.total.amount or 0, 2) == Fraction("0.02")  # 0.015, half to even


def test_time_without_a_price_is_told_apart_and_is_no_zero() -> None:
    usage = [
        held(HOUR_S),
        held(2 * HOUR_S, "b200"),
        held(HOUR_S, "b200", account="other"),
        held(0, None, account="cpu"),
    ]
    usage.append(held(None, None, account="untold"))

    found = {one.keys[0]: one for one in costs([(T0, usage)], (By.ACCOUNT,), [price("2", gpu_model="h100")]).rows}

    assert found["lab"] == Cost(("lab",), Fraction(10800), Fraction(7200), Fraction(2))
    assert found["other"] == Cost(("other",), Fraction(3600), Fraction(3600), None)
    assert found["cpu"] == Cost(("cpu",), Fraction(0), Fraction(0), Fraction(0))  # it held no GPU, and that is known
    assert found["untold"] == Cost(("untold",), None, Fraction(0), None, unknown_gpus=1)


def test_where_nothing_is_priced_the_total_is_no_zero() -> None:
    free = [held(0, None, account="cpu")]
    found = costs([(T0, [*free, held(HOUR_S, "b200"), held(None, None)])], (By.ACCOUNT,), [price("2", gpu_model="x")])
    assert found.total == Cost((), Fraction(3600), Fraction(3600), None, unknown_gpus=1)
    assert costs([(T0, free)], (By.ACCOUNT,), []).total.amount == 0
    assert costs([(T0, [*free, held(HOUR_S)])], (By.ACCOUNT,), [price("0")]).total.amount == 0  # for free


def test_a_record_of_which_nothing_is_known_counts_once_in_a_window_of_parts() -> None:
    part = [held(None, None)]
    assert costs([(T0, part), (T0 + 1, part)], (By.ACCOUNT,), [], whole=part).total.unknown_gpus == 1


def test_a_price_in_another_currency_ends_the_one_before_it() -> None:
    known = [price("1"), price("2", since_s=T0, currency="USD")]
    read = [(T0 - HOUR_S, [held(HOUR_S)]), (T0, [held(2 * HOUR_S)])]
    found = {code: costs(read, (By.ACCOUNT,), known, code).total for code in ("EUR", "USD", "CHF")}
    assert {code: (one.amount, one.unpriced_gpu_seconds) for code, one in found.items()} == {
        "EUR": (Fraction(1), Fraction(2 * HOUR_S)),
        "USD": (Fraction(4), Fraction(HOUR_S)),
        "CHF": (None, Fraction(3 * HOUR_S)),
    }


def test_days_stand_in_their_order() -> None:
    days = [Usage((day, "lab", "gpu", "h100"), seconds, seconds, 1, 0, 0) for day, seconds in (("02", 9), ("01", 1))]
    assert [one.keys for one in costs([(T0, days)], (By.DAY,), [price("1")]).rows] == [("01",), ("02",)]


def test_two_currencies_are_no_sum() -> None:
    known = [price("1"), price("1", currency="USD", gpu_model="a100"), price("1", currency="DEM", gpu_model="v100")]
    with pytest.raises(ValueError, match="prices in EUR and USD apply"):
        costs([(T0, [held(1), held(1, "a100")])], (By.ACCOUNT,), known)
    assert (
        costs([(T0, [held(1), held(0, "a100")])], (By.ACCOUNT,), known).currency == "EUR"
    )  # that one applies to nothing


@pytest.mark.parametrize(
    "text", ["-1", "nan", "inf", "1e3", "", "1,50", "+1", "0x1", " 1", "1.", ".5", "1_0", "\u0663"]
)
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no price such as"):
        read_amount(text)


@pytest.mark.parametrize("text", ["", "eur", "EURO", "EU", "E\u00dcR", "$"])
def test_what_is_no_currency_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no currency such as"):
        read_currency(text)


def test_prices_are_read_exactly() -> None:
    assert read_amount("0.1") == Fraction(1, 10)
    assert read_amount("0") == 0
    assert read_currency("CHF") == "CHF"
