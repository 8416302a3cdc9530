"""Megatron-LM: a folder `iter_NNNNNNN` for each step, as megatron-core's dist_checkpointing writes it, or an older way.

`torch_dist` is a DCP folder. `common.pt` has what is not sharded (newer ones keep it in the DCP files), and
`metadata.json`, written after `.metadata`, commits the save. Then `integrity.json` may follow, with a SHA-256 of each
file. `torch_dcp` and `fsdp_dtensor` are DCP alone. `release` are weights. `non_persistent` is a folder of checkpoints.

Source: dist_checkpointing/{core,serialization,validation}.py of megatron-core.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain

import msgspec
from msgspec import Struct, structs

from fleetctl.checkpoint.format import Facts, Format, Unit
from fleetctl.checkpoint.formats import dcp
from fleetctl.checkpoint.formats.beside import names_in, next_older
from fleetctl.checkpoint.formats.megatron_legacy import MODEL, check_legacy, iteration_of, rank_of, step_of_rank
from fleetctl.checkpoint.formats.torch import check_torch_file, pickle_of, units_of
from fleetctl.checkpoint.look import Look, Unjudged, moment
from fleetctl.checkpoint.model import Level
from fleetctl.checkpoint.storage import Kind
from fleetctl.checkpoint.zips import Zip, has_crcs
from fleetctl.train.digests import parse_digest

_ITERATION = re.compile(r"iter_([0-9]{7}|[1-9][0-9]{7,17})")
_RELEASE = "release"
_COMMITS, _METADATA, _COMMON, _INTEGRITY = "metadata.json", ".metadata", "common.pt", "integrity.json"
_NEEDED = frozenset({_COMMITS, _METADATA, _COMMON})
_OF_DIST = _NEEDED | {_INTEGRITY}
_BACKEND, _ALGORITHM = "torch_dist", "sha256"
_SHARDS = ".distcp"
_MOST_COMMIT_BYTES = 64 << 10  # four fields
_MOST_INTEGRITY_BYTES = 256 << 20  # some two million files
_FEW = 4  # folders that are looked into to recognise the older layout


class _Commit(Struct, frozen=True):
    sharded_backend: str


class _Integrity(Struct, frozen=True):
    files: dict[str, str]
    algorithm: str = _ALGORITHM  # megatron-core reads one without it so


class _Common(Struct, frozen=True):
    """What is not sharded. Without a zip, it is not there or broken."""

    iteration: int | None = None
    zipped: Zip | None = None


_COMMIT_DECODER = msgspec.json.Decoder(_Commit)
_INTEGRITY_DECODER = msgspec.json.Decoder(_Integrity)


def step_named(name: str) -> int | None:
    """As in iter_0000120."""
    found = _ITERATION.fullmatch(name)
    return None if found is None else int(found[1])


def recognise(look: Look) -> bool:
    """By its name and any file of it, or by what only Megatron writes."""
    if look.kind() is not Kind.FOLDER:
        return False
    names = look.names()
    if step_named(look.name) is not None:
        return not names or not names.isdisjoint(_OF_DIST) or any(_is_rank(name) for name in names)
    if _COMMITS in names and _commits(look):
        return True
    return any(MODEL in names_in(rank) for rank in _ranks_of(look))


def examine(look: Look, level: Level) -> Facts:
    """A step, or weights that were released."""
    if look.kind() is not Kind.FOLDER:
        look.wrong("", "is no folder")
        return Facts()
    older, names = next_older(look, step_named), look.names()
    if names.isdisjoint(_OF_DIST) and any(rank_of(name) for name in names):
        facts = check_legacy(look, older, step_named(look.name), level)
    else:
        facts = _check_dist(look, older, level)
    return structs.replace(facts, resumable=look.name != _RELEASE)


def peek(look: Look) -> int | None:
    """The iteration that the common part says, or one of the older layout's models, else what DCP says."""
    aside = look.beside(look.name)
    if _COMMON in aside.names():
        zipped = check_torch_file(aside, _COMMON)
        return None if zipped is None else iteration_of(pickle_of(aside, _COMMON, zipped))
    if _METADATA in aside.names():
        return dcp.peek(aside)
    return next(filter(None, map(step_of_rank, _ranks_of(aside))), None)


def _ranks_of(look: Look) -> list[Look]:
    """Some folders of the older layout."""
    ranks = (name for name, one in look.children().items() if one.kind is Kind.FOLDER and rank_of(name))
    return [look.below(name) for name in sorted(ranks)[:_FEW]]


def _is_rank(name: str) -> bool:
    return name.endswith(_SHARDS) or rank_of(name) is not None


def _commits(look: Look) -> bool:
    """Whether its metadata.json is megatron-core's: levanter has one, too."""
    aside = look.beside(look.name)
    raw = aside.read_whole(_COMMITS, _MOST_COMMIT_BYTES)
    try:
        return raw is not None and bool(_COMMIT_DECODER.decode(raw).sharded_backend)
    except (ValueError, RecursionError):
        return False


