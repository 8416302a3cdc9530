"""Checkpointer when it is interrupted, when two processes take themselves for rank 0, and on odd file systems."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from fleetctl.train.checkpointer import Checkpointer, Superseded
from fleetctl.train.disk import Disk
from tests.unit.checkpoint_site import Faulty, Site, no_space, open_rank


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    for opened in site.opened:
        opened.__exit__(RuntimeError)


class Interrupted(BaseException):
    """As KeyboardInterrupt, which would end pytest."""


@pytest.fixture
def interrupt_soon() -> Iterator[Callable[[], None]]:
    """Something raises in the main thread a moment later, as Ctrl-C does."""

    def handler(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    timers = []

    def soon() -> None:
        timers.append(threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)))
        timers[-1].start()

    yield soon
    for timer in timers:
        timer.join()
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupted_wait_does_not_mix_two_saves(site: Site, interrupt_soon: Callable[[], None]) -> None:
    go = threading.Event()
    site.disk.before_write = lambda path: [go.wait(30)].clear() if path.endswith(".bin") else None
    array = numpy.zeros(1 << 18)  # big enough that its digest is computed while it is written
    with site.open() as checkpoints:
        checkpoints.save(1, {"x": array})
        interrupt_soon()
        with pytest.raises(Interrupted):
            checkpoints.save(2, {"x": array + 1})
        threading.Timer(0.2, go.set).start()
        checkpoints.save(3, {"x": array + 3})
    assert site.committed() == [site.path(1).name, site.path(3).name]
    for step, value in ((1, 0), (3, 3)):
        assert set(site.load(step).state["x"].tolist()) == {value}


def test_even_a_forgotten_save_keeps_its_memory(site: Site) -> None:
    """An interrupt may come at any bytecode: the memory that a thread reads is never given to another save."""
    go = threading.Event()
    site.disk.before_write = lambda path: [go.wait(30)].clear() if path.endswith(".bin") else None
    with site.open() as checkpoints:
        checkpoints.save(1, {"x": numpy.zeros(9)})
        checkpoints._saver.forget()
        checkpoints.save(2, {"x": numpy.ones(9)})
        go.set()
    site.wait_for(lambda: len(site.committed()) == 2)
    assert (site.load(1).state["x"].sum(), site.load(2).state["x"].sum()) == (0, 9)


def test_an_interrupt_forgets_no_fence(site: Site, interrupt_soon: Callable[[], None]) -> None:
    go = threading.Event()

    def newer(path: str) -> None:
        go.wait(30)
        site.attempt("3.0")

    site.disk.before_write = newer
    checkpoints = site.open()
    checkpoints.save(1, {})
    interrupt_soon()
    with pytest.raises(Interrupted):
        checkpoints.wait()
    go.set()
    for _ in range(2):
        with pytest.raises(Superseded):
            checkpoints.wait()


def test_leaving_by_an_exception_does_not_wait_for_ranks_that_may_be_dead(site: Site) -> None:
    def sleep(seconds: float) -> None:
        time.sleep(0.02)
        site.time.sleep(seconds)

    began = site.time.now_s
    with (  # noqa: PT012 - both are part of it
        pytest.raises(ZeroDivisionError),
        open_rank(site, 0, 2, commit_timeout_s=600, monotonic=site.time, sleep=sleep) as checkpoints,
    ):
        checkpoints.save(1, {})
        raise ZeroDivisionError
    assert site.time.now_s - began < 30
    assert site.saves()[0]["why"] == "rank 1 had not written its shard when the training broke off"
    assert site.left() == []


def test_a_second_interrupt_ends_at_once(site: Site, interrupt_soon: Callable[[], None]) -> None:
    go = threading.Event()
    site.disk.before_write = lambda path: [go.wait(30)].clear()
    checkpoints = site.open()
    checkpoints.save(1, {})
    interrupt_soon()
    began = time.monotonic()
    with pytest.raises(Interrupted):
        checkpoints.__exit__(Interrupted)
    assert time.monotonic() - began < 10
    go.set()
    checkpoints.wait()
    assert site.committed() == [site.path(1).name]


def test_rank_0_looks_once_per_poll_and_reads_each_word_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a thousand ranks, one listing each would be a million."""
    world, polls = 20, 5
    site.checkpoints.mkdir()
    for rank in range(1, world - 1):
        with open_rank(site, rank, world) as other:
            other.save(1, {}, wait=True)
    listed, slept, listdir = list[str](), list[float](), os.listdir

    def counting(path: Any = ".") -> list[str]:
        listed.append(str(path))
        return listdir(path)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == polls:
            with open_rank(site, world - 1, world) as last:
                last.save(1, {}, wait=True)

    monkeypatch.setattr(os, "listdir", counting)
    with open_rank(site, 0, world, sleep=sleep) as first:
        first.save(1, {}, wait=True)
    assert site.committed() == [site.path(1).name]
    assert len([path for path in listed if "/.staging/" in path]) == polls + 1


