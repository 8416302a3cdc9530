"""What processes have read and written, with their children: bytes that move, for hearts.py. Python 3.8, as it is.

A data loader that waits for a slow file system, or a save that nobody marked, moves bytes; ranks that wait for each
other move next to none. Between two looks some seconds go by, since each one walks through the threads of all ranks.
"""

from __future__ import annotations

import os
from typing import Dict, Iterable, List, Optional

_EVERY_S = 5.0
_MOST_PROCESSES = 1024  # of one look
_MOST_THREADS = 512  # of one process


class Moved:
    """Bytes that the processes of a node have moved between the two newest looks."""

    def __init__(self) -> None:
        self._before: Optional[Dict[int, int]] = None
        self._looked_s = 0.0
        self._bytes = 0

    def look(self, pids: Iterable[int], now_s: float) -> int:
        """Of these processes, and all that they have begun. The first look finds nothing: nobody knows since when."""
        if self._before is not None and now_s - self._looked_s < _EVERY_S:
            return self._bytes
        self._looked_s = now_s
        before, self._before = self._before, {pid: _bytes_of(pid) for pid in _with_children(pids)}
        if before is not None:  # a child that is new since then counts from its start
            self._bytes = sum(max(0, moved - before.get(pid, 0)) for pid, moved in self._before.items())
        return self._bytes

    def rest(self) -> None:
        """Nobody is silent: what moves until somebody is does not matter."""
        self._before, self._bytes = None, 0


def _with_children(pids: Iterable[int]) -> List[int]:
    found = list(dict.fromkeys(pids))[:_MOST_PROCESSES]
    for pid in found:  # it grows meanwhile
        for thread in _names(f"/proc/{pid}/task"):
            children = _read(f"/proc/{pid}/task/{thread}/children").split()
            new = [int(child) for child in children if child.isdigit()]
            found += [child for child in new if child not in found][: max(0, _MOST_PROCESSES - len(found))]
    return found


def _bytes_of(pid: int) -> int:
    """0 where it cannot be read: gone, or of another user."""
    words = dict(line.partition(b":")[::2] for line in _read(f"/proc/{pid}/io").splitlines())
    counts = [words.get(name, b"").strip() for name in (b"rchar", b"wchar")]
    return sum(int(count) for count in counts if count.isdigit())


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder)[:_MOST_THREADS]
    except OSError:
        return []


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(65536) or b""
    except OSError:
        return b""
