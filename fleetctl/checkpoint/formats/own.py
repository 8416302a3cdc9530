"""Is a checkpoint of fleetctl's own format whole? Answers at three levels; fleetctl.train.layout says what it must be.

What is missing makes it INCOMPLETE, what is there and wrong CORRUPT, what cannot be read UNKNOWN. Nothing that lies in
the folder is trusted before its size was compared, and nothing is read beyond a bound.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from fleetctl.checkpoint.model import Checked, Entry, Level, Validity, one_line
from fleetctl.checkpoint.storage import Blob, Kind, Storage
from fleetctl.train import layout
from fleetctl.train.digests import Digest, DigestMissing, parse_digest

_CHUNK_BYTES = 4 << 20  # of a digest: large for parallel file systems, small beside any training's memory


def _silent(size_bytes: int) -> None:
    """Nobody watches."""


class _Fault(Exception):
    """The end of a check: what is wrong. Never leaves this module."""

    def __init__(self, validity: Validity, reason: str) -> None:
        super().__init__(reason)
        self.validity = validity
        self.reason = one_line(reason)


def check(
    storage: Storage, directory: Path, entry: Entry, level: Level, *, watch: Callable[[int], None] = _silent
) -> Checked:
    """Look at one committed checkpoint below `directory`, as deep as `level`. Never raises for what lies there.

    `watch` is told the size of every piece of content, in bytes, when it was read.
    """
    return _Look(storage, directory, entry, watch).run(level)


class _Look:
    """One look: what was passed so far, and what it has cost."""

    def __init__(self, storage: Storage, directory: Path, entry: Entry, watch: Callable[[int], None]) -> None:
        self._storage, self._directory, self._entry, self._watch = storage, directory, entry, watch
        self._passed: Level | None = None
        self._bytes_read = 0
        self._manifest: layout.Manifest | None = None
        self._raw_manifest = b""

    def run(self, level: Level) -> Checked:
        validity, reason = Validity.VALID, ""
        try:
            self._check_names()
            if level >= Level.STRUCTURE:
                self._check_structure()
            if level >= Level.CONTENT:
                self._check_content()
        except _Fault as fault:
            validity, reason = fault.validity, fault.reason
        except DigestMissing as missing:  # no fault of the checkpoint: it is as valid as the level says
            reason = f"{missing}: the content was not checked"
        except OSError as error:
            validity, reason = Validity.UNKNOWN, one_line(f"cannot be read: {error.strerror or error}")
        manifest = self._manifest
        return Checked(
            self._entry,
            self._entry.name,
            validity,
            self._passed,
            reason,
            self._bytes_read,
            None if manifest is None else sum(file.bytes for file in manifest.files),
            None if manifest is None else _moment(manifest.saved_at),
        )

    def _check_names(self) -> None:
        name = self._entry.name
        folder = self._storage.look(self._directory, name)
        if folder is None:
            raise _Fault(Validity.INCOMPLETE, "it is gone")
        if folder.kind is not Kind.FOLDER:
            raise _Fault(Validity.CORRUPT, "it is no folder")
        self._size_of(layout.MANIFEST)
        self._passed = Level.NAMES

    def _check_structure(self) -> None:
        manifest = self._read_manifest()
        for file in manifest.files:
            size_bytes = self._size_of(file.name)
            if size_bytes != file.bytes:
                raise _Fault(Validity.CORRUPT, f"{file.name} has {size_bytes} bytes, not {file.bytes}")
            with self._storage.open(self._directory, self._entry.name, file.name) as blob:
                self._check_header(blob, file)
        self._check_no_more_shards(manifest)
        self._manifest, self._passed = manifest, Level.STRUCTURE

    def _check_content(self) -> None:
        manifest = self._manifest
        assert manifest is not None, "the structure was checked before"
        # As layout.encode_manifest writes it, with whatever a newer fleetctl adds: not a tab for a blank
        if json.dumps(json.loads(self._raw_manifest), indent=1).encode("ascii") != self._raw_manifest:
            raise _Fault(Validity.CORRUPT, "manifest.json says the same in other bytes than were written")
        for rank, file in enumerate(manifest.files):
            self._check_said(layout.said_name(rank), file)
            digest = Digest(parse_digest(file.digest)[0])
            with self._storage.open(self._directory, self._entry.name, file.name) as blob:
                for offset in range(0, file.bytes, _CHUNK_BYTES):
                    piece = self._read(blob, offset, min(_CHUNK_BYTES, file.bytes - offset), file.name)
                    digest.update(piece)
                    self._watch(len(piece))
            if digest.text() != file.digest:
                raise _Fault(Validity.CORRUPT, f"{file.name} has another content than was written")
        self._passed = Level.CONTENT

    def _read_manifest(self) -> layout.Manifest:
        self._raw_manifest = self._whole(layout.MANIFEST, layout.MAX_MANIFEST_BYTES)
        try:
            manifest = layout.parse_manifest(self._raw_manifest)
            layout.check_agreement(manifest, layout.parse_committed(self._entry.name))
        except DigestMissing as missing:
            raise _Fault(Validity.UNKNOWN, f"manifest.json cannot be checked: {missing}") from None
        except ValueError as error:
            raise _Fault(Validity.CORRUPT, f"manifest.json: {error}") from None
        return manifest

    def _check_header(self, blob: Blob, file: layout.ShardFile) -> None:
        try:
            length = layout.parse_prefix(self._read(blob, 0, min(layout.PREFIX_BYTES, blob.size_bytes), file.name))
            if layout.PREFIX_BYTES + length > file.bytes:
                raise ValueError("the header is longer than the file")
            parts = layout.parse_header(self._read(blob, layout.PREFIX_BYTES, length, file.name))
            if (wanted := layout.shard_bytes(length, parts)) != file.bytes:
                raise ValueError(f"its entries end at {wanted} bytes, the file at {file.bytes}")
        except ValueError as error:
            raise _Fault(Validity.CORRUPT, f"{file.name}: {error}") from None

    def _check_no_more_shards(self, manifest: layout.Manifest) -> None:
        """A shard that the manifest does not know tells of two writers. Other files are somebody's notes."""
        known = {file.name for file in manifest.files}
        for name in sorted(self._storage.listing(self._directory, self._entry.name)):
            if name not in known and _is_shard(name):
                raise _Fault(Validity.CORRUPT, f"{name} is not in the manifest")

    def _check_said(self, name: str, file: layout.ShardFile) -> None:
        self._size_of(name)
        if self._whole(name, layout.MAX_SAID_BYTES) != layout.encode_said(layout.Said(file.bytes, file.digest, None)):
            raise _Fault(Validity.CORRUPT, f"{name} does not agree with the manifest")

    def _size_of(self, name: str) -> int:
        found = self._storage.look(self._directory, self._entry.name, name)
        if found is None:
            raise _Fault(Validity.INCOMPLETE, f"{name} is missing")
        if found.kind is not Kind.FILE:
            raise _Fault(Validity.CORRUPT, f"{name} is no file")
        return found.size_bytes

    def _whole(self, name: str, most_bytes: int) -> bytes:
        with self._storage.open(self._directory, self._entry.name, name) as blob:
            if blob.size_bytes > most_bytes:
                raise _Fault(Validity.CORRUPT, f"{name} has {blob.size_bytes} bytes, more than any that we write")
            return self._read(blob, 0, blob.size_bytes, name)

    def _read(self, blob: Blob, offset: int, size_bytes: int, name: str) -> bytes:
        raw = blob.read(offset, size_bytes)
        self._bytes_read += len(raw)
        if len(raw) != size_bytes:
            raise _Fault(Validity.CORRUPT, f"{name} ends at {offset + len(raw)} bytes, not at {blob.size_bytes}")
        return raw


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
