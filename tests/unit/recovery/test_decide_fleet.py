"""What recovery makes of many failures: budgets of one run, incidents of the fleet, and nodes that fail again and
again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from fleetctl.recovery.decide_fleet import pause
from fleetctl.recovery.model import (
    Advice,
    CauseClass,
    Decision,
    Deed,
    Done,
    Evidence,
    Incident,
    Interruption,
    Reservation,
    RunSeen,
    Suspected,
)
from fleetctl.recovery.policy import Mode
from fleetctl.rundir.model import Ending
from fleetctl.slurm.model import Node
from fleetctl.submission.decide_requeue import Past
from tests.recovery_seen import (
    ADMINISTRATOR,
    GPU,
    NOBODY,
    NODE,
    NOW,
    OWNER,
    STOP,
    ago,
    decided,
    deeds,
    done,
    failed,
    fleet,
    history,
    job,
    known,
    memory,
    node,
    rule,
    run,
    snapshot,
    waiting,
    with_facts,
)

CRASH = Suspected(CauseClass.PROGRAM, Advice.SAME, "log: index out of range")
OTHER = Suspected(CauseClass.DATA, Advice.SAME, "log: bad sample")
PREEMPTED = Suspected(CauseClass.PREEMPTED, Advice.SLURM, "slurm: PREEMPTED")

# Budgets


def ends(*ended: tuple[Suspected, int | None, float]) -> tuple[Interruption, ...]:
    """Cause, newest checkpoint, how long it ran; oldest first, one attempt and start each."""
    return tuple(
        known(
            cause,
            attempt=f"{number}.0",
            start=f"c/7/{number - 1}",
            at=ago(1000 * (len(ended) - number) + 40),
            progress_step=step,
            ran_s=ran_s,
        )
        for number, (cause, step, ran_s) in enumerate(ended, 1)
    )


def after(*ended: tuple[Suspected, int | None, float], asked: int = 0, seen: RunSeen | None = None) -> Decision:
    attempts = [failed(f"{number}.0") for number in range(1, len(ended) + 1)]
    told = history(*attempts, asked={None: asked} if asked else {})
    there = seen or run(told, job("FAILED"), restarts=len(ended) - 1)
    there = with_facts(there, history=told, past=Past(len(ended) - 1, False, None))
    return decided(snapshot(there), memory(*ends(*ended)))


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        ([(CRASH, 100, 3000)] * 2, Deed.REQUEUE_ENDED),
        ([(CRASH, 100, 3000)] * 3, Deed.HOLD),
        ([(CRASH, None, 3000)] * 3, Deed.HOLD),  # unknown progress is none
        ([(CRASH, 100, 3000), (CRASH, 200, 3000), (CRASH, 300, 3000)], Deed.REQUEUE_ENDED),
        ([(CRASH, 100, 3000), (OTHER, 100, 3000)] * 2, Deed.REQUEUE_ENDED),
        ([(CRASH, 100, 3000), (OTHER, 100, 3000)] * 3, Deed.HOLD),  # taking turns is no progress
        ([(CRASH, 100, 3000), (CRASH, 100, 3000), (PREEMPTED, 100, 3000), (CRASH, 100, 3000)], Deed.HOLD),
        ([(CRASH, 100, 3000), *[(PREEMPTED, 100, 3000)] * 4, (CRASH, 100, 3000)], Deed.REQUEUE_ENDED),
        ([(PREEMPTED, 100, 500), (CRASH, 100, 500)], Deed.REQUEUE_ENDED),
        ([(CRASH, 100, 500)] * 2, Deed.HOLD),  # soon after its start, twice
        ([(CRASH, 100, 500), (OTHER, 100, 500)], Deed.HOLD),
        ([(CRASH, 100, 500), (CRASH, 100, 3000)], Deed.REQUEUE_ENDED),
        ([(CRASH, 100, 500), (CRASH, 200, 500)], Deed.REQUEUE_ENDED),
        ([(GPU, 100, 500)] * 5, Deed.REQUEUE_ENDED),  # the machine's failures
        ([(GPU, 100, 500)] * 6, Deed.HOLD),  # and nothing at all goes on
    ],
)
def test_budgets_count_failures_without_progress(
    ended: list[tuple[Suspected, int | None, float]], expected: Deed
) -> None:
    assert deeds(after(*ended)) == [expected]


def test_what_is_nobodys_failure_costs_nothing() -> None:
    seen = run(history(failed()), waiting(), restarts=9)
    assert deeds(after(*[(PREEMPTED, 100, 60.0)] * 9, seen=seen)) == []


def test_a_persons_requeue_clears_every_brake() -> None:
    assert deeds(after(*[(CRASH, 100, 3000.0)] * 3, asked=2)) == [Deed.REQUEUE_ENDED]
    assert deeds(after(*[(CRASH, 100, 3000.0)] * 3, asked=0)) == [Deed.HOLD]


# Incidents


def failures(
    count: int, cause: Suspected = CRASH, users: Sequence[str] = ("ann",), at: datetime | None = None
) -> tuple[list[RunSeen], tuple[Interruption, ...]]:
    runs, ended = [], []
    for number in range(count):
        key = f"r-{number}"
        told = history(failed())
        told = replace(told, record=replace(told.record, run_id=key))
        runs.append(run(told, job("FAILED"), key=key, user=users[number % len(users)]))
        ended.append(known(cause, key=key, at=at or ago(40), user=users[number % len(users)]))
    return runs, tuple(ended)


def test_many_runs_that_fail_in_one_way_at_once_are_one_incident_and_nothing_is_done() -> None:
    runs, ended = failures(5, STOP)
    found = decided(snapshot(*runs), memory(*ended))
    assert [(one.kind, one.subject, len(one.keys), one.until) for one in found.incidents] == [
        ("class", "configuration", 5, None)
    ]
    assert deeds(found) == [Deed.PAUSE]
    again = memory(*ended, incidents=found.incidents, entries=(Done(found.actions[0], NOW, done(Deed.PAUSE).outcome),))
    second = decided(snapshot(*runs), again)
    assert (deeds(second), second.incidents) == ([], ())


def test_few_or_old_or_unlike_failures_are_no_incident() -> None:
    runs, ended = failures(4)
    assert not decided(snapshot(*runs), memory(*ended)).incidents
    runs, ended = failures(6, at=ago(700))
    assert not decided(snapshot(*runs), memory(*ended)).incidents
    runs, ended = failures(8, PREEMPTED)
    assert not decided(snapshot(*runs), memory(*ended)).incidents


def test_elements_of_one_sweep_are_one_run() -> None:
    ended = tuple(known(CRASH, key=f"r-1/{number}") for number in range(20))
    assert not decided(snapshot(), memory(*ended)).incidents


def test_one_users_failures_do_not_stop_everybodys_recovery() -> None:
    operator = replace(OWNER, mode=Mode.OPERATOR)
    runs, ended = failures(6)
    assert not decided(snapshot(*runs), memory(*ended), operator).incidents
    runs, ended = failures(6, users=("ann", "bob"))
    assert decided(snapshot(*runs), memory(*ended), operator).incidents


def test_an_incident_ends_when_it_is_quiet_and_what_was_in_it_is_tried_once_more() -> None:
    runs, ended = failures(5, STOP, at=ago(1000))
    standing = Incident("class", "configuration", ago(1000), None, tuple(one.key for one in ended))
    found = decided(snapshot(*runs), memory(*ended, incidents=(standing,)))
    assert found.incidents == (replace(standing, until=NOW),)
    assert deeds(found) == [Deed.REQUEUE_ENDED] * 5
    noisy = (*ended, known(STOP, key="r-9", at=ago(30)))
    assert deeds(decided(snapshot(*runs), memory(*noisy, incidents=(standing,)))) == [Deed.PAUSE]


def test_the_second_time_after_an_incident_it_is_the_runs_own_failure() -> None:
    over = Incident("class", "configuration", ago(4000), ago(3000), ("r-1",))
    first, second = known(STOP, at=ago(3900)), known(STOP, attempt="2.0", start="c/7/1", at=ago(40))
    seen = with_facts(run(history(failed(), failed("2.0")), job("FAILED"), restarts=1), past=Past(1, False, None))
    assert deeds(decided(snapshot(seen), memory(first, second, incidents=(over,)))) == [Deed.HOLD]


def test_an_incident_that_a_person_ended_does_not_begin_anew_with_what_was_in_it() -> None:
    runs, ended = failures(5)
    over = Incident("class", "program", ago(300), ago(5), tuple(one.key for one in ended))
    assert not decided(snapshot(*runs), memory(*ended, incidents=(over,))).incidents
    runs, ended = failures(6)
    assert decided(snapshot(*runs), memory(*ended, incidents=(over,))).incidents


def switch(*lost: Node) -> dict[str, object]:
    return {"nodes": fleet(*lost), "switches": {f"n{n}": "s1" if n <= 4 else "s2" for n in range(1, 9)}}


def lost(*numbers: int, age_s: float = 5) -> tuple[Node, ...]:
    return tuple(
        node(f"n{n}", "DOWN", "NOT_RESPONDING", reason="Not responding", reason_time=ago(age_s)) for n in numbers
    )


def test_many_nodes_of_one_switch_at_once_are_one_incident() -> None:
    found = decided(snapshot(run(), **switch(*lost(1, 2, 3))))
    assert [(one.kind, one.subject, one.nodes) for one in found.incidents] == [("switch", "s1", ("n1", "n2", "n3"))]
    assert Deed.PAUSE in deeds(found)
    assert not decided(snapshot(run(), **switch(*lost(1, 2)))).incidents
    assert not decided(snapshot(run(), **switch(*lost(1, 2, 5)))).incidents
    assert not decided(snapshot(run(), **switch(*lost(1, 2, 3, age_s=5000)))).incidents


def test_a_switch_that_is_quiet_again_is_no_incident_any_more() -> None:
    standing = Incident("switch", "s1", ago(1000), None, nodes=("n1", "n2", "n3"))
    assert not decided(snapshot(run(), **switch(*lost(1, 2, 3))), memory(incidents=(standing,))).incidents
    found = decided(snapshot(run(), **switch()), memory(incidents=(standing,)))
    assert found.incidents == (replace(standing, until=NOW),)


def test_each_incident_is_told_once_also_the_next_of_its_kind() -> None:
    one = Incident("class", "hang", ago(100), None)
    other = replace(one, since=ago(50))
    assert pause(one).identity == pause(replace(one, keys=("r-1",))).identity
    assert pause(one).identity != pause(other).identity


# Nodes


def blamed(count: int, runs: int, users: int = 1, cause: Suspected = GPU) -> tuple[Interruption, ...]:
    of_each = ((f"x-{n % runs}", f"{n}.0", f"u{n % users}") for n in range(count))
    return tuple(known(cause, at=ago(90_000), key=key, attempt=name, user=user) for key, name, user in of_each)


@pytest.mark.parametrize(
    ("ended", "drained"),
    [
        (blamed(3, 2, 2), True),
        (blamed(2, 2, 2), False),
        (blamed(5, 1, 1), False),  # one run alone
        (blamed(5, 5, 1), False),  # for the whole cluster: one user alone
        (blamed(5, 5, 5, NOBODY), False),
        (blamed(5, 5, 5, CRASH), False),
        (tuple(replace(one, at=ago(8 * 86_400)) for one in blamed(5, 5, 5)), False),
    ],
)
def test_a_node_is_drained_after_a_pattern_over_different_runs(ended: tuple[Interruption, ...], drained: bool) -> None:
    found = decided(snapshot(run()), memory(*ended), ADMINISTRATOR)
    assert [one.nodes for one in found.actions if one.deed is Deed.DRAIN] == [("n1",)] * drained


def test_where_nobody_may_drain_a_person_is_told_once_and_runs_keep_off() -> None:
    ended = blamed(3, 2)
    first = decided(snapshot(run()), memory(*ended))
    assert [(one.deed, one.nodes) for one in first.actions] == [(Deed.TELL, ("n1",))]
    told = Done(first.actions[0], ago(60), done(Deed.TELL).outcome)
    seen = snapshot(run(history(failed()), waiting()))
    found = decided(seen, memory(*ended, known(CRASH), entries=(told,)))
    assert [(one.deed, one.nodes) for one in found.actions] == [(Deed.EXCLUDE, ("n1",))]


def test_a_lemon_that_somebody_closed_is_left_to_them() -> None:
    closed = fleet(node("n1", "IDLE", "DRAIN", reason="admin: fan"))
    assert deeds(decided(snapshot(run(), nodes=closed), memory(*blamed(5, 5, 5)), ADMINISTRATOR)) == []


def test_drains_of_one_pass_are_within_the_cap_together() -> None:
    ended = tuple(
        replace(one, key=f"{one.key}-{n}", causes=(replace(GPU, node=f"n{n}"),))
        for n in range(1, 6)
        for one in blamed(3, 3, 3)
    )
    many = tuple(node(f"n{number}") for number in range(1, 1001))
    found = decided(snapshot(run(), nodes=many), memory(*ended), ADMINISTRATOR)
    assert deeds(found) == [Deed.DRAIN] * 2


def test_a_dead_node_is_set_down_once_for_the_jobs_that_wait_for_it() -> None:
    there = snapshot(run(), nodes=fleet(node("n1", "MIXED", "NOT_RESPONDING")), proved_dead=frozenset(["n1"]))
    found = decided(there, policy=ADMINISTRATOR)
    assert [(one.deed, one.nodes) for one in found.actions] == [(Deed.SET_DOWN, ("n1",))]
    entry = Done(found.actions[0], ago(5), done(Deed.SET_DOWN).outcome)
    assert deeds(decided(there, memory(entries=(entry,)), ADMINISTRATOR)) == []
    assert deeds(decided(replace(there, proved_dead=frozenset()), policy=ADMINISTRATOR)) == []


def test_a_node_that_makes_the_jobs_of_several_runs_fail_at_once_is_a_hole_and_not_their_fault() -> None:
    def quick(key: str, number: int, at_s: float) -> Interruption:
        start = f"c/7/{number - 1}"
        return known(NOBODY, key=key, attempt=f"{number}.0", start=start, nodes=("n1",), ran_s=20.0, at=ago(at_s))

    told = history(failed(nodes="n1"), failed("2.0", nodes="n1"))
    seen = with_facts(run(told, job("FAILED"), restarts=1), past=Past(1, False, None))
    mine = (quick("r-1", 1, 400), quick("r-1", 2, 40))
    assert deeds(decided(snapshot(seen), memory(*mine))) == [Deed.HOLD]
    found = decided(snapshot(seen), memory(*mine, quick("r-2", 1, 300)))
    assert [(one.deed, one.nodes) for one in found.actions] == [(Deed.REQUEUE_ENDED, ("n1",))]


def test_one_action_a_run_and_the_same_order_each_time() -> None:
    runs, ended = failures(4)
    found = decided(snapshot(*runs), memory(*ended))
    assert [one.key for one in found.actions] == ["r-0", "r-1", "r-2", "r-3"]
    assert decided(snapshot(*runs), memory(*reversed(ended))).actions == found.actions


def test_each_run_has_a_verdict_and_a_blocked_action_says_what_stands_against_it() -> None:
    there = snapshot(run(history(failed()), job("FAILED")), controller_since=ago(30))
    found = decided(there, memory(known()))
    assert (deeds(found), rule(found)) == ([], "come_back")
    assert "not done: Slurm's controller has just begun" in found.verdicts[-1].why
    assert found.look_again_s <= 5


def test_a_node_loss_that_launch_wrote_down_is_one_too() -> None:
    told = history(failed(ending=Ending.NODE_LOST, failure=None))
    found = decided(snapshot(run(told, waiting())), memory(known(NODE, at=NOW - timedelta(seconds=5))))
    assert [(one.deed, one.nodes) for one in found.actions] == [(Deed.EXCLUDE, ("n1",))]


def test_an_end_under_maintenance_is_nobodys_failure() -> None:
    now = Reservation("racks", frozenset(["n2"]), ago(600), NOW + timedelta(hours=1))
    seen = run(history(failed()), waiting(), evidence=Evidence("1.0", (), b""))
    (one,) = decided(snapshot(seen, maintenance=(now,))).interruptions
    assert [cause.cause for cause in one.causes] == [CauseClass.MAINTENANCE, CauseClass.UNKNOWN]
    (one,) = decided(snapshot(seen)).interruptions
    assert [cause.cause for cause in one.causes] == [CauseClass.UNKNOWN]


def test_while_slurm_tells_nothing_of_its_nodes_no_switch_is_quiet() -> None:
    standing = Incident("switch", "s1", ago(1000), None, nodes=("n1", "n2", "n3"))
    assert not decided(snapshot(run(), nodes=None), memory(incidents=(standing,))).incidents
