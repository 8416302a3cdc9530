"""The interval against the cost that Daly computed without approximations, and its bounds."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.reliability import interval
from fleetctl.reliability.estimate import Observed, make_plan
from fleetctl.train.schedule import Schedule, best_interval_s

COSTS = st.floats(1e-4, 7200.0)
MTBFS = st.floats(60.0, 3e8)


def expected_time(cycle_s: float, cost_s: float, mtbf_s: float) -> float:
    """Wall time for a second of progress when failures come at a constant rate (Daly 2006, eq. 20, restarts apart)."""
    return mtbf_s * math.expm1(cycle_s / mtbf_s) / (cycle_s - cost_s)


@given(mtbf_s=MTBFS, share=st.floats(1e-7, 0.02))
def test_both_formulas_lie_where_the_cost_is_flat(mtbf_s: float, share: float) -> None:
    """For saves that cost less than 2 % of the time between failures."""
    cost_s = share * mtbf_s
    low, high = cost_s * 1.0001, 50 * interval.young_s(cost_s, mtbf_s)
    for _ in range(200):  # the cost has one lowest point
        third = (high - low) / 3
        if expected_time(low + third, cost_s, mtbf_s) < expected_time(high - third, cost_s, mtbf_s):
            high -= third
        else:
            low += third
    least = expected_time(low, cost_s, mtbf_s)
    assert expected_time(interval.young_s(cost_s, mtbf_s), cost_s, mtbf_s) <= least * 1.002
    assert expected_time(interval.daly_s(cost_s, mtbf_s) + cost_s, cost_s, mtbf_s) <= least * 1.0001


@given(cost_s=COSTS, mtbf_s=MTBFS, factor=st.floats(0.1, 10.0))
def test_no_other_interval_has_a_lower_overhead(cost_s: float, mtbf_s: float, factor: float) -> None:
    best_s = interval.young_s(cost_s, mtbf_s)
    best, other = (interval.overhead(one_s, cost_s, mtbf_s) for one_s in (best_s, best_s * factor))
    assert best <= other * (1 + 1e-9)
    assert math.isclose(best, math.sqrt(2 * cost_s / mtbf_s))


@given(cost_s=COSTS, more_s=st.floats(0.0, 7200.0), mtbf_s=MTBFS)
def test_the_interval_keeps_its_bounds(cost_s: float, more_s: float, mtbf_s: float) -> None:
    total_s = cost_s + more_s
    found_s = best_interval_s(cost_s, total_s, mtbf_s)
    assert found_s >= 60.0
    assert found_s >= 2 * total_s
    assert found_s <= max(7200.0, 100 * cost_s, 2 * total_s)


@given(
    costs=st.lists(COSTS, max_size=5),
    failures=st.integers(0, 1000),
    exposure_s=st.floats(0.0, 1e9),
    nodes=st.integers(1, 100_000),
)
def test_whatever_was_seen_there_is_a_plan(costs: list[float], failures: int, exposure_s: float, nodes: int) -> None:
    seen = Observed(tuple(costs), tuple(costs), (), failures, exposure_s, nodes)
    plan = make_plan(seen, nodes)
    assert 60.0 <= plan.auto_s < math.inf
    assert 0.0 <= plan.effective(plan.auto_s) <= 1.0
    assert plan.mtbf.seconds > 0
    assert str(plan.cost)
    assert make_plan(Observed(failures=failures + 1, exposure_s=exposure_s, nodes=nodes), nodes).mtbf.seconds < (
        make_plan(Observed(failures=failures, exposure_s=exposure_s, nodes=nodes), nodes).mtbf.seconds
    )


@given(saves=st.lists(st.tuples(COSTS, st.floats(0.0, 600.0)), min_size=1, max_size=12), mtbf_s=MTBFS)
def test_a_training_mends_its_interval_by_its_newest_saves(saves: list[tuple[float, float]], mtbf_s: float) -> None:
    schedule, now = Schedule(7200.0, None, 0.0, mtbf_s=mtbf_s), 0.0
    for step, (blocked_s, more_s) in enumerate(saves):
        schedule.started(step, now)
        schedule.succeeded(blocked_s, blocked_s + more_s)
    recent = saves[-5:]
    cost_s = sorted(cost for cost, _ in recent)[(len(recent) - 1) // 2]
    total_s = sorted(cost + more for cost, more in recent)[(len(recent) - 1) // 2]
    wanted_s = best_interval_s(cost_s, total_s, mtbf_s)
    assert not schedule.due(len(saves), now + wanted_s * 0.999)
    assert schedule.due(len(saves), now + wanted_s * 1.001)
