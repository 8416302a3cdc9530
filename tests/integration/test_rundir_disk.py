"""The run directory on a real disk that is full: a tmpfs of its own; needs root."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleetctl.errors import RunDirError
from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.model import EventKind, RunKind, RunRecord
from fleetctl.rundir.store import RunDir, Store
from tests.support import small_disk

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_SIZE = 128 << 10
_TEXT = "x" * 6000  # more than a page: the last one that does not fit is torn


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", str(_SIZE)) as place:
        yield place


@pytest.fixture
def run(small: Path) -> RunDir:
    store = Store(small)
    store.ensure()
    assert store.reserve("r-aaaaaa")
    return store.fill(
        RunRecord("r-aaaaaa", "r", "me", NOW, RunKind.PLAIN, "d", "train.yaml", "/w", 1, 1, "c", "0"), "name: r\n", {}
    )


def test_a_disk_that_was_full_costs_only_the_events_that_did_not_fit(small: Path, run: RunDir) -> None:
    ballast = small / "ballast"
    ballast.write_bytes(b"x" * (32 << 10))
    log, told = run.event_log("login"), 1
    log.append(NOW, EventKind.INTENT, submission=1)
    with contextlib.suppress(RunDirError):
        while told < _SIZE:
            log.append(NOW, EventKind.UNKNOWN, submission=1, text=_TEXT)
            told += 1
    assert 2 < told < _SIZE
    for _ in range(3):
        with pytest.raises(RunDirError, match="No space left on device"):
            log.append(NOW, EventKind.UNKNOWN, submission=1, text=_TEXT)
    assert len(run.events()) == told
    ballast.unlink()
    log.append(NOW, EventKind.SUBMITTED, submission=1, job_id="7")
    assert run.history().job_id == "7"
    assert len(run.events()) == told + 1


def test_an_attempt_that_a_full_disk_kept_from_being_claimed_is_nobodys(small: Path, run: RunDir) -> None:
    attempts = Attempts(run.attempts_dir(None))
    ballast = small / "ballast"
    with contextlib.suppress(OSError):
        ballast.write_bytes(b"x" * 2 * _SIZE)
    with pytest.raises(RunDirError, match="No space left on device"):
        attempts.claim((1, 0))
    ballast.unlink()
    assert attempts.claim((1, 0))
    assert [path.name for path in attempts.path((1, 0)).iterdir()] == ["owner.json"]
