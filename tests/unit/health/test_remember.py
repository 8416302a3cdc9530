from __future__ import annotations

from typing import Any

import pytest

from fleetctl.health import remember
from fleetctl.health.decide import decide
from fleetctl.health.deltas import changes, counters_of
from fleetctl.health.kernel_fold import merge_events
from fleetctl.health.model import Answer, Baseline, Care, Event, Gpu, Host, Move, Nvml, Port, Read
from fleetctl.health.state import Change, JobStart, State, for_boot
from fleetctl.health.tell import Reply, Told
from tests.unit.health.looks import AT, BOOT, drain_of, fail, readings, xid

REASON = "fleetctl: x [nvlink_state]"
TOLD = Reply(Told.TOLD, REASON)


def log(events: tuple[Event, ...], cursor: int | None) -> Change:
    return remember.log_read(events, cursor, lambda old, new: merge_events(old, new, 256))


def test_two_looks_at_the_same_lines_count_them_once() -> None:
    both = remember.all_of([log((xid(7), xid(8)), 8), log((xid(7), xid(8), xid(9)), 9)])
    state = both(State(boot_id=BOOT))
    assert sum(event.count for event in state.events) == 3
    assert state.cursor == 9


def test_a_slower_look_does_not_turn_the_cursor_back() -> None:
    assert log((), 5)(State(cursor=9)).cursor == 9
    assert log((), None)(State(cursor=9)).cursor == 9
    assert log((), 5)(State()).cursor == 5
    assert log((), None)(State()).cursor is None


def test_a_fault_that_comes_again_after_it_was_told_is_a_new_one() -> None:
    told = State(cursor=7, events=(xid(7)._replace(told=True),))
    assert [event.told for event in log((xid(8),), 8)(told).events] == [True, False]


@pytest.mark.parametrize(
    ("before", "now"), [(Care.REBOOT, Care.DRAIN), (Care.DRAIN, Care.REBOOT), (Care.RESET, Care.HUMAN)]
)
def test_the_same_drain_keeps_the_most_that_it_ever_asked_for(before: Care, now: Care) -> None:
    state = State(drain=drain_of(fail("fabric", before), reason=REASON, at=AT - 60))
    drain = remember.drained(decide([fail(care=now)]), TOLD, readings())(state).drain
    assert drain is not None
    assert drain.care is max(before, now)
    assert [check for check, _ in drain.findings] == ["fabric", "nvlink_state"]
    assert drain.at == AT


def test_a_new_drain_takes_the_place_of_one_that_a_person_ended() -> None:
    state = State(drain=drain_of(fail("fabric", Care.HUMAN), reason="fleetctl: older [fabric]", at=AT - 121))
    state = remember.intended(decide([fail()]), readings())(state)
    drain = remember.drained(decide([fail()]), TOLD, readings())(state).drain
    assert drain == drain_of(fail(), reason=REASON)


def test_a_reply_that_says_nothing_changes_nothing() -> None:
    state = State(drain=drain_of(fail()), events=(xid(),))
    assert remember.drained(decide([fail("xid", Care.REBOOT)]), Reply(Told.UNKNOWN), readings())(state) == state


@pytest.mark.parametrize(
    "steps", [("at", "bt", "ao", "bk"), ("bt", "ao", "bk", "at"), ("at", "bt", "bk", "ao"), ("bt", "bk", "at", "ao")]
)
def test_of_two_looks_that_close_a_node_at_once_no_finding_is_lost(steps: tuple[str, ...]) -> None:
    """a and b mean ("t") their drains; b's reaches Slurm and is kept ("k"); a finds it there ("o")."""
    a, b = decide([fail("xid", Care.HUMAN, words="Xid 95")]), decide([fail("pcie_width", words="x8")])
    early = readings()._replace(at=AT - 60)
    changes = {
        "at": remember.intended(a, early),
        "bt": remember.intended(b, readings()),
        "ao": remember.drained(a, Reply(Told.OURS, b.reason), early),
        "bk": remember.drained(b, Reply(Told.TOLD, b.reason), readings()),
    }
    state = remember.all_of(changes[step] for step in steps)(State())
    assert state.drain is not None
    assert state.drain.reason == b.reason
    assert {check for check, _ in state.drain.findings} == {"xid", "pcie_width"}
    assert state.drain.care is Care.HUMAN


