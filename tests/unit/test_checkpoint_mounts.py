"""Which file system a folder is on, by what the kernel says, and whether that may show files late."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.checkpoint import mounts
from fleetctl.checkpoint.mounts import Mount, fstype_at, parse_mounts, shows_late

# As proc(5) has them: optional fields before the dash, and `\040` for a blank
TEXT = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /proc rw - proc proc rw
40 22 0:40 / /home rw shared:7 master:2 - autofs /etc/auto.home rw,fd=6
41 40 0:41 / /home/me rw - nfs4 server:/home/me rw,vers=4.2
42 22 0:42 / /scratch rw - lustre 10.0.0.1@o2ib:/scratch rw
43 22 0:43 / /my\040data rw - fuse.sshfs me@host: rw
44 22 0:44 / /twice rw - nfs server:/a rw
45 22 0:45 / /twice rw - tmpfs tmpfs rw
garbage
46 22 0:46 / /half rw
"""


@pytest.mark.parametrize(
    ("path", "fstype"),
    [
        ("/", "ext4"),
        ("/data/ckpt", "ext4"),
        ("/home/me/ckpt", "nfs4"),
        ("/home/you", "autofs"),
        ("/homes", "ext4"),
        ("/scratch/me/ckpt", "lustre"),
        ("/my data/ckpt", "fuse.sshfs"),
        ("/twice/ckpt", "tmpfs"),
        ("/half/ckpt", "ext4"),
    ],
)
def test_the_innermost_mount_counts_and_there_the_newest(path: str, fstype: str) -> None:
    assert fstype_at(parse_mounts(TEXT), path) == fstype


def test_lines_that_say_something_else_are_left_out() -> None:
    assert len(parse_mounts(TEXT)) == 8
    assert parse_mounts("a b c d e - \n - x y\n") == ()
    assert fstype_at((), "/x") is None


@pytest.mark.parametrize(
    ("fstype", "late"),
    [
        *(("ext4", False), ("tmpfs", False), ("lustre", False), ("gpfs", False)),
        *(("nfs", True), ("nfs4", True), ("fuse.ceph-fuse", True), ("autofs", True), ("beegfs", True)),
    ],
)
def test_only_what_is_known_to_show_all_at_once_is_not_waited_for(
    fstype: str, late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mountinfo").write_text(f"1 0 8:1 / / rw - {fstype} /dev/x rw\n")
    monkeypatch.setattr(mounts, "_MOUNTS", tmp_path / "mountinfo")
    assert shows_late(tmp_path) is late


def test_where_it_cannot_be_told_files_may_come_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_MOUNTS", tmp_path / "missing")
    assert shows_late(tmp_path)


def test_a_link_leads_to_where_the_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    lines = f"1 0 8:1 / / rw - ext4 /dev/x rw\n2 1 0:9 / {tmp_path}/real rw - nfs4 s:/x rw\n"
    (tmp_path / "mountinfo").write_text(lines)
    monkeypatch.setattr(mounts, "_MOUNTS", tmp_path / "mountinfo")
    assert shows_late(tmp_path / "link" / "not there yet")
    assert not shows_late(tmp_path)


def test_this_machine_tells() -> None:
    found = parse_mounts(mounts._MOUNTS.read_text(errors="surrogateescape"))
    assert fstype_at(found, "/proc/self") == "proc"
    assert Mount("/proc", "proc") in found
