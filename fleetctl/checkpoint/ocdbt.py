"""The files that an OCDBT database needs: tensorstore's key-value store, where Orbax keeps arrays.

Its manifest names a root, and the nodes of its tree name the files that hold the values. Manifest and nodes carry a
CRC-32C; the values carry nothing. The format is described in tensorstore/kvstore/ocdbt/index.rst.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from fleetctl.checkpoint import zstd
from fleetctl.checkpoint.look import Look, read_exactly

MANIFEST = "manifest.ocdbt"
_MANIFEST_MAGIC, _NODE_MAGIC = b"\x0c\xdb\x3a\x2a", b"\x0c\xdb\x20\xde"
_HEADER_BYTES, _CRC_BYTES = 12, 4
_MOST_BYTES = 8 << 20  # of one node as stored: some 100,000 arrays; more would be slow in Python
_MOST_UNPACKED_BYTES = 16 << 20
_MOST_IN_ALL_BYTES = 32 << 20
_NODE_BYTES = 1024  # that each node counts more than it has: an open takes as long as to unpack so much
_MOST_NAMED = 100_000  # nodes in all; files that one node names
_MOST_PATH_BYTES = 4096
_NOWHERE = 1 << 63  # an offset beyond it says that there is no root: the database is empty
_POLYNOMIAL = 0x82F63B78  # of CRC-32C (RFC 3720, appendix B.4), bits reversed


class Needed(Struct, frozen=True):
    """The files with values, by path. `all_known`: the whole tree was followed."""

    files: frozenset[str]
    all_known: bool


class _Beyond(Exception):
    """It may be right, and is too large to be followed here, or of a kind that is not known."""


class _Place(Struct, frozen=True):
    """Bytes of a file. Paths in what lies there begin with `base`."""

    base: str
    path: str
    offset: int
    size_bytes: int


class _Fields:
    """A cursor over unpacked bytes. :raises ValueError: it comes to their end."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = raw, 0

    def take(self, size: int) -> bytes:
        if self._at + size > len(self._raw):
            raise ValueError("ends inside a field")
        self._at += size
        return self._raw[self._at - size : self._at]

    def number(self) -> int:
        """A varint of at most 64 bits."""
        value = 0
        for shift in range(0, 64, 7):
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("has a number without an end")

    def numbers(self, count: int) -> list[int]:
        if self._at + count > len(self._raw):
            raise ValueError("ends inside a field")
        return [self.number() for _ in range(count)]


def files_needed(look: Look, folder: str, sizes: Mapping[str, int]) -> Needed:
    """Follow the database in `folder`, a path that ends in a slash or is empty.

    `sizes` are all files of the checkpoint by path. What is missing, too short or broken is told.
    """
    walk = _Walk(look, folder, sizes)
    try:
        with look.judging(f"{folder}{MANIFEST}"):
            walk.follow(_root(_manifest(look, f"{folder}{MANIFEST}")))
            return Needed(frozenset(walk.needed), all_known=True)
    except _Beyond:
        pass
    return Needed(frozenset(walk.needed), all_known=False)


class _Walk:
    """From node to node. `needed` are the files with values."""

    def __init__(self, look: Look, folder: str, sizes: Mapping[str, int]) -> None:
        self._look, self._folder, self._sizes = look, folder, sizes
        self._told, self._left_bytes = set[str](), _MOST_IN_ALL_BYTES
        self.needed = set[str]()

    def follow(self, root: list[_Place]) -> None:
        todo, seen = list(root), set(root)
        while todo:
            new = [child for child in self._children(todo.pop()) if child not in seen]
            seen.update(new)
            if len(seen) > _MOST_NAMED:
                raise _Beyond
            todo += new

    def _children(self, place: _Place) -> list[_Place]:
        """What this node refers to; none when it is not there or broken."""
        path = self._found(place)
        if path is None:
            return []
        if place.size_bytes > _MOST_BYTES:
            raise _Beyond
        self._charge(_NODE_BYTES + place.size_bytes)  # before it fails: one that is broken costs as much
        with self._look.judging(path), self._look.open(path) as blob:
            raw = _unpacked(read_exactly(blob, place.offset, place.size_bytes), _NODE_MAGIC)
            self._charge(max(len(raw) - place.size_bytes, 0))
            children, values = _node(_Fields(raw), place.base)
            self.needed.update(found for value in values if (found := self._found(value)) is not None)
            return children
        return []

    def _charge(self, size_bytes: int) -> None:
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise _Beyond

    def _found(self, place: _Place) -> str | None:
        """Its path if so much is there; else it is told, once for each file."""
        path = f"{self._folder}{place.base}{place.path}"
        size, wanted = self._sizes.get(path), place.offset + place.size_bytes
        if size is not None and size >= wanted:
            return path
        if path not in self._told:
            self._told.add(path)
            if size is None:
                self._look.missing(path)
            else:
                self._look.wrong(path, f"has {size} bytes, and {wanted} are needed")
        return None


