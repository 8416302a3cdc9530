"""A training whose state is large and saved all the time, so that a kill mostly lands while a save is under way.

Its result is a chain of digests over all training steps: whoever loses or repeats a step, or resumes from a state that
is not what was saved, ends with another one. Options make it behave badly.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time

import numpy as np

from fleetctl.train.checkpointer import Checkpointer
from fleetctl.train.progress import Progress


def advance(chain: bytes, step: int) -> bytes:
    return hashlib.sha256(chain + str(step).encode()).digest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-time-ms", type=float, default=20.0)
    parser.add_argument("--mib", type=int, default=1)
    parser.add_argument("--stop-at", type=int, default=0, help="exit with 0 at this step, once")
    parser.add_argument("--deaf", action="store_true", help="never save when asked")
    options = parser.parse_args()
    with Progress() as progress, Checkpointer() as checkpoints:
        chain, first = b"", 1
        loaded = checkpoints.load()
        if loaded is not None:
            chain, first = loaded.state["chain"], loaded.training_step + 1
            if not np.array_equal(loaded.state["ballast"], ballast(loaded.training_step, options.mib)):
                sys.exit("this is not what was saved")
        for step in range(first, options.steps + 1):
            chain = advance(chain, step)
            progress.update(training_step=step, target_step=options.steps)
            if checkpoints.due(step) and not (options.deaf and step > 100):
                checkpoints.save(step, {"chain": chain, "ballast": ballast(step, options.mib)})
            time.sleep(options.step_time_ms / 1000)
            if step == options.stop_at and loaded is None:
                sys.exit(0)
        progress.update(training_step=options.steps, done=True)
        print(f"done: parameters sha256 {chain.hex()}", flush=True)


def ballast(step: int, mib: int) -> np.ndarray:
    return np.arange(mib * 131_072, dtype="<i8") * (step + 1)


if __name__ == "__main__":
    main()
