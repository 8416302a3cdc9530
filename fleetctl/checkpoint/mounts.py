"""Which file system a folder is on, and whether that may show what another host has written only after a while."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")

# Those of one host show each write at once. So do Lustre, GPFS and CephFS, whose clients hold locks or capabilities.
# NFS does not (nfs(5), acdirmax: 60 s), nor SMB; of FUSE and what is not listed here nothing is known.
_SHOWS_AT_ONCE = frozenset(
    (
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs"),
        *("tmpfs", "ramfs", "overlay", "squashfs"),
        *("lustre", "gpfs", "ceph"),
    )
)


class Mount(Struct, frozen=True):
    """One line of mountinfo."""

    place: str
    fstype: str


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """proc(5), /proc/PID/mountinfo; lines that say something else are left out."""
    found = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        words = before.split(" ")
        if dash and len(words) >= 5 and after:
            place = _OCTAL.sub(lambda match: chr(int(match[1], 8)), words[4])
            found.append(Mount(place, after.split(" ")[0]))
    return tuple(found)


def fstype_at(mounts: Sequence[Mount], path: str) -> str | None:
    """The file system of an absolute path without links: of the innermost mount, and there of the newest."""
    parents = {path, *(str(parent) for parent in Path(path).parents)}
    above = [mount for mount in mounts if mount.place in parents]
    if not above:
        return None
    deepest = max(len(mount.place) for mount in above)
    return [mount for mount in above if len(mount.place) == deepest][-1].fstype


def shows_late(directory: Path) -> bool:
    """Whether what another host wrote may be seen only after a while: also where that cannot be told."""
    try:
        mounts = parse_mounts(_MOUNTS.read_text(errors="surrogateescape"))
        fstype = fstype_at(mounts, os.path.realpath(directory))
    except OSError:
        return True
    return fstype not in _SHOWS_AT_ONCE
