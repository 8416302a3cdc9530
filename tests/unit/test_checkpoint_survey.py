"""What may be a checkpoint by its name, what is one by its content, and that what cannot be read is not nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fleetctl.checkpoint import known
from fleetctl.checkpoint.here import Here
from fleetctl.checkpoint.model import Entry
from fleetctl.checkpoint.storage import Found, Kind, LocalStorage
from fleetctl.checkpoint.survey import single, survey, survey_names
from tests.checkpoints import write_checkpoint, write_staged
from tests.formats.huggingface import write_trainer
from tests.formats.torch import torch_bytes

LOCAL = LocalStorage()


class Blind(LocalStorage):
    """Nothing in the folder can be looked at, only listed."""

    def look(self, directory: Path, *inside: str) -> Found | None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_our_own_folders_are_no_checkpoints_and_ours_have_their_run(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 120, attempt="3.1")
    write_staged(tmp_path, 130)
    (tmp_path / "notes.txt").touch()
    found = survey(LOCAL, tmp_path, "auto")
    assert found.entries == (Entry(folder.name, 120, "run-a", (3, 1)),)
    assert found.foreign == ("notes.txt",)
    assert survey(LOCAL, tmp_path / "missing", "auto").entries == ()


def test_a_name_that_is_listed_twice_is_one(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 120)
    found = survey_names([folder.name, "x", folder.name, "x"], "auto")
    assert (len(found.entries), found.foreign) == (1, ("x",))


@pytest.mark.parametrize("form", [one.name for one in known.FORMATS] + ["auto"])
def test_only_the_wanted_format_counts(form: str, tmp_path: Path) -> None:
    own = write_checkpoint(tmp_path, 120).name
    (tmp_path / "checkpoint-500").mkdir()
    found = {entry.name for entry in survey_names([own, "checkpoint-500"], form).entries}
    assert (own in found) == (form in ("own", "auto"))
    if form in ("own", "huggingface", "auto"):
        assert ("checkpoint-500" in found) == (form != "own")


def test_what_is_called_a_checkpoint_and_cannot_be_read_may_be_one(tmp_path: Path) -> None:
    """Else a start would take it for nothing, and begin anew."""
    for name in ("model-7.pt", "last.ckpt", "lost+found", "log.txt"):
        (tmp_path / name).touch()
    found = survey(Blind(), tmp_path, "auto")
    assert set(found.entries) == {Entry("model-7.pt", 7), Entry("last.ckpt", 0)}
    assert set(found.foreign) == {"lost+found", "log.txt"}
    assert survey(Blind(), tmp_path, "own").entries == ()


def test_weights_put_there_to_begin_with_are_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "pretrained.pt").write_bytes(torch_bytes({"model": {}}))
    (tmp_path / "model.pt").write_bytes(torch_bytes({"model": {}, "step": 120}))
    (tmp_path / "torn.pt").write_bytes(torch_bytes()[:200])
    found = survey(LOCAL, tmp_path, "auto")
    assert set(found.entries) == {Entry("model.pt", 120), Entry("torn.pt", 0)}
    assert found.foreign == ("pretrained.pt",)


@pytest.mark.parametrize("name", ["resnet50.pt", "vgg16.pth", "vit_b_16.pth", "llama-3-8b.pt", "run3.ckpt"])
def test_a_number_in_the_name_of_weights_is_no_step(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(torch_bytes({"weight": 1}))
    assert survey(LOCAL, tmp_path, "auto").foreign == (name,)
    (tmp_path / name).write_bytes(torch_bytes({"weight": 1, "step": 120}))
    assert survey(LOCAL, tmp_path, "auto").entries == (Entry(name, 120),)
    (tmp_path / name).write_bytes(torch_bytes({"weight": 1})[:100])
    (torn,) = survey(LOCAL, tmp_path, "auto").entries
    assert torn.name == name, "what is torn may have been a checkpoint"


@pytest.mark.parametrize(
    "name", ["ckpt_500.pt", "step-500.pth", "checkpoint-500.pt", "model_step500.pt", "epoch_500.pt"]
)
def test_a_name_of_a_checkpoint_needs_no_step_inside(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(torch_bytes({"weight": 1}))
    assert survey(LOCAL, tmp_path, "auto").entries == (Entry(name, 500),)


def test_one_checkpoint_is_one_and_a_folder_of_them_is_not(tmp_path: Path) -> None:
    own = write_checkpoint(tmp_path, 120)
    trainer = write_trainer(tmp_path / "out", 500)
    (tmp_path / "out" / "sub").mkdir()
    assert single(LOCAL, own, Kind.FOLDER) == Entry(own.name, 120, "run-a", (1, 0))
    assert single(LOCAL, trainer, Kind.FOLDER) == Entry(trainer.name, 500)
    for folder in (tmp_path, tmp_path / "out", tmp_path / "out" / "sub", Path("/")):
        assert single(LOCAL, folder, Kind.FOLDER) is None


def test_any_file_is_taken_for_what_was_meant(tmp_path: Path) -> None:
    (tmp_path / "epoch-3").write_bytes(b"what nobody knows")
    assert single(LOCAL, tmp_path / "epoch-3", Kind.FILE) == Entry("epoch-3", 3)
    assert single(Blind(), tmp_path / "epoch-3", Kind.FILE) == Entry("epoch-3", 3)


def test_what_a_path_is(tmp_path: Path) -> None:
    with Here() as eyes:
        (tmp_path / "file").touch()
        (tmp_path / "link").symlink_to("file")
        os.mkfifo(tmp_path / "fifo")
        assert [eyes.kind(tmp_path / name) for name in ("", "file", "link", "fifo", "none", "file/x")] == [
            Kind.FOLDER,
            Kind.FILE,
            Kind.FILE,
            Kind.OTHER,
            None,
            None,
        ]
