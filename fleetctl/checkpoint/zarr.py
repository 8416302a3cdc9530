"""Are all chunks of a zarr array there? The layouts 2 and 3, one file for each chunk; chunks carry no checksum."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fleetctl.checkpoint.format import places
from fleetctl.checkpoint.look import Look

V2, V3 = ".zarray", "zarr.json"
_MOST_JSON_BYTES = 1 << 20  # of one array
_MOST_DIMENSIONS = 64
_MOST_MISSING = 1000  # chunks of one array that are looked for in vain


def read_json(look: Look, name: str, most_bytes: int) -> Any:
    """What a JSON file holds; None after it was told as missing or wrong."""
    raw = look.read_whole(name, most_bytes)
    if raw is None:
        return None
    with look.judging(name):
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            raise ValueError(": no JSON") from None
    return None


def read_object(look: Look, name: str, most_bytes: int) -> dict[str, Any] | None:
    """A JSON object; None after it was told as missing or wrong."""
    record = read_json(look, name, most_bytes)
    if isinstance(record, dict):
        return record
    if record is not None:
        look.wrong(name, ": no JSON object")
    return None


def check_array(look: Look, folder: str, sizes: Mapping[str, int], *, fill_is_stored: bool) -> None:
    """Tell what is missing or empty. `folder` ends in a slash; `sizes` are all files by path.

    :param fill_is_stored: every chunk has its file; else a missing one may stand for the fill value.
    """
    name = next((folder + one for one in (V2, V3) if folder + one in sizes), None)
    if name is None:
        look.missing(folder + V2)
        return
    record = read_object(look, name, _MOST_JSON_BYTES)
    if record is None:
        return
    with look.judging(name):
        missing = 0
        for chunk in _chunks(record, name.endswith(V3)):
            size = sizes.get(folder + chunk)
            if size == 0:
                look.wrong(folder + chunk, "has 0 bytes")
            elif size is None and fill_is_stored:
                look.missing(folder + chunk)
            missing += size is None
            if missing > _MOST_MISSING:
                return


def _chunks(record: Mapping[str, Any], is_v3: bool) -> Iterator[str]:
    """The names of its chunks, below its folder. Nothing where the layout is not known."""
    if not is_v3:
        separator = record.get("dimension_separator", ".")
        yield from _grid(record.get("shape"), record.get("chunks"), separator, "", "0")
        return
    grid, encoding = record.get("chunk_grid"), record.get("chunk_key_encoding")
    if not isinstance(grid, dict) or grid.get("name") != "regular" or not isinstance(grid.get("configuration"), dict):
        raise ValueError(": no chunk grid")
    if isinstance(encoding, dict) and encoding.get("name") == "default":
        said = encoding.get("configuration")
        separator = said.get("separator", "/") if isinstance(said, dict) else "/"
        yield from _grid(record.get("shape"), grid["configuration"].get("chunk_shape"), separator, "c", "c")


def _grid(shape: object, chunk: object, separator: object, start: str, only: str) -> Iterator[str]:
    """`only` is the name of the chunk of a scalar."""
    if separator not in (".", "/"):
        raise ValueError(": no separator of chunk names")
    sizes, parts = _counts(shape, 0), _counts(chunk, 1)
    if len(sizes) != len(parts):
        raise ValueError(": not as many chunk sizes as dimensions")
    if not sizes:
        yield only
        return
    for place in places([-(-size // part) for size, part in zip(sizes, parts, strict=True)]):
        yield str(separator).join((*((start,) if start else ()), *map(str, place)))


def _counts(value: object, least: int) -> list[int]:
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        raise ValueError(": no shape")
    counts = [one for one in value if type(one) is int and one >= least]
    if len(counts) != len(value):
        raise ValueError(": no shape")
    return counts
