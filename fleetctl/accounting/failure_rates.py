"""How often jobs that hold GPUs fail, by cause, node and whatever else, and which nodes fail too often. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction

from msgspec import Struct
from msgspec.structs import replace

from fleetctl.accounting.failures import OF_NODES, Interruption
from fleetctl.reliability import rates
from fleetctl.reliability.rates import Mtbf, Without

HOUR_S = 3_600
REPEATED = 2  # failures of one node
DOUBTFUL = 0.05  # the chance that is taken for none, divided by the number of nodes that are looked at (Bonferroni)


class By(StrEnum):
    """What one row is about."""

    CAUSE = "cause"
    NODE = "node"
    RACK = "rack"
    DAY = "day"
    USER = "user"
    ACCOUNT = "account"
    PARTITION = "partition"
    CLUSTER = "cluster"


class Row(Struct, frozen=True):
    """One line of an answer. `key` None is "not known". What cannot be said without an exposure is None.

    `mtbf` is in hours, of a job on as many GPUs as was asked; `share` of all failures; `without` is how that job would
    do if these were gone. `persons` of the `of_runs` interruptions needed one. `chance`: that a node like all others
    fails so often, and `repeats` where that is not to be believed.
    """

    key: str | None
    interruptions: int
    failures: int
    gpu_seconds: Fraction | None
    per_1000_gpu_days: float | None
    mtbf: Mtbf
    share: float | None
    without: Without
    persons: int
    of_runs: int
    chance: float | None = None
    repeats: bool = False


def table(
    interruptions: Sequence[Interruption],
    exposures: Mapping[str | None, Fraction],
    total: Fraction,
    key: Callable[[Interruption], str | None],
    gpus: int = 1,
) -> tuple[Row, ...]:
    """One row for each key that has interruptions or an exposure, the most failures first.

    `exposures` are GPU-seconds held by key, `total` those of all.
    """
    groups: dict[str | None, list[Interruption]] = {name: [] for name in exposures}
    for one in interruptions:
        groups.setdefault(key(one), []).append(one)
    failures = sum(one.failed for one in interruptions)
    rows = [_row(name, group, exposures.get(name), (failures, total), gpus) for name, group in groups.items()]
    return tuple(sorted(rows, key=_order))


def with_chances(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows of nodes, with the chance that a node of the fleet's own rate fails so often, and who is doubtful.

    The rate is that of all nodes together, the doubtful ones included: rather one too few than one too many.
    """
    known = [row for row in rows if row.key is not None and row.gpu_seconds]
    held = sum((row.gpu_seconds for row in known if row.gpu_seconds), Fraction(0))
    failures = sum(row.failures for row in known)
    return tuple(_with_chance(row, failures, held, len(known)) for row in rows)


def of_nodes(interruptions: Iterable[Interruption]) -> tuple[Interruption, ...]:
    """Those failures that some node is charged with, known which or not."""
    return tuple(one for one in interruptions if one.failed and (one.node or one.cause in OF_NODES))


def _row(
    name: str | None,
    group: Sequence[Interruption],
    held: Fraction | None,
    fleet: tuple[int, Fraction],
    gpus: int,
) -> Row:
    failures = sum(one.failed for one in group)
    everywhere, total = fleet
    hours = float(total) / HOUR_S / gpus
    return Row(
        key=name,
        interruptions=len(group),
        failures=failures,
        gpu_seconds=held,
        per_1000_gpu_days=None if held is None else rates.per_1000_gpu_days(failures, float(held)),
        mtbf=rates.mtbf(0.0 if held is None else float(held) / HOUR_S / gpus, failures),
        share=failures / everywhere if everywhere else None,
        without=rates.without(hours, everywhere, failures),
        persons=sum(one.by_person is True for one in group),
        of_runs=sum(one.by_person is not None for one in group),
    )


def _with_chance(row: Row, failures: int, held: Fraction, nodes: int) -> Row:
    if row.key is None or not row.gpu_seconds or not held:
        return row
    chance = rates.at_least(row.failures, failures * float(row.gpu_seconds / held))
    repeats = row.failures >= REPEATED and chance < DOUBTFUL / nodes
    return replace(row, chance=chance, repeats=repeats)


def _order(row: Row) -> tuple[bool, int, int, str]:
    """The unknown last."""
    return row.key is None, -row.failures, -row.interruptions, row.key or ""
