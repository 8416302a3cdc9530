"""How a checkpoint gets its name: staged, synced, complete, and only then renamed.

Invariant: a folder with a committed name holds all of its content on disk, whatever crashed when; and no commit
touches an earlier one. Hence the order: every shard on disk, then its rank's word, then the manifest, then the
staging folder's names, then the fence, then the rename, then the checkpoint directory's names.
Standard library only, Python 3.8 and newer.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Callable, NamedTuple, Sequence

from fleetctl.train.attempt import AttemptFolder, Superseded
from fleetctl.train.disk import Disk
from fleetctl.train.layout import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    MAX_SAID_BYTES,
    STAGING,
    TRASH,
    Manifest,
    Said,
    ShardFile,
    committed_name,
    encode_manifest,
    encode_said,
    parse_said,
    parse_staging,
    said_name,
    shard_name,
    staging_name,
)
from fleetctl.train.settings import Settings
from fleetctl.train.shard import write_shard

_POLL_S = 0.05  # how often rank 0 looks for the other shards, at first
_POLL_AT_MOST_S = 1.0  # a listing of a shared file system each second costs it little


class CommitFailed(Exception):
    """This try did not succeed; what was committed earlier stands."""


class Save(NamedTuple):
    """The `seq`-th save of a process."""

    training_step: int
    seq: int
    pieces: Sequence[bytes | memoryview]


class Committer:
    """Writes this rank's shard; rank 0 also commits the whole."""

    def __init__(
        self,
        settings: Settings,
        attempt: AttemptFolder,
        *,
        digest: str,
        timeout_s: float,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        disk: Disk,
    ) -> None:
        """`timeout_s` is how long rank 0 waits for the other ranks' shards."""
        self._settings, self._attempt, self._disk = settings, attempt, disk
        self._digest, self._timeout_s = digest, timeout_s
        self._monotonic, self._sleep = monotonic, sleep
        self._trash = os.path.join(settings.directory, TRASH)

    def path(self, training_step: int) -> str:
        """Where the checkpoint of this attempt at that step is once it is committed."""
        name = committed_name(training_step, self._settings.run_id, self._settings.attempt)
        return os.path.join(self._settings.directory, name)

    def commit(self, save: Save) -> int:
        """The bytes of all shards that this rank knows of.

        Raises OSError, CommitFailed or Superseded; then nothing of this try is left that could be taken for a
        checkpoint, and no staging of it as far as the file system lets us remove it.
        """
        staging = self._staging(save)
        try:
            self._attempt.check_fence()
            said = self._write_own(save, staging)
            if self._settings.rank != 0:
                return said.bytes
            everybody = self._everybody(staging, said)
            manifest = self._write_manifest(save, staging, everybody)
            self._attempt.check_fence()
            self._rename(staging, self.path(save.training_step), manifest)
            self._disk.sync_folder(self._settings.directory)
        except (OSError, CommitFailed, Superseded, MemoryError) as error:
            self._give_up(staging, error)
            raise
        return sum(each.bytes for each in everybody)

    def _staging(self, save: Save) -> str:
        name = staging_name(save.training_step, self._settings.run_id, self._settings.attempt, save.seq)
        return os.path.join(self._settings.directory, STAGING, name)

    def _write_own(self, save: Save, staging: str) -> Said:
        rank = self._settings.rank
        if rank == 0:
            self._tidy(save)
        self._disk.make_folder(staging)
        shard, word = os.path.join(staging, shard_name(rank)), os.path.join(staging, said_name(rank))
        self._disk.remove(word)  # of an earlier process of this attempt that was killed: first the word, then the shard
        self._disk.remove(shard)
        said = write_shard(self._disk, shard, save.pieces, self._digest)
        self._disk.replace(word, encode_said(said))
        self._disk.sync_folder(staging)
        return said

    def _tidy(self, save: Save) -> None:
        """Our own staging of saves that are over: a rank may have come back to it after rank 0 gave it up."""
        place = os.path.join(self._settings.directory, STAGING)
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(place):
                with contextlib.suppress(ValueError):
                    (_, run_id, attempt), seq = parse_staging(name)
                    over = seq < save.seq or (self._settings.shards == 1 and seq == save.seq)
                    if over and (run_id, attempt) == (self._settings.run_id, self._settings.attempt):
                        self._disk.discard(os.path.join(place, name), self._trash)

    def _everybody(self, staging: str, own: Said) -> list[Said]:
        """What each writing rank said, in order of rank. Raises CommitFailed if one failed or is late."""
        everybody, deadline, pause_s = [own], self._monotonic() + self._timeout_s, _POLL_S
        while len(everybody) < self._settings.shards:
            rank = len(everybody)
            said = _word_of(staging, rank)
            if said is not None:
                if said.failed is not None:
                    raise CommitFailed(f"rank {rank} could not write its shard: {said.failed}")
                everybody.append(said)
                continue
            if self._monotonic() >= deadline:
                raise CommitFailed(f"rank {rank} did not write its shard within {self._timeout_s:g} s")
            self._attempt.check_fence()
            self._sleep(pause_s)
            pause_s = min(pause_s * 1.5, _POLL_AT_MOST_S)
        return everybody

    def _write_manifest(self, save: Save, staging: str, everybody: Sequence[Said]) -> bytes:
        files = tuple(ShardFile(shard_name(rank), said.bytes, said.digest) for rank, said in enumerate(everybody))
        run_id, attempt = self._settings.run_id, self._settings.attempt
        host = socket.gethostname()
        raw = encode_manifest(
            Manifest(save.training_step, run_id, attempt, self._attempt.now(), host, len(files), files)
        )
        self._disk.replace(os.path.join(staging, MANIFEST), raw)
        self._disk.sync_folder(staging)
        return raw

    def _rename(self, staging: str, committed: str, manifest: bytes) -> None:
        try:
            self._disk.rename(staging, committed)
        except OSError:
            # NFS repeats a request whose answer was lost; the second one finds the work done, and fails.
            if os.path.exists(staging) or _read(os.path.join(committed, MANIFEST), MAX_MANIFEST_BYTES) != manifest:
                raise

    def _give_up(self, staging: str, error: BaseException) -> None:
        """Room is made first; then another rank tells rank 0, which would else wait for the whole timeout."""
        with contextlib.suppress(OSError):
            if self._settings.rank == 0:
                self._disk.discard(staging, self._trash)
                return
            for name in (said_name(self._settings.rank), shard_name(self._settings.rank)):
                self._disk.remove(os.path.join(staging, name))
            word = encode_said(Said(0, "", str(error) or type(error).__name__))
            self._disk.replace(os.path.join(staging, said_name(self._settings.rank)), word)


def _word_of(staging: str, rank: int) -> Said | None:
    """What a rank said, once both its word and the whole shard can be seen from here."""
    os.listdir(staging)  # makes an NFS client ask again for names that it believes absent
    raw = _read(os.path.join(staging, said_name(rank)), MAX_SAID_BYTES)
    try:
        said = None if raw is None else parse_said(raw)
        if said is None or said.failed is not None:
            return said
        return said if os.stat(os.path.join(staging, shard_name(rank))).st_size == said.bytes else None
    except (ValueError, FileNotFoundError):
        return None


def _read(path: str, most: int) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read(most)
    except FileNotFoundError:
        return None
