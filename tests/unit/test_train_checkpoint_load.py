"""Checkpointer loads what is whole, and tells what is not."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from fleetctl.checkpoint.model import load_of
from fleetctl.train.checkpointer import CannotLoad, CheckpointDamaged, Checkpointer, Loaded
from fleetctl.train.digests import DigestMissing, digest_of
from fleetctl.train.layout import MANIFEST, ShardFile, encode_manifest, parse_manifest
from tests.unit.checkpoint_site import Site, flip, load_rank, open_rank


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    for opened in site.opened:
        opened.__exit__(RuntimeError)  # ends its thread, whatever the test made of it


def test_load_is_told_step_by_step(site: Site) -> None:
    with site.open() as checkpoints:
        checkpoints.save(7, {"x": numpy.zeros(9)})
    seen = []
    told = site.attempt("9.0") / "load.json"
    real, fake = site.time.sleep, site.path(7)
    (fake / MANIFEST).rename(hidden := site.folder / "hidden")

    def sleep(seconds: float) -> None:
        real(seconds)
        seen.append(json.loads(told.read_text()))
        if len(seen) == 3:
            hidden.rename(fake / MANIFEST)

    assert site.load(7, sleep=sleep).training_step == 7
    assert [record["state"] for record in seen] == ["loading"] * 3
    record = json.loads(told.read_text())
    assert record == {
        "schema": 1,
        "state": "loaded",
        "path": str(fake),
        "training_step": 7,
        "rank": 0,
        "why": None,
        "time": "2023-11-14T22:13:20.250+00:00",
    }
    assert os.listdir(site.attempt("9.0")) == ["load.json"]


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


SHARD = "shard-00000.bin"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit of data": (lambda path: flip(path / SHARD, -1), "shard-00000.bin: .* digest"),
    "a flipped bit of the header": (lambda path: flip(path / SHARD, 40), "shard-00000.bin"),
    "another start": (lambda path: flip(path / SHARD, 0), "starts with"),
    "a cut": (lambda path: os.truncate(path / SHARD, 100), "has 100 bytes"),
    "zeros": (lambda path: zeros(path / SHARD), "starts with"),
    "an empty manifest": (lambda path: (path / MANIFEST).write_bytes(b""), "not JSON"),
    "a flipped manifest": (lambda path: flip(path / MANIFEST, 60), "manifest.json"),
}


@pytest.mark.parametrize(("damage", "told"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_told_and_never_loaded(site: Site, damage: Callable[[Path], object], told: str) -> None:
    with site.open() as checkpoints:
        checkpoints.save(7, {"x": numpy.arange(9.0), "y": [1]})
    damage(site.path(7))
    with pytest.raises(CheckpointDamaged, match=told):
        site.load(7)
    record = json.loads((site.attempt("9.0") / "load.json").read_text())
    assert (record["state"], record["training_step"]) == ("failed", None)
    assert str(site.path(7)) in record["why"]
    other = open_rank(
        site, 5, 6, "9.0", shards=1, env={"FLEETCTL_RESUME_PATH": str(site.path(7))}, sleep=site.time.sleep
    )
    with pytest.raises(CheckpointDamaged):
        other.load()
    assert json.loads((site.attempt("9.0") / "load-failed-5.json").read_text())["rank"] == 5


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no shard": (lambda path: (path / SHARD).unlink(), "cannot be read: shard-00000.bin: No such"),
    "a folder as shard": (lambda path: a_folder(path / SHARD), "Is a directory"),
    "no manifest": (lambda path: (path / MANIFEST).unlink(), "cannot be read: manifest.json"),
    "no folder": (lambda path: path.rename(path.with_name("moved")), "cannot be read: manifest.json"),
}


@pytest.mark.parametrize(("harm", "told"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_read_is_no_damage(site: Site, harm: Callable[[Path], object], told: str) -> None:
    """fleetctl must not mistrust a good checkpoint because a node did not see it, or lacks a package."""
    with site.open() as checkpoints:
        checkpoints.save(7, {"x": 1})
    harm(site.path(7))
    other = open_rank(
        site, 5, 6, "9.0", shards=1, env={"FLEETCTL_RESUME_PATH": str(site.path(7))}, sleep=site.time.sleep
    )
    for load in (lambda: site.load(7), other.load):
        with pytest.raises(CannotLoad, match=told) as caught:
            load()
        assert not isinstance(caught.value, CheckpointDamaged)
    for name in ("load.json", "load-failed-5.json"):
        record = json.loads((site.attempt("9.0") / name).read_text())
        assert (record["state"], load_of((9, 0), record)) == ("refused", None)


def test_other_reasons_to_refuse(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with site.open() as checkpoints:
        checkpoints.save(7, {"x": 1})

    def fails(error: Exception) -> Callable[..., Any]:
        def fail(*_: object) -> Any:
            raise error

        return fail

    def state() -> Any:
        return json.loads((site.attempt("9.0") / "load.json").read_text())["state"]

    with pytest.raises(CannotLoad, match="shards=1, this training has shards=2"):
        load_rank(site, 7, 0, 2)
    assert state() == "refused"
    for number in (errno.EIO, errno.EACCES, errno.ESTALE):
        monkeypatch.setattr("fleetctl.train.loader.read_shard", fails(OSError(number, os.strerror(number))))
        with pytest.raises(CannotLoad, match=os.strerror(number)) as caught:
            site.load(7)
        assert (type(caught.value), state()) == (CannotLoad, "refused")
    monkeypatch.setattr("fleetctl.train.loader.read_shard", fails(DigestMissing("xxhash is not installed")))
    with pytest.raises(CannotLoad, match="install it here"):
        site.load(7)
    assert state() == "refused"
    monkeypatch.setattr("fleetctl.train.loader.read_shard", fails(MemoryError()))
    with pytest.raises(MemoryError):
        site.load(7)
    assert state() == "refused"


@pytest.mark.parametrize("late_s", [50, 70])
def test_a_folder_that_is_seen_late_is_waited_for_a_minute(
    site: Site, late_s: float, capsys: pytest.CaptureFixture[str]
) -> None:
    with site.open() as checkpoints:
        checkpoints.save(7, {"x": 1})
    site.path(7).rename(hidden := site.folder / "hidden")
    shown = site.time.now_s + late_s

    def sleep(seconds: float) -> None:
        site.time.sleep(seconds)
        if site.time.now_s >= shown and hidden.exists():
            hidden.rename(site.path(7))

    if late_s < 60:
        assert site.load(7, sleep=sleep).state == {"x": 1}
    else:
        with pytest.raises(CannotLoad):
            site.load(7, sleep=sleep)
    assert capsys.readouterr().err.count("is not to be seen here yet") == 1


def test_a_shard_that_goes_on_behind_its_entries_is_not_loaded(site: Site) -> None:
    """A fault of a writer: sizes and digests agree, yet somebody's data would be dropped in silence."""
    with site.open() as checkpoints:
        checkpoints.save(7, {"x": b"1"})
    with (site.path(7) / SHARD).open("ab") as file:
        file.write(b"more")
    raw = (site.path(7) / SHARD).read_bytes()
    manifest = parse_manifest((site.path(7) / MANIFEST).read_bytes())
    files = (ShardFile(SHARD, len(raw), digest_of("crc32", raw)),)
    (site.path(7) / MANIFEST).write_bytes(encode_manifest(manifest._replace(files=files)))
    with pytest.raises(CheckpointDamaged, match="do not end where the file ends"):
        site.load(7)


