"""Reading folders from processes of their own, one for each mount: one that hangs takes only its mount's runs away.

A process that hangs is killed; one that cannot die, since the kernel holds it, is left behind, and while it lives its
mount is not touched again. One that could be killed is followed by another only after a pause that grows.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from fleetctl.checkpoint.mounts import parse_mounts
from fleetctl.errors import ProcessTimeout, ProgramMissing
from fleetctl.process import Piped, start_piped
from fleetctl.recovery.read_wire import Ask, Failed, Frames, Told, ToldFindings, frame, told_in

ARGV = (sys.executable, "-I", "-m", "fleetctl.recovery.reader")
SILENCE_S = 5.0  # of a reader, per answer: the slowest stat of a loaded parallel file system is below a second
PATIENCE_S = 30.0  # with all questions of one pass to one mount; those that are left come first in the next
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 30.0, 600.0  # after a hang
_AHEAD_BYTES = 32 << 10  # of questions that are not answered yet: half a pipe, so that sending never waits
_MOST_DEATHS = 3  # in one pass, of what they read; then it is the machine that kills them
_MOST_SUSPECTS = 100
_MOUNTS = Path("/proc/self/mountinfo")


class Question(Struct, frozen=True):
    """`place` is the path by which its mount is found: that of the question, or where its links led before."""

    ask: Ask
    place: bytes


class Readers:
    """The processes that read. To be closed; not to be used by two threads at a time."""

    def __init__(
        self,
        monotonic_s: Callable[[], float],
        *,
        argv: Sequence[str] = ARGV,
        silence_s: float = SILENCE_S,
        patience_s: float = PATIENCE_S,
        mount_of: Callable[[Sequence[bytes]], Sequence[str]] | None = None,
    ) -> None:
        self._argv, self._silence_s, self._patience_s = tuple(argv), silence_s, patience_s
        self._monotonic_s = monotonic_s
        self._mounts_of = mounts_of if mount_of is None else mount_of
        self._readers: dict[str, _Reader] = {}

    def ask(self, questions: Sequence[Question]) -> list[tuple[Told, ...]]:
        """The answers, in the order of the questions. A mount that does not answer gives one Failed for each."""
        groups: dict[str, list[int]] = {}
        for number, mount in enumerate(self._mounts_of([one.place for one in questions])):
            groups.setdefault(mount, []).append(number)
        found: list[tuple[Told, ...]] = [()] * len(questions)

        def run(mount: str, numbers: Sequence[int]) -> None:
            reader = self._readers[mount]
            for number, told in zip(numbers, reader.ask([questions[n].ask for n in numbers]), strict=True):
                found[number] = told

        for mount in groups:
            if mount not in self._readers:
                patience = (self._silence_s, self._patience_s)
                self._readers[mount] = _Reader(mount, self._argv, *patience, self._monotonic_s)
        threads = [threading.Thread(target=run, args=group, daemon=True) for group in list(groups.items())[1:]]
        for thread in threads:
            thread.start()
        for group in list(groups.items())[:1]:
            run(*group)
        for thread in threads:
            thread.join()
        return found

    def troubles(self) -> tuple[str, ...]:
        """The mounts that do not answer, and since when."""
        return tuple(why for _, one in sorted(self._readers.items()) if (why := one.trouble))

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Reader:
    """The process of one mount."""

    def __init__(
        self, mount: str, argv: tuple[str, ...], silence_s: float, patience_s: float, monotonic_s: Callable[[], float]
    ) -> None:
        self._mount, self._argv, self._monotonic_s = mount, argv, monotonic_s
        self._silence_s, self._patience_s = silence_s, patience_s
        self._child: Piped | None = None
        self._frames = Frames()
        self._stuck: int | None = None  # the pid of one that could not be killed
        self._again_s, self._hangs = 0.0, 0
        self._suspects: dict[bytes, None] = {}  # paths at which one hung or died, the oldest first: they are asked last
        self._missed: frozenset[bytes] = frozenset()  # paths that the pass before did not reach: they are asked first
        self.trouble = ""

    def ask(self, asks: Sequence[Ask]) -> list[tuple[Told, ...]]:
        if (why := self._unusable()) is not None:
            return [(Failed(why),)] * len(asks)
        found: dict[int, tuple[Told, ...]] = {}
        until_s, deaths = self._monotonic_s() + self._patience_s, 0
        left = deque(self._ordered(asks))
        while left:
            try:
                if not self._converse(asks, left, found, until_s):
                    self._end()  # its answers would be taken for those to the next questions
                    break
            except ProcessTimeout:
                self._hung(asks[left[0]].path)
                break
            except (OSError, ValueError, ProgramMissing) as error:
                deaths += 1
                self._end()
                culprit = left.popleft()
                self._suspect(asks[culprit].path)
                found[culprit] = (Failed(f"the process that read it ended ({error or type(error).__name__})"),)
                if deaths == _MOST_DEATHS:
                    break
        else:
            self._hangs, self.trouble = 0, ""
        self._missed = frozenset(asks[number].path for number in left)
        why = self.trouble or f"{self._mount} is too slow: it was not reached in this pass"
        return [found.get(number, (Failed(why),)) for number in range(len(asks))]

    def close(self) -> None:
        self._end()

    def _converse(
        self, asks: Sequence[Ask], left: deque[int], found: dict[int, tuple[Told, ...]], until_s: float
    ) -> bool:
        """Takes from `left` what is answered, the oldest question first; False: its time is over.

        :raises ProcessTimeout: silence. :raises OSError, ValueError: it has died, or talks nonsense.
        """
        child = self._ready()
        ahead: deque[int] = deque()  # bytes of questions that were sent
        parts: list[Told] = []
        while left:
            if self._monotonic_s() > until_s:
                return False
            self._send(child, asks, left, ahead)
            data = child.receive(self._silence_s)
            if not data:
                raise OSError("it ended without an answer")
            for one in self._frames.feed(data):
                told = told_in(one)
                parts.append(told)
                if not isinstance(told, ToldFindings) or told.last:
                    found[left.popleft()] = tuple(parts)
                    ahead.popleft()
                    parts = []
        return True

    @staticmethod
    def _send(child: Piped, asks: Sequence[Ask], left: deque[int], ahead: deque[int]) -> None:
        sent = sum(ahead)
        for number in list(left)[len(ahead) :] if len(ahead) < len(left) else ():
            data = frame(asks[number])
            if ahead and sent + len(data) > _AHEAD_BYTES:
                return
            child.send(data)
            ahead.append(len(data))
            sent += len(data)

    def _ordered(self, asks: Sequence[Ask]) -> list[int]:
        """What made trouble before comes last, what was not reached first."""
        return sorted(
            range(len(asks)),
            key=lambda number: (asks[number].path in self._suspects, asks[number].path not in self._missed),
        )

    def _suspect(self, path: bytes) -> None:
        self._suspects[path] = None
        while len(self._suspects) > _MOST_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]

    def _ready(self) -> Piped:
        if self._child is None:
            self._child, self._frames = start_piped(self._argv), Frames()
        return self._child

    def _unusable(self) -> str | None:
        if self._stuck is not None:
            if not _is_gone(self._stuck):
                return self.trouble
            self._stuck = None
        return self.trouble if self._monotonic_s() < self._again_s else None

    def _hung(self, path: bytes) -> None:
        self._suspect(path)
        self._hangs += 1
        self._again_s = self._monotonic_s() + min(_FIRST_PAUSE_S * 2 ** min(self._hangs - 1, 8), _LONGEST_PAUSE_S)
        child = self._child
        status = self._end()
        self.trouble = f"{self._mount} does not answer"
        if child is not None and status is None:
            self._stuck = child.pid
            self.trouble += f": process {child.pid} hangs in it"

    def _end(self) -> int | None:
        child, self._child = self._child, None
        return None if child is None else child.end()


def mounts_of(paths: Sequence[bytes]) -> Sequence[str]:
    """The mount of each path by its text alone: nothing is touched. "/" where that cannot be told."""
    try:
        places = {mount.place for mount in parse_mounts(_MOUNTS.read_text(errors="surrogateescape"))}
    except OSError:
        return ["/"] * len(paths)
    known: dict[str, str] = {}
    return [_mount_at(os.path.dirname(os.path.abspath(os.fsdecode(path))), places, known) for path in paths]


def _mount_at(folder: str, places: set[str], known: dict[str, str]) -> str:
    if folder not in known:
        at = folder
        while at not in places and at != "/":
            at = os.path.dirname(at)
        known[folder] = at
    return known[folder]


def _is_gone(pid: int) -> bool:
    """Reaps a child of ours that could not die before."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
