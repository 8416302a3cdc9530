"""How often a training should save: the arithmetic. Pure; every time is in seconds.

`cost` is what the training waits for one save (C), `mtbf` the mean time between two failures of the job (M). What a
failure costs to detect and to restart (D + R) is the same for every interval: it is a share of its own, never part of
C. All of this holds while C is much less than the interval, and the interval much less than M.
"""

from __future__ import annotations

import math

DAY_S = 86_400.0
HOUR_S = 3_600.0


def young_s(cost_s: float, mtbf_s: float) -> float:
    """From the start of one save to the next: sqrt(2 C M) (Young, Comm. ACM 17, 1974)."""
    return math.sqrt(2.0 * cost_s * mtbf_s)


def daly_s(cost_s: float, mtbf_s: float) -> float:
    """From the end of one save to the start of the next, to a higher order; M where a save costs 2 M or more (Daly,
    Future Gener. Comput. Syst. 22, 2006)."""
    if cost_s >= 2.0 * mtbf_s:
        return mtbf_s
    share = cost_s / (2.0 * mtbf_s)
    return young_s(cost_s, mtbf_s) * (1.0 + math.sqrt(share) / 3.0 + share / 9.0) - cost_s


def overhead(interval_s: float, cost_s: float, mtbf_s: float) -> float:
    """The share of the time that goes into saves and into work that a failure takes: C/tau + tau/(2M)."""
    return save_share(interval_s, cost_s) + interval_s / (2.0 * mtbf_s)


def save_share(interval_s: float, cost_s: float) -> float:
    """The share of the time that the training waits for saves."""
    return cost_s / interval_s


def restart_share(restart_s: float, mtbf_s: float) -> float:
    """The share of the time that goes into detection and restart: (D + R)/M, the same for every interval."""
    return restart_s / mtbf_s


def effective(interval_s: float, cost_s: float, mtbf_s: float, restart_s: float) -> float:
    """The share of the time in which the training makes progress that it keeps; never below 0."""
    return max(0.0, 1.0 - overhead(interval_s, cost_s, mtbf_s) - restart_share(restart_s, mtbf_s))


def fleet_mtbf_s(nodes: int, failures_per_node_day: float) -> float:
    """M of a job that needs all of its nodes: their rates add up."""
    return DAY_S / (nodes * failures_per_node_day)


def blended_mtbf_s(prior_s: float, failures: int, exposure_s: float) -> float:
    """M after `failures` in `exposure_s` of running, where `prior_s` was believed before.

    The mean of a Gamma posterior of the rate, (k + 1)/(T + prior): what was believed weighs as much as one failure seen
    in `prior_s`. So one early failure does not halve the interval again and again, and after some the run's own count.
    """
    return (prior_s + exposure_s) / (failures + 1)
