"""What lay in a folder before a run that must not start from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetctl.checkpoint import aside
from fleetctl.checkpoint.aside import set_aside, unchanged
from fleetctl.checkpoint.storage import Found, LocalStorage
from fleetctl.checkpoint.survey import survey
from fleetctl.errors import CannotTell
from tests.checkpoints import write_checkpoint

OLD_S = 1_700_000_000.25


def old(directory: Path, name: str, *files: str) -> Path:
    """A folder, or a file without `files`, last written a while ago."""
    path = directory / name
    if files:
        path.mkdir()
    for file in files:
        (path / file).write_text("x")
        os.utime(path / file, (OLD_S, OLD_S))
    if not files:
        path.write_text("x")
    os.utime(path, (OLD_S, OLD_S))
    return path


def marks(directory: Path) -> dict[str, float]:
    return set_aside(LocalStorage(), directory, survey(LocalStorage(), directory, "auto"))


def test_all_that_may_be_a_checkpoint_is_set_aside_and_nothing_else(tmp_path: Path) -> None:
    old(tmp_path, "checkpoint-500", "trainer_state.json")
    old(tmp_path, "whatever", "a")
    old(tmp_path, "last.ckpt")
    old(tmp_path, "notes.txt")
    write_checkpoint(tmp_path, 10)
    (tmp_path / "link").symlink_to("whatever")
    assert marks(tmp_path) == dict.fromkeys(("checkpoint-500", "whatever", "last.ckpt"), OLD_S)


def write_over(path: Path) -> None:
    (path / "trainer_state.json").write_text("y")


def write_beside(path: Path) -> None:
    (path / "new").write_text("y")


def remove_one(path: Path) -> None:
    (path / "model.safetensors").unlink()


def make_anew(path: Path) -> None:
    path.rename(path.with_name("away"))
    path.mkdir()


def restore_older(path: Path) -> None:
    os.utime(path / "trainer_state.json", (OLD_S - 9, OLD_S - 9))
    os.utime(path / "model.safetensors", (OLD_S - 9, OLD_S - 9))
    os.utime(path, (OLD_S - 9, OLD_S - 9))


@pytest.mark.parametrize("write", [write_over, write_beside, remove_one, make_anew, restore_older])
def test_what_somebody_has_written_to_is_not_aside_any_more(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = old(tmp_path, "checkpoint-500", "model.safetensors", "trainer_state.json")
    old(tmp_path, "checkpoint-400", "trainer_state.json")
    found = marks(tmp_path)
    assert unchanged(LocalStorage(), tmp_path, found) == {"checkpoint-400", "checkpoint-500"}
    (path / "trainer_state.json").read_text()
    assert unchanged(LocalStorage(), tmp_path, found) == {"checkpoint-400", "checkpoint-500"}, "read is not written"
    write(path)
    assert unchanged(LocalStorage(), tmp_path, found) == {"checkpoint-400"}


def test_one_that_is_gone_is_still_the_old_one_when_it_comes_back(tmp_path: Path) -> None:
    old(tmp_path, "last.ckpt")
    found = marks(tmp_path)
    (tmp_path / "last.ckpt").rename(tmp_path / "elsewhere.ckpt")
    assert "last.ckpt" in unchanged(LocalStorage(), tmp_path, found)
    (tmp_path / "elsewhere.ckpt").rename(tmp_path / "last.ckpt")
    assert "last.ckpt" in unchanged(LocalStorage(), tmp_path, found)
    (tmp_path / "last.ckpt").write_text("new")
    assert "last.ckpt" not in unchanged(LocalStorage(), tmp_path, found)


class Failing(LocalStorage):
    def look(self, directory: Path, *inside: str) -> Found | None:
        raise OSError(5, "Input/output error")


def test_what_cannot_be_looked_at_is_neither_old_nor_new(tmp_path: Path) -> None:
    old(tmp_path, "last.ckpt")
    with pytest.raises(CannotTell, match=r"last\.ckpt.*Input/output error"):
        unchanged(Failing(), tmp_path, {"last.ckpt": OLD_S})


def test_too_much_to_set_aside_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "_MOST_NAMES", 3)
    for number in range(3):
        old(tmp_path, f"checkpoint-{number}", "a")
        old(tmp_path, f"picture-{number}.png")
    assert len(marks(tmp_path)) == 3
    old(tmp_path, "whatever", "a")
    with pytest.raises(CannotTell, match="more than 3") as caught:
        marks(tmp_path)
    assert caught.value.remedy == "give the run a folder of its own"


def test_a_folder_of_very_many_files_costs_a_bounded_number_of_looks(tmp_path: Path) -> None:
    path = old(tmp_path, "1000", *(f"__{rank}_0.distcp" for rank in range(300)), ".metadata")
    found = marks(tmp_path)
    (path / ".metadata").write_text("new")
    assert unchanged(LocalStorage(), tmp_path, found) == frozenset(), "what DCP writes last is looked at"
