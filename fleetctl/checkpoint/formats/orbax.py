"""Is an Orbax checkpoint whole? A folder for each step: what of it was committed, and the arrays of each item.

A save has a name of its own until it is committed: the commit time is written into `_CHECKPOINT_METADATA`, then
`commit_success.txt` (always, since 0.12.3; before only on object stores), then the folder gets its final name
(orbax/checkpoint/_src/path/atomicity.py). Arrays lie in an OCDBT database or one zarr folder each. Nothing but the
tables of the database carries a checksum.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from fleetctl.checkpoint import ocdbt, zarr
from fleetctl.checkpoint.format import Facts, Format
from fleetctl.checkpoint.look import Look, Unjudged, moment
from fleetctl.checkpoint.model import Level
from fleetctl.checkpoint.storage import Kind

METADATA, COMMITTED, TREE = "_CHECKPOINT_METADATA", "commit_success.txt", "_METADATA"
_UNFINISHED = ".orbax-checkpoint-tmp"
_PROCESS = "ocdbt.process_"
_MARKS = frozenset({METADATA, COMMITTED, TREE, ocdbt.MANIFEST})
_PARTS = frozenset({TREE, ocdbt.MANIFEST, "_sharding", "array_metadatas", COMMITTED})
_NAMED = re.compile(r"(?:.*_)?([0-9]{1,18})\.orbax-checkpoint-tmp.*|([0-9]{1,18})", re.DOTALL)
_STEP_FOLDER = re.compile(r"(?:.+_)?([0-9]{1,18})", re.DOTALL)
_ODD = "is no file and no folder"
_UNDER_WAY = "was never committed: it has the name of a save under way"
_JSON_HANDLER = "JsonCheckpointHandler"
_TREE_HANDLERS = ("PyTreeCheckpointHandler", "StandardCheckpointHandler", "ArrayCheckpointHandler", "PyTreeHandler")
_STORED = ("jax.Array", "np.ndarray", "scalar")  # the others lie in the tree itself
_MOST_JSON_BYTES = 64 << 20  # some hundred thousand arrays
_MOST_NAMES = 2_000_000
_MOST_DEPTH = 12
_OWN = _MARKS | _PARTS | {"d", zarr.V2, zarr.V3}
_MOST_ITEMS_TRIED = 20  # to recognise one without its markers


class _Tree(Struct, frozen=True):
    """All that lies in it, by path: sizes of files; names in folders; what is neither, as links are."""

    sizes: dict[str, int]
    folders: dict[str, frozenset[str]]
    odd: frozenset[str]


class _Said(Struct, frozen=True):
    """What `_CHECKPOINT_METADATA` says. `handlers` by item; the empty name is the checkpoint itself."""

    committed_at: datetime | None
    handlers: dict[str, str]


def step_named(name: str) -> int | None:
    """As in 120, and as in ckpt_120.orbax-checkpoint-tmp for a save that was never finished."""
    found = _NAMED.fullmatch(name)
    return None if found is None else int(found[1] or found[2])


def peek(look: Look) -> int | None:
    """With a prefix of its user's choice: as in ckpt_120."""
    found = _STEP_FOLDER.fullmatch(look.name)
    return None if found is None else int(found[1])


def recognise(look: Look) -> bool:
    """By its markers. One that is half deleted may have lost them: then by what lies in its items."""
    if look.kind() is not Kind.FOLDER:
        return False
    names = look.names()
    if _UNFINISHED in look.name or names & _MARKS or any(_UNFINISHED in name for name in names):
        return True
    if peek(look) is None:
        return False
    folders = sorted(name for name, found in look.children().items() if found.kind is Kind.FOLDER)
    return any(_is_item(look.below(name).names()) for name in folders[:_MOST_ITEMS_TRIED])


def _is_item(names: frozenset[str]) -> bool:
    return bool(names & _PARTS) or any(name.startswith(_PROCESS) for name in names)


