"""The exact limits of a Poisson count, against its definition."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.reliability import rates

counts = st.integers(0, 400)
means = st.floats(1e-6, 600.0)
confidences = st.floats(0.01, 0.999)


def _summed(count: int, mean: float) -> float:
    """P(X <= count), term by term."""
    return math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1))


@given(counts, means)
def test_the_chance_is_the_sum_of_its_terms(count: int, mean: float) -> None:
    assert rates.at_most(count, mean) == pytest.approx(_summed(count, mean), rel=1e-9, abs=1e-12)


@given(counts, means)
def test_so_many_or_more_and_fewer_are_everything(count: int, mean: float) -> None:
    assert rates.at_least(count + 1, mean) + rates.at_most(count, mean) == pytest.approx(1.0, abs=1e-12)


@given(counts, confidences)
def test_each_limit_leaves_out_what_its_definition_says(count: int, confidence: float) -> None:
    low, high = rates.count_limits(count, confidence)
    each = (1 - confidence) / 2

    assert low <= count <= high
    assert rates.at_most(count, high) == pytest.approx(each, rel=1e-6)
    assert count == 0 or rates.at_least(count, low) == pytest.approx(each, rel=1e-6)


@given(counts, confidences)
def test_one_failure_more_moves_both_limits_up(count: int, confidence: float) -> None:
    fewer, more = rates.count_limits(count, confidence), rates.count_limits(count + 1, confidence)

    assert fewer[0] < more[0]
    assert fewer[1] < more[1]


@given(st.integers(1, 1_000), st.floats(1e-3, 1e9), st.data())
def test_what_is_left_and_what_is_gone_add_up(failures: int, exposure: float, data: st.DataObject) -> None:
    gone = data.draw(st.integers(0, failures))
    found = rates.without(exposure, failures, gone)

    assert found.left + gone == failures
    if found.mtbf is not None and found.gain is not None:
        assert found.mtbf == pytest.approx(exposure / failures * (1 + found.gain))
