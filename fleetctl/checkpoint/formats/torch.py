"""Checkpoints in one file, as torch.save writes them: a zip with a pickle and one entry for each storage.

Since torch 1.6 the file is a zip whose directory stands at the end, so whatever cut it short shows. Its CRC32s are in
the directory (all zero if the writer was told to compute none). Before, and with
`_use_new_zipfile_serialization=False`, it is a chain of pickles with the bare storages behind: no checksum.
Source: torch/serialization.py of torch 2.13. Other formats use the helpers for the files inside them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from zlib import crc32

from fleetctl.checkpoint import inert
from fleetctl.checkpoint.format import Facts, Format, Unit, as_step
from fleetctl.checkpoint.look import Look, Unjudged, moment, read_exactly
from fleetctl.checkpoint.model import Level
from fleetctl.checkpoint.storage import Blob, Kind
from fleetctl.checkpoint.zips import Zip, ZipEntry, has_crcs, read_zip

ZIP_MAGIC = b"PK\x03\x04"
LEGACY_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e"  # torch.serialization.MAGIC_NUMBER
_PICKLE, _BYTE_ORDER, _MOST_ORDER_BYTES = "/data.pkl", "/byteorder", 16
_SMALL_BYTES = 4096
_MOST_PICKLE_BYTES = 64 << 20  # some 300,000 tensors
_LEGACY_PICKLES, _LEGACY_VALUE, _COUNT_BYTES, _LEAST_STORAGE_PARTS = 5, 3, 8, 5
# torch.storage._dtype_to_storage_type_map of torch 2.13
_ELEMENT_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("ByteStorage", "CharStorage", "BoolStorage", "UntypedStorage", "QInt8Storage"), 1),
    **dict.fromkeys(("QUInt8Storage", "QUInt4x2Storage", "QUInt2x4Storage"), 1),
    **dict.fromkeys(("ShortStorage", "HalfStorage", "BFloat16Storage"), 2),
    **dict.fromkeys(("IntStorage", "FloatStorage", "QInt32Storage"), 4),
    **dict.fromkeys(("LongStorage", "DoubleStorage", "ComplexFloatStorage"), 8),
    "ComplexDoubleStorage": 16,
}
_ENDINGS = (".pt", ".pth", ".ckpt")
STEP_KEYS = ("global_step", "step", "iteration", "training_step")
# ckpt_500.pt, model_step500.pth, checkpoint-500.pt, epoch_3.pt; composer: ep1-ba200-rank0.pt (1.9)
_NAMED = re.compile(
    r"(?!hpc_ckpt_)"  # Lightning's, which count saves
    r"(?:.*[^a-z])?(?:step|steps|ckpt|checkpoint|iter|iteration|epoch|model|state)[-_=.]?([0-9]{1,18})\.(?:pt|pth|ckpt)",
    re.IGNORECASE,
)
_COMPOSER = re.compile(r"ep[0-9]+-ba([0-9]{1,18})(?:-rank[0-9]+)?\.pt")


def step_named(name: str) -> int | None:
    """As in ckpt_500.pt and model_step500.pth; the number of an epoch counts as a step."""
    found = _COMPOSER.fullmatch(name) or _NAMED.fullmatch(name)
    return None if found is None else int(found[1])


def recognise(look: Look) -> bool:
    """A file with an ending that is torch's, or with its first bytes."""
    if look.kind() is not Kind.FILE:
        return False
    return look.name.endswith(_ENDINGS) or begins_as_torch(look)


def begins_as_torch(look: Look, name: str = "") -> bool:
    """Whether the first bytes of a file are those of torch.save. :raises OSError: it cannot be read."""
    with look.open(name) as blob:
        head = blob.read(0, min(blob.size_bytes, 1024))
    # The pickle is the first entry, the length of its name at byte 26, the name at byte 30
    return head.startswith(LEGACY_MAGIC) or (
        head.startswith(ZIP_MAGIC) and head[30 : 30 + int.from_bytes(head[26:28], "little")].endswith(b"/data.pkl")
    )


def examine(look: Look, level: Level) -> Facts:
    """The zip directory and the pickle in it, or the chain of pickles and the sizes behind it."""
    if look.kind() is not Kind.FILE:
        look.wrong("", "is no file")
        return Facts()
    saved_at = moment(look.ledger.touched_at_s)
    look.passed(Level.NAMES)
    found = check_torch_file(look, "") if level >= Level.STRUCTURE else None
    if found is None:
        return Facts(saved_at=saved_at)
    with look.open() as blob:
        size_bytes = blob.size_bytes
    step = _checked_step(look, found)
    look.passed(Level.STRUCTURE)
    return Facts(
        training_step=step,
        size_bytes=size_bytes,
        saved_at=saved_at,
        content=lambda: units_of(look, "", found),
        unproved=() if has_crcs(found) else (look.name,),
    )


def peek(look: Look) -> int | None:
    """The step that the pickle says, if it can be read."""
    with contextlib.suppress(ValueError), look.open() as blob:
        return step_of(value_in(blob, _read_torch(blob)))
    return None


def check_torch_file(look: Look, name: str) -> Zip | None:
    """The structure of one file of torch.save below `look`, "" for the look's own. None after a fault was told.

    One of the old kind has no entries: its pickles and the sizes of its storages were checked.
    """
    with look.judging(name), look.open(name) as blob:
        return _read_torch(blob)
    return None


def pickle_of(look: Look, name: str, zipped: Zip) -> object:
    """What such a file holds, with inert stubs for all but plain values. None after a fault was told."""
    with look.judging(name), look.open(name) as blob:
        return value_in(blob, zipped)
    return None