def test_a_drain_of_ours_that_the_state_does_not_know_changes_nothing() -> None:
    """Its events, too, count again when a person ends it: its reason may have named something else."""
    reply = Reply(Told.OURS, "fleetctl: older [fabric]")
    for drain in (None, drain_of(fail("xid"), reason=REASON)):
        state = State(drain=drain, events=(xid(),))
        assert remember.drained(decide([fail("xid", Care.REBOOT)]), reply, readings())(state) == state


def test_a_remark_of_somebody_else_ends_what_was_meant() -> None:
    state = State(drain=drain_of(fail(), reason=REASON))
    assert remember.drained(decide([fail()]), Reply(Told.REMARK, "alice"), readings())(state).drain is None


def test_only_the_very_drain_that_was_asked_about_is_forgotten() -> None:
    drain = drain_of(fail(), reason=REASON)
    state = State(drain=drain)
    assert remember.forgotten(drain._replace(findings=()), AT + 60)(state) == state
    assert remember.forgotten(drain, AT + 59)(state) == state
    assert remember.forgotten(drain, AT + 60)(state).drain is None
    assert remember.forgotten(drain, AT - 1)(state).drain is None


def test_a_return_ends_the_drain_that_it_was_decided_for_and_no_other() -> None:
    drain = drain_of(fail(), reason=REASON)
    more = drain._replace(findings=(*drain.findings, ("xid", "gpu/x")))
    assert remember.came_back(drain, AT)(State(drain=drain)) == State(returned=(AT,))
    assert remember.came_back(drain, AT)(State(drain=more)) == State(drain=more, returned=(AT,))
    assert remember.came_back(drain, AT)(State()) == State()


def gpu(index: int, replays: int | None = None) -> Gpu:
    """As a prolog sees it; without replays it is another job's."""
    seen = Gpu(index, minor=index, pci=f"0000:{index}b:00.0")
    return seen if replays is None else seen._replace(uuid=f"GPU-{index}", reads={"pcie_replays": Read(replays)})


def count(state: State, at: float, *gpus: Gpu, anew: bool, **others: Any) -> State:
    look = readings(nvml=Nvml(Answer.ANSWERED, gpus=gpus), **others)._replace(at=at)
    return remember.counted(look, counters_of(look), anew=anew)(state)


def moved(state: State, at: float, *gpus: Gpu) -> dict[str, tuple[Move, int, float]]:
    look = readings(nvml=Nvml(Answer.ANSWERED, gpus=gpus))._replace(at=at)
    return {key[4:9]: (one.move, one.by, one.over_s) for key, one in changes(state.baseline, look).items()}


@pytest.mark.parametrize("anew", [True, False])
def test_a_look_at_one_gpu_leaves_the_counters_of_the_others(anew: bool) -> None:
    state = count(State(), AT - 500, gpu(0, 1), gpu(1, 1), anew=True)
    state = count(state, AT - 100, gpu(0, 5), gpu(1), anew=anew)
    assert moved(state, AT, gpu(0, 5), gpu(1, 1000)) == {
        "GPU-0": (Move.SAME, 0, 500.0) if anew else (Move.ROSE, 4, 500.0),
        "GPU-1": (Move.ROSE, 999, 500.0),
    }


def test_the_counters_of_a_gpu_that_is_seen_for_the_first_time_are_added() -> None:
    state = count(State(), AT - 500, gpu(0, 1), gpu(1), anew=False)
    state = count(state, AT - 100, gpu(0, 7), gpu(1, 1), anew=False)
    assert moved(state, AT, gpu(0, 7), gpu(1, 1000)) == {
        "GPU-0": (Move.ROSE, 6, 500.0),
        "GPU-1": (Move.ROSE, 999, 500.0),
    }


