"""File systems that a node should have mounted. Reading a dead one can hang for ever: only in a child of its own."""

from __future__ import annotations

import os
from typing import Dict, Optional, Sequence, Tuple

from fleetctl.health.files import read_bytes
from fleetctl.health.model import Mount

# A node full of containers has thousands of mounts of some 200 bytes.
_MOST_BYTES = 4 * 1024 * 1024
# fstab(5): what getmntent(3) escapes.
_ESCAPES = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


def read_mounts(paths: Sequence[str], proc: str) -> Tuple[Mount, ...]:
    """The state of each path that should be a mount point, in the order given."""
    options = _options(proc)
    return tuple(_mount(path, options) for path in paths)


def _options(proc: str) -> Optional[Dict[str, Tuple[str, ...]]]:
    """Mount point -> its options, from proc_pid_mounts(5); of several on one place the last is the one in use."""
    data = read_bytes(proc + "/mounts", _MOST_BYTES)
    if data is None:
        return None
    found: Dict[str, Tuple[str, ...]] = {}
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        words = line.split(" ")
        if len(words) >= 4:
            found[_unescape(words[1])] = tuple(words[3].split(","))
    return found


def _unescape(text: str) -> str:
    for code, character in _ESCAPES:
        text = text.replace(code, character)
    return text


def _mount(path: str, options: Optional[Dict[str, Tuple[str, ...]]]) -> Mount:
    if not path.startswith("/"):
        return Mount(path, "failed", "not an absolute path")
    try:
        place = os.path.normpath(path)
        if options is not None and place not in options:
            place = os.path.realpath(path)  # `/scratch` is often a link
        if options is not None and place not in options:
            return Mount(path, "missing", "not mounted")
        found = os.statvfs(place)
    except FileNotFoundError:
        return Mount(path, "missing", "there is no such folder")
    except (OSError, ValueError) as error:  # stale NFS handle, dead FUSE process, bad disk
        return Mount(path, "failed", getattr(error, "strerror", None) or str(error))
    free = _share(found.f_bavail, found.f_blocks - found.f_bfree + found.f_bavail)
    inodes = _share(found.f_favail, found.f_files)
    if found.f_flag & os.ST_RDONLY or (options is not None and "ro" in options[place]):
        return Mount(path, "read_only", "mounted read-only", free, inodes)
    return Mount(path, "ok", "", free, inodes)


def _share(free: int, total: int) -> Optional[float]:
    """A file system that does not count (autofs, inodes of btrfs) says 0 of 0."""
    return None if total <= 0 else min(1.0, max(0.0, free / total))
