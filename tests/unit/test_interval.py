"""The arithmetic of saving, held against worked examples, and where its numbers come from."""

from __future__ import annotations

import pytest

from fleetctl.reliability import interval
from fleetctl.reliability.estimate import FAILURES_PER_NODE_DAY, Observed, Source, make_plan, span
from fleetctl.train.schedule import best_interval_s

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0

# Worked examples: cost, time between failures, then what must come out as (interval, its unit, digits after the point)
EXAMPLES = [
    pytest.param(37.0, 13_284.0, (991.5, 1.0, 1), id="3.7 TB at 100 GB/s"),
    pytest.param(30.0, 4 * HOUR_S, (15.49, MINUTE_S, 2), id="30 s, 4 h"),
    pytest.param(300.0, 4 * HOUR_S, (48.99, MINUTE_S, 2), id="300 s, 4 h"),
    pytest.param(15 * MINUTE_S, 5 * HOUR_S, (94.9, MINUTE_S, 1), id="15 min, 5 h"),
    pytest.param(2.5 * MINUTE_S, 2 * HOUR_S, (24.5, MINUTE_S, 1), id="2.5 min, 2 h"),
    pytest.param(5 * MINUTE_S, 4 * HOUR_S, (49.0, MINUTE_S, 1), id="5 min, 4 h"),
    pytest.param(15 * MINUTE_S, 4 * HOUR_S, (84.9, MINUTE_S, 1), id="15 min, 4 h"),
    pytest.param(21.0, 5 * HOUR_S, (14.49, MINUTE_S, 2), id="21 s, 5 h"),
    pytest.param(2.4, 5 * HOUR_S, (4.90, MINUTE_S, 2), id="2.4 s, 5 h"),
    pytest.param(0.014, 5 * HOUR_S, (22.4, 1.0, 1), id="0.014 s, 5 h"),
    pytest.param(40.0, 5 * HOUR_S, (20.0, MINUTE_S, 1), id="40 s, 5 h"),
    pytest.param(0.001024, 5 * HOUR_S, (6.1, 1.0, 1), id="0.001024 s, 5 h"),
    pytest.param(0.012, 5 * HOUR_S, (20.8, 1.0, 1), id="0.012 s, 5 h"),
]


@pytest.mark.parametrize(("cost_s", "mtbf_s", "must_give"), EXAMPLES)
def test_the_best_interval(cost_s: float, mtbf_s: float, must_give: tuple[float, float, int]) -> None:
    expected, unit_s, digits = must_give
    assert round(interval.young_s(cost_s, mtbf_s) / unit_s, digits) == expected


@pytest.mark.parametrize(
    ("cost_s", "mtbf_s", "at_s", "percent", "digits"),
    [
        pytest.param(37.0, 13_284.0, None, 7.46, 2, id="37 s"),
        pytest.param(37.0, 13_284.0, HOUR_S, 14.58, 2, id="hourly instead"),
        pytest.param(30.0, 4 * HOUR_S, None, 6.455, 3, id="30 s"),
        pytest.param(300.0, 4 * HOUR_S, None, 20.41, 2, id="300 s"),
    ],
)
def test_the_overhead(cost_s: float, mtbf_s: float, at_s: float | None, percent: float, digits: int) -> None:
    taken_s = interval.young_s(cost_s, mtbf_s) if at_s is None else at_s
    assert round(100 * interval.overhead(taken_s, cost_s, mtbf_s), digits) == percent


@pytest.mark.parametrize(("cost_s", "percent"), [(30.0, 10.62), (300.0, 24.58)])
def test_restarts_are_a_share_apart(cost_s: float, percent: float) -> None:
    mtbf_s, restart_s = 4 * HOUR_S, 10 * MINUTE_S
    taken_s = interval.young_s(cost_s, mtbf_s)
    lost = interval.overhead(taken_s, cost_s, mtbf_s) + interval.restart_share(restart_s, mtbf_s)
    assert round(100 * lost, 2) == percent
    assert interval.effective(taken_s, cost_s, mtbf_s, restart_s) == pytest.approx(1 - lost)
    assert interval.effective(taken_s, cost_s, mtbf_s, 10 * mtbf_s) == 0.0


