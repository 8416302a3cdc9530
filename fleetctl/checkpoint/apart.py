"""Looking at checkpoints from a process of its own, so that a mount that hangs, or a file that kills its reader, hangs
and kills that one: fleetctl goes on without it, and calls UNKNOWN what it could not learn.
"""

from __future__ import annotations

import contextlib
import errno
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from fleetctl.checkpoint.eyes import AUTO, Memory
from fleetctl.checkpoint.model import Checked, Entry, Level, Survey, Validity, one_line
from fleetctl.checkpoint.storage import Blob, Found, Kind, silent
from fleetctl.checkpoint.wire import Answer, Ask, Broken, Pulse, Refused, Said, Verb, read, write
from fleetctl.errors import CannotTell, ProcessTimeout, ProgramMissing
from fleetctl.process import Piped, start_piped

ARGV = (sys.executable, "-I", "-m", "fleetctl.checkpoint")
# It tells of each read, and while it computes. A hard NFS mount asks a server that is gone for ever (nfs(5)), so
# somebody must give up, though not while a server is only restarted.
SILENCE_S = 60.0
_TRIES = 2  # of one look: the kernel ends a child for its own reasons, too
_MOST_DEATHS = 16  # then it is the machine that kills them, not what they read
_DYING_S = 0.2  # for one that ends to have ended
_MOST_LINE_BYTES = 512 << 20  # a listing of a million long names; storage.py ends it there


class NoAnswer(OSError):
    """The process that looks has hung, has died, or talks nonsense: nothing follows about the checkpoints."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.ETIMEDOUT, text)


class Apart:
    """Eyes in a child. It is started when first needed, or by `start`; where it hangs, no second one is tried."""

    def __init__(self, *, argv: Sequence[str] | None = None, silence_s: float = SILENCE_S) -> None:
        self._argv, self._silence_s = tuple(ARGV if argv is None else argv), silence_s
        self._child: Piped | None = None
        self._lines: list[bytes] = []  # that were heard and not read yet
        self._tail: list[bytes] = []  # of a line that has no end yet
        self._given_up = ""  # why no child is started any more
        self._deaths = 0
        self._deadly: dict[Entry, str] = {}  # what a child has died of is not looked at again
        self.storage = _Away(self.ask)

    def start(self) -> None:
        """Let it get ready while we do something else."""
        with contextlib.suppress(NoAnswer):
            self._ready()

    def close(self) -> None:
        """Nobody asks any more."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def answers(self) -> bool:
        return not self._given_up

    def kind(self, path: Path) -> Kind | None:
        found: Kind | None = self.ask(Ask(Verb.KIND, str(path)), Kind | None)
        return found

    def make(self, directory: Path) -> None:
        self.ask(Ask(Verb.MAKE, str(directory)), None)

    def survey(self, directory: Path, wanted: str) -> Survey:
        with _no_answer_cannot_tell(directory):
            found: Survey = self.ask(Ask(Verb.SURVEY, str(directory), wanted=wanted), Survey)
            return found

    def single(self, path: Path, kind: Kind) -> Entry | None:
        found: Entry | None = self.ask(Ask(Verb.SINGLE, str(path), kind=kind), Entry | None)
        return found

    def examine(
        self,
        directory: Path,
        entry: Entry,
        level: Level,
        *,
        wanted: str = AUTO,
        ranks: int | None = None,
        pulse: Callable[[int], None] = silent,
        memory: Memory | None = None,
    ) -> Checked:
        ask = Ask(Verb.EXAMINE, str(directory), entry=entry, level=level, wanted=wanted, ranks=ranks, memory=memory)
        if entry in self._deadly:
            return Checked(entry, entry.name, Validity.UNKNOWN, None, self._deadly[entry])
        reason = ""
        for _ in range(_TRIES):
            try:
                found: Checked = self.ask(ask, Checked, pulse)
                return found
            except NoAnswer as error:
                reason = one_line(str(error.strerror))
                if self._given_up:
                    break
        else:
            self._deadly[entry] = reason
        return Checked(entry, entry.name, Validity.UNKNOWN, None, reason)

    def ask(self, ask: Ask, kind: Any, pulse: Callable[[int], None] = silent) -> Any:
        """What the child returns, which must be of this kind.

        :raises OSError, CannotTell: what it raised.
        :raises NoAnswer: it did neither.
        """
        child = self._ready()
        try:
            child.send(write(ask))
            while True:
                said = self._listen(child)
                if isinstance(said, Pulse):
                    pulse(said.size_bytes)
                elif isinstance(said, Broken):
                    raise self._died(f"the look at it broke off: {said.text}")
                else:
                    return _returned(said, kind)
        except BrokenPipeError:
            raise self._died() from None
        except ValueError:
            raise self._died("the process that looks talks nonsense") from None
        except KeyboardInterrupt:
            self.close()  # its answer would be taken for that to the next question
            raise

    def _ready(self) -> Piped:
        if self._given_up:
            raise NoAnswer(self._given_up)
        if self._child is None:
            try:
                self._child = start_piped(self._argv)
            except (OSError, ProgramMissing) as error:
                self._given_up = f"no process can be started to look at it: {error}"
                raise NoAnswer(self._given_up) from None
        return self._child

    def _listen(self, child: Piped) -> Said:
        """:raises ValueError: it says nothing that we know."""
        while not self._lines:
            try:
                more = child.receive(self._silence_s)
            except ProcessTimeout:
                self._given_up = f"its storage does not answer: nothing for {self._silence_s:g} s"
                self._end()
                raise NoAnswer(self._given_up) from None
            if not more:
                raise self._died()
            self._tail.append(more)
            if b"\n" in more:
                *self._lines, tail = b"".join(self._tail).split(b"\n")
                self._tail = [tail]
            elif sum(map(len, self._tail)) > _MOST_LINE_BYTES:
                raise self._died("the process that looks talks without end")
        return read(self._lines.pop(0), Said)

    def _end(self, grace_s: float = 0.0) -> int | None:
        status = None if self._child is None else self._child.end(grace_s)
        self._child, self._lines, self._tail = None, [], []
        return status

    def _died(self, why: str = "") -> NoAnswer:
        """Count it, and let the next question have another one."""
        status = self._end(_DYING_S)
        ended = f"status {status}" if status is None or status >= 0 else f"signal {-status}"
        shown = f": `{shlex.join(self._argv)}` says why" if status is not None and status > 0 else ""
        text = why or f"the process that looked at it ended with {ended}{shown}"
        self._deaths += 1
        if self._deaths >= _MOST_DEATHS:
            self._given_up = f"{text}; so did {self._deaths - 1} before it"
        return NoAnswer(text)


