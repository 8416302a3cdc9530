"""Checkpointer saves, on real folders. Time, faults and fleetctl's environment are passed in."""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from fleetctl.train.checkpointer import Checkpointer, Superseded
from fleetctl.train.disk import Disk
from tests.unit.checkpoint_site import RUN, Site, no_space


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    for opened in site.opened:
        opened.__exit__(RuntimeError)  # ends its thread, whatever the test made of it


def test_state_comes_back(site: Site) -> None:
    array = numpy.arange(12, dtype=">f8").reshape(3, 4)
    rng = numpy.random.default_rng(1)
    version, inner, gauss = random.getstate()
    state = {
        "array": array[:, ::2],
        "raw": b"raw",
        "rng": rng.bit_generator.state,
        "python": [version, list(inner), gauss],
        "position": 17,
    }
    with site.open() as checkpoints:
        assert checkpoints.load() is None
        checkpoints.save(120, state)
    loaded = site.load(120)
    assert loaded.training_step == 120
    assert list(loaded.state) == list(state)
    assert loaded.state["array"].dtype == array.dtype
    numpy.testing.assert_array_equal(loaded.state["array"], array[:, ::2])
    assert {**loaded.state, "array": 0} == {**state, "array": 0}
    assert site.left() == []


def test_what_is_saved_is_the_state_at_the_call(site: Site) -> None:
    """The training goes on and changes its arrays while the save is written."""
    go = threading.Event()
    site.disk.before_write = lambda path: assert_soon(go)
    array, raw = numpy.zeros(1000), bytearray(b"old")
    with site.open() as checkpoints:
        checkpoints.save(1, {"array": array, "raw": raw, "list": (growing := [1])})
        array += 1
        raw[:] = b"new"
        growing.append(2)
        go.set()
    state = site.load(1).state
    assert (state["array"].sum(), state["raw"], state["list"]) == (0, b"old", [1])


def assert_soon(event: threading.Event) -> None:
    assert event.wait(30)


def test_buffers_are_used_again_without_mixing_saves(site: Site) -> None:
    with site.open() as checkpoints:
        for step, size in enumerate((10, 100_000, 1, 0), 1):
            checkpoints.save(step, {"a": numpy.full(size, step), "b": b"x" * step, "c": numpy.full(3, -step)})
    for step, size in enumerate((10, 100_000, 1, 0), 1):
        state = site.load(step).state
        assert state["a"].tolist() == [step] * size
        assert state["c"].tolist() == [-step] * 3


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ((1, 2), "list(value)"),
        ({"a": [(1,)]}, r"state['x']['a'][0] is a tuple"),
        ({1: 2}, "the key 1"),
        (numpy.float32(1), "NumPy scalar"),
        ([numpy.float64(1)], "top of the state"),
        ({"key": numpy.zeros(1)}, "top of the state"),
        (numpy.array([None]), "cannot be kept"),
        (numpy.zeros(2, "i4,f8"), "save each field"),
        (numpy.ma.masked_array([1, 2], [True, False]), "MaskedArray"),
        ({1, 2}, "set"),
        ("\ud83d\ude00", "not Unicode"),
        ([1 << 20_000], "save it as bytes"),
        (object(), "object"),
    ],
    ids=type,
)
def test_what_would_come_back_changed_is_refused(site: Site, value: object, told: str) -> None:
    with site.open() as checkpoints:
        with pytest.raises((TypeError, ValueError)) as caught:
            checkpoints.save(1, {"x": value})
        assert told in str(caught.value)
        checkpoints.save(2, {"x": 1})
    assert site.committed() == [site.path(2).name]


def test_a_list_in_itself_is_refused(site: Site) -> None:
    around: list[Any] = []
    around.append(around)
    with pytest.raises(ValueError, match="nested too deep"):
        site.open().save(1, {"x": around})


def test_tells_fleetctl_of_a_save(site: Site) -> None:
    with site.open() as checkpoints:
        checkpoints.save(120, {"x": b"12345"}, wait=True)
        site.time.sleep(1)
        checkpoints.save(120, {"x": b"again"})  # committed already
    (line,) = site.saves()
    size = (site.path(120) / "shard-00000.bin").stat().st_size
    assert line == {
        "schema": 1,
        "time": "2023-11-14T22:13:20.250+00:00",
        "training_step": 120,
        "name": f"step-000000120@{RUN}@2.0",
        "state": "committed",
        "why": None,
        "blocked_s": 0.0,
        "total_s": 0.0,
        "bytes": size,
        "flag": None,
    }
    assert site.load(120).state == {"x": b"12345"}


