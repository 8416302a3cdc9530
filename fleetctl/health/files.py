"""Bounded reading below /sys and /proc: nothing here raises for what a sick machine shows, or reads without an end."""

from __future__ import annotations

import os
from itertools import islice
from typing import Optional, Tuple

# An attribute of sysfs is one page at most (Documentation/filesystems/sysfs.rst).
PAGE_BYTES = 4096
# More entries than any real folder of devices has; a folder that grows without end must not eat the node.
MOST_NAMES = 4096
# O_NONBLOCK: a FIFO in the place of a file must not hold a prolog.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
# A number longer than 64 bits is nonsense (counters have up to 20 digits).
_MOST_DIGITS = 20


def read_bytes(path: str, most: int = PAGE_BYTES, folder: Optional[int] = None) -> Optional[bytes]:
    """The first `most` bytes of a file, or None when it cannot be read. `folder`: an open folder that `path` is in."""
    try:
        descriptor = os.open(path, _FLAGS, dir_fd=folder)
    except (OSError, ValueError):  # ValueError: a NUL in a name from a site file
        return None
    try:
        data = os.read(descriptor, most)
        while data and len(data) < most:
            more = os.read(descriptor, most - len(data))
            if not more:
                break
            data += more
        return data
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_text(path: str, folder: Optional[int] = None) -> Optional[str]:
    """One attribute as text without the white space around it; None when it cannot be read or is longer than a page."""
    # One read does: sysfs hands out a whole attribute at once, and a second one would cost a system call per counter.
    try:
        descriptor = os.open(path, _FLAGS, dir_fd=folder)
    except (OSError, ValueError):
        return None
    try:
        data = os.read(descriptor, PAGE_BYTES + 1)
    except OSError:  # EINVAL of a port that does not count, EISDIR, EIO of a dead device
        return None
    finally:
        os.close(descriptor)
    return None if len(data) > PAGE_BYTES else data.decode("ascii", "replace").strip()


def as_count(text: Optional[str]) -> Optional[int]:
    """A number of zero or more in decimal, or None."""
    if text is None or len(text) > _MOST_DIGITS or not text.isdecimal() or not text.isascii():
        return None
    return int(text)


def as_hex(text: Optional[str]) -> Optional[int]:
    """A number as sysfs writes identities, `0x10de`, or None."""
    if text is None or not text.startswith("0x") or len(text) > _MOST_DIGITS:
        return None
    try:
        return int(text[2:], 16)
    except ValueError:
        return None


def list_names(folder: str, most: int = MOST_NAMES) -> Optional[Tuple[str, ...]]:
    """The names in a folder in order, at most `most`. A folder that does not exist has none; None: not readable."""
    try:
        with os.scandir(folder) as entries:
            return tuple(sorted(entry.name for entry in islice(entries, most)))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError):
        return None


def link_target(path: str) -> Optional[str]:
    """Where a symbolic link points to, as it is written, or None."""
    try:
        return os.readlink(path)
    except (OSError, ValueError):
        return None


def is_address(text: str) -> bool:
    """Whether text is a PCI address as sysfs writes it: `0000:1b:00.0`, the domain of four digits or more."""
    domain, _, rest = text.partition(":")
    return (
        4 <= len(domain) <= 8
        and len(rest) == 7
        and rest[2] == ":"
        and rest[5] == "."
        and rest[6] in "01234567"
        and not (domain + rest[:2] + rest[3:5]).strip("0123456789abcdef")
    )


def address_behind(path: str) -> Optional[str]:
    """The PCI address that a `device` link leads to, or None: no link, or not a PCI device."""
    target = link_target(path)
    if target is None:
        return None
    name = target.rpartition("/")[2]
    if not is_address(name):  # the kernel writes the name at the end; others may write `../..`
        name = os.path.basename(os.path.realpath(path))
    return name if is_address(name) else None
