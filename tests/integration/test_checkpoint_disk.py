"""Checkpointer on a real disk that is full, or that nobody may write to: a tmpfs of its own; needs root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from fleetctl.train.checkpointer import Checkpointer
from tests.support import small_disk

_SIZE = 8 << 20
_STATE_BYTES = 3 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system for two checkpoints, and not three."""
    with small_disk(tmp_path / "small", str(_SIZE)) as place:
        yield place


def committed(place: Path) -> list[str]:
    return sorted(path.name for path in place.glob("step-*"))


def names(*steps: int) -> list[str]:
    return [f"step-{step:09d}@local@0.0" for step in steps]


def files_below(place: Path) -> list[Path]:
    return [
        path for path in place.rglob("*") if path.is_file() and "step-" not in str(path.relative_to(place).parts[0])
    ]


def test_a_full_disk_costs_only_the_save_that_did_not_fit(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    array = numpy.arange(_STATE_BYTES // 8, dtype=numpy.float64)
    with Checkpointer(directory=str(small), environ={}) as checkpoints:
        for step in (1, 2, 3, 4):
            checkpoints.save(step, {"array": array + step}, wait=True)
        assert committed(small) == names(1, 2)
        assert files_below(small) == []
        assert capsys.readouterr().err.count("No space left on device") == 1
        oldest = small / names(1)[0]
        for path in oldest.iterdir():
            path.unlink()
        oldest.rmdir()
        checkpoints.save(5, {"array": array + 5}, wait=True)
        assert committed(small) == names(2, 5)
        loaded = checkpoints.load()
    assert loaded is not None
    numpy.testing.assert_array_equal(loaded.state["array"], array + 5)


def test_a_disk_that_became_read_only_harms_nothing(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Checkpointer(directory=str(small), environ={}) as checkpoints:
        checkpoints.save(1, {"x": 1}, wait=True)
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
        checkpoints.save(2, {"x": 2}, wait=True)
        assert "Read-only file system" in capsys.readouterr().err
        subprocess.run(["mount", "-o", "remount,rw", str(small)], check=True)
        checkpoints.save(3, {"x": 3}, wait=True)
    assert committed(small) == names(1, 3)
