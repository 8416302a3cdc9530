"""Fair share: what was promised, what was used, and what that makes of a priority.

Old usage counts less and less, by half for each half-life that has passed since, as in Slurm (priority_multifactor:
PriorityDecayHalfLife). Slurm lets it decay in steps of PriorityCalcPeriod; here it does so all the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from fleetctl.accounting.usage import Held
from fleetctl.slurm.books import Share

HALF_LIVES = 30  # what is older has decayed to a billionth
_EPSILON = 0.01  # an account that used nothing gets a hundred times its share, not an infinite priority
Whose = tuple[str | None, ...]


class Standing(Struct, frozen=True):
    """A line of sshare beside our own sums. None: neither Slurm nor a record tells."""

    share: Share
    decayed_gpu_seconds: float | None
    used_share: float | None  # of an account: of all GPU time; of a user: of that of the account
    effective_priority: float | None


class Decayed(Struct, frozen=True):
    """By the keys of the records. `unknown` counts those of which nobody knows the GPUs or the end: in no sum."""

    gpu_seconds: Mapping[Whose, float]
    unknown: Mapping[Whose, int]


def decayed(held: Iterable[Held], now_s: int, half_life_s: int) -> Decayed:
    """GPU-seconds, each second weighed by its age.

    The integral of 2^(-(now - t) / half-life) over the time that a record held its GPUs.
    """
    sums: dict[Whose, float] = {}
    unknown: dict[Whose, int] = {}
    for one in held:
        if one.gpus is None or one.ended_s is None:
            unknown[one.keys] = unknown.get(one.keys, 0) + 1
            continue
        end_s = min(one.ended_s, now_s)
        sums.setdefault(one.keys, 0.0)
        if one.gpus and one.started_s < end_s:
            weights = (2.0 ** ((at_s - now_s) / half_life_s) for at_s in (end_s, one.started_s))
            weighed_s = half_life_s / math.log(2) * (next(weights) - next(weights))
            sums[one.keys] += one.gpus * weighed_s
    return Decayed(sums, unknown)


def standings(shares: Sequence[Share], used: Decayed, base: float) -> tuple[Standing, ...]:
    """Each line of sshare, in its order.

    :param used: by account and user. Accounts below an account are not added to it.
    :param base: the priority that a share of exactly what was promised gives (nearly).
    """
    by_account: dict[str | None, float] = {}
    for (account, _), seconds in used.gpu_seconds.items():
        by_account[account] = by_account.get(account, 0.0) + seconds
    everything = sum(by_account.values())
    untold = {*used.unknown, *((account, "") for account, _ in used.unknown)}
    told: dict[Whose, float] = {**used.gpu_seconds, **{(account, ""): sum_s for account, sum_s in by_account.items()}}
    found = []
    for share in shares:
        whose = (share.account, share.user)
        mine = told.get(whose, None if whose in untold else 0.0)
        whole = by_account.get(share.account, 0.0) if share.user else everything
        actual = mine / whole if whole and mine is not None else None
        found.append(Standing(share, mine, actual, effective_priority(base, share.norm_shares, actual)))
    return tuple(found)


def effective_priority(base: float, target: float | None, actual: float | None) -> float | None:
    """base x target / (actual + 0.01): None where one of them is not known."""
    return None if target is None or actual is None else base * target / (actual + _EPSILON)
