"""Folders of torch.distributed.checkpoint without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tests.formats.pickles import Made, Named, pickled
from tests.formats.torch import data, tensor, torch_bytes

MODULE = "torch.distributed.checkpoint"
SAVED_AT_S = 1_767_225_600.0  # 2026-01-01
_LAST = {"metadata": f"{MODULE}.metadata", "filesystem": f"{MODULE}.filesystem"}


def of(name: str, state: object, module: str = "metadata") -> Made:
    """One of its dataclasses."""
    return Made(Named(_LAST[module], name), state=state, new=True)


def size(*lengths: int) -> Made:
    """A torch.Size."""
    return Made(Named("torch", "Size"), (lengths,))


def slice_bytes(number: int, floats: int, *, crcs: bool = True) -> bytes:
    """One tensor as DCP writes it into a shard."""
    return torch_bytes(tensor(0, floats), {0: data(floats) + bytes([number % 256]) * 4}, crcs=crcs)


def value_bytes(value: object) -> bytes:
    """One value that is no tensor."""
    return torch_bytes(value, {})


def shards_of(ranks: int = 2, tensors: int = 2, *, floats: int = 200, crcs: bool = True) -> dict[str, dict[str, bytes]]:
    """Slices by the name of the shard and that of the value; rank 0 has a step as well."""
    found: dict[str, dict[str, bytes]] = {}
    for rank in range(ranks):
        parts = {f"model.{rank}.w{number}": slice_bytes(10 * rank + number, floats) for number in range(tensors)}
        if not crcs:
            parts = {name: slice_bytes(rank, floats, crcs=False) for name in parts}
        found[f"__{rank}_0.distcp"] = parts
    found["__0_0.distcp"]["step"] = value_bytes(5) if crcs else slice_bytes(0, 1, crcs=False)
    return found


def metadata(shards: Mapping[str, Mapping[str, bytes]], **change: object) -> dict[str, object]:
    """The state of its Metadata."""
    described: dict[str, object] = {}
    places: dict[Made, object] = {}
    for shard, parts in shards.items():
        offset = 0
        for name, raw in parts.items():
            described[name] = described_as(name, raw)
            place = {"relative_path": shard, "offset": offset, "length": len(raw)}
            index = {"fqn": name, "offset": None if name == "step" else size(0), "index": None if name == "step" else 0}
            places[of("MetadataIndex", index)] = of("_StorageInfo", place, "filesystem")
            offset += len(raw)
    storage_meta = {"checkpoint_id": Made(Named("pathlib", "PosixPath"), ("/", "ckpt")), "save_id": "a", "modules": []}
    return {
        "state_dict_metadata": described,
        "planner_data": {name: tuple(name.split(".")) for name in described},
        "storage_data": places,
        "storage_meta": of("StorageMeta", storage_meta),
        "version": "1.0.0",
        **change,
    }


def described_as(name: str, raw: bytes = b"PK", pieces: int = 1) -> Made:
    """A tensor in so many pieces; what is called "step", or is no zip, is none."""
    if name == "step" or not raw.startswith(b"PK"):
        return of("BytesStorageMetadata", {})
    layout = Made(Named("torch.serialization", "_get_layout"), ("torch.strided",))
    encoding = Made(Named(_LAST["metadata"], "_MEM_FORMAT_ENCODING"), (0,))
    properties = of("TensorProperties", (Named("torch", "float32"), layout, False, encoding, False))
    chunks = [of("ChunkStorageMetadata", {"offsets": size(200 * at), "sizes": size(200)}) for at in range(pieces)]
    return of("TensorStorageMetadata", {"properties": properties, "size": size(200 * pieces), "chunks": chunks})


def metadata_bytes(state: Mapping[str, object]) -> bytes:
    """The file `.metadata`."""
    return pickled(of("Metadata", dict(state)), protocol=4)


def write_dcp(
    folder: Path, shards: Mapping[str, Mapping[str, bytes]] | None = None, *, saved_at_s: float = SAVED_AT_S
) -> Path:
    """A whole checkpoint; its shards are a second older than its metadata."""
    shards = shards_of() if shards is None else shards
    folder.mkdir(parents=True, exist_ok=True)
    for name, parts in shards.items():
        put_at(folder / name, b"".join(parts.values()), saved_at_s - 1)
    put_at(folder / ".metadata", metadata_bytes(metadata(shards)), saved_at_s)
    return folder


def write_uncoordinated(folder: Path, ranks: int = 2, *, saved_at_s: float = SAVED_AT_S) -> Path:
    """The same with one metadata file for each rank."""
    folder.mkdir(parents=True)
    for rank, (name, parts) in enumerate(shards_of(ranks).items()):
        put_at(folder / name, b"".join(parts.values()), saved_at_s - 1)
        put_at(folder / f"__{rank}.metadata", metadata_bytes(metadata({name: parts})), saved_at_s)
    return folder


def put_at(path: Path, raw: bytes, at_s: float) -> None:
    """A file with a time."""
    path.write_bytes(raw)
    os.utime(path, (at_s, at_s))
