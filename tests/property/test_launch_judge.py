"""Whatever is heard and probed, in whatever order: what the verdict about a node may never do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fleetctl.launch.judge import (
    NodeState,
    Outcome,
    Reading,
    Round,
    Rules,
    Verdict,
    after_round,
    allowed_silence_s,
    awaited,
    broke,
    heard,
    read,
    silent,
    woke,
)

RULES = Rules()
outcomes = st.sampled_from(Outcome)
rounds = st.builds(
    Round,
    st.just(0.0),
    outcomes,
    st.lists(st.tuples(st.just("n"), outcomes), max_size=2).map(tuple),
    st.booleans(),
)
waits_s = st.floats(0.0, 70.0)
events = st.one_of(st.sampled_from(["beat", "line", "broke", "woke", "time"]), rounds)
histories = st.lists(st.tuples(waits_s, events), max_size=30)
ORDER = (Reading.ALIVE, Reading.BLIND, Reading.GONE)


def step(state: NodeState, event: str | Round, now_s: float) -> NodeState:
    if isinstance(event, Round):
        return after_round(state, replace(event, started_s=now_s), now_s, RULES)
    if event in ("beat", "line"):
        return heard(state, now_s, RULES, beat=event == "beat")
    if event == "broke":
        return broke(state, now_s)
    return woke(state, now_s, RULES) if event == "woke" else silent(state, now_s, RULES)


@given(histories)
def test_death_needs_two_failed_rounds_in_a_row_and_nothing_else_between_them(
    history: list[tuple[float, str | Round]],
) -> None:
    state, now_s = awaited(0.0, RULES), 0.0
    row: list[float] = []  # the failed rounds since anything else spoke for the node, or for a cut head
    accepted = False  # since the node was heard
    for wait_s, event in history:
        now_s += wait_s
        doubted = state.verdict in (Verdict.SUSPECT, Verdict.PAUSED, Verdict.CANNOT_TELL)
        after = step(state, event, now_s)
        accepted = event not in ("beat", "line") and (accepted or after.verdict is Verdict.PAUSED)
        if isinstance(event, Round):
            row = [*row, now_s] if doubted and read(event) is Reading.GONE else row if not doubted else []
        elif event in ("beat", "line", "woke") or after.verdict is not state.verdict:
            row = []
        if after.verdict is Verdict.DEAD and state.verdict is not Verdict.DEAD:
            assert len(row) >= 2
            assert row[-1] - row[0] >= (RULES.restart_s if accepted else RULES.gap_s)
            assert state.joined
            assert now_s - state.heard_s >= RULES.floor_s
        if state.verdict is Verdict.DEAD:
            assert after is state
        state = after


@given(st.lists(st.tuples(waits_s, rounds), max_size=30))
def test_while_every_round_has_an_accepted_connection_nobody_dies(history: list[tuple[float, Round]]) -> None:
    state, now_s = broke(heard(awaited(0.0, RULES), 0.0, RULES, beat=True), 0.0), 0.0
    for wait_s, one in history:
        now_s += wait_s
        answered = replace(one, opinions=(*one.opinions, ("n", Outcome.ACCEPTED)))
        state = step(state, answered, now_s)
        assert state.verdict is Verdict.PAUSED


@given(st.lists(st.tuples(waits_s, st.booleans()), max_size=30))
def test_a_cut_head_declares_nobody_dead(history: list[tuple[float, bool]]) -> None:
    """It hears nobody, and nothing that it sends is answered."""
    state, now_s = silent(heard(awaited(0.0, RULES), 0.0, RULES, beat=True), 10.0, RULES), 10.0
    for wait_s, tried in history:
        now_s += wait_s
        state = step(state, Round(0.0, Outcome.UNREACHABLE if tried else Outcome.UNTRIED), now_s)
        assert state.verdict is Verdict.CANNOT_TELL


@given(rounds, outcomes)
def test_more_life_never_reads_as_less(one: Round, instead: Outcome) -> None:
    assert read(replace(one, own=Outcome.ACCEPTED)) is Reading.ALIVE
    more = replace(one, opinions=(*one.opinions, ("m", instead)), contact=True)
    assert (read(more) is Reading.ALIVE) is (read(one) is Reading.ALIVE or instead is Outcome.ACCEPTED)
    assert not one.contact or ORDER.index(read(replace(one, contact=False))) <= ORDER.index(read(one))


@given(histories)
def test_the_allowed_silence_has_bounds_and_patience_is_monotone(history: list[tuple[float, str | Round]]) -> None:
    state, now_s = awaited(0.0, RULES), 0.0
    for wait_s, event in history:
        now_s += wait_s
        state = step(state, event, now_s)
        assert RULES.floor_s <= allowed_silence_s(state, RULES) <= RULES.ceiling_s
        verdicts = [silent(state, now_s + later_s, RULES).verdict for later_s in (0.0, 1.0, 3.0, 10.0, 100.0)]
        assert verdicts == sorted(verdicts, key=lambda verdict: verdict is Verdict.SUSPECT)


@given(histories, st.lists(rounds, min_size=1))
def test_a_beat_clears_every_doubt(history: list[tuple[float, str | Round]], later: list[Round]) -> None:
    state, now_s = awaited(0.0, RULES), 0.0
    for wait_s, event in history:
        now_s += wait_s
        state = step(state, event, now_s)
    if state.verdict is not Verdict.DEAD:
        state = heard(state, now_s, RULES, beat=True)
        for one in later:  # rounds that were under way say nothing any more
            state = step(state, one, now_s)
        assert state.verdict is Verdict.LIVE