def units_of(look: Look, name: str, zipped: Zip) -> Iterator[Unit]:
    """What CONTENT reads of such a file; nothing if it has no CRCs, see `has_crcs`."""
    with look.judging(name), look.open(name) as blob:
        yield from units_in(look, name, blob, zipped)


def units_in(look: Look, name: str, blob: Blob, zipped: Zip) -> Iterator[Unit]:
    """The same for a zip in an open file. Its small entries are read at once, as handing one out takes longer.

    :raises ValueError: one of them has another content. :raises OSError: it cannot be read now.
    """
    for entry in zipped.entries if has_crcs(zipped) else ():
        if entry.size_bytes > _SMALL_BYTES:
            digest, piece = f"crc32:{entry.crc32:08x}", ascii(entry.name)[1:-1]
            yield Unit(look.inner(name), entry.offset, entry.size_bytes, digest, piece)
        else:
            _entry_bytes(blob, entry, proved=True)


def value_in(blob: Blob, zipped: Zip) -> object:
    """What the pickle in it says; inert stubs for all but plain values.

    :raises ValueError: it is broken. :raises Unjudged: it is refused or too large. :raises OSError: not readable now.
    """
    if not zipped.entries:
        return _legacy(blob)
    entry = _entry(zipped, _PICKLE)
    if entry.size_bytes > _MOST_PICKLE_BYTES:
        raise Unjudged(f"has a pickle of {entry.size_bytes} bytes, more than the {_MOST_PICKLE_BYTES} looked at")
    return inert.load(_entry_bytes(blob, entry, proved=has_crcs(zipped)))


def step_of(value: object) -> int | None:
    """The training step that a dict says at its top, one of plain values or an OrderedDict."""
    found = value.items if isinstance(value, inert.Stub) else value
    if not isinstance(found, inert.Map):
        return None
    steps = (found.get(key) for key in STEP_KEYS)
    return next((step for value in steps if (step := as_step(value)) is not None), None)


def _checked_step(look: Look, zipped: Zip) -> int | None:
    """A pickle that is whole by its CRC and of a kind that is not looked at is no fault."""
    with look.judging(""), look.open() as blob:
        try:
            return step_of(value_in(blob, zipped))
        except Unjudged:
            return None
    return None


def _read_torch(blob: Blob) -> Zip:
    if blob.size_bytes == 0:
        raise ValueError("has 0 bytes")
    if blob.read(0, len(LEGACY_MAGIC)) == LEGACY_MAGIC:
        _legacy(blob)
        return Zip(())
    zipped = read_zip(blob)
    _entry(zipped, _PICKLE)
    order = [entry for entry in zipped.entries if entry.name.endswith(_BYTE_ORDER)]
    for entry in order:
        said = read_exactly(blob, entry.offset, min(entry.size_bytes, _MOST_ORDER_BYTES))
        if said not in (b"little", b"big"):
            raise ValueError(f": its byte order is {ascii(said)[1:]}")
    return zipped


def _entry(zipped: Zip, ending: str) -> ZipEntry:
    found = [entry for entry in zipped.entries if entry.name.endswith(ending) and entry.name.count("/") == 1]
    if len(found) != 1:
        raise ValueError(f": it has {len(found)} entries named */data.pkl, not one")
    return found[0]


def _entry_bytes(blob: Blob, entry: ZipEntry, *, proved: bool) -> bytes:
    raw = read_exactly(blob, entry.offset, entry.size_bytes)
    if proved and crc32(raw) != entry.crc32:
        raise ValueError(f": {entry.name!a} has another content than was written")
    return raw


def _legacy(blob: Blob) -> object:
    """Magic, protocol, machine, the value, keys of its storages, then each one: a count in 8 bytes, and the elements.

    As torch.serialization._legacy_save of torch 2.13.
    """
    raw = blob.read(0, min(blob.size_bytes, _MOST_PICKLE_BYTES))
    values, at = list[object](), 0
    storages = dict[object, int]()
    try:
        for _ in range(_LEGACY_PICKLES):
            value, at, persistent = inert.load_first(raw, at)
            values.append(value)
            storages.update(_storage(stub.args) for stub in persistent)
    except Unjudged:
        raise
    except ValueError:
        if len(raw) < blob.size_bytes:
            raise Unjudged(f"has pickles of more than the {_MOST_PICKLE_BYTES} bytes looked at") from None
        raise
    keys = values[-1]
    if not isinstance(keys, list) or set(map(type, keys)) - {str}:
        raise ValueError(": its list of storages is broken")
    for key in keys:
        count = int.from_bytes(read_exactly(blob, at, _COUNT_BYTES), "little")
        if key not in storages:
            raise ValueError(f": {key!a} is no storage that its pickle knows")
        at += _COUNT_BYTES + count * storages[key]
    if at != blob.size_bytes:
        raise ValueError(f"has {blob.size_bytes} bytes, not {at}")
    return values[_LEGACY_VALUE]


def _storage(said: tuple[object, ...]) -> tuple[str, int]:
    """Key and element size from ("storage", class, key, place, count, view)."""
    if len(said) >= _LEAST_STORAGE_PARTS and isinstance(said[1], type) and issubclass(said[1], inert.Stub):
        size_bytes = _ELEMENT_BYTES.get(said[1].named.rpartition(".")[2])
        if size_bytes is not None and isinstance(said[2], str):
            return said[2], size_bytes
    raise Unjudged("has a storage of a kind that fleetctl does not know")


FORMAT = Format(name="torch", step_named=step_named, recognise=recognise, examine=examine, peek=peek)
