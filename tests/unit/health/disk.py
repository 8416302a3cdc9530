"""A disk that records what is asked of it, and all that a crash may leave of that."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

Step = tuple[
    str, str, bytes
]  # ("write", name, data), ("sync", name, b""), ("name", new, old), ("gone", name, b""), ...


class Recorder:
    """Stands before `os` and notes every change of files in one folder, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.steps: list[Step] = []
        self._names: dict[int, str] = {}
        self._real = {name: getattr(os, name) for name in ("open", "write", "fsync", "rename", "unlink")}
        for name in self._real:
            patch.setattr(os, name, getattr(self, name))

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        handle: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        self._names[handle] = "." if flags & os.O_DIRECTORY else str(path)
        if flags & os.O_EXCL:
            self.steps.append(("made", str(path), b""))
        return handle

    def write(self, handle: int, data: memoryview) -> int:
        self.steps.append(("write", self._names[handle], bytes(data)))
        return int(self._real["write"](handle, data))

    def fsync(self, handle: int) -> None:
        self.steps.append(("sync", self._names[handle], b""))
        self._real["fsync"](handle)

    def rename(self, old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        self._real["rename"](old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self.steps.append(("name", new, old.encode()))

    def unlink(self, path: str, *, dir_fd: int) -> None:
        self._real["unlink"](path, dir_fd=dir_fd)
        self.steps.append(("gone", path, b""))


def after_a_crash(before: dict[str, bytes], steps: list[Step]) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Every content of the folder that a crash after the first k steps may leave, with k.

    Names reach the disk in order, at the folder's sync at the latest; bytes of a file that was not synced may be torn
    anywhere, whatever its name says.
    """
    for count in range(len(steps) + 1):
        done = steps[:count]
        synced = max((i + 1 for i, (kind, name, _) in enumerate(done) if (kind, name) == ("sync", ".")), default=0)
        for named in range(synced, count + 1):
            for lost in (0, 1, 2):
                yield count, _left(before, done, named, lost)


def _left(before: dict[str, bytes], done: list[Step], named: int, lost: int) -> dict[str, bytes]:
    files = {number: bytearray(data) for number, data in enumerate(before.values())}
    names = dict(zip(before, files, strict=True))
    fresh = itertools.count(len(files))
    safe = {number: len(data) for number, data in files.items()}
    live = dict(names)
    for index, (kind, name, data) in enumerate(done):
        if kind == "made":
            live[name] = next(fresh)
            files[live[name]], safe[live[name]] = bytearray(), 0
        elif kind == "write":
            files[live[name]] += data
        elif kind == "sync" and name != ".":
            safe[live[name]] = len(files[live[name]])
        elif kind == "name":
            live[name] = live.pop(data.decode())
        elif kind == "gone":
            live.pop(name)
        if index < named:
            names = dict(live)
    keep = {number: safe[number] + (len(data) - safe[number]) * lost // 2 for number, data in files.items()}
    return {name: bytes(files[number][: keep[number]]) for name, number in names.items()}


def put(folder: Path, files: dict[str, bytes]) -> None:
    """Make the folder hold exactly these."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
