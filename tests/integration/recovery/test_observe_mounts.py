"""Folders are read by processes of their own: one that hangs, dies or is slow takes nothing but its own mount away."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fleetctl.errors import ProcessTimeout
from fleetctl.recovery import mounts
from fleetctl.recovery.mounts import Question, Readers, mounts_of
from fleetctl.recovery.read_wire import AskFindings, AskRun, AskRuns, Failed, ToldFindings, ToldRun, ToldRuns
from tests.watched_runs import a_run, beat, started

ME = pwd.getpwuid(os.geteuid()).pw_name
STUB = """
import os, sys, time
from fleetctl.recovery.read_wire import Frames, ToldRun, ask_in, frame
open(sys.argv[1], "a").write("x")
frames = Frames()
while data := os.read(0, 65536):
    for one in frames.feed(data):
        ask = ask_in(one)
        if b"hang" in ask.path and not os.path.exists(sys.argv[1] + ".mended"):
            time.sleep(600)
        if b"die" in ask.path:
            os._exit(7)
        if b"lie" in ask.path:
            os.write(1, b"\\xff" * 8)
        if b"slow" in ask.path:
            time.sleep(0.4)
        os.write(1, frame(ToldRun(ask.path, state="s")))
"""


class Clock:
    """Monotonic time that a test moves on."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


class Stubs:
    """Stub readers, a mount for each first letter of a path's name."""

    def __init__(self, folder: Path) -> None:
        self.script, self.log, self.clock = folder / "stub.py", folder / "started", Clock()
        self.script.write_text(STUB)
        argv = (sys.executable, str(self.script), str(self.log))
        self.readers = Readers(self.clock, argv=argv, silence_s=1.0, patience_s=2.0, mount_of=self.mounts)

    @staticmethod
    def mounts(places: Sequence[bytes]) -> Sequence[str]:
        return [f"/{place.decode()[1]}" for place in places]

    def ask(self, *paths: str) -> list[str]:
        questions = [Question(AskRun(path.encode(), "r"), path.encode()) for path in paths]
        found = [told[-1] for told in self.readers.ask(questions)]
        assert all(isinstance(one, ToldRun | Failed) for one in found)
        return [one.why if isinstance(one, Failed) else "" for one in found]

    @property
    def starts(self) -> int:
        return len(self.log.read_text())

    def mend(self) -> None:
        self.log.with_name("started.mended").touch()


@pytest.fixture
def stubs(tmp_path: Path) -> Iterator[Stubs]:
    made = Stubs(tmp_path)
    with made.readers:
        yield made


def test_a_mount_that_hangs_takes_only_its_own_runs_away(stubs: Stubs) -> None:
    said = stubs.ask("/a1", "/b1", "/b-hang", "/b2", "/a2")
    assert said == ["", "", "/b does not answer", "/b does not answer", ""]
    assert stubs.readers.troubles() == ("/b does not answer",)


def test_a_mount_that_hung_is_left_alone_for_a_while_and_then_tried_with_its_worst_last(stubs: Stubs) -> None:
    stubs.ask("/b-hang", "/b1")
    before = stubs.starts
    assert stubs.ask("/b-hang", "/b1") == ["/b does not answer"] * 2
    assert stubs.starts == before, "no other process hangs there now"
    stubs.clock.ahead_s += 31
    assert stubs.ask("/b-hang", "/b1") == ["/b does not answer", ""]
    stubs.clock.ahead_s += 31
    assert stubs.ask("/b1") == ["/b does not answer"], "the pause has grown"
    stubs.clock.ahead_s += 31
    stubs.mend()
    assert stubs.ask("/b-hang", "/b1") == ["", ""]
    assert stubs.readers.troubles() == ()


@pytest.mark.parametrize("worst", ["/a-die", "/a-lie"])
def test_a_folder_that_its_reader_dies_of_is_unknown_and_the_others_are_read(stubs: Stubs, worst: str) -> None:
    said = stubs.ask("/a1", worst, "/a2", "/a3")
    assert [bool(why) for why in said] == [False, True, False, False]
    assert stubs.starts == 2
    assert stubs.ask("/a1", "/a2") == ["", ""]


def test_readers_that_always_die_are_given_up_for_this_pass(stubs: Stubs) -> None:
    said = stubs.ask(*(f"/a-die{number}" for number in range(9)))
    assert all(said)
    assert stubs.starts == 3


