"""State and spool on real disks that are full, read-only or of one file system with another below: needs root."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetctl.health import file_systems
from fleetctl.health.births import births
from fleetctl.health.in_use import Used
from fleetctl.health.leavings import Clock, Rule, Window, clear
from fleetctl.health.model import Decision, Phase, Verdict
from fleetctl.health.spool import append_verdict, publish
from fleetctl.health.state import Drain, State
from fleetctl.health.store import load_state, update_state
from tests.support import small_disk

VERDICT = Verdict("n1", Phase.PROLOG, 1.0, "boot", Decision.CLEAN, "", (), 40, 0.5)
OLD = State("boot", 1, drain=Drain("fleetctl: GPU 3 is lost [gpu_lost]", 1.0, "boot"))
UID = 4242

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", str(128 << 10)) as place:
        yield place


def fill(place: Path) -> Path:
    """Fill the disk to its last byte."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while stream.write(b"x" * 1024):
            pass
    assert os.statvfs(place).f_bavail == 0
    return ballast


def test_a_full_disk_keeps_the_old_state_and_the_old_verdicts_and_room_brings_the_new(small: Path) -> None:
    folder = small / "fleetctl"
    update_state(str(folder), lambda state: OLD)
    append_verdict(str(folder), VERDICT)
    ballast = fill(small)
    notes: list[str] = []
    after = update_state(str(folder), lambda state: state._replace(cursor=2), note=notes.append)
    assert after == OLD._replace(cursor=2)
    assert load_state(str(folder)) == OLD
    before = (folder / "verdicts.jsonl").read_bytes()
    assert not append_verdict(str(folder), VERDICT._replace(at=2.0), note=notes.append)
    assert (folder / "verdicts.jsonl").read_bytes() == before
    assert [note.endswith("No space left on device") for note in notes] == [True, True]
    assert [path.name for path in folder.iterdir() if path.name.endswith(".part")] == []
    ballast.unlink()
    update_state(str(folder), lambda state: state._replace(cursor=3))
    assert load_state(str(folder)).cursor == 3
    assert append_verdict(str(folder), VERDICT._replace(at=2.0))


def test_a_disk_that_is_full_from_the_start_gives_an_empty_state_and_a_note(small: Path) -> None:
    fill(small)
    notes: list[str] = []
    assert update_state(str(small / "fleetctl"), lambda state: OLD, note=notes.append) == OLD
    assert len(notes) == 1
    assert load_state(str(small / "fleetctl")) == State()


def test_a_disk_that_turned_read_only_is_read_and_not_written(small: Path) -> None:
    folder = small / "fleetctl"
    update_state(str(folder), lambda state: OLD)
    append_verdict(str(folder), VERDICT)
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    notes: list[str] = []
    assert load_state(str(folder), note=notes.append) == OLD
    assert notes == []
    after = update_state(str(folder), lambda state: state._replace(cursor=2), note=notes.append)
    assert after == OLD._replace(cursor=2)
    assert not append_verdict(str(folder), VERDICT, note=notes.append)
    assert [note.endswith("Read-only file system") for note in notes] == [True, True]
    assert load_state(str(folder)) == OLD


def test_verdicts_are_published_into_a_full_shared_folder_or_the_old_ones_stay(small: Path, tmp_path: Path) -> None:
    append_verdict(str(tmp_path / "fleetctl"), VERDICT)
    assert publish(str(tmp_path / "fleetctl"), str(small), "n1")
    before = {path.name: path.read_bytes() for path in small.iterdir()}
    fill(small)
    append_verdict(str(tmp_path / "fleetctl"), VERDICT._replace(at=2.0))
    notes: list[str] = []
    assert not publish(str(tmp_path / "fleetctl"), str(small), "n1", note=notes.append)
    assert len(notes) == 1
    assert {path.name: path.read_bytes() for path in small.iterdir() if path.name != "ballast"} == before


@pytest.mark.parametrize("kind", ["another file system", "a bind mount of the same"])
def test_leavings_below_a_mount_point_stay(small: Path, tmp_path: Path, kind: str) -> None:
    top = tmp_path / "shm"
    mounted = top / "job" / "mounted"
    mounted.mkdir(parents=True)
    elsewhere = small if kind == "another file system" else tmp_path / "home"
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "thesis").write_text("precious")
    (top / "job" / "scrap").write_text("")
    subprocess.run(["mount", "--bind", str(elsewhere), str(mounted)], check=True)
    try:
        for path in (top / "job", top / "job" / "scrap", mounted, mounted / "thesis"):
            os.chown(path, UID, UID)
        rule = Rule(UID, Window(0.0, time.time() + 60), "", births(), file_systems.mounted("/proc"))
        left = clear([str(top)], rule, lambda: Used(frozenset(), True), Clock(time.monotonic, time.monotonic() + 30))
    finally:
        subprocess.run(["umount", str(mounted)], check=True)
    assert (elsewhere / "thesis").read_text() == "precious"
    assert left.removed == 1
    assert (top / "job").is_dir()
    assert not (top / "job" / "scrap").exists()
