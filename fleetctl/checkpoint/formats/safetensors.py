"""safetensors: weights in one file, or in shards with an index. Weights alone are no training to go on with.

A file is 8 bytes with the length of its header, the header in JSON, and the data of its tensors, without a gap. It
holds no checksum: what can be told is told by its header and its size. Rules and limits are those of the safetensors
library 0.8.0 (safetensors/src/tensor.rs: `read_metadata`, `validate`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from itertools import islice
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.json import Decoder

from fleetctl.checkpoint.format import MOST_TOLD, Facts, Format, gaps
from fleetctl.checkpoint.look import Look, Unjudged, moment, read_exactly
from fleetctl.checkpoint.model import Level
from fleetctl.checkpoint.storage import Blob, Kind

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".index.json"
_PREFIX_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000  # the library reads no larger one: MAX_HEADER_SIZE
_MOST_INDEX_BYTES = _MOST_HEADER_BYTES  # an index says less of each tensor than the headers of its shards
_MOST_ELEMENTS = 2**64  # the library counts in 64 bits
_METADATA = "__metadata__"
# Bits of one element; F4 and F6 are packed, and must end with a whole byte
_BITS: Mapping[str, int] = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})(?P<suffix>\.safetensors|\.bin)")

# torch's HuggingFaceStorageWriter, each rank its own (distributed/checkpoint/_hf_utils.py): there is no index of these
_OF_RANK = re.compile(r"shard-[0-9]{5}-(?=.)")

_Count = Annotated[int, Meta(ge=0)]


class _Tensor(Struct, frozen=True, gc=False):
    """What a header says of one tensor. The offsets count from the end of the header."""

    dtype: str
    shape: tuple[_Count, ...]
    data_offsets: tuple[_Count, _Count]


class _Index(Struct, frozen=True):
    weight_map: dict[str, str]  # `metadata.total_size` is not looked at: some write another count there


_INDEX = Decoder(_Index)
_TENSOR = Decoder(_Tensor)
_HEADER = Decoder(dict[str, msgspec.Raw])
_TEXTS = Decoder(dict[str, str] | None)
_T = TypeVar("_T")


class SafeFile(Struct, frozen=True):
    """One file that holds together."""

    size_bytes: int
    tensors: frozenset[str]


def check_safetensors(look: Look, name: str = "") -> SafeFile | None:
    """One file below `look`, or the file that it is. None after a fault, which is told."""
    with look.judging(name), look.open(name) as blob:
        return SafeFile(blob.size_bytes, frozenset(_read_header(blob)))
    return None


def check_index(look: Look, name: str, told: Set[str] = frozenset()) -> tuple[str, ...]:
    """The shards that an index names: each is there, whole, and holds the tensors that the index says.

    Returns their names; none when the index itself cannot be used. Faults are told, but of shards in `told`, which
    were told as missing before.
    """
    shards = read_index(look, name)
    for shard, wanted in shards.items():
        found = check_safetensors(look, shard) if shard not in told else None
        if found is not None and (lacking := wanted - found.tensors):
            look.wrong(shard, f"lacks {len(lacking)} of its {len(wanted)} tensors, such as {min(lacking)}")
    return tuple(shards)


def read_index(look: Look, name: str) -> dict[str, frozenset[str]]:
    """The tensors of each shard, by its name. Empty after a fault, which is told."""
    raw = look.read_whole(name, _MOST_INDEX_BYTES)
    if raw is None:
        return {}
    with look.judging(name):
        tensors: dict[str, set[str]] = {}
        for tensor, shard in _decode(_INDEX, raw, ": no index").weight_map.items():
            tensors.setdefault(shard, set()).add(tensor)
        if not tensors:
            raise ValueError(" names no tensor")
        if (strange := next((shard for shard in tensors if not _is_plain(shard)), None)) is not None:
            raise ValueError(f": names {strange!r}, which is no file beside it")
        return {shard: frozenset(names) for shard, names in sorted(tensors.items())}
    return {}


def tell_missing_shards(look: Look, names: Iterable[str]) -> frozenset[str]:
    """Shards say in their names how many there are: each that is not there is told, and returned. Of names alone."""
    found: dict[tuple[str, str], dict[int, set[int]]] = {}
    for said in filter(None, map(_SHARD.fullmatch, names)):
        # Not each rank has a part of each; but some rank has
        stem = _OF_RANK.sub("shard-*-", said["stem"], count=1)
        counts = found.setdefault((stem, said["suffix"]), {})
        counts.setdefault(int(said["count"]), set()).add(int(said["number"]))
    # With several counts some are of an older save: only the index tells which ones
    whole = ((kind, *counts.popitem()) for kind, counts in sorted(found.items()) if len(counts) == 1)
    lacking = (
        f"{stem}-{number:05d}-of-{count:05d}{suffix}"
        for (stem, suffix), count, numbers in whole
        for number in gaps(numbers | {0}, count + 1)
    )
    told = frozenset(islice(lacking, MOST_TOLD))
    for name in sorted(told):
        look.missing(name)
    return told


def index_of_shard(name: str) -> str | None:
    """The index that a shard belongs to, by its name; None for what is no shard, or has no index."""
    said = _SHARD.fullmatch(name)
    return None if said is None or _OF_RANK.match(name) else f"{said['stem']}{said['suffix']}{INDEX_SUFFIX}"


def recognise(look: Look) -> bool:
    """Any file with its suffix, or a folder with one or with an index."""
    if look.kind() is Kind.FILE:
        return look.name.endswith(SUFFIX)
    return look.kind() is Kind.FOLDER and any(name.endswith((SUFFIX, SUFFIX + INDEX_SUFFIX)) for name in look.names())


def examine(look: Look, level: Level) -> Facts:
    """Weights. Never something to go on training from."""
    if look.kind() is Kind.FILE:
        return _examine_file(look, level)
    names = look.names()
    indexes = {name for name in names if name.endswith(SUFFIX + INDEX_SUFFIX)}
    unwritten = {index for name in names if (index := index_of_shard(name)) and index.endswith(SUFFIX + INDEX_SUFFIX)}
    unwritten -= indexes
    for name in sorted(unwritten):  # transformers and accelerate write it after the shards
        look.missing(name)
    told = tell_missing_shards(look, names)
    look.passed(Level.NAMES)
    files = {name for name in names if name.endswith(SUFFIX)}
    if level >= Level.STRUCTURE:
        shards = {shard for index in sorted(indexes) for shard in check_index(look, index, told)}
        for name in sorted(files - shards):
            check_safetensors(look, name)
        look.passed(Level.STRUCTURE)
    found = look.children()
    return Facts(
        size_bytes=sum(one.size_bytes for one in found.values() if one.kind is Kind.FILE),
        saved_at=moment(max(found[name].modified_at_s for name in files | indexes)),
        resumable=False,
        uncommitted=bool(unwritten),
        unproved=tuple(sorted(files)),
    )


def _examine_file(look: Look, level: Level) -> Facts:
    look.passed(Level.NAMES)
    found = None
    if level >= Level.STRUCTURE:
        found = check_safetensors(look)
        look.passed(Level.STRUCTURE)
    return Facts(
        size_bytes=None if found is None else found.size_bytes,
        saved_at=moment(look.ledger.touched_at_s),
        resumable=False,
        unproved=(look.name,),
    )


def _read_header(blob: Blob) -> dict[str, _Tensor]:
    """:raises ValueError: the file is not whole. :raises Unjudged: a type of elements that is not known here."""
    if blob.size_bytes < _PREFIX_BYTES:
        raise ValueError(f"has {blob.size_bytes} bytes, too few for a header")
    length = int.from_bytes(read_exactly(blob, 0, _PREFIX_BYTES), "little")
    if length > min(_MOST_HEADER_BYTES, blob.size_bytes - _PREFIX_BYTES):
        raise ValueError(f": its header of {length} bytes is longer than the file or than any may be")
    tensors = parse_header(read_exactly(blob, _PREFIX_BYTES, length))
    wanted = _PREFIX_BYTES + length + max((one.data_offsets[1] for one in tensors.values()), default=0)
    if blob.size_bytes != wanted:
        raise ValueError(f"has {blob.size_bytes} bytes, not {wanted}")
    return tensors


def parse_header(raw: bytes) -> dict[str, _Tensor]:
    """The tensors of a header, which lie one behind the other.

    :raises ValueError: it cannot be. :raises Unjudged: a type of elements that is not known here.
    """
    said = _decode(_HEADER, raw, ": its header is no JSON")
    metadata = said.pop(_METADATA, None)
    if metadata is not None:
        _decode(_TEXTS, metadata, ": its metadata is no text")
    tensors = {name: _decode(_TENSOR, words, f": what its header says of {name}") for name, words in said.items()}
    place = 0
    for name, one in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        start, end = one.data_offsets
        if start != place:
            raise ValueError(f": {name} starts at byte {start} of the data, not {place}")
        if end - start != _data_bytes(name, one):
            raise ValueError(f": {name} has {end - start} bytes, which is not what its shape and type take")
        place = end
    return tensors


def _data_bytes(name: str, tensor: _Tensor) -> int | None:
    """None for what is no whole number of bytes, or more than there can be."""
    bits = _BITS.get(tensor.dtype)
    if bits is None:
        raise Unjudged(f"has elements of type {tensor.dtype}, which fleetctl does not know: {name}")
    elements = 1
    for size in tensor.shape:
        elements *= size
        if max(size, elements) >= _MOST_ELEMENTS:
            return None
    return elements * bits // 8 if elements * bits % 8 == 0 else None


def _decode(decoder: Decoder[_T], raw: bytes | msgspec.Raw, complaint: str) -> _T:
    """:raises ValueError: it is no JSON, or not of this kind."""
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise ValueError(f"{complaint}: too deep") from None
    except ValueError as error:
        raise ValueError(f"{complaint}: {error}") from None


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _no_step(_name: str) -> int | None:
    """What weights are called says nothing."""
    return None


FORMAT = Format(name="safetensors", step_named=_no_step, recognise=recognise, examine=examine)
