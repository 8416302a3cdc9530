"""One save after another: copied by the training's thread, written and told by another. Python 3.8 and newer."""

from __future__ import annotations

import contextlib
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Mapping, NamedTuple

from fleetctl.train.attempt import AttemptFolder, Superseded
from fleetctl.train.commit import CommitFailed, Committer, Save
from fleetctl.train.loader import Loader
from fleetctl.train.payload import Arena, keep


class Outcome(NamedTuple):
    """How a try ended: None, or OSError, MemoryError, CommitFailed, Superseded. `request` asked for it."""

    training_step: int
    error: Exception | None
    request: str | None


class Saver:
    """Has at most one save under way. What goes wrong in it is an Outcome; a fault of ours is raised."""

    def __init__(
        self, committer: Committer, loader: Loader, attempt: AttemptFolder, rank: int, monotonic: Callable[[], float]
    ) -> None:
        self._committer, self._loader, self._attempt = committer, loader, attempt
        self._rank, self._monotonic = rank, monotonic
        self._arena = Arena()
        self._background = ThreadPoolExecutor(1, "fleetctl-save")
        self._writing: Future[Outcome] | None = None
        self._warned: set[str] = set()

    def start(
        self, training_step: int, seq: int, state: Mapping[str, Any], request: str | None, began: float, wait: bool
    ) -> None:
        """Copy the state and begin to write it; `collect` must have returned what was under way before.

        `began` is when the training called. Raises TypeError or ValueError for what cannot be kept.
        """
        if os.path.exists(self._committer.path(training_step)):
            self._writing = self._background.submit(self._already, training_step, request, began)
            return
        pieces = []
        failed: Exception | None = None
        try:
            pieces = keep(state, self._arena)
        except (OSError, MemoryError) as error:
            failed = error
        blocked_s = None if wait else self._monotonic() - began

        def write() -> Outcome:
            size, error = self._commit(Save(training_step, seq, pieces)) if failed is None else (0, failed)
            self._tell(training_step, error, size, request, began, blocked_s)
            return Outcome(training_step, error, request)

        self._writing = self._background.submit(write)

    def collect(self, wait: bool) -> Outcome | None:
        """How the save under way ended; None if there is none, or if it goes on and we do not `wait`."""
        writing = self._writing
        if writing is None or not (wait or writing.done()):
            return None
        self._writing = None
        return writing.result()

    def warn(self, kind: str, text: str) -> None:
        """Tell on stderr, each kind once."""
        if kind not in self._warned and sys.stderr is not None:
            self._warned.add(kind)
            with contextlib.suppress(OSError, ValueError):  # stderr itself may be full or closed
                print(f"fleetctl: rank {self._rank}: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """After `collect`."""
        self._background.shutdown()

    def _commit(self, save: Save) -> tuple[int, Exception | None]:
        try:
            return self._committer.commit(save), None
        except (OSError, MemoryError, CommitFailed, Superseded) as error:
            return 0, error

    def _already(self, training_step: int, request: str | None, began: float) -> Outcome:
        """A committed checkpoint of this attempt and step stands: nothing to write, but a request has its answer."""
        path = self._committer.path(training_step)
        error = None if self._loader.is_whole(path) else CommitFailed(f"{path} is there and damaged: move it away")
        if request is not None or error is not None:
            self._tell(training_step, error, 0, request, began, 0.0)
        return Outcome(training_step, error, request)

    def _tell(
        self,
        training_step: int,
        error: Exception | None,
        size: int,
        request: str | None,
        began: float,
        blocked_s: float | None,
    ) -> None:
        if self._rank != 0:
            return
        total_s = self._monotonic() - began
        record: dict[str, Any] = {
            "training_step": training_step,
            "name": os.path.basename(self._committer.path(training_step)),
            "state": "committed" if error is None else "failed",
            "why": None if error is None else reason_of(error),
            "blocked_s": round(total_s if blocked_s is None else blocked_s, 6),
            "total_s": round(total_s, 6),
            "bytes": size,
            "flag": request,
        }
        try:
            self._attempt.tell_save(record)
        except OSError as told:
            self.warn("saves.jsonl", f"fleetctl cannot be told of saves ({told}); they go on")


def reason_of(error: Exception) -> str:
    """One line, never empty."""
    return str(error) or ("out of memory" if isinstance(error, MemoryError) else type(error).__name__)
