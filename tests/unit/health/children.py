"""Children for the tests of run_apart, and what to do with them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from fleetctl.health import abandoned
from fleetctl.health.apart import Done, Task, run_apart

SOON_S = 0.15
LONG_S = 20.0


def pause() -> NoReturn:
    while True:
        signal.pause()


def one(work: Callable[[], object], deadline_s: float = LONG_S, stuck: Path | None = None) -> Done:
    return run_apart([Task("reader", work, deadline_s)], stuck=stuck, monotonic=time.monotonic)["reader"]


def is_alive(pid: int) -> bool:
    return abandoned._start(pid) is not None


def until(probe: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not probe():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def marked(stuck: Path) -> list[int]:
    """The pids that the folder remembers."""
    files = sorted(os.listdir(stuck)) if stuck.exists() else []
    return [mark.pid for mark in map(abandoned._read_mark, files) if mark is not None]


def end_marked(stuck: Path) -> None:
    """Ends and buries what a test has left hanging."""
    for pid in marked(stuck):
        if is_alive(pid) and pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
