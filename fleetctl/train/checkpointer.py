"""Checkpoints of a training: copied in a moment, written in the background, complete or not there at all.

    from fleetctl.train.checkpointer import Checkpointer

    with Checkpointer() as checkpoints:
        loaded = checkpoints.load()
        start = loaded.training_step + 1 if loaded else 1
        for step in range(start, steps + 1):
            ...
            if checkpoints.due(step):
                checkpoints.save(step, {"parameters": parameters, "rng": rng.bit_generator.state})

Standard library only, Python 3.8 and newer: this folder is copied alone into the run directory, maybe for a container.
"""

from __future__ import annotations

import contextlib
import operator
import os
import signal
import time
from typing import Any, Callable, Mapping

from fleetctl.train.attempt import AttemptFolder, Superseded
from fleetctl.train.beats import FIRST_STEP, LOAD, SAVE, START, Beats
from fleetctl.train.commit import Committer
from fleetctl.train.digests import Digest
from fleetctl.train.disk import Disk
from fleetctl.train.loader import CannotLoad, CheckpointDamaged, Loaded, Loader
from fleetctl.train.payload import RawArray
from fleetctl.train.saver import Saver, reason_of
from fleetctl.train.schedule import Schedule
from fleetctl.train.settings import read_settings

__all__ = ["CannotLoad", "CheckpointDamaged", "Checkpointer", "Loaded", "RawArray", "Superseded"]

_FLAG_POLL_S = 0.5  # one stat of a shared file system per half second


