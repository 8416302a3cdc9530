"""A silent node is dead only when two rounds of probes say so and somebody proves that the head is not cut."""

from __future__ import annotations

import pytest

from fleetctl.launch.judge import (
    NodeState,
    NoticeKind,
    Outcome,
    Reading,
    Round,
    Rules,
    Verdict,
    after_round,
    allowed_silence_s,
    awaited,
    broke,
    change,
    describe,
    heard,
    read,
    silent,
    woke,
)

RULES = Rules()
YES, NO, LOST, UNTRIED = Outcome.ACCEPTED, Outcome.REFUSED, Outcome.UNREACHABLE, Outcome.UNTRIED


def beating(beats: int = 5, every_s: float = 1.0) -> NodeState:
    state = awaited(0.0, RULES)
    for number in range(beats):
        state = heard(state, number * every_s, RULES, beat=True)
    return state


def suspect(at_s: float = 7.0) -> NodeState:
    state = silent(beating(), at_s, RULES)
    assert state.verdict is Verdict.SUSPECT
    return state


@pytest.mark.parametrize(
    ("own", "opinions", "contact", "reading"),
    [
        (YES, (), False, Reading.ALIVE),
        (NO, (YES,), True, Reading.ALIVE),
        (UNTRIED, (YES,), True, Reading.ALIVE),
        (NO, (), False, Reading.GONE),  # one other node, or a cut head: a kernel that answers is no cut cable
        (LOST, (NO,), True, Reading.GONE),
        (LOST, (LOST, LOST), True, Reading.GONE),
        (LOST, (), True, Reading.GONE),
        (LOST, (), False, Reading.BLIND),  # nobody is heard: the head may be cut
        (UNTRIED, (), False, Reading.BLIND),
        (UNTRIED, (UNTRIED,), True, Reading.BLIND),  # nobody could even try
    ],
)
def test_what_a_round_says(own: Outcome, opinions: tuple[Outcome, ...], contact: bool, reading: Reading) -> None:
    assert read(Round(0.0, own, tuple(("n", outcome) for outcome in opinions), contact)) is reading


def test_a_node_is_suspect_only_after_its_allowed_silence() -> None:
    state = beating()  # last heard at 4.0
    assert silent(state, 6.0, RULES) is state
    assert silent(state, 6.1, RULES).verdict is Verdict.SUSPECT
    assert silent(state, 6.1, RULES).probe_at_s == 6.1


def test_a_node_that_beats_badly_gets_more_time_but_never_more_than_the_ceiling() -> None:
    state = awaited(0.0, RULES)
    now_s = 0.0
    for number in range(40):
        now_s += 0.5 if number % 2 else 2.0
        state = heard(state, now_s, RULES, beat=True)
    assert RULES.floor_s < allowed_silence_s(state, RULES) < RULES.ceiling_s
    for _ in range(10):
        now_s += 60.0
        state = heard(state, now_s, RULES, beat=True)
    assert allowed_silence_s(state, RULES) == RULES.ceiling_s


def test_a_node_that_never_joined_is_judged_only_after_its_time() -> None:
    state = awaited(0.0, RULES)
    assert silent(state, RULES.join_s, RULES) is state
    state = silent(state, RULES.join_s + 1, RULES)
    assert state.verdict is Verdict.SUSPECT


@pytest.mark.parametrize("first", [YES, NO])
def test_a_node_that_never_joined_is_never_dead(first: Outcome) -> None:
    """Nothing shows that it ever was well: its agent could not start, and its slurmd may be about to restart."""
    state = silent(awaited(0.0, RULES), RULES.join_s + 1, RULES)
    state = after_round(state, Round(61.0, first), 61.0, RULES)
    for started_s in range(62, 200):
        state = after_round(state, Round(started_s, NO), started_s, RULES)
        assert state.verdict is Verdict.CANNOT_TELL
    assert 200.0 < state.probe_at_s < 220.0  # ever less often: others want to be probed too
    assert after_round(state, Round(200.0, YES), 200.0, RULES).verdict is Verdict.PAUSED


def test_two_failed_rounds_are_death() -> None:
    state = after_round(suspect(), Round(7.0, NO), 7.0, RULES)
    assert (state.verdict, state.probe_at_s) == (Verdict.SUSPECT, 8.0)
    assert after_round(state, Round(8.0, NO), 8.0, RULES).verdict is Verdict.DEAD


def test_two_rounds_of_one_burst_are_not() -> None:
    state = after_round(suspect(), Round(7.0, NO), 7.0, RULES)
    assert after_round(state, Round(7.5, NO), 7.5, RULES).verdict is Verdict.SUSPECT


def test_a_blind_round_breaks_the_row() -> None:
    state = after_round(suspect(), Round(7.0, NO), 7.0, RULES)
    state = after_round(state, Round(8.0, LOST), 9.2, RULES)
    assert state.verdict is Verdict.CANNOT_TELL
    state = after_round(state, Round(9.2, NO), 9.2, RULES)
    assert state.verdict is Verdict.CANNOT_TELL
    assert after_round(state, Round(10.2, NO), 10.2, RULES).verdict is Verdict.DEAD


