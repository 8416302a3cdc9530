"""Files of torch.save without torch: the zip of torch 1.6 and later, and the older chain of pickles."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

from tests.formats.pickles import Kept, Made, Named, pickled

ALIGNED_BYTES = 64
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # torch.serialization


def tensor(key: int, floats: int, *more: object) -> Made:
    """A tensor whose numbers lie in data/KEY; the older kind of file says one thing `more`."""
    storage = Kept(("storage", Named("torch", "FloatStorage"), str(key), "cpu", floats, *more))
    hooks = Made(Named("collections", "OrderedDict"))
    return Made(Named("torch._utils", "_rebuild_tensor_v2"), (storage, 0, (floats,), (1,), False, hooks))


def state(step: int = 5, floats: int = 600) -> dict[str, object]:
    """What a training saves: two tensors, the options of an optimizer, a step."""
    weights = {"w": tensor(0, floats), "b": tensor(1, 4)}
    model = Made(Named("collections", "OrderedDict"), items=weights, state={"_metadata": {}})
    return {"model": model, "optimizer": {"param_groups": [{"lr": 0.1, "betas": (0.9, 0.95)}]}, "step": step}


def data(floats: int) -> bytes:
    """Numbers of a storage; no two storages of different length begin alike."""
    return struct.pack(f"<{floats}f", *(float(floats + number) for number in range(floats)))


def torch_bytes(
    value: object = None, storages: Mapping[int, bytes] | None = None, *, stem: str = "archive", crcs: bool = True
) -> bytes:
    """The zip as torch 2.13 writes it."""
    value = state() if value is None else value
    storages = {0: data(600), 1: data(4)} if storages is None else storages
    entries = {
        "data.pkl": pickled(value),
        ".format_version": b"1",
        ".storage_alignment": b"64",
        "byteorder": b"little",
        **{f"data/{key}": raw for key, raw in storages.items()},
        "version": b"3\n",
        ".data/serialization_id": b"0123456789" * 4,
    }
    return zip_bytes({f"{stem}/{name}": raw for name, raw in entries.items()}, crcs=crcs)


def zip_bytes(entries: Mapping[str, bytes], *, crcs: bool = True, method: int = 0, flags: int = 0x808) -> bytes:
    """A zip of stored entries, aligned, with data descriptors and the end records of zip64."""
    body, directory = bytearray(), bytearray()
    for name, raw in entries.items():
        header, crc, encoded = len(body), crc32(raw) if crcs else 0, name.encode()
        padding = -(header + 30 + len(encoded) + 4) % ALIGNED_BYTES
        extra = struct.pack("<2sH", b"FB", padding) + b"Z" * padding
        body += struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 0, flags, method, 0, 0, 0, 0, 0, len(encoded), len(extra))
        body += encoded + extra + raw
        body += struct.pack("<4sIII", b"PK\7\x08", crc, len(raw), len(raw))
        sizes = crc, len(raw), len(raw), len(encoded)
        directory += struct.pack(
            "<4sHHHHHHIIIHHHHHII", b"PK\1\2", 0, 0, flags, method, 0, 0, *sizes, 0, 0, 0, 0, 0, header
        )
        directory += encoded
    at, count = len(body), len(entries)
    end64 = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 798, 45, 0, 0, count, count, len(directory), at)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, at + len(directory), 1)
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, len(directory), at, 0)
    return bytes(body + directory) + end64 + locator + end


def legacy_bytes(value: object = None, storages: Mapping[int, bytes] | None = None) -> bytes:
    """As `_use_new_zipfile_serialization=False` writes it."""
    value = {"w": tensor(0, 600, None), "b": tensor(1, 4, None), "step": 5} if value is None else value
    storages = {0: data(600), 1: data(4)} if storages is None else storages
    machine = {"protocol_version": _PROTOCOL, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    pickles = (_MAGIC, _PROTOCOL, machine, value, [str(key) for key in storages])
    behind = (struct.pack("<q", len(raw) // 4) + raw for raw in storages.values())
    return b"".join(map(pickled, pickles)) + b"".join(behind)


def write_torch(path: Path, raw: bytes | None = None) -> Path:
    """A checkpoint in one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(torch_bytes() if raw is None else raw)
    return path
