"""The file `.metadata` of torch.distributed.checkpoint: which value has which slices, and where they lie.

It is a pickle of `Metadata`; a name in it that is none of DCP's is refused. `state_dict_metadata` describes each value,
a tensor with all its pieces, `storage_data` says where the slices lie. A value with fewer slices than pieces cannot be
loaded (as after Megatron-LM#4378). Source: torch/distributed/checkpoint/metadata.py of torch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from fleetctl.checkpoint import inert
from fleetctl.checkpoint.look import Look, Unjudged, read_exactly
from fleetctl.checkpoint.storage import Blob

_MOST_METADATA_BYTES = 256 << 20  # a million slices have about 200 MiB
_MOST_NAMED = 20  # of the values without data
_MODULE = "torch.distributed.checkpoint"
_GLOBALS = frozenset(
    [
        ("torch.serialization", "_get_layout"),
        (f"{_MODULE}.filesystem", "_StorageInfo"),
        *(  # megatron-core keeps the plan of each rank in the metadata, as `all_local_plans`
            (f"{_MODULE}.planner", name)
            for name in ("BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")
        ),
        *(
            (f"{_MODULE}.metadata", name)
            for name in (
                *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta"),
                *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
            )
        ),
        *(  # before torch 2.3
            ("torch.distributed._shard.sharded_tensor.metadata", name)
            for name in ("TensorProperties", "MEM_FORMAT_ENCODING")
        ),
        *(
            (module, name)
            for module in ("pathlib", "pathlib._local")
            for name in ("Path", "PosixPath", "PurePath", "PurePosixPath", "WindowsPath", "PureWindowsPath")
        ),
    ]
)
_OF_TORCH = re.compile(r"Size|bool|bit|(?:bfloat|float|complex|q?u?int|bits)[0-9]+(?:x[0-9]+|_[a-z0-9]+)*")
_BYTES = f"{_MODULE}.metadata.BytesStorageMetadata"
_PLACE_KEYS = ["relative_path", "offset", "length"]

Counts = Mapping[str, int]  # of slices, by the name of the value


class Slice(Struct, frozen=True, gc=False):
    """Bytes of a shard. `plain`: through no transformation. `bare`: not of a tensor, and may be no zip."""

    offset: int
    size_bytes: int
    plain: bool = True
    bare: bool = False


Slices = Mapping[str, list[Slice]]  # by the name of the shard


def slices_of(look: Look, says: Sequence[str]) -> Slices | None:
    """What the metadata says lies where; None after a fault. Values without data are told."""
    slices, whole = dict[str, list[Slice]](), True
    described, counts = list[tuple[str, inert.Stub]](), dict[str, int]()
    for name in says:
        read = False
        with look.judging(name), look.open(name) as blob:
            metadata = read_metadata(blob)
            values = _described(metadata)
            described += values.items()
            for index, info in entries(metadata):
                of = name_of(index)
                if of not in values:
                    raise ValueError(f"has a slice of {of!a}, which it does not describe")
                shard, part = place(info, bare=values[of].named == _BYTES)
                slices.setdefault(shard, []).append(part)
                counts[of] = counts.get(of, 0) + 1
            read = True
        whole = whole and read
    if whole:
        _tell_without_data(look, says[0], described, counts)
    return slices if whole else None


def _described(metadata: inert.Map) -> dict[str, inert.Stub]:
    """What is said of each value: of a tensor, or of bytes."""
    known = metadata.get("state_dict_metadata")
    if not isinstance(known, inert.Map):
        raise ValueError("describes no value")
    return {name: value for name, value in known.items() if type(name) is str and isinstance(value, inert.Stub)}


def _tell_without_data(look: Look, file: str, described: Iterable[tuple[str, inert.Stub]], have: Counts) -> None:
    wanted = dict[str, int]()
    for name, value in described:
        wanted[name] = wanted.get(name, 0) + _pieces(value)
    short = sorted(name for name, count in wanted.items() if have.get(name, 0) < count)
    for name in short[:_MOST_NAMED]:
        some = f"only {have[name]} of the {wanted[name]} pieces of its" if name in have else "no"
        look.missing(file, f": {name!a} has {some} data")
    if len(short) > _MOST_NAMED:
        look.missing(file, f": {len(short) - _MOST_NAMED} more have no data")


def _pieces(described: inert.Stub) -> int:
    """How many slices it has; pieces at the same place are one, as their index in the metadata is."""
    if described.named == _BYTES:
        return 1
    chunks = _value_of(described.state, 4, "chunks") if isinstance(described.state, inert.Map) else None
    if not isinstance(chunks, list):
        return 1
    return len(chunks) if len(chunks) < 2 else len({_offsets(chunk) for chunk in chunks})


def _offsets(chunk: object) -> tuple[object, ...] | int:
    """Where a piece of a tensor begins in it; what does not say counts as another one."""
    state = chunk.state if isinstance(chunk, inert.Stub) else None
    size = state.get("offsets") if isinstance(state, inert.Map) else None
    place = size.args[0] if isinstance(size, inert.Stub) and len(size.args) == 1 else None
    return place if isinstance(place, tuple) and set(map(type, place)) <= {int} else id(chunk)


def read_metadata(blob: Blob) -> inert.Map:
    """The state of its Metadata. :raises ValueError: as for `inert.load`. :raises Unjudged: likewise."""
    if blob.size_bytes > _MOST_METADATA_BYTES:
        raise Unjudged(f"has {blob.size_bytes} bytes, more than the {_MOST_METADATA_BYTES} that are looked at")
    value = inert.load(read_exactly(blob, 0, blob.size_bytes), _allowed)
    state = value.state if isinstance(value, inert.Stub) and value.named == f"{_MODULE}.metadata.Metadata" else None
    if isinstance(state, inert.Map):
        return state
    raise ValueError("is no metadata of torch.distributed.checkpoint")


def _allowed(module: str, name: str) -> bool:
    return (module, name) in _GLOBALS or (module == "torch" and _OF_TORCH.fullmatch(name) is not None)


def entries(metadata: inert.Map) -> Iterator[tuple[object, object]]:
    """Its slices: of what, and where they lie. :raises ValueError: it says none."""
    places = metadata.get("storage_data")
    if not isinstance(places, inert.Map):
        raise ValueError("says of no slice where it lies")
    return places.items()


def place(info: object, *, bare: bool = False) -> tuple[str, Slice]:
    """The shard that a slice lies in, and where. :raises ValueError: nowhere, or outside."""
    state = info.state if isinstance(info, inert.Stub) else None
    if not isinstance(state, inert.Map):
        raise ValueError("has a slice that lies nowhere")
    # A list of its three keys and values, as torch writes it; any other order is looked up
    plain = state[::2] == _PLACE_KEYS
    name, offset, size_bytes = state[1::2] if plain else map(state.get, _PLACE_KEYS)
    if type(name) is not str or type(offset) is not int or type(size_bytes) is not int:
        raise ValueError("has a slice that lies nowhere")
    if offset < 0 or size_bytes < 0 or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"has a slice outside its folder or file ({name!a}, byte {offset})")
    return name, Slice(offset, size_bytes, plain or state.get("transform_descriptors") is None, bare)


def name_of(index: object) -> str:
    """Of what a slice is, "" if it does not say."""
    state = index.state if isinstance(index, inert.Stub) else None
    name = _value_of(state, 0, "fqn") if isinstance(state, inert.Map) else None
    return name if isinstance(name, str) else ""


def _value_of(state: inert.Map, at: int, key: str) -> object:
    """The value of a key, which torch writes there; looking it up takes a fifth of the time of it all."""
    return state[at + 1] if len(state) > at + 1 and state[at] == key else state.get(key)
