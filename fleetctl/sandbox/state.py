"""What was started, on disk before it runs: `down` after any crash finds every process and no stranger."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from fleetctl.clock import Clock
from fleetctl.errors import SandboxError
from fleetctl.sandbox.conf import Site
from fleetctl.sandbox.model import SandboxConfig
from fleetctl.sandbox.procs import Proc, wait_until

SCHEMA = 1
STARTING, UP = "starting", "up"
_FILE = "sandbox.json"
LOCK = ".fleetctl-sandbox"  # also marks the directory as ours


@dataclass(frozen=True, slots=True)
class State:
    """`orders` holds what was last done to a node on purpose: killed, frozen or cut."""

    boot_id: str
    phase: str
    config: SandboxConfig
    site: Site
    processes: Mapping[str, Proc] = field(default_factory=dict)
    orders: Mapping[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    def started(self, name: str, proc: Proc) -> State:
        return replace(self, processes={**self.processes, name: proc})

    def ordered(self, node: str, order: str | None) -> State:
        rest = {name: done for name, done in self.orders.items() if name != node}
        return replace(self, orders=rest if order is None else {**rest, node: order})


def load(directory: Path) -> State | None:
    """None when nothing was ever started there, or it was taken down.

    :raises SandboxError: the file is damaged or of another fleetctl.
    """
    path = directory / _FILE
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        raise SandboxError(f"{path} belongs to another user", remedy="choose another --dir") from None
    try:
        state = msgspec.json.decode(raw, type=State)
    except msgspec.MsgspecError as error:
        raise SandboxError(
            f"{path} cannot be read: {error}", remedy="end its processes by hand, then remove the directory"
        ) from None
    if state.schema != SCHEMA:
        raise SandboxError(
            f"{path} has schema {state.schema}, this fleetctl reads {SCHEMA}",
            remedy="take it down with the fleetctl that started it",
        )
    return state


def save(directory: Path, state: State) -> None:
    """Atomic, and on disk before it returns."""
    path = directory / _FILE
    fresh = path.with_suffix(".new")
    with open(fresh, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(state)))
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


def forget(directory: Path) -> None:
    (directory / _FILE).unlink(missing_ok=True)


@contextlib.contextmanager
def locked(directory: Path, clock: Clock, *, within_s: float = 60.0) -> Iterator[None]:
    """One fleetctl at a time changes a directory; the kernel drops the lock of one that dies.

    :raises SandboxError: another one is at work for longer than we wait.
    """
    with open(directory / LOCK, "a", encoding="ascii") as file:
        if not wait_until(lambda: _lock(file.fileno()), clock, within_s=within_s):
            raise SandboxError(
                f"another fleetctl sandbox command is at work in {directory}", remedy="wait for it, then try again"
            )
        yield


def _lock(handle: int) -> bool:
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
