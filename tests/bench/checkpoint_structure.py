"""The cost of looking at a DCP checkpoint of many files, beside what torch itself must do to know what is in it."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen

from tests.bench.measure import Row
from tests.formats.dcp import slice_bytes, write_dcp
from tests.support import ROOT

_SHARDS, _ROUNDS, _WARM_ROUNDS = 10_000, 9, 2
_REAL = ROOT / ".venv-real" / "bin" / "python"
# Each runs in a process of its own and prints milliseconds of the wall clock, one line a round
_TORCH = """
import os, sys, time
from torch.distributed.checkpoint import FileSystemReader
for _ in sys.stdin:
    began = time.perf_counter()
    metadata = FileSystemReader(sys.argv[1]).read_metadata()
    for name in {info.relative_path for info in metadata.storage_data.values()}:
        os.stat(f"{sys.argv[1]}/{name}")
    print(1000 * (time.perf_counter() - began), flush=True)
"""
_OURS = """
import sys, time
from pathlib import Path
from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.model import Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
folder = Path(sys.argv[1])
for _ in sys.stdin:
    began = time.perf_counter()
    found = examine(LocalStorage(), folder.parent, Entry(folder.name, 1), Level.STRUCTURE, wanted="torch_dcp")
    print(1000 * (time.perf_counter() - began), flush=True)
    assert (found.validity, found.level) == (Validity.VALID, Level.STRUCTURE), found.reason
"""


def rows() -> list[Row]:
    """Nothing where torch is not installed: `./dev test` makes the environment that has it."""
    if not _REAL.exists():
        print(f"{_REAL} is not there: the structure of a checkpoint was not measured")
        return []
    folder = Path(tempfile.mkdtemp(prefix="fb-", dir="/var/tmp")) / "step_1"
    try:
        write_many(folder)
        peer, ours = in_turns([_REAL, "-c", _TORCH], [sys.executable, "-c", _OURS], folder)
    finally:
        shutil.rmtree(folder.parent)
    return [Row(f"structure of {_SHARDS} DCP shards", "torch 2.13: read_metadata, and a stat each", peer, ours, 1.0)]


def write_many(folder: Path) -> None:
    """One shard and one tensor for each rank."""
    one = slice_bytes(0, 64)
    write_dcp(folder, {f"__{rank}_0.distcp": {f"model.layers.{rank}.weight": one} for rank in range(_SHARDS)})


def in_turns(peer: list[object], ours: list[object], folder: Path) -> tuple[float, float]:
    """Medians of both. Each measures when it is given a line, and the other one waits."""
    commands = ([*map(str, argv), str(folder)] for argv in (peer, ours))
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(Popen(argv, stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT)) for argv in commands
        ]
        found = [[asked(process) for process in processes] for _ in range(_ROUNDS + _WARM_ROUNDS)][_WARM_ROUNDS:]
    return median(pair[0] for pair in found), median(pair[1] for pair in found)


def asked(process: Popen[str]) -> float:
    """One measurement."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


if __name__ == "__main__":
    from tests.bench.measure import table

    print(table(rows()))
