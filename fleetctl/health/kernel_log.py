"""The kernel log, read from where the last look ended (Documentation/ABI/testing/dev-kmsg), storms folded.

/var/log is never read: anyone can write there with logger(1). A record of /dev/kmsg that a program wrote cannot carry
facility 0, so only those of the kernel itself count.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from itertools import repeat
from typing import Callable, Optional, Tuple

from fleetctl.health.kernel_collect import Collected
from fleetctl.health.model import Event

_CHUNK_BYTES = 65536
# /dev/kmsg hands out one record a read and refuses a buffer that is too small for it (CONSOLE_EXT_LOG_MAX).
_RECORD_BYTES = 8192
_AT_ONCE = 4096  # records discarded between two looks at the clock: some milliseconds
# One look ends after so much, and the next one goes on there. A ring buffer has 16 MiB at most in practice.
MOST_BYTES = 512 * 1024 * 1024
MOST_SECONDS = 3.0
# More, where all that time went into passing what was read before: the look must get beyond it to be of use.
_GRACE_S = 0.5


def read_kernel_log(
    path: str,
    after: Optional[int],
    most: int,
    within_s: float = MOST_SECONDS,
    monotonic: Callable[[], float] = time.monotonic,
) -> Tuple[Tuple[Event, ...], Optional[int]]:
    """The faults logged since record `after` (None: since boot), at most `most`, and the number of the last record.

    Reads what is there and waits for nothing: /dev/kmsg, a plain file or a FIFO in its form. A log that ends below
    `after` is another boot's, and is read from its start. Where the time is over before the log, an event of the kind
    LOST says so. Raises OSError: the log cannot be read at all.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except ValueError as error:  # a NUL in a name from a site file
        raise OSError(errno.EINVAL, str(error), path) from None
    try:
        return _read_all(descriptor, after, most, monotonic, within_s)
    finally:
        os.close(descriptor)


def _read_all(
    descriptor: int, after: Optional[int], most: int, monotonic: Callable[[], float], within_s: float
) -> Tuple[Tuple[Event, ...], Optional[int]]:
    until_s = monotonic() + within_s
    log = Collected(after, most)
    unread = _read(descriptor, log, monotonic, until_s)
    if not unread and log.is_of_another_boot() and _rewind(descriptor):
        log = Collected(None, most)
        unread = _read(descriptor, log, monotonic, until_s)
    if unread:
        log.unread(unread, monotonic())
    return log.events(), log.last


def _rewind(descriptor: int) -> bool:
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:  # a FIFO
        return False
    return True


def _read(descriptor: int, log: Collected, monotonic: Callable[[], float], until_s: float) -> str:
    """Give the lines to `log`. Returns why the end was not reached; raises OSError where nothing new was read."""
    one_by_one = stat.S_ISCHR(os.fstat(descriptor).st_mode)
    left = MOST_BYTES
    begun = b""  # a line whose end was not read yet: at the end of a file it is still being written
    while left > 0:
        now_s = monotonic()
        if now_s >= until_s and (log.has_new() or now_s >= until_s + _GRACE_S):
            return "time ran out"
        try:
            data = _more(descriptor, log, one_by_one)
        except OSError as error:
            if not log.has_new():
                raise
            return error.strerror or str(error)
        if data is None:
            continue
        if not data:
            return ""
        *lines, begun = (begun + data).split(b"\n")
        begun = begun[:_CHUNK_BYTES]  # what has no end is cut, not kept
        if one_by_one or not log.knows(lines):
            left -= len(data)
            log.add_all(lines)
    return "it is too long"


def _more(descriptor: int, log: Collected, one_by_one: bool) -> Optional[bytes]:
    """The next part of the log; empty: there is none; None: there may be, and nothing came this time."""
    try:
        if one_by_one and log.old_ones() > 0:
            _discard(descriptor, log)
            return None
        return os.read(descriptor, _CHUNK_BYTES)
    except BlockingIOError:  # EAGAIN: that was the last record
        return b""
    except BrokenPipeError:  # EPIPE: the next records were overwritten meanwhile
        log.overwritten()
        return None


def _discard(descriptor: int, log: Collected) -> None:
    """Pass by what was read before, unparsed: the device numbers its records without gaps, and says EPIPE at one."""
    count = min(log.old_ones(), _AT_ONCE)
    read = os.read
    for _ in repeat(None, count):
        read(descriptor, _RECORD_BYTES)
    log.passed(count)
