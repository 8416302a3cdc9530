"""The form of fleetctl's own checkpoints: names, manifest, shard header, digests. Its writer and its readers share it.

    DIRECTORY/step-000000120@RUN_ID@ATTEMPT/            committed: complete, and never changed again
        shard-00000.bin  shard-00000.json  manifest.json
    DIRECTORY/.staging/step-000000120@RUN_ID@ATTEMPT@SEQ/   being written, by all ranks
    DIRECTORY/.staging/step-000000120@RUN_ID@ATTEMPT@SEQ-1a2b3c4d/   being written by rank 0 alone
    DIRECTORY/.trash/...                                being removed

A shard file is MAGIC, the length of the header (u64, little-endian), the header (JSON, padded with blanks so that the
data starts at a multiple of 64), and the entries' data without gaps. No I/O here. Every `parse_*` raises ValueError
with a readable reason, whatever the bytes are. Standard library only, Python 3.8 and newer.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any, List, NamedTuple, Sequence

from fleetctl.train.digests import digest_of, parse_digest
from fleetctl.train.records import count_in, read_object, text_in

SCHEMA = 1
FORMAT = "fleetctl"
MAGIC = b"fleetck1"
MANIFEST = "manifest.json"
STAGING, TRASH = ".staging", ".trash"  # folders in the checkpoint directory
PREFIX_BYTES = len(MAGIC) + 8
ALIGNMENT = 64  # a cache line: arrays may be mapped straight from the file
# Neither is written bigger, so a reader need not take in more of a damaged one: parsed JSON takes up to 25 times its
# size. 16 MiB are 130 000 arrays in a shard, or 100 000 shards.
MAX_MANIFEST_BYTES = 16 << 20
MAX_HEADER_BYTES = 16 << 20
MAX_SAID_BYTES = 64 << 10

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
ATTEMPT = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})")
_COMMITTED = re.compile(r"step-([0-9]{9,18})@([^@]+)@([^@]+)")
_STAGED = re.compile(r"(.+)@([0-9]{1,18})(?:-[0-9a-f]{8})?", re.DOTALL)
_SHARD = re.compile(r"shard-([0-9]{5,9})\.bin")
# What numpy writes as `dtype.str`: byte order, kind, bytes of an item (characters of 4 bytes for U), unit of a time.
# Object (O) and void (V: structured, bfloat16) are not among them: their text does not say what they are.
_DTYPE = re.compile(r"[<>|]([biufcSUmM])([0-9]{1,9})(\[[0-9A-Za-z]{1,16}\])?")


class Name(NamedTuple):
    """What the name of a checkpoint says. `attempt` is text such as "2.0"; `attempt_number` makes it comparable."""

    training_step: int
    run_id: str
    attempt: str


class Part(NamedTuple):
    """One entry of a shard. `offset` counts from the start of the data; dtype and shape are those of an array."""

    name: str
    kind: str  # array, bytes, json
    dtype: str | None
    shape: tuple[int, ...] | None
    offset: int
    bytes: int


class ShardFile(NamedTuple):
    """One file that the manifest names; the digest, "crc32:1a2b3c4d", covers all of it."""

    name: str
    bytes: int
    digest: str


class Manifest(NamedTuple):
    """`saved_at` is ISO 8601 with its offset."""

    training_step: int
    run_id: str
    attempt: str
    saved_at: str
    host: str
    shards: int
    files: tuple[ShardFile, ...]


class Said(NamedTuple):
    """What one rank says when its shard is on disk; `failed` is why it is not, else None."""

    bytes: int
    digest: str
    failed: str | None


def attempt_number(attempt: str) -> tuple[int, int]:
    """(2, 0) of "2.0": a higher one is newer."""
    found = ATTEMPT.fullmatch(attempt)
    if found is None:
        raise ValueError(f"{attempt!r} is no attempt: it is like 2.0")
    return int(found[1]), int(found[2])


def committed_name(training_step: int, run_id: str, attempt: str) -> str:
    """The folder's name of a committed checkpoint."""
    name = f"step-{training_step:09d}@{run_id}@{attempt}"
    parse_committed(name)
    return name


