"""Money over any usage and prices: cuts change nothing, and nothing is lost to rounding."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.accounting.model import Window
from fleetctl.accounting.money import Price, costs, parts, price_of, priced_by
from fleetctl.accounting.usage import By, Held, Usage, add_up, by_key
from tests.accounting_rows import T0

_SPAN_S = 10**6
_AT = st.integers(T0, T0 + _SPAN_S)
_MODELS = ("h100", "a100", "a100_3g.20gb", "gpu")

prices = st.lists(
    st.builds(
        Price,
        cluster=st.sampled_from(("", "lab", "other")),
        partition=st.sampled_from(("", "p", "q")),
        gpu_model=st.sampled_from(("", *_MODELS)),
        since_s=_AT | st.just(0),
        currency=st.just("EUR"),
        per_gpu_hour=st.integers(0, 100_000).map(lambda cents: Fraction(cents, 1000)),
    ),
    max_size=5,
    unique_by=lambda price: (price.scope, price.since_s),
)


@st.composite
def holding(draw: st.DrawFn) -> Held:
    start, gpus, model = draw(_AT), draw(st.integers(1, 16)), draw(st.sampled_from(_MODELS))
    keys = (draw(st.sampled_from(("ada", "bob"))), "lab", draw(st.sampled_from(("p", "q"))), None)
    return Held(keys, f"{model}={gpus}", gpus, start, start + draw(st.integers(1, _SPAN_S)))


def usage(held: list[Held], window: Window) -> tuple[Usage, ...]:
    by = priced_by((By.USER,))
    within = [one for one in held if one.started_s < window.until_s and (one.ended_s or 0) > window.since_s]
    return by_key(add_up(within, window, by), by)


def cost(held: list[Held], known: list[Price], cuts: list[int]) -> dict[object, Fraction | None]:
    read = [
        (part.since_s, usage(held, part))
        for since_s, until_s in pairwise(cuts)
        for part in parts(known, Window(since_s, until_s))
    ]
    found = costs(read, (By.USER,), known)
    assert (found.total.amount or 0) == sum(one.amount or 0 for one in found.rows)
    return {one.keys: one.amount for one in found.rows}


@given(st.lists(holding(), max_size=5), prices, st.lists(_AT, max_size=4, unique=True))
def test_windows_side_by_side_cost_what_the_whole_costs(held: list[Held], known: list[Price], cuts: list[int]) -> None:
    ends = [T0 - 1, T0 + 3 * _SPAN_S]
    assert cost(held, known, sorted([*ends, *cuts])) == cost(held, known, ends)


@given(st.lists(holding(), max_size=4), prices)
def test_each_second_costs_the_price_of_its_moment(held: list[Held], known: list[Price]) -> None:
    wanted: dict[object, Fraction] = {}
    for one in held:
        user, _, partition, _ = one.keys
        model, end = one.gpu_models.rpartition("=")[0], one.ended_s or 0
        edges = sorted({one.started_s, end, *(price.since_s for price in known if one.started_s < price.since_s < end)})
        for since_s, until_s in pairwise(edges):
            price = price_of(known, "lab", partition or "", model, since_s)
            if price is not None and one.gpus:
                of_a_gpu = Fraction(3, 7) if "3g" in model and price.gpu_model != model else 1
                amount = one.gpus * (until_s - since_s) * of_a_gpu * price.per_gpu_hour / 3600
                wanted[(user,)] = wanted.get((user,), Fraction(0)) + amount

    found = cost(held, known, [T0 - 1, T0 + 3 * _SPAN_S])
    assert {key: amount for key, amount in found.items() if amount is not None} == wanted
