"""Which file system a folder is on, and that a job's leavings go on local ones only."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Any

import pytest

from fleetctl.health.file_systems import LOCAL, Mounted, kind_at, kind_of, mount_id, mounted
from fleetctl.health.in_use import Used
from fleetctl.health.leavings import Clock, Left, Rule, Window, clear

UID = 4242
INFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /dev/shm rw,nosuid shared:2 master:1 - tmpfs tmpfs rw
24 22 0:40 / /scratch rw - nfs4 server:/scratch rw
25 24 0:41 / /scratch/a\\040b rw - xfs /dev/vdb rw
26 22 0:42 / /over rw - nfs4 server:/over rw
27 22 0:43 / /over rw - tmpfs tmpfs rw
torn 1 2
28 22 0:44 / /torn rw -
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of another user need root")


def systems_of(folder: Path, text: str = INFO) -> dict[str, Mounted]:
    (folder / "self").mkdir()
    (folder / "self" / "mountinfo").write_text(text)
    return mounted(str(folder))


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/tmp", "ext4"),
        ("/dev/shm", "tmpfs"),
        ("/dev/shm/x", "tmpfs"),
        ("/dev/shmem", "ext4"),
        ("/scratch", "nfs4"),
        ("/scratch/tmp", "nfs4"),
        ("/scratch/a b/tmp", "xfs"),
        ("/over/tmp", "tmpfs"),
        ("/torn/x", "ext4"),
    ],
)
def test_the_kind_of_the_file_system_at_a_path(tmp_path: Path, path: str, kind: str) -> None:
    assert kind_at(path, systems_of(tmp_path)) == kind


def test_what_is_mounted_nowhere_or_cannot_be_read_has_no_kind(tmp_path: Path) -> None:
    assert mounted(str(tmp_path)) == {}
    assert kind_at("/tmp", {}) is None
    assert kind_at("/tmp", {"9": Mounted("/home", "ext4")}) is None
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert kind_of(folder, {}) is None
    finally:
        os.close(folder)
    assert kind_of(folder, mounted("/proc")) is None  # it is closed


def test_a_descriptor_is_on_the_file_system_that_the_kernel_says() -> None:
    folder = os.open("/proc", os.O_RDONLY)
    try:
        assert kind_of(folder, mounted("/proc")) == "proc"
        assert mount_id(folder) in mounted("/proc")
    finally:
        os.close(folder)


def left_by_a_job(top: Path) -> Path:
    top.mkdir(mode=0o1777)
    path = top / "file"
    path.write_bytes(b"x" * 5000)
    os.chown(path, UID, UID)
    return path


def clean(top: Path, mounts: dict[str, Mounted], *, complete: bool = True) -> Left:
    rule = Rule(UID, Window(100.0, time.time() + 3600), "", lambda folder, name: 500.0, mounts)
    return clear([str(top)], rule, lambda: Used(frozenset(), complete), Clock(lambda: 0.0, 1.0))


def everywhere(kind: str) -> dict[str, Mounted]:
    return {number: Mounted(one.point, kind) for number, one in mounted("/proc").items()}


@as_root
@pytest.mark.parametrize("kind", ["nfs", "nfs4", "lustre", "fuse.sshfs", "fuse", "cifs", "beegfs", "ceph", "9p"])
def test_on_a_file_system_of_others_nothing_is_removed_nor_even_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = left_by_a_job(tmp_path / "tmp")
    opened, real = [], os.open

    def note(name: Any, *rest: Any, **more: Any) -> int:
        opened.append(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(os, "open", note)
    left = clean(path.parent, everywhere(kind))
    assert (left.removed, path.exists()) == (0, True)
    assert left.why == f"{path.parent} is on {kind}, and only local file systems are cleaned"
    assert str(path.parent) not in opened


@as_root
def test_a_link_to_a_file_system_of_others_is_no_way_around(tmp_path: Path) -> None:
    path = left_by_a_job(tmp_path / "tmp")
    mounts = everywhere("nfs4")
    mounts["0"] = Mounted(str(tmp_path / "link"), "ext4")  # where the link seems to be
    (tmp_path / "link").symlink_to(path.parent)
    left = clean(tmp_path / "link", mounts)
    assert (left.removed, path.exists()) == (0, True)
    assert "only local file systems" in left.why


@as_root
def test_where_the_mounts_cannot_be_read_nothing_is_removed(tmp_path: Path) -> None:
    path = left_by_a_job(tmp_path / "tmp")
    assert clean(path.parent, {}).why.startswith(f"{path.parent} is on a file system that is not known")
    assert path.exists()


@as_root
@pytest.mark.parametrize("kind", sorted(LOCAL))
def test_on_a_local_file_system_the_jobs_own_go(tmp_path: Path, kind: str) -> None:
    path = left_by_a_job(tmp_path / "tmp")
    assert (clean(path.parent, everywhere(kind)).removed, path.exists()) == (1, False)


@as_root
@pytest.mark.parametrize(
    ("kind", "complete", "removed"),
    [("tmpfs", True, 1), ("tmpfs", False, 0), ("ext4", True, 0), ("overlay", True, 0)],
)
def test_without_leases_only_memory_and_a_look_at_all_processes_are_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, complete: bool, removed: int
) -> None:
    def refuse(handle: int, command: int, argument: int) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    path = left_by_a_job(tmp_path / "tmp")
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    assert clean(path.parent, everywhere(kind), complete=complete).removed == removed
