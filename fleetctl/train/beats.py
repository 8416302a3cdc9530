"""Signs of life of one rank, for the agent of its node: one small file in memory, FLEETCTL_BEATS/rank-N.

A beat is one line, written over the one before in one call (some microseconds):

    fleetctl-beat 1 STAMP PID WORLD PHASE STEP STAMP

STAMP is a clock of this host in nanoseconds, of use only to see that it changed; a line whose two stamps differ was
read while it was written. WORLD is the number of ranks, STEP the newest training step, each `-` where it is not known.
Nothing here ever fails a training. Standard library only, Python 3.8 and newer.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import Any, Iterator, Mapping

START, FIRST_STEP, STEP = "start", "first_step", "step"
SAVE, LOAD, EVALUATION, END = "save", "load", "evaluation", "end"
UNTOLD = "untold"  # what follows is not known
_OWN = (START, FIRST_STEP, STEP, SAVE, LOAD, END)
_BYTES = 160  # a line, padded: never longer, so one write and one read are all of it
_LINE = b"fleetctl-beat 1 %d %d %b %b %b %d"
_MOST_RANK = 10_000_000
_CHECK_NS = 5_000_000_000  # how often to see whether the file is still there
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


class Beats:
    """The beats of this process as rank `rank`; without FLEETCTL_BEATS none. Only the process that made it beats, so
    its forked children, such as data-loader workers, do not. Several of one process share the file and what it says.
    """

    def __init__(self, env: Mapping[str, str], rank: int, phase: str) -> None:
        """`phase` is where the training is now."""
        self._process, self._file, self._checked_ns = os.getpid(), -1, time.monotonic_ns()
        self._world = _world_in(env)
        folder = env.get("FLEETCTL_BEATS", "")
        self._folder, self._rank = folder, rank
        if folder and 0 <= rank < _MOST_RANK:
            with contextlib.suppress(OSError, ValueError):  # no memory, another user's folder: nobody hears us then
                self._file = _opened(folder, rank)
        self.move(self._said()[0] if phase == START else phase)  # Progress may have begun before the Checkpointer

    def step(self, training_step: Any) -> None:
        """A training step was done."""
        if self._file >= 0:
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                self._write(STEP, int(training_step))

    def move(self, phase: str) -> None:
        """The training is in this phase from now on."""
        if self._file >= 0:
            self._write(phase, self._said()[1])

    @contextlib.contextmanager
    def during(self, phase: str, after: str | None = None) -> Iterator[None]:
        """In this phase within the block; after it in the one before, or in `after`."""
        phase = phase if phase in _OWN else EVALUATION  # whatever its user calls what takes its time
        if self._file < 0:
            yield
            return
        before, step = self._said()
        after = after or before
        if phase == LOAD and before == START:
            after = UNTOLD  # Progress says what follows, if there is one
        self._write(phase, step)
        try:
            yield
        finally:
            self._write(after, self._said()[1])

    def _said(self) -> tuple[str, int | None]:
        """Phase and step of the newest beat of this process, whichever part of it wrote it."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = os.pread(self._file, _BYTES, 0).split()
            if int(words[3]) == self._process:
                return words[5].decode("ascii"), None if words[6] == b"-" else int(words[6])
        return START, None

    def _write(self, phase: str, step: int | None) -> None:
        if self._file < 0 or os.getpid() != self._process:
            return
        stamp, step_word = time.monotonic_ns(), b"-" if step is None else b"%d" % step
        line = _LINE % (stamp, self._process, self._world, phase.encode("ascii"), step_word[:20], stamp)
        with contextlib.suppress(OSError):  # no memory: this beat is not heard
            if stamp - self._checked_ns > _CHECK_NS:
                self._checked_ns = stamp
                self._come_back()
            os.pwrite(self._file, line.ljust(_BYTES - 1) + b"\n", 0)

    def _come_back(self) -> None:
        """Who clears a user's memory at its logout (systemd's RemoveIPC) takes the file of a training that goes on."""
        if os.fstat(self._file).st_nlink == 0:
            before, self._file = self._file, _opened(self._folder, self._rank)
            os.close(before)

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            with contextlib.suppress(OSError, TypeError):  # the interpreter ends
                os.close(self._file)
            self._file = -1


def _opened(folder: str, rank: int) -> int:
    """The rank's file, in a folder of our own: whoever comes first on this node makes it. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise OSError(f"{folder} is not ours")
    return os.open(os.path.join(folder, f"rank-{rank}"), _FLAGS, 0o600)


def _world_in(env: Mapping[str, str]) -> bytes:
    for name in ("WORLD_SIZE", "SLURM_NTASKS"):
        if env.get(name, "").isdecimal() and len(env[name]) <= 8:
            return b"%d" % int(env[name])
    return b"-"
