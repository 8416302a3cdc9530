"""What a job left in /dev/shm and /tmp: its own goes, all else stays, whatever a user made of it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from fleetctl.health import leavings
from fleetctl.health.births import Born
from fleetctl.health.file_systems import Mounted, mounted
from fleetctl.health.in_use import Used
from fleetctl.health.leavings import Clock, Left, Rule, Window, clear
from tests.unit.health.mapping import only_mapped

UID = 4242
FOREVER = Clock(lambda: 0.0, 1.0)
NOBODY = Used(frozenset(), True)
DISKS = {number: Mounted(one.point, "ext4") for number, one in mounted("/proc").items()}  # wherever these tests run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files of another user need root")


@pytest.fixture
def top(tmp_path: Path) -> Path:
    path = tmp_path / "shm"
    path.mkdir(mode=0o1777)
    return path


def theirs(path: Path, *, uid: int = UID) -> Path:
    """Give it to the user."""
    os.chown(path, uid, uid, follow_symlinks=False)
    return path


def a_file(path: Path, *, uid: int = UID, size: int = 5000) -> Path:
    path.write_bytes(b"x" * size)
    return theirs(path, uid=uid)


def a_folder(path: Path, *, uid: int = UID) -> Path:
    path.mkdir()
    return theirs(path, uid=uid)


def ages(born: dict[str, float] | None = None) -> Born:
    """A file system that tells these births, by name; 500 where it is not named."""
    return lambda folder, name: (born or {}).get(name, 500.0)


def rule(window: Window | None = None, born: Born | None = None) -> Rule:
    """By default the job began at 100 and ended an hour from now."""
    return Rule(UID, window or Window(100.0, time.time() + 3600), "", ages() if born is None else born, DISKS)


def clean(top: Path, rules: Rule, used: Used = NOBODY, clock: Clock = FOREVER) -> Left:
    return clear([str(top)], rules, lambda: used, clock)


def below(top: Path) -> set[str]:
    return {str(path.relative_to(top)) for path in top.rglob("*")}


def test_files_folders_links_pipes_and_sockets_of_the_job_go(top: Path) -> None:
    a_file(top / "torch_1")
    a_folder(top / "a")
    a_folder(top / "a" / "b")
    a_file(top / "a" / "b" / "c")
    (top / "link").symlink_to("/etc/passwd")
    theirs(top / "link")
    os.mkfifo(top / "pipe")
    theirs(top / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(top / "socket"))
    theirs(top / "socket")
    left = clean(top, rule())
    assert below(top) == set()
    assert (left.removed, left.kept, left.why) == (7, 0, "")
    assert left.removed_bytes >= 2 * 5000
    assert Path("/etc/passwd").exists()


def test_what_is_another_users_stays_and_is_not_counted(top: Path) -> None:
    a_file(top / "other", uid=UID + 1)
    a_file(top / "roots", uid=0)
    mine = a_folder(top / "mine")
    a_file(mine / "gift", uid=UID + 1)
    left = clean(top, rule())
    assert below(top) == {"other", "roots", "mine", "mine/gift"}
    assert (left.removed, left.kept) == (0, 1)


def test_a_folder_of_another_user_is_not_entered(top: Path) -> None:
    other = a_folder(top / "other", uid=UID + 1)
    a_file(other / "file")
    assert clean(top, rule()) == Left()
    assert below(top) == {"other", "other/file"}


@pytest.mark.parametrize("born", [99.0, None], ids=["born before the job", "changed before the job, birth unknown"])
def test_what_was_there_before_the_job_stays(top: Path, born: float | None) -> None:
    path = a_file(top / "dataset")
    os.utime(path, (50.0, 50.0))
    left = clean(top, rule(born=lambda folder, name: born))
    assert below(top) == {"dataset"}
    assert (left.removed, left.kept) == (0, 1)
    assert "older than the job" in left.why


def test_an_old_file_with_a_new_content_is_not_the_jobs(top: Path) -> None:
    a_file(top / "cache")  # written now, but born before
    assert clean(top, rule(born=ages({"cache": 99.0}))).removed == 0


def test_an_unpacked_file_with_an_old_date_is_the_jobs(top: Path) -> None:
    os.utime(a_file(top / "unpacked"), (5.0, 5.0))  # tar sets it
    assert clean(top, rule()).removed == 1


def test_what_was_made_after_the_job_stays(top: Path) -> None:
    a_file(top / "next_job")
    assert clean(top, rule(Window(100.0, time.time() - 5))).removed == 0
    assert below(top) == {"next_job"}


def test_new_files_in_an_old_folder_go_and_the_folder_stays(top: Path) -> None:
    a_folder(top / "old")
    a_file(top / "old" / "new")
    left = clean(top, rule(born=ages({"old": 50.0})))
    assert below(top) == {"old"}
    assert (left.removed, left.kept) == (1, 1)


@pytest.mark.parametrize("which", ["file", "folder"])
def test_what_a_process_uses_stays_and_so_does_the_folder_around_it(
    top: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel cannot be asked about a file, as on an old tmpfs, the processes' own word counts."""
    monkeypatch.setattr(leavings, "is_free", lambda folder, name: None)
    monkeypatch.setattr(leavings, "_seen_by", lambda used, kind: used)
    folder = a_folder(top / "folder")
    file = a_file(folder / "file")
    a_file(folder / "unused")
    used = {(file if which == "file" else folder).stat().st_ino}
    clean(top, rule(), Used(frozenset(used), True))
    assert below(top) == ({"folder", "folder/file"} if which == "file" else {"folder"})


