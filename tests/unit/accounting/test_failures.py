"""What interrupts jobs: each thing once, by whoever knows most of it, and what counts as a failure."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

from fleetctl.accounting.causes import Cause, Ranked
from fleetctl.accounting.failure_rates import Row, of_nodes, table, with_chances
from fleetctl.accounting.failures import Interruption, Merged, Place, Tried, merge
from fleetctl.accounting.model import Window
from tests.accounting_rows import DAY_S, HOUR_S, T0

_WINDOW = Window(T0, T0 + DAY_S)
_JOB = ("lab", 7, None)
_NODE = (Ranked(Cause.NODE, "Slurm: NODE_FAIL", "n3"),)
_PROGRAM = (Ranked(Cause.PROGRAM, "step train: exited with exit code 1"),)


def _place(cause: Cause | None = None, **values: Any) -> Place:
    """A record of one hour from T0 on."""
    ranked = () if cause is None else (Ranked(cause, f"Slurm: {cause.upper()}"),)
    usual = {"record": 1, "job": _JOB, "submitted_s": T0, "started_s": T0, "ended_s": T0 + HOUR_S, "user": "ada"}
    return Place(
        **{**usual, "account": "lab", "partition": "gpu", "nodes": frozenset({"n3"}), "ranked": ranked, **values}
    )


def _tried(minor: int = 0, *, major: int = 1, end: int | None = None, **values: Any) -> Tried:
    """An attempt that was interrupted `end` seconds after T0."""
    usual: dict[str, Any] = {"run": "r", "task": -1, "number": (major, minor), "records": (1,), "finished": False}
    return Tried(**{**usual, "at_ms": None if end is None else (T0 + end) * 1000, **values})


def _told(found: Merged) -> list[tuple[str, int]]:
    return [(one.cause.value, one.at_s - T0) for one in found.interruptions]


@pytest.mark.parametrize(
    ("cause", "failed"),
    [
        (Cause.NODE, True),
        (Cause.GPU, True),
        (Cause.PROGRAM, True),
        (Cause.OUT_OF_MEMORY, True),
        (Cause.LAUNCH, True),
        (Cause.STOPPED_EARLY, True),
        (Cause.HANG, True),
        (Cause.UNKNOWN, True),
        (Cause.TIME_LIMIT, False),
        (Cause.DEADLINE, False),
        (Cause.PREEMPTED, False),
        (Cause.REQUEUED, False),
        (Cause.CANCELLED_BY_USER, False),
        (Cause.CANCELLED_BY_ADMIN, False),
        (Cause.CANCELLED, False),
        (Cause.FENCED, False),
        (Cause.MASKED_FAILURE, False),
    ],
)
def test_a_failure_is_what_nobody_decided(cause: Cause, failed: bool) -> None:
    (found,) = merge([_place(cause)], [], _WINDOW).interruptions

    assert (found.cause, found.failed, found.at_s) == (cause, failed, T0 + HOUR_S)


def test_a_record_that_ended_well_or_goes_on_interrupted_nothing() -> None:
    assert merge([_place(), _place(record=2, ended_s=None, submitted_s=T0 + 1)], [], _WINDOW) == Merged((), 0)


def test_the_record_s_end_and_the_end_of_its_last_attempt_are_one() -> None:
    found = merge([_place(Cause.NODE)], [_tried(end=HOUR_S - 40, ranked=_NODE)], _WINDOW)

    assert _told(found) == [("node", HOUR_S)]
    assert (found.interruptions[0].run, found.interruptions[0].node) == ("r", "n3")


def test_a_run_that_requeued_itself_after_a_failure_failed() -> None:
    found = merge([_place(Cause.REQUEUED)], [_tried(end=HOUR_S - 2, ranked=_PROGRAM)], _WINDOW)

    assert [(one.cause, one.failed) for one in found.interruptions] == [(Cause.PROGRAM, True)]


def test_restarts_within_a_record_count_beside_its_end() -> None:
    tried = [_tried(0, end=600, ranked=_NODE), _tried(1, end=3_590, ranked=_PROGRAM)]

    assert _told(merge([_place(Cause.PROGRAM)], tried, _WINDOW)) == [("node", 600), ("program", HOUR_S)]


def test_a_record_whose_last_attempt_finished_was_over_before_its_end() -> None:
    tried = [_tried(0, end=600, ranked=_NODE), _tried(1, finished=True)]

    assert _told(merge([_place(Cause.CANCELLED_BY_USER)], tried, _WINDOW)) == [("node", 600)]


def test_where_the_run_knows_nothing_of_its_end_slurm_s_word_counts() -> None:
    nothing = (Ranked(Cause.UNKNOWN, "nothing tells why it ended"),)

    assert _told(merge([_place(Cause.NODE)], [_tried(end=900, ranked=nothing)], _WINDOW)) == [("node", HOUR_S)]
    assert _told(merge([_place(Cause.NODE)], [_tried()], _WINDOW)) == [("node", HOUR_S)]
    assert _told(merge([_place(Cause.PREEMPTED)], [_tried(end=900)], _WINDOW)) == [("preempted", HOUR_S)]


def test_an_interruption_in_a_record_that_goes_on_counts_when_it_was() -> None:
    found = merge([_place(ended_s=None)], [_tried(end=600, ranked=_NODE)], _WINDOW)

    assert _told(found) == [("node", 600)]


def test_attempts_belong_to_the_start_of_the_job_that_they_ran_in() -> None:
    times = {"submitted_s": T0 + HOUR_S, "started_s": T0 + 2 * HOUR_S, "ended_s": T0 + 3 * HOUR_S}
    again = _place(Cause.PROGRAM, record=2, **times)
    tried = [_tried(end=HOUR_S, ranked=_NODE), _tried(major=2, end=3 * HOUR_S, ranked=_PROGRAM, records=(2,))]

    found = merge([_place(Cause.REQUEUED), again], tried, _WINDOW)

    assert _told(found) == [("node", HOUR_S), ("program", 3 * HOUR_S)]


def test_a_run_blames_no_node_that_its_record_did_not_have() -> None:
    tried = [_tried(0, end=600, ranked=_NODE), _tried(1, end=3_590, ranked=(Ranked(Cause.GPU, "Xid 79", "n99"),))]

    found = merge([_place(Cause.NODE)], tried, _WINDOW)

    assert [(one.cause.value, one.node) for one in found.interruptions] == [("node", "n3"), ("gpu", "")]


def test_a_node_that_slurm_names_is_believed() -> None:
    assert [one.node for one in merge([_place(ranked=_NODE, nodes=frozenset())], [], _WINDOW).interruptions] == ["n3"]


def test_components_of_a_hetjob_fall_once_and_by_what_failed() -> None:
    parts = [
        _place(Cause.CANCELLED, partition="cpu", part=0, nodes=frozenset({"n1"})),
        _place(Cause.NODE, record=2, part=1, ended_s=T0 + HOUR_S + 1),
    ]

    assert _told(merge(parts, [], _WINDOW)) == [("node", HOUR_S + 1)]
    assert [one.node for one in merge(parts, [_tried(end=9, ranked=_NODE)], _WINDOW).interruptions] == ["n3"]


def test_components_of_a_hetjob_that_are_resized_together_fall_once() -> None:
    later = {"submitted_s": T0 + 600, "started_s": T0 + 600}
    first = [_place(record=part, part=part, resized=True, ended_s=T0 + 600) for part in (0, 1)]
    second = [_place(Cause.NODE, record=2 + part, part=part, **later) for part in (0, 1)]

    assert _told(merge([*first, *second], [], _WINDOW)) == [("node", HOUR_S)]


def test_a_resized_job_is_one_start_with_one_end() -> None:
    """As 22.05.8 records it: each size has a Submit of its own, which is when the one before ended."""
    first = _place(ended_s=T0 + 600, resized=True, nodes=frozenset({"n3", "n4"}))
    second = _place(Cause.NODE, record=2, submitted_s=T0 + 600, started_s=T0 + 600, nodes=frozenset({"n4"}))
    tried = [_tried(0, end=590, ranked=_NODE), _tried(1, end=3_000, ranked=_PROGRAM, records=(1, 2))]

    found = merge([first, second], tried, _WINDOW)

    assert _told(found) == [("node", 590), ("program", HOUR_S)]
    assert found.interruptions[0].node == "n3", "which the second size did not have"


def test_an_interruption_without_a_record_that_held_gpus_is_told_apart() -> None:
    other = _tried(end=600, ranked=_NODE, records=(8,))

    assert merge([_place()], [other], _WINDOW) == Merged((), 1)
    assert merge([_place()], [other], Window(T0 + 601, T0 + DAY_S)) == Merged((), 0)


def test_the_end_of_the_window_is_not_within_it() -> None:
    places = [_place(Cause.NODE)]

    assert _told(merge(places, [], Window(T0 + HOUR_S, T0 + DAY_S))) == [("node", HOUR_S)]
    assert _told(merge(places, [], Window(T0, T0 + HOUR_S))) == []


def _failed(cause: Cause = Cause.NODE, node: str = "", by_person: bool | None = None) -> Interruption:
    return Interruption(T0, cause, node, "", _JOB, "ada", "lab", "gpu", by_person=by_person)


def _by_cause(one: Interruption) -> str:
    return one.cause.value


def _by_node(one: Interruption) -> str | None:
    return one.node or None


def test_the_row_of_a_cause_says_what_would_be_without_it() -> None:
    """Llama 3: 54 days on 16,384 GPUs, 419 failures of which 42 were the network's."""
    total = Fraction(54 * 86_400 * 16_384)
    found = [_failed(Cause.NETWORK)] * 42 + [_failed(Cause.GPU)] * 377 + [_failed(Cause.TIME_LIMIT)] * 47

    rows = {row.key: row for row in table(found, dict.fromkeys(Cause, total), total, _by_cause, 16_384)}

    assert [rows["network"].failures, rows["gpu"].failures, rows["time_limit"].failures] == [42, 377, 0]
    assert rows["network"].without.gain == pytest.approx(0.111, abs=5e-4)
    assert rows["network"].without.mtbf == pytest.approx(3.44, abs=5e-3)
    assert rows["network"].mtbf.value == pytest.approx(54 * 24 / 42)
    assert rows["network"].share == pytest.approx(42 / 419)
    assert rows["gpu"].per_1000_gpu_days == pytest.approx(377 / (54 * 16.384))
    assert rows["time_limit"].without.gain == 0.0


