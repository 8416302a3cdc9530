"""Files of a training as the libraries of Hugging Face write them, for the formats of their Trainer and accelerate.

Weights are one file or shards with an index, of safetensors or of torch.save; with FSDP they are a DCP folder, one
file, or one for each rank. What other libraries save in between is checked by their own formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import chain

from msgspec import Struct

from fleetctl.checkpoint.format import Facts, Unit, as_ranks, gaps
from fleetctl.checkpoint.formats import safetensors, torch
from fleetctl.checkpoint.formats.beside import names_in, next_older
from fleetctl.checkpoint.look import Look
from fleetctl.checkpoint.model import Level
from fleetctl.checkpoint.storage import Kind
from fleetctl.checkpoint.zips import has_crcs

INDEXES = (".safetensors.index.json", ".bin.index.json")
FSDP_MODEL = "pytorch_model_fsdp"  # accelerate.utils.constants.FSDP_MODEL_NAME
_WEIGHTS = re.compile(
    r".+\.safetensors"
    r"|(?:pytorch_model|adapter_model)(?:_[0-9]+)?(?:-[0-9]{5}-of-[0-9]{5})?\.bin"
    r"|pytorch_model_fsdp(?:_[0-9]+)?(?:_rank[0-9]+)?\.bin"
    r"|.+\.(?:safetensors|bin)\.index\.json",
    re.DOTALL,
)
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})")  # checkpoint-500: what comes before the number, and the number
_OVERWRITTEN_S = 60.0  # a copy without its times is not told from a save over another by less


class Parts(Struct, frozen=True):
    """What was found of some files, and what CONTENT can still read of them."""

    contents: tuple[Callable[[], Iterable[Unit]], ...] = ()
    unproved: tuple[str, ...] = ()
    size_bytes: int = 0
    ranks: int | None = None


class Inner(Struct, frozen=True):
    """A folder that is of another format, and what that checks."""

    look: Look
    check: Callable[[Look, Level], Facts]


def is_weights(name: str) -> bool:
    """Whether a file of this name holds weights, or is the index of such."""
    return _WEIGHTS.fullmatch(name) is not None


def tell_missing_weights(look: Look, names: Iterable[str]) -> frozenset[str]:
    """Shards and indexes that others tell of, by their names alone. Returns what was told as missing."""
    names = frozenset(names)
    indexes = {index for index in map(safetensors.index_of_shard, names) if index is not None}
    for name in sorted(indexes - names):
        look.missing(name)
    return safetensors.tell_missing_shards(look, names) | (indexes - names)


def check_files(look: Look, names: Iterable[str], told: Set[str] = frozenset()) -> Parts:
    """Each of these files of torch.save and safetensors, and the indexes of such. Faults are told."""
    names = frozenset(names)
    shards = set[str]()
    for index in sorted(name for name in names if name.endswith(INDEXES)):
        if index.endswith(INDEXES[0]):
            shards.update(safetensors.check_index(look, index, told))
        else:
            for shard in sorted(safetensors.read_index(look, index).keys() - names - told):
                look.missing(shard)
    parts = list[Parts]()
    for name in sorted(name for name in names if not name.endswith(INDEXES)):
        if name.endswith(safetensors.SUFFIX):
            if name not in shards:
                safetensors.check_safetensors(look, name)
            parts.append(_unproved(look, name))
        else:
            parts.append(_torch(look, name))
    return joined(parts)


def whole_by_names(inner: Iterable[Inner]) -> tuple[Inner, ...]:
    """Those that lack nothing, by names alone. What the others lack is told."""
    whole = list[Inner]()
    for one in inner:
        faults = one.look.ledger.faults
        check_inner(one, Level.NAMES)
        if one.look.ledger.faults == faults:
            whole.append(one)
    return tuple(whole)


def check_inner(inner: Inner, level: Level) -> Parts:
    """What its format finds. How deep it got there says nothing of the whole."""
    passed = inner.look.ledger.passed
    facts = inner.check(inner.look, level)
    inner.look.ledger.passed = passed
    unproved = tuple("/".join(inner.look.inner(name)) for name in facts.unproved)
    return Parts((facts.content,), unproved, facts.size_bytes or 0, facts.ranks)


def joined(parts: Iterable[Parts]) -> Parts:
    """All of them, in their order."""
    parts = tuple(parts)
    return Parts(
        contents=tuple(content for one in parts for content in one.contents),
        unproved=tuple(name for one in parts for name in one.unproved),
        size_bytes=sum(one.size_bytes for one in parts),
        ranks=next((one.ranks for one in parts if one.ranks is not None), None),
    )


def content_of(parts: Parts) -> Iterator[Unit]:
    """What CONTENT reads."""
    return chain.from_iterable(content() for content in parts.contents)


def size_of_files(look: Look) -> int:
    """Of the files directly in this folder."""
    return sum(one.size_bytes for one in look.children().values() if one.kind is Kind.FILE)


def tell_missing_numbers(look: Look, have: Set[int], name_of: Callable[[int], str], least: int = 0) -> None:
    """Numbered files have no gap, and there are at least so many."""
    for name in lacking_numbers(look, have, name_of, least):
        look.missing(name)


def lacking_numbers(look: Look, have: Set[int], name_of: Callable[[int], str], least: int = 0) -> tuple[str, ...]:
    """Which numbered files are missing, the first 1,000. A number that no training comes to is told as wrong."""
    beyond = {number for number in have if as_ranks(number + 1) is None}
    for number in sorted(beyond):
        look.wrong(name_of(number), "has a number that no training comes to")
    have = have - beyond
    return tuple(map(name_of, gaps(have, max(least, max(have, default=-1) + 1))))


def previous(look: Look) -> frozenset[str]:
    """The names in the next older checkpoint beside this one, by the numbers that end their names; none without one."""
    own = _NUMBERED.fullmatch(look.name)
    prefix = None if own is None else own[1]

    def number(name: str) -> int | None:
        said = _NUMBERED.fullmatch(name)
        return int(said[2]) if said is not None and said[1] == prefix else None

    return names_in(next_older(look, number))


def tell_overwritten(look: Look, first: Iterable[str], later: Iterable[str], last: str) -> None:
    """A save over another one that did not end: what it writes first is new, what it writes later and last is old.

    A copy that keeps no times may look alike, so that it is not known what this is.
    """
    found = look.children()
    newest_s = max((found[name].modified_at_s for name in first if name in found), default=0.0)
    newest = next((name for name in first if name in found and found[name].modified_at_s == newest_s), None)
    old = [name for name in later if name in found and found[name].modified_at_s <= found[last].modified_at_s]
    after_s = newest_s - found[last].modified_at_s
    if newest is not None and old and after_s > _OVERWRITTEN_S:
        look.unread(
            newest, f"is {after_s:.0f} s newer than {last}, which is written last: saved over another, not to its end"
        )


def _torch(look: Look, name: str) -> Parts:
    found = torch.check_torch_file(look, name)
    if found is None:
        return Parts()
    if not has_crcs(found):
        return _unproved(look, name)
    return Parts(contents=(lambda: torch.units_of(look, name, found),))


def _unproved(look: Look, name: str) -> Parts:
    return Parts(unproved=("/".join(look.inner(name)),))