def test_a_newer_attempt_ends_the_wait_for_shards(site: Site) -> None:
    def sleep(seconds: float) -> None:
        site.time.sleep(seconds)
        site.attempt("3.0")

    began = site.time.now_s
    checkpoints = open_rank(site, 0, 2, monotonic=site.time, sleep=sleep)
    with pytest.raises(Superseded):
        checkpoints.save(1, {}, wait=True)
    assert site.time.now_s - began < 5


@pytest.mark.parametrize("when", ["shard-00000.bin", "manifest.json.tmp", "@2.0"])
def test_two_processes_that_are_both_rank_0_commit_only_one_whole(site: Site, when: str) -> None:
    """srun -n2 of a program that is not distributed."""
    done = list[str]()

    def other(path: str) -> None:
        if path.endswith(when) and not done:
            done.append(path)
            with site.open(disk=Disk()) as second:
                second.save(5, {"x": numpy.full(9, 2)}, wait=True)

    site.disk.before_write = site.disk.before_rename = other
    with site.open() as first:
        first.save(5, {"x": numpy.ones(9)}, wait=True)
    assert site.committed() == [site.path(5).name]
    assert set(site.load(5).state["x"].tolist()) == {2}
    states = {line["state"]: line["why"] for line in site.saves()}
    assert "another process writes checkpoints of this attempt: is every process rank 0?" in states["failed"]
    assert states["committed"] is None


def test_of_two_that_are_both_rank_0_none_commits_the_others_shard(site: Site) -> None:
    """One commits while the other is in the midst of writing."""
    go, midst, disk = threading.Event(), threading.Event(), Faulty()

    def wait_in_the_midst(path: str) -> None:
        if path.endswith("shard-00000.json.tmp"):
            midst.set()
            go.wait(30)

    disk.before_write = wait_in_the_midst
    second = site.open(disk=disk)

    def begin_the_other(path: str) -> None:
        if path.endswith("manifest.json.tmp"):
            second.save(5, {"x": numpy.full(9, 2)})
            assert midst.wait(30)

    site.disk.before_write = begin_the_other
    with site.open() as first:
        first.save(5, {"x": numpy.ones(9)}, wait=True)
    go.set()
    second.wait()
    assert set(site.load(5).state["x"].tolist()) == {2}


def test_a_rename_onto_another_commit_says_who_that_is(site: Site) -> None:
    """Also if it is the same to the bit: we were told of an error, and what we staged is still there."""

    def other(path: str) -> None:
        if path == str(site.path(5)):
            (staged,) = (site.checkpoints / ".staging").iterdir()
            shutil.copytree(staged, path)

    site.disk.before_rename = other
    with site.open() as first:
        first.save(5, {}, wait=True)
    assert "is there: another process writes checkpoints" in site.saves()[0]["why"]
    assert site.left() == []


def test_an_extra_save_of_one_rank_costs_only_that_step(site: Site) -> None:
    site.checkpoints.mkdir()
    with open_rank(site, 0, 2, commit_timeout_s=0.1) as first, open_rank(site, 1, 2) as second:
        first.save(1, {}, wait=True)
        assert site.saves()[-1]["state"] == "failed"
        for step in (2, 3):
            second.save(step, {}, wait=True)
            first.save(step, {}, wait=True)
            assert site.saves()[-1]["state"] == "committed"
        second.save(4, {}, wait=True)
        first.save(4, {}, wait=True)
        first.save(4, {}, wait=True)
    assert site.committed() == [site.path(step).name for step in (2, 3, 4)]
    assert site.left() == []


def test_a_step_that_comes_again_meets_no_shard_of_the_first_time(site: Site) -> None:
    """After a loss spike a training may go back: what a late rank left then is not for now."""
    site.checkpoints.mkdir()
    with open_rank(site, 0, 2, commit_timeout_s=0.1) as first, open_rank(site, 1, 2) as second:
        first.save(5, {}, wait=True)
        second.save(5, {"x": "first time"}, wait=True)
        first.save(4, {}, wait=True)
        first.save(5, {}, wait=True)
    assert site.committed() == []
    assert site.left() == []


def test_by_hand_a_killed_training_leaves_no_shard_for_the_next(tmp_path: Path) -> None:
    def rank(number: int) -> Checkpointer:
        env = {"RANK": str(number), "WORLD_SIZE": "2"}
        return Checkpointer(directory=str(tmp_path / "ckpt"), shards=2, environ=env, commit_timeout_s=0.1)

    with rank(0), rank(1) as killed:
        killed.save(5, {"from": "killed"}, wait=True)
    with rank(0) as first:
        first.save(5, {}, wait=True)
    assert list((tmp_path / "ckpt").glob("step-*")) == []


