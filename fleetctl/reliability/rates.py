"""How often things fail, and how sure that is: the arithmetic. Pure.

A count of failures in some exposure (node-hours, GPU-hours, hours) is taken for a Poisson count: they come at a
constant rate and one at a time. Real ones cluster, so that the true interval is rather wider. All limits are exact
(Garwood, Biometrika 28, 1936), not a normal approximation, which is wrong where counts are small.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct

CONFIDENCE = 0.95
DAY_S = 86_400
_MOST_STEPS = 10_000  # of a series or a fraction; a million failures need about 6,000
_TINY = 1e-300
_CLOSE = 1e-15


class Mtbf(Struct, frozen=True):
    """Mean time between failures, in the unit of the exposure, with its confidence limits.

    `value` and `high` are None where nothing failed: then only a lower limit is known. All three are None without any
    exposure.
    """

    value: float | None
    low: float | None
    high: float | None


class Without(Struct, frozen=True):
    """What were if some failures had not been. `mtbf` is None where none would be left; `gain` 0.111 is 11.1 % more."""

    left: int
    mtbf: float | None
    gain: float | None


def count_limits(failures: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The expected counts between which `confidence` of the trust lies, when `failures` were seen.

    0 gives 0 and 3.689, 1 gives 0.0253 and 5.572, 10 gives 4.795 and 18.39 (95 %).

    :raises ValueError: a negative count, or a confidence that is not between 0 and 1.
    """
    if failures < 0:
        raise ValueError(f"a count cannot be {failures}")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"a confidence lies between 0 and 1, not {confidence}")
    each = (1.0 - confidence) / 2.0
    low = 0.0 if failures == 0 else _root(lambda mean: at_least(failures, mean) < each, 0.0, float(failures))
    top = float(failures + 1)
    while at_most(failures, top) > each:
        top *= 2.0
    return low, _root(lambda mean: at_most(failures, mean) > each, float(failures), top)


def mtbf(exposure: float, failures: int, confidence: float = CONFIDENCE) -> Mtbf:
    """`exposure` over `failures`, in its own unit, with exact limits.

    :raises ValueError: as `count_limits`; a negative exposure.
    """
    if exposure < 0:
        raise ValueError(f"an exposure cannot be {exposure}")
    low, high = count_limits(failures, confidence)
    if not exposure:
        return Mtbf(None, None, None)
    return Mtbf(exposure / failures if failures else None, exposure / high, exposure / low if low else None)


def per_1000_gpu_days(failures: int, gpu_seconds: float) -> float | None:
    """Failures in 1,000 GPU-days of holding GPUs; None without any. With node-seconds it is per 1,000 node-days."""
    return failures * 1000.0 * DAY_S / gpu_seconds if gpu_seconds > 0 else None


def without(exposure: float, failures: int, gone: int) -> Without:
    """The mean time between failures if `gone` of them had not happened.

    :raises ValueError: more are gone than there were.
    """
    if not 0 <= gone <= failures:
        raise ValueError(f"{gone} of {failures} failures cannot be gone")
    left = failures - gone
    if not left:
        return Without(0, None, None)
    return Without(left, exposure / left if exposure > 0 else None, failures / left - 1.0)


def at_least(count: int, mean: float) -> float:
    """The chance of `count` or more where `mean` are expected."""
    if count <= 0:
        return 1.0
    if mean <= 0.0:
        return 0.0
    return _series(count, mean) if mean < count + 1.0 else 1.0 - _fraction(count, mean)


def at_most(count: int, mean: float) -> float:
    """The chance of `count` or fewer where `mean` are expected."""
    if count < 0:
        return 0.0
    if mean <= 0.0:
        return 1.0
    shape = count + 1
    return 1.0 - _series(shape, mean) if mean < shape + 1.0 else _fraction(shape, mean)


def _root(is_below: Callable[[float], bool], low: float, high: float) -> float:
    """Where `is_below` turns from true to false, to the last digit of a float."""
    while True:
        middle = (low + high) / 2.0
        if middle in (low, high):
            return middle
        if is_below(middle):
            low = middle
        else:
            high = middle


def _weight(shape: int, mean: float) -> float:
    """exp(-mean) mean^shape / Gamma(shape), through logarithms: both parts overflow."""
    return math.exp(shape * math.log(mean) - mean - math.lgamma(shape))


def _series(shape: int, mean: float) -> float:
    """The regularised lower incomplete gamma function by its power series (Abramowitz and Stegun 6.5.29)."""
    term = total = 1.0 / shape
    for step in range(1, _MOST_STEPS):
        term *= mean / (shape + step)
        total += term
        if term < total * _CLOSE:
            break
    return total * _weight(shape, mean)


def _fraction(shape: int, mean: float) -> float:
    """The regularised upper one by its continued fraction (6.5.31), evaluated by Lentz's method."""
    below = mean + 1.0 - shape
    upper = 1.0 / _TINY
    lower = 1.0 / below
    value = lower
    for step in range(1, _MOST_STEPS):
        factor = -step * (step - shape)
        below += 2.0
        lower = 1.0 / _away_from_zero(factor * lower + below)
        upper = _away_from_zero(below + factor / upper)
        change = lower * upper
        value *= change
        if abs(change - 1.0) < _CLOSE:
            break
    return value * _weight(shape, mean)


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
