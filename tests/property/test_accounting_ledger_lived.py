"""The ledger of a training that was played second by second, against what its steps themselves add up to."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from fleetctl.accounting.ledger import interruption_costs, wall_ledger
from fleetctl.accounting.run_facts import AttemptFacts, RecordFacts, RunFacts, SaveFacts
from fleetctl.accounting.spans import Spent
from fleetctl.accounting.timeline import timeline

MS = st.integers(1, 5_000)


class Step(Struct, frozen=True):
    """How long one training step takes, and the save after it: none, or what the training waits of its total."""

    ms: int
    save: tuple[int, int] | None  # blocked, total


class Try(Struct, frozen=True):
    """One start: what it waits, loads, trains, and how it dies. `back`: how many checkpoints older than the newest."""

    queue_ms: int
    load_ms: int
    steps: tuple[Step, ...]
    hang_ms: int
    clean_ms: int
    eligible_ms: int
    back: int


STEP = st.builds(Step, MS, st.none() | st.tuples(MS, st.integers(0, 9_000)).map(lambda pair: (pair[0], sum(pair))))
TRY = st.builds(Try, MS, MS, st.lists(STEP, max_size=6).map(tuple), MS, MS, MS, st.integers(0, 2))


class Lived:
    """Plays the tries one after the other, and keeps what a perfect observer would."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.spent: dict[Spent, int] = defaultdict(int)
        self.done: list[tuple[int, int, int]] = []  # step, milliseconds, attempt: all but the first of each attempt
        self.standing: list[tuple[int, int]] = []  # step, when it is on disk
        self.resumes: list[int] = []
        self.records: list[RecordFacts] = []
        self.attempts: list[AttemptFacts] = []
        self.saves: list[SaveFacts] = []

    def play(self, number: int, one: Try) -> None:
        submitted_ms = self.now_ms
        eligible_ms = submitted_ms + one.eligible_ms
        started_ms = self.now_ms = eligible_ms + one.queue_ms
        self.spent[Spent.QUEUE] += one.queue_ms + (one.eligible_ms if number == 1 else 0)
        self.spent[Spent.REQUEUE] += 0 if number == 1 else one.eligible_ms
        self.standing = self.standing[: len(self.standing) - one.back] if one.back else self.standing
        resume = self.standing[-1][0] if self.standing else None
        self.resumes.append(resume or 0)
        self.now_ms += one.load_ms
        told = self._train(number, (resume or 0) + 1, one.steps)
        ended_ms = self.now_ms + one.hang_ms
        self.spent[Spent.STARTUP] += one.load_ms + (one.steps[0].ms if one.steps else one.hang_ms)
        self.spent[Spent.HANG] += one.hang_ms if one.steps else 0
        self.spent[Spent.TEARDOWN] += one.clean_ms
        self.now_ms = ended_ms + one.clean_ms
        self.records.append(
            RecordFacts(str(number), "FAILED", "a", "p", submitted_ms, eligible_ms, started_ms, self.now_ms)
        )
        first, last = (told[0], told[-1]) if told else ((None, None), (None, None))
        self.attempts.append(
            AttemptFacts((number, 0), started_ms, ended_ms, "failed", 1, resume, *first, *last),
        )

    def _train(self, number: int, step: int, steps: tuple[Step, ...]) -> list[tuple[int, int]]:
        told = []
        for at, one in enumerate(steps):
            self.now_ms += one.ms
            told.append((step, self.now_ms))
            if at:
                self.done.append((step, one.ms, number))
            if one.save is not None and at + 1 < len(steps):  # the last words are those of a step
                blocked_ms, total_ms = one.save
                ended_ms = self.now_ms + total_ms
                self.saves.append(SaveFacts((number, 0), step, step, True, ended_ms, blocked_ms, total_ms))
                self.standing.append((step, ended_ms))
                self.now_ms += blocked_ms
                self.spent[Spent.STALL] += blocked_ms
            step += 1
        return told


def lived(tries: list[Try]) -> Lived:
    life = Lived()
    for number, one in enumerate(tries, 1):
        life.play(number, one)
    return life


@given(tries=st.lists(TRY, min_size=1, max_size=5), finished=st.booleans())
def test_the_ledger_says_what_the_training_lived(tries: list[Try], finished: bool) -> None:
    """Saves that did not reach the disk before their attempt ended are told by nobody, so there are none here."""
    life = lived([tries_with_saves_in_time(one) for one in tries])
    facts = RunFacts(
        run_id="r",
        task=-1,
        name="n",
        user="u",
        cluster="c",
        created_ms=0,
        finished=finished,
        checkpoints="own",
        records=tuple(life.records),
        attempts=tuple(life.attempts),
        saves=tuple(life.saves),
    )
    newest = max((step for step, _ in life.standing), default=0)
    kept = 0
    lost: dict[tuple[int, int], int] = defaultdict(int)
    for step, ms, attempt in life.done:
        after = [(number, resume) for number, resume in enumerate(life.resumes, 1) if number > attempt]
        again = next((number for number, resume in after if resume < step), None)
        if again is not None:
            lost[again - 1, 0] += ms
        elif step > newest and not finished:
            lost[len(tries), 0] += ms
        else:
            kept += ms
    expected = {**life.spent, Spent.PRODUCTIVE: kept, Spent.LOST: sum(lost.values())}
    if all(one.first_step is None for one in life.attempts):  # nobody ever told a step: it may train in silence
        expected[Spent.UNTOLD] = expected.pop(Spent.STARTUP)
    found = wall_ledger(facts, life.now_ms)
    assert {spent: ms for spent, ms in found.ms.items() if ms} == {spent: ms for spent, ms in expected.items() if ms}
    assert not found.estimated
    costs = interruption_costs(facts, timeline(facts, life.now_ms))
    assert {one.number: one.lost_ms for one in costs if one.lost_ms} == {key: ms for key, ms in lost.items() if ms}


def tries_with_saves_in_time(one: Try) -> Try:
    """Each save is on disk before the next step is over."""
    steps = []
    for at, step in enumerate(one.steps):
        save = step.save
        if save is not None and at + 1 < len(one.steps):
            save = (save[0], min(save[1], save[0] + one.steps[at + 1].ms))
        steps.append(Step(step.ms, save))
    return Try(one.queue_ms, one.load_ms, tuple(steps), one.hang_ms, one.clean_ms, one.eligible_ms, one.back)
