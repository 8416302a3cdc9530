"""Reading a committed checkpoint: each byte once, checked on the way. Standard library only, Python 3.8 and newer."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Any, Callable, NamedTuple, TypeVar

from fleetctl.train.digests import DigestMissing
from fleetctl.train.layout import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    Manifest,
    Name,
    ShardFile,
    attempt_number,
    check_agreement,
    parse_committed,
    parse_manifest,
)
from fleetctl.train.settings import Settings
from fleetctl.train.shard import read_shard

_VISIBLE_WITHIN_S = 60.0  # an NFS client may show a new name so late (nfs(5), acdirmax)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_Value = TypeVar("_Value")


class CannotLoad(Exception):
    """The checkpoint cannot be loaded here and now, though nothing says that it is damaged."""


class CheckpointDamaged(CannotLoad):
    """A file of the checkpoint was read and is not what was written."""


class Loaded(NamedTuple):
    """`state` has what was saved: arrays as NumPy arrays (RawArray without NumPy), bytes, JSON values."""

    training_step: int
    state: dict[str, Any]


class Loader:
    """Loads what fleetctl chose; by hand, the newest in the directory that is whole."""

    def __init__(self, settings: Settings, sleep: Callable[[float], None]) -> None:
        self._settings, self._sleep = settings, sleep
        self._loaded: set[str] = set()
        self._told_waiting = False

    def has_loaded(self, path: str) -> bool:
        """Whether this process goes on from what lies there."""
        return os.path.abspath(path) in self._loaded

    def load(self, path: str) -> Loaded:
        """Raises CheckpointDamaged with the file and the reason, or CannotLoad."""
        manifest = self._manifest(path)
        shards = self._settings.shards
        if manifest.shards != shards:
            raise CannotLoad(f"{path} was saved with shards={manifest.shards}, this training has shards={shards}")
        mine = manifest.files[self._settings.rank if shards > 1 else 0]
        loaded = Loaded(manifest.training_step, self._shard(path, mine))
        self._loaded.add(os.path.abspath(path))
        return loaded

    def newest(self) -> Loaded | None:
        """The newest that is whole, all shards of it, so that all ranks choose the same; what is not is told.

        None if there is none at all. Raises CheckpointDamaged if there are some and none is whole; CannotLoad if the
        newest may be whole and cannot be loaded now: what came after an older one would be lost for nothing.
        """
        first: CheckpointDamaged | None = None
        for name in self._names():
            path = os.path.join(self._settings.directory, name)
            try:
                if self._settings.shards > 1:
                    self.check(path)
                return self.load(path)
            except CheckpointDamaged as error:
                first = first or error
                tell(self._settings.rank, f"{error}; trying the one before")
        if first is not None:
            raise first
        return None

    def check(self, path: str) -> None:
        """Read all of a checkpoint. Raises as `load`."""
        for file in self._manifest(path).files:
            self._shard(path, file)

    def is_whole(self, path: str) -> bool:
        """Whether manifest and sizes are right, without reading the data."""
        try:
            files = self._manifest(path, patience_s=0.0).files
            return all(os.stat(os.path.join(path, file.name)).st_size == file.bytes for file in files)
        except (CannotLoad, OSError):
            return False

    def _names(self) -> list[str]:
        try:
            listed = os.listdir(self._settings.directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CannotLoad(f"{self._settings.directory} cannot be listed: {error.strerror}") from error
        found = [name for name in (_parsed(text) for text in listed) if name is not None]
        if self._settings.run_id != "local":
            found = [name for name in found if name[0].run_id == self._settings.run_id]
        found.sort(key=lambda pair: (pair[0].training_step, attempt_number(pair[0].attempt), pair[1]), reverse=True)
        return [text for _, text in found]

    def _manifest(self, path: str, patience_s: float = _VISIBLE_WITHIN_S) -> Manifest:
        def read() -> Manifest:
            with open(os.path.join(path, MANIFEST), "rb") as file:
                manifest = parse_manifest(file.read(MAX_MANIFEST_BYTES))
            check_agreement(manifest, parse_committed(os.path.basename(os.path.normpath(path))))
            return manifest

        return self._patient(path, MANIFEST, read, patience_s)

    def _shard(self, path: str, file: ShardFile) -> dict[str, Any]:
        return self._patient(path, file.name, lambda: read_shard(path, file))

    def _patient(
        self, path: str, file: str, read: Callable[[], _Value], patience_s: float = _VISIBLE_WITHIN_S
    ) -> _Value:
        waited_s, pause_s = 0.0, _FIRST_PAUSE_S
        while True:
            try:
                return read()
            except DigestMissing as error:
                raise CannotLoad(f"{path}/{file} cannot be checked: {error}; install it here") from error
            except ValueError as error:
                raise CheckpointDamaged(f"{path} is damaged: {file}: {error}") from error
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ESTALE) or waited_s >= patience_s:
                    raise CannotLoad(f"{path} cannot be read: {file}: {error.strerror}") from error
            if not self._told_waiting:
                self._told_waiting = True
                tell(self._settings.rank, f"{path}/{file} is not to be seen here yet; waiting up to {patience_s:g} s")
            self._sleep(pause_s)
            waited_s, pause_s = waited_s + pause_s, min(pause_s * 2, _LONGEST_PAUSE_S)
            _look_again(path)


def tell(rank: int, text: str) -> None:
    """One line on stderr, so far as there is one."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # it may be full or closed
            print(f"fleetctl: rank {rank}: {text}", file=sys.stderr, flush=True)


def _parsed(text: str) -> tuple[Name, str] | None:
    try:
        return parse_committed(text), text
    except ValueError:
        return None


def _look_again(path: str) -> None:
    """A listing makes an NFS client drop what it believes to be absent: the folder in its parent, and what is in it."""
    for folder in (os.path.dirname(os.path.normpath(path)), path):
        with contextlib.suppress(OSError):
            os.listdir(folder)
