"""Which file system a folder is on, as the kernel tells it without asking that file system, which may hang."""

from __future__ import annotations

import re
from typing import Dict, Mapping, Optional

from fleetctl.health.process_table import read_bytes
from fleetctl.health.record import NamedTuple

# What no other machine writes to, so that the processes of this one are all that can use its files.
LOCAL = frozenset(("tmpfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "overlay", "zfs", "f2fs"))
_MOST_BYTES = 4 << 20  # a node full of containers has thousands of mounts of some 200 bytes
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")  # blanks and backslashes in a name, proc_pid_mountinfo(5)


class Mounted(NamedTuple):
    """Where it is mounted, and the kernel's name for its kind."""

    point: str
    kind: str


def mounted(proc: str) -> Dict[str, Mounted]:
    """Everything mounted here, by mount id; of several on one place the last is the one in use. Empty: not readable."""
    found = {}
    for line in (read_bytes(f"{proc}/self/mountinfo", _MOST_BYTES) or b"").split(b"\n"):
        words, _, rest = line.partition(b" - ")
        left, right = words.split(b" "), rest.split(b" ")
        if len(left) >= 6 and right[0]:
            point = _ESCAPED.sub(lambda code: bytes((int(code[1], 8),)), left[4])
            found[left[0].decode("ascii", "replace")] = Mounted(
                point.decode("utf-8", "surrogateescape"), right[0].decode("ascii", "replace")
            )
    return found


def kind_at(path: str, systems: Mapping[str, Mounted]) -> Optional[str]:
    """The kind of the file system that this absolute path is on if no part of it is a link; None: not known."""
    kind, depth = None, -1
    for one in systems.values():
        above = one.point.rstrip("/")
        if len(above) >= depth and (path == above or path.startswith(above + "/")):
            kind, depth = one.kind, len(above)
    return kind


def kind_of(handle: int, systems: Mapping[str, Mounted]) -> Optional[str]:
    """The kind of the file system that this descriptor is on; None: not known."""
    found = systems.get(mount_id(handle) or "")
    return None if found is None else found.kind


def mount_id(handle: int) -> Optional[str]:
    """Which mount a descriptor is on: a bind mount of the same file system has the same device."""
    info = read_bytes(f"/proc/self/fdinfo/{handle}", 4096) or b""
    lines = (line.partition(b":") for line in info.split(b"\n"))
    return next((value.strip().decode("ascii", "replace") for key, _, value in lines if key == b"mnt_id"), None)
