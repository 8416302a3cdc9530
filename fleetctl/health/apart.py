"""Runs readers in forked children, each with a deadline. Nothing here waits for a child that cannot be killed.

A call into a sick driver may sleep in the kernel where no signal reaches it. So: the parent only polls, kills at the
deadline, and leaves what does not die to init; such a child is remembered (abandoned.py), and while it lives the next
look starts no second one. The child keeps nothing of Slurm's: no pipe, no terminal, no working directory, no session.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import select
import signal
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

from fleetctl.health.abandoned import Folder, extend, hanging, remember, remove
from fleetctl.health.model import Answer
from fleetctl.health.record import NamedTuple

MOST_BYTES = 8 << 20  # of one answer: eight GPUs and their links are a hundredth of it
_READ_BYTES = 1 << 16  # a pipe holds no more
_GRACE_MS = 50  # for a child to be gone after it answered or was killed
_CLOSING_S = 60.0  # for a child that answered: without persistence mode the driver shuts the GPUs down as it ends
_OWN_ALARM_S = 1.0  # after its deadline a child ends itself, should nobody be left to kill it
_DETAIL_CHARACTERS = 300


class Task(NamedTuple):
    """Something to do apart. `work` returns what JSON can carry; `name` has no dot and no slash."""

    name: str
    work: Callable[[], object]
    deadline_s: float


class Done(NamedTuple):
    """How a task ended: `value` is what its work returned, `detail` says why there is none."""

    answer: Answer
    value: Any = None
    detail: str = ""
    took_s: float = 0.0


class _Child:
    """A child at work, or the remains of one."""

    __slots__ = ("began", "data", "done", "mark", "name", "pid", "read", "status", "until")

    def __init__(self, task: Task, pid: int, read: int, began: float) -> None:
        self.name = task.name
        self.pid = pid
        self.read = read
        self.began = began
        self.until = began + task.deadline_s
        self.data = bytearray()
        self.mark: Optional[str] = None
        self.done: Optional[Done] = None  # None: still at work, or gone without an answer
        self.status: Optional[int] = None  # what waitpid told


def run_apart(tasks: Sequence[Task], *, stuck: Optional[Folder], monotonic: Callable[[], float]) -> Dict[str, Done]:
    """Does all tasks at once, each in a child of its own, and returns by the last deadline at the latest.

    `stuck` is the folder of the marks of children that hang; None: nothing is remembered.
    """
    results: Dict[str, Done] = {}
    children: List[_Child] = []
    try:
        for task in tasks:
            earlier = hanging(stuck, task.name) if stuck is not None else None
            if earlier is not None:
                words = f"process {earlier.pid} of an earlier check has hung for {earlier.for_s:.0f} s"
                results[task.name] = Done(Answer.BUSY, detail=words)
                continue
            try:
                children.append(_start(task, stuck, monotonic()))
            except OSError as error:  # no process, no pipe to be had
                results[task.name] = Done(Answer.FAILED, detail=f"cannot start a process: {error}")
        _listen(children, monotonic)
    finally:
        for child in children:
            if child.done is None or child.done.answer is not Answer.ANSWERED:
                _kill(child)
            os.close(child.read)
        _bury(children)
    results.update((child.name, child.done or _died(child, monotonic())) for child in children)
    return results


def _start(task: Task, stuck: Optional[Folder], now: float) -> _Child:
    read, write = os.pipe()
    try:
        os.set_blocking(read, False)
        pid = os.fork()
    except OSError:
        os.close(read)
        os.close(write)
        raise
    if pid == 0:
        _work(task, write)
    os.close(write)
    child = _Child(task, pid, read, now)
    if stuck is not None:
        child.mark = remember(stuck, task.name, pid, task.deadline_s)
    return child


def _listen(children: List[_Child], monotonic: Callable[[], float]) -> None:
    """Hears every child until it has answered, died or reached its deadline; kills it at that."""
    poller = select.poll()
    for child in children:
        poller.register(child.read, select.POLLIN)
    waiting = {child.read: child for child in children}
    while waiting:
        now = monotonic()
        for child in [child for child in waiting.values() if child.until <= now]:
            child.done = Done(
                Answer.HUNG, detail=f"no answer within {now - child.began:.1f} s", took_s=now - child.began
            )
            _kill(child)
            poller.unregister(child.read)
            del waiting[child.read]
        if not waiting:
            return
        wait_ms = (min(child.until for child in waiting.values()) - now) * 1000
        for read, _ in poller.poll(int(wait_ms) + 1):
            if _hear(waiting[read], monotonic):
                poller.unregister(read)
                del waiting[read]


def _hear(child: _Child, monotonic: Callable[[], float]) -> bool:
    """Takes what has come; True when no more is wanted."""
    try:
        chunk = os.read(child.read, _READ_BYTES)
    except BlockingIOError:
        return False
    except OSError:
        chunk = b""
    if not chunk:
        return True  # it died: `_died` says how, once it is buried
    child.data += chunk
    if len(child.data) > MOST_BYTES:
        child.done = Done(Answer.CRASHED, detail=f"its answer is larger than {MOST_BYTES >> 20} MiB")
    elif child.data.endswith(b"\n"):
        child.done = _parse(child.data, monotonic() - child.began)
    return child.done is not None


def _parse(data: bytearray, took_s: float) -> Done:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        message = None
    if isinstance(message, list) and len(message) == 2:
        if message[0] == "value":
            return Done(Answer.ANSWERED, message[1], took_s=took_s)
        if message[0] == "error":
            return Done(Answer.FAILED, detail=str(message[1]), took_s=took_s)
    return Done(Answer.CRASHED, detail="it printed nonsense", took_s=took_s)


def _died(child: _Child, now: float) -> Done:
    status = child.status
    if status is None:
        words = "it ended without an answer"
    elif os.WIFSIGNALED(status):
        words = f"it was killed by signal {os.WTERMSIG(status)}"
    else:
        words = f"it ended with status {os.WEXITSTATUS(status)} and without an answer"
    return Done(Answer.CRASHED, detail=words, took_s=now - child.began)


def _kill(child: _Child) -> None:
    """Kills it and what it started. It is not buried yet, so its pid is nobody else's."""
    for kill in (os.killpg, os.kill):  # it may not have made its session yet
        try:
            kill(child.pid, signal.SIGKILL)
        except OSError as error:
            if error.errno not in (errno.ESRCH, errno.EPERM):
                raise