def test_a_save_does_not_wait_for_a_file_that_is_gone(site: Site) -> None:
    """Only a load has that patience: here the training would stand still."""
    with site.open() as checkpoints:
        checkpoints.save(1, {"x": 1}, wait=True)
        (site.path(1) / "manifest.json").unlink()
        began = site.time.now_s
        checkpoints.save(1, {"x": 1}, wait=True)
        assert site.time.now_s == began
    assert "damaged: move it away" in site.saves()[1]["why"]


def test_a_damaged_checkpoint_in_the_way_is_told(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with site.open() as checkpoints:
        checkpoints.save(1, {"x": 1}, wait=True)
        (site.path(1) / "shard-00000.bin").write_bytes(b"")
        checkpoints.save(1, {"x": 1})
    assert "damaged: move it away" in capsys.readouterr().err


def test_due_by_time_and_by_steps(site: Site) -> None:
    with site.open(every_steps=10, interval_s=60) as checkpoints:
        assert [step for step in range(1, 31) if checkpoints.due(step)] == [10, 20, 30]
        checkpoints.save(30, {})
        assert not checkpoints.due(30)
        site.time.sleep(59)
        assert not checkpoints.due(31)
        site.time.sleep(1)
        assert checkpoints.due(31)
        checkpoints.save(31, {})
        assert not checkpoints.due(32)
        site.time.sleep(60)
        assert not checkpoints.due(31), "nothing has changed since"
        assert checkpoints.due(32)


def test_interval_from_fleetctl_and_by_default(site: Site) -> None:
    for env, interval_s in (({"FLEETCTL_CHECKPOINT_INTERVAL_S": "7.5"}, 7.5), ({}, 600)):
        checkpoints = site.open(env=env)
        site.time.sleep(interval_s - 0.5)
        assert not checkpoints.due(1)
        site.time.sleep(0.5)
        assert checkpoints.due(1)


def test_a_request_to_save_is_answered_once(site: Site) -> None:
    with site.open(every_steps=1000) as checkpoints:
        assert not checkpoints.due(1)
        site.ask("first")
        assert not checkpoints.due(2), "looked at the flag again within 0.5 s"
        site.time.sleep(0.5)
        assert checkpoints.due(3)
        assert checkpoints.due(4)
        checkpoints.save(4, {}, wait=True)
        site.time.sleep(10)
        assert not checkpoints.due(5)
        site.ask("second")
        site.time.sleep(0.5)
        assert checkpoints.due(5)
        checkpoints.save(4, {}, wait=True)  # stands already: answered all the same
        assert not checkpoints.due(5)
        checkpoints.save(6, {}, wait=True)
    told = [(line["training_step"], line["flag"]) for line in site.saves()]
    assert told == [(4, "first"), (4, "second"), (6, None)]


def test_a_request_stays_open_while_saves_fail(site: Site) -> None:
    with site.open(every_steps=1000) as checkpoints:
        site.ask("first")
        assert checkpoints.due(1)
        site.disk.before_write = no_space
        checkpoints.save(1, {}, wait=True)
        assert not checkpoints.due(2)
        site.disk.before_write = lambda path: None
        site.time.sleep(5)
        assert checkpoints.due(2)
        checkpoints.save(2, {}, wait=True)
        assert not checkpoints.due(2)
    assert [(line["state"], line["flag"]) for line in site.saves()] == [("failed", "first"), ("committed", "first")]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": 1}', "\0" * 10])
def test_a_damaged_flag_is_no_request(site: Site, text: str) -> None:
    (site.attempt() / "save-now").write_text(text)
    assert not site.open().due(1)


def test_sigterm_asks_for_a_save_and_an_end(site: Site) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with site.open() as checkpoints:
            checkpoints.save_on_sigterm()
            told = [checkpoints.told_to_end]
            assert not checkpoints.due(1)
            os.kill(os.getpid(), signal.SIGTERM)
            assert checkpoints.due(1)
            checkpoints.save(1, {})
            assert not checkpoints.due(2)
            assert [*told, checkpoints.told_to_end] == [False, True]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert site.committed() == [site.path(1).name]


@pytest.mark.parametrize("when", ["shard-00000.bin", "shard-00000.json.tmp", "manifest.json.tmp", "@2.0"])
def test_a_full_disk_never_stops_the_training(site: Site, capsys: pytest.CaptureFixture[str], when: str) -> None:
    def full(path: str) -> None:
        if path.endswith(when):
            no_space()

    with site.open(every_steps=1) as checkpoints:
        checkpoints.save(1, {"x": 1}, wait=True)
        site.disk.before_write = site.disk.before_rename = full
        tries = []
        for step in range(2, 2000):
            if checkpoints.due(step):
                tries.append(site.time.now_s)
                checkpoints.save(step, {"x": step}, wait=True)
            site.time.sleep(1)
        site.disk.before_write = site.disk.before_rename = lambda path: None
        assert site.committed() == [site.path(1).name]
        assert site.left() == []
        site.time.sleep(300)
        assert checkpoints.due(2000)
        checkpoints.save(2000, {"x": 2000}, wait=True)
        assert checkpoints.due(2001), "after a good save the steps count again"
    waits = [round(later - earlier) for earlier, later in itertools.pairwise(tries)]
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300, 300, 300]
    assert (site.load(1).state, site.load(2000).state) == ({"x": 1}, {"x": 2000})
    assert capsys.readouterr().err.count("No space left on device; the training goes on") == 1
    states = [line["state"] for line in site.saves()]
    assert states == ["committed", *["failed"] * len(tries), "committed"]
    assert "No space left on device" in site.saves()[1]["why"]


