"""GPU time that was held and made no training step. Pure.

Two witnesses. Of runs of fleetctl the ledger says what every stretch went into: startup, hang, teardown, suspended and
spare are idle, the rest of what is told is not. Of other jobs only the energy that their GPUs took between prolog and
epilog says something: below so many watts on average a GPU is called idle for the whole of the job. Which number that
is depends on the model (an idle H100 takes as much as a busy T4), so there is none unless it was given. How much of a
GPU's memory is in use at the epilog says nothing: the job's processes have ended.

What has neither witness is unknown. It is never called idle, and never busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from fleetctl.accounting.spans import Spent


class Kind(StrEnum):
    """What held GPU time went into; all but the last two are idle."""

    STARTUP = "startup"
    HANG = "hang"
    TEARDOWN = "teardown"
    SUSPENDED = "suspended"
    SPARE = "spare"
    LOW_POWER = "low_power"
    BUSY = "busy"
    UNKNOWN = "unknown"


IDLE = tuple(kind for kind in Kind if kind not in (Kind.BUSY, Kind.UNKNOWN))
_KINDS: Mapping[Spent, Kind] = {
    Spent.STARTUP: Kind.STARTUP,
    Spent.HANG: Kind.HANG,
    Spent.TEARDOWN: Kind.TEARDOWN,
    Spent.SUSPENDED: Kind.SUSPENDED,
    Spent.SPARE: Kind.SPARE,
    Spent.PRODUCTIVE: Kind.BUSY,
    Spent.STALL: Kind.BUSY,
    Spent.LOST: Kind.BUSY,  # it trained, though in vain
}
_NOTHING = dict.fromkeys(Kind, 0)


class Use(Struct, frozen=True):
    """What one GPU took between a job's prolog and its epilog; None: not measured."""

    used_ms: int | None
    energy_mj: int | None

    @property
    def watts(self) -> float | None:
        """Millijoules over milliseconds."""
        if self.energy_mj is None or not self.used_ms or self.used_ms < 0:
            return None
        return self.energy_mj / self.used_ms


class Held(Struct, frozen=True):
    """One record that held `gpus` for `held_ms` of the window each. `suspended_ms` of that it was suspended; 0 where
    that is not known. `spent` is the ledger of its run in GPU-milliseconds, None where it is no run's."""

    key: tuple[str | None, ...]
    gpus: int
    held_ms: int
    suspended_ms: int = 0
    uses: tuple[Use, ...] = ()
    spent: Mapping[Spent, int] | None = None


class Idle(Struct, frozen=True):
    """GPU-milliseconds of each kind; they add up to `held_ms`. `watts` is the mean of the GPUs that were measured."""

    key: tuple[str | None, ...]
    records: int
    held_ms: int
    ms: Mapping[Kind, int]
    watts: float | None

    @property
    def idle_ms(self) -> int | None:
        """None: nothing is known."""
        return sum(self.ms[kind] for kind in IDLE) if self.known_ms else None

    @property
    def known_ms(self) -> int:
        return self.held_ms - self.ms[Kind.UNKNOWN]


def idle_of(records: Iterable[Held], idle_watts: float | None) -> tuple[Idle, ...]:
    """By key, the most idle first."""
    sums: dict[tuple[str | None, ...], dict[Kind, int]] = {}
    counts: dict[tuple[str | None, ...], list[int]] = {}
    for one in records:
        if one.key not in sums:
            sums[one.key], counts[one.key] = _NOTHING.copy(), [0, 0, 0]
        found, count = sums[one.key], counts[one.key]
        for kind, gpu_ms in split(one, idle_watts).items():
            found[kind] += gpu_ms
        measured = [use for use in one.uses if use.watts is not None]
        count[0] += 1
        count[1] += sum(use.energy_mj or 0 for use in measured)
        count[2] += sum(use.used_ms or 0 for use in measured)
    rows = [_row(key, ms, counts[key]) for key, ms in sums.items()]
    return tuple(sorted(rows, key=lambda row: (-(row.idle_ms or 0), -row.held_ms, [part or "" for part in row.key])))


def split(one: Held, idle_watts: float | None) -> dict[Kind, int]:
    """Every GPU-millisecond of a record in one kind; they add up to what it held."""
    total = one.gpus * one.held_ms
    if one.spent is not None and any(gpu_ms for spent, gpu_ms in one.spent.items() if spent in _KINDS):
        ms = _NOTHING.copy()
        for spent, gpu_ms in one.spent.items():
            ms[_KINDS.get(spent, Kind.UNKNOWN)] += gpu_ms
        ms[Kind.UNKNOWN] += total - sum(ms.values())
        return ms
    return _by_energy(one, total, idle_watts)


def _by_energy(one: Held, total: int, idle_watts: float | None) -> dict[Kind, int]:
    ms = _NOTHING.copy()
    suspended_ms = min(one.suspended_ms, one.held_ms)
    ms[Kind.SUSPENDED] = one.gpus * suspended_ms
    each_ms = one.held_ms - suspended_ms
    for use in one.uses[: one.gpus]:
        if idle_watts is not None and use.watts is not None:
            ms[Kind.LOW_POWER if use.watts < idle_watts else Kind.BUSY] += each_ms
    ms[Kind.UNKNOWN] = total - sum(ms.values())
    return ms


def _row(key: tuple[str | None, ...], ms: Mapping[Kind, int], count: Sequence[int]) -> Idle:
    records, energy_mj, used_ms = count
    return Idle(key, records, sum(ms.values()), ms, energy_mj / used_ms if used_ms else None)
