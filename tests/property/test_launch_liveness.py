"""Whatever a training does in its phases, it is no hang while they explain its silence; and a hang is found in time."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fleetctl.launch.liveness import FLOOR_S, Judged, Learned, Phase, Rank, Verdict, judge, limit_s
from fleetctl.launch.ranks import Table

HOUR_S = 3600.0
TICK_S = 10.0  # between two looks: coarser than in earnest, which only makes what is learned coarser
NODES = ("n0", "n1")
RANKS = 4
Segment = tuple[Phase, float]


def moment(ranks: dict[int, tuple[str, int, float]], now_s: float, node: int, pid_state: str = "S") -> dict[str, Any]:
    """What the agent of a node tells; `ranks` have phase, step, and when they were heard last."""
    mine = [[r, phase, step, now_s - at_s, pid_state] for r, (phase, step, at_s) in ranks.items() if r // 2 == node]
    return {"attempt": "1.0", "world": RANKS, "nic": 0, "ranks": mine, "kept": []}


class Play:
    """A training on a virtual clock: every rank makes the steps, rank 0 does the rest while the others wait."""

    def __init__(self) -> None:
        self.table = Table("1.0", NODES)
        self.now_s = self.tick_s = 0.0
        self.step = 0
        self.ranks = dict.fromkeys(range(RANKS), ("start", 0, 0.0))
        self.verdicts: list[Verdict] = []

    def look(self) -> Judged:
        for node, name in enumerate(NODES):
            self.table.take(name, moment(self.ranks, self.now_s, node), self.now_s)
        ranks = self.table.ranks(self.now_s, frozenset(NODES), None)
        judged = judge(ranks, self.table.learned, self.now_s)
        self.verdicts.append(judged.verdict)
        return judged

    def pass_(self, duration_s: float) -> None:
        """Time goes by, and nobody is heard."""
        until_s = self.now_s + duration_s
        while self.tick_s <= until_s:
            self.now_s = max(self.now_s, self.tick_s)
            self.look()
            self.tick_s += TICK_S
        self.now_s = until_s

    def move(self, phase: Phase, everybody: bool) -> None:
        for rank in range(RANKS) if everybody else (0,):
            self.ranks[rank] = (phase.value, self.step, self.now_s)

    def play(self, segment: Segment) -> None:
        phase, lasts_s = segment
        if phase is Phase.STEP:
            self.pass_(lasts_s)
            self.step += 1
            self.move(Phase.STEP, everybody=True)
        else:
            self.move(phase, everybody=phase in (Phase.START, Phase.LOAD, Phase.FIRST_STEP, Phase.EVALUATION))
            self.pass_(lasts_s)
            self.move(Phase.STEP if self.step else Phase.FIRST_STEP, everybody=phase is not Phase.SAVE)
            if phase is Phase.SAVE:
                self.ranks[0] = ("step", self.step, self.now_s)


def between(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False)


def training(seed: int) -> list[Segment]:
    """Ten hours. Each phase has its own length, from moments to what its ceiling allows, and varies by four times; a
    step by nine, after some that show how long one takes."""
    random = Random(seed)
    base_s = {Phase.SAVE: 10 ** random.uniform(-1, 3.4), Phase.EVALUATION: 10 ** random.uniform(0, 3.7)}
    step_s = 10 ** random.uniform(-0.7, 2.1)
    segments: list[Segment] = [(Phase.START, random.uniform(0, 3000)), (Phase.LOAD, random.uniform(0, 7000))]
    segments.append((Phase.FIRST_STEP, random.uniform(0, 3400)))
    segments += [(Phase.STEP, step_s)] * max(12, int(12 * TICK_S / step_s))
    spent_s = sum(lasts_s for _, lasts_s in segments)
    while spent_s < 10 * HOUR_S:
        phase = random.choice([Phase.STEP, Phase.STEP, Phase.SAVE, Phase.EVALUATION])
        if phase is Phase.STEP:
            burst = [(Phase.STEP, step_s * random.uniform(0.5, 2.0)) for _ in range(max(1, int(300 / step_s)))]
            burst.append((Phase.STEP, max(290.0, step_s * random.uniform(1.0, 4.5))))
        else:
            burst = [(phase, base_s[phase] * random.uniform(0.5, 2.0))]
        segments += burst
        spent_s += sum(lasts_s for _, lasts_s in burst)
    return segments


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**9))
def test_ten_hours_of_slow_saves_compiles_and_evaluations_raise_no_alarm(seed: int) -> None:
    play = Play()
    for segment in training(seed):
        play.play(segment)
    assert play.now_s >= 10 * HOUR_S
    assert Verdict.HUNG not in play.verdicts


@settings(max_examples=50, deadline=None)
@given(between(0.2, 120.0), st.integers(0, RANKS - 1), st.booleans())
def test_a_hang_between_steps_is_found_within_its_limit(step_s: float, culprit: int, before_the_exchange: bool) -> None:
    play = Play()
    play.play((Phase.FIRST_STEP, 60.0))
    for _ in range(max(12, int(100 / step_s))):
        play.play((Phase.STEP, step_s))
    if not before_the_exchange:  # the others still end this step
        play.now_s += step_s
        for rank in range(RANKS):
            if rank != culprit:
                play.ranks[rank] = ("step", play.step + 1, play.now_s)
    heard_s = max(at_s for _, _, at_s in play.ranks.values())
    limit = limit_s(Phase.STEP, play.table.learned)
    assert limit <= max(FLOOR_S, 10 * (step_s + 2 * TICK_S))
    while (judged := play.look()).verdict is not Verdict.HUNG:
        play.now_s += TICK_S
        assert play.now_s - heard_s <= limit + 3 * TICK_S
    assert play.now_s - heard_s > limit - TICK_S
    if before_the_exchange:
        assert judged.node == ""
    else:
        assert judged.blamed is not None
        assert (judged.blamed.rank, judged.node) == (culprit, NODES[culprit // 2])


@settings(max_examples=25, deadline=None)
@given(between(1.0, 100.0), st.lists(between(0.1, 4.5), min_size=1, max_size=12))
def test_gaps_that_nobody_marked_and_that_grow_by_less_than_five_times_raise_no_alarm(
    step_s: float, growths: list[float]
) -> None:
    play = Play()
    play.play((Phase.FIRST_STEP, 60.0))
    for _ in range(max(12, int(12 * TICK_S / step_s))):
        play.play((Phase.STEP, step_s))
    longest_s = max(step_s, FLOOR_S / 5)
    for growth in growths:
        lasts_s = min(longest_s * growth, HOUR_S - 2 * TICK_S)
        play.play((Phase.STEP, lasts_s))
        longest_s = max(longest_s, lasts_s)
    assert Verdict.HUNG not in play.verdicts


ranks = st.builds(
    Rank,
    st.integers(0, 9),
    st.sampled_from(["n0", "n1", "n2"]),
    st.sampled_from(Phase),
    st.none() | st.integers(0, 5),
    between(0, 50_000),
    st.sampled_from("SRDTZXF?"),
)
learned = st.builds(
    Learned,
    st.lists(between(0.01, 1000), max_size=9).map(tuple),
    st.integers(0, 20),
    st.dictionaries(st.sampled_from(Phase), between(0, 20_000)),
)


@given(st.lists(ranks, max_size=8), learned, between(50_000, 100_000), st.none() | between(40_000, 100_000))
def test_nobody_is_found_hung_while_one_that_takes_part_is_explained(
    found: list[Rank], known: Learned, now_s: float, sign_at_s: float | None
) -> None:
    judged = judge(found, known, now_s, sign_at_s=sign_at_s)
    if judged.verdict is Verdict.HUNG:
        assert judged.quiet
        assert all(one.silent_s > one.limit_s >= FLOOR_S for one in judged.quiet)
        one = judged.quiet[0].rank
        alive = [replace(rank, beat_at_s=now_s) if rank == one else rank for rank in found]
        assert judge(alive, known, now_s, sign_at_s=sign_at_s).verdict is not Verdict.HUNG
    if judged.node:
        assert judged.blamed is not None
        assert judged.node == judged.blamed.node
    later = judge(found, known, now_s + 10 * HOUR_S * 24, sign_at_s=sign_at_s)
    assert later.verdict is Verdict.HUNG or not judged.quiet, "and no silence is explained for ever"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["step", "1.0"]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.sampled_from(["attempt", "ranks", "x"]), inner),
    max_leaves=20,
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "attempt": st.just("1.0"),
                "ranks": json_values,
                "nic": json_values,
                "world": json_values,
                "kept": json_values,
            }
        )
        | json_values,
        max_size=5,
    )
)
def test_no_word_of_a_node_breaks_the_table(words: list[Any]) -> None:
    table = Table("1.0", NODES)
    for number, word in enumerate(words):
        table.take(NODES[number % 2], word, float(number))
        judge(table.ranks(float(number), frozenset(NODES), None), table.learned, float(number))
