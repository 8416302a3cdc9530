"""Reading below a folder that anybody may have filled, and clearing staging without touching anything else."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fleetctl.checkpoint import select, stale, storage
from fleetctl.checkpoint.model import Checked, Entry, Fence, Validity, one_line
from fleetctl.checkpoint.staging import list_staged
from fleetctl.checkpoint.stale import collect_stale
from fleetctl.checkpoint.storage import Kind, LocalStorage
from fleetctl.checkpoint.survey import survey_names
from fleetctl.errors import CannotTell
from fleetctl.train import layout
from tests.checkpoints import write_checkpoint, write_staged

LOCAL = LocalStorage()


def read(directory: Path, *inside: str) -> bytes:
    with LOCAL.open(directory, *inside) as blob:
        return blob.read(0, blob.size_bytes)


def test_a_file_is_read_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x").write_bytes(b"0123456789")
    with LOCAL.open(tmp_path, "in", "x") as blob:
        assert (blob.size_bytes, blob.read(2, 3), blob.read(8, 100), blob.read(50, 1)) == (10, b"234", b"89", b"")
    assert LOCAL.look(tmp_path, "in") is not None
    assert LOCAL.look(tmp_path, "nothing", "x") is None
    assert LOCAL.look(tmp_path, "in", "x", "y") is None


def device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero: it has no end


def socket_name(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)  # opening it would fail with other words: it must not even be tried


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, device, socket_name, lambda path: path.symlink_to("/etc/hostname")]
)
def test_only_regular_files_are_opened(make: Callable[[Path], object], tmp_path: Path) -> None:
    if make is device and os.geteuid() != 0:
        make = os.mkfifo  # only root makes devices
    make(tmp_path / "x")
    with pytest.raises(OSError, match="regular file"):
        read(tmp_path, "x")
    found = LOCAL.look(tmp_path, "x")
    assert found is not None
    assert found.kind in (Kind.OTHER, Kind.LINK, Kind.FOLDER)


def test_a_link_inside_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x").touch()
    (tmp_path / "link").symlink_to("real")
    assert read(tmp_path / "link", "x") == b""  # the folder itself is its user's choice
    with pytest.raises(OSError, match=r"symbolic|directory"):
        read(tmp_path, "link", "x")
    with pytest.raises(OSError, match=r"symbolic|directory"):
        LOCAL.listing(tmp_path, "link")


@pytest.mark.parametrize("part", ["", ".", "..", "../x", "/etc/hostname", "a\0b"])
def test_a_part_is_one_name(part: str, tmp_path: Path) -> None:
    for ask in (LOCAL.look, read, LOCAL.listing, LOCAL.look_all):
        with pytest.raises(OSError, match="not a name"):
            ask(tmp_path, part)


def test_a_listing_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_MOST_NAMES", 10)
    for number in range(11):
        (tmp_path / str(number)).touch()
    with pytest.raises(CannotTell, match="more than 10 names"):
        LOCAL.names(tmp_path)


def test_hostile_names_are_only_names(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 100)
    hostile = [b"new\nline", b"\x1b[2J", b"\xff\xfe", b"step-000000100@run-a@1.0 ", b"x" * 255, b"..."]
    for name in hostile:
        os.mkdir(os.fsencode(tmp_path) + b"/" + name)
    names = LOCAL.names(tmp_path)
    assert len(names) == 7
    entries, passed = select.acceptable(survey_names(names, "auto"), Fence.open("run-a"), None)
    assert [entry.name for entry in entries] == [folder.name]
    assert {(one.entry, one.validity) for one in passed} == {(None, Validity.UNKNOWN)}


def test_many_names_are_listed(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    (tmp_path / "one").touch()
    for number in range(20_000):
        os.link("one", f"name-{number}", src_dir_fd=handle, dst_dir_fd=handle)
    os.close(handle)
    names = LOCAL.names(tmp_path)
    entries, passed = select.acceptable(survey_names(names, "auto"), Fence.open("run-a"), None)
    assert (len(entries), len(passed)) == (0, 20_001)


@pytest.mark.parametrize("text", ["x\ny", "\x1b[31m", "\u202e", "\udcff", "x" * 10_000])
def test_a_message_is_one_printable_line(text: str) -> None:
    assert one_line(text).isprintable()
    assert one_line(text).isascii()
    assert len(one_line(text)) <= 203


# Staging

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def touch(folder: Path, at: datetime) -> None:
    for path in (*folder.iterdir(), folder):
        os.utime(path, (at.timestamp(), at.timestamp()))


def staged(directory: Path, lives: bool | None = None) -> dict[str, Checked]:
    return {one.name: one for one in list_staged(LOCAL, directory, NOW, lambda _: lives)}


@pytest.mark.parametrize(
    ("age_s", "validity"),
    [(0, "in_progress"), (590, "in_progress"), (-86_400, "in_progress"), (610, "incomplete"), (10**8, "incomplete")],
)
def test_the_age_of_a_save_tells_whether_it_may_still_be_written(age_s: int, validity: str, tmp_path: Path) -> None:
    folder = write_staged(tmp_path, 100)
    touch(folder, NOW - timedelta(seconds=age_s))
    assert staged(tmp_path)[folder.name].validity == validity


def test_the_newest_time_in_a_save_counts(tmp_path: Path) -> None:
    folder = write_staged(tmp_path, 100)
    touch(folder, NOW - timedelta(days=1))
    os.utime(folder / "shard-00000.bin", (NOW.timestamp(), NOW.timestamp()))
    assert staged(tmp_path)[folder.name].validity is Validity.IN_PROGRESS


def test_who_lives_is_known_better_than_by_age(tmp_path: Path) -> None:
    folder = write_staged(tmp_path, 100)
    touch(folder, NOW - timedelta(days=1))
    assert staged(tmp_path, lives=True)[folder.name].validity is Validity.IN_PROGRESS
    touch(folder, NOW)
    assert staged(tmp_path, lives=False)[folder.name].validity is Validity.INCOMPLETE


def test_what_is_foreign_in_staging_is_unknown(tmp_path: Path) -> None:
    (tmp_path / layout.STAGING).mkdir()
    (tmp_path / layout.STAGING / layout.committed_name(1, "run-a", "1.0")).mkdir()
    (tmp_path / layout.STAGING / "x").symlink_to("x")
    assert {one.validity for one in staged(tmp_path).values()} == {Validity.UNKNOWN}
    assert staged(tmp_path / "missing") == {}


def test_a_save_whose_times_cannot_be_read_may_be_under_way(tmp_path: Path) -> None:
    class Blind(LocalStorage):
        def listing(self, directory: Path, *inside: str) -> tuple[str, ...]:
            if len(inside) > 1:
                raise OSError(errno.EIO, "Input/output error")
            return super().listing(directory, *inside)

    folder = write_staged(tmp_path, 100)
    touch(folder, NOW - timedelta(days=1))
    assert list_staged(Blind(), tmp_path, NOW, lambda _: None)[0].validity is Validity.IN_PROGRESS


def test_staging_that_cannot_be_listed_is_told(tmp_path: Path) -> None:
    class Blind(LocalStorage):
        def listing(self, directory: Path, *inside: str) -> tuple[str, ...]:
            raise OSError(errno.EACCES, "Permission denied")

    (found,) = list_staged(Blind(), tmp_path, NOW, lambda _: None)
    assert (found.name, found.validity, found.reason) == (
        ".staging",
        Validity.UNKNOWN,
        "cannot be listed: Permission denied",
    )


# Clearing


def left(directory: Path) -> set[str]:
    return {path.name for inner in (layout.STAGING, layout.TRASH) for path in (directory / inner).glob("*")}


def test_only_older_saves_of_the_run_are_collected(tmp_path: Path) -> None:
    old = [write_staged(tmp_path, 100, attempt=attempt).name for attempt in ("1.0", "1.1", "2.0")]
    keep = {write_staged(tmp_path, 100, attempt=attempt).name for attempt in ("2.1", "3.0", "10.0")}
    keep.add(write_staged(tmp_path, 100, run_id="run-b", attempt="0.0").name)
    (tmp_path / layout.STAGING / "notes").mkdir()
    committed = write_checkpoint(tmp_path, 50, attempt="1.0")
    assert collect_stale(tmp_path, "run-a", (2, 1)) == tuple(sorted(old))
    assert left(tmp_path) == keep | {"notes"}
    assert committed.exists()
    assert collect_stale(tmp_path, "run-a", (2, 1)) == ()


def test_a_late_writer_cannot_commit_what_was_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where nothing can be removed."""
    folder = write_staged(tmp_path, 100)
    monkeypatch.setattr(stale, "delete", lambda name, folder: None)
    with open(folder / "shard-00001.bin", "wb") as late:
        assert collect_stale(tmp_path, "run-a", (2, 0)) == (folder.name,)
        late.write(b"x")
    with pytest.raises(FileNotFoundError):
        folder.rename(tmp_path / layout.committed_name(100, "run-a", "1.0"))
    monkeypatch.undo()
    assert len(left(tmp_path)) == 1
    collect_stale(tmp_path, "run-a", (2, 0))  # the next one does what the first could not
    assert left(tmp_path) == set()


