"""One checkpoint being looked at: reads below it, and what was found missing, wrong or unreadable so far."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from fleetctl.checkpoint.model import Level, Piece, Validity, one_line
from fleetctl.checkpoint.storage import Blob, Found, Kind, NotRegular, Storage

_MOST_PIECES = 100  # that are named; the others are counted


class Ledger:
    """What one look has found and cost, shared by the looks at its parts.

    `pulse` is told the size of every read, 0 for a look at names: a sign that the storage answers. Several threads may
    read; it is called by one at a time.
    """

    def __init__(self, pulse: Callable[[int], None]) -> None:
        self.pieces: list[Piece] = []
        self.worst: Piece | None = None
        self.faults = 0
        self.passed: Level | None = None
        self.bytes_read = 0
        self.touched_at_s = 0.0
        self._pulse, self._one_at_a_time = pulse, threading.Lock()

    def fault(self, piece: Piece) -> None:
        self.faults += 1
        if len(self.pieces) < _MOST_PIECES:
            self.pieces.append(piece)
        if self.worst is None or _SEVERITY[piece.validity] > _SEVERITY[self.worst.validity]:
            self.worst = piece

    def cost(self, size_bytes: int) -> None:
        with self._one_at_a_time:
            self.bytes_read += size_bytes
            self._pulse(size_bytes)


# What is wrong stays wrong; what is missing may come (NFS), and what cannot be read may be good
_SEVERITY = {Validity.UNKNOWN: 0, Validity.INCOMPLETE: 1, Validity.CORRUPT: 2}


class Look:
    """A folder or a file of one checkpoint, or that checkpoint itself.

    Formats read through it and tell it what they find. `ranks` is how many ranks the training has, None where that is
    not known. Names given to it may be paths with slashes; they are never followed over a link.
    """

    def __init__(
        self,
        storage: Storage,
        directory: Path,
        inside: tuple[str, ...],
        ledger: Ledger,
        *,
        base: int = 1,
        ranks: int | None = None,
    ) -> None:
        self._storage, self._directory, self._inside, self._base = storage, directory, inside, base
        self._children: dict[str, Found] | None = None
        self._found: Found | None = None
        self.ledger, self.ranks = ledger, ranks

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self._inside[-1]

    def below(self, name: str) -> Look:
        """The same look, at a folder or file in this one."""
        inside = (*self._inside, *name.split("/"))
        return Look(self._storage, self._directory, inside, self.ledger, base=self._base, ranks=self.ranks)

    def beside(self, name: str) -> Look:
        """Another checkpoint of the same folder, to compare with. Faults found there count for nothing."""
        ledger = Ledger(self.ledger.cost)
        return Look(self._storage, self._directory, (*self._inside[:-1], name), ledger, ranks=self.ranks)

    def siblings(self) -> tuple[str, ...]:
        """All names beside this one. :raises OSError: they cannot be listed."""
        self.ledger.cost(0)
        return self._storage.listing(self._directory, *self._inside[:-1])

    def kind(self) -> Kind | None:
        """None when it is not there; what is there is looked at once. :raises OSError: that cannot be told."""
        if self._found is None:
            self.ledger.cost(0)
            self._found = self._storage.look(self._directory, *self._inside)
            if self._found is None:
                return None
            self.ledger.touched_at_s = max(self.ledger.touched_at_s, self._found.modified_at_s)
        return self._found.kind

    def children(self) -> dict[str, Found]:
        """What lies in this folder, by name; listed once. :raises OSError: it cannot be listed."""
        if self._children is None:
            self.ledger.cost(0)
            self._children = self._storage.look_all(self._directory, *self._inside)
            newest_s = max((found.modified_at_s for found in self._children.values()), default=0.0)
            self.ledger.touched_at_s = max(self.ledger.touched_at_s, newest_s)
        return self._children

    def names(self) -> frozenset[str]:
        """The names in this folder. :raises OSError: it cannot be listed."""
        return frozenset(self.children())

    def has_file(self, name: str) -> bool:
        """Whether it is a regular file directly in this folder. :raises OSError: that cannot be told."""
        found = self.children().get(name)
        return found is not None and found.kind is Kind.FILE

    def file_size(self, name: str) -> int | None:
        """The size of a file directly in this folder; without one it is told as missing or wrong.

        :raises OSError: the folder cannot be listed.
        """
        found = self.children().get(name)
        if found is None:
            self.missing(name)
        elif found.kind is not Kind.FILE:
            self.wrong(name, "is no file")
        else:
            return found.size_bytes
        return None

    @contextlib.contextmanager
    def open(self, name: str = "") -> Iterator[Blob]:
        """A file below this folder, or this file itself. :raises OSError: not there, or it cannot be read now."""
        inside = (*self._inside, *name.split("/")) if name else self._inside
        with self._storage.open(self._directory, *inside) as blob:
            yield _Counted(blob, self.ledger)

    def read_whole(self, name: str, most_bytes: int) -> bytes | None:
        """All of a small file. None after it was told as missing, unreadable, or larger than it can be."""
        with self.judging(name), self.open(name) as blob:
            if blob.size_bytes > most_bytes:
                raise ValueError(f"has {blob.size_bytes} bytes, more than the {most_bytes} that are looked at")
            return read_exactly(blob, 0, blob.size_bytes)
        return None

    def judging(self, name: str) -> Judging:
        """A with block: what goes wrong inside is told of this piece, and the block left. ValueError (its words
        continue the name) is CORRUPT, not there INCOMPLETE, Unjudged and any other OSError UNKNOWN."""
        return Judging(self, name)

    def missing(self, name: str, text: str = "is missing") -> None:
        """A part is not there: INCOMPLETE."""
        self._fault(name, Validity.INCOMPLETE, text)

    def wrong(self, name: str, text: str) -> None:
        """A part is there and wrong: CORRUPT. `text` continues its name: "has 3 bytes, not 5", ": no JSON"."""
        self._fault(name, Validity.CORRUPT, text)

    def unread(self, name: str, text: str) -> None:
        """It is not known what a part is: UNKNOWN."""
        self._fault(name, Validity.UNKNOWN, text)

    def passed(self, level: Level) -> None:
        """This level was looked at to its end: it counts if no fault was found."""
        if not self.ledger.faults:
            self.ledger.passed = level

    def inner(self, name: str = "") -> tuple[str, ...]:
        """The path of a file in this folder, or of this file, below the checkpoint: for a Unit."""
        return (*self._inside[self._base :], *(name.split("/") if name else ()))

    def _fault(self, name: str, validity: Validity, text: str) -> None:
        inner = "/".join((*self._inside[self._base :], *((name,) if name else ())))
        gap = "" if text.startswith(":") else " "
        reason = f"{inner}{gap}{text}" if inner else text.removeprefix(": ")  # whoever shows it names the checkpoint
        self.ledger.fault(Piece(one_line(inner or self._inside[-1]), validity, one_line(reason)))


class Judging:
    """Made by Look.judging."""

    def __init__(self, look: Look, name: str) -> None:
        self._look, self._name = look, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        look, name = self._look, self._name
        if isinstance(error, Unjudged):
            look.unread(name, str(error))
        elif isinstance(error, (MemoryError, RecursionError, OverflowError)):
            look.unread(name, f"cannot be looked at ({type(error).__name__})")
        elif isinstance(error, ValueError):
            look.wrong(name, str(error))
        elif isinstance(error, NotRegular):
            look.wrong(name, "is no file")
        elif isinstance(error, FileNotFoundError):
            look.missing(name)
        elif isinstance(error, OSError):
            look.unread(name, f"cannot be read: {error.strerror or error}")
        else:
            return False
        return True


class Unjudged(ValueError):
    """It cannot be told whether something is right: too large, refused, a package is missing. Not its fault."""


class _Counted:
    """A Blob that tells what reading it costs."""

    def __init__(self, blob: Blob, ledger: Ledger) -> None:
        self._blob, self._ledger = blob, ledger

    @property
    def size_bytes(self) -> int:
        return self._blob.size_bytes

    @property
    def stamp(self) -> str:
        return self._blob.stamp

    def read(self, offset: int, size_bytes: int) -> bytes:
        raw = self._blob.read(offset, size_bytes)
        self._ledger.cost(len(raw))
        return raw

    def read_into(self, buffer: memoryview, offset: int) -> int:
        count = self._blob.read_into(buffer, offset)
        self._ledger.cost(count)
        return count


def read_exactly(blob: Blob, offset: int, size_bytes: int) -> bytes:
    """Just these bytes. :raises ValueError: the file ends before them. :raises OSError: it cannot be read now."""
    raw = blob.read(offset, size_bytes) if offset + size_bytes <= blob.size_bytes else b""
    if len(raw) != size_bytes:
        raise ValueError(f"ends before byte {offset + size_bytes}")
    return raw


def moment(at_s: float) -> datetime | None:
    """A file's time, aware, in UTC; None for one that no calendar has."""
    try:
        return datetime.fromtimestamp(at_s, UTC) if at_s > 0 else None
    except (ValueError, OverflowError, OSError):
        return None
