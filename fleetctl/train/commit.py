"""How a checkpoint gets its name: staged, synced, complete, and only then renamed.

Invariant: a folder with a committed name holds all of its content on disk, whatever crashed when; and no commit
touches an earlier one. Hence the order: every shard on disk, then its rank's word, then the manifest, then the
staging folder's names, then the fence, then the rename, then the checkpoint directory's names.
Standard library only, Python 3.8 and newer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from typing import Callable, NamedTuple, Sequence

from fleetctl.train.attempt import AttemptFolder
from fleetctl.train.disk import Disk
from fleetctl.train.layout import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    MAX_SAID_BYTES,
    Manifest,
    Said,
    ShardFile,
    encode_manifest,
    encode_said,
    parse_said,
    said_name,
    shard_name,
)
from fleetctl.train.places import CommitFailed, Places
from fleetctl.train.settings import Settings
from fleetctl.train.shard import write_shard

_POLL_S = 0.05  # how often rank 0 looks for the other shards, at first
_POLL_AT_MOST_S = 1.0  # a listing of a shared file system each second costs it little
_HURRY_S = 5.0  # for the shards of ranks that may have died of the same as we: the job's end leaves little more
_SOMEBODY_ELSE = "another process writes checkpoints of this attempt: is every process rank 0?"


class Save(NamedTuple):
    """The `seq`-th save of a step by this process."""

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
        self._places = Places(settings, disk)
        self._places.prepare()
        self._ours: set[int] = set()
        self._hurry = threading.Event()

    def path(self, training_step: int) -> str:
        """Where the checkpoint of this attempt at that step is once it is committed."""
        return self._places.committed(training_step)

    def is_ours(self, training_step: int) -> bool:
        """Whether this very process gave the step its name; on another rank, wrote its shard."""
        return training_step in self._ours

    def hurry(self) -> None:
        """The training has broken off: wait only a moment more for other ranks. From any thread."""
        self._hurry.set()

    def commit(self, save: Save) -> int:
        """The bytes of all shards that this rank knows of.

        Raises OSError, CommitFailed or Superseded; then nothing of this try is left that could be taken for a
        checkpoint, and no staging of it as far as the file system lets us remove it.
        """
        staging, made = self._places.staging(save.training_step, save.seq), False
        try:
            self._attempt.check_fence()
            self._make(save, staging)
            made = True
            said = self._write_own(save, staging)
            if self._settings.rank != 0:
                self._ours.add(save.training_step)
                return said.bytes
            everybody = self._everybody(staging, said)
            manifest = self._write_manifest(save, staging, everybody)
            self._attempt.check_fence()
            self._rename(staging, self.path(save.training_step), manifest)
            self._ours.add(save.training_step)
            made = False
            self.sync()
        except BaseException as error:
            taken = made and isinstance(error, FileNotFoundError) and not os.path.exists(staging)
            self._give_up(staging, error)
            if taken and self._settings.rank == 0:
                self._attempt.check_fence()  # a newer attempt clears away what we stage
                raise CommitFailed(f"{staging} is gone: {_SOMEBODY_ELSE}") from error
            raise
        return sum(each.bytes for each in everybody)

    def sync(self) -> None:
        """Make the committed names durable. Raises OSError."""
        self._disk.sync_folder(self._settings.directory)

    def _make(self, save: Save, staging: str) -> None:
        self._places.require()
        if self._settings.rank == 0:
            self._places.tidy(save.training_step, save.seq, staging)
        self._disk.make_folder(staging)

    def _write_own(self, save: Save, staging: str) -> Said:
        rank = self._settings.rank
        shard, word = os.path.join(staging, shard_name(rank)), os.path.join(staging, said_name(rank))
        self._disk.remove(word)  # of an earlier process of this attempt that was killed: first the word, then the shard
        self._disk.remove(shard)
        said = write_shard(self._disk, shard, save.pieces, self._digest)
        self._disk.replace(word, encode_said(said))
        self._disk.sync_folder(staging)
        return said

    def _everybody(self, staging: str, own: Said) -> list[Said]:
        """What each writing rank said, in order of rank. Raises CommitFailed if one failed or is late."""
        found, pause_s, hurried = {0: own}, _POLL_S, False
        deadline, late = self._monotonic() + self._timeout_s, f"did not write its shard within {self._timeout_s:g} s"
        while True:
            found.update(_new_words(staging, [rank for rank in range(self._settings.shards) if rank not in found]))
            missing = [rank for rank in range(self._settings.shards) if rank not in found]
            if not missing:
                return [found[rank] for rank in range(self._settings.shards)]
            now = self._monotonic()
            if self._hurry.is_set() and not hurried:
                hurried, deadline = True, min(deadline, now + _HURRY_S)
                late = "had not written its shard when the training broke off"
            if now >= deadline:
                raise CommitFailed(f"rank {missing[0]} {late}")
            self._attempt.check_fence()
            self._sleep(pause_s)
            pause_s = min(pause_s * 1.5, _POLL_AT_MOST_S)

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
        except OSError as error:
            # NFS repeats a request whose answer was lost; the second one finds the work done, and fails.
            staged = os.path.exists(staging)
            if not staged and _read(os.path.join(committed, MANIFEST), MAX_MANIFEST_BYTES) == manifest:
                return
            if staged and error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise CommitFailed(f"{committed} is there: {_SOMEBODY_ELSE}") from error
            raise

    def _give_up(self, staging: str, error: BaseException) -> None:
        """Room is made first; then another rank tells rank 0, which would else wait for the whole timeout."""
        with contextlib.suppress(OSError):
            if self._settings.rank == 0:
                self._disk.discard(staging, self._places.trash)
                return
            for name in (said_name(self._settings.rank), shard_name(self._settings.rank)):
                self._disk.remove(os.path.join(staging, name))
            word = encode_said(Said(0, "", str(error) or type(error).__name__))
            self._disk.replace(os.path.join(staging, said_name(self._settings.rank)), word)


def _new_words(staging: str, ranks: Sequence[int]) -> dict[int, Said]:
    """What these ranks said, of those that have. One listing, which also makes an NFS client ask again for names that
    it believes absent. Raises CommitFailed if one could not write its shard."""
    words: dict[int, Said] = {}
    names = set(os.listdir(staging)) if ranks else set()
    for rank in ranks:
        said = _word_of(staging, rank) if said_name(rank) in names else None
        if said is not None:
            if said.failed is not None:
                raise CommitFailed(f"rank {rank} could not write its shard: {said.failed}")
            words[rank] = said
    return words


def _word_of(staging: str, rank: int) -> Said | None:
    """What a rank said, once both its word and the whole shard can be seen from here."""
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