def parse_committed(name: str) -> Name:
    """What the name of a committed checkpoint says."""
    found = _COMMITTED.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not like step-000000120@RUN_ID@2.0")
    digits, run_id, attempt = found[1], found[2], found[3]
    if f"{int(digits):09d}" != digits:
        raise ValueError(f"{name!r} has a step with needless zeros")
    if RUN_ID.fullmatch(run_id) is None:
        raise ValueError(f"{run_id!r} is no run id")
    attempt_number(attempt)
    return Name(int(digits), run_id, attempt)


def staging_name(training_step: int, run_id: str, attempt: str, seq: int, token: str = "") -> str:
    """The folder's name of the `seq`-th save of a step, below STAGING. `token`, 8 hexadecimal digits: nobody else's."""
    return f"{committed_name(training_step, run_id, attempt)}@{seq}{token and '-'}{token}"


def parse_staging(name: str) -> tuple[Name, int]:
    """What the name of a staging folder says, and its seq."""
    found = _STAGED.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not like step-000000120@RUN_ID@2.0@1")
    return parse_committed(found[1]), int(found[2])


def shard_name(rank: int) -> str:
    """The file that holds what `rank` saved."""
    return f"shard-{rank:05d}.bin"


def said_name(rank: int) -> str:
    """The file in which `rank` says that its shard is complete."""
    return f"shard-{rank:05d}.json"


def parse_shard_name(name: str) -> int:
    """The rank of a shard file."""
    found = _SHARD.fullmatch(name)
    if found is None or shard_name(int(found[1])) != name:
        raise ValueError(f"{name!r} is not like shard-00000.bin")
    return int(found[1])


