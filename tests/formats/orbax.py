"""Writes Orbax checkpoints for tests: as orbax-checkpoint 0.12.8 lays them out, by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fleetctl.checkpoint.ocdbt import crc32c

MANIFEST_MAGIC, NODE_MAGIC = b"\x0c\xdb\x3a\x2a", b"\x0c\xdb\x20\xde"
COMMIT_NS = 1_767_225_600_000_000_000  # 2026-01-01
HANDLER = "orbax.checkpoint._src.handlers.standard_checkpoint_handler.StandardCheckpointHandler"
JSON_HANDLER = "orbax.checkpoint._src.handlers.json_checkpoint_handler.JsonCheckpointHandler"
ROOT, LEAF, OTHER_LEAF = "d/aaaa0000", "d/bbbb0000", "d/cccc0000"
VALUES = ("ocdbt.process_0/d/dddd0000", "ocdbt.process_1/d/eeee0000")

Value = bytes | tuple[int, int, int]  # lies in the node, or in which file from where and how long


def number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def numbers(values: Sequence[int]) -> bytes:
    return b"".join(map(number, values))


def packed(magic: bytes, body: bytes, *, zstd: bool = True, version: int = 0) -> bytes:
    """A manifest or a node, in one raw block of a Zstandard frame or as it is."""
    if zstd:
        assert len(body) < 256
        body = b"\x28\xb5\x2f\xfd\x20" + bytes([len(body)]) + (len(body) << 3 | 1).to_bytes(3, "little") + body
    head = magic + (len(body) + 18).to_bytes(8, "little") + bytes([version, zstd])
    return head + body + crc32c(head + body).to_bytes(4, "little")


def table(files: Sequence[tuple[str, str]]) -> bytes:
    """Of files: what their content inherits of each path, and the rest."""
    paths = [(base + rest).encode() for base, rest in files]
    return (
        number(len(paths))
        + numbers([0] * max(len(paths) - 1, 0))
        + numbers([len(path) for path in paths])
        + numbers([len(base) for base, _ in files])
        + b"".join(paths)
    )


def leaf(files: Sequence[tuple[str, str]], entries: Sequence[tuple[str, Value]]) -> bytes:
    """The body of a node with values."""
    far = [value for _, value in entries if isinstance(value, tuple)]
    return (
        bytes([0])
        + table(files)
        + number(len(entries))
        + numbers([0] * max(len(entries) - 1, 0))
        + numbers([len(key) for key, _ in entries])
        + "".join(key for key, _ in entries).encode()
        + numbers([len(value) if isinstance(value, bytes) else value[2] for _, value in entries])
        + numbers([isinstance(value, tuple) for _, value in entries])
        + numbers([value[0] for value in far])
        + numbers([value[1] for value in far])
        + b"".join(value for _, value in entries if isinstance(value, bytes))
    )


def inner(files: Sequence[tuple[str, str]], children: Sequence[tuple[str, tuple[int, int, int]]]) -> bytes:
    """The body of a node above other nodes."""
    count = len(children)
    return (
        bytes([1])
        + table(files)
        + number(count)
        + numbers([0] * max(count - 1, 0))
        + numbers([len(key) for key, _ in children])
        + numbers([0] * count)
        + "".join(key for key, _ in children).encode()
        + b"".join(numbers([place[field] for _, place in children]) for field in range(3))
        + numbers([1] * 3 * count)
    )


def manifest(root: str, offset: int, size: int, *, kind: int = 0) -> bytes:
    """With one version of the tree."""
    config = bytes(16) + number(kind) + numbers([1024, 100_000_000]) + bytes([4]) + number(1) + bytes(4)
    place = b"\x01\x01\x01\x00" + numbers([offset, size, 10, size, 10]) + bytes(8)
    return packed(MANIFEST_MAGIC, config + table([("", root)]) + place + b"\x00")


def write_database(item: Path) -> None:
    """Two nodes with values under a root, and the values as two processes wrote them."""
    for index, path in enumerate(VALUES):
        (item / path).parent.mkdir(parents=True)
        (item / path).write_bytes(bytes([index + 1]) * 3000)
        (item / f"ocdbt.process_{index}" / "manifest.ocdbt").write_bytes(manifest("d/gone", 0, 1))
    (item / "d").mkdir()
    first = leaf(
        [("ocdbt.process_0/", "d/dddd0000")], [("b/.zarray", b"{}"), ("b/0", (0, 0, 1000)), ("b/1", (0, 1000, 2000))]
    )
    second = leaf([("ocdbt.process_1/", "d/eeee0000")], [("w/.zarray", b"{}"), ("w/0", (0, 10, 2990))])
    nodes = packed(NODE_MAGIC, first), packed(NODE_MAGIC, second, zstd=False)
    (item / LEAF).write_bytes(b"before" + nodes[0])
    (item / OTHER_LEAF).write_bytes(nodes[1])
    children = [("b", (0, 6, len(nodes[0]))), ("w", (1, 0, len(nodes[1])))]
    root = packed(NODE_MAGIC, inner([("", LEAF), ("", OTHER_LEAF)], children))
    (item / ROOT).write_bytes(root)
    (item / "manifest.ocdbt").write_bytes(manifest(ROOT, 0, len(root)))


def write_tree(item: Path, names: Sequence[str], *, ocdbt: bool) -> None:
    """`_METADATA` and what stands beside it."""
    leaves: dict[str, object] = {
        f"('{name}',)": {
            "key_metadata": [{"key": name, "key_type": 2}],
            "value_metadata": {"value_type": "jax.Array", "skip_deserialize": False},
        }
        for name in names
    }
    leaves["('none',)"] = {
        "key_metadata": [{"key": "none", "key_type": 2}],
        "value_metadata": {"value_type": "None", "skip_deserialize": True},
    }
    said = {"tree_metadata": leaves, "use_ocdbt": ocdbt, "store_array_data_equal_to_fill_value": True}
    (item / "_METADATA").write_text(json.dumps(said))
    (item / "_sharding").write_text("{}")
    (item / "array_metadatas").mkdir()
    (item / "array_metadatas" / "process_0").write_text('{"array_metadatas": []}')


def write_zarr(item: Path, name: str) -> None:
    """An array of 3 by 5 in chunks of 2 by 3."""
    (item / name).mkdir()
    said = {"shape": [3, 5], "chunks": [2, 3], "dimension_separator": ".", "zarr_format": 2}
    (item / name / ".zarray").write_text(json.dumps(said))
    for chunk in ("0.0", "0.1", "1.0", "1.1"):
        (item / name / chunk).write_bytes(b"chunk")


def write_zarr3(item: Path, name: str) -> None:
    """The same in the layout 3."""
    said = {
        "shape": [3, 5],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    }
    for chunk in ("c/0/0", "c/0/1", "c/1/0", "c/1/1"):
        (item / name / chunk).parent.mkdir(parents=True, exist_ok=True)
        (item / name / chunk).write_bytes(b"chunk")
    (item / name / "zarr.json").write_text(json.dumps(said))


def write_orbax(directory: Path, name: str = "120") -> Path:
    """A committed step with three items: a database, zarr arrays of both layouts, and JSON. Returns its folder."""
    folder = directory / name
    items = {"default": HANDLER, "arrays": HANDLER.replace("Standard", "PyTree"), "meta": JSON_HANDLER}
    for item in items:
        (folder / item).mkdir(parents=True)
        (folder / item / "commit_success.txt").write_text("Checkpoint commit was successful")
    write_tree(folder / "default", ["b", "w"], ocdbt=True)
    write_database(folder / "default")
    write_tree(folder / "arrays", ["m", "n"], ocdbt=False)
    write_zarr(folder / "arrays", "m")
    write_zarr3(folder / "arrays", "n")
    (folder / "meta" / "metadata").write_text('{"a": 1}')
    write_metadata(folder, item_handlers=items, commit_timestamp_nsecs=COMMIT_NS)
    (folder / "commit_success.txt").write_text("Checkpoint commit was successful")
    return folder


def write_metadata(folder: Path, **said: object) -> None:
    """`_CHECKPOINT_METADATA`, with these words instead of what it says, if it is there."""
    path = folder / "_CHECKPOINT_METADATA"
    old = json.loads(path.read_text()) if path.exists() else {"init_timestamp_nsecs": COMMIT_NS - 10**9}
    path.write_text(json.dumps({**old, **said}))