def test_a_row_without_failures_has_only_a_lower_limit() -> None:
    (row,) = table([], {"n1": Fraction(HOUR_S * 100)}, Fraction(HOUR_S * 100), _by_node)

    assert (row.mtbf.value, row.mtbf.high, row.share) == (None, None, None)
    assert row.mtbf.low == pytest.approx(100 / 3.689, rel=1e-3)


def test_a_failure_on_a_node_that_is_not_known_is_a_row_of_its_own_at_the_end() -> None:
    held: dict[str | None, Fraction] = {"n1": Fraction(HOUR_S), "n2": Fraction(HOUR_S)}

    rows = table([_failed(), _failed(), _failed(node="n2")], held, Fraction(2 * HOUR_S), _by_node)

    assert [(row.key, row.failures) for row in rows] == [("n2", 1), ("n1", 0), (None, 2)]
    assert (rows[2].gpu_seconds, rows[2].per_1000_gpu_days, rows[2].mtbf.low) == (None, None, None)


def test_persons_are_counted_among_the_interruptions_that_can_tell() -> None:
    found = [_failed(by_person=True), _failed(by_person=False), _failed(Cause.PREEMPTED, by_person=False), _failed()]

    rows = {row.key: (row.persons, row.of_runs) for row in table(found, {}, Fraction(1), _by_cause)}

    assert rows == {"node": (1, 2), "preempted": (0, 1)}


