"""What the fuzzer feeds: each parser of files that somebody else wrote, given bytes. Only bad words may come out.

A target takes bytes and returns; what it raises is a finding. `SEEDS` are good inputs to begin with. To add a parser,
add a function to `TARGETS` and a whole file to `SEEDS`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from fleetctl.checkpoint import inert, zips
from fleetctl.checkpoint.format import Facts, Format
from fleetctl.checkpoint.formats import dcp, torch
from fleetctl.checkpoint.look import Ledger, Look
from fleetctl.checkpoint.model import Level
from fleetctl.checkpoint.storage import Blob, Found, Kind
from tests.formats import dcp as dcp_files
from tests.formats import torch as torch_files
from tests.formats.pickles import pickled

Target = Callable[[bytes], object]


class MemoryBlob:
    """An open file that is none."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    @property
    def size_bytes(self) -> int:
        return len(self._raw)

    @property
    def stamp(self) -> str:
        return ""

    def read(self, offset: int, size_bytes: int) -> bytes:
        assert offset >= 0
        assert size_bytes >= 0
        return self._raw[offset : offset + size_bytes]

    def read_into(self, buffer: memoryview, offset: int) -> int:
        assert offset >= 0
        raw = self._raw[offset : offset + len(buffer)]
        buffer[: len(raw)] = raw
        return len(raw)


class MemoryStorage:
    """One folder, or a file, named `ckpt`: files by name, the file under the name ""."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def names(self, directory: Path) -> tuple[str, ...]:
        return ("ckpt",)

    def listing(self, directory: Path, *inside: str) -> tuple[str, ...]:
        return tuple(self.look_all(directory, *inside)) if inside else ("ckpt",)

    def look(self, directory: Path, *inside: str) -> Found | None:
        name = "/".join(inside[1:])
        if name in self._files:
            return Found(Kind.FILE, len(self._files[name]), 1e9)
        return (
            Found(Kind.FOLDER, 0, 1e9) if not name or any(one.startswith(f"{name}/") for one in self._files) else None
        )

    def look_all(self, directory: Path, *inside: str) -> dict[str, Found]:
        start = "".join(f"{part}/" for part in inside[1:])
        names = {name[len(start) :].partition("/")[0] for name in self._files if name.startswith(start)}
        found = {name: self.look(directory, *inside, name) for name in names}
        return {name: one for name, one in found.items() if one is not None}

    def open(self, directory: Path, *inside: str) -> AbstractContextManager[Blob]:
        return self._open("/".join(inside[1:]))

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[Blob]:
        if name not in self._files:
            raise FileNotFoundError(2, "No such file or directory")
        yield MemoryBlob(self._files[name])


def checked(form: Format, files: dict[str, bytes]) -> None:
    """All that is done with a checkpoint of these files, but for reading what has a digest."""
    look = Look(MemoryStorage(files), Path("/"), ("ckpt",), Ledger(lambda _: None))
    form.recognise(look)
    with contextlib.suppress(OSError):
        form.peek(look)
    facts = Facts()
    with look.judging(""):
        facts = form.examine(look, Level.STRUCTURE)
    if not look.ledger.faults:
        with look.judging(""):
            for unit in facts.content():
                size_bytes = len(files["/".join(unit.file)])
                assert 0 <= unit.offset <= unit.offset + unit.size_bytes <= size_bytes, unit


def allowing(parse: Callable[[bytes], object]) -> Target:
    """Broken input raises ValueError, and nothing else."""

    def target(raw: bytes) -> None:
        with contextlib.suppress(ValueError):
            parse(raw)

    return target


def unpickled(raw: bytes) -> None:
    """Nothing comes out that could do anything."""
    value = inert.load(raw)
    plain = type(value) in (type(None), bool, int, float, str, bytes, tuple, list, inert.Map)
    of_stubs = isinstance(value, inert.Stub) or (isinstance(value, type) and issubclass(value, inert.Stub))
    assert plain or of_stubs or type(value).__name__ == "_Pair", type(value)


_SHARDS = dcp_files.shards_of(1, 1, floats=8)
_DCP = {name: b"".join(parts.values()) for name, parts in _SHARDS.items()}
_METADATA = dcp_files.metadata_bytes(dcp_files.metadata(_SHARDS))

TARGETS: dict[str, Target] = {
    "inert": allowing(unpickled),
    "zips": allowing(lambda raw: zips.read_zip(MemoryBlob(raw))),
    "torch": lambda raw: checked(torch.FORMAT, {"": raw}),
    "dcp_metadata": lambda raw: checked(dcp.FORMAT, {**_DCP, dcp.METADATA: raw}),
    "dcp_shard": lambda raw: checked(dcp.FORMAT, {**_DCP, "__0_0.distcp": raw, dcp.METADATA: _METADATA}),
}
SEEDS: dict[str, tuple[bytes, ...]] = {
    "inert": (pickled(torch_files.state()), pickled(torch_files.state(), 4), _METADATA),
    "zips": (torch_files.torch_bytes(None, {}),),
    "torch": (torch_files.torch_bytes(), torch_files.legacy_bytes()),
    "dcp_metadata": (_METADATA,),
    "dcp_shard": tuple(_DCP.values()),
}
RUNS, FEWER_RUNS = 20_000, {"torch": 10_000, "dcp_metadata": 5_000, "dcp_shard": 3_000}  # each some seconds
