"""The kernel log as tests give it: files, and a device that hands out one record a read."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetctl.health.kernel_log import read_kernel_log
from fleetctl.health.model import Event
from tests.unit.health.trees import record

LOST_GPU = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."
NULL = Path("/dev/null")  # a character device, as /dev/kmsg is one
UNREAD = "the kernel log was not read to its end, the next look goes on there ({})"


def xid(number: int, bus: int = 0x1B, text: str = "x") -> str:
    return f"NVRM: Xid (PCI:0000:{bus:02x}:00): {number}, {text}"


def read(path: Path, after: int | None = None, most: int = 256) -> tuple[tuple[Event, ...], int | None]:
    return read_kernel_log(str(path), after, most)


def log_of(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


class Device:
    """Stands for /dev/kmsg: one record a read, or an error."""

    def __init__(self, *answers: bytes | int) -> None:
        self._answers: Iterator[bytes | int] = iter(answers)

    def __call__(self, descriptor: int, most: int) -> bytes:
        answer = next(self._answers, errno.EAGAIN)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        assert len(answer) <= most
        return answer

    def instead_of_null(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "read", self)


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self.calls = 0

    def __call__(self, argument: object) -> Any:
        self.calls += 1
        return self._function(argument)


def ring(first: int, end: int) -> list[bytes]:
    """The records of a device; every seventh has lines that follow it."""
    more = " SUBSYSTEM=pci\n DEVICE=+pci:0000:1b:00.0\n"
    return [(record(at, f"usb {at}") + more * (at % 7 == 0)).encode() for at in range(first, end)]
