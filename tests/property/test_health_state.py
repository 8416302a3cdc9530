"""Whatever a state holds, its text brings it back; whatever a text holds, reading it never raises."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.health.model import Baseline, Care, Event, EventKind
from fleetctl.health.state import (
    Drain,
    JobStart,
    State,
    bounded,
    for_boot,
    from_text,
    to_text,
    with_job,
    with_job_ended,
)

words = st.text(max_size=8)
times = st.floats(allow_nan=False, allow_infinity=False)
numbers = st.integers(-(2**63), 2**64)
counters = st.dictionaries(words, numbers, max_size=4)
events = st.builds(
    Event,
    numbers,
    times,
    times,
    st.sampled_from(EventKind),
    st.none() | words,
    st.none() | numbers,
    words,
    st.none() | words,
    st.none() | words,
    numbers,
    st.booleans(),
)
drains = st.builds(
    Drain, words, times, words, st.lists(st.tuples(words, words), max_size=3).map(tuple), st.sampled_from(Care)
)
starts = st.builds(
    JobStart,
    times,
    words,
    st.lists(words, max_size=3).map(tuple),
    counters,
    st.none() | times,
    st.none() | numbers,
    st.none() | times,
)
any_state = st.builds(
    State,
    words,
    st.none() | numbers,
    st.lists(events, max_size=4).map(tuple),
    st.none() | st.builds(Baseline, words, times, counters),
    st.none() | drains,
    st.lists(times, max_size=3).map(tuple),
    st.dictionaries(words, st.lists(st.tuples(words, times), max_size=3).map(tuple), max_size=3),
    st.dictionaries(words, starts, max_size=3),
    st.none() | times,
    st.just({}),
)
any_json = st.recursive(
    st.none() | st.booleans() | numbers | times | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=12,
)
near_states = st.fixed_dictionaries({}, optional=dict.fromkeys((*State._fields, "version", "new"), any_json))


@given(any_state)
def test_the_text_of_a_state_brings_it_back(state: State) -> None:
    back, notes = from_text(to_text(state))
    assert (back, notes) == (bounded(state), ())


@given(st.text() | any_json.map(json.dumps) | near_states.map(json.dumps))
def test_no_text_makes_reading_fail_and_what_was_read_can_be_written(text: str) -> None:
    state, _ = from_text(text)
    assert from_text(to_text(state)) == (state, ())


@given(any_state, st.integers(0, 400))
def test_a_torn_text_is_the_whole_state_or_an_empty_one_with_a_note(state: State, cut: int) -> None:
    text = to_text(state)
    torn, notes = from_text(text[:-1][:cut])
    assert torn == State()
    assert notes


@given(any_state, words)
def test_a_boot_change_twice_is_a_boot_change_once(state: State, boot_id: str) -> None:
    once = for_boot(state, boot_id)
    assert for_boot(once, boot_id) == once
    assert (once.drain, once.returned) == (state.drain, state.returned)


@given(any_state, words, words, starts, times)
def test_two_jobs_do_not_lose_each_others_word(state: State, one: str, other: str, start: JobStart, at: float) -> None:
    both = with_job_ended(with_job(with_job(state, one, start), other, start), one, at)
    if one != other:
        assert both.jobs[other] == start
    assert both.jobs[one].ended_at == (at if start.ended_at is None else start.ended_at)
