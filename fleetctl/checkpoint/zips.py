"""The directory of a zip file as torch.save writes it: what lies where, and its CRC32. Nothing is unpacked.

torch stores its entries uncompressed, one behind the other, so their places and sizes can be proved from the directory
and the local headers alone; what is compressed or encrypted is refused. Layout: PKWARE APPNOTE.TXT 6.3.

Other zips have the same ending of their name: a program (torch.jit.save has code/ and constants.pkl, torch.export has
no data.pkl). They are no checkpoints, and are not judged. torch.save writes data.pkl always, and whatever cut its file
short took the directory with it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

from msgspec import Struct

from fleetctl.checkpoint.look import Unjudged, read_exactly
from fleetctl.checkpoint.storage import Blob

_MOST_DIRECTORY_BYTES = 64 << 20
_MOST_ENTRIES = 1_000_000
_END = struct.Struct("<4sHHHHIIH")  # 4.3.16
END_BYTES, END_MAGIC = _END.size, b"PK\x05\x06"
_MOST_COMMENT_BYTES = 0xFFFF
_MOST = (0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)  # of its fields: the wide record has the value
_LOCATOR = struct.Struct("<4sIQI")  # 4.3.15
_LOCATOR_MAGIC = b"PK\x06\x07"
_END64 = struct.Struct("<4sQHHIIQQQQ")  # 4.3.14
_END64_MAGIC = b"PK\x06\x06"
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")  # 4.3.12
_CENTRAL_MAGIC = b"PK\x01\x02"
_LOCAL = struct.Struct("<4sHHHHHIIIHH")  # 4.3.7
_LOCAL_MAGIC = b"PK\x03\x04"
_ENCRYPTED = 1
_ZIP64_EXTRA = 1  # 4.5.3
_IN_EXTRA = 0xFFFFFFFF
_OF_PROGRAM = re.compile(rb"[^/]*/(?:code/.*|constants\.pkl)", re.DOTALL)  # torch/csrc/jit/serialization/export.cpp
_VALUE = b"/data.pkl"


class ZipEntry(Struct, frozen=True):
    """`offset` is where its bytes begin in the file that the zip lies in."""

    name: str
    offset: int
    size_bytes: int
    crc32: int


class Zip(Struct, frozen=True):
    """Entries in the order of the directory."""

    entries: tuple[ZipEntry, ...]


class _Listed(Struct, frozen=True):
    name: bytes
    header: int  # offset below the zip's start
    size_bytes: int
    crc32: int


def has_crcs(zipped: Zip) -> bool:
    """Whether its writer computed CRCs: torch can be told not to, and writes zeros then."""
    return any(entry.crc32 for entry in zipped.entries)


def read_zip(blob: Blob, start: int = 0, size: int | None = None) -> Zip:
    """The zip that fills `size` bytes from `start`, the rest of the file if None.

    :raises ValueError: it is broken; the words continue a name. :raises Unjudged: larger than is looked at.
    :raises OSError: it cannot be read now.
    """
    size = blob.size_bytes - start if size is None else size
    if size < 0 or start + size > blob.size_bytes:
        raise ValueError(f"ends before byte {start + size}")
    offset, length, count = _directory(blob, start, size)
    if length > _MOST_DIRECTORY_BYTES or count > _MOST_ENTRIES:
        raise Unjudged(f"has a zip directory of {count} entries, {length} bytes: more than is looked at")
    listed = _listed(read_exactly(blob, start + offset, length), count)
    return Zip(_placed(blob, start, offset, listed))


def _directory(blob: Blob, start: int, size: int) -> tuple[int, int, int]:
    """Offset, length and number of entries of the central directory; it ends where the end records begin."""
    tail_bytes = min(size, _END.size + _LOCATOR.size)
    tail = read_exactly(blob, start + size - tail_bytes, tail_bytes)
    place = len(tail) - _END.size
    if not _ends_here(tail, place):
        tail_bytes = min(size, _END.size + _LOCATOR.size + _MOST_COMMENT_BYTES)
        tail = read_exactly(blob, start + size - tail_bytes, tail_bytes)
        place = _found_end(tail)
    ends = size - len(tail) + place
    said = _END.unpack_from(tail, place)[1:7]
    if place >= _LOCATOR.size and tail.startswith(_LOCATOR_MAGIC, place - _LOCATOR.size):
        _, _, ends64, _ = _LOCATOR.unpack_from(tail, place - _LOCATOR.size)
        if ends64 + _END64.size > ends - _LOCATOR.size:
            raise ValueError(": its zip end record lies outside")
        magic, _, _, _, *wide = _END64.unpack(read_exactly(blob, start + ends64, _END64.size))
        agree = all(narrow in (full, most) for narrow, full, most in zip(said, wide, _MOST, strict=True))
        if magic != _END64_MAGIC or not agree:
            raise ValueError(": its zip end record is broken")
        said, ends = tuple(wide), ends64
    disk, first_disk, here, count, length, offset = said
    if disk or first_disk or here != count or offset + length != ends:
        raise ValueError(f": its zip directory ends at byte {offset + length}, not {ends}")
    return offset, length, count


def _ends_here(tail: bytes, place: int) -> bool:
    """Whether an end record lies at `place` whose comment ends with the file."""
    if place < 0 or not tail.startswith(END_MAGIC, place):
        return False
    return place + _END.size + int(_END.unpack_from(tail, place)[-1]) == len(tail)


def _found_end(tail: bytes) -> int:
    place = len(tail) - _END.size + len(END_MAGIC)
    while (place := tail.rfind(END_MAGIC, 0, max(0, place))) >= 0:
        if place + _END.size <= len(tail) and _ends_here(tail, place):
            return place
        place += len(END_MAGIC) - 1
    raise ValueError(": no zip directory at its end, it was cut short or never written to its end")


def _listed(directory: bytes, count: int) -> list[_Listed]:
    found, at, packed = list[_Listed](), 0, b""
    while at < len(directory):
        if at + _CENTRAL.size > len(directory):
            raise ValueError(": its zip directory is cut short")
        fields = _CENTRAL.unpack_from(directory, at)
        magic, flags, method, crc32, stored, size_bytes = (*fields[:1], *fields[3:5], *fields[7:10])
        name_bytes, extra_bytes, comment_bytes, header = (*fields[10:13], fields[16])
        names, at = at + _CENTRAL.size, at + _CENTRAL.size + name_bytes + extra_bytes + comment_bytes
        if magic != _CENTRAL_MAGIC or at > len(directory):
            raise ValueError(f": entry {len(found)} of its zip directory is broken")
        name = directory[names : names + name_bytes]
        if _IN_EXTRA in (stored, size_bytes, header):
            extra = directory[names + name_bytes : names + name_bytes + extra_bytes]
            size_bytes, stored, header = _wide(extra, size_bytes, stored, header)
        if method or flags & _ENCRYPTED or stored != size_bytes:
            packed = packed or name
        found.append(_Listed(name, header, size_bytes, crc32))
    if len(found) != count or len({entry.name for entry in found}) != count:
        raise ValueError(f": its zip directory has {len(found)} entries, not {count} of different names")
    _check_kind([entry.name for entry in found])
    if packed:
        raise ValueError(f": {packed!a} is compressed or encrypted, which torch never does")
    return found


def _check_kind(names: Iterable[bytes]) -> None:
    """A zip of something else, see above."""
    if any(map(_OF_PROGRAM.fullmatch, names)):
        raise Unjudged("is a program of torch.jit, not a checkpoint")
    if not any(name.endswith(_VALUE) for name in names):
        raise Unjudged("is a zip without data.pkl: not one of torch.save")


def _wide(extra: bytes, *values: int) -> tuple[int, ...]:
    """Those that do not fit in 32 bits stand in the extra field, one behind the other."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == _ZIP64_EXTRA:
            wide = struct.iter_unpack("<Q", extra[at + 4 : at + 4 + length // 8 * 8])
            try:
                return tuple(next(wide)[0] if value == _IN_EXTRA else value for value in values)
            except (StopIteration, RuntimeError, struct.error):
                break
        at += 4 + length
    raise ValueError(": its zip directory has no large sizes")


def _placed(blob: Blob, start: int, end: int, listed: list[_Listed]) -> tuple[ZipEntry, ...]:
    """With the offsets that the local headers tell; no two may overlap, none reaches into the directory."""
    ends = dict[int, int]()
    in_place = sorted(listed, key=lambda entry: entry.header)
    for entry, after in zip(in_place, [*in_place[1:], None], strict=True):
        most = end if after is None else after.header
        name = entry.name
        wanted = _LOCAL.size + len(name)
        if entry.header + wanted > most:
            raise ValueError(f": {name!a} reaches into what follows it")
        header = read_exactly(blob, start + entry.header, wanted)
        magic, *_, name_bytes, extra_bytes = _LOCAL.unpack_from(header)
        if magic != _LOCAL_MAGIC or name_bytes != len(name) or not header.endswith(name):
            raise ValueError(f": the header of {name!a} is broken")
        ends[entry.header] = entry.header + wanted + extra_bytes
        if ends[entry.header] + entry.size_bytes > most:
            raise ValueError(f": {name!a} reaches into what follows it")
    return tuple(
        ZipEntry(entry.name.decode("utf-8", "replace"), start + ends[entry.header], entry.size_bytes, entry.crc32)
        for entry in listed
    )