class _Away:
    """The storage as the child sees it. Files are read there only."""

    def __init__(self, ask: Callable[[Ask, Any], Any]) -> None:
        self._ask = ask

    def names(self, directory: Path) -> tuple[str, ...]:
        with _no_answer_cannot_tell(directory):
            found: tuple[str, ...] = self._ask(Ask(Verb.NAMES, str(directory)), tuple[str, ...])
            return found

    def listing(self, directory: Path, *inside: str) -> tuple[str, ...]:
        found: tuple[str, ...] = self._ask(Ask(Verb.LISTING, str(directory), inside), tuple[str, ...])
        return found

    def look(self, directory: Path, *inside: str) -> Found | None:
        found: Found | None = self._ask(Ask(Verb.LOOK, str(directory), inside), Found | None)
        return found

    def look_all(self, directory: Path, *inside: str) -> dict[str, Found]:
        found: dict[str, Found] = self._ask(Ask(Verb.LOOK_ALL, str(directory), inside), dict[str, Found])
        return found

    def open(self, directory: Path, *inside: str) -> AbstractContextManager[Blob]:
        raise OSError(errno.EOPNOTSUPP, "files are read by the other process only")


@contextlib.contextmanager
def _no_answer_cannot_tell(directory: Path) -> Iterator[None]:
    try:
        yield
    except NoAnswer as error:
        raise CannotTell(
            f"cannot list the checkpoints in {ascii(str(directory))[1:-1]}: {one_line(str(error.strerror))}",
            remedy="is its file system mounted here, and does its server answer?",
        ) from None


def _returned(said: Answer | Refused, kind: Any) -> Any:
    """:raises ValueError: it is of another kind."""
    if isinstance(said, Answer):
        return msgspec.convert(said.value, kind)
    if said.number is None:
        raise CannotTell(said.text, remedy=said.remedy)
    raise OSError(said.number, said.text)  # Python makes FileNotFoundError of the number, and so on
