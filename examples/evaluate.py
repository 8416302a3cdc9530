"""Follows a training through its progress file and tells each new best loss; ends when the training is done.

    fleetctl submit hetjob.yaml                   beside the training, on a node of its own without GPUs
    python3 evaluate.py --progress progress.json  by hand

A real evaluator would load the newest valid checkpoint and score it on held-out data.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any


def read(path: str, attempt: str | None) -> dict[str, Any] | None:
    """The newest progress; None when there is none yet, or when an earlier attempt left it."""
    try:
        with open(path, encoding="utf-8") as file:
            progress = json.load(file)
    except (OSError, ValueError):  # not there yet, or the disk lost its content in a crash: unknown, ask again
        return None
    if not isinstance(progress, dict) or (attempt is not None and progress.get("attempt") != attempt):
        return None
    return progress


def follow(path: str, attempt: str | None, patience_s: float) -> None:
    seen, best, last_news = None, float("inf"), time.monotonic()
    while time.monotonic() - last_news < patience_s:
        progress = read(path, attempt)
        if progress is not None and progress["training_step"] != seen:
            seen, last_news = progress["training_step"], time.monotonic()
            loss = progress["loss"]  # None when the training had none, or when it was NaN
            if loss is not None and loss < best:
                best = loss
                print(f"training step {seen}: best loss so far {best:.5f}", flush=True)
        if progress is not None and progress["done"]:
            print(f"done: best loss {best:.5f} of what was seen, at the end {progress['loss']}", flush=True)
            return
        time.sleep(0.5)
    sys.exit(f"no news of the training for {patience_s:g} s (last training step: {seen})")


def main() -> None:
    parser = argparse.ArgumentParser(description="Follow a training through its progress file.")
    parser.add_argument("--progress", default=os.environ.get("FLEETCTL_PROGRESS_FILE"), help="the progress file")
    parser.add_argument("--patience-s", type=float, default=120.0, help="give up after so long without news")
    options = parser.parse_args()
    if not options.progress:
        parser.error("say --progress FILE, or start it with fleetctl")
    follow(options.progress, os.environ.get("FLEETCTL_ATTEMPT") or None, options.patience_s)


if __name__ == "__main__":
    main()
