"""When a training hangs, and whose rank the others wait for."""

from __future__ import annotations

import pytest

from fleetctl.launch.liveness import (
    FLOOR_S,
    Learned,
    Phase,
    Rank,
    Verdict,
    blame,
    judge,
    learn,
    limit_s,
    taking_part,
)

HOUR_S = 3600.0
STEADY = Learned(steps_s=(2.0,) * 8, count=11)  # steps of two seconds: the floor is the limit
NOW_S = 100_000.0


def rank(
    number: int, silent_s: float, phase: Phase = Phase.STEP, step: int | None = 50, state: str = "?", node: str = ""
) -> Rank:
    return Rank(number, node or f"n{number // 2}", phase, step, NOW_S - silent_s, state)


def test_between_steps_it_hangs_after_ten_medians_and_at_least_five_minutes() -> None:
    assert limit_s(Phase.STEP, STEADY) == FLOOR_S == 300.0
    slow = Learned(steps_s=(60.0, 90.0, 600.0), count=6)
    assert limit_s(Phase.STEP, slow) == 900.0
    assert limit_s(Phase.STEP, STEADY, floor_s=5.0) == 20.0


def test_few_steps_teach_nothing_yet() -> None:
    assert limit_s(Phase.STEP, Learned(steps_s=(2.0, 2.0), count=5)) == HOUR_S


@pytest.mark.parametrize(
    ("phase", "longest_s", "limit"),
    [
        (Phase.SAVE, None, 2 * HOUR_S),
        (Phase.SAVE, 10.0, 600.0),
        (Phase.SAVE, 200.0, 1000.0),
        (Phase.SAVE, 3000.0, 2 * HOUR_S),
        (Phase.SAVE, 6000.0, 9000.0),
        (Phase.LOAD, None, 2 * HOUR_S),
        (Phase.LOAD, 10.0, 900.0),
        (Phase.FIRST_STEP, None, HOUR_S),
        (Phase.START, None, HOUR_S),
        (Phase.EVALUATION, None, 4 * HOUR_S),
        (Phase.EVALUATION, 1200.0, 6000.0),
        (Phase.END, None, HOUR_S),
        (Phase.UNTOLD, 10.0, HOUR_S),
    ],
)
def test_another_phase_may_take_five_times_the_longest_seen(
    phase: Phase, longest_s: float | None, limit: float
) -> None:
    learned = Learned(longest_s={} if longest_s is None else {phase: longest_s})
    assert limit_s(phase, learned) == limit
    assert limit_s(phase, learned, floor_s=10 * HOUR_S) == 10 * HOUR_S, "a site may want peace"


def test_the_first_intervals_are_left_out() -> None:
    learned = Learned()
    for number, lasted_s in enumerate([90.0, 60.0, 30.0, 2.0, 3.0, 4.0]):
        before = Rank(0, "n", Phase.STEP, number, 0.0)
        learned = learn(learned, before, Rank(0, "n", Phase.STEP, number + 1, lasted_s))
    assert (learned.steps_s, learned.count) == ((2.0, 3.0, 4.0), 6)


def test_what_is_learned_is_the_longest_of_each_phase() -> None:
    save, step = Rank(0, "n", Phase.SAVE, 5, 0.0), Rank(0, "n", Phase.STEP, 5, 0.0)
    learned = learn(Learned(), save, Rank(0, "n", Phase.STEP, 5, 30.0))
    learned = learn(learned, save, Rank(0, "n", Phase.STEP, 5, 20.0))
    learned = learn(learned, step, Rank(0, "n", Phase.SAVE, 5, 99.0))
    assert learned == Learned(longest_s={Phase.SAVE: 30.0})


def test_all_silent_for_longer_than_explained_is_a_hang() -> None:
    judged = judge([rank(0, 301), rank(1, 301), rank(2, 305, step=49)], STEADY, NOW_S)
    assert (judged.verdict, judged.phase, judged.node) == (Verdict.HUNG, Phase.STEP, "n1")
    assert judged.blamed is not None
    assert judged.blamed.rank == 2
    assert [(one.rank.rank, one.silent_s, one.limit_s) for one in judged.quiet] == [
        (2, 305.0, 300.0),
        (0, 301.0, 300.0),
        (1, 301.0, 300.0),
    ]


def test_it_is_suspect_shortly_before() -> None:
    assert judge([rank(0, 269)], STEADY, NOW_S).verdict is Verdict.LIVE
    assert judge([rank(0, 271)], STEADY, NOW_S).verdict is Verdict.SUSPECT
    assert judge([rank(0, 300)], STEADY, NOW_S).verdict is Verdict.SUSPECT
    assert judge([rank(0, 11)], STEADY, NOW_S, floor_s=5.0).verdict is Verdict.SUSPECT, "the second half of 20 s"


@pytest.mark.parametrize("phase", [Phase.SAVE, Phase.LOAD, Phase.FIRST_STEP, Phase.EVALUATION])
def test_one_rank_in_another_phase_explains_the_silence_of_all(phase: Phase) -> None:
    ranks = [rank(0, 3000, phase), *(rank(number, 3001) for number in range(1, 8))]
    assert judge(ranks, STEADY, NOW_S).verdict is Verdict.LIVE
    late = [rank(0, 5 * HOUR_S, phase), *(rank(number, 5 * HOUR_S) for number in range(1, 8))]
    judged = judge(late, STEADY, NOW_S)
    assert (judged.verdict, judged.phase, judged.node) == (Verdict.HUNG, phase, "n0"), "and not for ever"


