"""The state on a disk: crashes, full and foreign disks, and two writers at once."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from fleetctl.health import store
from fleetctl.health.state import Drain, JobStart, State, to_text, with_job
from fleetctl.health.store import load_state, update_state
from tests.unit.health.disk import Recorder, after_a_crash, put

OLD = State("boot", 1, drain=Drain("fleetctl: old [nvml]", 1.0, "boot"))
NEW = State("boot", 2, drain=Drain("fleetctl: new [nvml]", 2.0, "boot"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "fleetctl"
    update_state(str(path), lambda state: OLD)
    return path


def child(work: Callable[[], None]) -> int:
    """A forked process that does the work and ends; its pid, to be waited for."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def test_the_first_look_of_a_node_finds_an_empty_state_and_says_nothing(tmp_path: Path) -> None:
    notes: list[str] = []
    assert load_state(str(tmp_path / "none"), note=notes.append) == State()
    assert notes == []
    assert not (tmp_path / "none").exists()


def test_a_change_is_read_back_and_its_folder_is_ours_alone(folder: Path) -> None:
    assert load_state(str(folder)) == OLD
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "state.json").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in folder.iterdir()) == ["state.json", "state.json.lock"]


def test_folders_above_are_made_as_usual(tmp_path: Path) -> None:
    update_state(str(tmp_path / "a" / "b" / "c"), lambda state: OLD)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o755
    assert load_state(str(tmp_path / "a" / "b" / "c")) == OLD


def test_a_state_of_another_boot_counts_as_such_and_is_written_as_such(folder: Path) -> None:
    assert load_state(str(folder), boot_id="next") == State("next", drain=OLD.drain)
    update_state(str(folder), lambda state: state, boot_id="next")
    assert load_state(str(folder)) == State("next", drain=OLD.drain)


def test_a_change_that_changes_nothing_writes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    assert update_state(str(folder), lambda state: state) == OLD
    assert recorder.steps == []


def test_a_crash_at_any_moment_leaves_the_old_state_or_the_new_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {"state.json": to_text(OLD).encode(), ".state.json.part": b'{"torn'}
    put(folder, before)
    with monkeypatch.context() as patch:
        recorder = Recorder(patch)
        update_state(str(folder), lambda state: NEW)
    steps = recorder.steps
    assert [kind for kind, _, _ in steps] == ["gone", "made", "write", "sync", "name", "sync"]
    seen = set()
    for count, files in after_a_crash(before, steps):
        put(tmp_path / "after", files)
        found = load_state(str(tmp_path / "after"))
        assert found in (OLD, NEW)
        assert found == NEW or count < len(steps)
        seen.add((count, found.cursor))
        update_state(str(tmp_path / "after"), lambda state: NEW._replace(cursor=9))
        assert sorted(path.name for path in (tmp_path / "after").iterdir()) == ["state.json", "state.json.lock"]
    assert {cursor for _, cursor in seen} == {1, 2}


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe\x00", b"null", b"[" * 100_000, to_text(OLD).encode() + b" " * (9 << 20)]
)
def test_a_state_that_is_none_is_ignored_with_a_note_and_replaced(folder: Path, data: bytes) -> None:
    (folder / "state.json").write_bytes(data)
    notes: list[str] = []
    assert load_state(str(folder), note=notes.append) == State()
    assert len(notes) == 1
    update_state(str(folder), lambda state: NEW)
    assert load_state(str(folder)) == NEW


def link_elsewhere(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere"
    elsewhere.write_text(to_text(NEW))
    path.symlink_to(elsewhere)


def foreign(path: Path) -> None:
    path.write_text(to_text(NEW))
    os.chown(path, 12345, 12345)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (link_elsewhere, "symbolic link"),
        (os.mkfifo, "no plain file"),
        (foreign, "belongs to uid 12345"),
    ],
    ids=["link", "fifo", "owner"],
)
def test_a_state_file_that_is_not_ours_is_not_read_and_replaced_in_place(
    folder: Path, make: Callable[[Path], object], word: str
) -> None:
    (folder / "state.json").unlink()
    make(folder / "state.json")
    notes: list[str] = []
    assert update_state(str(folder), lambda state: state._replace(cursor=5), note=notes.append) == State(cursor=5)
    assert [word in note for note in notes] == [True]
    assert (folder / "state.json").is_file()
    assert not (folder / "state.json").is_symlink()
    elsewhere = folder.parent / "elsewhere"
    assert not elsewhere.exists() or elsewhere.read_text() == to_text(NEW)


