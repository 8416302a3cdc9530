"""Read the patterns: ours, and a site's file before them."""

from __future__ import annotations

import os
from pathlib import Path

from fleetctl.errors import UsageError
from fleetctl.health.store import Foreign, read_bounded
from fleetctl.recovery.patterns import MOST_BYTES, Patterns, patterns_in

_OWN = Path(__file__).with_name("patterns.json")
_WRITABLE_BY_OTHERS = 0o022


def load_patterns(site: str | None = None) -> Patterns:
    """Ours, or the site's and ours.

    :raises UsageError: the site's file cannot be read, is not root's or our own alone, or has a mistake, at its place.
    """
    own = patterns_in(_OWN.read_bytes(), _OWN.name)
    return own if site is None else patterns_in(_bytes(site), site, own)


def _bytes(path: str) -> bytes:
    try:
        here = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            data = read_bounded(here, os.path.basename(path), MOST_BYTES, ours=False)
            found = os.stat(os.path.basename(path), dir_fd=here, follow_symlinks=False)
        finally:
            os.close(here)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except Foreign as error:
        raise UsageError(f"{path}: {error}") from None
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & _WRITABLE_BY_OTHERS:
        raise UsageError(f"{path} is not root's or your own alone", remedy="chown it, and chmod go-w")
    return data
