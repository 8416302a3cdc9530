"""What the tests of run_apart and of its memory share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetctl.health import apart
from tests.unit.health.children import end_marked


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "spool" / "stuck"
    yield folder
    end_marked(folder)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_GRACE_MS", 10_000)  # a busy machine may take its time to end a process
