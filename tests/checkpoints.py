"""Writes checkpoints of fleetctl's own format for tests, by the functions that its writer uses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fleetctl.train import layout
from fleetctl.train.digests import digest_of

SAVED_AT = "2026-01-01T00:00:00+00:00"
ARRAYS: Mapping[str, bytes] = {"weights": bytes(range(256)) * 3, "rng": b"\x00\x01" * 50}


def shard(arrays: Mapping[str, bytes] = ARRAYS) -> bytes:
    """One whole shard file."""
    parts, offset = list[layout.Part](), 0
    for name, data in arrays.items():
        parts.append(layout.Part(name, "bytes", None, None, offset, len(data)))
        offset += len(data)
    return layout.encode_header(parts) + b"".join(arrays.values())


def write_checkpoint(
    directory: Path,
    step: int,
    *,
    run_id: str = "run-a",
    attempt: str = "1.0",
    shards: int = 2,
    digest: str = "crc32",
    saved_at: str = SAVED_AT,
    data: bytes | None = None,
) -> Path:
    """A committed checkpoint; each shard differs. Returns its folder."""
    folder = directory / layout.committed_name(step, run_id, attempt)
    folder.mkdir(parents=True)
    files = []
    for rank in range(shards):
        raw = shard({**ARRAYS, "rank": bytes([rank])} if data is None else {"data": data, "rank": bytes([rank])})
        (folder / layout.shard_name(rank)).write_bytes(raw)
        file = layout.ShardFile(layout.shard_name(rank), len(raw), digest_of(digest, raw))
        (folder / layout.said_name(rank)).write_bytes(layout.encode_said(layout.Said(file.bytes, file.digest, None)))
        files.append(file)
    manifest = layout.Manifest(step, run_id, attempt, saved_at, "host", shards, tuple(files))
    (folder / layout.MANIFEST).write_bytes(layout.encode_manifest(manifest))
    return folder


def write_staged(directory: Path, step: int, *, run_id: str = "run-a", attempt: str = "1.0", seq: int = 1) -> Path:
    """A save that has one shard and no manifest."""
    folder = directory / layout.STAGING / layout.staging_name(step, run_id, attempt, seq)
    folder.mkdir(parents=True)
    (folder / layout.shard_name(0)).write_bytes(shard()[:100])
    return folder


def lie(folder: Path, **said: object) -> None:
    """Write the manifest anew with other words and a right digest of its own."""
    manifest = layout.parse_manifest((folder / layout.MANIFEST).read_bytes())
    (folder / layout.MANIFEST).write_bytes(layout.encode_manifest(manifest._replace(**said)))  # type: ignore[arg-type]
