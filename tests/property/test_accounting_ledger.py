"""Both ledgers add up exactly, whatever the records, the attempts and the clocks say."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fleetctl.accounting.ledger import interruption_costs, wall_ledger
from fleetctl.accounting.ledger_gpu import gpu_costs, gpu_ledger, gpus_by
from fleetctl.accounting.model import Window
from fleetctl.accounting.run_facts import AttemptFacts, InterruptionFacts, RecordFacts, RunFacts, SaveFacts
from fleetctl.accounting.spans import Spent
from fleetctl.accounting.timeline import timeline
from fleetctl.accounting.work import kept_of, saves_by_attempt, told_by
from fleetctl.rundir.model import Ending

END_S = 5_000
END_MS = END_S * 1000
SECONDS = st.integers(0, END_S).map(lambda second: second * 1000)
MOMENTS = SECONDS | st.integers(-200_000, END_MS)
STEPS = st.integers(-3, 60)
NUMBERS = st.tuples(st.integers(1, 4), st.integers(0, 2))
STATES = st.sampled_from(["COMPLETED", "FAILED", "CANCELLED", "PREEMPTED", "NODE_FAIL", "RESIZING", "REQUEUED", "ODD"])
ENDINGS = st.sampled_from(["", "odd", *(one.value for one in Ending)])


def maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


@st.composite
def records(draw: st.DrawFn) -> tuple[RecordFacts, ...]:
    found = []
    for number in range(draw(st.integers(0, 5))):
        started, ended = draw(maybe(SECONDS)), draw(maybe(SECONDS))  # the end may lie before the start
        found.append(
            RecordFacts(
                record=str(number),
                state=draw(STATES),
                account="lab",
                partition=draw(st.sampled_from("ab")),
                submitted_ms=draw(maybe(SECONDS)),
                eligible_ms=draw(maybe(SECONDS)),
                started_ms=started,
                ended_ms=ended,
                alive_ms=draw(maybe(SECONDS)),
                purged_ms=draw(maybe(SECONDS)),
                suspended_ms=draw(st.sampled_from([0, 0, 7_000, 900_000, 2 * END_MS])),
                nodes=draw(maybe(st.integers(0, 5))),
                gpus=draw(maybe(st.integers(0, 33))),
                het_offset=draw(st.sampled_from([None, None, 0, 1])),
            )
        )
    return tuple(found)


@st.composite
def attempts(draw: st.DrawFn) -> tuple[AttemptFacts, ...]:
    numbers = draw(st.lists(NUMBERS, max_size=6, unique=True))
    return tuple(
        AttemptFacts(
            number=number,
            started_ms=draw(MOMENTS),
            ended_ms=draw(maybe(MOMENTS)),
            ending=draw(ENDINGS),
            nodes=draw(maybe(st.integers(0, 5))),
            resume_step=draw(maybe(STEPS)),
            first_step=draw(maybe(STEPS)),
            first_step_ms=draw(maybe(MOMENTS)),
            last_step=draw(maybe(STEPS)),
            last_step_ms=draw(maybe(MOMENTS)),
            done=draw(st.booleans()),
        )
        for number in numbers
    )


@st.composite
def saves(draw: st.DrawFn) -> tuple[SaveFacts, ...]:
    return tuple(
        SaveFacts(
            number=draw(NUMBERS),
            sequence=sequence,
            training_step=draw(STEPS),
            committed=draw(st.booleans()),
            saved_ms=draw(maybe(MOMENTS)),
            blocked_ms=draw(maybe(st.integers(-5, END_MS))),
            total_ms=draw(maybe(st.integers(-5, END_MS))),
        )
        for sequence in range(draw(st.integers(0, 6)))
    )


@st.composite
def runs(draw: st.DrawFn) -> RunFacts:
    return RunFacts(
        run_id="r",
        task=draw(st.sampled_from([-1, 3])),
        name="n",
        user="u",
        cluster="c",
        created_ms=draw(MOMENTS),
        finished=draw(st.sampled_from([None, True, False])),
        nodes=draw(maybe(st.integers(0, 5))),
        checkpoints=draw(st.sampled_from([None, "", "own", "torch_dcp"])),
        records=draw(records()),
        attempts=draw(attempts()),
        saves=draw(saves()),
        interruptions=tuple(
            InterruptionFacts(number, draw(MOMENTS), "crash", draw(st.booleans()))
            for number in draw(st.lists(NUMBERS, max_size=2, unique=True))
        ),
    )


def held_ms(facts: RunFacts) -> int:
    """The sum over records of GPUs times the time held, by its definition."""
    total = 0
    for one in facts.records:
        end = one.alive_ms if one.ended_ms is None else one.ended_ms
        if one.started_ms is not None and end is not None:
            total += (one.gpus or 0) * max(0, end - one.started_ms)
    return total


@given(facts=runs(), as_of=SECONDS)
def test_the_wall_ledger_tiles_the_time_from_the_first_submission_to_the_end(facts: RunFacts, as_of: int) -> None:
    spans = timeline(facts, as_of).spans
    ledger = wall_ledger(facts, as_of)
    assert all(before.end_ms == after.start_ms for before, after in pairwise(spans))
    assert all(one.start_ms < one.end_ms for one in spans)
    assert sum(ledger.ms.values()) == ledger.wall_ms == (spans[-1].end_ms - spans[0].start_ms if spans else 0)
    assert all(ms >= 0 for ms in ledger.ms.values())
    assert ledger.ms[Spent.SPARE] == 0
    assert ledger.ettr is None or 0 <= ledger.ettr <= 1
    assert ledger.unsaved_ms is None or 0 <= ledger.unsaved_ms <= ledger.ms[Spent.PRODUCTIVE]


@given(facts=runs(), as_of=SECONDS)
def test_the_gpu_ledger_adds_up_to_what_the_records_held(facts: RunFacts, as_of: int) -> None:
    ledger = gpu_ledger(facts, as_of)
    assert sum(ledger.ms.values()) == ledger.held_ms == held_ms(facts)
    assert all(ms >= 0 for ms in ledger.ms.values())
    assert ledger.ms[Spent.QUEUE] == ledger.ms[Spent.REQUEUE] == 0  # nothing is held while it waits
    parts = gpus_by(facts, timeline(facts, as_of), None, lambda record: record.partition)
    assert sum(part.held_ms for part in parts.values()) == ledger.held_ms
    assert sum(part.unknown_records for part in parts.values()) == ledger.unknown_records


@given(facts=runs(), as_of=SECONDS, cuts=st.lists(st.integers(-300, END_S + 300), min_size=1, max_size=4))
def test_the_ledgers_of_adjacent_windows_add_up_to_the_whole(facts: RunFacts, as_of: int, cuts: list[int]) -> None:
    edges = sorted({-100_000, *cuts, 100_000})
    windows = [Window(since, until) for since, until in pairwise(edges)]
    for made in (wall_ledger, gpu_ledger):
        whole = made(facts, as_of).ms
        parts = [made(facts, as_of, window).ms for window in windows]
        assert {spent: sum(part[spent] for part in parts) for spent in Spent} == whole


@given(facts=runs(), as_of=SECONDS, seed=st.integers(0, 1000))
def test_the_order_of_what_is_told_means_nothing(facts: RunFacts, as_of: int, seed: int) -> None:
    shuffle = random.Random(seed)
    parts = {name: getattr(facts, name) for name in ("records", "attempts", "saves", "interruptions")}
    other = replace(facts, **{name: tuple(shuffle.sample(part, len(part))) for name, part in parts.items()})
    assert wall_ledger(other, as_of) == wall_ledger(facts, as_of)
    assert gpu_ledger(other, as_of) == gpu_ledger(facts, as_of)
    line, turned = timeline(facts, as_of), timeline(other, as_of)
    assert interruption_costs(other, turned) == interruption_costs(facts, line)


@given(facts=runs(), as_of=SECONDS, later=st.integers(0, 1000).map(lambda second: second * 1000))
def test_what_ends_later_than_it_was_known_to_go_on_loses_no_time(facts: RunFacts, as_of: int, later: int) -> None:
    """Where no attempt began before the run was submitted: what lies before its record by a wrong clock is cut off."""
    facts = replace(
        facts,
        created_ms=0,
        records=tuple(replace(one, submitted_ms=0) for one in facts.records),
        attempts=tuple(replace(one, started_ms=max(0, one.started_ms)) for one in facts.attempts),
    )
    wall_ms, gpu_ms = wall_ledger(facts, as_of).wall_ms, gpu_ledger(facts, as_of).held_ms
    now_ms = END_MS + later
    closed = replace(
        facts,
        records=tuple(replace(one, ended_ms=now_ms) if one.ended_ms is None else one for one in facts.records),
        attempts=tuple(replace(one, ended_ms=now_ms) if one.ended_ms is None else one for one in facts.attempts),
    )
    assert wall_ledger(closed, now_ms).wall_ms >= wall_ms
    assert gpu_ledger(closed, now_ms).held_ms >= gpu_ms
    ended = replace(facts, attempts=closed.attempts)
    assert wall_ledger(ended, as_of).wall_ms >= wall_ms


@given(facts=runs())
def test_no_training_step_is_productive_in_two_attempts(facts: RunFacts) -> None:
    """Of two attempts the work that counts of the earlier one ends before that of the later one begins."""
    facts = replace(facts, attempts=tuple(sorted(facts.attempts, key=lambda one: one.number)))
    by_attempt = saves_by_attempt(facts)
    told = {one.number: told_by(one, by_attempt.get(one.number, ())) for one in facts.attempts}
    kept = kept_of(facts, told)
    counted = []
    for number, one in told.items():
        if one.points:
            bound = min((loss.after for loss in kept.losses[number]), default=one.points[-1].step)
            counted.append((one.points[0].step, min(bound, one.points[-1].step)))
    spans = [(low, high) for low, high in counted if low < high]
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


@given(facts=runs(), as_of=SECONDS)
def test_what_interruptions_took_is_within_what_was_lost(facts: RunFacts, as_of: int) -> None:
    line, wall, gpu = timeline(facts, as_of), wall_ledger(facts, as_of), gpu_ledger(facts, as_of)
    costs = interruption_costs(facts, line)
    assert len({one.number for one in costs}) == len(costs)
    assert sum(one.lost_ms or 0 for one in costs) <= wall.ms[Spent.LOST]
    assert sum(one.detection_ms or 0 for one in costs) <= wall.ms[Spent.HANG]
    assert all(part is None or part >= 0 for one in costs for part in (one.detection_ms, one.restart_ms, one.lost_ms))
    taken = gpu_costs(facts, line).values()
    assert sum(one.lost_ms for one in taken) == gpu.ms[Spent.LOST]
    assert sum(one.detection_ms for one in taken) == gpu.ms[Spent.HANG]


@given(facts=runs(), as_of=SECONDS)
def test_without_any_moment_of_the_training_nothing_is_productive_or_lost(facts: RunFacts, as_of: int) -> None:
    silent = replace(
        facts,
        attempts=tuple(replace(one, first_step_ms=None, last_step_ms=None) for one in facts.attempts),
        saves=tuple(replace(one, saved_ms=None) for one in facts.saves),
    )
    ledger = wall_ledger(silent, as_of)
    assert ledger.ettr is None
    assert [ledger.ms[spent] for spent in (Spent.PRODUCTIVE, Spent.LOST, Spent.STALL, Spent.HANG)] == [0, 0, 0, 0]