def test_a_file_that_the_kernel_calls_free_goes_whatever_else_has_its_number(top: Path) -> None:
    """On a small tmpfs a file has the number of the root folder that every process uses."""
    file = a_file(top / "file")
    assert clean(top, rule(), Used(frozenset({file.stat().st_ino}), True)).removed == 1


@pytest.mark.parametrize("use", [Path.open, only_mapped])
def test_what_a_hidden_process_uses_stays_because_the_kernel_tells(
    top: Path, use: Callable[[Path], AbstractContextManager[object]]
) -> None:
    a_file(top / "free")
    with use(a_file(top / "busy")):
        assert clean(top, rule(), Used(frozenset(), False)).removed == 1
        assert below(top) == {"busy"}
    assert clean(top, rule(), Used(frozenset(), False)).removed == 1


def test_without_a_window_everything_stays_and_its_bytes_are_told(top: Path) -> None:
    a_folder(top / "a")
    a_file(top / "a" / "file", size=10_000)

    def never() -> Used:
        raise AssertionError("processes were looked at for nothing")

    left = clear([str(top)], Rule(UID, None, "its start is not known", ages(), DISKS), never, FOREVER)
    assert below(top) == {"a", "a/file"}
    assert (left.removed, left.kept, left.why) == (0, 2, "its start is not known")
    assert left.kept_bytes >= 10_000


def test_a_link_to_a_folder_is_removed_and_not_followed(top: Path, tmp_path: Path) -> None:
    home = a_folder(tmp_path / "home")
    a_file(home / "thesis")
    theirs(top / "link").symlink_to(home) if False else (top / "link").symlink_to(home)
    theirs(top / "link")
    assert clean(top, rule()).removed == 1
    assert (home / "thesis").exists()


def test_a_file_with_another_name_stays(top: Path, tmp_path: Path) -> None:
    data = a_file(tmp_path / "data")
    os.link(data, top / "data")
    assert clean(top, rule()).removed == 0
    assert below(top) == {"data"}


def test_a_device_stays(top: Path) -> None:
    os.mknod(top / "null", 0o020666, os.makedev(1, 3))
    theirs(top / "null")
    assert clean(top, rule()).removed == 0
    assert below(top) == {"null"}


@pytest.mark.parametrize(
    "name", ["a\nb", " ", "-rf", "..x", "*", "\udcff\udcfe", "x" * 255, "$(reboot)", "a (deleted)"]
)
def test_a_hostile_name_is_a_name(top: Path, name: str) -> None:
    a_folder(top / name)
    a_file(top / name / name)
    assert clean(top, rule()).removed == 2
    assert below(top) == set()


