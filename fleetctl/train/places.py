"""The folders of checkpoints, as one rank makes and clears them. Standard library only, Python 3.8 and newer."""

from __future__ import annotations

import contextlib
import os
import socket

from fleetctl.train.disk import Disk
from fleetctl.train.layout import STAGING, TRASH, committed_name, parse_staging, staging_name
from fleetctl.train.settings import Settings


class CommitFailed(Exception):
    """This try did not succeed; what was committed earlier stands."""


class Places:
    """Where this rank writes, and what of its own attempt may be removed there."""

    def __init__(self, settings: Settings, disk: Disk) -> None:
        self._settings, self._disk = settings, disk
        self.directory = settings.directory
        self.trash = os.path.join(settings.directory, TRASH)

    def committed(self, training_step: int) -> str:
        """Where the checkpoint of this attempt at that step is once it is committed."""
        name = committed_name(training_step, self._settings.run_id, self._settings.attempt)
        return os.path.join(self.directory, name)

    def staging(self, training_step: int, seq: int) -> str:
        """Where all ranks meet; a name of its own where only one writes, since another may believe the same."""
        token = os.urandom(4).hex() if self._settings.shards == 1 else ""
        name = staging_name(training_step, self._settings.run_id, self._settings.attempt, seq, token)
        return os.path.join(self.directory, STAGING, name)

    def require(self) -> None:
        """The checkpoint directory. Only rank 0 may make it, and under fleetctl no parents: where /scratch is not
        mounted, they would fill the local disk. Raises CommitFailed or OSError."""
        parent = os.path.dirname(self.directory)
        with contextlib.suppress(OSError):
            os.listdir(parent)  # makes an NFS client ask again for a name that it believes absent
        if os.path.isdir(self.directory):
            return
        if self._settings.rank != 0 or (self._settings.ordered and not os.path.isdir(parent)):
            raise CommitFailed(f"{self.directory} is not there on {socket.gethostname()}: is it mounted?")
        self._disk.make_folder(self.directory)

    def prepare(self) -> None:
        """By hand every process is attempt 0.0: what a killed one left must not meet the shards of this one.

        The ranks make their first step together, so rank 0 does this before another rank's first save.
        """
        if self._settings.ordered or self._settings.shards == 1 or self._settings.rank != 0 or not self.directory:
            return
        with contextlib.suppress(OSError, CommitFailed):  # the first save fails of the same, and tells
            self.require()
            self._clear(None)

    def tidy(self, training_step: int, seq: int, staging: str) -> None:
        """Remove other staging of this attempt: a rank may have come back to it after rank 0 gave it up.

        With several ranks only what is over: another rank may be ahead of us, at its next save.
        """
        self._clear((training_step, seq) if self._settings.shards > 1 else None, os.path.basename(staging))

    def _clear(self, before: tuple[int, int] | None, except_for: str = "") -> None:
        place = os.path.join(self.directory, STAGING)
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(place):
                with contextlib.suppress(ValueError):
                    (training_step, run_id, attempt), seq = parse_staging(name)
                    ours = (run_id, attempt) == (self._settings.run_id, self._settings.attempt) and name != except_for
                    if ours and (before is None or (training_step, seq) < before):
                        self._disk.discard(os.path.join(place, name), self.trash)
