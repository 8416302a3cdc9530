"""What held GPUs cost. Exact: fractions throughout, and one rounding for each printed sum.

A price holds from its day on, for its scope, until another of the same scope does. Of the scopes that fit, the most
specific counts: with a model before without, then with a partition, then with a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import reduce
from itertools import chain, pairwise
from typing import NamedTuple

from msgspec import Struct

from fleetctl.accounting.model import Window
from fleetctl.accounting.tres import gpu_equivalents, whole_of
from fleetctl.accounting.usage import By, Keys, Usage, dates_of

_HOUR_S = 3600
_DECIMALS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?", re.ASCII)
_CURRENCY = re.compile(r"[A-Z]{3}", re.ASCII)  # the form of ISO 4217


class Price(Struct, frozen=True):
    """Of one hour of one GPU. "" in `cluster`, `partition`, `gpu_model`: any."""

    cluster: str
    partition: str
    gpu_model: str
    since_s: int
    currency: str
    per_gpu_hour: Fraction
    note: str = ""

    @property
    def scope(self) -> tuple[str, str, str]:
        return self.cluster, self.partition, self.gpu_model


class Cost(Struct, frozen=True):
    """A row of the answer. None: nothing is known; `amount` None: nothing of it has a price. GPU-seconds, exact.

    `unknown_gpus` and `unknown_end` are records that are in no sum, as in Usage.
    """

    keys: Keys
    gpu_seconds: Fraction | None
    unpriced_gpu_seconds: Fraction
    amount: Fraction | None
    unknown_gpus: int = 0
    unknown_end: int = 0


class Costs(Struct, frozen=True):
    """All rows, and their sum before any rounding. `currency` None: no price applied."""

    rows: tuple[Cost, ...]
    total: Cost
    currency: str | None


def read_amount(text: str) -> Fraction:
    """`2.45`, exact.

    :raises ValueError: no decimal number of at least 0.
    """
    if not _DECIMALS.fullmatch(text):
        raise ValueError(f"{text!r} is no price such as 2.45")
    return Fraction(text)


def read_currency(text: str) -> str:
    """:raises ValueError: not of the form of ISO 4217."""
    if not _CURRENCY.fullmatch(text):
        raise ValueError(f"{text!r} is no currency such as EUR: three capital letters")
    return text


def price_of(prices: Iterable[Price], cluster: str, partition: str, model: str, at_s: int) -> Price | None:
    """The price that holds; a MIG slice without one of its own has that of its GPU, for its part of it."""
    best: Price | None = None
    for price in prices:
        fits = (
            price.since_s <= at_s
            and price.cluster in ("", cluster)
            and price.partition in ("", partition)
            and price.gpu_model in ("", model, whole_of(model))
        )
        if fits and (best is None or _rank(price, model) > _rank(best, model)):
            best = price
    return best


def _rank(price: Price, model: str) -> tuple[int, bool, bool, int]:
    named = 0 if not price.gpu_model else 2 if price.gpu_model == model else 1
    return named, price.partition != "", price.cluster != "", price.since_s


def parts(prices: Iterable[Price], window: Window) -> tuple[Window, ...]:
    """The window cut where a price begins: within each part no price changes."""
    within = {price.since_s for price in prices if window.since_s < price.since_s < window.until_s}
    edges = [window.since_s, *sorted(within), window.until_s]
    return tuple(Window(since_s, until_s) for since_s, until_s in pairwise(edges))


def priced_by(asked: Sequence[By]) -> tuple[By, ...]:
    """What usage has to be read by, so that it can be priced and then added up by `asked`."""
    return (*asked, *(one for one in (By.CLUSTER, By.PARTITION, By.MODEL) if one not in asked))


def costs(
    read: Sequence[tuple[int, Sequence[Usage]]],
    asked: Sequence[By],
    prices: Sequence[Price],
    currency: str | None = None,
    whole: Sequence[Usage] | None = None,
) -> Costs:
    """One row for each set of keys of `asked`, the dearest first; by days or months in their order.

    :param read: for each part of the window its start, and its usage by `priced_by(asked)`.
    :param currency: what a price in another one holds for is unpriced.
    :param whole: usage of the whole window by `asked`: of parts, records of which little is known count in each.
    :raises ValueError: prices of several currencies apply, and none is asked for.
    """
    by = priced_by(asked)
    places = [by.index(one) for one in (By.CLUSTER, By.PARTITION, By.MODEL)]
    sums: dict[Keys, _Sum] = {}
    currencies: set[str] = set()
    for at_s, usages in read:
        for usage in usages:
            cluster, partition, model = (usage.keys[place] or "" for place in places)
            price = price_of(prices, cluster, partition, model, at_s)
            if price is not None and currency not in (None, price.currency):
                price = None
            if price is not None and usage.gpu_seconds:
                currencies.add(price.currency)
            keys = usage.keys[: len(asked)]
            sums[keys] = _plus(sums.get(keys, _NOTHING), _amount(usage, price, model))
    if len(currencies) > 1:
        raise ValueError(f"prices in {' and '.join(sorted(currencies))} apply")
    for usage in whole if whole is not None else chain.from_iterable(usages for _, usages in read):
        keys = usage.keys[: len(asked)]
        sums[keys] = _plus(sums.get(keys, _NOTHING), _untold(usage))
    rows = sorted((_cost(keys, one) for keys, one in sums.items()), key=lambda cost: _order(cost, asked))
    total = reduce(_plus, sums.values(), _NOTHING)
    return Costs(tuple(rows), _cost((), total), currencies.pop() if currencies else None)


class _Sum(NamedTuple):
    gpu_seconds: Fraction | None
    unpriced: Fraction
    amount: Fraction | None
    unknown_gpus: int = 0
    unknown_end: int = 0


_NOTHING = _Sum(None, Fraction(0), None)


def _untold(usage: Usage) -> _Sum:
    """A record that ended as it began, where a price begins, is in no part, and cost nothing."""
    nothing = Fraction(0) if usage.gpu_seconds == 0 else None
    return _Sum(nothing, Fraction(0), nothing, usage.unknown_gpus, usage.unknown_end)


def _cost(keys: Keys, one: _Sum) -> Cost:
    """Records that held no GPU cost 0, but not where all that was held has no price."""
    return Cost(keys, *(one._replace(amount=None) if one.unpriced and one.unpriced == one.gpu_seconds else one))


def _amount(usage: Usage, price: Price | None, model: str) -> _Sum:
    if not usage.gpu_seconds:
        return _NOTHING if usage.gpu_seconds is None else _Sum(Fraction(0), Fraction(0), Fraction(0))
    seconds = Fraction(usage.gpu_seconds)
    if price is None:
        return _Sum(seconds, seconds, None)
    weight = 1 if price.gpu_model == model else gpu_equivalents(model)
    return _Sum(seconds, Fraction(0), seconds * weight * price.per_gpu_hour / _HOUR_S)


def _plus(one: _Sum, other: _Sum) -> _Sum:
    unknown = (one.unknown_gpus + other.unknown_gpus, one.unknown_end + other.unknown_end)
    seconds, amount = _sum(one.gpu_seconds, other.gpu_seconds), _sum(one.amount, other.amount)
    return _Sum(seconds, one.unpriced + other.unpriced, amount, *unknown)


def _sum(one: Fraction | None, other: Fraction | None) -> Fraction | None:
    return other if one is None else one if other is None else one + other


def _order(cost: Cost, asked: Sequence[By]) -> tuple[tuple[str, ...], bool, Fraction, tuple[tuple[bool, str], ...]]:
    names = tuple((key is None, key or "") for key in cost.keys)
    return dates_of(cost.keys, asked), cost.amount is None, -(cost.amount or Fraction(0)), names
