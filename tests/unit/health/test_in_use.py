"""Which files are in use, by what processes show and by what the kernel counts."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fleetctl.health.in_use import Used, is_free, look_for_users, mapped
from tests.unit.health.mapping import only_mapped


def a_file(path: Path) -> Path:
    path.write_bytes(b"x" * 5000)
    return path


def test_a_lease_is_asked_for_without_following_a_link(tmp_path: Path) -> None:
    a_file(tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert [is_free(folder, name) for name in ("file", "link", "none")] == [True, None, None]
    finally:
        os.close(folder)


def test_an_open_a_mapped_and_a_working_folder_are_in_use(tmp_path: Path) -> None:
    opened, shown, unused = (a_file(tmp_path / name) for name in ("opened", "mapped", "unused"))
    with opened.open("rb") as stream, only_mapped(shown):
        used = look_for_users("/proc", until=time.monotonic() + 60, monotonic=time.monotonic).inodes
        assert stream.readable()
    assert {path.stat().st_ino for path in (opened, shown, Path.cwd())} <= used
    assert unused.stat().st_ino not in used


def test_a_look_at_processes_that_did_not_end_is_not_complete() -> None:
    assert not look_for_users("/proc", until=0.0, monotonic=lambda: 0.0).complete


def test_a_proc_that_is_not_there_is_not_complete(tmp_path: Path) -> None:
    assert look_for_users(str(tmp_path / "none"), until=1.0, monotonic=lambda: 0.0) == Used(frozenset(), False)


@pytest.mark.parametrize("hidden", ["fd", "maps"])
def test_a_process_that_does_not_show_its_files_makes_the_look_incomplete(tmp_path: Path, hidden: str) -> None:
    process = tmp_path / "77"
    (process / "fd").mkdir(parents=True)
    (process / "maps").write_text("")
    assert look_for_users(str(tmp_path), until=1.0, monotonic=lambda: 0.0).complete
    (process / hidden).rmdir() if hidden == "fd" else (process / hidden).unlink()
    (process / hidden).symlink_to(process / hidden)  # stands for any error but "gone"
    assert not look_for_users(str(tmp_path), until=1.0, monotonic=lambda: 0.0).complete


def test_inode_numbers_of_maps() -> None:
    maps = (
        b"7f00-7f01 rw-s 00000000 00:1b 2635                       /dev/shm/a b (deleted)\n"
        b"7f01-7f02 rw-p 00000000 00:00 0 \n"
        b"7f02-7f03 r-xp 00001000 fe:00 99 /lib/x.so\nnonsense\n"
    )
    assert list(mapped(maps)) == [2635, 99]
