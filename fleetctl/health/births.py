"""When inodes were made, by statx(2): the one date of a file that its owner cannot set."""

from __future__ import annotations

import os
import struct
from typing import Callable, Optional

_AT_SYMLINK_NOFOLLOW = 0x100  # linux/fcntl.h
_STATX_BTIME = 0x800  # linux/stat.h
_STATX = struct.Struct("=I76xqI")  # stx_mask at 0, stx_btime at 80

# (descriptor of a folder, name in it) -> seconds since the epoch; None: not known.
Born = Callable[[int, str], Optional[float]]


def births() -> Born:
    """A function that tells when the inode of a name in a folder was made, by statx (Python has it from 3.15 on).

    It answers None where the file system keeps no birth (tmpfs before Linux 6.1), or the C library has no statx.
    """
    import ctypes  # 10 ms, and only if there is something to remove

    statx = getattr(ctypes.CDLL(None), "statx", None)
    if statx is None:
        return lambda folder, name: None
    buffer = ctypes.create_string_buffer(256)  # struct statx, linux/stat.h

    def born(folder: int, name: str) -> Optional[float]:
        if statx(folder, os.fsencode(name), _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, buffer) != 0:
            return None
        mask, seconds, nanoseconds = _STATX.unpack_from(buffer)
        return seconds + nanoseconds / 1e9 if mask & _STATX_BTIME else None

    return born