def test_only_what_is_a_node_s_is_charged_to_one() -> None:
    found = [_failed(cause) for cause in Cause] + [_failed(Cause.PROGRAM, node="n1")]

    charged = of_nodes(found)

    assert {one.cause.value for one in charged} == {"node", "gpu", "network", "host", "storage", "launch", "program"}
    assert [one.node for one in charged if one.cause is Cause.PROGRAM] == ["n1"]


def _nodes(counts: list[int], hours: list[int]) -> tuple[Row, ...]:
    held: dict[str | None, Fraction] = {f"n{number}": Fraction(hour * HOUR_S) for number, hour in enumerate(hours)}
    found = [_failed(node=f"n{number}") for number, count in enumerate(counts) for _ in range(count)]
    return with_chances(table(found, held, sum(held.values(), Fraction(0)), _by_node))


def test_a_node_that_fails_far_more_often_than_all_others_repeats() -> None:
    rows = _nodes([9] + [1] * 9 + [0] * 90, [1_000] * 100)

    assert [row.key for row in rows if row.repeats] == ["n0"]
    assert rows[0].chance == pytest.approx(6.6e-13, rel=0.1)  # 9 where 0.18 were expected


def test_two_failures_among_many_nodes_are_bad_luck() -> None:
    rows = _nodes([2] + [1] * 30 + [0] * 69, [1_000] * 100)

    assert rows[0].chance == pytest.approx(1 - math.exp(-0.32) * 1.32)  # 0.041, where 0.05 / 100 would be a sign
    assert not any(row.repeats for row in rows)


def test_a_node_that_ran_little_is_judged_by_what_it_ran() -> None:
    rows = _nodes([3, 3, *([1] * 20)], [10, 10_000, *([1_000] * 20)])

    assert [row.key for row in rows if row.repeats] == ["n0"]


def test_without_a_known_node_there_is_no_chance() -> None:
    rows = with_chances(table([_failed()], {}, Fraction(1), _by_node))

    assert [(row.chance, row.repeats) for row in rows] == [(None, False)]
