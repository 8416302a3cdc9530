"""`python -I -m fleetctl.recovery.reader`: reads folders for the daemon (mounts.py), question by question.

It ends with its stdin. It may hang in the kernel for ever, or die of what it reads: nothing here must be saved.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Iterator

from msgspec import Struct

from fleetctl.recovery.bounded import words_of
from fleetctl.recovery.read_findings import read_findings
from fleetctl.recovery.read_run import read_log, read_run
from fleetctl.recovery.read_wire import (
    Ask,
    AskFindings,
    AskLog,
    AskRun,
    Failed,
    Frames,
    ToldRun,
    ToldRuns,
    ask_in,
    frame,
)
from fleetctl.rundir.model import RUN_ID

_MEMORY_BYTES = 2 << 30  # of address space: 16 MiB of events take ten times the memory
_CHUNK_BYTES = 1 << 16
_MOST_RUNS = 1_000_000


def answers(ask: Ask) -> Iterator[Struct]:
    """What is answered. Never raises for what lies there."""
    try:
        match ask:
            case AskRun():
                yield read_run(ask)
            case AskLog():
                yield read_log(ask)
            case AskFindings():
                yield from read_findings(ask)
            case _:
                yield ToldRuns(run_names(ask.path))
    except Exception as error:  # noqa: BLE001 - whatever lies there, the others' questions are answered
        yield Failed(words_of(error))


def run_names(root: bytes) -> tuple[str, ...]:
    """The folders that have a run's name.

    :raises OSError: it is not there, or cannot be read.
    """
    with os.scandir(root) as entries:
        names = ((os.fsdecode(entry.name), entry) for entry in entries)
        found = [name for name, entry in names if RUN_ID.fullmatch(name) and entry.is_dir(follow_symlinks=False)]
    return tuple(sorted(found)[:_MOST_RUNS])


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    os.chdir("/")
    frames = Frames()
    while data := os.read(sys.stdin.fileno(), _CHUNK_BYTES):
        for one in frames.feed(data):
            for told in answers(ask_in(one)):
                _say(told)
    return 0


def packed(told: Struct) -> bytes:
    """The answer as it goes over the wire; what cannot is told as trouble."""
    try:
        return frame(told)
    except Exception as error:  # noqa: BLE001 - half a character, a number of a hundred digits, too much of anything
        why = f"it cannot be told: {words_of(error)}"
        return frame(ToldRun(told.path, trouble=why) if isinstance(told, ToldRun) else Failed(why))


def _say(told: Struct) -> None:
    rest = memoryview(packed(told))
    while rest:
        rest = rest[os.write(sys.stdout.fileno(), rest) :]


if __name__ == "__main__":
    sys.exit(main())