def test_out_of_memory_is_a_failed_save(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise MemoryError

    with site.open() as checkpoints:
        monkeypatch.setattr("fleetctl.train.payload.Arena.take", none)
        checkpoints.save(1, {"x": numpy.zeros(3)}, wait=True)
    assert site.saves()[0]["why"] == "out of memory"


def test_a_broken_disk_after_the_rename_is_a_failed_save(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is there, but nobody promises that it stays."""
    sync, heals = Disk.sync_folder, [False, False, True]

    def broken(disk: Disk, path: str) -> None:
        if path == str(site.checkpoints) and site.path(1).exists() and not heals.pop(0):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(disk, path)

    monkeypatch.setattr(Disk, "sync_folder", broken)
    with site.open() as checkpoints:
        site.ask("tell")
        assert checkpoints.due(1)
        for _ in range(3):
            checkpoints.save(1, {}, wait=True)
    assert [line["state"] for line in site.saves()] == ["failed", "failed", "committed"]


def test_a_rename_whose_answer_was_lost_is_a_rename(site: Site) -> None:
    def twice(new: str) -> None:
        if new == str(site.path(1)):
            (staged,) = (site.checkpoints / ".staging").iterdir()
            staged.rename(new)

    site.disk.before_rename = twice
    with site.open() as checkpoints:
        checkpoints.save(1, {"x": 5}, wait=True)
    assert site.saves()[0]["state"] == "committed"
    assert site.load(1).state == {"x": 5}


@pytest.mark.parametrize("newer", ["2.1", "3.0", "10.0"])
@pytest.mark.parametrize("when", ["shard-00000.bin", "manifest.json.tmp"])
def test_a_newer_attempt_ends_this_one(site: Site, newer: str, when: str) -> None:
    def appear(path: str) -> None:
        if path.endswith(when):
            site.attempt(newer)

    site.disk.before_write = appear
    checkpoints = site.open()
    checkpoints.save(1, {})
    with pytest.raises(Superseded, match=f"attempt {newer}"):
        checkpoints.wait()
    for call in (lambda: checkpoints.due(2), lambda: checkpoints.save(2, {}), checkpoints.wait):
        with pytest.raises(Superseded):
            call()
    assert site.committed() == []
    assert site.left() == []
    assert site.saves()[0]["state"] == "failed"


def test_older_attempts_and_other_names_fence_nobody(site: Site) -> None:
    for name in ("1.0", "1.9", "0.99", "notes", "30", "3.0.tmp"):
        site.attempt(name)
    with site.open() as checkpoints:
        checkpoints.save(1, {})
    assert site.committed() == [site.path(1).name]


def test_leaving_the_block_tells_of_the_fence(site: Site) -> None:
    checkpoints = site.open()
    site.disk.before_write = lambda path: [site.attempt("3.0")].clear()
    checkpoints.save(1, {})
    with pytest.raises(Superseded):
        checkpoints.__exit__(None, None, None)


def test_an_attempt_folder_that_cannot_be_listed_is_no_leave_to_commit(site: Site) -> None:
    with site.open(env={"FLEETCTL_ATTEMPT_DIR": str(site.folder / "gone" / "2.0")}) as checkpoints:
        checkpoints.save(1, {}, wait=True)
    assert site.checkpoints.exists() is False


def test_a_late_rename_of_an_old_attempt_disturbs_nothing(site: Site) -> None:
    """A rank frozen between the fence and the rename wakes up after the new attempt has saved that step."""

    def frozen(new: str) -> None:
        if new == str(site.path(5)):
            with site.open("3.0", disk=Disk()) as newer:
                newer.save(5, {"by": "newer"})

    site.disk.before_rename = frozen
    with site.open() as older:
        older.save(5, {"by": "older"}, wait=True)
    assert site.load(5, "3.0").state == {"by": "newer"}
    assert site.load(5, "2.0").state == {"by": "older"}


def test_without_a_directory_nothing_is_saved_and_that_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with Checkpointer(environ={}, interval_s=0.001) as checkpoints:
        assert checkpoints.load() is None
        assert not checkpoints.due(5)
        checkpoints.save(5, {"a": b"x"}, wait=True)
    assert capfd.readouterr().err.count("nothing is saved") == 1