def test_an_accepted_connection_makes_it_paused_and_breaks_the_row() -> None:
    state = after_round(suspect(), Round(7.0, NO), 7.0, RULES)
    state = after_round(state, Round(8.0, NO, (("n", YES),), True), 8.0, RULES)
    assert state.verdict is Verdict.PAUSED
    state = after_round(state, Round(9.0, NO), 9.0, RULES)
    assert state.verdict is Verdict.PAUSED


def test_a_paused_node_is_dead_only_after_more_than_a_restart_of_its_slurmd() -> None:
    state = after_round(suspect(), Round(7.0, YES), 7.0, RULES)
    for before in (state, after_round(state, Round(8.0, LOST), 8.0, RULES), woke(state, 8.0, RULES)):
        now = after_round(before, Round(9.0, NO), 9.0, RULES)
        for started_s in (10.0, 20.0, 23.9):
            now = after_round(now, Round(started_s, NO), started_s, RULES)
            assert now.verdict is before.verdict
        assert after_round(now, Round(24.0, NO), 24.0, RULES).verdict is Verdict.DEAD  # frozen, then killed
    again = silent(heard(state, 9.0, RULES, beat=True), 15.0, RULES)  # a new silence: in time as ever
    again = after_round(again, Round(15.0, NO), 15.0, RULES)
    assert after_round(again, Round(16.0, NO), 16.0, RULES).verdict is Verdict.DEAD


def test_a_long_pause_is_probed_ever_less_often() -> None:
    state = after_round(suspect(), Round(7.0, YES), 7.0, RULES)
    assert state.probe_at_s == 8.0
    assert after_round(state, Round(107.0, YES), 107.0, RULES).probe_at_s == 117.0
    assert after_round(state, Round(9007.0, YES), 9007.0, RULES).probe_at_s == 9037.0


def test_a_broken_connection_is_doubted_at_once_but_death_takes_a_silence_of_its_own() -> None:
    state = broke(beating(), 4.1)
    assert (state.verdict, state.probe_at_s) == (Verdict.SUSPECT, 4.1)
    state = after_round(state, Round(4.1, NO), 4.1, RULES)
    state = after_round(state, Round(5.1, NO), 5.1, RULES)
    assert state.verdict is Verdict.SUSPECT  # heard 1.1 s ago
    assert after_round(state, Round(6.1, NO), 6.1, RULES).verdict is Verdict.DEAD


def test_a_pause_that_turns_into_a_break_is_probed_at_once() -> None:
    paused = after_round(suspect(), Round(7.0, YES), 100.0, RULES)
    assert broke(paused, 101.0).probe_at_s == 101.0


def test_the_dead_stay_dead() -> None:
    dead = after_round(after_round(suspect(), Round(7.0, NO), 7.0, RULES), Round(8.0, NO), 8.0, RULES)
    for after in (
        heard(dead, 9.0, RULES, beat=True),
        broke(dead, 9.0),
        silent(dead, 99.0, RULES),
        woke(dead, 9.0, RULES),
        after_round(dead, Round(9.0, YES), 9.0, RULES),
    ):
        assert after is dead


def test_after_the_heads_own_pause_nobody_is_suspect_for_a_fresh_period() -> None:
    for before in (beating(), suspect(), after_round(suspect(), Round(7.0, LOST), 8.0, RULES)):
        state = woke(before, 100.0, RULES)
        assert state.verdict is Verdict.LIVE
        assert silent(state, 102.0, RULES) is state
        assert silent(state, 102.1, RULES).verdict is Verdict.SUSPECT
    one_failed = after_round(suspect(), Round(7.0, NO), 7.0, RULES)
    assert after_round(woke(one_failed, 100.0, RULES), Round(100.0, NO), 100.0, RULES).verdict is Verdict.LIVE
    paused = woke(after_round(suspect(), Round(7.0, YES), 7.0, RULES), 100.0, RULES)
    assert (paused.verdict, paused.probe_at_s) == (Verdict.PAUSED, 102.0)
    assert woke(silent(awaited(0.0, RULES), 61.0, RULES), 100.0, RULES).verdict is Verdict.AWAITED


def test_what_is_told() -> None:
    live, waiting = beating(), awaited(0.0, RULES)
    paused = after_round(suspect(), Round(7.0, YES), 7.0, RULES)
    assert change(waiting, live) is NoticeKind.JOINED
    assert change(silent(waiting, 61.0, RULES), live) is NoticeKind.JOINED
    assert change(live, heard(live, 5.0, RULES, beat=True)) is None
    assert change(live, suspect()) is NoticeKind.SUSPECT
    assert change(suspect(), paused) is NoticeKind.PAUSED
    assert change(paused, live) is NoticeKind.BACK
    assert change(silent(waiting, 61.0, RULES), woke(waiting, 62.0, RULES)) is None


def test_the_evidence_is_readable() -> None:
    lost = Round(7.0, LOST, (("node3", NO),), True)
    assert describe(suspect(), lost, 7.5) == "silent for 3.5 s, slurmd port (head: unreachable; node3: refused)"
    assert describe(suspect(), Round(7.0, LOST), 7.5).endswith("(head: unreachable), and nobody else is heard either")
