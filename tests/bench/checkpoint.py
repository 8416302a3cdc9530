"""The cost of a checkpoint beside the least that its work takes: one copy of the memory, one write of the bytes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy

from fleetctl.train.checkpointer import Checkpointer
from tests.bench.measure import Row, alternate

_COPIED_BYTES, _WRITTEN_BYTES, _ARRAYS = 1 << 30, 512 << 20, 16


def rows() -> list[Row]:
    """Times of the wall clock: what the training waits, and what a commit takes."""
    return [blocked(), committed()]


def state_of(size: int) -> dict[str, Any]:
    """A model and its optimizer: some big arrays, and the small values beside them."""
    each = size // _ARRAYS
    rng = numpy.random.default_rng(1)
    block = rng.standard_normal(each // 4, dtype=numpy.float32)
    state: dict[str, Any] = {f"layer.{number}": block + number for number in range(_ARRAYS)}
    return {**state, "rng": rng.bit_generator.state, "position": 17}


def wall_ms(work: Any) -> float:
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)


@contextlib.contextmanager
def checkpoints(folder: Path, environ: dict[str, str]) -> Iterator[Checkpointer]:
    with Checkpointer(directory=str(folder), environ=environ) as opened:
        yield opened
    shutil.rmtree(folder, ignore_errors=True)


def blocked() -> Row:
    """How long `save` keeps the training, from the second one on, to memory: the disk is not part of it."""
    state, steps = state_of(_COPIED_BYTES), iter(range(1, 1000))
    arrays = [value for value in state.values() if isinstance(value, numpy.ndarray)]
    folder = Path(tempfile.mkdtemp(prefix="fb-", dir="/dev/shm"))
    with checkpoints(folder, {}) as opened:

        def save() -> float:
            step = next(steps)
            taken = wall_ms(lambda: opened.save(step, state))
            opened.wait()
            for old in folder.glob("step-*"):
                shutil.rmtree(old)
            return taken

        first = save()
        copies = [numpy.empty_like(array) for array in arrays]

        def copy() -> float:
            return wall_ms(lambda: copy_all(copies, arrays))

        fresh = copy()
        peer, ours = alternate(copy, save, 11)
    print(f"the first save of {_COPIED_BYTES >> 20} MiB blocks {first:.0f} ms, the first copy of it {fresh:.0f} ms")
    return Row("training blocked by a save of 1 GiB", "numpy.copyto into memory that is there", peer, ours, 1.3)


def copy_all(copies: list[Any], arrays: list[Any]) -> None:
    for new, old in zip(copies, arrays, strict=True):
        numpy.copyto(new, old)


def committed() -> Row:
    """From the copy to the committed name, with digest, manifest and every fsync, beside one file of the same bytes."""
    state, steps = state_of(_WRITTEN_BYTES), iter(range(1, 1000))
    arrays = [value for value in state.values() if isinstance(value, numpy.ndarray)]
    folder = Path(tempfile.mkdtemp(prefix="fb-", dir="/var/tmp"))
    (attempt := folder / "attempts" / "1.0").mkdir(parents=True)
    environ = {"FLEETCTL_RUN_ID": "bench", "FLEETCTL_ATTEMPT": "1.0", "FLEETCTL_ATTEMPT_DIR": str(attempt)}
    with checkpoints(folder, environ) as opened:

        def save() -> float:
            opened.save(next(steps), state)
            opened.wait()
            told = json.loads((attempt / "saves.jsonl").read_text().splitlines()[-1])
            assert told["state"] == "committed", told
            remove(folder)
            return 1000 * float(told["total_s"] - told["blocked_s"])

        def plain() -> float:
            taken = wall_ms(lambda: write(folder / "plain", arrays))
            (folder / "plain").unlink()
            os.sync()
            return taken

        peer, ours = alternate(plain, save, 15)
    return Row("commit of 512 MiB", "one file: write, fsync", peer, ours, 1.15)


def remove(folder: Path) -> None:
    for old in folder.glob("step-*"):
        shutil.rmtree(old)
    os.sync()


def write(path: Path, arrays: list[Any]) -> None:
    with path.open("wb", buffering=0) as file:
        for array in arrays:
            file.write(array)
        os.fsync(file.fileno())


if __name__ == "__main__":
    from tests.bench.measure import table

    print(table(rows()))