class Checkpointer:
    """Saves and loads the state of a training. Use it from one thread, the one that trains.

    A save that fails (disk full, no permission) never stops the training: it is told once on stderr and tried again
    later. Only `Superseded` does: a newer attempt of the run has started, and this process must end.
    """

    def __init__(
        self,
        *,
        directory: str | None = None,
        rank: int | None = None,
        shards: int = 1,
        interval_s: float | None = None,
        every_steps: int | None = None,
        digest: str = "crc32",
        commit_timeout_s: float = 600.0,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        environ: Mapping[str, str] | None = None,
        disk: Disk | None = None,
    ) -> None:
        """`shards` is 1 (rank 0 writes all) or WORLD_SIZE (each rank writes its own). All times are in seconds.

        `directory` counts only without FLEETCTL_CHECKPOINT_DIR; with neither, nothing is saved and rank 0 says so once:
        the same program then runs with and without a `checkpoint` section. Without `interval_s`,
        FLEETCTL_CHECKPOINT_INTERVAL_S and `every_steps`, a save is due every 600 s; with FLEETCTL_CHECKPOINT_MTBF_S
        beside that variable, by what the saves before cost. `digest` is crc32, sha256 or xxh3.
        Rank 0 waits `commit_timeout_s` for the other shards. Raises ValueError.
        """
        env = os.environ if environ is None else environ
        self._settings = read_settings(
            env, directory=directory, rank=rank, shards=shards, interval_s=interval_s, every_steps=every_steps
        )
        Digest(digest)  # an unknown one is told now, not at the first save
        self._monotonic, self._process = monotonic, os.getpid()
        self._attempt = AttemptFolder(
            self._settings.attempt_dir, self._settings.flag, self._settings.attempt, self._settings.rank, clock
        )
        self._beats = Beats(env, self._settings.rank, START)
        committer = Committer(
            self._settings,
            self._attempt,
            digest=digest,
            timeout_s=commit_timeout_s,
            monotonic=monotonic,
            sleep=sleep,
            disk=Disk() if disk is None else disk,
        )
        self._loader = Loader(self._settings, sleep)
        self._saver = Saver(
            committer,
            self._loader,
            self._attempt,
            rank=self._settings.rank,
            restarted=self._settings.restarted,
            monotonic=monotonic,
        )
        self._schedule = Schedule(
            self._settings.interval_s,
            self._settings.every_steps,
            monotonic(),
            retries=self._settings.shards == 1,
            mtbf_s=self._settings.mtbf_s,
        )
        self._saves_of: dict[int, int] = {}  # counted for each step: ranks that once disagreed agree at the next one
        self._next_poll = monotonic()
        self._before_sigterm: Any = None
        self._superseded: Superseded | None = None
        self._told_to_end = self._end_noted = False
        self._request: str | None = None  # the newest id seen
        self._answered: str | None = None  # the newest id that a committed save answered
        if not self._settings.directory and self._settings.rank == 0:
            remedy = "give the spec a `checkpoint` section, or Checkpointer(directory=...)"
            self._saver.warn("directory", f"nothing is saved, since there is no checkpoint directory: {remedy}")

    @property
    def told_to_end(self) -> bool:
        """Whether SIGTERM came since `save_on_sigterm`: save, then end."""
        return self._told_to_end

    def save_on_sigterm(self) -> None:
        """Until the block is left, SIGTERM only makes `due` and `told_to_end` true. Call it in the main thread.

        Forked children, such as data-loader workers, still end by SIGTERM.
        """
        before = signal.signal(signal.SIGTERM, self._note_end)
        if before != self._note_end:
            self._before_sigterm = before

    def load(self) -> Loaded | None:
        """What to resume from; None starts from scratch. Raises CheckpointDamaged with the file, or CannotLoad.

        Waits up to 60 s for a file that is not to be seen here yet.
        """
        path = self._settings.resume_path
        if not self._settings.directory and not path:
            return None
        if not self._settings.by_hand and not path:
            return None
        with self._beats.during(LOAD, FIRST_STEP):
            loaded = self._loader.newest() if self._settings.by_hand else self._load_told(path)
        if loaded is not None:
            self._schedule.loaded(loaded.training_step, self._monotonic())
        return loaded

    def due(self, training_step: int) -> bool:
        """Whether to save now. Cheap: at most one small file access per 0.5 s, and only on rank 0.

        Ranks other than 0 know only about `every_steps`: with more than one shard, broadcast rank 0's answer.
        Raises Superseded.
        """
        self._collect(wait=False)
        if not self._settings.directory:
            return False
        if self._settings.rank != 0:
            return self._schedule.every(training_step)
        now = self._monotonic()
        if now >= self._next_poll:
            self._next_poll = now + _FLAG_POLL_S
            self._poll()
        if self._told_to_end and not self._end_noted:
            self._end_noted = True
            self._schedule.ask()
        return self._schedule.due(training_step, now)

    def save(self, training_step: int, state: Mapping[str, Any], wait: bool = False) -> None:
        """Copy the state, then write it in the background; `wait` returns when it is committed or has failed.

        First waits for the save under way; that wait, if interrupted, is taken up by the next call. `state` maps names
        to NumPy arrays, bytes and JSON values: raises TypeError or ValueError for what would not come back the same,
        and Superseded. A step that this process has committed or loaded already is not written again.
        """
        if os.getpid() != self._process:
            raise RuntimeError("this process was forked from the one that trains: only that one saves")
        if not self._settings.directory:
            return
        with self._beats.during(SAVE):
            self._save(operator.index(training_step), state, wait)

    def _save(self, training_step: int, state: Mapping[str, Any], wait: bool) -> None:
        began = self._monotonic()
        self._collect(wait=True)
        seq = self._saves_of.get(training_step, 0) + 1
        self._saves_of[training_step] = seq
        self._schedule.started(training_step, began)
        if self._settings.rank < self._settings.shards:
            request = self._request if self._request != self._answered else None
            self._saver.start(training_step, self._settings.first_seq + seq, state, request, began, wait)
            self._collect(wait=wait)

    def wait(self) -> None:
        """Until the save under way is committed or has failed. Raises Superseded."""
        with self._beats.during(SAVE):
            self._collect(wait=True)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: object, *_exception: object) -> None:
        try:
            if kind is not None:
                self._saver.hurry()  # the other ranks may be broken off too
            self.wait()
        except Superseded:
            if kind is None:
                raise  # else the exception that is under way says more
        finally:
            self._saver.close()
            self._restore_sigterm()

    def _load_told(self, path: str) -> Loaded:
        record: dict[str, Any] = {"path": path, "training_step": None, "why": None}
        self._tell_load({**record, "state": "loading"})
        try:
            loaded = self._loader.load(path)
        except (CannotLoad, MemoryError) as error:
            # Only what was read and is wrong makes fleetctl mistrust it: a good one must not be passed over.
            state = "failed" if isinstance(error, CheckpointDamaged) else "refused"
            self._tell_load({**record, "state": state, "why": reason_of(error)})
            raise
        self._tell_load({**record, "state": "loaded", "training_step": loaded.training_step})
        return loaded

    def _tell_load(self, record: dict[str, Any]) -> None:
        try:
            self._attempt.tell_load(record)
        except OSError as error:
            self._saver.warn("load.json", f"fleetctl cannot be told of the load ({error}); it goes on")

    def _poll(self) -> None:
        request = self._attempt.request()
        if request is not None and request != self._request:
            self._request = request
            self._schedule.ask()

    def _note_end(self, *_signal: object) -> None:
        if os.getpid() != self._process:  # a forked worker has our handler too, and whoever ends it waits for its end
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        self._told_to_end = True

    def _restore_sigterm(self) -> None:
        if self._before_sigterm is not None and signal.getsignal(signal.SIGTERM) == self._note_end:
            with contextlib.suppress(ValueError):  # this is not the main thread
                signal.signal(signal.SIGTERM, self._before_sigterm)

    def _collect(self, wait: bool) -> None:
        """What the save under way came to, if it is over or we are to wait for it."""
        if self._superseded is not None:
            raise self._superseded
        outcome = self._saver.collect(wait)
        if outcome is None:
            return
        if isinstance(outcome.error, Superseded):
            self._superseded = outcome.error
            raise outcome.error
        if outcome.error is None:
            self._schedule.succeeded(outcome.blocked_s, outcome.total_s)
            self._saver.well("save ")
            self._answered = outcome.request or self._answered
        else:
            wait_s = self._schedule.failed(self._monotonic())
            kind = f"save {type(outcome.error).__name__} {getattr(outcome.error, 'errno', '')}"
            text = f"the checkpoint of step {outcome.training_step} is not written: {reason_of(outcome.error)}"
            again = "the next one is saved when it is due" if wait_s is None else f"the next try is in {wait_s:.0f} s"
            self._saver.warn(kind, f"{text}; the training goes on, {again}")
        self._saver.forget()