def _check_dist(look: Look, older: Look | None, level: Level) -> Facts:
    names = look.names()
    bare = _METADATA not in names and not any(name.endswith(_SHARDS) for name in names)
    # Without any DCP file it may be of another backend, and only this tells: the one small file that NAMES reads
    if _COMMITS in names and bare and not _check_commit(look):
        return Facts()
    commits = _is_torch_dist(names, older)
    if commits:
        look.file_size(_COMMITS)
    faults = look.ledger.faults
    facts = dcp.check_dcp(look, Level.NAMES)
    common, digests = _Common(), None
    if level >= Level.STRUCTURE:
        is_dcp = look.ledger.faults == faults and (_COMMITS not in names or _check_commit(look))
        common = _check_common(look) if _COMMON in names else common
        digests = _check_integrity(look) if _INTEGRITY in names else None
        facts = dcp.check_dcp(look, level) if is_dcp else facts
    commit = look.children().get(_COMMITS)
    facts = structs.replace(
        facts,
        training_step=common.iteration,
        size_bytes=sum(one.size_bytes for one in look.children().values() if one.kind is Kind.FILE),
        saved_at=facts.saved_at if commit is None else moment(commit.modified_at_s),
        uncommitted=_COMMITS not in names if commits else facts.uncommitted,
    )
    return _with_digests(look, facts, digests) if digests is not None else _with_common(look, facts, common)


def _is_torch_dist(names: frozenset[str], older: Look | None) -> bool:
    """Whether it must have a commit marker of its own. DCP alone, with nothing of dist_checkpointing in it or in the
    older step, is `torch_dcp` or `fsdp_dtensor`."""
    return not names.isdisjoint({_COMMITS, _COMMON}) or _METADATA not in names or _COMMITS in names_in(older)


def _check_commit(look: Look) -> bool:
    """Whether it says that this is DCP."""
    raw = look.read_whole(_COMMITS, _MOST_COMMIT_BYTES)
    if raw is None:
        return False
    with look.judging(_COMMITS):
        try:
            backend = _COMMIT_DECODER.decode(raw).sharded_backend
        except (ValueError, RecursionError) as error:
            raise ValueError(f": not what dist_checkpointing writes: {error}") from None
        if backend != _BACKEND:
            raise Unjudged(f"says that its backend is {backend}, which fleetctl does not know")
        return True
    return False


def _check_common(look: Look) -> _Common:
    zipped = check_torch_file(look, _COMMON)
    if zipped is None:
        return _Common()
    said, named = iteration_of(pickle_of(look, _COMMON, zipped)), step_named(look.name)
    if said is not None and named is not None and said != named:
        look.wrong(_COMMON, f"is of another save: it says iteration {said}, not {named}")
    return _Common(said, zipped)


def _check_integrity(look: Look) -> Mapping[str, str] | None:
    """The digest of each file that it names, all of which must be there."""
    raw = look.read_whole(_INTEGRITY, _MOST_INTEGRITY_BYTES)
    if raw is None:
        return None
    with look.judging(_INTEGRITY):
        try:
            said = _INTEGRITY_DECODER.decode(raw)
        except (ValueError, RecursionError) as error:
            raise ValueError(f": not what dist_checkpointing writes: {error}") from None
        if said.algorithm != _ALGORITHM:
            raise Unjudged(f"has digests of the kind {said.algorithm}, which megatron-core does not write")
        digests = {name: f"{_ALGORITHM}:{digest}" for name, digest in sorted(said.files.items())}
        for name, digest in digests.items():
            _check_named(name, digest)
        for name in digests:
            look.file_size(name)
        return digests
    return None


def _check_named(name: str, digest: str) -> None:
    """:raises ValueError: it is no file of this folder, or has no digest."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f": names {name!a}, which is no file beside it")
    try:
        parse_digest(digest)
    except ValueError as error:
        raise ValueError(f": {error}") from None


def _with_digests(look: Look, facts: Facts, digests: Mapping[str, str]) -> Facts:
    found = look.children()
    unproved = (name for name in found if name not in digests and (name.endswith(_SHARDS) or name in _NEEDED))
    return structs.replace(
        facts,
        content=lambda: (Unit(look.inner(name), 0, found[name].size_bytes, digest) for name, digest in digests.items()),
        unproved=tuple(sorted(unproved)),
    )


def _with_common(look: Look, facts: Facts, common: _Common) -> Facts:
    """DCP's slices, and the file beside them."""
    zipped = common.zipped
    if zipped is None:
        return facts
    if not has_crcs(zipped):
        return structs.replace(facts, unproved=(*facts.unproved, _COMMON))
    return structs.replace(facts, content=lambda: chain(units_of(look, _COMMON, zipped), facts.content()))


FORMAT = Format(name="megatron", step_named=step_named, recognise=recognise, examine=examine, peek=peek)