def test_readers_that_hung_leave_the_counters_that_they_would_have_read() -> None:
    port = Port("mlx5_0", 1, "InfiniBand", "ACTIVE", "LinkUp", counters={"link_downed": 2})
    state = count(State(), AT - 500, gpu(0, 1), anew=True, ports=(port,))
    state = count(state, AT, gpu(0, 2), anew=True, failed={"files": Answer.HUNG})
    assert state.baseline == Baseline(BOOT, AT - 500, {"gpu/GPU-0/pcie_replays": 2, "port/mlx5_0/1/link_downed": 2})


def test_a_clock_that_was_set_back_gives_no_time_to_come() -> None:
    state = count(State(), AT + 9999, gpu(0, 1), gpu(1, 1), anew=True)
    baseline = count(state, AT, gpu(0, 2), gpu(1), anew=True).baseline
    assert baseline is not None
    assert baseline.at == AT


def test_a_look_at_everything_starts_anew_and_forgets_what_is_gone() -> None:
    state = count(State(), AT - 500, gpu(0, 1), gpu(1, 1), anew=True)
    state = count(state, AT, gpu(0, 2), anew=True, ports=(), devices=(), host=Host())
    assert state.baseline == Baseline(BOOT, AT, {"gpu/GPU-0/pcie_replays": 2})


@pytest.mark.parametrize(
    ("nvml", "others"),
    [
        (None, {}),
        (Nvml(Answer.HUNG), {}),
        (Nvml(Answer.ANSWERED, gpus=(gpu(0, 2), gpu(1))), {}),
        (Nvml(Answer.ANSWERED, gpus=(gpu(0, 2), gpu(1, 2)._replace(code=15))), {}),
        (Nvml(Answer.ANSWERED, gpus=(gpu(0, 2),)), {"failed": {"x": Answer.FAILED}}),
        *((Nvml(Answer.ANSWERED, gpus=(gpu(0, 2),)), {part: None}) for part in ("ports", "devices", "host")),
    ],
)
def test_a_look_that_missed_something_forgets_nothing(nvml: Nvml | None, others: dict[str, Any]) -> None:
    state = State(baseline=Baseline(BOOT, AT - 500, {"gone": 1}))
    look = readings(**{"nvml": nvml, "ports": (), "devices": (), "host": Host(), **others})
    baseline = remember.counted(look, counters_of(look), anew=True)(state).baseline
    assert baseline is not None
    assert (baseline.counters["gone"], baseline.at) == (1, AT - 500)


def test_the_first_counters_of_a_boot_are_kept_until_they_are_renewed() -> None:
    first = remember.counted(readings(), {"a": 1}, anew=False)(State())
    assert first.baseline == Baseline(BOOT, AT, {"a": 1})
    assert remember.counted(readings(), {"a": 2}, anew=False)(first) == first
    assert remember.counted(readings(), {"a": 2}, anew=True)(first).baseline == Baseline(BOOT, AT, {"a": 2})
    other = first._replace(baseline=Baseline("another boot", AT, {"a": 9}))
    assert remember.counted(readings(), {"a": 2}, anew=False)(other).baseline == Baseline(BOOT, AT, {"a": 2})


def test_jobs_that_ended_long_ago_make_room_and_living_ones_stay() -> None:
    jobs = {str(number): JobStart(AT, BOOT, ended_at=AT + number) for number in range(100)}
    jobs["alive"] = JobStart(AT - 9e6, BOOT)
    state = remember.job_began("new", JobStart(AT, BOOT))(State(jobs=jobs))
    assert {"alive", "new", "99", "68"} <= set(state.jobs)
    assert len(state.jobs) == 34


@pytest.mark.parametrize(
    ("nvml", "known"),
    [(Nvml(Answer.ANSWERED, took_s=9.04), 9.0), (Nvml(Answer.HUNG, took_s=3.0), 1.0), (None, 1.0)],
)
def test_only_an_answer_tells_how_quick_nvml_is(nvml: Nvml | None, known: float) -> None:
    state = State(boot_id=BOOT, nvml_s=1.0)
    assert remember.answered(readings(nvml=nvml))(state).nvml_s == known
    assert for_boot(state, "another").nvml_s is None
