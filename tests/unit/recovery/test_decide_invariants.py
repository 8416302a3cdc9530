"""What no action may do, whatever rule asked for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from fleetctl.recovery.invariants import check
from fleetctl.recovery.model import Action, Deed, Incident, Outcome, Reservation, RunSeen
from fleetctl.recovery.policy import Mode, Policy
from fleetctl.rundir.model import Ending, SubmissionState
from fleetctl.slurm.model import AdminLevel, Node
from tests.recovery_seen import (
    ADMINISTRATOR,
    NOW,
    OWNER,
    ago,
    attempt,
    done,
    failed,
    fleet,
    history,
    job,
    memory,
    node,
    run,
    snapshot,
    waiting,
    with_facts,
)

FAILED = run(history(failed()), job("FAILED"))
WAITS = run(history(failed()), waiting())
RUNS = run()


def action(deed: Deed, **changes: Any) -> Action:
    start = "c/7/1" if deed in (Deed.EXCLUDE, Deed.START_NOW) else "c/7/0"
    return replace(Action(deed, "r-1", start, "why", "rule"), **changes)


REQUEUE, REQUEUE_ENDED, RESUBMIT = (action(d) for d in (Deed.REQUEUE, Deed.REQUEUE_ENDED, Deed.RESUBMIT))
EXCLUDE, START_NOW = action(Deed.EXCLUDE, nodes=("n1",)), action(Deed.START_NOW)
ROLL_BACK, HOLD = action(Deed.ROLL_BACK, at_most_step=5), action(Deed.HOLD)
DRAIN = Action(Deed.DRAIN, "", "", "why", "lemon", nodes=("n1",))
SET_DOWN = Action(Deed.SET_DOWN, "", "n1: c/7/0", "why", "proved_dead", nodes=("n1",))
SILENT = fleet(node("n1", "MIXED", "NOT_RESPONDING"))
DEAD = {"nodes": SILENT, "proved_dead": frozenset(["n1"])}
RIGHT = [
    (REQUEUE, RUNS, {}, OWNER),
    (REQUEUE_ENDED, FAILED, {}, OWNER),
    (RESUBMIT, run(history(failed()), job("PREEMPTED")), {}, OWNER),
    (EXCLUDE, WAITS, {}, OWNER),
    (START_NOW, WAITS, {}, OWNER),
    (ROLL_BACK, RUNS, {}, OWNER),
    (HOLD, FAILED, {}, OWNER),
    (DRAIN, RUNS, {}, ADMINISTRATOR),
    (SET_DOWN, RUNS, DEAD, ADMINISTRATOR),
]
EACH = pytest.mark.parametrize(("deed", "seen", "changes", "policy"), RIGHT, ids=[str(one[0].deed) for one in RIGHT])
OF_RUNS = pytest.mark.parametrize(
    ("deed", "seen", "changes", "policy"), RIGHT[:-2], ids=[str(one[0].deed) for one in RIGHT[:-2]]
)


@EACH
def test_what_is_right_may_be_done(deed: Action, seen: RunSeen, changes: dict[str, Any], policy: Policy) -> None:
    assert check(deed, snapshot(seen, **changes), memory(), policy) is None


@EACH
@pytest.mark.parametrize(
    "missing",
    [
        {"nodes": None},
        {"maintenance": None},
        {"controller_since": None},
        {"controller_since": ago(119)},
        {"controller_since": NOW + timedelta(hours=1)},  # a clock stepped back
    ],
    ids=["nodes", "maintenance", "controller", "controller began", "clock"],
)
def test_nothing_is_done_on_what_was_not_observed(
    deed: Action, seen: RunSeen, changes: dict[str, Any], policy: Policy, missing: dict[str, Any]
) -> None:
    assert check(deed, snapshot(seen, **{**changes, **missing}), memory(), policy)


@OF_RUNS
@pytest.mark.parametrize("missing", [{"facts": None}, {"jobs": None}, {"restarts": None}], ids=str)
def test_nothing_is_done_to_a_run_that_was_not_seen(
    deed: Action, seen: RunSeen, changes: dict[str, Any], policy: Policy, missing: dict[str, Any]
) -> None:
    assert check(deed, snapshot(replace(seen, **missing), **changes), memory(), policy)
    assert check(deed, snapshot(**changes), memory(), policy)
    assert check(deed, snapshot(runs=None, **changes), memory(), policy)


@EACH
def test_nothing_is_done_while_paused_or_in_an_incident(
    deed: Action, seen: RunSeen, changes: dict[str, Any], policy: Policy
) -> None:
    there = snapshot(seen, **changes)
    assert check(deed, there, memory(paused_by="ann: debugging"), policy)
    assert check(deed, there, memory(incidents=(Incident("class", "hang", ago(60), None),)), policy)
    assert check(deed, there, memory(incidents=(Incident("class", "hang", ago(60), ago(5)),)), policy) is None


@OF_RUNS
def test_a_paused_run_is_left_alone_and_others_are_not(
    deed: Action, seen: RunSeen, changes: dict[str, Any], policy: Policy
) -> None:
    there = snapshot(seen, **changes)
    assert check(deed, there, memory(paused_runs={"r-1": "ann"}), policy)
    assert check(deed, there, memory(paused_runs={"r-2": "ann"}), policy) is None


@EACH
def test_nothing_is_done_under_maintenance(
    deed: Action, seen: RunSeen, changes: dict[str, Any], policy: Policy
) -> None:
    def reserved(begin_s: float, end_s: float) -> Reservation:
        return Reservation("m", frozenset(["n1"]), NOW + timedelta(seconds=begin_s), NOW + timedelta(seconds=end_s))

    assert check(deed, snapshot(seen, **{**changes, "maintenance": (reserved(-60, 60),)}), memory(), policy)
    for other in (reserved(60, 120), reserved(-120, -60)):
        assert check(deed, snapshot(seen, **{**changes, "maintenance": (other,)}), memory(), policy) is None


@OF_RUNS
@pytest.mark.parametrize("told", [{"cancelled_at": NOW}, {"observed_end": "cancelled"}, {"held": {None: "x"}}], ids=str)
def test_nothing_is_done_to_a_cancelled_or_held_run(
    deed: Action, seen: RunSeen, changes: dict[str, Any], policy: Policy, told: dict[str, Any]
) -> None:
    assert seen.facts is not None
    there = with_facts(seen, history=replace(seen.facts.history, **told))
    assert check(deed, snapshot(there, **changes), memory(), policy)


@OF_RUNS
def test_nothing_is_done_to_what_finished_opted_out_or_was_cancelled_in_slurm(
    deed: Action, seen: RunSeen, changes: dict[str, Any], policy: Policy
) -> None:
    well = history(failed(exit_code=0, ending=Ending.FINISHED))
    for there in (
        with_facts(seen, history=well),
        with_facts(seen, opted_out=True),
        replace(seen, jobs=(job("CANCELLED"),)),
        replace(seen, jobs=(job("COMPLETED"),)),
    ):
        assert check(deed, snapshot(there, **changes), memory(), policy)


@OF_RUNS
def test_nothing_is_done_to_another_start_than_the_one_that_was_meant(
    deed: Action, seen: RunSeen, changes: dict[str, Any], policy: Policy
) -> None:
    assert check(replace(deed, start="c/7/9"), snapshot(seen, **changes), memory(), policy)
    assert check(replace(deed, start="d/7/0"), snapshot(seen, **changes), memory(), policy)


@EACH
@pytest.mark.parametrize("outcome", [Outcome.OPEN, Outcome.DONE, Outcome.REFUSED])
def test_the_same_is_not_done_a_second_time(
    deed: Action, seen: RunSeen, changes: dict[str, Any], policy: Policy, outcome: Outcome
) -> None:
    entry = replace(done(deed.deed, outcome), action=replace(deed, why="other words", evidence=("other",)))
    assert check(deed, snapshot(seen, **changes), memory(entries=(entry,)), policy)


def test_a_run_is_brought_back_once_for_a_start_whichever_way() -> None:
    for deed in (Deed.REQUEUE, Deed.REQUEUE_ENDED, Deed.RESUBMIT):
        entry = done(deed, nodes=("n5",))
        assert check(REQUEUE_ENDED, snapshot(FAILED), memory(entries=(entry,)), OWNER)


def test_a_hold_of_ours_stands_against_everything_else_on_that_start() -> None:
    held = memory(entries=(done(Deed.HOLD),))
    assert check(REQUEUE_ENDED, snapshot(FAILED), held, OWNER)
    later = memory(entries=(done(Deed.HOLD, start="c/7/9"),))
    assert check(REQUEUE_ENDED, snapshot(FAILED), later, OWNER) is None


@pytest.mark.parametrize("flags", [("NOT_RESPONDING",), ("NOT_RESPONDING", "DRAIN")])
def test_no_requeue_while_a_node_of_the_job_is_not_reached_and_not_down(flags: tuple[str, ...]) -> None:
    there = snapshot(RUNS, nodes=fleet(node("n2", "MIXED", *flags)))
    assert check(REQUEUE, there, memory(), OWNER)
    there = snapshot(RUNS, nodes=fleet(node("n2", "DOWN", *flags)))
    assert check(REQUEUE, there, memory(), OWNER) is None
    assert check(REQUEUE, snapshot(RUNS, nodes=fleet()[1:]), memory(), OWNER)  # Slurm does not list n1


def test_a_requeue_is_only_for_what_its_record_asks_for() -> None:
    assert check(REQUEUE, snapshot(FAILED), memory(), OWNER)
    assert check(REQUEUE_ENDED, snapshot(RUNS), memory(), OWNER)
    assert check(RESUBMIT, snapshot(FAILED), memory(), OWNER)
    assert check(
        RESUBMIT, snapshot(run(history(failed()), job("PREEMPTED"))), memory(), replace(OWNER, mode=Mode.OPERATOR)
    )
    unknown = history(failed(), state=SubmissionState.UNKNOWN, submission=2)
    mine = replace(RESUBMIT, start="c/submission 2/0")
    assert check(mine, snapshot(run(unknown, jobs=None, restarts=None)), memory(), OWNER)
    assert check(REQUEUE_ENDED, snapshot(with_facts(FAILED, may_restart=False)), memory(), OWNER)
    preempted = run(history(failed()), job("PREEMPTED"))
    assert check(RESUBMIT, snapshot(with_facts(preempted, may_restart=False)), memory(), OWNER)


def test_exclusions_leave_enough_nodes_and_name_nodes_that_there_are() -> None:
    assert check(EXCLUDE, snapshot(WAITS, nodes=fleet()[:2]), memory(), OWNER)
    assert check(replace(EXCLUDE, nodes=("n99",)), snapshot(WAITS), memory(), OWNER)
    assert check(replace(EXCLUDE, nodes=()), snapshot(WAITS), memory(), OWNER)
    assert check(EXCLUDE, snapshot(RUNS), memory(), OWNER)
    assert check(replace(REQUEUE_ENDED, nodes=("n1",)), snapshot(FAILED, nodes=fleet()[:2]), memory(), OWNER)


def test_start_now_is_never_while_an_old_node_may_still_write() -> None:
    silent = fleet(node("n2", "DOWN", "NOT_RESPONDING"))
    foreign = with_facts(WAITS, own_format=False)
    assert check(START_NOW, snapshot(foreign, nodes=silent), memory(), OWNER)
    assert check(START_NOW, snapshot(with_facts(WAITS, own_format=True), nodes=silent), memory(), OWNER) is None
    unknown = run(history(failed(nodes="")), waiting())
    assert check(START_NOW, snapshot(unknown), memory(), OWNER)


def test_a_roll_back_names_a_step_that_there_can_be() -> None:
    assert check(replace(ROLL_BACK, at_most_step=None), snapshot(RUNS), memory(), OWNER)
    assert check(replace(ROLL_BACK, at_most_step=-1), snapshot(RUNS), memory(), OWNER)


@pytest.mark.parametrize(
    "policy",
    [OWNER, replace(ADMINISTRATOR, level=AdminLevel.OPERATOR), replace(ADMINISTRATOR, mode=Mode.OWNER)],
    ids=["owner", "operator", "an administrator's own runs"],
)
def test_only_a_daemon_with_the_level_touches_nodes(policy: Policy) -> None:
    assert check(DRAIN, snapshot(RUNS), memory(), policy)
    assert check(SET_DOWN, snapshot(RUNS, **DEAD), memory(), policy)


@pytest.mark.parametrize(
    "there",
    [
        node("n1", reason="fan broken"),
        node("n1", "IDLE", "DRAIN", reason="admin: fan"),
        node("n1", "IDLE", "DRAIN", reason="fleetctl: ours"),
        node("n1", "DOWN", reason="Not responding"),
    ],
    ids=["reason", "drained", "ours already", "down"],
)
def test_a_node_with_a_word_on_it_is_not_drained(there: Node) -> None:
    assert check(DRAIN, snapshot(RUNS, nodes=fleet(there)), memory(), ADMINISTRATOR)


def test_no_drain_without_the_findings_of_the_node_checks() -> None:
    assert check(DRAIN, snapshot(RUNS, findings=None), memory(), ADMINISTRATOR)


def test_drains_have_a_cap_per_hour_and_in_all() -> None:
    def drained(number: int, age_s: float) -> Any:
        return replace(done(Deed.DRAIN, age_s=age_s), action=replace(DRAIN, nodes=(f"n{number}",)))

    many = tuple(node(f"n{number}") for number in range(1, 201))
    there = snapshot(RUNS, nodes=many)
    assert check(DRAIN, there, memory(entries=(drained(2, 60), drained(3, 60))), ADMINISTRATOR)
    assert check(DRAIN, there, memory(entries=(drained(2, 3700), drained(3, 60))), ADMINISTRATOR) is None
    ours = tuple(node(f"n{number}", "IDLE", "DRAIN", reason="fleetctl: lemon") for number in range(10, 14))
    assert check(DRAIN, snapshot(RUNS, nodes=(*many[:9], *ours, *many[13:])), memory(), ADMINISTRATOR)
    theirs = tuple(replace(one, reason="admin: rack move") for one in ours)
    assert check(DRAIN, snapshot(RUNS, nodes=(*many[:9], *theirs, *many[13:])), memory(), ADMINISTRATOR) is None


@pytest.mark.parametrize(
    ("there", "proved"),
    [
        (node("n1", "MIXED", "NOT_RESPONDING"), frozenset[str]()),
        (node("n1", "MIXED"), frozenset(["n1"])),
        (node("n1", "DOWN", "NOT_RESPONDING"), frozenset(["n1"])),
        (node("n1", "MIXED", "NOT_RESPONDING", reason="admin: moved"), frozenset(["n1"])),
    ],
    ids=["not proved", "reached", "down", "foreign"],
)
def test_a_node_is_set_down_only_when_it_is_proved_dead_and_nobody_says_anything_else(
    there: Node, proved: frozenset[str]
) -> None:
    assert check(SET_DOWN, snapshot(RUNS, nodes=fleet(there), proved_dead=proved), memory(), ADMINISTRATOR)


def test_people_are_told_whatever_is_paused() -> None:
    tell = action(Deed.TELL)
    assert check(tell, snapshot(RUNS, nodes=None), memory(paused_by="ann"), OWNER) is None
    assert check(tell, snapshot(RUNS), memory(entries=(replace(done(Deed.TELL), action=tell),)), OWNER)


def test_an_attempt_that_slurm_began_again_is_not_taken_back_by_the_daemon() -> None:
    came_back = run(history(attempt()), job("RUNNING"), restarts=1)  # no attempt of this start yet
    assert check(replace(REQUEUE, start="c/7/1"), snapshot(came_back), memory(), OWNER)
