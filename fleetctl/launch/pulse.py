"""The head's word about its run, RUN/pulse.json: written every few seconds by a thread of its own.

A thread, since the head looks into checkpoints for minutes before a start, and a pulse that stops says that it is gone.
Where the folder cannot be written, or hangs, nothing is told, and the run goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from datetime import datetime
from pathlib import Path
from threading import Event, Lock, Thread

from msgspec import Struct

from fleetctl.errors import FleetctlError
from fleetctl.launch.lead import Lead
from fleetctl.rundir.files import read_json
from fleetctl.rundir.model import AttemptNumber, Progress, attempt_name, attempt_number
from fleetctl.rundir.pulse import MOST_LOSSES, PREPARES, PULSE, Pulse, Silent, pulse_out

_EVERY_S = 5.0
_SAVES_S = 30.0  # how often the saves are read again
_CLOSE_S = 2.0  # that the end of a job waits for the last word


class Seen(Struct, frozen=True):
    """What the head's own loop knows of the attempt. `ranks` None: nobody knows how many there are."""

    phase: str = PREPARES
    training_step: int | None = None
    ranks: int | None = None
    heard: int = 0
    silent: tuple[Silent, ...] = ()
    suspected_at: datetime | None = None
    hung: bool = False


class Pulses:
    """Tells how the run is from `start` to `close`. Only the newest attempt's head is to be heard: once another one
    has told of a newer attempt, this one is silent."""

    def __init__(self, lead: Lead, every_s: float = _EVERY_S) -> None:
        self._lead, self._every_s = lead, every_s
        self._mark = secrets.token_hex(8)  # of what we stage: another head may write at the same time
        self._number: AttemptNumber = (0, 0)
        self._seen = Seen()
        self._lost: tuple[str, ...] = ()
        self._losses: tuple[tuple[int, float | None], ...] = ()
        self._checkpoint_step: int | None = None
        self._events, self._events_bytes = 0, 0
        self._saves_at_s = 0.0
        self._progress: Progress | None = None
        self._lock = Lock()  # over what both threads change
        self._is_last_word = True
        self._ends, self._thread = Event(), Thread(target=self._run, daemon=True)

    @property
    def progress(self) -> Progress | None:
        """What rank 0 of this attempt has last told, some seconds ago at most."""
        return self._progress

    def begin(self, number: AttemptNumber, resume_step: int | None = None) -> None:
        """Attempt `number` is led from now on; nothing of the one before holds for it."""
        with self._lock:
            self._number, self._seen, self._losses, self._progress = number, Seen(), (), None
            self._checkpoint_step, self._saves_at_s = resume_step, 0.0
        if self._thread.ident is None:
            self._thread.start()

    def tell(self, seen: Seen) -> None:
        """What is told from now on."""
        self._seen = seen

    def lose(self, node: str) -> None:
        """A node of the job died."""
        self._lost = tuple(sorted({*self._lost, node}))

    def hush(self) -> None:
        """Another head leads: not a word more."""
        self._is_last_word = False
        self._ends.set()

    def close(self) -> None:
        """This head ends. Its last pulse says so, unless the folder hangs."""
        self._ends.set()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while not self._ends.is_set():
            if not self._write(over=False):
                return
            self._ends.wait(self._every_s)
        if self._is_last_word:
            self._write(over=True)

    def _write(self, *, over: bool) -> bool:
        """False once another head leads."""
        path = self._lead.run.attempts_dir(self._lead.job.task).parent / PULSE
        staged = path.with_name(f".{PULSE}.{self._mark}")
        try:
            told = read_json(str(path))
            newest = attempt_number(str(told.get("attempt"))) if isinstance(told, dict) else None
            if newest is not None and newest > self._number:
                return False
            _replace(path, staged, json.dumps(pulse_out(self._pulse(over=over))) + "\n")
        except (OSError, FleetctlError):  # a full disk, a file server that fails over: the next one may be told
            with contextlib.suppress(OSError):
                os.unlink(staged)
        return True

    def _pulse(self, *, over: bool) -> Pulse:
        lead, job = self._lead, self._lead.job
        with self._lock:
            number, seen = self._number, self._seen
        progress = lead.run.progress(attempt_name(number), job.task)
        step = self._checkpoint(number)
        with self._lock:
            if number == self._number:  # else the next attempt has begun meanwhile
                self._progress = progress if progress is not None and _is_of(progress, number) else None
                self._losses = _with_loss(self._losses, self._progress)
                self._checkpoint_step = max((s for s in (step, self._checkpoint_step) if s is not None), default=None)
            progress, losses, checkpoint_step = self._progress, self._losses, self._checkpoint_step
        return Pulse(
            attempt=attempt_name(number),
            job_id=job.job_id,
            restart_count=job.restart_count,
            host=job.host,
            at=lead.world.clock.now(),
            events=self._count_events(),
            phase=seen.phase,
            training_step=_newest_step(seen, progress),
            progress_at=progress.at if progress is not None else None,
            checkpoint_step=checkpoint_step,
            losses=losses,
            ranks=seen.ranks,
            heard=seen.heard,
            silent=seen.silent,
            suspected_at=seen.suspected_at,
            hung=seen.hung,
            lost_nodes=self._lost,
            over=over,
        )

    def _checkpoint(self, number: AttemptNumber) -> int | None:
        """The newest step that a Checkpointer has committed, as far as it was read just now."""
        now_s = self._lead.world.clock.monotonic_s()
        if now_s < self._saves_at_s:
            return None
        self._saves_at_s = now_s + _SAVES_S
        saves = self._lead.attempts.saves(number)
        return max((save.training_step for save in saves if save.committed), default=None)

    def _count_events(self) -> int:
        """How many this head has written. The file is read only where it has grown."""
        path = self._lead.log.path
        with contextlib.suppress(OSError):  # none yet
            size = os.stat(path).st_size
            if size != self._events_bytes:
                self._events, self._events_bytes = path.read_bytes().count(b"\n"), size
        return self._events


def _is_of(progress: Progress, number: AttemptNumber) -> bool:
    """A process of an older attempt may write its values once more; an old copy of Progress names no attempt."""
    return progress.attempt is None or progress.attempt == attempt_name(number)


def _with_loss(
    losses: tuple[tuple[int, float | None], ...], progress: Progress | None
) -> tuple[tuple[int, float | None], ...]:
    if progress is None or progress.training_step is None or (progress.loss is None and progress.loss_text is None):
        return losses
    if losses and losses[-1][0] == progress.training_step:
        return losses
    return (*losses, (progress.training_step, progress.loss))[-MOST_LOSSES:]


def _newest_step(seen: Seen, progress: Progress | None) -> int | None:
    told = (seen.training_step, progress.training_step if progress is not None else None)
    return max((step for step in told if step is not None), default=None)


def _replace(path: Path, staged: Path, text: str) -> None:
    """Whole or not at all, and not fsynced: resuming never depends on it. Raises OSError."""
    with open(staged, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    os.replace(staged, path)
