"""Is a checkpoint of fleetctl's own format whole? fleetctl.train.layout says what it must be.

What is missing makes it INCOMPLETE, what is there and wrong CORRUPT, what cannot be read UNKNOWN. Nothing that lies in
the folder is trusted before its size was compared, and nothing is read beyond a bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

from fleetctl.checkpoint.format import Facts, Format, Unit
from fleetctl.checkpoint.look import Look, Unjudged, read_exactly
from fleetctl.checkpoint.model import Level
from fleetctl.checkpoint.storage import Blob, Kind
from fleetctl.train import layout
from fleetctl.train.digests import DigestMissing


def step_named(name: str) -> int | None:
    """As in step-000000120@RUN_ID@2.0."""
    try:
        return layout.parse_committed(name).training_step
    except ValueError:
        return None


def recognise(look: Look) -> bool:
    """By its name alone: a folder gets it when all of it is on disk."""
    return step_named(look.name) is not None


def examine(look: Look, level: Level) -> Facts:
    """The manifest and its shards."""
    if look.kind() is not Kind.FOLDER:
        look.wrong("", "is no folder")
        return Facts()
    if look.file_size(layout.MANIFEST) is None:
        return Facts()
    look.passed(Level.NAMES)
    raw = look.read_whole(layout.MANIFEST, layout.MAX_MANIFEST_BYTES) if level >= Level.STRUCTURE else None
    manifest = None if raw is None else _manifest(look, raw)
    if raw is None or manifest is None:
        return Facts()
    for file in manifest.files:
        _check_shard(look, file)
    _check_no_more_shards(look, manifest)
    look.passed(Level.STRUCTURE)
    return Facts(
        training_step=manifest.training_step,
        size_bytes=sum(file.bytes for file in manifest.files),
        saved_at=_moment(manifest.saved_at),
        ranks=manifest.shards if manifest.shards > 1 else None,  # shards=WORLD_SIZE loads at that size only
        content=lambda: _content(look, raw, manifest),
    )


def _manifest(look: Look, raw: bytes) -> layout.Manifest | None:
    with look.judging(layout.MANIFEST):
        try:
            manifest = layout.parse_manifest(raw)
            layout.check_agreement(manifest, layout.parse_committed(look.name))
        except DigestMissing as missing:
            raise Unjudged(f"cannot be checked: {missing}") from None
        except ValueError as error:
            raise ValueError(f": {error}") from None
        return manifest
    return None


def _check_shard(look: Look, file: layout.ShardFile) -> None:
    size_bytes = look.file_size(file.name)
    if size_bytes is None:
        return
    if size_bytes != file.bytes:
        look.wrong(file.name, f"has {size_bytes} bytes, not {file.bytes}")
        return
    with look.judging(file.name), look.open(file.name) as blob:
        try:
            _check_header(blob, file)
        except ValueError as error:
            raise ValueError(f": {error}") from None


def _check_header(blob: Blob, file: layout.ShardFile) -> None:
    length = layout.parse_prefix(blob.read(0, min(layout.PREFIX_BYTES, blob.size_bytes)))
    if layout.PREFIX_BYTES + length > file.bytes:
        raise ValueError("the header is longer than the file")
    parts = layout.parse_header(read_exactly(blob, layout.PREFIX_BYTES, length))
    if (wanted := layout.shard_bytes(length, parts)) != file.bytes:
        raise ValueError(f"its entries end at {wanted} bytes, the file at {file.bytes}")


def _check_no_more_shards(look: Look, manifest: layout.Manifest) -> None:
    """A shard that the manifest does not know tells of two writers. Other files are somebody's notes."""
    known = {file.name for file in manifest.files}
    for name in sorted(look.names()):
        if name not in known and _is_shard(name):
            look.wrong(name, "is not in the manifest")


def _content(look: Look, raw: bytes, manifest: layout.Manifest) -> Iterator[Unit]:
    # As layout.encode_manifest writes it, with whatever a newer fleetctl adds: not a tab for a blank
    if json.dumps(json.loads(raw), indent=1).encode("ascii") != raw:
        look.wrong(layout.MANIFEST, "says the same in other bytes than were written")
    for rank, file in enumerate(manifest.files):
        said, name = layout.encode_said(layout.Said(file.bytes, file.digest, None)), layout.said_name(rank)
        found = look.read_whole(name, layout.MAX_SAID_BYTES)
        if found is not None and found != said:
            look.wrong(name, "does not agree with the manifest")
        yield Unit(look.inner(file.name), 0, file.bytes, file.digest)


def _is_shard(name: str) -> bool:
    try:
        layout.parse_shard_name(name)
    except ValueError:
        return False
    return True


def _moment(text: str) -> datetime | None:
    """Aware, in UTC. A clock without zone says nothing."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


FORMAT = Format(name="own", step_named=step_named, recognise=recognise, examine=examine)
