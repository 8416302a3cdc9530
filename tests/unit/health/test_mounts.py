"""File systems that a node should have mounted."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fleetctl.health.model import Mount
from fleetctl.health.mounts import read_mounts
from tests.unit.health.trees import link, put


def proc_with(root: Path, *lines: str) -> str:
    put(root / "proc/mounts", "\n".join(lines))
    return str(root / "proc")


def one(path: str, proc: str) -> Mount:
    (mount,) = read_mounts([path], proc)
    return mount


def test_a_mounted_file_system_has_its_free_share(tmp_path: Path) -> None:
    mount = one(str(tmp_path), proc_with(tmp_path, f"store:/x {tmp_path} nfs4 rw,hard 0 0"))

    assert (mount.path, mount.state, mount.detail) == (str(tmp_path), "ok", "")
    assert mount.free is not None
    assert 0.0 <= mount.free <= 1.0


def test_a_folder_that_nothing_is_mounted_on_is_missing(tmp_path: Path) -> None:
    """The folder is there, and a job would fill the root file system."""
    mount = one(str(tmp_path), proc_with(tmp_path, f"store:/x {tmp_path}/other nfs4 rw 0 0"))

    assert (mount.state, mount.detail) == ("missing", "not mounted")


def test_a_mount_point_that_went_away_is_missing(tmp_path: Path) -> None:
    gone = f"{tmp_path}/gone"

    assert one(gone, proc_with(tmp_path, f"store:/x {gone} nfs4 rw 0 0")).state == "missing"


@pytest.mark.parametrize("options", ["ro", "relatime,ro", "ro,errors=remount-ro"])
def test_a_read_only_file_system_is_named_so(tmp_path: Path, options: str) -> None:
    assert one(str(tmp_path), proc_with(tmp_path, f"/dev/sda1 {tmp_path} ext4 {options} 0 0")).state == "read_only"


@pytest.mark.parametrize("options", ["rw,errors=ro", "rw,proto=tcp", "rw,errors=remount-ro"])
def test_ro_within_another_option_is_not_read_only(tmp_path: Path, options: str) -> None:
    assert one(str(tmp_path), proc_with(tmp_path, f"/dev/sda1 {tmp_path} ext4 {options} 0 0")).state == "ok"


def test_the_last_of_several_mounts_on_one_place_counts(tmp_path: Path) -> None:
    proc = proc_with(tmp_path, f"a {tmp_path} ext4 ro 0 0", f"b {tmp_path} ext4 rw 0 0")

    assert one(str(tmp_path), proc).state == "ok"


@pytest.mark.parametrize(("name", "escaped"), [("a b", "a\\040b"), ("a\tb", "a\\011b"), ("a\\040b", "a\\134040b")])
def test_odd_names_are_found(tmp_path: Path, name: str, escaped: str) -> None:
    (tmp_path / name).mkdir()

    assert one(f"{tmp_path}/{name}", proc_with(tmp_path, f"x {tmp_path}/{escaped} ext4 rw 0 0")).state == "ok"


def test_a_link_to_a_mount_point_and_a_slash_at_the_end_are_followed(tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    link(tmp_path / "scratch", "mnt")
    proc = proc_with(tmp_path, f"x {tmp_path}/mnt lustre rw 0 0")

    assert [m.state for m in read_mounts([f"{tmp_path}/scratch", f"{tmp_path}/mnt/"], proc)] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ESTALE, "Stale"), (errno.EIO, "Input/output"), (errno.ENOTCONN, "not connected")]
)
def test_a_file_system_that_answers_with_an_error_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def fail(path: str) -> os.statvfs_result:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "statvfs", fail)
    mount = one(str(tmp_path), proc_with(tmp_path, f"x {tmp_path} nfs4 rw 0 0"))

    assert mount.state == "failed"
    assert words in mount.detail


def test_a_file_system_that_does_not_count_has_no_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((0,) * 11))

    assert one(str(tmp_path), proc_with(tmp_path, f"x {tmp_path} autofs rw 0 0")) == Mount(str(tmp_path), "ok")


def test_shares_are_those_of_a_user_without_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((4096, 4096, 100, 30, 25, 10, 5, 4, 0, 255, 1)))
    mount = one(str(tmp_path), proc_with(tmp_path, f"x {tmp_path} ext4 rw 0 0"))

    assert mount.free == pytest.approx(25 / 95)
    assert mount.free_inodes == pytest.approx(0.4)


def test_without_the_list_of_mounts_the_file_system_itself_is_asked(tmp_path: Path) -> None:
    assert one(str(tmp_path), str(tmp_path / "no-proc")).state == "ok"
    assert one(f"{tmp_path}/gone", str(tmp_path / "no-proc")).state == "missing"


@pytest.mark.parametrize("line", ["", "x", "x y", "x /y ext4", "\udcff\udcfe \x85 \u2028", "x" * 5_000_000])
def test_a_list_of_nonsense_mounts_nothing(tmp_path: Path, line: str) -> None:
    assert one(str(tmp_path), proc_with(tmp_path, line)).state == "missing"


@pytest.mark.parametrize("path", ["", "relative", "/a\x00b"])
def test_a_path_that_cannot_be_is_never_ok(tmp_path: Path, path: str) -> None:
    assert one(path, proc_with(tmp_path, "x / ext4 rw 0 0")).state == "failed"
    assert one(path, str(tmp_path / "no-proc")).state == "failed"
