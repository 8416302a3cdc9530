"""What a save costs and how often a job fails: measured, given or assumed, and it says which. Pure."""

from __future__ import annotations

from enum import StrEnum
from statistics import median

from msgspec import Struct

from fleetctl.reliability import interval
from fleetctl.train.schedule import best_interval_s

# RSC-1, 16,000 A100 in nodes of 8: 6.50 failures per 1,000 node-days; RSC-2 2.34 (Kokolis et al., HPCA 2025,
# arXiv 2410.21680); Llama 3 about 3.8 (419 in 54 days on 2,048 nodes). The highest of them: the interval goes with the
# root of the rate, so that too many saves cost little, and the formula is optimistic for small jobs as it is.
FAILURES_PER_NODE_DAY = 6.50e-3
_FLEET = "RSC-1 (Kokolis et al. 2025)"
_COST_S = 300.0  # the same source's typical save; one that is written beside the training costs only seconds
_RESTART_S = 600.0  # detection, start, load and warm-up: 5 to 20 minutes (same source)
_FEW_COSTS = 10.0  # an interval below so many C: terms that the formulas leave out begin to count


class Source(StrEnum):
    """Where a number comes from."""

    MEASURED = "measured"
    GIVEN = "given"
    ASSUMED = "assumed"


class Quantity(Struct, frozen=True):
    """A time, where it comes from, and that in words."""

    seconds: float
    source: Source
    why: str

    def __str__(self) -> str:
        return f"{span(self.seconds)} ({self.source}: {self.why})" if self.why else f"{span(self.seconds)} (given)"


class Observed(Struct, frozen=True):
    """What a run has measured so far: of each save what the training waited and what it took in all, how long restarts
    took, and how often it failed in how much running time on how many nodes."""

    costs_s: tuple[float, ...] = ()
    totals_s: tuple[float, ...] = ()
    restarts_s: tuple[float, ...] = ()
    failures: int = 0
    exposure_s: float = 0.0
    nodes: int = 1


class Plan(Struct, frozen=True):
    """How often to save, and why. `total_s` is what a save takes until it is on disk, 0 where that is not known."""

    cost: Quantity
    mtbf: Quantity
    restart: Quantity
    total_s: float = 0.0

    @property
    def young_s(self) -> float:
        return interval.young_s(self.cost.seconds, self.mtbf.seconds)

    @property
    def daly_s(self) -> float:
        return interval.daly_s(self.cost.seconds, self.mtbf.seconds)

    @property
    def auto_s(self) -> float:
        """What `interval: auto` takes: Young's, within bounds. Daly's differs by less than what is known of C and M."""
        return best_interval_s(self.cost.seconds, self.total_s, self.mtbf.seconds)

    @property
    def restart_share(self) -> float:
        return interval.restart_share(self.restart.seconds, self.mtbf.seconds)

    def overhead(self, interval_s: float) -> float:
        return interval.overhead(interval_s, self.cost.seconds, self.mtbf.seconds)

    def save_share(self, interval_s: float) -> float:
        return interval.save_share(interval_s, self.cost.seconds)

    def effective(self, interval_s: float) -> float:
        return interval.effective(interval_s, self.cost.seconds, self.mtbf.seconds, self.restart.seconds)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the numbers take for granted and practice does not keep."""
        return (
            "failures come at a constant rate; new and just mended nodes fail more often",
            "one at a time; a switch, a power line or a driver takes many nodes at once",
            "every save costs the same; real ones vary by 2 to 3 times",
            "the run lasts much longer than the time between two failures",
            *self._doubts(),
        )

    def _doubts(self) -> tuple[str, ...]:
        doubts: tuple[str, ...] = ()
        if self.mtbf.source is Source.ASSUMED:
            doubts += (
                "the fleet is like that one; jobs below about 4,096 GPUs failed more often there (1,024 GPUs: every "
                "8 h, where the rate says 29 h)",
            )
        if self.young_s < _FEW_COSTS * self.cost.seconds:
            doubts += ("a save costs little against the interval, which is not so here: the shares are rough",)
        return doubts


def make_plan(
    seen: Observed,
    nodes: int,
    *,
    cost_s: float | None = None,
    mtbf_s: float | None = None,
    restart_s: float | None = None,
    failures_per_node_day: float | None = None,
) -> Plan:
    """What was given counts, then what was measured, then what is assumed."""
    total_s = median(seen.totals_s) if seen.totals_s and cost_s is None else 0.0
    return Plan(
        cost=_seconds(
            cost_s, seen.costs_s, "save", _COST_S, "the training waits for a whole save, Kokolis et al. 2025"
        ),
        mtbf=_mtbf(seen, nodes, failures_per_node_day) if mtbf_s is None else Quantity(mtbf_s, Source.GIVEN, ""),
        restart=_seconds(restart_s, seen.restarts_s, "restart", _RESTART_S, "with detection, load and warm-up"),
        total_s=total_s,
    )


def _seconds(given_s: float | None, measured_s: tuple[float, ...], what: str, assumed_s: float, why: str) -> Quantity:
    if given_s is not None:
        return Quantity(given_s, Source.GIVEN, "")
    if measured_s:
        return Quantity(median(measured_s), Source.MEASURED, f"the median of {_count(len(measured_s), what)}")
    return Quantity(assumed_s, Source.ASSUMED, why)


def _mtbf(seen: Observed, nodes: int, given: float | None) -> Quantity:
    """The fleet's rate, mended by what the run has seen itself."""
    rate = FAILURES_PER_NODE_DAY if given is None else given
    fleet = f"{_count(nodes, 'node')}, each with {rate * 1000:.3g} failures in 1,000 days"
    fleet += f" as in {_FLEET}" if given is None else ""
    exposure_s = seen.exposure_s * seen.nodes / nodes
    found_s = interval.blended_mtbf_s(interval.fleet_mtbf_s(nodes, rate), seen.failures, exposure_s)
    ran = f"{span(seen.exposure_s)} on {_count(seen.nodes, 'node')}"
    if seen.failures:
        why = f"{_count(seen.failures, 'failure')} in {ran}, and what weighs as one more: {fleet}"
        return Quantity(found_s, Source.MEASURED, why)
    source = Source.ASSUMED if given is None else Source.GIVEN
    return Quantity(found_s, source, f"{fleet}; none yet in {ran}" if seen.exposure_s else fleet)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def span(seconds: float) -> str:
    """A time for people, with about three digits: `0.06s`, `16m32s`, `3h41m`, `12d4h`."""
    if seconds < 10.0:
        return f"{seconds:.2g}s"
    left, parts = round(seconds), list[str]()
    for name, unit in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if left >= unit or parts:
            parts.append(f"{left // unit}{name}")
            left %= unit
    return "".join(part for part in parts[:2] if not part.startswith("0"))
