"""What a node remembers: merging, bounds, and text that may be anything."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleetctl.health import state as states
from fleetctl.health.model import Baseline, Care, Event, EventKind
from fleetctl.health.state import Drain, JobStart, State

BOOT = "0a1b"
EVENT = Event(7, 10.5, 11.0, EventKind.XID, "0000:1b:00", 79, "GPU has fallen off the bus", count=3)
DRAIN = Drain("fleetctl: GPU 3 is lost [gpu_lost]", 1000.0, BOOT, (("gpu_lost", "gpu/0000:1b:00.0"),), Care.REBOOT)
FULL = State(
    boot_id=BOOT,
    cursor=42,
    events=(EVENT,),
    baseline=Baseline(BOOT, 999.0, {"port/mlx5_0/1/link_downed": 3}),
    drain=DRAIN,
    returned=(10.0, 20.0),
    app_xids={"0000:1b:00/31": (("5", 900.0), ("6", 950.5))},
    jobs={"5": JobStart(990.0, BOOT, ("GPU-1",), {"gpu/GPU-1/energy_mj": 5}, 90.0, 1000, None)},
)


def test_a_state_comes_back_as_it_was_written() -> None:
    assert states.from_text(states.to_text(FULL)) == (FULL, ())


def test_an_empty_state_comes_back_as_it_was_written() -> None:
    assert states.from_text(states.to_text(State())) == (State(), ())


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", "null", '"x"', "\x00\x00", "{" * 5000, "[" * 100_000, '{"cursor": NaN}']
)
def test_text_that_is_no_state_is_an_empty_state_with_one_note(text: str) -> None:
    state, notes = states.from_text(text)
    assert state == State()
    assert len(notes) == 1
    assert "going on without it" in notes[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("boot_id", 7),
        ("cursor", "7"),
        ("cursor", True),
        ("events", [{"sequence": 1}]),
        ("events", "x"),
        ("events", [None]),
        ("baseline", {"boot_id": BOOT, "at": 1, "counters": {"x": "many"}}),
        ("baseline", []),
        ("drain", {"reason": 5}),
        ("drain", {"reason": "x", "at": 1.0, "boot_id": "", "findings": [["one"]], "care": 3}),
        ("drain", {"reason": "x", "at": 1.0, "boot_id": "", "findings": [], "care": 77}),
        ("returned", [None]),
        ("app_xids", {"a/1": [5]}),
        ("app_xids", {"a/1": [["5"]]}),
        ("app_xids", {"a/1": [["5", "now"]]}),
        ("app_xids", ["a"]),
        ("jobs", {"5": {"at": "now", "boot_id": ""}}),
        ("jobs", {"5": None}),
    ],
)
def test_a_part_that_makes_no_sense_costs_only_itself(key: str, value: Any) -> None:
    raw = json.loads(states.to_text(FULL))
    raw[key] = value
    state, notes = states.from_text(json.dumps(raw))
    assert state == FULL._replace(**{key: getattr(State(), key)})
    assert [key in note for note in notes] == [True]


def test_what_a_newer_fleetctl_wrote_is_kept_for_it() -> None:
    raw = {**json.loads(states.to_text(FULL)), "version": 9, "fans": {"left": 3}}
    raw["jobs"]["5"]["colour"] = "blue"
    state, notes = states.from_text(json.dumps(raw))
    assert (state._replace(extra={}), notes) == (FULL, ())
    assert json.loads(states.to_text(state))["fans"] == {"left": 3}


def test_the_version_written_is_ours() -> None:
    assert json.loads(states.to_text(State(extra={"version": 9, "cursor": 3})))["version"] == states.VERSION


def test_a_new_boot_ends_the_counters_the_log_and_the_jobs_but_no_drain() -> None:
    state = states.for_boot(FULL, "other")
    assert state == State("other", drain=DRAIN, returned=FULL.returned, app_xids=FULL.app_xids)


@pytest.mark.parametrize("boot_id", ["", BOOT])
def test_the_same_boot_or_an_unknown_one_changes_nothing(boot_id: str) -> None:
    assert states.for_boot(FULL, boot_id) is FULL


def test_every_list_is_bounded_and_loses_its_oldest() -> None:
    many = State(
        events=tuple(EVENT._replace(sequence=n) for n in range(1000)),
        returned=tuple(float(n) for n in range(1000)),
        app_xids={f"gpu/{n}": tuple((str(job), 1.0) for job in range(50)) for n in range(1000)},
        jobs={str(n): JobStart(float(-n), BOOT) for n in range(1000)},
        baseline=Baseline(BOOT, 0.0, {str(n): n for n in range(9000)}),
        drain=DRAIN._replace(findings=(("a", "b"),) * 500),
    )
    state = states.bounded(many)
    assert [event.sequence for event in state.events] == list(range(744, 1000))
    assert state.returned[0] == 936.0
    assert list(state.app_xids) == [f"gpu/{n}" for n in range(488, 1000)]
    assert state.app_xids["gpu/999"] == tuple((str(job), 1.0) for job in range(34, 50))
    assert {int(name) for name in state.jobs} == set(range(256))  # the smaller the number, the later it began here
    assert state.baseline is not None
    assert len(state.baseline.counters) == 4096
    assert state.drain is not None
    assert len(state.drain.findings) == 128
    assert states.bounded(state) == state


def test_the_largest_state_of_events_and_jobs_stays_below_a_mebibyte() -> None:
    event = EVENT._replace(text="x" * 200, process="y" * 16)
    jobs = {str(10**9 + n): JobStart(1.7e9, BOOT, ("GPU-" + "0" * 36,) * 8, {}, 1e6, 1000, 1.7e9) for n in range(256)}
    app_xids = {f"0000:1b:00/{n}": (("1" * 9, 1.7e9 + 0.123456),) * 16 for n in range(512)}
    state = State(BOOT, 7, (event,) * 256, jobs=jobs, app_xids=app_xids)
    assert len(states.to_text(state)) < 1 << 20


def test_a_job_that_starts_again_is_alive_again() -> None:
    ended = states.with_job_ended(FULL, "5", 1001.0)
    again = states.with_job(ended, "5", JobStart(1002.0, BOOT))
    assert again.jobs["5"].ended_at is None


def test_the_first_end_of_a_job_stays() -> None:
    once = states.with_job_ended(FULL, "5", 1001.0)
    assert once.jobs["5"].ended_at == 1001.0
    assert states.with_job_ended(once, "5", 2001.0) == once


def test_the_end_of_a_job_that_nobody_saw_begin_is_not_remembered() -> None:
    assert states.with_job_ended(FULL, "999", 1.0) == FULL


def test_an_ended_job_keeps_no_counters() -> None:
    assert states.with_job_ended(FULL, "5", 1001.0).jobs["5"].counters == {}


def test_a_job_counts_once_for_an_xid_and_the_pair_becomes_the_youngest() -> None:
    state = State(app_xids={"a/31": (("5", 1.0),), "b/13": (("6", 2.0),)})
    again = states.with_app_xid(states.with_app_xid(state, "a", 31, "5", 3.0, 9.0), "a", 31, "7", 4.0, 9.0)
    assert list(again.app_xids.items()) == [("b/13", (("6", 2.0),)), ("a/31", (("5", 3.0), ("7", 4.0)))]


def test_an_xid_of_a_job_long_ago_is_forgotten_with_the_next_one() -> None:
    state = State(app_xids={"a/31": (("5", 1.0), ("6", 50.0)), "b/13": (("5", 1.0),)})
    again = states.with_app_xid(state, "a", 31, "7", 102.0, 100.0)
    assert again.app_xids == {"a/31": (("6", 50.0), ("7", 102.0))}
    assert states.with_app_xid(state, "a", 31, "7", 101.0, 100.0).app_xids["b/13"] == (("5", 1.0),)


def test_xids_without_times_as_an_older_fleetctl_wrote_them_are_dropped_in_silence() -> None:
    raw = json.loads(states.to_text(FULL))
    raw["app_xids"]["0000:1b:00/13"] = ["5", "6"]
    assert states.from_text(json.dumps(raw)) == (FULL, ())


def test_a_return_ends_the_drain_and_counts() -> None:
    state = states.with_return(FULL, 30.0)
    assert (state.drain, state.returned) == (None, (10.0, 20.0, 30.0))


def test_a_drain_replaces_the_one_before() -> None:
    assert states.with_drain(State(), DRAIN).drain == DRAIN
    assert states.with_drain(FULL, None).drain is None


@pytest.mark.parametrize(
    ("start", "counts"),
    [
        (JobStart(1.0, BOOT, uid=1000), True),
        (JobStart(1.0, BOOT, uid=None), True),
        (JobStart(1.0, BOOT, uid=1001), False),
        (JobStart(1.0, BOOT, uid=1000, ended_at=2.0), False),
        (JobStart(1.0, BOOT, uid=0), False),
    ],
)
def test_a_living_job_is_one_of_the_user_whose_end_nobody_saw(start: JobStart, counts: bool) -> None:
    assert states.living_jobs(State(jobs={"6": start, "5": start}), 1000, "5") == (("6",) if counts else ())
