"""The example training, which goes wrong where files in a folder say so: `train_chaos.py FOLDER OPTION...`.

black.NODE   every rank on that node ends at once
config       it needs a module that nobody has
crash        it ends at training step CRASH_STEP, each time
nan          its loss and its parameters become NaN there, each time; `nan-once` is consumed by it
hang-once    rank 1 stands still there, while the others wait; consumed by it
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

CRASH_STEP = 90


def consumed(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def arm(training: Any, folder: Path) -> None:
    """Let `training`, the module of the example, go wrong as `folder` says."""
    rank = training.world()[0]
    told = [int(os.environ.get("FLEETCTL_RESUME_STEP") or 0)]  # the newest training step that was told

    class Progress(training.Progress):  # type: ignore[misc]
        def update(self, **values: Any) -> None:
            super().update(**values)
            told[0] = values["training_step"]
            if told[0] != CRASH_STEP or values.get("done"):
                return
            if (folder / "crash").exists():
                sys.exit(f"rank {rank}: chaos at step {CRASH_STEP}")
            if rank == 1 and consumed(folder / "hang-once"):
                os.kill(os.getpid(), signal.SIGSTOP)

    class Ranks(training.Ranks):  # type: ignore[misc]
        def all_reduce(self, mine: Any) -> Any:
            now = self.rank == 0 and told[0] == CRASH_STEP - 1
            if now and ((folder / "nan").exists() or consumed(folder / "nan-once")):
                mine = mine * float("nan")
            return super().all_reduce(mine)

    training.Progress, training.Ranks = Progress, Ranks


if __name__ == "__main__":
    chaos = Path(sys.argv.pop(1))
    if (chaos / f"black.{os.environ.get('SLURMD_NODENAME')}").exists():
        sys.exit("chaos: this node is a black hole")
    if (chaos / "config").exists():
        importlib.import_module("no_such_module_of_chaos")
    sys.path.insert(0, os.getcwd())
    example = importlib.import_module("train_numpy")
    arm(example, chaos)
    example.main()