def test_a_very_deep_tree_is_cut_and_nothing_around_it_is_lost(top: Path) -> None:
    here = os.open(top, os.O_RDONLY)
    for _ in range(600):  # deeper than PATH_MAX
        os.mkdir("deep_down", dir_fd=here)
        os.chown("deep_down", UID, UID, dir_fd=here)
        below_it = os.open("deep_down", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below_it
    os.close(here)
    a_file(top / "file")
    left = clean(top, rule())
    assert left.removed == 1
    assert left.kept == leavings.MOST_DEPTH
    assert not (top / "file").exists()


def test_only_so_many_entries_are_looked_at(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leavings, "MOST_ENTRIES", 10)
    a_folder(top / "a")
    for number in range(25):
        a_file(top / "a" / str(number), size=1)
    left = clean(top, rule())
    assert (left.removed, left.kept) == (10, 1)  # the folder was not seen in full, so it stays
    assert left.why
    assert len(below(top)) == 16


def test_the_time_is_over_before_the_work_is(top: Path) -> None:
    for number in range(5):
        a_file(top / str(number))
    ticks = iter(range(1000))
    left = clean(top, rule(), clock=Clock(lambda: float(next(ticks)), 8.0))
    assert left.removed == 3
    assert left.kept == 2


def swap_for_a_link(path: Path, home: Path) -> None:
    path.rename(path.with_name("aside"))
    path.symlink_to(home)


def swap_for_another_folder(path: Path, home: Path) -> None:
    path.rename(path.with_name("aside"))
    home.rename(path)


@pytest.mark.parametrize("swap", [swap_for_a_link, swap_for_another_folder])
def test_a_folder_swapped_between_the_look_and_the_act_is_not_entered(
    top: Path, tmp_path: Path, swap: Callable[[Path, Path], None]
) -> None:
    a_folder(top / "a")
    a_file(top / "a" / "thesis")
    home = a_folder(tmp_path / "home")
    a_file(home / "thesis")

    def race() -> Used:
        swap(top / "a", home)
        return NOBODY

    clear([str(top)], rule(), race, FOREVER)
    assert [path.name for path in tmp_path.rglob("thesis") if path.parent.name != "aside"] == ["thesis"]


@pytest.mark.parametrize("swap", [swap_for_a_link, swap_for_another_folder])
def test_no_step_is_made_into_a_folder_that_is_not_the_one_seen(
    top: Path, tmp_path: Path, swap: Callable[[Path, Path], None]
) -> None:
    was = a_folder(top / "a").lstat()
    folder = os.open(top, os.O_RDONLY)
    try:
        right = leavings._step(folder, "a", was)
        assert right is not None
        os.close(right)
        swap(top / "a", a_folder(tmp_path / "home"))
        assert leavings._step(folder, "a", was) is None
        assert leavings._step(folder, "a", (tmp_path / "shm" / "aside").stat()) is None
    finally:
        os.close(folder)


def test_an_empty_folder_in_the_place_of_the_jobs_stays(top: Path) -> None:
    a_folder(top / "a")

    def race() -> Used:
        (top / "a").rename(top / "aside")
        a_folder(top / "a", uid=UID + 1)
        return NOBODY

    assert clear([str(top)], rule(), race, FOREVER).removed == 0
    assert below(top) == {"a", "aside"}


def test_a_file_written_to_or_replaced_after_the_look_stays(top: Path) -> None:
    a_file(top / "written")
    a_file(top / "replaced")

    def race() -> Used:
        while (top / "written").stat().st_ctime_ns == before:
            (top / "written").write_text("more")
        a_file(top / "new").rename(top / "replaced")
        return NOBODY

    before = (top / "written").stat().st_ctime_ns
    assert clear([str(top)], rule(), race, FOREVER).removed == 0
    assert below(top) == {"written", "replaced"}


def test_a_folder_that_is_not_there_is_no_trouble_and_a_users_own_is_not_cleaned(top: Path, tmp_path: Path) -> None:
    theirs(top)
    a_file(top / "file")
    left = clear([str(tmp_path / "none"), str(top)], rule(), lambda: NOBODY, FOREVER)
    assert left.removed == 0
    assert left.why == f"{top} belongs to a user"


def test_two_roots_are_counted_together(top: Path, tmp_path: Path) -> None:
    other = tmp_path / "tmp"
    other.mkdir()
    a_file(top / "one")
    a_file(other / "two")
    assert clear([str(top), str(other)], rule(), lambda: NOBODY, FOREVER).removed == 2
