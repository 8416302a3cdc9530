"""What is said between fleetctl and the process that looks at checkpoints for it: one JSON value a line, in ASCII.

File names may be no UTF-8; Python's own JSON carries them, so it does the writing and msgspec the types.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from fleetctl.checkpoint.eyes import AUTO, Memory
from fleetctl.checkpoint.model import Entry, Level
from fleetctl.checkpoint.storage import Kind

T = TypeVar("T")


class Verb(StrEnum):
    """What may be asked, as the verbs of Eyes and of Storage."""

    KIND = "kind"
    MAKE = "make"
    SURVEY = "survey"
    SINGLE = "single"
    EXAMINE = "examine"
    NAMES = "names"
    LISTING = "listing"
    LOOK = "look"
    LOOK_ALL = "look_all"


class Ask(Struct, frozen=True, omit_defaults=True):
    """One question. `path` is the folder of the checkpoints, or what the verb is about; the rest is as it needs."""

    verb: Verb
    path: str
    inside: tuple[str, ...] = ()
    entry: Entry | None = None
    level: Level = Level.STRUCTURE
    wanted: str = AUTO
    ranks: int | None = None
    memory: Memory | None = None
    kind: Kind = Kind.FOLDER


class Pulse(Struct, frozen=True, tag="pulse"):
    """A sign of life on the way to an answer: so many bytes were read since the last one."""

    size_bytes: int


class Answer(Struct, frozen=True, tag="answer"):
    """What the verb returned, still to be converted to its type."""

    value: Any = None


class Refused(Struct, frozen=True, tag="refused"):
    """The verb raised OSError, or CannotTell where `number` is None."""

    text: str
    number: int | None = None
    remedy: str | None = None


class Broken(Struct, frozen=True, tag="broken"):
    """The last words of a process that has a fault of its own."""

    text: str


Said = Pulse | Answer | Refused | Broken


def write(value: Struct) -> bytes:
    """One line."""
    return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode("ascii") + b"\n"


def read(line: bytes, kind: type[T] | Any) -> T:
    """What a line says. :raises ValueError: nothing of this kind."""
    try:
        return msgspec.convert(json.loads(line), kind)
    except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
        raise ValueError(f"no {kind}: {error}") from None
