"""How often things fail, and how sure that is."""

from __future__ import annotations

import math

import pytest

from fleetctl.reliability import rates

_LLAMA_HOURS = 54 * 24  # 419 unexpected interruptions of 16,384 GPUs in 2,048 nodes (Llama 3, section 3.3.4)


@pytest.mark.parametrize(
    ("failures", "low", "high"),
    [  # Garwood's table, which R's poisson.test prints, too
        (0, 0.0, 3.689),
        (1, 0.0253, 5.572),
        (2, 0.2422, 7.225),
        (5, 1.623, 11.67),
        (10, 4.795, 18.39),
        (100, 81.36, 121.63),
    ],
)
def test_the_limits_of_a_count_are_those_of_the_tables(failures: int, low: float, high: float) -> None:
    found = rates.count_limits(failures)

    assert list(found) == pytest.approx([low, high], rel=1e-3)


def test_the_limits_of_another_confidence() -> None:
    assert list(rates.count_limits(0, 0.90)) == pytest.approx([0.0, -math.log(0.05)])
    assert list(rates.count_limits(3, 0.90)) == pytest.approx([0.8177, 7.7537], rel=1e-4)


def test_a_million_failures_have_limits_too() -> None:
    assert list(rates.count_limits(1_000_000)) == pytest.approx([998_041, 1_001_962], abs=1.0)


def test_the_job_of_16384_gpus_failed_every_three_hours() -> None:
    found = rates.mtbf(_LLAMA_HOURS, 419)

    assert [found.value, found.low, found.high] == pytest.approx([3.093, 2.811, 3.412], abs=5e-4)


def test_without_its_network_it_would_have_failed_a_ninth_less_often() -> None:
    found = rates.without(_LLAMA_HOURS, 419, 42)

    assert found.left == 377
    assert found.mtbf == pytest.approx(3.44, abs=5e-3)
    assert found.gain == pytest.approx(0.111, abs=5e-4)


@pytest.mark.parametrize(
    ("failures", "node_days", "rate"),
    [(419, 2_048 * 54, 3.789), (650, 100_000, 6.50), (234, 100_000, 2.34)],  # the last two: RSC-1 and RSC-2
)
def test_failures_per_thousand_node_days(failures: int, node_days: int, rate: float) -> None:
    assert rates.per_1000_gpu_days(failures, node_days * 86_400.0) == pytest.approx(rate, abs=5e-4)


def test_of_what_never_failed_only_a_lower_limit_is_known() -> None:
    found = rates.mtbf(1_000.0, 0)

    assert (found.value, found.high) == (None, None)
    assert found.low == pytest.approx(1_000 / 3.689, rel=1e-3)


def test_without_exposure_nothing_is_known() -> None:
    assert rates.mtbf(0.0, 3) == rates.Mtbf(None, None, None)
    assert rates.per_1000_gpu_days(3, 0.0) is None
    assert rates.without(0.0, 3, 1) == rates.Without(2, None, 0.5)


def test_if_every_cause_were_gone_there_is_no_time_between_failures() -> None:
    assert rates.without(100.0, 3, 3) == rates.Without(0, None, None)


@pytest.mark.parametrize(
    ("count", "mean", "chance"),
    [
        (0, 5.0, 1.0),
        (1, 0.0, 0.0),
        (1, 0.1, 1 - math.exp(-0.1)),
        (3, 0.1, 1.5465e-4),
        (10, 10.0, 0.5421),
        (0, 0.0, 1.0),
    ],
)
def test_the_chance_of_so_many_or_more(count: int, mean: float, chance: float) -> None:
    assert rates.at_least(count, mean) == pytest.approx(chance, rel=1e-4)


def test_what_is_next_to_impossible_keeps_its_digits() -> None:
    assert rates.at_least(50, 1.0) == pytest.approx(1.23375e-65, rel=1e-5)  # far below what 1 - x can hold


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: rates.count_limits(-1),
        lambda: rates.count_limits(1, 1.0),
        lambda: rates.count_limits(1, 0.0),
        lambda: rates.mtbf(-1.0, 1),
        lambda: rates.without(1.0, 1, 2),
        lambda: rates.without(1.0, 1, -1),
    ],
)
def test_what_cannot_be_is_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(ValueError, match=r"cannot be|lies between"):
        wrong()