def test_trash_that_a_writer_left_goes_too(tmp_path: Path) -> None:
    mine, other = (layout.staging_name(1, run, "1.0", 1) for run in ("run-a", "run-b"))
    for name in (f"{mine}@0a1b2c3d", f"{other}@0a1b2c3d", "notes"):
        (tmp_path / layout.TRASH / name / "inner").mkdir(parents=True)
    (tmp_path / layout.TRASH / f"{mine}@file").touch()
    (tmp_path / layout.STAGING).mkdir()
    assert collect_stale(tmp_path, "run-a", (2, 0)) == ()
    assert left(tmp_path) == {f"{other}@0a1b2c3d", "notes"}


@pytest.mark.parametrize(
    "trash", [Path.touch, lambda path: path.symlink_to("/tmp"), lambda path: path.symlink_to(path)]
)
def test_without_a_trash_folder_it_is_removed_in_place(trash: Callable[[Path], object], tmp_path: Path) -> None:
    folder = write_staged(tmp_path, 100)
    trash(tmp_path / layout.TRASH)
    assert collect_stale(tmp_path, "run-a", (2, 0)) == (folder.name,)
    assert list((tmp_path / layout.STAGING).iterdir()) == []


def test_nothing_is_followed_out_of_staging(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").write_text("x")
    folder = write_staged(tmp_path / "c", 100)
    (folder / "link").symlink_to(precious)
    (folder.parent / layout.staging_name(200, "run-a", "1.0", 1)).symlink_to(precious)
    assert len(collect_stale(tmp_path / "c", "run-a", (2, 0))) == 2
    assert (precious / "data").read_text() == "x"
    assert left(tmp_path / "c") == set()


def test_a_linked_staging_is_refused(tmp_path: Path) -> None:
    folder = write_staged(tmp_path / "other", 100)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / layout.STAGING).symlink_to(folder.parent)
    with pytest.raises(OSError, match=r"symbolic|directory"):
        collect_stale(tmp_path / "c", "run-a", (2, 0))
    assert folder.exists()


def test_no_staging_is_nothing_to_do(tmp_path: Path) -> None:
    assert collect_stale(tmp_path / "missing", "run-a", (2, 0)) == ()
    assert collect_stale(tmp_path, "run-a", (2, 0)) == ()
    assert list(tmp_path.iterdir()) == []


def test_a_staged_name_is_never_accepted() -> None:
    name = layout.staging_name(1, "run-a", "1.0", 1)
    assert select.acceptable(survey_names([name], "auto"), Fence.open("run-a"), None)[0] == ()
    entry = Entry(name, 1, "run-a", (1, 0), staging=True)
    assert not Fence("run-a", frozenset({name}), (0, 0), everything=True).accepts(entry)