def test_what_a_slow_mount_did_not_reach_comes_first_in_the_next_pass(stubs: Stubs) -> None:
    paths = [f"/a-slow{number}" for number in range(9)]
    first = stubs.ask(*paths)
    assert 1 <= first.count("") < 9
    assert {why for why in first if why} == {"/a is too slow: it was not reached in this pass"}
    second = stubs.ask(*paths)
    missed = [number for number, why in enumerate(first) if why]
    assert second[missed[0]] == "", "it was not reached before"


def test_more_questions_than_a_pipe_holds_are_answered(stubs: Stubs) -> None:
    assert set(stubs.ask(*(f"/a{number:0200}" for number in range(2000)))) == {""}
    assert stubs.starts == 1


def test_a_process_that_cannot_be_killed_is_the_only_one_that_hangs_there(
    stubs: Stubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for one that the kernel holds: it says nothing, and does not end when it is told to."""
    alive = subprocess.Popen(["sleep", "600"])
    started_: list[int] = []

    class Held:
        pid = alive.pid

        def send(self, line: bytes) -> None: ...

        def receive(self, timeout_s: float) -> bytes:
            raise ProcessTimeout("nothing")

        def end(self, grace_s: float = 0.0) -> int | None:
            return None

    def start(argv: object) -> Held:
        started_.append(1)
        return Held()

    monkeypatch.setattr(mounts, "start_piped", start)
    assert stubs.ask("/a1") == [f"/a does not answer: process {alive.pid} hangs in it"]
    stubs.clock.ahead_s += 10_000
    assert stubs.ask("/a1") == [f"/a does not answer: process {alive.pid} hangs in it"]
    assert len(started_) == 1
    alive.kill()
    alive.returncode = -9  # it is buried by whoever asks next
    monkeypatch.undo()
    deadline = time.monotonic() + 30
    while stubs.ask("/a1") != [""]:
        assert time.monotonic() < deadline


def test_real_runs_are_read_by_a_real_process(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    paths = []
    for number in range(20):
        run = a_run(root, f"r-{number:02}", ME)
        started(run)
        beat(run)
        paths.append(os.fsencode(run.path))
    bad = root / "r-07" / "run.json"
    bad.unlink()
    os.mkfifo(bad)
    with Readers(time.monotonic) as readers:
        ((names,),) = readers.ask([Question(AskRuns(os.fsencode(root)), paths[0])])
        assert isinstance(names, ToldRuns)
        assert names.names == tuple(f"r-{number:02}" for number in range(20))
        asks = [Question(AskRun(path, path.decode()[-4:]), path) for path in paths]
        found = [told[-1] for told in readers.ask(asks)]
    assert all(isinstance(one, ToldRun) for one in found)
    unread = [one.path[-4:] for one in found if isinstance(one, ToldRun) and one.read is None]
    assert unread == [b"r-07"]


def test_a_shared_folder_that_is_not_there_fails_and_an_empty_one_is_empty(tmp_path: Path) -> None:
    with Readers(time.monotonic) as readers:
        ask = AskFindings(os.fsencode(tmp_path / "gone"), 0)
        ((told,),) = readers.ask([Question(ask, ask.path)])
        assert isinstance(told, Failed)
        ((told,),) = readers.ask([Question(AskFindings(os.fsencode(tmp_path), 0), ask.path)])
        assert told == ToldFindings(last=True)


def test_a_path_belongs_to_the_innermost_mount_by_its_text_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"{n} 1 0:1 / {place} rw - ext4 d rw" for n, place in enumerate(["/", "/home", "/home/a\\040b"])]
    (tmp_path / "mountinfo").write_text("\n".join(lines))
    monkeypatch.setattr(mounts, "_MOUNTS", tmp_path / "mountinfo")
    paths = [b"/home/u/runs/r-1", b"/home/a b/runs/r-1", b"/homes/r-1", b"/home/a b/-", b"/home/\xff/r"]
    assert mounts_of(paths) == ["/home", "/home/a b", "/", "/home/a b", "/home"]
    monkeypatch.setattr(mounts, "_MOUNTS", tmp_path / "gone")
    assert mounts_of(paths) == ["/"] * 5
