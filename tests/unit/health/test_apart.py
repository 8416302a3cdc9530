"""run_apart: readers in forked children, of which any may hang, die or lie."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from fleetctl.health import apart
from fleetctl.health.apart import Task, run_apart
from fleetctl.health.model import Answer
from tests.unit.health.children import LONG_S, SOON_S, is_alive, marked, one, pause, until

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_each_task_answers_with_what_its_work_returned(stuck: Path) -> None:
    tasks = [Task("list", lambda: [1, {"a": None}], LONG_S), Task("pid", os.getpid, LONG_S)]
    done = run_apart(tasks, stuck=stuck, monotonic=time.monotonic)
    assert done["list"].answer is Answer.ANSWERED
    assert done["list"].value == [1, {"a": None}]
    assert done["pid"].value != os.getpid()
    assert not Path(f"/proc/{done['pid'].value}").exists()
    assert marked(stuck) == []


def test_tasks_run_at_the_same_time(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    tasks = [
        Task("reader", lambda: (tmp_path / "fifo").read_text(), LONG_S),
        Task("writer", lambda: (tmp_path / "fifo").write_text("met"), LONG_S),
    ]
    assert run_apart(tasks, stuck=None, monotonic=time.monotonic)["reader"].value == "met"


def test_a_large_answer_arrives_whole() -> None:
    assert one(lambda: ["x" * 1000] * 3000).value == ["x" * 1000] * 3000


def raise_it(error: BaseException) -> NoReturn:
    raise error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no such thing"), "ValueError: no such thing"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (OSError(errno.EIO, "sick disk"), "OSError: [Errno 5] sick disk"),
        (ValueError("x" * 9999), "ValueError: " + "x" * 288),
        (ValueError("\udcff"), "ValueError: \udcff"),
    ],
)
def test_an_exception_comes_back_as_words(error: BaseException, words: str) -> None:
    done = one(lambda: raise_it(error))
    assert (done.answer, done.detail) == (Answer.FAILED, words)


def test_a_value_that_json_cannot_carry_is_a_failure() -> None:
    done = one(lambda: {1, 2})
    assert done.answer is Answer.FAILED
    assert "set is not JSON serializable" in done.detail


@pytest.mark.parametrize(
    ("death", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "it was killed by signal 11"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "it was killed by signal 15"),
        (lambda: os._exit(3), "it ended with status 3 and without an answer"),
    ],
)
def test_a_death_is_a_crash(death: Callable[[], None], words: str, stuck: Path) -> None:
    done = one(death, stuck=stuck)
    assert (done.answer, done.detail) == (Answer.CRASHED, words)
    assert marked(stuck) == []


def print_into_pipe(text: bytes) -> NoReturn:
    for number in range(3, 1024):
        try:
            os.write(number, text)
        except OSError:
            continue
    os._exit(0)


@pytest.mark.parametrize(
    "text", [b"nonsense\n", b"[1]\n", b"7\n", b"\xff\n", b"[" * 60000 + b"\n", b'["a", 1]\n', b'"ab"\n']
)
def test_nonsense_is_a_crash(text: bytes) -> None:
    done = one(lambda: print_into_pipe(text))
    assert (done.answer, done.detail) == (Answer.CRASHED, "it printed nonsense")


def test_half_an_answer_is_a_crash() -> None:
    assert one(lambda: print_into_pipe(b'["value", 1]')).answer is Answer.CRASHED


def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "MOST_BYTES", 1 << 20)
    done = one(lambda: "x" * (1 << 21))
    assert (done.answer, done.detail) == (Answer.CRASHED, "its answer is larger than 1 MiB")


def refuse_to_end(path: Path) -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
    path.write_text(str(os.getpid()))
    pause()


def test_a_hanging_child_is_killed_at_its_deadline(tmp_path: Path, stuck: Path) -> None:
    began = time.monotonic()
    done = one(lambda: refuse_to_end(tmp_path / "pid"), SOON_S, stuck)
    assert SOON_S <= time.monotonic() - began < SOON_S + 0.45
    assert done.answer is Answer.HUNG
    assert done.detail.startswith("no answer within 0.")
    assert done.took_s >= SOON_S
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()  # buried, too: no zombie
    assert marked(stuck) == []


def test_one_hanging_child_does_not_take_the_others_with_it() -> None:
    tasks = [Task("hung", pause, SOON_S), Task("well", lambda: 1, LONG_S), Task("late", pause, 2 * SOON_S)]
    done = run_apart(tasks, stuck=None, monotonic=time.monotonic)
    assert [done[name].answer for name in ("hung", "well", "late")] == [Answer.HUNG, Answer.ANSWERED, Answer.HUNG]


def test_what_a_hanging_child_started_is_killed_with_it(tmp_path: Path) -> None:
    def start_another() -> NoReturn:
        if os.fork() == 0:
            refuse_to_end(tmp_path / "pid")
        pause()

    assert one(start_another, SOON_S).answer is Answer.HUNG
    until(lambda: not is_alive(int((tmp_path / "pid").read_text())))


def look_around() -> dict[str, object]:
    files = {name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if int(name) <= 2}
    others = []
    for number in range(3, 1024):
        try:
            others.append(os.readlink(f"/proc/self/fd/{number}").partition(":")[0])
        except OSError:
            continue
    return {
        "files": files,
        "others": others,
        "cwd": os.getcwd(),
        "leader": os.getsid(0) == os.getpid(),
        "name": Path("/proc/self/comm").read_text(),
        "term": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "inheritable": all(map(os.get_inheritable, (0, 1, 2))),
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }


def test_a_child_keeps_nothing_of_its_parents(tmp_path: Path) -> None:
    with (tmp_path / "slurmd.log").open("w") as log:
        os.set_inheritable(log.fileno(), True)
        before = signal.signal(signal.SIGTERM, lambda number, frame: None)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        try:
            seen = one(look_around).value
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
            signal.signal(signal.SIGTERM, before)
    assert seen == {
        "files": dict.fromkeys("012", "/dev/null"),
        "others": ["pipe"],
        "cwd": "/",
        "leader": True,
        "name": "fleetctl-reader\n",
        "term": True,
        "inheritable": True,
        "blocked": 0,
    }


def in_a_process(work: Callable[[], bool]) -> int:
    """The exit status of a forked process: 0 when `work` says so."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_parent_without_standard_files_is_served_as_well() -> None:
    def work() -> bool:
        for number in (0, 1, 2):
            os.close(number)
        return bool(one(look_around).value["files"] == dict.fromkeys("012", "/dev/null"))

    assert in_a_process(work) == 0