@pytest.mark.parametrize("trouble", ["writable by others", "another owner", "a link", "a file"])
def test_a_folder_that_is_not_ours_alone_is_neither_read_nor_written(folder: Path, trouble: str) -> None:
    if trouble == "writable by others":
        folder.chmod(0o770)
    elif trouble == "another owner":
        os.chown(folder, 12345, 12345)
    elif trouble == "a link":
        folder.rename(folder.parent / "moved")
        folder.symlink_to(folder.parent / "moved")
    else:
        folder.rename(folder.parent / "moved")
        folder.write_text("")
    notes: list[str] = []
    assert load_state(str(folder), note=notes.append) == State()
    assert update_state(str(folder), lambda state: NEW, note=notes.append) == NEW
    assert len(notes) == 2
    really = folder.parent / "moved" if (folder.parent / "moved").exists() else folder
    assert (really / "state.json").read_text() == to_text(OLD)


def test_a_folder_that_others_may_only_read_is_closed_to_them(folder: Path) -> None:
    folder.chmod(0o755)
    update_state(str(folder), lambda state: NEW)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert load_state(str(folder)) == NEW


def test_the_change_is_made_and_not_written_while_another_holds_the_lock(folder: Path) -> None:
    ready, tell = os.pipe()
    stay, end = os.pipe()

    def hold() -> None:
        handle = os.open(folder / "state.json.lock", os.O_RDWR)
        fcntl.lockf(handle, fcntl.LOCK_EX)
        os.write(tell, b"x")
        os.close(end)
        os.read(stay, 1)

    pid = child(hold)
    try:
        os.read(ready, 1)
        clock = iter([0.0, 0.5, 0.9, 1.0])
        notes: list[str] = []
        after = update_state(str(folder), lambda state: NEW, note=notes.append, monotonic=lambda: next(clock))
        assert after == NEW
        assert next(clock, None) is None  # it tried until its second was over, and not once more
        assert ["held its lock for 1 s" in note for note in notes] == [True]
        assert load_state(str(folder)) == OLD
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for handle in (ready, tell, stay, end):
            os.close(handle)
    assert update_state(str(folder), lambda state: NEW) == load_state(str(folder)) == NEW  # the lock died with it


def test_no_word_is_lost_among_many_writers(folder: Path) -> None:
    def write(writer: int) -> None:
        for turn in range(10):
            name = str(writer * 100 + turn)
            update_state(str(folder), partial(with_job, job_id=name, start=JobStart(1.0, "")), wait_s=60.0)

    pids = [child(partial(write, writer)) for writer in range(6)]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 6
    assert set(load_state(str(folder)).jobs) == {str(w * 100 + t) for w in range(6) for t in range(10)}


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
@pytest.mark.parametrize("number", [28, 5, 30, 122])  # ENOSPC, EIO, EROFS, EDQUOT
def test_a_disk_that_fails_keeps_the_old_state_and_no_scrap(
    folder: Path, call: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> int:
        raise OSError(number, os.strerror(number))

    notes: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        assert update_state(str(folder), lambda state: NEW, note=notes.append) == NEW
    assert notes == [f"{folder}/state.json not written: {os.strerror(number)}"]
    assert load_state(str(folder)) == OLD
    assert sorted(path.name for path in folder.iterdir()) == ["state.json", "state.json.lock"]


def test_a_state_that_cannot_be_read_is_not_written_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> bytes:
        raise OSError(5, "Input/output error")

    notes: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", fail)
        assert update_state(str(folder), lambda state: state._replace(cursor=8), note=notes.append) == State(cursor=8)
    assert len(notes) == 1
    assert load_state(str(folder)) == OLD


def test_a_number_that_json_cannot_carry_is_not_written(folder: Path) -> None:
    notes: list[str] = []
    update_state(str(folder), lambda state: state._replace(returned=(float("nan"),)), note=notes.append)
    assert len(notes) == 1
    assert load_state(str(folder)) == OLD


def test_a_change_is_called_exactly_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[State] = []

    def change(state: State) -> State:
        calls.append(state)
        return NEW

    monkeypatch.setattr(store, "replace", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    update_state(str(folder), change)
    assert calls == [OLD]


def test_no_descriptor_is_left_open(folder: Path) -> None:
    def open_ones() -> Iterator[str]:
        yield from os.listdir("/proc/self/fd")

    before = len(list(open_ones()))
    update_state(str(folder), lambda state: NEW)
    load_state(str(folder))
    load_state(str(folder / "state.json"))
    assert len(list(open_ones())) == before
