"""Checkpoints of torch.distributed.checkpoint (DCP): a folder of shards `__RANK_N.distcp`, and `.metadata`.

The shards are written under their final names. When all ranks have answered, `.metadata` is written, under another
name first: it commits the save. It is a pickle that says which slices lie where in which shard, so each shard's size
is known. Without coordination (`use_collectives=False`) each rank writes a `__RANK.metadata` for its own shards.

Each slice is a file of torch.save by itself, with CRC32s in its zip directory, all 0 if the save computed none. That
is so for tensors; one that is no zip is torn. What the metadata calls bytes is whatever the planner of the save made of
it: torch's and Megatron's call torch.save, another one may write bare bytes, which have no checksum. All such slices
of a save are alike, so a few tell of which kind they are. A block of zeros at the begin of one is what a crash leaves.
`SerializationFormat.SAFETENSORS` is not judged.

Saving into a folder that holds a checkpoint is allowed, and one that dies leaves OLD metadata with NEW shards, whose
sizes may all be right. What tells, and what does not:

* A shard later than the metadata: UNKNOWN. No save writes a shard after its own metadata, so another one began, or
  this is a copy that was made without its times. The clocks of two nodes may stand between the two times, so a shard
  that the metadata names must be later by more than `_CLOCKS_S`; one that it does not name has no such excuse.
* `.metadata.tmp` beside `.metadata`: CORRUPT. A later save wrote all its shards, and died before it renamed.
* A shard that the metadata does not name and that is older: nothing. A save by fewer ranks came over one by more.

Source: torch/distributed/checkpoint/filesystem.py of torch 2.13.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from msgspec import Struct, structs

from fleetctl.checkpoint.format import Facts, Format, Unit
from fleetctl.checkpoint.formats import torch
from fleetctl.checkpoint.formats.dcp_metadata import Slice, Slices, entries, name_of, place, read_metadata, slices_of
from fleetctl.checkpoint.look import Look, Unjudged, moment
from fleetctl.checkpoint.model import Level
from fleetctl.checkpoint.storage import Blob, Found, Kind
from fleetctl.checkpoint.zips import END_BYTES, END_MAGIC, has_crcs, read_zip

METADATA, _LEFT = ".metadata", ".metadata.tmp"
_SHARD = re.compile(r"__([0-9]{1,6})_[0-9]{1,6}\.distcp")
_RANK_METADATA = re.compile(r"__([0-9]{1,6})\.metadata")
_CLOCKS_S = 10.0  # nodes under NTP differ by less; two saves into one folder are further apart
_MOST_RANKS = 100_000
_SAMPLES = 4  # shards of which some slices tell how this save wrote them all
_BLOCK_BYTES = 512  # of a disk; so many zeros and no more are what a crash leaves
_MOST_HEADER_BYTES = 100_000_000  # of safetensors
_MOST_STEP_BYTES = 64 << 10
_STEP_NAMES = frozenset(torch.STEP_KEYS)
# step-500, step_500, ckpt_500, 500; composer: ep1-ba200
_NAMED = re.compile(r"(?:(?:global_)?step|ckpt|checkpoint|iter|iteration|epoch)[-_]?([0-9]{1,18})|([0-9]{1,18})")
_COMPOSER = re.compile(r"ep[0-9]+-ba([0-9]{1,18})")

_LATER = "the metadata: a later save into this folder died, or it was copied without its times (then `touch .metadata`)"
_NO_ZIP = ": a slice is no zip, and others of its kind are: it was never written to its end"


class Kinds(Struct, frozen=True):
    """How a save wrote its slices. `proved`: with CRCs. `bare`: what is no tensor is no zip either."""

    proved: bool
    bare: bool


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
    slices = slices_of(look, says)
    if slices is None:
        return facts
    right = {name: parts for name, parts in slices.items() if _check_shard(look, name, parts, saved)}
    _check_others(look, slices, saved)
    kinds = _kinds(look, _samples(right))
    look.passed(Level.STRUCTURE)
    return structs.replace(
        facts,
        size_bytes=sum(found[name].size_bytes for name in slices if name in found),
        content=lambda: _content(look, slices, kinds),
        unproved=tuple(sorted(name for name, parts in slices.items() if not _has_checksums(parts, kinds))),
    )


def peek(look: Look) -> int | None:
    """The step that was saved as a value of its own under the name of a step, if there is one."""
    with contextlib.suppress(ValueError, KeyError):
        with look.open(METADATA) as blob:
            metadata = read_metadata(blob)
        for index, info in entries(metadata):
            name = name_of(index)
            if name.rpartition(".")[2] in _STEP_NAMES and name.count(".") <= 1:
                shard, part = place(info)
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


def _check_shard(look: Look, name: str, parts: list[Slice], saved_at_s: float) -> bool:
    """As long as its slices, which lie one behind the other, and of the save that the metadata tells of."""
    size_bytes = look.file_size(name)
    if size_bytes is None:
        return False
    parts.sort(key=lambda part: part.offset)
    end, fault = 0, ""
    for part in parts:
        if part.offset != end:
            fault = f"has a slice at byte {part.offset}, where {end} would follow the one before"
            break
        end += part.size_bytes
    if not fault and size_bytes != end:
        fault = f"has {size_bytes} bytes, not {end}"
    if fault:
        with look.judging(name):
            if _holds_safetensors(look, name, parts):
                raise Unjudged("holds safetensors (SerializationFormat.SAFETENSORS), which are not looked at in DCP")
            raise ValueError(fault)
    later_s = look.children()[name].modified_at_s - saved_at_s
    if not fault and later_s > _CLOCKS_S:
        look.unread(name, f"was written {later_s:.0f} s after {_LATER}")
    return not fault and later_s <= _CLOCKS_S


def _check_others(look: Look, slices: Slices, saved_at_s: float) -> None:
    """Shards that the metadata does not name, see above."""
    for name, one in look.children().items():
        if name not in slices and one.modified_at_s > saved_at_s and _SHARD.fullmatch(name):
            look.unread(name, f"is not in the metadata and was written after {_LATER}")


def _holds_safetensors(look: Look, name: str, parts: Sequence[Slice]) -> bool:
    """Whether all tensors are said to lie at one byte, and a file of safetensors begins there."""
    begins = {part.offset for part in parts if not part.bare}
    if len(begins) != 1:
        return False
    with look.open(name) as blob:
        head = blob.read(begins.pop(), 9)
    return head.endswith(b"{") and 0 < int.from_bytes(head[:8], "little") <= _MOST_HEADER_BYTES


def _samples(slices: Slices) -> Slices:
    """The first shards, and the first that have something else than tensors, which torch writes before those."""
    names = sorted(slices)
    others = (name for name in names if slices[name][0].bare or slices[name][-1].bare)
    return {name: slices[name] for name in (*names[:_SAMPLES], *islice(others, _SAMPLES))}


def _kinds(look: Look, samples: Slices) -> Kinds:
    """What the first slice of a tensor in each of these shards tells, and the first and last one of the others.

    A torn one is told, and says nothing of the others.
    """
    zipped, bare = list[bool](), list[tuple[str, Slice]]()
    zips_of_bytes = False
    for name, parts in samples.items():
        tensor = next((part for part in parts if not part.bare), None)
        others = [part for part in parts if part.bare and part.plain]
        with look.judging(name), look.open(name) as blob:
            for part in (others[0], others[-1]) if others else ():
                if _may_be_bare(blob, part):
                    bare.append((name, part))
                else:
                    zipped.append(has_crcs(read_zip(blob, part.offset, part.size_bytes)))
                    zips_of_bytes = True
            if tensor is not None and tensor.plain:
                zipped.append(has_crcs(read_zip(blob, tensor.offset, tensor.size_bytes)))
    for name in sorted({name for name, _ in bare}) if zips_of_bytes else ():
        look.wrong(name, _NO_ZIP)
    return Kinds(proved=any(zipped) or not samples, bare=bool(bare) and not zips_of_bytes)


def _may_be_bare(blob: Blob, part: Slice) -> bool:
    """Whether bytes that are no tensor are those of no zip. :raises ValueError: they are those of nothing."""
    head = blob.read(part.offset, min(part.size_bytes, _BLOCK_BYTES))
    if len(head) == _BLOCK_BYTES and not any(head):
        raise ValueError(f": the {_BLOCK_BYTES} bytes from byte {part.offset} are zeros")
    tail_bytes = min(part.size_bytes, END_BYTES)
    tail = blob.read(part.offset + part.size_bytes - tail_bytes, tail_bytes)
    return not head.startswith(torch.ZIP_MAGIC) and not tail.startswith(END_MAGIC)


def _has_checksums(parts: Iterable[Slice], kinds: Kinds) -> bool:
    return kinds.proved and all(part.plain and not (part.bare and kinds.bare) for part in parts)


def _content(look: Look, slices: Slices, kinds: Kinds) -> Iterator[Unit]:
    """Without CRCs at least each slice is a whole zip."""
    for name, parts in sorted(slices.items()):
        with look.judging(name), look.open(name) as blob:
            for part in parts:
                if not part.plain or (part.bare and kinds.bare and _may_be_bare(blob, part)):
                    continue
                zipped = read_zip(blob, part.offset, part.size_bytes)
                if kinds.proved and not has_crcs(zipped):
                    raise Unjudged("has slices without a checksum, others have one")
                yield from torch.units_in(look, name, blob, zipped)


def _value(look: Look, shard: str, part: Slice) -> object:
    if part.size_bytes > _MOST_STEP_BYTES or not part.plain:
        return None
    with look.open(shard) as blob:
        return torch.value_in(blob, read_zip(blob, part.offset, part.size_bytes))


FORMAT = Format(name="torch_dcp", step_named=step_named, recognise=recognise, examine=examine, peek=peek)
