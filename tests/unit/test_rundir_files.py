"""Durable small files when the disk is full and when NFS loses an answer."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetctl.rundir import files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.jsonl"


class FullDisk:
    """Takes `room` bytes more, then none; while `stuck`, nothing can be taken back either."""

    def __init__(self, patch: pytest.MonkeyPatch, *, stuck: bool) -> None:
        self.room = 1 << 20
        self._write, self._truncate, self._stuck = os.write, os.ftruncate, stuck
        patch.setattr(os, "write", self._take)
        patch.setattr(os, "ftruncate", self._cut)

    def _take(self, handle: int, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self._write(handle, data[: self.room])
        self.room -= taken
        return taken

    def _cut(self, handle: int, size: int) -> None:
        if self._stuck:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._truncate(handle, size)


def records(path: Path) -> list[int]:
    """What a reader finds: whole lines that are JSON."""
    found = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            found.append(json.loads(line)["n"])
        except ValueError:
            continue
    return found


LINE = len(json.dumps({"n": 2})) + 1


@pytest.mark.parametrize("stuck", [False, True])
@pytest.mark.parametrize("room", [0, 1, LINE - 1])
def test_an_append_that_failed_never_happened(
    path: Path, monkeypatch: pytest.MonkeyPatch, room: int, stuck: bool
) -> None:
    disk = FullDisk(monkeypatch, stuck=stuck)
    files.append_line(path, {"n": 1})
    disk.room = room
    with pytest.raises(OSError, match="No space left"):
        files.append_line(path, {"n": 2})
    disk.room = 1  # not even the end of the torn line fits
    with pytest.raises(OSError, match="No space left"):
        files.append_line(path, {"n": 3})
    disk.room = 1 << 20
    files.append_line(path, {"n": 4})
    files.append_line(path, {"n": 5})
    assert records(path) == [1, 4, 5]


def test_what_could_be_taken_back_is_gone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(monkeypatch, stuck=False)
    files.append_line(path, {"n": 1})
    before = path.read_bytes()
    disk.room = 3
    with pytest.raises(OSError, match="No space left"):
        files.append_line(path, {"n": 2})
    assert path.read_bytes() == before


def test_a_line_that_did_not_reach_the_disk_is_taken_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.append_line(path, {"n": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse(errno.EDQUOT))
        with pytest.raises(OSError, match="quota"):
            files.append_line(path, {"n": 2})
    assert records(path) == [1]


def refuse(code: int) -> Callable[..., None]:
    def call(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return call


def losing_the_answer(call: Callable[..., Any], error: int) -> Callable[..., Any]:
    """The server does it, its answer is lost, and the client's repetition finds it done."""

    def repeated(*args: Any, **kwargs: Any) -> None:
        call(*args, **kwargs)
        raise OSError(error, os.strerror(error))

    return repeated


@pytest.mark.parametrize("error", [errno.EEXIST, errno.EIO, errno.ETIMEDOUT])
def test_a_claim_whose_answers_were_lost_is_won(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    path = tmp_path / "claim.json"
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", losing_the_answer(os.link, error))
        patch.setattr(os, "unlink", losing_the_answer(os.unlink, errno.ENOENT))
        assert files.claim_file(path, {"n": 1})
    assert json.loads(path.read_text()) == {"n": 1}
    assert os.listdir(tmp_path) == ["claim.json"]


def test_a_claim_that_failed_is_an_error_and_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "claim.json"
    for name in ("link", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, refuse(errno.EIO))
            with pytest.raises(OSError, match="Input/output"):
                files.claim_file(path, {"n": 1})
    assert os.listdir(tmp_path) == []
    assert files.claim_file(path, {"n": 2})
