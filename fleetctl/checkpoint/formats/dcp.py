"""Checkpoints of torch.distributed.checkpoint (DCP): a folder of shards `__RANK_N.distcp`, and `.metadata`.

The shards are written under their final names. When all ranks have answered, `.metadata` is written, under another
name first: it commits the save. It is a pickle that says which slices lie where in which shard, so each shard's size
is known. Without coordination (`use_collectives=False`) each rank writes a `__RANK.metadata` for its own shards.

Each slice is a file of torch.save by itself, with CRC32s in its zip directory; other slices have no checksum.

Saving into a folder that holds a checkpoint is allowed, and one that dies leaves OLD metadata with NEW shards, whose
sizes may all be right. What tells, and what does not:

* A shard later than the metadata: CORRUPT. No save writes a shard after its own metadata, so another one began. The
  clocks of two nodes may stand between the two times, so a shard that the metadata names must be later by more than
  `_CLOCKS_S`; one that it does not name has no such excuse. A copy that was made without its times looks the same.
* `.metadata.tmp` beside `.metadata`: CORRUPT. A later save wrote all its shards, and died before it renamed.
* A shard that the metadata does not name and that is older: nothing. A save by fewer ranks came over one by more.

Source: torch/distributed/checkpoint/filesystem.py of torch 2.13; ../shared/facts/recovery.md 1.3.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, structs

from fleetctl.checkpoint import inert
from fleetctl.checkpoint.format import Facts, Format, Unit
from fleetctl.checkpoint.formats import torch
from fleetctl.checkpoint.look import Look, Unjudged, moment, read_exactly
from fleetctl.checkpoint.model import Level
from fleetctl.checkpoint.storage import Blob, Found, Kind, NotRegular
from fleetctl.checkpoint.zips import has_crcs, read_zip

METADATA, _LEFT = ".metadata", ".metadata.tmp"
_SHARD = re.compile(r"__([0-9]{1,6})_[0-9]{1,6}\.distcp")
_RANK_METADATA = re.compile(r"__([0-9]{1,6})\.metadata")
_MOST_METADATA_BYTES = 256 << 20  # a million slices have about 200 MiB
_CLOCKS_S = 10.0  # nodes under NTP differ by less; two saves into one folder are further apart
_MOST_RANKS = 100_000
_SAMPLES = 4  # shards whose first slice tells how this save wrote them all
_MOST_STEP_BYTES = 64 << 10
_STEP_NAMES = frozenset(torch.STEP_KEYS)
# step-500, step_500, ckpt_500, 500; composer: ep1-ba200
_NAMED = re.compile(r"(?:(?:global_)?step|ckpt|checkpoint|iter|iteration|epoch)[-_]?([0-9]{1,18})|([0-9]{1,18})")
_COMPOSER = re.compile(r"ep[0-9]+-ba([0-9]{1,18})")

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
        *(
            (module, name)
            for module in ("pathlib", "pathlib._local")
            for name in ("Path", "PosixPath", "PurePath", "PurePosixPath", "WindowsPath", "PureWindowsPath")
        ),
    ]
)
_OF_TORCH = re.compile(r"Size|bool|bit|(?:bfloat|float|complex|q?u?int|bits)[0-9]+(?:x[0-9]+|_[a-z0-9]+)*")
_PLACE_KEYS = ["relative_path", "offset", "length"]


class Slice(Struct, frozen=True, gc=False):
    """Bytes of a shard. `plain`: as torch.save wrote them, through no transformation."""

    offset: int
    size_bytes: int
    plain: bool = True


Slices = Mapping[str, list[Slice]]  # by the name of the shard


def step_named(name: str) -> int | None:
    """As in step-500, ckpt_500, 500, and composer's ep1-ba500."""
    found = _COMPOSER.fullmatch(name) or _NAMED.fullmatch(name)
    return None if found is None else int(found[found.lastindex or 1])


def recognise(look: Look) -> bool:
    """A folder with a metadata file, finished or not, or a shard."""
    if look.kind() is not Kind.FOLDER:
        return False
    names = look.children()
    if METADATA in names or _LEFT in names:
        return True
    return any(_SHARD.fullmatch(name) or _RANK_METADATA.fullmatch(name) for name in names)


def examine(look: Look, level: Level) -> Facts:
    """As `check_dcp`."""
    return check_dcp(look, level)


def check_dcp(look: Look, level: Level) -> Facts:
    """A DCP folder, anywhere in a checkpoint. Passes the levels of `look` that it looked at."""
    found = None
    with look.judging(""):
        found = look.children()
    if found is None:
        return Facts()
    says = _metadata_files(found)
    if None in [look.file_size(name) for name in says]:
        return Facts(uncommitted=any(name not in found for name in says))
    saved = max(found[name].modified_at_s for name in says)
    if _LEFT in found:
        look.wrong(_LEFT, "is left of a later save into this folder, which wrote its shards and did not end")
    look.passed(Level.NAMES)
    facts = Facts(saved_at=moment(saved), ranks=None if METADATA in says else len(says))
    if level < Level.STRUCTURE:
        return facts
    slices = _slices(look, says)
    if slices is None:
        return facts
    for name, parts in slices.items():
        _check_shard(look, name, parts, saved)
    _check_others(look, slices, saved)
    return _structure(look, facts, found, slices)


def _structure(look: Look, facts: Facts, found: Mapping[str, Found], slices: Slices) -> Facts:
    proved = False
    with look.judging(""):
        proved = _is_proved(look, slices)
    look.passed(Level.STRUCTURE)
    others = [name for name, parts in slices.items() if not proved or not all(part.plain for part in parts)]
    return structs.replace(
        facts,
        size_bytes=sum(found[name].size_bytes for name in slices if name in found),
        content=lambda: _content(look, slices if proved else {}),
        unproved=tuple(sorted(others)),
    )


