"""The memory of children that hang: one a node, whatever the number of looks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fleetctl.health import abandoned, apart
from fleetctl.health.apart import Task, run_apart
from fleetctl.health.model import Answer
from tests.unit.health.children import LONG_S, SOON_S, marked, one, pause, until

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def _deathless(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children that SIGKILL does not end, as those in state D."""
    monkeypatch.setattr(apart, "_kill", lambda child: None)
    monkeypatch.setattr(apart, "_OWN_ALARM_S", 600.0)
    monkeypatch.setattr(apart, "_GRACE_MS", 50)


@pytest.mark.usefixtures("_deathless")
def test_the_tenth_look_at_a_dead_driver_starts_no_tenth_child(stuck: Path) -> None:
    assert one(pause, SOON_S, stuck).answer is Answer.HUNG
    (pid,) = marked(stuck)
    for _ in range(9):
        began = time.monotonic()
        done = one(pause, SOON_S, stuck)
        assert done.answer is Answer.BUSY
        assert done.detail == f"process {pid} of an earlier check has hung for 0 s"
        assert time.monotonic() - began < SOON_S
        assert marked(stuck) == [pid]
    another = run_apart([Task("another", lambda: 1, LONG_S)], stuck=stuck, monotonic=time.monotonic)["another"]
    assert another.answer is Answer.ANSWERED


def test_a_dead_child_that_nobody_has_buried_hangs_no_more(stuck: Path) -> None:
    pid = os.fork()
    if pid == 0:
        pause()
    abandoned.remember(stuck, "reader", pid, 0.0)
    found = abandoned.hanging(stuck, "reader")
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    after = abandoned.hanging(stuck, "reader")
    os.waitpid(pid, 0)
    assert found is not None
    assert found.pid == pid
    assert after is None


@pytest.mark.usefixtures("_deathless")
def test_once_the_hanging_child_is_gone_the_next_look_goes_ahead(stuck: Path) -> None:
    one(pause, SOON_S, stuck)
    (pid,) = marked(stuck)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert one(lambda: 1, LONG_S, stuck).answer is Answer.ANSWERED
    assert marked(stuck) == []


def test_a_child_that_is_still_within_its_deadline_is_no_reason_to_refuse(stuck: Path) -> None:
    abandoned.remember(stuck, "reader", os.getpid(), time.clock_gettime(time.CLOCK_BOOTTIME) + 60)
    assert one(lambda: 1, LONG_S, stuck).answer is Answer.ANSWERED
    assert marked(stuck) == [os.getpid()]


@pytest.mark.parametrize("change", [{"start": 7}, {"boot_id": "another"}, {"pid": 2**22 + 1}])
def test_marks_of_other_processes_and_boots_count_for_nothing(stuck: Path, change: dict[str, Any]) -> None:
    stuck.mkdir(parents=True)
    start = abandoned._start(os.getpid())
    assert start is not None
    mark = abandoned.Mark("reader", os.getpid(), start, 0, abandoned._boot_id())
    (stuck / mark.file()).touch()
    assert one(lambda: 1, LONG_S, stuck).answer is Answer.BUSY
    (stuck / mark.file()).rename(stuck / mark._replace(**change).file())
    assert one(lambda: 1, LONG_S, stuck).answer is Answer.ANSWERED
    assert marked(stuck) == []


@pytest.mark.parametrize("name", ["reader", "reader.json", "reader.x.1.2.b", "reader.1.2.3.4.5", "...."])
def test_foreign_files_are_left_alone(stuck: Path, name: str) -> None:
    stuck.mkdir(parents=True)
    (stuck / name).touch()
    assert one(lambda: 1, LONG_S, stuck).answer is Answer.ANSWERED
    assert os.listdir(stuck) == [name]


def test_a_folder_that_takes_no_mark_does_not_stop_the_look(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert one(lambda: 1, LONG_S, tmp_path / "file").answer is Answer.ANSWERED
    assert one(lambda: 1, LONG_S, tmp_path / "file" / "below").answer is Answer.ANSWERED


def test_a_child_that_answered_may_take_its_time_to_end(stuck: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "_exit", lambda status: pause())  # the driver closes the GPUs
    monkeypatch.setattr(apart, "_GRACE_MS", 50)
    monkeypatch.setattr(apart, "_OWN_ALARM_S", 600.0)
    assert one(lambda: 1, SOON_S, stuck)[:3] == (Answer.ANSWERED, 1, "")
    (pid,) = marked(stuck)
    until(lambda: abandoned._age_s(abandoned._start(pid) or 0) > 2 * SOON_S)
    assert abandoned.hanging(stuck, "reader") is None
    monkeypatch.setattr(time, "clock_gettime", lambda clock: 61 + time.monotonic() + 1e6)
    found = abandoned.hanging(stuck, "reader")
    assert found is not None
    assert found.pid == pid