@pytest.mark.parametrize(
    ("cost_s", "percent", "digits"),
    [(21, 2.42, 2), (2.4, 0.816, 3), (0.014, 0.062, 3), (40, 3.33, 2), (0.001024, 0.017, 3), (0.012, 0.058, 3)],
)
def test_the_share_of_saves_alone(cost_s: float, percent: float, digits: int) -> None:
    taken_s = interval.young_s(cost_s, 5 * HOUR_S)
    assert round(100 * interval.save_share(taken_s, cost_s), digits) == percent


def test_a_cluster_of_the_interactive_model() -> None:
    """16,384 GPUs with a link each, 1,024 switches, one software failure a day; saves of 30 s, 4.5 min to restart."""
    per_day = 16_384 * 0.145 / 365 + 16_384 * 0.00057 / 30 + 1024 * 0.00051 / 30 + 1
    assert round(per_day, 3) == 7.837
    mtbf_s = interval.fleet_mtbf_s(1, per_day)
    assert round(mtbf_s / HOUR_S, 3) == 3.062
    taken_s = interval.young_s(30.0, mtbf_s)
    assert round(taken_s / MINUTE_S, 2) == 13.55
    assert round(interval.effective(taken_s, 30.0, mtbf_s, 270.0), 4) == 0.9017


def test_the_higher_order_formula() -> None:
    """It counts without the save itself, and is M where a save costs 2 M or more."""
    assert interval.daly_s(37.0, 13_284.0) == pytest.approx(991.5 * (1 + 0.037318 / 3 + 0.0013926 / 9) - 37, abs=0.1)
    assert interval.daly_s(100.0, 50.0) == interval.daly_s(500.0, 50.0) == 50.0
    assert interval.daly_s(99.9, 50.0) == pytest.approx(44.4, abs=0.2)
    assert interval.daly_s(1e-6, 1e6) + 1e-6 == pytest.approx(interval.young_s(1e-6, 1e6))


@pytest.mark.parametrize(
    ("gpus", "hours"),
    [(8, 6250), (64, 781.25), (512, 97.66), (1000, 50), (4000, 12.5), (10_000, 5), (25_000, 2)],
)
def test_the_rates_of_all_nodes_add_up(gpus: int, hours: float) -> None:
    """GPUs that fail every 50,000 h, alone."""
    assert round(interval.fleet_mtbf_s(gpus, 24 / 50_000) / HOUR_S, 2) == hours


def test_a_node_fails_as_often_as_its_parts() -> None:
    """8 GPUs with their PCIe, power and network: 3.692 h on 1,250 nodes."""
    per_hour = 8 * (1 / 50_000 + 1 / 200_000) + 1 / 100_000 + 1 / 150_000
    assert round(interval.fleet_mtbf_s(1250, 24 * per_hour) / HOUR_S, 3) == 3.692


def test_published_rates() -> None:
    assert round(interval.fleet_mtbf_s(128, FAILURES_PER_NODE_DAY) / HOUR_S, 1) == 28.8, "1,024 GPUs of RSC-1"
    assert round(interval.fleet_mtbf_s(2048, 3.788e-3) / HOUR_S, 2) == 3.09, "Llama 3"


def test_what_was_believed_weighs_as_one_failure() -> None:
    assert interval.blended_mtbf_s(100.0, 0, 0.0) == 100.0
    assert interval.blended_mtbf_s(100.0, 0, 300.0) == 400.0, "nothing happened: it is more than was believed"
    assert interval.blended_mtbf_s(100.0, 1, 0.0) == 50.0, "a failure at once"
    assert interval.blended_mtbf_s(100.0, 999, 9900.0) == pytest.approx(10.0), "the run's own count"


# Where the numbers come from


def test_without_anything_all_is_assumed_and_said() -> None:
    plan = make_plan(Observed(), 128)
    assert {plan.cost.source, plan.mtbf.source, plan.restart.source} == {Source.ASSUMED}
    assert (plan.cost.seconds, plan.restart.seconds) == (300.0, 600.0)
    assert round(plan.mtbf.seconds / HOUR_S, 1) == 28.8
    assert "RSC-1" in str(plan.mtbf)
    assert any("4,096 GPUs" in text for text in plan.assumptions), "the rate is optimistic for small jobs"


