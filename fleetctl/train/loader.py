"""Reading a committed checkpoint: each byte once, checked on the way. Standard library only, Python 3.8 and newer."""

from __future__ import annotations

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

# An NFS client may believe for some seconds that a new name is absent; together about 3 s.
_RETRIES_S = (0.1, 0.2, 0.4, 0.8, 1.6)
_Value = TypeVar("_Value")


class CannotLoad(Exception):
    """The checkpoint cannot be loaded here, though nothing says that it is damaged."""


class CheckpointDamaged(CannotLoad):
    """A file of the checkpoint is missing, cannot be read, or is not what was written."""


class Loaded(NamedTuple):
    """`state` has what was saved: arrays as NumPy arrays (RawArray without NumPy), bytes, JSON values."""

    training_step: int
    state: dict[str, Any]


class Loader:
    """Loads what fleetctl chose; by hand, the newest in the directory that is whole."""

    def __init__(self, settings: Settings, sleep: Callable[[float], None]) -> None:
        self._settings, self._sleep = settings, sleep

    def load(self, path: str) -> Loaded:
        """Raises CheckpointDamaged with the file and the reason, or CannotLoad."""
        manifest = self._manifest(path)
        shards = self._settings.shards
        if manifest.shards != shards:
            raise CannotLoad(f"{path} was saved with shards={manifest.shards}, this training has shards={shards}")
        mine = manifest.files[self._settings.rank if shards > 1 else 0]
        return Loaded(manifest.training_step, self._shard(path, mine))

    def newest(self) -> Loaded | None:
        """The newest that is whole, all shards of it, so that all ranks choose the same; what is not is told.

        None if there is none at all. Raises CheckpointDamaged if there are some and none is whole.
        """
        first: CannotLoad | None = None
        for name in self._names():
            path = os.path.join(self._settings.directory, name)
            try:
                if self._settings.shards > 1:
                    self.check(path)
                return self.load(path)
            except CannotLoad as error:
                first = first or error
                print(f"fleetctl: {error}; trying the one before", file=sys.stderr, flush=True)
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
            files = self._manifest(path).files
            return all(os.stat(os.path.join(path, file.name)).st_size == file.bytes for file in files)
        except (CannotLoad, OSError):
            return False

    def _names(self) -> list[str]:
        try:
            listed = os.listdir(self._settings.directory)
        except FileNotFoundError:
            return []
        found = [name for name in (_parsed(text) for text in listed) if name is not None]
        if self._settings.run_id != "local":
            found = [name for name in found if name[0].run_id == self._settings.run_id]
        found.sort(key=lambda pair: (pair[0].training_step, attempt_number(pair[0].attempt), pair[1]), reverse=True)
        return [text for _, text in found]

    def _manifest(self, path: str) -> Manifest:
        def read() -> Manifest:
            with open(os.path.join(path, MANIFEST), "rb") as file:
                manifest = parse_manifest(file.read(MAX_MANIFEST_BYTES))
            check_agreement(manifest, parse_committed(os.path.basename(os.path.normpath(path))))
            return manifest

        return self._patient(path, MANIFEST, read)

    def _shard(self, path: str, file: ShardFile) -> dict[str, Any]:
        return self._patient(path, file.name, lambda: read_shard(path, file))

    def _patient(self, path: str, file: str, read: Callable[[], _Value]) -> _Value:
        waits_s = list(_RETRIES_S)
        while True:
            try:
                return read()
            except DigestMissing as error:
                raise CannotLoad(f"{path}/{file} cannot be checked: {error}; install it here") from error
            except ValueError as error:
                raise CheckpointDamaged(f"{path} is damaged: {file}: {error}") from error
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ESTALE) or not waits_s:
                    raise CheckpointDamaged(f"{path} cannot be read: {file}: {error.strerror}") from error
            self._sleep(waits_s.pop(0))
            _look_again(path)


def _parsed(text: str) -> tuple[Name, str] | None:
    try:
        return parse_committed(text), text
    except ValueError:
        return None


def _look_again(path: str) -> None:
    """A listing makes an NFS client drop what it believes to be absent."""
    try:
        os.listdir(path)
    except OSError:
        return
