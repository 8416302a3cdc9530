"""One save at a time: the copy in the training's thread, the rest beside it. Python 3.8 and newer."""

from __future__ import annotations

import atexit
import os
import threading
from concurrent.futures import Future
from typing import Any, Callable, Mapping, NamedTuple

from fleetctl.train.attempt import AttemptFolder
from fleetctl.train.commit import Committer, Save
from fleetctl.train.loader import Loader, tell
from fleetctl.train.payload import Arena, keep
from fleetctl.train.places import CommitFailed


class Outcome(NamedTuple):
    """How a try ended: `error` is None, Superseded, or why it failed. `request` asked for it. `blocked_s` is what the
    training waited, None if nothing was written; `total_s` until it was on disk."""

    training_step: int
    error: Exception | None
    request: str | None
    blocked_s: float | None = None
    total_s: float = 0.0


class _Try(NamedTuple):
    training_step: int
    request: str | None
    began: float
    blocked_s: float | None  # None: as long as it takes


class Saver:
    """Has at most one save under way. What goes wrong in it is an Outcome, whatever it is: it never stops a training.

    Its thread is a daemon, so that nothing but `collect` and the end of the program waits for it.
    """

    def __init__(
        self,
        committer: Committer,
        loader: Loader,
        attempt: AttemptFolder,
        *,
        rank: int,
        restarted: bool,
        monotonic: Callable[[], float],
    ) -> None:
        self._committer, self._loader, self._attempt = committer, loader, attempt
        self._rank, self._restarted, self._monotonic = rank, restarted, monotonic
        self._arena, self._process = Arena(), os.getpid()
        self._writing: Future[Outcome] | None = None
        self._warned: set[str] = set()
        self._waits_at_exit = False
        self._one_at_a_time = threading.Lock()

    def start(
        self, training_step: int, seq: int, state: Mapping[str, Any], request: str | None, began: float, wait: bool
    ) -> None:
        """Copy the state and begin to write it; `collect` must have returned what was under way before.

        `began` is when the training called. Raises TypeError or ValueError for what cannot be kept.
        """
        if os.path.exists(self._committer.path(training_step)):
            attempt = _Try(training_step, request, began, 0.0)
            self._begin(attempt, lambda: self._already(attempt))
            return
        # Taken away while it is in use: the next save gets other memory even if an interrupt made us forget this one.
        arena, self._arena = self._arena, Arena()
        pieces = []
        failed: Exception | None = None
        try:
            pieces = keep(state, arena)
        except (OSError, MemoryError) as error:
            failed = error
        except BaseException:
            self._arena = arena
            raise
        attempt = _Try(training_step, request, began, None if wait else self._monotonic() - began)

        def write() -> Outcome:
            size, error = self._commit(Save(training_step, seq, pieces)) if failed is None else (0, failed)
            self._arena = arena
            return self._ended(attempt, error, size)

        self._begin(attempt, write)

    def collect(self, wait: bool) -> Outcome | None:
        """How the save under way ended, until it is forgotten; None if there is none, or it goes on and we do not
        `wait`. What interrupts the wait leaves it as it is."""
        writing = self._writing
        if writing is None or not (wait or writing.done()):
            return None
        return writing.result()

    def forget(self) -> None:
        """The outcome that `collect` gave was used."""
        self._writing = None

    def warn(self, kind: str, text: str) -> None:
        """Tell on stderr, each kind once until it went `well` in between."""
        if kind not in self._warned:
            self._warned.add(kind)
            tell(self._rank, text)

    def well(self, kinds: str) -> None:
        """What begins like this works again."""
        self._warned -= {kind for kind in self._warned if kind.startswith(kinds)}

    def hurry(self) -> None:
        """The training has broken off: the save under way waits only a moment more for other ranks."""
        self._committer.hurry()

    def close(self) -> None:
        """Nobody waits any more, not for what an interrupt left under way either."""
        atexit.unregister(self._wait_at_exit)
        self._waits_at_exit = False

    def _begin(self, attempt: _Try, work: Callable[[], Outcome]) -> None:
        writing: Future[Outcome] = Future()

        def run() -> None:
            if not writing.set_running_or_notify_cancel():
                return  # we were interrupted before we started, or so it seemed
            try:
                with self._one_at_a_time:
                    writing.set_result(work())
            except BaseException as error:  # noqa: BLE001 - whoever collects gets it
                writing.set_exception(error)

        if not self._waits_at_exit:
            self._waits_at_exit = True
            atexit.register(self._wait_at_exit)
        try:
            self._writing = writing  # before the thread starts: an interrupt then forgets nothing
            threading.Thread(target=run, name="fleetctl-save", daemon=True).start()
        except Exception as error:  # noqa: BLE001 - such as "can't start new thread"
            if writing.cancel():
                self._writing = Future()
                self._writing.set_result(self._ended(attempt, error, 0))
        except BaseException:
            if writing.cancel():
                self._writing = None
            raise

    def _wait_at_exit(self) -> None:
        """A program that ends without leaving the block still gets its last save."""
        if os.getpid() == self._process and self._writing is not None:
            self._writing.exception()

    def _commit(self, save: Save) -> tuple[int, Exception | None]:
        try:
            return self._committer.commit(save), None
        except Exception as error:  # noqa: BLE001 - no fault of a save, ours included, is worth a training
            return 0, error

    def _already(self, attempt: _Try) -> Outcome:
        """A checkpoint of this attempt and step stands: if it is this training's, there is nothing to write, but a
        request has its answer. torchrun's new ranks go on from older ones of their own attempt, and come by again."""
        path = self._committer.path(attempt.training_step)
        ours = self._restarted or self._committer.is_ours(attempt.training_step) or self._loader.has_loaded(path)
        error: Exception | None = None
        if not ours:
            error = CommitFailed(f"{path} stands from an earlier process: move it away")
        elif self._rank == 0 and not self._loader.is_whole(path):
            error = CommitFailed(f"{path} is there and damaged: move it away")
        elif self._rank == 0:
            try:
                self._committer.sync()  # the try that renamed it may have failed of this
            except OSError as failed:
                error = failed
        if attempt.request is None and error is None:
            return Outcome(attempt.training_step, None, None)
        return self._ended(attempt, error, 0)

    def _ended(self, attempt: _Try, error: Exception | None, size: int) -> Outcome:
        """The outcome, told to fleetctl."""
        total_s = self._monotonic() - attempt.began
        blocked_s = total_s if attempt.blocked_s is None else attempt.blocked_s
        outcome = Outcome(attempt.training_step, error, attempt.request, blocked_s if size else None, total_s)
        if self._rank != 0:
            return outcome
        record: dict[str, Any] = {
            "training_step": attempt.training_step,
            "name": os.path.basename(self._committer.path(attempt.training_step)),
            "state": "committed" if error is None else "failed",
            "why": None if error is None else reason_of(error),
            "blocked_s": round(blocked_s, 6),
            "total_s": round(total_s, 6),
            "bytes": size,
            "flag": attempt.request,
        }
        try:
            self._attempt.tell_save(record)
            self.well("saves.jsonl")
        except (OSError, ValueError) as told:
            self.warn("saves.jsonl", f"fleetctl cannot be told of saves ({told}); they go on")
        return outcome


def reason_of(error: Exception) -> str:
    """One line, never empty."""
    return " ".join(str(error).split()) or ("out of memory" if isinstance(error, MemoryError) else type(error).__name__)