def test_a_checkpoint_under_another_name_is_not_loaded(site: Site) -> None:
    with site.open() as checkpoints:
        checkpoints.save(7, {})
    site.path(7).rename(site.path(8))
    with pytest.raises(CheckpointDamaged, match="not what the folder's name says"):
        site.load(8)


def test_another_number_of_shards_is_told(site: Site) -> None:
    with site.open() as checkpoints:
        checkpoints.save(7, {})
    with pytest.raises(CannotLoad, match="shards=1, this training has shards=2"):
        load_rank(site, 7, 0, 2)


def test_what_was_loaded_is_not_saved_again(site: Site) -> None:
    with site.open() as checkpoints:
        checkpoints.save(10, {})
    loader = site.open("9.0", {"FLEETCTL_RESUME_PATH": str(site.path(10))}, every_steps=10)
    loader.load()
    assert not loader.due(10)
    assert loader.due(20)


def by_hand(folder: Path, **more: Any) -> Checkpointer:
    return Checkpointer(directory=str(folder), environ=more.pop("env", {}), sleep=lambda seconds: None, **more)


def test_by_hand_the_newest_that_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with by_hand(tmp_path / "new" / "ckpt") as checkpoints:
        assert checkpoints.load() is None
        for step in (9, 10, 200):
            checkpoints.save(step, {"x": step})
    folder = tmp_path / "new" / "ckpt"
    (folder / "step-000000999@local@0.0").mkdir()
    (folder / "step-000000999@local@0.0" / MANIFEST).write_bytes(b"")
    (folder / "step-junk").mkdir()
    flip(folder / "step-000000200@local@0.0" / "shard-00000.bin", -1)
    with by_hand(folder) as checkpoints:
        assert checkpoints.load() == Loaded(10, {"x": 10})
    told = capsys.readouterr().err
    assert told.count("trying the one before") == 2
    flip(folder / "step-000000010@local@0.0" / "shard-00000.bin", -1)
    flip(folder / "step-000000009@local@0.0" / MANIFEST, 30)
    with by_hand(folder) as checkpoints, pytest.raises(CheckpointDamaged, match="step-000000999"):
        checkpoints.load()