def examine(look: Look, level: Level) -> Facts:
    """Markers and items, then the tables of each item against the files."""
    if _UNFINISHED in look.name:
        look.missing("", _UNDER_WAY)
        return Facts(training_step=step_named(look.name), uncommitted=True)
    tree = _list(look)
    uncommitted = _check_names(look, tree)
    look.passed(Level.NAMES)
    marker = look.children().get(COMMITTED) or look.children().get(METADATA)
    saved_at = None if marker is None else moment(marker.modified_at_s)
    if level < Level.STRUCTURE:
        return _facts(look, tree, saved_at, uncommitted, ())
    said = _said(look, tree)
    if said is not None:
        if said.committed_at is None:
            look.missing(METADATA, "has no commit time: the save was never finished")
        uncommitted, saved_at = uncommitted or said.committed_at is None, said.committed_at or saved_at
        _check_handlers(look, tree, said.handlers)
    unproved = [name for item in _items(tree) for name in _check_item(look, tree, item)]
    unproved.sort(key=lambda name: not name.endswith(ocdbt.MANIFEST))  # first what could not even be followed
    look.passed(Level.STRUCTURE)
    return _facts(look, tree, saved_at, uncommitted, tuple(unproved) or (METADATA,))


def _facts(look: Look, tree: _Tree, saved_at: datetime | None, uncommitted: bool, unproved: tuple[str, ...]) -> Facts:
    return Facts(
        training_step=peek(look),
        size_bytes=sum(tree.sizes.values()),
        saved_at=saved_at,
        uncommitted=uncommitted,
        unproved=unproved,
    )


def _list(look: Look) -> _Tree:
    sizes, folders, odd = dict[str, int](), dict[str, frozenset[str]](), list[str]()
    todo = [("", look)]
    while todo:
        path, here = todo.pop()
        folders[path] = here.names()
        for name, found in sorted(here.children().items()):
            if found.kind is Kind.FILE:
                sizes[path + name] = found.size_bytes
            elif found.kind is not Kind.FOLDER:
                odd.append(path + name)
            elif path.count("/") < _MOST_DEPTH:
                todo.append((f"{path}{name}/", here.below(name)))
        if len(sizes) + len(folders) + len(odd) > _MOST_NAMES:
            raise Unjudged(f"has more than {_MOST_NAMES} files")
    return _Tree(sizes, folders, frozenset(odd))


def _check_names(look: Look, tree: _Tree) -> bool:
    """Whether the save was never finished."""
    for name in sorted(tree.odd):
        if _is_own(tree, name):
            look.wrong(name, _ODD)
    never = [path for path in tree.folders if _UNFINISHED in path.rstrip("/").rpartition("/")[2]]
    for path in never:
        look.missing(path.rstrip("/"), _UNDER_WAY)
    marked = METADATA in tree.sizes or COMMITTED in tree.sizes
    if not marked:
        look.missing(METADATA, f"is missing, and {COMMITTED}")
    for path in _items(tree):
        names = tree.folders[path]
        if TREE not in names:
            look.missing(path + TREE)
        if ocdbt.MANIFEST not in names and _was_written_by_processes(names):
            look.missing(path + ocdbt.MANIFEST, "is missing: what the processes wrote was never put together")
    return bool(never) or not marked


def _is_own(tree: _Tree, path: str) -> bool:
    """Whether Orbax gives a file or folder this name, or writes all that lies where it does. Others are somebody's."""
    *above, name = path.split("/")
    if name in _OWN or any(part.startswith(_PROCESS) for part in (*above, name)):
        return True
    arrays = ("/".join(above[:count]) + "/" for count in range(1, len(above) + 1))
    return not {"d", "array_metadatas"}.isdisjoint(above) or any(
        tree.folders[folder] & {zarr.V2, zarr.V3} for folder in arrays
    )


def _items(tree: _Tree) -> tuple[str, ...]:
    """The folders that hold arrays. A database of one process is none, nor what was never finished."""
    marks = _PARTS - {COMMITTED}
    return tuple(
        sorted(
            path
            for path, names in tree.folders.items()
            if (names & marks or any(name.startswith(_PROCESS) for name in names))
            and not path.rpartition("/")[0].rpartition("/")[2].startswith(_PROCESS)
            and _UNFINISHED not in path
        )
    )


