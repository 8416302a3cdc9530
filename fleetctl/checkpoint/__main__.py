"""`python -I -m fleetctl.checkpoint`: looks at checkpoints for fleetctl.checkpoint.apart, question by question.

It ends with its stdin. It may hang in the kernel for ever, or die of what it reads: nothing here must be saved.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from msgspec import Struct

from fleetctl.checkpoint.here import Here
from fleetctl.checkpoint.model import one_line
from fleetctl.checkpoint.wire import Answer, Ask, Broken, Pulse, Refused, Verb, read, write
from fleetctl.clock import Clock, SystemClock
from fleetctl.errors import CannotTell

# Of address space. Every reader is bounded far below, and eight threads take some hundred MB of it; a pickle that finds
# a way to grow ends with a MemoryError, and not with the kernel killing what else runs on the node.
_MEMORY_BYTES = 8 << 30
_EVERY_S = 0.25  # a sign of life, and a step of the bar
_BUSY = 0.2  # of the time: a machine may be crowded
_MOST_COMPUTING_S = 600.0  # between two reads; 200 MB of DCP metadata take some 80 s


class Voice:
    """Writes lines; signs of life are put together, since each read gives one."""

    def __init__(self, out: BinaryIO, clock: Clock) -> None:
        self._out, self._clock = out, clock
        self._one_at_a_time = threading.Lock()
        self._untold_bytes, self._told_s = 0, clock.monotonic_s()
        self._read_s = time.process_time()  # of computing, at the last read

    def say(self, value: Struct) -> None:
        with self._one_at_a_time:
            self._out.write(write(value))

    def pulse(self, size_bytes: int | None) -> None:
        """A read of so many bytes; None: only that we live."""
        with self._one_at_a_time:
            if size_bytes is not None:
                self._untold_bytes += size_bytes
                self._read_s = time.process_time()
            now_s = self._clock.monotonic_s()
            if now_s - self._told_s >= _EVERY_S:
                self._out.write(write(Pulse(self._untold_bytes)))
                self._untold_bytes, self._told_s = 0, now_s

    def beat(self) -> None:
        """For a thread of its own: say that we live while we compute, as on a long pickle, though not for ever."""
        while True:
            used_s = time.process_time()
            self._clock.sleep(_EVERY_S)
            with self._one_at_a_time:
                computes = time.process_time() - used_s > _EVERY_S * _BUSY
                allowed = time.process_time() - self._read_s < _MOST_COMPUTING_S
            if computes and allowed:
                self.pulse(None)

    def rest(self) -> None:
        """The bytes that no sign of life has told yet."""
        with self._one_at_a_time:
            if self._untold_bytes:
                self._out.write(write(Pulse(self._untold_bytes)))
            self._untold_bytes = 0


def main() -> None:
    """Answer until nobody asks any more."""
    limit_memory()
    with contextlib.suppress(OSError):  # should the node run out of memory, this is the first to go
        Path("/proc/self/oom_score_adj").write_text("1000")
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever prints cannot be taken for an answer
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the end of whoever asked is ours
    voice = Voice(out, SystemClock())
    threading.Thread(target=voice.beat, daemon=True).start()

    def last_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        import traceback  # ten milliseconds that nobody needs on the way to an answer

        frame = traceback.extract_tb(trace)[-1]
        voice.say(Broken(one_line(f"{kind.__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})")))

    sys.excepthook = last_words
    eyes = Here(voice.pulse)
    for line in sys.stdin.buffer:
        said = answer(eyes, read(line, Ask))
        voice.rest()
        voice.say(said)


def limit_memory() -> None:
    """Never above what the site allows anyway."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(_MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def answer(eyes: Here, ask: Ask) -> Answer | Refused:
    """What the eyes say, errors that belong to the storage included."""
    try:
        return Answer(_look(eyes, ask))
    except CannotTell as error:
        return Refused(error.message, remedy=error.remedy)
    except OSError as error:
        return Refused(error.strerror or str(error), error.errno or 0)


def _look(eyes: Here, ask: Ask) -> Any:
    path = Path(ask.path)
    if ask.verb is Verb.EXAMINE:
        assert ask.entry is not None, "whoever asks for it names one"
        return eyes.examine(path, ask.entry, ask.level, wanted=ask.wanted, ranks=ask.ranks, memory=ask.memory)
    verbs: dict[Verb, Callable[[], Any]] = {
        Verb.KIND: lambda: eyes.kind(path),
        Verb.MAKE: lambda: eyes.make(path),
        Verb.SURVEY: lambda: eyes.survey(path, ask.wanted),
        Verb.SINGLE: lambda: eyes.single(path, ask.kind),
        Verb.NAMES: lambda: eyes.storage.names(path),
        Verb.LISTING: lambda: eyes.storage.listing(path, *ask.inside),
        Verb.LOOK: lambda: eyes.storage.look(path, *ask.inside),
        Verb.LOOK_ALL: lambda: eyes.storage.look_all(path, *ask.inside),
    }
    return verbs[ask.verb]()


if __name__ == "__main__":
    main()