def test_one_rank_that_goes_on_is_no_hang() -> None:
    assert judge([rank(0, 1), rank(1, 9999), rank(2, 9999)], STEADY, NOW_S).verdict is Verdict.LIVE


def test_where_nothing_was_told_nothing_hangs() -> None:
    assert judge([], Learned(), NOW_S).verdict is Verdict.LIVE


def test_output_and_traffic_put_it_off_but_not_for_ever() -> None:
    for silent_s, sign_s, verdict in (
        (800, 100, Verdict.SUSPECT),
        (800, 200, Verdict.HUNG),
        (899, 1, Verdict.SUSPECT),
        (901, 1, Verdict.HUNG),
    ):
        found = judge([rank(0, silent_s), rank(1, silent_s)], STEADY, NOW_S, sign_at_s=NOW_S - sign_s)
        assert found.verdict is verdict, (silent_s, sign_s)


def test_ranks_that_never_tell_of_steps_take_no_part() -> None:
    tells, others = rank(0, 400), [rank(number, 900, Phase.FIRST_STEP, None) for number in range(1, 8)]
    assert taking_part([tells, *others], STEADY) == (tells,)
    judged = judge([tells, *others], STEADY, NOW_S)
    assert (judged.verdict, judged.blamed) == (Verdict.HUNG, None)
    assert taking_part([tells, *others], Learned(count=2)) == (tells, *others), "they may still compile"


def test_who_stands_still_is_blamed_before_who_is_behind() -> None:
    ranks = [rank(0, 400, step=49), rank(1, 400), rank(2, 400, state="T"), rank(3, 400)]
    found, node = blame(ranks, ranks)
    assert (found, node) == (ranks[2], "n1")


@pytest.mark.parametrize("state", ["T", "t", "Z", "X", "F"])
def test_a_process_that_is_stopped_or_gone_does_not_wait_for_others(state: str) -> None:
    ranks = [rank(0, 400, state="S"), rank(1, 400, state="R"), rank(2, 400, state=state)]
    assert blame(ranks, ranks) == (ranks[2], "n1")


def test_where_all_are_alike_nobody_is_blamed() -> None:
    ranks = [rank(number, 400 + number) for number in range(4)]
    assert blame(ranks, ranks) == (None, "")
    stopped = [rank(number, 400, state="T") for number in range(4)]
    assert blame(stopped, stopped) == (None, "")


def test_of_several_nodes_none_is_blamed() -> None:
    ranks = [rank(number, 400, step=50) for number in range(6)] + [rank(6, 410, step=49), rank(8, 400, step=49)]
    assert blame(ranks, ranks) == (ranks[6], "")


def test_two_ranks_of_one_node_blame_it() -> None:
    ranks = [rank(number, 400, step=50) for number in range(6)] + [rank(6, 400, step=49), rank(7, 410, step=48)]
    assert blame(ranks, ranks) == (ranks[7], "n3")


def test_who_has_ended_is_not_waited_for() -> None:
    ranks = [rank(0, 400), rank(1, 400), rank(2, 400, Phase.END)]
    assert blame(ranks, ranks) == (None, "")


def test_five_times_the_longest_gap_between_steps_is_no_hang() -> None:
    gapped = Learned(STEADY.steps_s, STEADY.count, {Phase.STEP: 240.0})
    assert limit_s(Phase.STEP, gapped) == 1200.0
    assert limit_s(Phase.STEP, Learned(STEADY.steps_s, STEADY.count, {Phase.STEP: 1200.0})) == HOUR_S
    assert limit_s(Phase.STEP, Learned(STEADY.steps_s, STEADY.count, {Phase.STEP: 3000.0})) == 4500.0
    compiled = Learned(STEADY.steps_s, STEADY.count, {Phase.FIRST_STEP: 600.0})
    assert limit_s(Phase.STEP, compiled) == 900.0, "and it may compile again"


def test_the_longest_gap_is_learned_from_the_first_one_on() -> None:
    learned = Learned()
    for number, lasted_s in enumerate([90.0, 2.0, 3.0]):
        before = Rank(0, "n", Phase.STEP, number, 0.0)
        learned = learn(learned, before, Rank(0, "n", Phase.STEP, number + 1, lasted_s))
    assert learned == Learned(count=3, longest_s={Phase.STEP: 90.0})


def test_a_rank_that_loaded_and_tells_no_steps_takes_no_part() -> None:
    loaded = [rank(number, 9 * HOUR_S, Phase.UNTOLD, None) for number in range(4)]
    assert judge(loaded, Learned(), NOW_S).verdict is Verdict.LIVE
    assert judge([*loaded, rank(-1, HOUR_S + 1, Phase.UNTOLD, None)], Learned(), NOW_S).verdict is Verdict.HUNG


def test_who_has_ended_and_is_gone_is_not_blamed() -> None:
    ranks = [rank(0, 400), rank(1, 400), rank(2, 900, Phase.END, state="X")]
    assert blame(ranks, ranks) == (None, "")
