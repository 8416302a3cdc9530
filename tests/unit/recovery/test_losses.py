"""What losses say: where they stopped being numbers, where they jumped, and whether a recovery went well."""

from __future__ import annotations

import pytest

from fleetctl.recovery.losses import canary, jump, onset

Losses = list[tuple[int, float | None]]
SMOOTH: Losses = [(step, 3.0 - step / 100 + 0.02 * (step % 3 - 1)) for step in range(40, 60)]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([], None),
        ([(1, 2.0), (2, None), (3, None), (4, None)], 2),
        ([(2, None), (3, None), (4, None)], 2),
        ([(1, 2.0), (2, None), (3, None)], None),
        ([(1, None), (2, None), (3, None), (4, 2.0)], None),
        ([(1, None), (2, 2.0), (3, None), (4, None), (5, None)], 3),
    ],
)
def test_losses_are_lost_where_the_newest_ones_are_no_numbers(losses: Losses, expected: int | None) -> None:
    assert onset(losses) == expected


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ([], None),
        ([(60, 20.0)], 60),
        ([(60, 20.0), (61, 25.0)], 60),
        ([(60, 20.0), (61, 2.4)], None),
        ([(60, 12.0)], None),
        ([(60, None), (61, 30.0)], 61),
    ],
)
def test_a_loss_that_stays_five_times_higher_has_jumped(tail: Losses, expected: int | None) -> None:
    assert jump([*SMOOTH, *tail]) == expected


def test_too_few_losses_tell_no_jump() -> None:
    assert jump([(1, 1.0), (2, 1.0), (3, 1.0), (4, 100.0)][:3]) is None
    assert jump([(1, -1.0)] * 5 + [(2, 100.0)]) is None, "five times of less than nothing means nothing"


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ([(51, 2.5), (52, 2.49), (53, 2.5)], True),
        ([(51, 2.0), (52, 2.0), (53, 2.0)], True),
        ([(51, 2.6), (52, 2.6), (53, 2.6)], True),
        ([(51, 9.0), (52, 2.5), (53, 2.5)], True),
        ([(51, 9.0), (52, 9.0), (53, 9.0)], False),
        ([(51, 9.0), (52, None), (53, 9.0)], False),
        ([(51, None), (52, None), (53, None)], False),
        ([(51, 2.5), (52, 2.5)], None),
        ([(49, 2.5), (50, 2.5), (51, 2.5)], None),
        ([], None),
    ],
)
def test_the_first_losses_after_a_resume_are_near_those_before(after: Losses, expected: bool | None) -> None:
    found = canary(SMOOTH, after, 50)
    assert found.fits is expected
    assert found.why


def test_a_noisy_loss_has_a_wide_band() -> None:
    noisy: Losses = [(step, 2.5 + (0.5 if step % 2 else -0.5)) for step in range(40, 60)]
    assert canary(noisy, [(51, 3.4), (52, 3.4), (53, 3.4)], 50).fits is True
    assert canary(SMOOTH, [(51, 3.4), (52, 3.4), (53, 3.4)], 50).fits is False


def test_without_losses_before_nothing_is_told() -> None:
    assert canary([], [(1, 2.0), (2, 2.0), (3, 2.0)], 0).fits is None
    assert canary([(1, None)] * 9, [(1, 2.0), (2, 2.0), (3, 2.0)], 0).fits is None
