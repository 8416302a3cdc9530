"""One shard file: written while its digest is computed, read and checked in one pass. Python 3.8 and newer."""

from __future__ import annotations

import importlib
import os
import threading
from typing import Any, BinaryIO, Callable, Sequence

from fleetctl.train.digests import Digest
from fleetctl.train.disk import CHUNK_BYTES, Disk, chunks
from fleetctl.train.layout import PREFIX_BYTES, Part, Said, ShardFile, parse_header, parse_prefix, shard_bytes
from fleetctl.train.payload import RawArray, back

_SMALL_BYTES = 1 << 20  # below this a second thread costs more than it saves


def write_shard(disk: Disk, path: str, pieces: Sequence[bytes | memoryview], kind: str) -> Said:
    """Size and digest of the new file, which is on disk when this returns. Raises OSError."""
    digest, stopped, complete = Digest(kind), threading.Event(), threading.Event()
    size = sum(len(piece) for piece in pieces)

    def feed() -> None:
        for chunk in chunks(pieces):
            if stopped.is_set():
                return
            digest.update(chunk)
        complete.set()

    if size < _SMALL_BYTES:
        feed()
        disk.write(path, pieces)
        return Said(size, digest.text(), None)
    beside = threading.Thread(target=feed, name="fleetctl-digest")
    try:
        beside.start()
    except RuntimeError:  # no more threads for this user: slower, but written
        feed()
        disk.write(path, pieces)
        return Said(size, digest.text(), None)
    try:
        disk.write(path, pieces)
    except BaseException:
        stopped.set()
        raise
    finally:
        beside.join()
    if not complete.is_set():
        raise MemoryError("the digest of the shard could not be computed")
    return Said(size, digest.text(), None)


def read_shard(folder: str, told: ShardFile) -> dict[str, Any]:
    """The state in a shard. Raises ValueError if the file is not what the manifest says, OSError, DigestMissing."""
    digest = Digest(told.digest.partition(":")[0])
    with open(os.path.join(folder, told.name), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size != told.bytes:
            raise ValueError(f"{told.name} has {size} bytes, not {told.bytes}")
        length = parse_prefix(bytes(_read(file, PREFIX_BYTES, digest.update)))
        if PREFIX_BYTES + length > size:
            raise ValueError(f"{told.name} ends within its header")
        parts = parse_header(bytes(_read(file, length, digest.update)))
        if shard_bytes(length, parts) != size:
            raise ValueError(f"the entries of {told.name} do not end where the file ends")
        values = [(part, _read_value(file, part, digest.update)) for part in parts]
    if digest.text() != told.digest:
        raise ValueError(f"{told.name} has the digest {digest.text()}, not {told.digest}")
    return {part.name: back(part, value) for part, value in values}


def _read_value(file: BinaryIO, part: Part, seen: Callable[[memoryview], None]) -> Any:
    if part.kind != "array" or part.dtype is None or part.shape is None:
        return bytes(_read(file, part.bytes, seen))
    try:
        numpy: Any = importlib.import_module("numpy")
    except ImportError:
        return RawArray(part.dtype, part.shape, bytes(_read(file, part.bytes, seen)))
    try:
        array = numpy.empty(part.shape, part.dtype)
    except (TypeError, ValueError, OverflowError) as error:  # a length or unit that NumPy does not take
        raise ValueError(f"the array {part.name!r} cannot be made: {error}") from error
    if array.nbytes:
        _fill(file, memoryview(array.reshape(-1).view("u1")), seen)
    return array


def _read(file: BinaryIO, size: int, seen: Callable[[memoryview], None]) -> bytearray:
    data = bytearray(size)
    _fill(file, memoryview(data), seen)
    return data


def _fill(file: BinaryIO, target: memoryview, seen: Callable[[memoryview], None]) -> None:
    while target:
        count = file.readinto(target[:CHUNK_BYTES])  # type: ignore[attr-defined]
        if not count:
            raise ValueError("the file became shorter while it was read")
        seen(target[:count])
        target = target[count:]