def encode_header(parts: Sequence[Part]) -> bytes:
    """All bytes of a shard file before its data."""
    entries = [part._asdict() for part in parts]
    text = json.dumps({"entries": entries}, separators=(",", ":")).encode("ascii")
    if len(text) > MAX_HEADER_BYTES - ALIGNMENT:
        raise ValueError(f"{len(parts)} entries are too many for one shard")
    length = -(-(PREFIX_BYTES + len(text)) // ALIGNMENT) * ALIGNMENT - PREFIX_BYTES
    return MAGIC + struct.pack("<Q", length) + text.ljust(length)


def parse_prefix(raw: bytes) -> int:
    """The length of the header, from the first PREFIX_BYTES of a shard file; the data starts after both."""
    if len(raw) < PREFIX_BYTES:
        raise ValueError(f"the file ends after {len(raw)} bytes, within its first {PREFIX_BYTES}")
    if raw[: len(MAGIC)] != MAGIC:
        raise ValueError(f"the file starts with {bytes(raw[: len(MAGIC)])!r}, not with {MAGIC!r}")
    length: int = struct.unpack("<Q", raw[len(MAGIC) : PREFIX_BYTES])[0]
    if length > MAX_HEADER_BYTES or (PREFIX_BYTES + length) % ALIGNMENT:
        raise ValueError(f"the header cannot be {length} bytes long")
    return length


def parse_header(raw: bytes) -> tuple[Part, ...]:
    """The entries of a shard, from its header's bytes: in order, without gap or overlap, no name twice."""
    listed = read_object(raw, "the header").get("entries")
    if not isinstance(listed, list):
        raise ValueError("the header has no list of entries")
    parts: List[Part] = []
    offset = 0
    for item in listed:
        part = _part(item)
        if part.offset != offset:
            raise ValueError(f"the entry {part.name!r} starts at {part.offset}, not at {offset}")
        offset += part.bytes
        parts.append(part)
    if len({part.name for part in parts}) != len(parts):
        raise ValueError("the header has a name twice")
    return tuple(parts)


def shard_bytes(header_length: int, parts: Sequence[Part]) -> int:
    """The exact size of the shard file with this header."""
    return PREFIX_BYTES + header_length + sum(part.bytes for part in parts)


def item_bytes(dtype: str) -> int:
    """The bytes of one item of an array with this `dtype.str`."""
    found = _DTYPE.fullmatch(dtype)
    if found is None or int(found[2]) == 0:
        raise ValueError(f"the dtype {dtype!r} cannot be kept")
    return int(found[2]) * (4 if found[1] == "U" else 1)


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest file; its own digest is always CRC-32, so that everybody can check it."""
    record = {"schema": SCHEMA, "format": FORMAT, **manifest._asdict()}
    record["files"] = [file._asdict() for file in manifest.files]
    record["self"] = digest_of("crc32", _canonical(record))
    raw = json.dumps(record, indent=1).encode("ascii")
    if len(raw) > MAX_MANIFEST_BYTES:
        raise ValueError(f"{manifest.shards} shards are too many for one manifest")
    return raw


def parse_manifest(raw: bytes) -> Manifest:
    """The manifest, if its own digest is right and it is whole: all shards, in order."""
    record = read_object(raw, "the manifest")
    told = text_in(record, "self")
    if digest_of(parse_digest(told)[0], _canonical({key: record[key] for key in record if key != "self"})) != told:
        raise ValueError("the manifest does not agree with its own digest")
    if record.get("schema") != SCHEMA or record.get("format") != FORMAT:
        raise ValueError(f"the manifest is of {record.get('format')!r}, schema {record.get('schema')!r}")
    shards, listed = count_in(record, "shards"), record.get("files")
    if not isinstance(listed, list) or shards < 1 or len(listed) != shards:
        raise ValueError("the manifest does not list as many files as it has shards")
    files = tuple(_shard_file(item, shard_name(rank)) for rank, item in enumerate(listed))
    said = {key: text_in(record, key) for key in ("run_id", "attempt", "saved_at", "host")}
    return Manifest(count_in(record, "training_step"), shards=shards, files=files, **said)


def check_agreement(manifest: Manifest, name: Name) -> None:
    """ValueError if a manifest is not that of the checkpoint whose folder it lies in."""
    if (manifest.training_step, manifest.run_id, manifest.attempt) != name:
        said = f"step {manifest.training_step} of {manifest.run_id}, attempt {manifest.attempt}"
        raise ValueError(f"the manifest is that of {said}: not what the folder's name says")


def encode_said(said: Said) -> bytes:
    """The file in which a rank says how its shard went."""
    record = {"schema": SCHEMA, "bytes": said.bytes, "digest": said.digest}
    return json.dumps(record if said.failed is None else {"schema": SCHEMA, "failed": said.failed}).encode("ascii")


def parse_said(raw: bytes) -> Said:
    """What a rank said."""
    record = read_object(raw, "what a rank said")
    if "failed" in record:
        return Said(0, "", text_in(record, "failed"))
    digest = text_in(record, "digest")
    parse_digest(digest)
    return Said(count_in(record, "bytes"), digest, None)


def _part(item: Any) -> Part:
    if not isinstance(item, dict):
        raise ValueError("an entry of the header is no object")
    name, kind = text_in(item, "name"), text_in(item, "kind")
    dtype, shape, size = item.get("dtype"), item.get("shape"), count_in(item, "bytes")
    if kind not in ("array", "bytes", "json"):
        raise ValueError(f"the entry {name!r} is of the unknown kind {kind!r}")
    if kind != "array":
        return Part(name, kind, None, None, count_in(item, "offset"), size)
    if not isinstance(dtype, str) or not isinstance(shape, list):
        raise ValueError(f"the array {name!r} has no dtype or no shape")
    expected = item_bytes(dtype)
    for length in shape:
        if type(length) is not int or not 0 <= length < 2**63:
            raise ValueError(f"the array {name!r} has a length of {length!r}")
        expected *= length
    if expected != size:
        raise ValueError(f"the array {name!r} has {size} bytes, not {expected}")
    return Part(name, kind, dtype, tuple(shape), count_in(item, "offset"), size)


def _shard_file(item: Any, name: str) -> ShardFile:
    if not isinstance(item, dict) or item.get("name") != name:
        raise ValueError(f"the manifest does not list {name} in its place")
    digest = text_in(item, "digest")
    parse_digest(digest)
    return ShardFile(name, count_in(item, "bytes"), digest)


def _canonical(record: Any) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode("ascii")
