"""Writes safetensors files for tests, by hand: a length, a header in JSON, data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

DATA = bytes(range(24))
Header = Mapping[str, object]


def tensor(dtype: str, shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


HEADER: Header = {
    "__metadata__": {"format": "pt"},
    "bias": tensor("F32", [2], 0, 8),
    "weight": tensor("BF16", [2, 4], 8, 24),
}


def safe_bytes(header: Header | bytes = HEADER, data: bytes = DATA) -> bytes:
    """One file."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def write_safe(path: Path, header: Header | bytes = HEADER, data: bytes = DATA) -> Path:
    """One file, in a folder that is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(safe_bytes(header, data))
    return path


def shard_name(number: int, count: int) -> str:
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def write_sharded(folder: Path, count: int = 2) -> Path:
    """Shards, of two tensors each, and their index. Returns the folder."""
    weight_map = {}
    for number in range(1, count + 1):
        names = f"layer.{number}.bias", f"layer.{number}.weight"
        header = dict(zip(names, (HEADER["bias"], HEADER["weight"]), strict=True))
        write_safe(folder / shard_name(number, count), header)
        weight_map.update(dict.fromkeys(names, shard_name(number, count)))
    index = {"metadata": {"total_size": count * len(DATA)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return folder
