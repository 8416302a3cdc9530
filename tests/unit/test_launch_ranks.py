"""What agents tell of ranks, and what nobody tells."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from fleetctl.launch.liveness import Phase, Rank, Verdict, judge
from fleetctl.launch.ranks import Table

NODES = ("n1", "n2")


def told(*ranks: list[Any], attempt: str = "1.0", **more: Any) -> dict[str, Any]:
    return {"attempt": attempt, "world": 4, "nic": 0, "ranks": list(ranks), "kept": [], **more}


def test_a_beats_age_is_the_agents() -> None:
    table = Table("1.0", NODES)
    table.take("n1", told([0, "step", 7, 3.5, "S"], [1, "save", None, 0, "?"]), 100.0)
    table.take("n2", told([2, "step", 7, 0.0, "?"]), 101.0)
    assert table.ranks(101.0, frozenset(NODES), None) == (
        Rank(0, "n1", Phase.STEP, 7, 96.5, "S"),
        Rank(1, "n1", Phase.SAVE, None, 100.0, "?"),
        Rank(2, "n2", Phase.STEP, 7, 101.0, "?"),
        Rank(-1, "", Phase.UNTOLD, None, 101.0),  # the fourth, which may do anything
    )
    assert (table.heard, table.world) == (3, 4)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        "x",
        {},
        told([0, "step", 1, 0, "S"], attempt="1.1"),
        told(ranks=None),
        told(ranks={"0": 1}),
        told([0, "step", 1, 0]),
        told([True, "step", 1, 0, "S"]),
        told([-1, "step", 1, 0, "S"]),
        told([1 << 40, "step", 1, 0, "S"]),
        told(["0", "step", 1, 0, "S"]),
        told([0, "dancing", 1, 0, "S"]),
        told([0, ["step"], 1, 0, "S"]),
        told([0, "step", 1, "0", "S"]),
        told([0, "step", 1, float("nan"), "S"]),
        told([0, "step", 1, float("inf"), "S"]),
        told([0, "step", 1, True, "S"]),
    ],
    ids=lambda raw: json.dumps(raw)[:60],
)
def test_what_is_not_our_language_was_not_said(raw: object) -> None:
    table = Table("1.0", NODES)
    table.take("n1", raw, 100.0)
    assert table.heard == 0


def test_hidden_values_are_bounded() -> None:
    table = Table("1.0", NODES)
    table.take("n1", told([0, "step", 1 << 80, -50, "STATE"], [1, "step", "x", 1e300, 5], world=-3, nic="much"), 1e7)
    first, second = table.ranks(1e7, frozenset(NODES), None)[:2]
    assert first == Rank(0, "n1", Phase.STEP, None, 1e7, "?")
    assert second == Rank(1, "n1", Phase.STEP, None, 1e7 - 30 * 86400, "?")
    assert (table.world, table.flowed_s) == (None, None)
    table.take("n2", told(*([number, "step", 1, 0, "?"] for number in range(1000))), 1e7)
    assert table.heard == 2 + 64
    table.take("n2", told(kept=["a" * 1000, 5, *["x"] * 100]), 1e7)
    assert table.kept == {"n2": ("a" * 200, *["x"] * 14)}


def test_the_times_between_beats_are_learned_once_for_each_node_and_look() -> None:
    table = Table("1.0", NODES)
    for second in range(0, 20, 2):
        table.take("n1", told([0, "step", second, 0, "?"], [1, "step", second, 0, "?"]), 100.0 + second)
        table.take("n1", told([0, "step", second, 1.01, "?"], [1, "step", second, 1.01, "?"]), 101.0 + second)
    assert table.learned.count == 9
    assert table.learned.steps_s == pytest.approx([2.0] * 6, abs=0.02)
    table.take("n1", told([0, "save", 18, 0, "?"]), 130.0)
    table.take("n1", told([0, "step", 18, 0, "?"]), 160.0)
    assert table.learned.longest_s == pytest.approx({Phase.STEP: 2.0, Phase.SAVE: 30.0}, abs=0.02)


def test_traffic_beyond_chatter_is_a_sign() -> None:
    table = Table("1.0", NODES)
    table.take("n1", told(nic=500_000), 100.0)
    assert table.flowed_s is None
    table.take("n1", told(nic=50_000_000), 101.0)
    assert table.flowed_s == 101.0


def test_a_node_that_is_connected_and_says_nothing_stands_still() -> None:
    table = Table("1.0", ("n1",))
    table.take("n1", told([0, "step", 7, 0, "S"]), 100.0)
    assert [rank.state for rank in table.ranks(109.0, frozenset({"n1"}), None)] == ["S"]
    assert table.ranks(111.0, frozenset({"n1"}), None) == (Rank(0, "n1", Phase.STEP, 7, 100.0, "F"),)


def test_the_ranks_of_a_node_without_agent_may_do_anything() -> None:
    table = Table("1.0", ("n1",))
    table.take("n1", told([0, "step", 7, 0, "S"]), 100.0)
    one, stands_for_them = table.ranks(111.0, frozenset(), 110.0)
    assert one == Rank(0, "n1", Phase.UNTOLD, 7, 100.0, "S")
    assert stands_for_them == Rank(-1, "", Phase.UNTOLD, None, 110.0), "also hours later: it may save"


def test_a_node_that_never_told_stands_for_anything() -> None:
    table = Table("1.0", NODES)
    table.take("n1", told([0, "step", 7, 0, "S"]), 100.0)
    assert table.ranks(101.0, frozenset(NODES), None)[1:] == (Rank(-1, "", Phase.UNTOLD, None, 100.0),)
    table.take("n2", told(), 101.0)
    assert len(table.ranks(102.0, frozenset(NODES), None)) == 1, "no rank is there"


def test_a_training_that_tells_its_progress_alone_is_one_rank_of_which_no_phase_is_known() -> None:
    table = Table("1.0", NODES)
    assert table.ranks(100.0, frozenset(NODES), None) == ()
    assert table.ranks(100.0, frozenset(NODES), 90.0) == (Rank(-1, "", Phase.UNTOLD, None, 90.0),)


def test_our_own_pause_does_not_count_until_an_agent_says_the_age_again() -> None:
    table = Table("1.0", ("n1",))
    table.take("n1", told([0, "step", 7, 50, "S"]), 100.0)
    table.wake(600.0)
    assert table.ranks(700.0, frozenset({"n1"}), None) == (Rank(0, "n1", Phase.STEP, 7, 650.0, "S"),)
    table.take("n1", told([0, "step", 7, 650, "S"]), 700.0)
    assert table.ranks(700.0, frozenset({"n1"}), None)[0].beat_at_s == 50.0
    assert table.learned.count == 0


def test_two_groups_of_a_hetjob_may_count_alike() -> None:
    table = Table("1.0", NODES)
    table.take("n1", told([0, "step", 7, 400, "S"]), 1000.0)
    table.take("n2", told([0, "step", 7, 0, "S"]), 1000.0)
    assert table.heard == 2


def test_bytes_that_ranks_move_are_a_sign() -> None:
    table = Table("1.0", NODES)
    table.take("n1", told(io=1 << 20), 100.0)
    assert table.flowed_s is None
    table.take("n1", told(io=(1 << 20) + 1), 101.0)
    assert table.flowed_s == 101.0


def test_a_rank_that_is_not_heard_may_do_anything_but_one_alone_speaks_for_all() -> None:
    table = Table("1.0", ("n1",))
    table.take("n1", told([0, "step", 7, 0, "S"]), 100.0)
    assert len(table.ranks(101.0, frozenset({"n1"}), None)) == 1
    table.take("n1", told([1, "step", 7, 0, "S"]), 101.0)
    assert table.ranks(101.0, frozenset({"n1"}), None)[-1] == Rank(-1, "", Phase.UNTOLD, None, 101.0)


def test_a_program_that_starts_anew_within_the_attempt_has_its_first_steps_again() -> None:
    table = Table("1.0", ("n1",))
    for second in range(0, 20, 2):
        table.take("n1", told([0, "step", second, 0, "?"]), 100.0 + second)
    gone = told([0, "step", 18, 5, "X"], world=1)
    table.take("n1", gone, 123.0)
    assert [rank.phase for rank in table.ranks(123.0, frozenset({"n1"}), None)] == [Phase.UNTOLD]
    table.take("n1", told([0, "first_step", None, 0, "?"]), 130.0)
    assert (table.learned.count, table.learned.steps_s) == (0, ())


def test_sixteen_thousand_ranks_are_heard_and_judged_in_a_part_of_a_second() -> None:
    nodes = tuple(f"n{number}" for number in range(2048))
    table = Table("1.0", nodes)
    words = [told(*([8 * n + r, "step", 7, 1.5, "S"] for r in range(8)), world=16384) for n in range(2048)]
    spent_s = []
    for now_s in (100.0, 101.0, 102.0):
        began_s = time.process_time()
        for node, word in zip(nodes, words, strict=True):
            table.take(node, word, now_s)
        judged = judge(table.ranks(now_s, frozenset(nodes), None), table.learned, now_s)
        spent_s.append(time.process_time() - began_s)
    assert (table.heard, table.world, judged.verdict) == (16384, 16384, Verdict.LIVE)
    assert min(spent_s) < 0.5
