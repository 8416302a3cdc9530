"""What is asked of the process that reads folders for the daemon, and what it answers: frames of MessagePack. Pure.

A frame is its length in four bytes, and then the value. Paths are bytes: a user's file names may be no UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import datetime

import msgspec
from msgspec import Struct

from fleetctl.recovery.model import Facts, Finding
from fleetctl.rundir.pulse import Pulse
from fleetctl.submission.decide_requeue import Past

_LENGTH = struct.Struct("!I")
MOST_FRAME_BYTES = 64 << 20


class AskRun(Struct, frozen=True, tag="run"):
    """How is the run in the folder `path`? `tasks` are the elements whose pulses are wanted, None for a run that is no
    sweep. `state`, `digest` and `uid` are those of the answer before, which is not said again while they hold;
    `thorough`: look at each of its event files, not only at whether there are new ones; `signs`: its head is silent, so
    ask for signs of the training itself."""

    path: bytes
    run_id: str
    tasks: tuple[int | None, ...] = (None,)
    state: str = ""
    digest: str = ""
    uid: int = -1
    thorough: bool = True
    signs: bool = False


class AskRuns(Struct, frozen=True, tag="runs"):
    """Which folders in the root `path` have a run's name?"""

    path: bytes


class AskLog(Struct, frozen=True, tag="log"):
    """What did the steps of one attempt print? `owner` is the user whose folder it must be."""

    path: bytes
    owner: str
    task: int | None
    attempt: str
    first_bytes: int
    last_bytes: int


class AskFindings(Struct, frozen=True, tag="findings"):
    """What do the nodes say in the shared folder `path`? `since_ns` is when it was read before: what is older is not
    said again."""

    path: bytes
    since_ns: int


Ask = AskRun | AskRuns | AskLog | AskFindings


class RunRead(Struct, frozen=True):
    """What a run's folder says. `owner` is the user to whom it belongs; `pasts` are those of the tasks that have not
    ended well; `lost` are the nodes that its heads found lost, each with its task and the name of its attempt."""

    owner: str
    facts: Facts
    pasts: tuple[tuple[int | None, Past], ...] = ()
    lost: tuple[tuple[int | None, str, str], ...] = ()  # task, attempt, node


class ToldRun(Struct, frozen=True, tag="run"):
    """`read` None: as before (`trouble` ""), or not to be had. `pulses` are of the tasks whose heads speak. `moved`
    has the newest sign of the trainings that give any, and `is_full` their file system, where that was asked."""

    path: bytes
    pulses: tuple[tuple[int | None, Pulse], ...] = ()
    state: str = ""
    digest: str = ""
    uid: int = -1
    read: RunRead | None = None
    trouble: str = ""
    real: bytes = b""  # `path` without links, where it was read
    moved: tuple[tuple[int | None, datetime], ...] = ()
    is_full: bool | None = None


class ToldRuns(Struct, frozen=True, tag="runs"):
    names: tuple[str, ...]


class ToldLog(Struct, frozen=True, tag="log"):
    """`data` None: it cannot be had."""

    path: bytes
    data: bytes | None
    is_whole: bool = False
    trouble: str = ""


class ToldFindings(Struct, frozen=True, tag="findings"):
    """What some of the nodes say; `last`: there are no more."""

    nodes: tuple[tuple[str, tuple[Finding, ...]], ...] = ()
    last: bool = False


class Failed(Struct, frozen=True, tag="failed"):
    """The question could not be answered at all."""

    why: str


Told = ToldRun | ToldRuns | ToldLog | ToldFindings | Failed

_encoder = msgspec.msgpack.Encoder()
_asks = msgspec.msgpack.Decoder(Ask)
_tolds = msgspec.msgpack.Decoder(Told)


def frame(value: Struct) -> bytes:
    """:raises ValueError: it is too large, or has a text that is none."""
    data = _encoder.encode(value)
    if len(data) > MOST_FRAME_BYTES:
        raise ValueError("the answer is too large")
    return _LENGTH.pack(len(data)) + data


def ask_in(data: bytes) -> Ask:
    """:raises ValueError: it is none."""
    return _asks.decode(data)


def told_in(data: bytes) -> Told:
    """:raises ValueError: it is none."""
    return _tolds.decode(data)


class Frames:
    """Takes bytes as they come, and gives frames as they are whole."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """:raises ValueError: no frame of ours."""
        self._data += data
        while len(self._data) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._data)
            if size > MOST_FRAME_BYTES:
                raise ValueError("no frame of ours")
            end = _LENGTH.size + size
            if len(self._data) < end:
                return
            whole = bytes(self._data[_LENGTH.size : end])
            del self._data[:end]
            yield whole
