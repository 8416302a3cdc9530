"""Fair share: usage that is forgotten by half-lives, and what it makes of a priority."""

from __future__ import annotations

import math

import pytest

from fleetctl.accounting.shares import Decayed, Whose, decayed, effective_priority, standings
from fleetctl.accounting.usage import Held
from fleetctl.slurm.books import Share
from tests.accounting_rows import DAY_S, HOUR_S, T0

_WEEK_S = 7 * DAY_S


def held(start_s: int, end_s: int | None, gpus: int | None = 1) -> Held:
    return Held(("lab", "ada"), "", gpus, start_s, end_s)


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        (held(T0 - HOUR_S, T0), HOUR_S),
        (held(T0 - HOUR_S - _WEEK_S, T0 - _WEEK_S, 8), 8 * HOUR_S / 2),
        (held(T0 - HOUR_S - 2 * _WEEK_S, T0 - 2 * _WEEK_S, 8), 8 * HOUR_S / 4),
        (held(T0 - 1000 * _WEEK_S, T0), _WEEK_S / math.log(2)),  # for ever: the sum of all that is not yet forgotten
        (held(T0 - HOUR_S, T0 + HOUR_S), HOUR_S),  # what is to come is not used yet
    ],
)
def test_each_second_counts_by_its_age(row: Held, wanted: float) -> None:
    assert decayed([row], T0, _WEEK_S).gpu_seconds["lab", "ada"] == pytest.approx(wanted, rel=0.005)


@pytest.mark.parametrize("row", [held(T0 + 9, T0 + 99), held(T0 - 9, T0, 0), held(T0, T0 - 9)])
def test_what_held_nothing_uses_nothing(row: Held) -> None:
    assert decayed([row], T0, _WEEK_S) == Decayed({("lab", "ada"): 0.0}, {})


@pytest.mark.parametrize("row", [held(T0 - 9, T0, None), held(T0 - 9, None)])
def test_what_nobody_knows_is_counted_apart(row: Held) -> None:
    assert decayed([row, row], T0, _WEEK_S) == Decayed({}, {("lab", "ada"): 2})


def test_a_line_of_which_nothing_is_known_has_no_use_and_no_priority() -> None:
    """Not the highest of all, as who used nothing has."""
    used = Decayed({("lab", "ada"): 30.0}, {("lab", "ada"): 1, ("lab", "bob"): 1, ("dark", "eve"): 2})
    shares = [share("lab", "", 0.5), share("lab", "ada", 0.5), share("lab", "bob", 0.5), share("lab", "new", 0.5)]
    shares += [share("dark", "", 0.5), share("dark", "eve", 0.5)]

    found = standings(shares, used, base=1)

    assert [one.decayed_gpu_seconds for one in found] == [30, 30, None, 0, None, None]
    assert [one.used_share for one in found] == [1, 1, None, 0, None, None]
    assert [one.effective_priority is None for one in found] == [False, False, True, False, True, True]


def share(account: str, user: str, promised: float | None) -> Share:
    return Share(account, user, 1, promised, 0, 0.0, 0.0, math.inf)


def test_accounts_are_measured_by_all_and_users_by_their_account() -> None:
    used: dict[Whose, float] = {("lab", "ada"): 30.0, ("lab", "bob"): 10.0, ("vision", "ada"): 60.0}
    shares = [share("lab", "", 0.5), share("lab", "ada", 0.5), share("lab", "eve", 0.5), share("new", "", None)]

    found = standings(shares, Decayed(used, {}), base=100)

    assert [one.decayed_gpu_seconds for one in found] == [40, 30, 0, 0]
    assert [one.used_share for one in found] == [0.4, 0.75, 0, 0]
    priorities = [one.effective_priority for one in found]
    assert priorities == [pytest.approx(100 * 0.5 / 0.41), pytest.approx(100 * 0.5 / 0.76), pytest.approx(5000), None]


def test_where_nobody_used_anything_nobody_has_a_part_of_it() -> None:
    (found,) = standings([share("lab", "", 0.5)], Decayed({}, {}), base=1)
    assert (found.used_share, found.effective_priority) == (None, None)
    assert effective_priority(1, 0.5, 0.49) == pytest.approx(1)