def test_a_parent_that_ignores_its_children_is_served_as_well() -> None:
    def work() -> bool:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        crash = one(lambda: os._exit(3))
        hung = one(pause, SOON_S)
        return (one(lambda: 1).value, crash.answer, hung.answer) == (1, Answer.CRASHED, Answer.HUNG)

    assert in_a_process(work) == 0


def test_a_child_whose_parent_was_killed_ends_by_itself(stuck: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_OWN_ALARM_S", 0.05)

    def work() -> NoReturn:
        until(lambda: bool(marked(stuck)))
        os.kill(os.getppid(), signal.SIGKILL)  # as Slurm does at PrologTimeout
        pause()

    assert in_a_process(lambda: one(work, 1.0, stuck) is None) == -signal.SIGKILL
    until(lambda: not any(map(is_alive, marked(stuck))))
    assert one(lambda: 1, LONG_S, stuck).answer is Answer.ANSWERED
    assert marked(stuck) == []


def test_without_a_process_to_be_had_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    done = one(lambda: 1)
    assert (done.answer, done.detail) == (
        Answer.FAILED,
        "cannot start a process: [Errno 11] Resource temporarily unavailable",
    )


def test_an_interrupted_parent_leaves_no_child_behind(stuck: Path) -> None:
    clock = iter([1.0, 1.0])

    def interrupted() -> float:
        try:
            return next(clock)
        except StopIteration:
            raise KeyboardInterrupt from None

    with pytest.raises(KeyboardInterrupt):
        run_apart([Task("reader", pause, SOON_S)], stuck=stuck, monotonic=interrupted)
    assert marked(stuck) == []