def test_ranks_that_all_save_wait_for_the_next_regular_save_after_a_failure(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    times: dict[str, Any] = {"monotonic": site.time, "sleep": site.time.sleep}
    with open_rank(site, 0, 2, commit_timeout_s=1, every_steps=10, **times) as checkpoints:
        checkpoints.save(10, {}, wait=True)
        due = []
        for step in range(11, 31):
            site.time.sleep(100)
            if checkpoints.due(step):
                due.append(step)
        assert due == [20, 30]
    assert "the next one is saved when it is due" in capsys.readouterr().err


def test_other_ranks_do_not_make_the_directory(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Where /scratch is not mounted, they would fill the local disk, and rank 0 would never see it."""
    with open_rank(site, 1, 2) as other:
        other.save(1, {}, wait=True)
    assert not site.checkpoints.exists()
    told = capsys.readouterr().err
    assert f"{site.checkpoints} is not there on {os.uname().nodename}: is it mounted?" in told


def test_under_fleetctl_rank_0_makes_no_parents(site: Site) -> None:
    with site.open(env={"FLEETCTL_CHECKPOINT_DIR": str(site.folder / "scratch" / "ckpt")}) as checkpoints:
        checkpoints.save(1, {}, wait=True)
    assert not (site.folder / "scratch").exists()
    assert "is it mounted?" in site.saves()[0]["why"]


def test_a_failure_is_told_again_after_a_success(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with site.open() as checkpoints:
        for step in range(1, 7):
            site.disk.before_write = (lambda path: None) if step == 3 else no_space
            checkpoints.save(step, {}, wait=True)
    assert capsys.readouterr().err.count("No space left on device") == 2


def test_sharded_ranks_are_not_restarted_by_torchrun(site: Site) -> None:
    with pytest.raises(ValueError, match="leave restarts to fleetctl"):
        open_rank(site, 0, 2, env={"TORCHELASTIC_MAX_RESTARTS": "3"})
    open_rank(site, 0, 2, env={"TORCHELASTIC_MAX_RESTARTS": "0"})
    open_rank(site, 0, 2, shards=1, env={"TORCHELASTIC_MAX_RESTARTS": "3"})


def test_leaving_the_block_gives_sigterm_back(site: Site) -> None:
    def former(*_: object) -> None:
        """Somebody else's."""

    before = signal.signal(signal.SIGTERM, former)
    try:
        with site.open() as checkpoints:
            checkpoints.save_on_sigterm()
            checkpoints.save_on_sigterm()
            assert signal.getsignal(signal.SIGTERM) is not former
        assert signal.getsignal(signal.SIGTERM) is former
        with site.open() as checkpoints:
            checkpoints.save_on_sigterm()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, "it is not ours any more"
    finally:
        signal.signal(signal.SIGTERM, before)


class Calls:
    """`os`, with one call that fails for some paths."""

    def __init__(self, call: str, number: int, matches: Callable[[str], bool]) -> None:
        self._failing, self._error, self._matches = call, OSError(number, os.strerror(number)), matches
        self._paths: dict[int, str] = {}

    def __getattr__(self, call: str) -> Any:
        real = getattr(os, call)

        def checked(first: Any, *rest: Any) -> Any:
            path = self._paths.get(first, "") if isinstance(first, int) else first
            result = real(first, *rest)
            if call == "open":
                self._paths[result] = first
            if call == self._failing and self._matches(path):
                raise self._error
            return result

        return checked


def test_an_error_that_only_close_tells_is_a_failed_save(site: Site) -> None:
    """A network file system may tell only there that the disk was full."""
    disk = Disk(Calls("close", errno.ENOSPC, lambda path: path.endswith("shard-00000.bin")))
    with site.open(disk=disk) as checkpoints:
        checkpoints.save(1, {"x": 1}, wait=True)
    assert site.committed() == []
    assert "No space left" in site.saves()[0]["why"]


@pytest.mark.parametrize(
    ("number", "state"),
    [(errno.EINVAL, "committed"), (errno.ENOTSUP, "committed"), (errno.ENOSYS, "committed"), (errno.EIO, "failed")],
)
def test_a_file_system_that_cannot_sync_folders_is_used_all_the_same(site: Site, number: int, state: str) -> None:
    with site.open(disk=Disk(Calls("fsync", number, os.path.isdir))) as checkpoints:
        checkpoints.save(1, {"x": 1}, wait=True)
    assert site.saves()[0]["state"] == state


def test_a_file_that_cannot_be_synced_is_a_failed_save(site: Site) -> None:
    with site.open(disk=Disk(Calls("fsync", errno.EINVAL, os.path.isfile))) as checkpoints:
        checkpoints.save(1, {"x": 1}, wait=True)
    assert site.saves()[0]["state"] == "failed"


def test_a_line_that_was_cut_off_does_not_spoil_the_next(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with site.open() as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr("fleetctl.train.attempt.os.write", lambda file, data: write(file, data[:20]))
            checkpoints._attempt.tell_save({"training_step": 1})
        checkpoints._attempt.tell_save({"training_step": 2})
        checkpoints._attempt.tell_save({"training_step": 3})
    lines = (site.attempt() / "saves.jsonl").read_text().splitlines()
    assert [len(lines[0]), *("training_step" in line for line in lines[1:])] == [20, True, True]