def _said(look: Look, tree: _Tree) -> _Said | None:
    if METADATA not in tree.sizes:
        return None
    record = zarr.read_object(look, METADATA, _MOST_JSON_BYTES)
    with look.judging(METADATA):
        if record is None:
            return None
        committed_at, handlers = record.get("commit_timestamp_nsecs"), record.get("item_handlers")
        if committed_at is not None and (not isinstance(committed_at, int) or committed_at <= 0):
            raise ValueError(": commit_timestamp_nsecs is no time")
        at = None if committed_at is None else moment(committed_at / 1e9)
        if committed_at is not None and at is None:
            raise ValueError(": commit_timestamp_nsecs is no time")
        items = handlers if isinstance(handlers, dict) else {"": handlers}
        return _Said(at, {name: text if isinstance(text, str) else "" for name, text in items.items()})
    return None


def _check_handlers(look: Look, tree: _Tree, handlers: Mapping[str, str]) -> None:
    """Every item that was saved must be there, and be what its handler writes."""
    items = _items(tree)
    for name, handler in sorted(handlers.items()):
        path = f"{name}/" if name else ""
        if name in tree.odd:
            look.wrong(name, _ODD)
        elif path not in tree.folders:
            look.missing(name)
        elif handler.endswith(_JSON_HANDLER):
            found = [f"{path}{one}" for one in sorted(tree.folders[path]) if one != COMMITTED]
            if not found:
                look.missing(f"{path}metadata")
            for one in found:
                if one in tree.odd:
                    look.wrong(one, _ODD)
                elif one in tree.sizes:
                    zarr.read_json(look, one, _MOST_JSON_BYTES)
        elif handler.endswith(_TREE_HANDLERS) and path not in items:
            look.missing(path + TREE)


def _check_item(look: Look, tree: _Tree, path: str) -> tuple[str, ...]:
    """The tables of an item against its files; names the files that carry no checksum."""
    tables = [path + "_sharding", *(f"{path}array_metadatas/{one}" for one in tree.folders.get(_shapes(path), ()))]
    for name in sorted(tables):
        if name in tree.sizes:
            zarr.read_object(look, name, _MOST_JSON_BYTES)
    record = zarr.read_object(look, path + TREE, _MOST_JSON_BYTES) if path + TREE in tree.sizes else None
    if path + ocdbt.MANIFEST in tree.sizes:
        return _check_database(look, tree, path)
    if record is None:
        return ()
    if record.get("use_ocdbt") is True:
        if not _was_written_by_processes(tree.folders[path]):
            look.missing(path + ocdbt.MANIFEST)
        return ()
    with look.judging(path + TREE):
        return _check_arrays(look, tree, path, record)
    return ()


def _check_database(look: Look, tree: _Tree, path: str) -> tuple[str, ...]:
    needed = ocdbt.files_needed(look, path, tree.sizes)
    if needed.all_known:
        return tuple(sorted(needed.files))
    for name, size in sorted(tree.sizes.items()):
        if name.startswith(path) and name.split("/")[-2:-1] == ["d"] and size == 0:
            look.wrong(name, "has 0 bytes")
    return (path + ocdbt.MANIFEST,)


def _check_arrays(look: Look, tree: _Tree, path: str, record: Mapping[str, Any]) -> tuple[str, ...]:
    """One zarr folder for each array. :raises ValueError: the record does not say which."""
    folders = sorted({f"{path}{name}/" for name in _arrays(record)})
    for folder in folders:
        zarr.check_array(
            look, folder, tree.sizes, fill_is_stored=record.get("store_array_data_equal_to_fill_value") is True
        )
    return tuple(folder.rstrip("/") for folder in folders)


def _arrays(record: Mapping[str, Any]) -> Iterator[str]:
    leaves = record.get("tree_metadata")
    if not isinstance(leaves, dict):
        raise ValueError(": no tree_metadata")
    for leaf in leaves.values():
        match leaf:
            case {"key_metadata": [*keys], "value_metadata": {"value_type": kind, **rest}}:
                if kind in _STORED and not rest.get("skip_deserialize"):
                    yield ".".join(str(key.get("key")) if isinstance(key, dict) else str(key) for key in keys)
            case _:
                raise ValueError(": a leaf without keys or value_type")


def _shapes(path: str) -> str:
    return f"{path}array_metadatas/"


def _was_written_by_processes(names: frozenset[str]) -> bool:
    return any(name == "d" or name.startswith(_PROCESS) for name in names)


FORMAT = Format(name="orbax", step_named=step_named, recognise=recognise, examine=examine, peek=peek)
