"""Unit, property, golden and contract tests may not reach the world; integration and faults may."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

_WORLDLY = {"integration", "faults", "bench", "real"}


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background, and so in all that tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)


class ReachedTheWorld(BaseException):
    """A test that should be pure started a process or opened a socket; not an Exception, so nothing swallows it."""


@pytest.fixture(autouse=True)
def _no_world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(request.node.path).relative_to(Path(__file__).parent).parts[0]
    if folder not in _WORLDLY:

        def refuse(*args: object, **kwargs: object) -> NoReturn:
            raise ReachedTheWorld(f"{request.node.name} reached the world: {args!r}")

        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
        monkeypatch.setattr(socket.socket, "connect", refuse)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew, to be reviewed")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell a failure at once: of a run that is cut off, nobody sees the summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ and sys.__stderr__ is not None:
        crash = getattr(report.longrepr, "reprcrash", None)
        why = " ".join(str(crash.message if crash else report.longrepr).split())[:300]
        print(f"\n{report.nodeid} failed in {report.duration:.0f} s: {why}", file=sys.__stderr__)
