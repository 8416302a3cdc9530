"""What lay in a folder before a run that must not start from it."""

from __future__ import annotations

import os
import shutil
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


def marks(directory: Path) -> dict[str, dict[str, float]]:
    return set_aside(LocalStorage(), directory, survey(LocalStorage(), directory, "auto"))


def test_all_that_may_be_a_checkpoint_is_set_aside_and_nothing_else(tmp_path: Path) -> None:
    old(tmp_path, "checkpoint-500", "trainer_state.json")
    old(tmp_path, "whatever", "a")
    old(tmp_path, "last.ckpt")
    old(tmp_path, "notes.txt")
    write_checkpoint(tmp_path, 10)
    (tmp_path / "link").symlink_to("whatever")
    assert marks(tmp_path) == {
        "checkpoint-500": {"trainer_state.json": OLD_S},
        "whatever": {"a": OLD_S},
        "last.ckpt": {"": OLD_S},
    }


def write_over(path: Path) -> None:
    (path / "trainer_state.json").write_text("y")


def write_beside(path: Path) -> None:
    (path / "new").write_text("y")


def remove_one(path: Path) -> None:
    (path / "model.safetensors").unlink()


def remove_all(path: Path) -> None:
    for inner in path.iterdir():
        inner.unlink()


def make_anew(path: Path) -> None:
    remove_all(path)
    (path / "model-00001-of-00002.safetensors").write_text("y")


def make_a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("y")


def restore_older(path: Path) -> None:
    os.utime(path / "trainer_state.json", (OLD_S - 9, OLD_S - 9))
    os.utime(path / "model.safetensors", (OLD_S - 9, OLD_S - 9))
    os.utime(path, (OLD_S - 9, OLD_S - 9))


@pytest.mark.parametrize(
    ("do", "is_written"),
    [
        (write_over, True),
        (make_anew, True),
        (make_a_file, True),
        (write_beside, False),
        (remove_one, False),
        (remove_all, False),
        (restore_older, False),
    ],
)
def test_only_what_was_written_over_is_not_aside_any_more(
    tmp_path: Path, do: Callable[[Path], None], is_written: bool
) -> None:
    path = old(tmp_path, "checkpoint-500", "model.safetensors", "trainer_state.json")
    old(tmp_path, "checkpoint-400", "trainer_state.json")
    found = marks(tmp_path)
    assert unchanged(LocalStorage(), tmp_path, found) == {"checkpoint-400", "checkpoint-500"}
    (path / "trainer_state.json").read_text()
    assert unchanged(LocalStorage(), tmp_path, found) == {"checkpoint-400", "checkpoint-500"}, "read is not written"
    do(path)
    assert ("checkpoint-500" not in unchanged(LocalStorage(), tmp_path, found)) is is_written
    assert "checkpoint-400" in unchanged(LocalStorage(), tmp_path, found)


def test_a_file_that_becomes_a_folder_is_written(tmp_path: Path) -> None:
    path = old(tmp_path, "last.ckpt")
    found = marks(tmp_path)
    path.unlink()
    path.mkdir()
    assert unchanged(LocalStorage(), tmp_path, found) == frozenset()


def test_an_empty_folder_counts_once_something_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-500").mkdir()
    found = marks(tmp_path)
    assert found == {"checkpoint-500": {}}
    assert unchanged(LocalStorage(), tmp_path, found) == {"checkpoint-500"}
    (tmp_path / "checkpoint-500" / "a").touch()
    assert unchanged(LocalStorage(), tmp_path, found) == frozenset()


def test_files_of_ranks_in_folders_of_their_own_count(tmp_path: Path) -> None:
    """As in Megatron-LM's legacy layout: nothing but folders lies directly in it."""
    (tmp_path / "iter_0000500").mkdir()
    path = old(tmp_path / "iter_0000500", "mp_rank_00", "model_optim_rng.pt")
    found = marks(tmp_path)
    assert found == {"iter_0000500": {"mp_rank_00/model_optim_rng.pt": OLD_S}}
    assert unchanged(LocalStorage(), tmp_path, found) == {"iter_0000500"}
    (path / "model_optim_rng.pt").write_text("y")
    assert unchanged(LocalStorage(), tmp_path, found) == frozenset()


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
        unchanged(Failing(), tmp_path, {"last.ckpt": {"": OLD_S}})


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


def test_of_a_folder_of_very_many_files_the_newest_few_are_remembered(tmp_path: Path) -> None:
    path = old(tmp_path, "1000", *(f"__{rank}_0.distcp" for rank in range(300)), ".metadata")
    found = marks(tmp_path)
    assert len(found["1000"]) == 8
    (path / ".metadata").write_text("new")
    assert unchanged(LocalStorage(), tmp_path, found) == frozenset(), "what DCP writes last is looked at"