def test_what_is_measured_counts_more_than_what_is_assumed() -> None:
    seen = Observed((1.0, 9.0, 2.0), (5.0, 20.0, 6.0), (40.0,), failures=3, exposure_s=10 * DAY_S, nodes=64)
    plan = make_plan(seen, 64)
    assert {plan.cost.source, plan.mtbf.source, plan.restart.source} == {Source.MEASURED}
    assert (plan.cost.seconds, plan.total_s, plan.restart.seconds) == (2.0, 6.0, 40.0), "medians"
    prior_s = DAY_S / (64 * FAILURES_PER_NODE_DAY)
    assert plan.mtbf.seconds == pytest.approx((prior_s + 10 * DAY_S) / 4)
    assert str(plan.cost) == "2s (measured: the median of 3 saves)"
    assert "3 failures in 10d on 64 nodes" in str(plan.mtbf)
    assert not any("4,096" in text for text in plan.assumptions)


def test_what_is_given_counts_most() -> None:
    seen = Observed((1.0,), (5.0,), (40.0,), failures=3, exposure_s=10 * DAY_S)
    plan = make_plan(seen, 1, cost_s=37.0, mtbf_s=13_284.0, restart_s=60.0)
    assert (plan.cost.seconds, plan.mtbf.seconds, plan.restart.seconds, plan.total_s) == (37.0, 13_284.0, 60.0, 0.0)
    assert str(plan.mtbf) == "3h41m (given)"
    assert plan.auto_s == pytest.approx(991.5, abs=0.1)


def test_a_given_rate_is_mended_by_what_the_run_has_seen() -> None:
    plan = make_plan(Observed(), 2, failures_per_node_day=0.5)
    assert (plan.mtbf.seconds, plan.mtbf.source) == (DAY_S, Source.GIVEN)
    none = make_plan(Observed(exposure_s=DAY_S, nodes=2), 2, failures_per_node_day=0.5)
    assert (none.mtbf.seconds, none.mtbf.source) == (2 * DAY_S, Source.GIVEN)
    assert "none yet in 1d on 2 nodes" in none.mtbf.why
    some = make_plan(Observed(failures=1, exposure_s=DAY_S, nodes=2), 2, failures_per_node_day=0.5)
    assert (some.mtbf.seconds, some.mtbf.source) == (DAY_S, Source.MEASURED)


def test_the_same_run_on_more_nodes_would_fail_more_often() -> None:
    seen = Observed(failures=4, exposure_s=20 * DAY_S, nodes=8)
    assert make_plan(seen, 16).mtbf.seconds == pytest.approx(make_plan(seen, 8).mtbf.seconds / 2)


def test_a_save_that_is_not_cheap_is_doubted() -> None:
    assert any("rough" in text for text in make_plan(Observed(), 1, cost_s=900.0, mtbf_s=5 * HOUR_S).assumptions)
    assert not any("rough" in text for text in make_plan(Observed(), 1, cost_s=30.0, mtbf_s=5 * HOUR_S).assumptions)


@pytest.mark.parametrize(
    ("cost_s", "total_s", "mtbf_s", "expected_s"),
    [
        pytest.param(37.0, 60.0, 13_284.0, 991.5, id="the formula"),
        pytest.param(0.014, 1.0, 5 * HOUR_S, 60.0, id="never more often than once a minute"),
        pytest.param(0.5, 400.0, 5 * HOUR_S, 800.0, id="the save before must have drained"),
        pytest.param(1.0, 5.0, 150 * DAY_S, 5091.2, id="on one node"),
        pytest.param(37.0, 60.0, 150 * DAY_S, 7200.0, id="at most two hours hang on the rate"),
        pytest.param(600.0, 600.0, 150 * DAY_S, 60_000.0, id="unless saves would take more than 1 %"),
        pytest.param(1.0, 5000.0, 150 * DAY_S, 10_000.0, id="draining counts more than the longest"),
    ],
)
def test_the_bounds_of_the_interval(cost_s: float, total_s: float, mtbf_s: float, expected_s: float) -> None:
    assert best_interval_s(cost_s, total_s, mtbf_s) == pytest.approx(expected_s, abs=0.1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0014, "0.0014s"), (0.06, "0.06s"), (2.4, "2.4s"), (10.0, "10s"), (59.6, "1m"), (991.5, "16m32s"),
        (3600.0, "1h"), (13_284.0, "3h41m"), (86_400.0, "1d"), (90_000.0, "1d1h"), (86_460.0, "1d"),
    ],
)  # fmt: skip
def test_a_time_is_printed_with_about_three_digits(seconds: float, text: str) -> None:
    assert span(seconds) == text
