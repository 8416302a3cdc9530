"""Windows of a sync: what is asked for, and what is known afterwards."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fleetctl.accounting.plan import (
    POLICY,
    Pass,
    Step,
    SyncState,
    Way,
    after,
    begin,
    is_too_much,
    known_after,
    narrower,
    next_window,
    whole_after,
)

NOW = 1_796_000_000
HOUR, DAY = 3600, 86_400
SYNCED = SyncState(
    from_s=NOW - 100 * DAY, to_s=NOW - HOUR, synced_s=NOW - HOUR, nightly_s=NOW - HOUR, weekly_s=NOW - DAY
)


def _all(going: Pass, state: SyncState) -> tuple[list[Step], SyncState]:
    """Every window is answered with a few rows."""
    steps = []
    while (step := next_window(going)) is not None:
        steps.append(step)
        state = known_after(state, going, step)
        going = after(going, step, 10, POLICY)
    return steps, whole_after(state, going, POLICY)


def _begin(
    state: SyncState,
    now_s: int = NOW,
    waiting: int | None = 0,
    since_s: int | None = None,
    sees_all: bool | None = None,
) -> Pass:
    return begin(state, now_s, waiting, since_s, POLICY, sees_all)


def test_an_ordinary_sync_asks_once_from_an_hour_before_the_watermark_until_now() -> None:
    steps, state = _all(_begin(SYNCED), SYNCED)
    assert steps == [Step(Way.ON, NOW - 2 * HOUR, None)]
    assert (state.from_s, state.to_s, state.synced_s) == (SYNCED.from_s, NOW, NOW)
    assert (state.nightly_s, state.weekly_s) == (SYNCED.nightly_s, SYNCED.weekly_s)


def test_the_first_sync_takes_the_newest_day_first_and_then_goes_back_35_days() -> None:
    steps, state = _all(_begin(SyncState()), SyncState())
    assert steps[0] == Step(Way.ON, NOW - DAY, None)
    assert [step.way for step in steps[1:]] == [Way.BACK] * 5  # 2, 4, 8, 16 and what is left
    assert steps[-1].since_s == NOW - 35 * DAY
    assert state == SyncState(NOW - 35 * DAY, NOW, NOW, NOW, NOW)


def test_a_first_sync_that_was_interrupted_goes_on_back_and_the_next_one_sweeps() -> None:
    state = SyncState(from_s=NOW - 3 * DAY, to_s=NOW - 60)
    steps, state = _all(_begin(state), state)
    assert steps[0] == Step(Way.ON, NOW - 60 - HOUR, None)
    assert (steps[1].until_s, steps[-1].since_s) == (NOW - 3 * DAY, NOW - 35 * DAY)
    steps, state = _all(_begin(state), state)
    assert steps[0].since_s == NOW - 35 * DAY
    assert state == SyncState(NOW - 35 * DAY, NOW, NOW, NOW, NOW)


def test_a_first_sync_may_go_back_less_or_further() -> None:
    assert _all(_begin(SyncState(), since_s=NOW - HOUR), SyncState())[1].from_s == NOW - HOUR
    assert _all(_begin(SyncState(), since_s=NOW - 400 * DAY), SyncState())[1].from_s == NOW - 400 * DAY
    steps, state = _all(_begin(SyncState(), since_s=NOW + DAY), SyncState())
    assert (steps, state.from_s) == ([Step(Way.ON, NOW, None)], NOW)


def test_going_back_further_reads_only_what_is_missing() -> None:
    start = SYNCED.from_s
    assert start is not None
    steps, state = _all(_begin(SYNCED, since_s=start - 3 * DAY), SYNCED)
    assert steps[0] == Step(Way.ON, NOW - 2 * HOUR, None)
    assert steps[1:] == [Step(Way.BACK, start - 2 * DAY, start), Step(Way.BACK, start - 3 * DAY, start - 2 * DAY)]
    assert state.from_s == start - 3 * DAY


def test_asking_for_a_time_that_was_read_reads_it_again() -> None:
    steps, _ = _all(_begin(SYNCED, since_s=NOW - 20 * DAY), SYNCED)
    assert steps[0].since_s == NOW - 20 * DAY
    assert steps[-1].until_s is None


@pytest.mark.parametrize(
    ("nightly_ago", "weekly_ago", "reach"),
    [
        (HOUR, HOUR, 2 * HOUR),
        (20 * HOUR - 1, HOUR, 2 * HOUR),
        (20 * HOUR, HOUR, 7 * DAY),
        (HOUR, 7 * DAY - 4 * HOUR, 35 * DAY),
        (None, HOUR, 7 * DAY),
        (HOUR, None, 35 * DAY),
        (-HOUR, HOUR, 7 * DAY),  # noted by a clock that was ahead
    ],
)
def test_sweeps_are_due_by_day_and_by_week(nightly_ago: int | None, weekly_ago: int | None, reach: int) -> None:
    state = SyncState(
        from_s=NOW - 100 * DAY,
        to_s=NOW - HOUR,
        nightly_s=None if nightly_ago is None else NOW - nightly_ago,
        weekly_s=None if weekly_ago is None else NOW - weekly_ago,
    )
    steps, after_it = _all(_begin(state), state)
    assert steps[0].since_s == NOW - reach
    assert after_it.nightly_s == (NOW if reach >= 7 * DAY else state.nightly_s)
    assert after_it.weekly_s == (NOW if reach >= 35 * DAY else state.weekly_s)


def test_a_sweep_does_not_reach_behind_what_was_asked_for() -> None:
    state = SyncState(from_s=NOW - 2 * DAY, to_s=NOW - HOUR, weekly_s=NOW - 8 * DAY)
    steps, after_it = _all(_begin(state), state)
    assert steps[0].since_s == NOW - 2 * DAY
    assert (after_it.from_s, after_it.nightly_s, after_it.weekly_s) == (NOW - 2 * DAY, NOW, NOW)


@pytest.mark.parametrize("waiting", [1, None])
@pytest.mark.parametrize("state", [SyncState(), SYNCED, SyncState(from_s=NOW - 90 * DAY, to_s=NOW - 60 * DAY)])
def test_the_gate_holds_the_watermark_and_the_sweeps_back(waiting: int | None, state: SyncState) -> None:
    steps, after_it = _all(_begin(state, waiting=waiting), state)
    assert steps
    assert after_it == SyncState(
        state.from_s, state.to_s, NOW, state.nightly_s, state.weekly_s, state.waiting, state.sees_all, state.events_s
    )


@pytest.mark.parametrize("swept_s", [NOW + 2 * DAY, NOW - 60])
def test_a_clock_that_was_ahead_makes_the_next_sync_reach_back_35_days(swept_s: int) -> None:
    state = SyncState(NOW - 100 * DAY, NOW + 2 * DAY, NOW + 2 * DAY, swept_s, swept_s)
    steps, after_it = _all(_begin(state), state)
    assert steps[0].since_s == NOW - 35 * DAY
    assert (after_it.from_s, after_it.to_s, after_it.weekly_s) == (state.from_s, NOW, NOW)


def test_a_watermark_that_lies_in_the_future_as_a_whole_is_given_up() -> None:
    state = SyncState(NOW + DAY, NOW + 40 * DAY, NOW + 40 * DAY)
    _, after_it = _all(_begin(state), state)
    assert after_it.to_s == NOW
    assert after_it.from_s is not None
    assert after_it.from_s <= NOW - HOUR


def test_a_clock_that_fell_back_only_reads_more_the_next_time() -> None:
    behind = NOW - 3 * DAY
    _, state = _all(_begin(SYNCED, behind), SYNCED)
    assert state.to_s == behind
    steps, state = _all(_begin(state), state)
    assert steps[0].since_s <= behind - HOUR
    assert state.to_s == NOW


def test_a_refused_window_is_halved_and_no_later_one_is_wider() -> None:
    state = SyncState(NOW - 100 * DAY, NOW - 10 * DAY, NOW, NOW, NOW)
    going = _begin(state)
    widths = []
    for _ in range(1000):
        step = next_window(going)
        if step is None:
            break
        width = (step.until_s or NOW) - step.since_s
        if width > 5 * HOUR:
            narrow = narrower(going, step, POLICY)
            assert narrow is not None
            going = narrow
            continue
        widths.append(width)
        going = after(going, step, 0, POLICY)
    assert next_window(going) is None
    assert widths[0] == 3 * HOUR  # a day, halved three times
    assert max(widths) == 3 * HOUR


def test_halving_ends() -> None:
    going = _begin(SYNCED)
    for count in range(100):
        step = next_window(going)
        assert step is not None
        narrow = narrower(going, step, POLICY)
        if narrow is None:
            assert count > 3
            break
        going = narrow
    else:
        pytest.fail("it goes on for ever")


def test_many_rows_make_the_next_window_narrower_and_few_wider() -> None:
    going = _begin(SYNCED, since_s=NOW - 50 * DAY)
    step = next_window(going)
    assert step is not None
    assert after(going, step, POLICY.many_rows + 1, POLICY).chunk_s == DAY // 2
    assert after(going, step, POLICY.many_rows, POLICY).chunk_s == 2 * DAY


@pytest.mark.parametrize(
    ("words", "width"),
    [
        ("sacct: error: slurmdb_jobs_get: Too wide of a date range in query", True),
        ("sacct: error: Query result exceeds size limit", True),
        ("sacct: error: Invalid user", False),
        ("", False),
    ],
)
def test_only_a_refusal_for_width_is_taken_for_one(words: str, width: bool) -> None:
    assert is_too_much(words) is width


def test_a_window_that_does_not_touch_the_watermark_moves_nothing() -> None:
    going = _begin(SYNCED)
    assert known_after(SYNCED, going, Step(Way.BACK, 1_000_000, 2_000_000)) == SYNCED
    ahead = SyncState(from_s=1_000_000, to_s=2_000_000)
    assert known_after(ahead, going, Step(Way.ON, 2_000_001, None)) == ahead


@pytest.mark.parametrize("before", [0, None])
def test_where_others_jobs_were_hidden_and_are_no_more_all_is_read_anew(before: int | None) -> None:
    state = replace(SYNCED, sees_all=before)
    steps, after_it = _all(_begin(state, sees_all=True), state)
    assert steps[0].since_s == SYNCED.from_s
    assert (after_it.sees_all, after_it.from_s, after_it.weekly_s) == (1, SYNCED.from_s, NOW)
    assert _begin(after_it, sees_all=True).on_s == NOW - HOUR
    half = known_after(state, _begin(state, sees_all=True), steps[0])
    assert half.sees_all == before


def test_where_others_jobs_are_hidden_from_now_on_the_first_window_says_so() -> None:
    state = replace(SYNCED, sees_all=1)
    going = _begin(state, sees_all=False)
    assert going.on_s == NOW - 2 * HOUR
    assert known_after(state, going, Step(Way.ON, NOW - 2 * HOUR, None)).sees_all == 0
    held = _begin(state, waiting=3, sees_all=False)  # and nothing is vouched for
    assert known_after(state, held, Step(Way.ON, NOW - 2 * HOUR, None)).sees_all == 1


def test_a_first_sync_that_sees_all_and_is_interrupted_goes_on_where_it_was() -> None:
    going = _begin(SyncState(), sees_all=True)
    state = known_after(SyncState(), going, Step(Way.ON, NOW - DAY, None))
    assert state.sees_all == 1
    assert _begin(state, sees_all=True).on_s == NOW - HOUR