def test_by_hand_what_may_be_good_is_not_passed_over(tmp_path: Path) -> None:
    """The steps after the older one would be lost for nothing, and one rank alone might go back."""
    with by_hand(tmp_path) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"x": step})
    shard = tmp_path / "step-000000002@local@0.0" / SHARD
    shard.rename(tmp_path / "hidden")
    with by_hand(tmp_path) as checkpoints, pytest.raises(CannotLoad, match="step-000000002"):
        checkpoints.load()
    (tmp_path / "hidden").rename(shard)
    assert by_hand(tmp_path).load() == Loaded(2, {"x": 2})


def test_by_hand_an_older_training_in_the_folder_is_not_taken_for_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with by_hand(tmp_path) as checkpoints:
        checkpoints.save(5, {"of": "old"})
    with by_hand(tmp_path) as checkpoints:
        checkpoints.save(5, {"of": "new"})
    assert "step-000000005@local@0.0 stands from an earlier process: move it away" in capsys.readouterr().err
    with by_hand(tmp_path) as checkpoints:
        assert checkpoints.load() == Loaded(5, {"of": "old"})
        checkpoints.save(5, {"of": "old"})  # as a training that was at its end does
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("whole", [True, False])
def test_ranks_that_torchrun_started_again_come_by_their_checkpoints(site: Site, whole: bool) -> None:
    with site.open() as checkpoints:
        checkpoints.save(5, {})
    if not whole:
        (site.path(5) / SHARD).write_bytes(b"")
    with site.open(env={"TORCHELASTIC_RESTART_COUNT": "1"}) as checkpoints:
        site.ask("first")
        checkpoints.due(5)
        checkpoints.save(5, {}, wait=True)
    assert site.saves()[1]["state"] == ("committed" if whole else "failed")


def test_by_hand_steps_count_as_numbers_and_so_do_attempts(tmp_path: Path) -> None:
    for step, attempt in ((999_999_999, "11.0"), (1_000_000_000, "9.0"), (1_000_000_000, "10.0")):
        with by_hand(tmp_path, env={"FLEETCTL_RUN_ID": "r", "FLEETCTL_ATTEMPT": attempt}) as checkpoints:
            checkpoints.save(step, {"by": attempt})
    assert by_hand(tmp_path).load() == Loaded(1_000_000_000, {"by": "10.0"})


def test_by_hand_all_ranks_choose_the_same(tmp_path: Path) -> None:
    def open_one(rank: int) -> Checkpointer:
        return by_hand(tmp_path, shards=2, env={"RANK": str(rank), "WORLD_SIZE": "2"})

    with open_one(1) as second, open_one(0) as first:
        for step in (1, 2):
            second.save(step, {"rank": 1}, wait=True)
            first.save(step, {"rank": 0}, wait=True)
    flip(tmp_path / "step-000000002@local@0.0" / "shard-00001.bin", -1)
    assert [open_one(rank).load() for rank in range(2)] == [Loaded(1, {"rank": 0}), Loaded(1, {"rank": 1})]


def test_without_a_checkpoint_section_a_run_loads_only_its_own(tmp_path: Path) -> None:
    with by_hand(tmp_path, env={"FLEETCTL_RUN_ID": "other"}) as checkpoints:
        checkpoints.save(5, {})
    with by_hand(tmp_path, env={"FLEETCTL_RUN_ID": "mine"}) as checkpoints:
        assert checkpoints.load() is None
        checkpoints.save(4, {}, wait=True)
        assert checkpoints.load() == Loaded(4, {})


def test_only_the_training_process_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = by_hand(tmp_path)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="forked"):
        checkpoints.save(1, {})


@pytest.mark.parametrize("error", [ZeroDivisionError("ours"), ValueError("too many shards"), RuntimeError("x")])
def test_a_fault_in_the_background_is_a_failed_save(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def wrong(*_: object, **__: object) -> None:
        raise error

    with site.open() as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr("fleetctl.train.commit.encode_manifest", wrong)
            checkpoints.save(1, {}, wait=True)
        assert site.left() == []
        checkpoints.save(2, {}, wait=True)
    assert [(line["state"], line["why"]) for line in site.saves()] == [("failed", str(error)), ("committed", None)]


def no_more_threads(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_without_a_thread_the_save_fails_and_the_training_goes_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with site.open() as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_more_threads)
            checkpoints.save(1, {"x": numpy.zeros(3)})
        checkpoints.save(2, {"x": numpy.ones(3)})
    assert [(line["state"], line["why"]) for line in site.saves()] == [
        ("failed", "can't start new thread"),
        ("committed", None),
    ]
    assert site.load(2).state["x"].tolist() == [1, 1, 1]


def test_without_a_second_thread_the_digest_is_computed_all_the_same(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def one_at_most(thread: threading.Thread) -> None:
        if thread.name == "fleetctl-digest":
            no_more_threads()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", one_at_most)
    with site.open() as checkpoints:
        checkpoints.save(1, {"x": numpy.ones(1 << 18)})
    assert site.load(1).state["x"].sum() == 1 << 18
