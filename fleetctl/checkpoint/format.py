"""What a checkpoint format is to fleetctl: how it is recognised and looked at. docs/formats.md is the guide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from datetime import datetime
from itertools import islice

from msgspec import Struct

from fleetctl.checkpoint.look import Look
from fleetctl.checkpoint.model import Level

_MOST_STEP = 10**18  # what fits in a name and in 64 bits
_MOST_RANKS = 10**6  # ten times the largest training
MOST_TOLD = 1000  # missing files of a kind that are told by name: somebody reads them


class Unit(Struct, frozen=True):
    """Bytes of a file whose digest somebody wrote down. `file` is a path below the checkpoint, () for a file itself."""

    file: tuple[str, ...]
    offset: int
    size_bytes: int
    digest: str  # as fleetctl.train.digests writes it: "crc32:1a2b3c4d"
    piece: str = ""  # what these bytes are, if not the whole file


def _nothing() -> Iterable[Unit]:
    return ()


class Facts(Struct, frozen=True):
    """What a format found out, beside the faults that it told the Look.

    `content` yields what CONTENT reads, in the order of the files; it may still look and tell faults.
    `unproved` names files that carry no checksum.
    """

    training_step: int | None = None  # as the checkpoint itself says
    size_bytes: int | None = None
    saved_at: datetime | None = None
    ranks: int | None = None
    resumable: bool = True
    uncommitted: bool = False
    content: Callable[[], Iterable[Unit]] = _nothing
    unproved: tuple[str, ...] = ()


def _no_step(_look: Look) -> int | None:
    return None


class Format(Struct, frozen=True):
    """One format. `name` is what `checkpoint.format` of the spec says.

    `step_named` reads the training step from a name of this format, None when it says none. `recognise` looks at names,
    and at the first bytes of a file; it may raise OSError. `examine` looks as deep as the level, at most STRUCTURE: it
    tells the Look its faults and calls `passed` for each level that it looked at. Only OSError may leave it. `peek`
    reads the training step from the inside, at little cost, where the name says none.
    """

    name: str
    step_named: Callable[[str], int | None]
    recognise: Callable[[Look], bool]
    examine: Callable[[Look, Level], Facts]
    peek: Callable[[Look], int | None] = _no_step


def as_step(value: object) -> int | None:
    """What a file says is its training step, if that can be one."""
    return value if type(value) is int and 0 <= value < _MOST_STEP else None


def as_ranks(value: object) -> int | None:
    """What a file says is a number of ranks, if that can be one."""
    return value if type(value) is int and 0 < value <= _MOST_RANKS else None


def gaps(have: Set[int], wanted: int) -> Iterator[int]:
    """The numbers below `wanted` that are not there, the first 1,000: a lie in a name must not make us tell all."""
    return islice((number for number in range(wanted) if number not in have), MOST_TOLD)


def places(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """As itertools.product of ranges, which would make lists of them first: they are as long as a file says."""
    if not sizes:
        yield ()
    elif all(sizes):
        for first in range(sizes[0]):
            yield from ((first, *rest) for rest in places(sizes[1:]))
