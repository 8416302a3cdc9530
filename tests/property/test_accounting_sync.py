"""Whatever the windows, their order, and what stops a sync: the same facts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.accounting.plan import (
    POLICY,
    Pass,
    SyncState,
    Way,
    after,
    begin,
    known_after,
    narrower,
    next_window,
    whole_after,
)

NOW = 1_796_000_000
DAY = 86_400
_ago = st.integers(-3 * DAY, 60 * DAY)
_states = st.one_of(
    st.just(SyncState()),
    st.builds(
        lambda end, length, nightly, weekly, sees_all: SyncState(
            from_s=NOW - end - length, to_s=NOW - end, nightly_s=nightly, weekly_s=weekly, sees_all=sees_all
        ),
        _ago,
        st.integers(0, 90 * DAY),
        st.none() | _ago.map(lambda ago: NOW - ago),
        st.none() | _ago.map(lambda ago: NOW - ago),
        st.sampled_from((1, 1, 0, None)),
    ),
)
_since = st.none() | _ago.map(lambda ago: NOW - 2 * ago)
# What becomes of each window: refused, or read with so many rows
_answers = st.lists(st.sampled_from([None, 0, 1_000, 60_000, 400_000]), max_size=60)


def _next(going: Pass, answers: list[int | None]) -> tuple[Pass, bool]:
    """The pass after one more window, and whether it was read."""
    step = next_window(going)
    assert step is not None
    answer = answers.pop(0) if answers else 10
    if answer is None and (narrow := narrower(going, step, POLICY)) is not None:
        return narrow, False
    return after(going, step, answer or 0, POLICY), True


@settings(deadline=None)
@given(_states, _since, _answers)
def test_the_windows_of_a_sync_tile_what_it_has_to_read(
    state: SyncState, since_s: int | None, answers: list[int | None]
) -> None:
    going = start = begin(state, NOW, 0, since_s, POLICY, True)
    at, back = start.on_s, start.back_until_s
    for _ in range(100_000):
        step = next_window(going)
        if step is None:
            break
        going, is_read = _next(going, answers)
        if not is_read:
            continue
        if step.way is Way.ON:
            assert step.since_s == at
            at = step.until_s
        else:
            assert at is None, "going back before it has gone on"
            assert step.until_s == back
            assert step.since_s < back
            back = step.since_s
    assert next_window(going) is None
    assert at is None
    assert back == min(start.back_s, start.back_until_s)


@given(_states, _since, _answers, st.integers(0, 40), st.booleans())
def test_the_watermark_never_covers_a_moment_that_was_not_read(
    state: SyncState, since_s: int | None, answers: list[int | None], stop_after: int, gate_closed: bool
) -> None:
    going = begin(state, NOW, int(gate_closed), since_s, POLICY, True)
    read = [] if state.from_s is None or state.to_s is None else [(state.from_s, min(state.to_s, NOW))]
    known = state
    for _ in range(stop_after):
        step = next_window(going)
        if step is None:
            known = whole_after(known, going, POLICY)
            break
        before = going
        going, is_read = _next(going, answers)
        if is_read:
            read.append((step.since_s, step.until_s or NOW))
            known = known_after(known, before, step)
    if gate_closed:
        assert (known.from_s, known.to_s) == (state.from_s, state.to_s)
    if (known.from_s, known.to_s) != (state.from_s, state.to_s):
        assert known.from_s is not None
        assert known.to_s is not None
        assert _covers(read, known.from_s, min(known.to_s, NOW))


def _covers(read: list[tuple[int, int]], since_s: int, until_s: int) -> bool:
    at = since_s
    for start, end in sorted(read):
        if start <= at < end:
            at = end
    return at >= until_s
