"""The signs of life of a rank: what they say, what they cost, and that they never fail a training."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from fleetctl.train.beats import FIRST_STEP, SAVE, START, Beats
from fleetctl.train.checkpointer import Checkpointer
from fleetctl.train.progress import Progress


def said(folder: Path, rank: int = 0) -> tuple[str, str]:
    """Phase and step of the newest beat."""
    words = (folder / f"rank-{rank}").read_text().split()
    assert words[:2] == ["fleetctl-beat", "1"]
    assert words[2] == words[7]
    return words[5], words[6]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "beats"


def env(folder: Path, **more: str) -> dict[str, str]:
    return {"FLEETCTL_BEATS": str(folder), **more}


def test_every_rank_beats_and_rank_0_alone_writes_progress(folder: Path, tmp_path: Path) -> None:
    for rank in (0, 3):
        environ = env(folder, RANK=str(rank), WORLD_SIZE="4", FLEETCTL_PROGRESS_FILE=str(tmp_path / f"{rank}.json"))
        progress = Progress(environ=environ)
        assert said(folder, rank) == ("first_step", "-")
        progress.update(training_step=7)
        assert said(folder, rank) == ("step", "7")
    assert [path.name for path in tmp_path.glob("*.json")] == ["0.json"]
    assert (folder / "rank-3").read_text().split()[4] == "4"
    assert (folder.stat().st_mode & 0o777, (folder / "rank-0").stat().st_mode & 0o777) == (0o700, 0o600)


def test_each_beat_is_another_one_of_the_same_length(folder: Path) -> None:
    progress, seen = Progress(environ=env(folder)), set()
    for step in (1, 1, 10**18, 2):
        progress.update(training_step=step)
        text = (folder / "rank-0").read_text()
        assert (len(text), text.count("\n")) == (160, 1)
        seen.add(text)
    assert len(seen) == 4


def test_a_phase_ends_where_the_training_was(folder: Path) -> None:
    with Progress(environ=env(folder)) as progress:
        with progress.phase("load"):
            assert said(folder) == ("load", "-")
        assert said(folder) == ("first_step", "-")
        progress.update(training_step=1)
        with progress.phase("evaluation"):
            assert said(folder) == ("evaluation", "1")
            with pytest.raises(KeyError), progress.phase("save"):
                raise KeyError
            assert said(folder) == ("evaluation", "1")
            progress.update(training_step=2)
        assert said(folder) == ("step", "2")
        with progress.phase("whatever it is"):
            assert said(folder) == ("evaluation", "2")
    assert said(folder) == ("end", "2")


def test_the_checkpointer_tells_of_loads_and_saves_by_itself(folder: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    class State(dict[str, Any]):
        def items(self) -> Any:
            seen.append(said(folder))
            return super().items()

    environ = env(folder)
    progress = Progress(environ=environ)
    with Checkpointer(directory=str(tmp_path / "c"), environ=environ) as checkpoints:
        assert said(folder) == ("first_step", "-"), "its Progress has begun"
        assert checkpoints.load() is None
        assert said(folder) == ("first_step", "-")
        progress.update(training_step=5)
        checkpoints.save(5, State(x=1))
        assert said(folder) == ("step", "5")
    assert ("save", "5") in seen
    again = Checkpointer(directory=str(tmp_path / "c"), environ=environ)
    real = again._loader.newest

    def newest() -> Any:
        seen.append(said(folder))
        return real()

    again._loader.newest = newest  # type: ignore[method-assign]
    assert again.load() is not None
    assert (seen[-1], said(folder)) == (("load", "5"), ("first_step", "5"))


def test_a_forked_child_does_not_beat_for_its_parent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beats = Beats(env(folder), 0, START)
    before = (folder / "rank-0").read_bytes()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    beats.step(7)
    with beats.during(SAVE):
        beats.move(FIRST_STEP)
    assert (folder / "rank-0").read_bytes() == before


def test_the_words_of_an_earlier_process_are_not_ours(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "rank-0").write_text("fleetctl-beat 1 5 1 4 save 99 5".ljust(159) + "\n")
    Beats(env(folder), 0, START)
    assert said(folder) == ("start", "-")


@pytest.mark.parametrize("what", ["nowhere", "file", "link", "empty", "link in it", "full"])
def test_where_it_cannot_be_told_the_training_goes_on(
    folder: Path, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = env(folder)
    victim = tmp_path / "victim"
    victim.mkdir()
    if what == "nowhere":
        environ = env(tmp_path / "no" / "such")
    elif what == "file":
        folder.write_text("x")
    elif what == "link":
        folder.symlink_to(victim)
    elif what == "empty":
        environ = env(Path(""), FLEETCTL_BEATS="")
    elif what == "link in it":
        folder.mkdir()
        (folder / "rank-0").symlink_to(victim / "rank-0")
    else:
        monkeypatch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with Progress(environ=environ) as progress:
        progress.update(training_step=1)
        with progress.phase("evaluation"):
            progress.update(training_step=2)
    assert not list(victim.iterdir())


def test_another_users_folder_is_not_beaten_into(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    Beats(env(folder), 0, START)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("step", [None, "x", float("nan"), float("inf"), object()])
def test_a_step_that_is_none_is_not_told(folder: Path, step: Any) -> None:
    progress = Progress(environ=env(folder, RANK="1"))
    progress.update(training_step=step)
    assert said(folder, 1) == ("first_step", "-")


def test_a_beat_costs_less_than_twenty_microseconds(folder: Path) -> None:
    progress = Progress(rank=1, environ=env(folder))

    def once_s() -> float:
        began = time.perf_counter()
        for step in range(200):
            progress.update(training_step=step)
        return (time.perf_counter() - began) / 200

    assert min(once_s() for _ in range(20)) < 20e-6


def test_after_a_load_without_progress_nobody_knows_what_follows(folder: Path, tmp_path: Path) -> None:
    with Checkpointer(directory=str(tmp_path / "c"), environ=env(folder)) as checkpoints:
        assert said(folder) == ("start", "-")
        assert checkpoints.load() is None
        assert said(folder) == ("untold", "-")
        Progress(environ=env(folder))
        assert said(folder) == ("first_step", "-")


def test_who_clears_the_memory_under_a_training_silences_it_for_seconds_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 10**12
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    beats = Beats(env(folder), 0, FIRST_STEP)
    descriptors = len(os.listdir("/proc/self/fd"))
    (folder / "rank-0").unlink()
    folder.rmdir()
    beats.step(1)
    assert not folder.exists(), "it costs a call, so not at each beat"
    now_ns += 6 * 10**9
    beats.step(2)
    assert said(folder) == ("step", "2")
    assert len(os.listdir("/proc/self/fd")) == descriptors
