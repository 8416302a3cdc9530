"""Whatever happens to a fleet, its people and the daemon itself: what recovery must never do, and where it must end.

The fleet is simulated (tests/recovery_world.py), on a virtual clock; `python -m tests.recovery_world A B` plays more.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fleetctl.recovery.decide import decide
from fleetctl.recovery.invariants import SAID, check
from fleetctl.recovery.model import Decision, Deed, Done, Memory, Outcome, RunSeen, Snapshot
from fleetctl.recovery.policy import Deeds, Mode, Policy
from fleetctl.slurm.model import AdminLevel, BaseState
from tests.recovery_world import (
    FOREIGN,
    OF_NODES,
    OF_RUNS,
    Daemon,
    Kind,
    Run,
    State,
    World,
    classify,
    end_of,
    play,
    settled,
    world_for,
)

ACTS = Policy(deeds=Deeds.ACT)
seeds = st.integers(0, 10**9)
HISTORIES = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
BAD = (Kind.CONFIG, Kind.CRASH, Kind.NAN, Kind.NAN_ALWAYS, Kind.TORN)


def seen_well(run: RunSeen | None) -> bool:
    return run is not None and run.facts is not None and run.jobs is not None


def no_action_on_what_was_not_observed(snapshot: Snapshot, memory: Memory, decision: Decision) -> None:
    runs = {run.key: run for run in snapshot.runs or ()}
    for action in decision.actions:
        if action.deed in SAID:
            continue
        assert None not in (snapshot.nodes, snapshot.maintenance, snapshot.controller_since), action
        assert not memory.paused_by, action
        assert action.key == "" or seen_well(runs.get(action.key)), action
        if action.rule == "head_silent":
            assert runs[action.key].moved_at is not None, action
            assert runs[action.key].is_full is False, action


def every_action_keeps_the_promises(snapshot: Snapshot, memory: Memory, decision: Decision) -> None:
    remembered = replace(memory, interruptions=(*memory.interruptions, *decision.interruptions))
    keys = [action.key for action in decision.actions if action.key and action.deed not in SAID]
    assert len(keys) == len(set(keys)), "one action a run"
    runs = {run.key: run for run in snapshot.runs or ()}
    for action in decision.actions:
        assert check(action, snapshot, remembered, ACTS if action.key else _policy_of(decision)) is None, action
        run = runs.get(action.key)
        if run is None or run.facts is None or action.deed in SAID:
            continue
        history, bases = run.facts.history, {job.state.base for job in run.jobs or ()}
        assert history.cancelled_at is None, action
        assert BaseState.CANCELLED not in bases, action
        assert None not in history.held, action
        if action.deed is Deed.REQUEUE:
            lost = {node.name for node in snapshot.nodes or () if not node.flags.isdisjoint({"NOT_RESPONDING"})}
            down = {node.name for node in snapshot.nodes or () if node.base_state == "DOWN"}
            assert not (lost - down) & set((run.jobs or ())[0].node_list.split(",")), action


def _policy_of(decision: Decision) -> Policy:
    drains = any(action.deed in (Deed.DRAIN, Deed.SET_DOWN) for action in decision.actions)
    return Policy(mode=Mode.OPERATOR, level=AdminLevel.ADMINISTRATOR, deeds=Deeds.ACT) if drains else ACTS


def acting_twice_changes_nothing(policy: Policy) -> Callable[[Snapshot, Memory, Decision], None]:
    def twice(snapshot: Snapshot, memory: Memory, decision: Decision) -> None:
        assert decide(snapshot, memory, policy, classify) == decision
        entries = tuple(Done(action, snapshot.at, Outcome.DONE) for action in decision.actions)
        after = Memory(
            done=(*memory.done, *entries),
            interruptions=(*memory.interruptions, *decision.interruptions),
            incidents=(*memory.incidents, *decision.incidents),
            paused_by=memory.paused_by,
            notes={**memory.notes, **decision.notes},
        )
        again = decide(snapshot, after, policy, classify)
        before = {action.identity for action in decision.actions}
        assert not before & {action.identity for action in again.actions}
        brought = {a.key for a in decision.actions if a.deed in (Deed.REQUEUE, Deed.REQUEUE_ENDED, Deed.RESUBMIT)}
        assert not brought & {action.key for action in again.actions if action.deed not in SAID}

    return twice


def right_end(world: World, daemon: Daemon, run: Run) -> None:
    how = end_of(daemon, run)
    assert how != "open", (run.key, run.kind, run.state, run.reason)
    if run.cancelled:
        assert run.state not in (State.PENDING, State.RUNNING), run.key
    if how == "held" and any(why.startswith("the daemon") for why in (*run.held, run.word_hold)):
        assert run.kind in (*BAD, Kind.FLAKY) or run.failures >= 3, (run.key, run.kind, run.held)


@HISTORIES
@given(seeds)
def test_every_run_finishes_or_is_held_for_the_right_reason_and_nothing_does_harm(seed: int) -> None:
    world, daemon = play(seed, (no_action_on_what_was_not_observed, every_action_keeps_the_promises))
    assert not world.harms
    for run in world.runs.values():
        right_end(world, daemon, run)


@HISTORIES
@given(seeds)
def test_a_good_run_whose_daemon_is_left_alone_finishes_unless_it_is_cancelled(seed: int) -> None:
    world, daemon = play(seed, faults=OF_RUNS)
    assert not world.harms
    for run in world.runs.values():
        if run.kind is Kind.GOOD and run.failures < 3:
            assert end_of(daemon, run) in ("finished", "cancelled"), (run.key, run.held, run.state)


@settings(max_examples=5, deadline=None)
@given(seeds)
def test_acting_twice_changes_nothing(seed: int) -> None:
    world, daemon = play(seed, faults=("nothing",))  # for its policy alone
    policy = daemon.policy
    world, _ = play(seed, (acting_twice_changes_nothing(policy),))
    assert not world.harms


@HISTORIES
@given(seeds)
def test_an_admins_drains_stay_as_they_are(seed: int) -> None:
    def untouched(snapshot: Snapshot, memory: Memory, decision: Decision) -> None:
        theirs = {node.name for node in snapshot.nodes or () if node.reason == FOREIGN}
        for action in decision.actions:
            assert action.deed not in (Deed.DRAIN, Deed.SET_DOWN) or not theirs & set(action.nodes)

    world, _ = play(seed, (untouched,), faults=(*OF_NODES, *OF_NODES, "node", "head"))
    assert not world.harms


@HISTORIES
@given(seeds)
def test_an_end_that_was_seen_is_remembered_once_however_soon_the_next_start_comes(seed: int) -> None:
    rng = random.Random(seed)
    run = Run("r-0", "ann", rng.choice([Kind.GOOD, Kind.NAN]), 2, 9000, no_kill=rng.random() < 0.5, inside=False)
    run.trouble_at = 500
    world = World(rng, 6, [run])
    world.begin_s = 7.0
    daemon, seen = Daemon(world, ACTS), set[str]()
    daemon.finds_out = lambda: rng.random() < 0.1

    def looks(snapshot: Snapshot, memory: Memory, decision: Decision) -> None:
        newest = run.attempts[-1] if run.attempts else None
        if newest is not None and newest.ended_at is not None and not (run.finished or run.is_held):
            seen.add(newest.name)

    daemon.checks.append(looks)
    for _ in range(12):
        world_for(world, daemon, rng.uniform(5, 90))
        world.preempt(run)
    world_for(world, daemon, 200)
    remembered = Counter(one.attempt for one in daemon.interruptions.values())
    held = {run.attempts[-1].name} if run.is_held else set[str]()
    assert seen - held <= set(remembered)
    assert set(remembered.values()) <= {1}
    counts = {attempt.name: count for attempt, count in zip(run.attempts, run.counts, strict=True)}
    assert all(one.start.endswith(f"/{counts[one.attempt]}") for one in daemon.interruptions.values())


FAULTS: dict[str, Callable[[World, Run], None]] = {
    "the node of its head dies": lambda world, run: world.kill_node(run.alloc[0], 5000),
    "another node dies": lambda world, run: world.kill_node(run.alloc[-1], 5000),
    "its head dies": lambda world, run: world.kill_head(run),
    "its head hangs": lambda world, run: world.silence_head(run),
    "it is preempted": lambda world, run: world.preempt(run),
    "it is cancelled": lambda world, run: world.cancel(run, recorded=True),
    "its job is cancelled": lambda world, run: world.cancel(run, recorded=False),
}


def told(kind: Kind, fault: str, dies_at: tuple[str, int] | None, *, no_kill: bool) -> tuple[str, list[str]]:
    """How one run ends, and what was done, where the daemon is killed the nth time that it comes to one moment."""
    run = Run("r-0", "ann", kind, 2, 1500, no_kill=no_kill, inside=False)
    run.trouble_at = 700
    world = World(random.Random(1), 6, [run])
    daemon = Daemon(world, ACTS)
    moments: Counter[str] = Counter()

    def dies(moment: str) -> bool:
        moments[moment] += 1
        return (moment, moments[moment]) == dies_at

    daemon.dies = dies
    world_for(world, daemon, 500)
    if run.state is State.RUNNING:
        FAULTS[fault](world, run)
    for _ in range(30):
        world_for(world, daemon, 1000)
        if settled(daemon, run):
            break
    assert not world.harms
    done = [entry.action.deed.value for entry in daemon.done if entry.outcome is Outcome.DONE]
    return end_of(daemon, run), [deed for deed in done if deed != Deed.TELL]


@pytest.mark.parametrize("no_kill", [False, True], ids=["kill", "no kill"])
@pytest.mark.parametrize("fault", FAULTS)
@settings(max_examples=4, deadline=None)
@given(kind=st.sampled_from([Kind.GOOD, Kind.CONFIG, Kind.CRASH, Kind.NAN, Kind.TORN]), data=st.data())
def test_a_daemon_that_is_killed_anywhere_reaches_the_same_end_by_the_same_deeds(
    fault: str, no_kill: bool, kind: Kind, data: st.DataObject
) -> None:
    whole = told(kind, fault, None, no_kill=no_kill)
    nth = data.draw(st.integers(1, max(1, len(whole[1]) + 1)))
    dies_at = data.draw(st.sampled_from([("begun", nth), ("acted", nth), ("remembered", 100 + nth)]))
    assert told(kind, fault, dies_at, no_kill=no_kill) == whole