def _manifest(look: Look, name: str) -> bytes:
    with look.open(name) as blob:
        if blob.size_bytes > _MOST_BYTES:
            raise ValueError(f"has {blob.size_bytes} bytes, more than any manifest")
        return _unpacked(read_exactly(blob, 0, blob.size_bytes), _MANIFEST_MAGIC)


def _unpacked(raw: bytes, magic: bytes) -> bytes:
    """The body of a manifest or node. :raises ValueError: it is broken."""
    if len(raw) < _HEADER_BYTES + _CRC_BYTES:
        raise ValueError(f"has {len(raw)} bytes, less than its header")
    if raw[:4] != magic:
        raise ValueError(f"starts with {raw[:4].hex()}, not {magic.hex()}")
    if (length := int.from_bytes(raw[4:_HEADER_BYTES], "little")) != len(raw):
        raise ValueError(f"says that it has {length} bytes, not {len(raw)}")
    if crc32c(raw[:-_CRC_BYTES]) != int.from_bytes(raw[-_CRC_BYTES:], "little"):
        raise ValueError("has another content than its CRC-32C")
    version, packing = raw[_HEADER_BYTES : _HEADER_BYTES + 2]
    body = raw[_HEADER_BYTES + 2 : -_CRC_BYTES]
    if version != 0 or packing not in (0, 1):
        raise _Beyond
    try:
        return zstd.unpack(body, _MOST_UNPACKED_BYTES) if packing else body
    except zstd.TooLarge:
        raise _Beyond from None


def _root(body: bytes) -> list[_Place]:
    """The root of the newest version; nothing for an empty database."""
    fields = _Fields(body)
    fields.take(16)  # its identity
    if fields.number() != 0:
        raise _Beyond  # manifests in many files, which Orbax does not write
    fields.numbers(2)  # limits of a value and of a node
    fields.take(1)  # arity
    if fields.number() != 0:
        fields.take(4)  # how it is packed, and the level
    files = _files(fields)
    count = fields.number()
    fields.numbers(count)  # generations
    fields.take(count)  # heights
    ids, offsets, lengths = fields.numbers(count), fields.numbers(count), fields.numbers(count)
    if not count or offsets[-1] >= _NOWHERE:
        return []
    return [_place(files, ids[-1], offsets[-1], lengths[-1], "")]


def _node(fields: _Fields, base: str) -> tuple[list[_Place], list[_Place]]:
    """Nodes below this one, and how much of which file its values need."""
    height = fields.take(1)[0]
    files = _files(fields)
    count = fields.number()
    fields.numbers(max(count - 1, 0))  # how much of its key each shares with the one before
    suffixes = fields.numbers(count)
    if height and count > _MOST_NAMED:
        raise _Beyond
    if height:
        fields.numbers(count)  # how much of the key all below it share
    fields.take(sum(suffixes))
    if height:
        ids, offsets, lengths = fields.numbers(count), fields.numbers(count), fields.numbers(count)
        return [_place(files, *one, base) for one in zip(ids, offsets, lengths, strict=True)], []
    lengths, kinds = fields.numbers(count), fields.numbers(count)
    lengths = [length for length, kind in zip(lengths, kinds, strict=True) if kind]  # 0 lies in the node
    ids, offsets = fields.numbers(len(lengths)), fields.numbers(len(lengths))
    ends = dict[int, int]()
    for file, offset, length in zip(ids, offsets, lengths, strict=True):
        ends[file] = max(ends.get(file, 0), offset + length)
    return [], [_place(files, file, 0, end, base) for file, end in ends.items()]


def _place(files: list[tuple[str, str]], file: int, offset: int, size_bytes: int, base: str) -> _Place:
    if file >= len(files):
        raise ValueError("refers to a file that it does not name")
    more, path = files[file]
    return _Place(base + more, path, offset, size_bytes)


def _files(fields: _Fields) -> list[tuple[str, str]]:
    """The table of files: the part of each path that its content inherits, and the rest."""
    count = fields.number()
    if count > _MOST_NAMED:
        raise _Beyond
    shared = [0, *fields.numbers(max(count - 1, 0))]
    suffixes, bases = fields.numbers(count), fields.numbers(count)
    if sum(suffixes) + sum(shared) > _MOST_UNPACKED_BYTES:
        raise _Beyond
    before, files = b"", list[tuple[str, str]]()
    for share, suffix, base in zip(shared, suffixes, bases, strict=False):
        before = before[:share] + fields.take(suffix)
        if len(before) > _MOST_PATH_BYTES:
            raise ValueError("names a path that is too long")
        files.append((before[:base].decode("utf-8", "replace"), before[base:].decode("utf-8", "replace")))
    return files


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC_TABLE = _crc_table()


def crc32c(raw: bytes) -> int:
    """CRC-32C (Castagnoli). Some 10 MB/s: for small things."""
    value, table = 0xFFFFFFFF, _CRC_TABLE
    for byte in raw:
        value = table[(value ^ byte) & 255] ^ value >> 8
    return value ^ 0xFFFFFFFF
