"""What Lightning writes is valid and it resumes from that; what dies while it is written is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.model import Checked, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.checkpoint.survey import survey
from tests.formats.damage import cut, flip, remove, zeros
from tests.real.conftest import MakeReal

VALID, INCOMPLETE, CORRUPT = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT
SCRIPT = "make_lightning.py"
STEP_4 = "epoch=0-step=4.ckpt"


def check(path: Path, level: Level) -> Checked:
    (entry,) = (entry for entry in survey(LocalStorage(), path.parent, "auto").entries if entry.name == path.name)
    return examine(LocalStorage(), path.parent, entry, level)


def steps(folder: Path) -> dict[str, int]:
    return {entry.name: entry.training_step for entry in survey(LocalStorage(), folder, "auto").entries}


def said(printed: str) -> dict[str, object]:
    return dict(json.loads(next(line for line in printed.splitlines() if line.startswith("{"))))


def assert_valid(path: Path, *, resumable: bool = True, deepest: Level = Level.CONTENT) -> None:
    for level in Level:
        found = check(path, level)
        assert (found.format, found.validity, found.level) == ("lightning", VALID, min(level, deepest)), found.reason
    assert (found.resumable, found.uncommitted, found.deepest) == (resumable, False, deepest)


@pytest.fixture(scope="module")
def files(make_real: MakeReal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lightning")
    make_real(SCRIPT, "files", folder)
    return folder


def test_what_model_checkpoint_writes_is_valid(files: Path) -> None:
    """A value that the training logs as "step" stands in the names; `last.ckpt` may be a link, which is none."""
    one_by_one = {f"epoch=0-step={step}.ckpt": step for step in (2, 4, 6)}
    assert steps(files / "plain") == {**one_by_one, "last.ckpt": 6}
    assert steps(files / "logged") == {"epoch=0-step=10.ckpt": 10, "epoch=0-step=30.ckpt": 30}
    assert steps(files / "linked") == {
        "epoch=0-step=2.ckpt": 2, "hpc_ckpt_1.ckpt": 3, "hpc_ckpt_2.ckpt": 3, "no-crc.ckpt": 3
    }  # fmt: skip
    for path in sorted(files.glob("*/*.ckpt")):
        if path.name == "no-crc.ckpt":
            assert_valid(path, deepest=Level.STRUCTURE)
        elif not path.is_symlink():
            assert_valid(path, resumable=path.parent.name != "weights")


def test_lightning_resumes_from_what_is_valid_and_from_nothing_else(
    files: Path, make_real: MakeReal, tmp_path: Path
) -> None:
    for name in ("whole", "short", "half", "zeros", "bit", "pickle"):
        (tmp_path / name).mkdir()
        shutil.copy(files / "plain" / STEP_4, tmp_path / name)
    cut(STEP_4, lambda size: size - 1)(tmp_path / "short")
    cut(STEP_4, lambda size: size // 2)(tmp_path / "half")
    zeros(STEP_4, lambda size: size - 2000, lambda _: 2000)(tmp_path / "zeros")
    flip(STEP_4, lambda size: size // 2)(tmp_path / "bit")
    zeros(STEP_4, lambda _: 300, lambda _: 1000)(tmp_path / "pickle")
    (tmp_path / "weights").mkdir()
    shutil.copy(files / "weights" / "epoch=0-step=2.ckpt", tmp_path / "weights" / STEP_4)
    damaged = sorted(tmp_path.glob(f"*/{STEP_4}"))
    printed = said(make_real(SCRIPT, "resume", tmp_path / "more", *damaged))
    resumed = {path.parent.name: printed[str(path)] == 8 for path in damaged}
    ours = {path.parent.name: [check(path, level).validity for level in Level] for path in damaged}
    bad = [VALID, CORRUPT, CORRUPT]
    assert ours == {
        "whole": [VALID] * 3, "short": bad, "half": bad, "zeros": bad, "pickle": bad,
        "bit": [VALID, VALID, CORRUPT],
        "weights": bad,  # under the name of another step
    }  # fmt: skip
    assert resumed == {
        "whole": True, "short": False, "half": False, "zeros": False, "pickle": False,
        "bit": True,  # it reads what it gets
        "weights": False,
    }  # fmt: skip


def test_a_process_that_dies_while_the_file_is_moved_leaves_half_of_it(make_real: MakeReal, tmp_path: Path) -> None:
    make_real(SCRIPT, "killed", tmp_path)
    assert_valid(tmp_path / "epoch=0-step=2.ckpt")
    assert check(tmp_path / STEP_4, Level.NAMES).validity is VALID
    found = check(tmp_path / STEP_4, Level.STRUCTURE)
    assert (found.format, found.validity) == ("lightning", CORRUPT)


def test_shards_of_two_processes(make_real: MakeReal, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    make_real(SCRIPT, "sharded", folder)
    assert steps(folder) == {"epoch=0-step=2.ckpt": 2, STEP_4: 4, "last.ckpt": 4}
    for name in steps(folder):
        assert (folder / name / "meta.pt").exists()
        assert_valid(folder / name)
    assert said(make_real(SCRIPT, "sharded", tmp_path / "more", folder / STEP_4)) == {str(folder / STEP_4): 6}
    torn = {
        "meta": (remove("meta.pt"), [INCOMPLETE] * 3),
        "metadata": (remove(".metadata"), [INCOMPLETE] * 3),
        "shard": (remove("__1_0.distcp"), [VALID, INCOMPLETE, INCOMPLETE]),
        "cut": (cut("__1_0.distcp", lambda size: size - 1), [VALID, CORRUPT, CORRUPT]),
        "bit": (flip("__1_0.distcp", lambda size: size // 2), [VALID, VALID, CORRUPT]),
        "meta cut": (cut("meta.pt", lambda size: size // 2), [VALID, CORRUPT, CORRUPT]),
    }
    for name, (damage, expected) in torn.items():
        copy = tmp_path / name / STEP_4
        shutil.copytree(folder / STEP_4, copy)
        damage(copy)
        assert [check(copy, level).validity for level in Level] == expected, name