def peek(look: Look) -> int | None:
    """The step that was saved as a value of its own under the name of a step, if there is one."""
    with contextlib.suppress(ValueError, KeyError):
        with look.open(METADATA) as blob:
            metadata = _read_metadata(blob)
        for index, info in _entries(metadata):
            name = _name_of(index)
            if name.rpartition(".")[2] in _STEP_NAMES and name.count(".") <= 1:
                shard, part = _place(info)
                step = _value(look, shard, part)
                if type(step) is int and step >= 0:
                    return step
    return None


def _metadata_files(found: Mapping[str, Found]) -> list[str]:
    """Those that must be there: the coordinator's, else one of each rank that has one or a shard."""
    if METADATA in found or not any(map(_RANK_METADATA.fullmatch, found)):
        return [METADATA]
    ranks = [int(match[1]) for name in found if (match := _RANK_METADATA.fullmatch(name) or _SHARD.fullmatch(name))]
    return [f"__{rank}.metadata" for rank in range(min(max(ranks) + 1, _MOST_RANKS))]


def _slices(look: Look, says: Iterable[str]) -> Slices | None:
    """What the metadata says lies where; None after a fault."""
    slices, whole = dict[str, list[Slice]](), True
    for name in says:
        read = False
        with look.judging(name), look.open(name) as blob:
            metadata = _read_metadata(blob)
            known = metadata.get("state_dict_metadata")
            names = {key for key in known[::2] if type(key) is str} if isinstance(known, inert.Map) else set[str]()
            for index, info in _entries(metadata):
                if _name_of(index) not in names:
                    raise ValueError(f"has a slice of {_name_of(index)!a}, which it does not describe")
                shard, part = _place(info)
                slices.setdefault(shard, []).append(part)
            read = True
        whole = whole and read
    return slices if whole else None


def _read_metadata(blob: Blob) -> inert.Map:
    if blob.size_bytes > _MOST_METADATA_BYTES:
        raise Unjudged(f"has {blob.size_bytes} bytes, more than the {_MOST_METADATA_BYTES} that are looked at")
    value = inert.load(read_exactly(blob, 0, blob.size_bytes), _allowed)
    state = value.state if isinstance(value, inert.Stub) and value.named == f"{_MODULE}.metadata.Metadata" else None
    if isinstance(state, inert.Map):
        return state
    raise ValueError("is no metadata of torch.distributed.checkpoint")


def _allowed(module: str, name: str) -> bool:
    return (module, name) in _GLOBALS or (module == "torch" and _OF_TORCH.fullmatch(name) is not None)


def _entries(metadata: inert.Map) -> Iterator[tuple[object, object]]:
    places = metadata.get("storage_data")
    if not isinstance(places, inert.Map):
        raise ValueError("says of no slice where it lies")
    return places.items()


def _place(info: object) -> tuple[str, Slice]:
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
    return name, Slice(offset, size_bytes, plain or state.get("transform_descriptors") is None)


def _name_of(index: object) -> str:
    name = index.state.get("fqn") if isinstance(index, inert.Stub) and isinstance(index.state, inert.Map) else None
    return name if isinstance(name, str) else ""


def _check_shard(look: Look, name: str, parts: list[Slice], saved_at_s: float) -> None:
    """As long as its slices, which lie one behind the other, and of the save that the metadata tells of."""
    size_bytes = look.file_size(name)
    if size_bytes is None:
        return
    parts.sort(key=lambda part: part.offset)
    end = 0
    for part in parts:
        if part.offset != end:
            look.wrong(name, f"has a slice at byte {part.offset}, where {end} would follow the one before")
            return
        end += part.size_bytes
    later_s = look.children()[name].modified_at_s - saved_at_s
    if size_bytes != end:
        look.wrong(name, f"has {size_bytes} bytes, not {end}")
    elif later_s > _CLOCKS_S:
        look.wrong(name, f"was written {later_s:.0f} s after the metadata: another save began in this folder")


def _check_others(look: Look, slices: Slices, saved_at_s: float) -> None:
    """Shards that the metadata does not name, see above."""
    for name, one in look.children().items():
        if name not in slices and one.modified_at_s > saved_at_s and _SHARD.fullmatch(name):
            look.wrong(name, "is not in the metadata and was written after it: another save began in this folder")


def _is_proved(look: Look, slices: Slices) -> bool:
    """Whether this save has CRCs: one good slice tells it of all, as they are written alike."""
    for name, parts in sorted(slices.items())[:_SAMPLES]:
        with contextlib.suppress(ValueError, FileNotFoundError, NotRegular), look.open(name) as blob:
            if has_crcs(read_zip(blob, parts[0].offset, parts[0].size_bytes)):
                return True
    return not slices


def _content(look: Look, slices: Slices) -> Iterator[Unit]:
    for name, parts in sorted(slices.items()):
        with look.judging(name), look.open(name) as blob:
            for part in parts:
                zipped = read_zip(blob, part.offset, part.size_bytes) if part.plain else None
                if zipped is not None and not has_crcs(zipped):
                    raise Unjudged("has slices without a checksum, others have one")
                if zipped is not None:
                    yield from torch.units_in(look, name, blob, zipped)


def _value(look: Look, shard: str, part: Slice) -> object:
    if part.size_bytes > _MOST_STEP_BYTES or not part.plain:
        return None
    with look.open(shard) as blob:
        return torch.value_in(blob, read_zip(blob, part.offset, part.size_bytes))


FORMAT = Format(name="torch_dcp", step_named=step_named, recognise=recognise, examine=examine, peek=peek)
