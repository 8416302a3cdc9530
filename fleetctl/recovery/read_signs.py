"""Signs of a training whose head is silent: when it last wrote anything, and whether its file system takes more.

All of it may be the work of the run's user: nothing is opened, and what is no plain file of the owner is no sign.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from fleetctl.health.store import Foreign
from fleetctl.recovery.bounded import below, stat_of
from fleetctl.rundir.model import attempt_number
from fleetctl.rundir.pulse import Pulse

_FILES = ("progress.json", "saves.jsonl", "output.log")  # of the training and its steps, not of the head
_FULL_BYTES = 1 << 20  # what heads and trainings write is small, and a few kilobytes more may not fit
_FULL_INODES = 16
_S_PER_NS = 1e-9


def moved(here: int, pulses: Sequence[tuple[int | None, Pulse]], uid: int) -> Iterator[tuple[int | None, datetime]]:
    """When the attempt that each head spoke of last wrote something, by the file system's clock."""
    for task, pulse in pulses:
        inside = () if task is None else ("tasks", str(task))
        if attempt_number(pulse.attempt) is None:
            continue
        try:
            with below(here, (*inside, "attempts", pulse.attempt)) as there:
                yield task, datetime.fromtimestamp(max(_written_ns(there, uid)) * _S_PER_NS, UTC)
        except (OSError, ValueError, OverflowError, Foreign):
            continue  # not known


def _written_ns(there: int, uid: int) -> list[int]:
    found = [one for name in _FILES if (one := stat_of(there, name)) is not None]
    return [one.st_mtime_ns for one in found if stat.S_ISREG(one.st_mode) and one.st_uid == uid and one.st_size]


def is_full(here: int) -> bool | None:
    """Whether the file system of the folder has hardly any bytes or files left for its users. A quota is not seen."""
    try:
        found = os.fstatvfs(here)
    except OSError:
        return None
    inodes = found.f_files > 0 and found.f_favail < _FULL_INODES  # some file systems count none
    return inodes or found.f_bavail * found.f_frsize < _FULL_BYTES
