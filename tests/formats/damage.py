"""What happens to files of a checkpoint: each makes a function that does it to a folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path], object]


def cut(name: str, size: Callable[[int], int]) -> Damage:
    """To the size that is made of its own; it may be larger."""
    return lambda folder: os.truncate(folder / name, size((folder / name).stat().st_size))


def flip(name: str, place: Callable[[int], int]) -> Damage:
    """One bit, and its time stays."""

    def damage(folder: Path) -> None:
        raw = bytearray((folder / name).read_bytes())
        raw[place(len(raw))] ^= 1
        _write_again(folder / name, raw)

    return damage


def zeros(name: str, start: Callable[[int], int], size: Callable[[int], int]) -> Damage:
    """A hole: delayed allocation lost in a crash; size and time stay."""

    def damage(folder: Path) -> None:
        raw = bytearray((folder / name).read_bytes())
        begin, count = start(len(raw)), size(len(raw))
        raw[begin : begin + count] = bytes(len(raw[begin : begin + count]))
        _write_again(folder / name, raw)

    return damage


def remove(*names: str) -> Damage:
    """Files or whole folders."""

    def damage(folder: Path) -> None:
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def put(name: str, raw: bytes) -> Damage:
    """Another content, or a file that was not there."""
    return lambda folder: (folder / name).write_bytes(raw)


def instead(name: str, make: Damage) -> Damage:
    """What `make` makes of its path, in its place."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return damage


def move(name: str, to: str) -> Damage:
    """Another name."""
    return lambda folder: (folder / name).rename(folder / to)


def _write_again(path: Path, raw: bytes | bytearray) -> None:
    times = path.stat()
    path.write_bytes(raw)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