def _bury(children: List[_Child]) -> None:
    """Reaps whoever is gone within the grace, and takes those marks away. The others are init's."""
    left = children
    for _ in range(_GRACE_MS):
        left = [child for child in left if not _reaped(child)]
        if not left:
            return
        select.poll().poll(1)
    for child in left:
        if child.mark is not None and child.done is not None and child.done.answer is Answer.ANSWERED:
            extend(child.mark, _CLOSING_S)


def _reaped(child: _Child) -> bool:
    try:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
    except ChildProcessError:  # Slurm ignores SIGCHLD, which is inherited: the kernel has reaped it
        pid, status = child.pid, None
    if pid == 0:
        return False
    child.status = status
    if child.mark is not None:
        remove(child.mark)
    return True


def _work(task: Task, write: int) -> NoReturn:
    """The child: leaves all that is its parent's, works, answers with one line of JSON, and ends without ceremony."""
    status = 1
    try:
        write = _leave_parent(write, task)
        message = _answer(task.work)
        while message:
            message = message[os.write(write, message) :]
        status = 0
    finally:
        os._exit(status)


def _answer(work: Callable[[], object]) -> bytes:
    try:
        text = json.dumps(("value", work()))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent is to hear of it
        text = json.dumps(("error", f"{type(error).__name__}: {error}"[:_DETAIL_CHARACTERS]))
    return text.encode("ascii") + b"\n"


def _leave_parent(write: int, task: Task) -> int:
    os.setsid()
    os.chdir("/")  # a child that hangs must not hold somebody's file system
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.setitimer(signal.ITIMER_REAL, task.deadline_s + _OWN_ALARM_S)
    gc.disable()  # no file object of the parent may be collected here: its descriptor will soon be another file's
    write = fcntl.fcntl(write, fcntl.F_DUPFD_CLOEXEC, 3)
    for descriptor in _descriptors():
        if descriptor != write:
            try:
                os.close(descriptor)
            except OSError:
                continue  # the one that listed them
    for wanted in (0, 1, 2):  # all are free now, and a new one is the lowest that is free
        if os.open(os.devnull, os.O_RDWR) == wanted:
            os.set_inheritable(wanted, True)
    _name_process(task.name)
    return write


def _descriptors() -> Tuple[int, ...]:
    try:
        return tuple(int(name) for name in os.listdir("/proc/self/fd"))
    except (OSError, ValueError):
        return tuple(range(1024))


def _name_process(name: str) -> None:
    """What `ps` shows of it, for whoever wonders what hangs there."""
    try:
        comm = os.open("/proc/self/comm", os.O_WRONLY | os.O_CLOEXEC)
        os.write(comm, f"fleetctl-{name}"[:15].encode("ascii", "replace"))
        os.close(comm)
    except OSError:
        return
