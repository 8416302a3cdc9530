"""Progress of a training run, told to fleetctl through one small JSON file.

    from fleetctl.train.progress import Progress

    with Progress() as progress:
        progress.update(training_step=120, target_step=200, loss=0.31, samples_per_s=812.0)
        progress.update(training_step=200, loss=0.12, done=True)

Standard library only, Python 3.8 and newer: this folder is copied alone into the run directory, maybe for a container.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
from datetime import datetime, timezone
from typing import Any, Callable, ContextManager, Mapping

from fleetctl.train.beats import END, FIRST_STEP, Beats

SCHEMA = 1


class Progress:
    """Writes the newest values of rank 0 to `FLEETCTL_PROGRESS_FILE`, and lets the node's agent see that this rank
    lives (beats.py); where fleetctl names no such place, does nothing. Use it on all ranks.

    The file is always one complete JSON object: it is written beside and renamed over. It is not fsynced: resuming
    never depends on it, and an fsync each second on a busy shared file system would make rank 0, and so every rank,
    wait. After a power cut it may be old or empty: a reader takes that for "unknown". No thread is started: a value
    that came too soon waits for the next `update` or `close`. A failed write never stops the training: it is tried
    again later, at growing distances, and told once on stderr.
    """

    def __init__(
        self,
        *,
        rank: int | None = None,
        min_interval_s: float = 1.0,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`rank` is the global rank, by default RANK, else SLURM_PROCID, else 0. Both clocks count seconds."""
        env = os.environ if environ is None else environ
        rank = _rank_in(env) if rank is None else rank
        self._path = env.get("FLEETCTL_PROGRESS_FILE", "") if rank == 0 else ""
        self._attempt = env.get("FLEETCTL_ATTEMPT") or None
        self._beats = Beats(env, rank, FIRST_STEP)
        self._min_interval_s = min_interval_s
        self._clock, self._monotonic = clock, monotonic
        # A name of our own: a late process of an older attempt must not write into the file that we rename.
        self._beside = f"{self._path}.{os.urandom(4).hex()}.tmp"
        self._pending: dict[str, Any] | None = None
        self._target: int | None = None
        self._first: tuple[int, str] | None = None  # training step and time of this process's first update
        self._not_before = -math.inf  # on the monotonic clock
        self._failures, self._warned = 0, False  # failures in a row
        self._writing = threading.Lock()

    def update(
        self, *, training_step: int, loss: Any = None, target_step: int | None = None, done: bool = False, **more: Any
    ) -> None:
        """Tell where the training is, in optimizer steps; `target_step` is remembered, `more` are numbers.

        Written at most once every `min_interval_s`, but always the first time and with `done=True`, which says that
        nothing is left to train (leaving the `with` block does not: a training also leaves it to be resumed).
        """
        self._beats.step(training_step)
        if not self._path:
            return
        self._target = self._target if target_step is None else int(target_step)
        self._pending = self._record(int(training_step), loss, done, more)
        if done or self._monotonic() >= self._not_before:
            self._write()

    def phase(self, name: str) -> ContextManager[None]:
        """A block in which no training step is made, such as `with progress.phase("evaluation"):`.

        So a silence of this rank is no hang. `name` is evaluation, save, load, or first_step for what compiles again;
        any other one counts as evaluation.
        """
        return self._beats.during(name)

    def close(self) -> None:
        """Write what still waits, now. May be called again, and from a signal handler."""
        if self._pending is not None:
            self._write()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._beats.move(END)
        self.close()

    def _record(self, step: int, loss: Any, done: bool, more: Mapping[str, Any]) -> dict[str, Any]:
        at = datetime.fromtimestamp(self._clock(), timezone.utc).isoformat(timespec="milliseconds")
        self._first = self._first or (step, at)
        record: dict[str, Any] = {"schema": SCHEMA, "attempt": self._attempt, "training_step": step}
        record.update(first_step=self._first[0], first_time=self._first[1])
        record.update(target_step=self._target, loss=None, time=at, done=done, metrics={})
        if loss is not None:
            record["loss"], text = _number(loss)
            record.update({} if text is None else {"loss_text": text})
        for name, value in more.items():
            record["metrics"][name], text = _number(value)
            if text is not None:
                record.setdefault("metrics_text", {})[name] = text
        return record

    def _write(self) -> None:
        if not self._writing.acquire(blocking=False):
            return  # a signal handler interrupted our own write; what is pending stays pending
        try:
            record = self._pending
            if record is None:
                return  # a signal handler's `close` was quicker
            self._replace_file(json.dumps(record, allow_nan=False) + "\n")
            if self._pending is record:
                self._pending = None
            self._failures = 0
            self._not_before = self._monotonic() + self._min_interval_s
        except OSError as error:
            self._failures = min(self._failures + 1, 6)
            self._not_before = self._monotonic() + max(self._min_interval_s, 2.0**self._failures)  # at most 64 s
            self._warn_once(error)
        finally:
            self._writing.release()

    def _replace_file(self, text: str) -> None:
        try:
            with open(self._beside, "w", encoding="ascii") as file:
                file.write(text)
            os.replace(self._beside, self._path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(self._beside)
            raise

    def _warn_once(self, error: OSError) -> None:
        if not self._warned and sys.stderr is not None:
            self._warned = True
            with contextlib.suppress(OSError, ValueError):  # stderr itself may be full or closed
                print(f"fleetctl: progress is not written ({error}); the training goes on", file=sys.stderr, flush=True)


def _rank_in(env: Mapping[str, str]) -> int:
    for name in ("RANK", "SLURM_PROCID"):
        with contextlib.suppress(ValueError):
            return int(env.get(name, ""))
    return 0


def _number(value: Any) -> tuple[float | None, str | None]:
    """The number that JSON can hold, else None and a short text: NaN, infinities, and what is no number at all."""
    try:
        number = int(value) if isinstance(value, int) and abs(value) < 2**63 else float(value)
    except (TypeError, ValueError, OverflowError):
        return None, f"not a number: {type(value).__name__}"
    return (number, None) if math.isfinite(number) else (None, str(number))
