"""Unit, property, golden and contract tests may not reach the world; integration and faults may."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

_WORLDLY = {"integration", "faults", "bench", "real"}


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
