"""Folders that torch.distributed.checkpoint itself saves, whole and damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.formats import dcp
from fleetctl.checkpoint.look import Ledger, Look
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from tests.formats.damage import Damage, cut, flip, remove, zeros
from tests.real.conftest import MakeReal

VALID, INCOMPLETE, CORRUPT = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT


@pytest.fixture(scope="module")
def one(make_real: MakeReal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved by one process."""
    folder = tmp_path_factory.mktemp("dcp") / "ckpt_500"
    make_real("make_dcp.py", "one", folder)
    return folder


@pytest.fixture(scope="module")
def four(make_real: MakeReal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved by four ranks that share a model with FSDP."""
    folder = tmp_path_factory.mktemp("dcp") / "ckpt_500"
    make_real("make_dcp.py", "ranks", folder, "4")
    return folder


def check(folder: Path, level: Level) -> Checked:
    return examine(LocalStorage(), folder.parent, Entry(folder.name, 500), level)


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("ranks", ["one", "four"])
def test_a_whole_one_is_valid(ranks: str, level: Level, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(ranks)
    found = check(folder, level)
    assert (found.validity, found.level, found.reason, found.format) == (VALID, level, "", "torch_dcp")
    assert len(list(folder.glob("*.distcp"))) == (1 if ranks == "one" else 4)


def test_the_step_is_read_from_inside(four: Path) -> None:
    assert dcp.peek(Look(LocalStorage(), four.parent, (four.name,), Ledger(lambda _: None))) == 500


@pytest.mark.parametrize("kind", ["uncoordinated", "unproved"])
def test_other_ways_to_save(kind: str, make_real: MakeReal, tmp_path: Path) -> None:
    make_real("make_dcp.py", kind, tmp_path / "ckpt_500")
    found = check(tmp_path / "ckpt_500", Level.CONTENT)
    assert found.validity is VALID
    assert found.level is (Level.CONTENT if kind == "uncoordinated" else Level.STRUCTURE)
    assert found.ranks == (1 if kind == "uncoordinated" else None)


def in_a_tensor(damage: Callable[[str, Callable[[int], int]], Damage]) -> Damage:
    """To the middle of the largest one that the last rank has."""

    def damaging(folder: Path) -> None:
        facts = dcp.check_dcp(
            Look(LocalStorage(), folder.parent, (folder.name,), Ledger(lambda _: None)), Level.STRUCTURE
        )
        largest = max((unit for unit in facts.content() if unit.file == (LAST,)), key=lambda unit: unit.size_bytes)
        damage(LAST, lambda _: largest.offset + largest.size_bytes // 2)(folder)

    return damaging


def whole_shards_of_zeros(folder: Path) -> None:
    for path in folder.glob("*.distcp"):
        zeros(path.name, lambda n: 0, lambda n: n)(folder)


META, FIRST, LAST = ".metadata", "__0_0.distcp", "__3_0.distcp"
# damage -> what STRUCTURE and CONTENT say; does torch itself see it
DAMAGES: dict[str, tuple[Damage, Validity, Validity, bool]] = {
    "nothing": (lambda folder: None, VALID, VALID, False),
    "no metadata": (remove(META), INCOMPLETE, INCOMPLETE, True),
    "metadata short of 1": (cut(META, lambda n: n - 1), CORRUPT, CORRUPT, True),
    "no shard": (remove(LAST), INCOMPLETE, INCOMPLETE, True),
    "shard cut to half": (cut(LAST, lambda n: n // 2), CORRUPT, CORRUPT, True),
    "shard of nothing": (cut(FIRST, lambda n: 0), CORRUPT, CORRUPT, True),
    "shards of zeros": (whole_shards_of_zeros, CORRUPT, CORRUPT, True),
    "bit of a tensor": (in_a_tensor(flip), VALID, CORRUPT, False),
    "hole in a tensor": (in_a_tensor(lambda name, at: zeros(name, at, lambda _: 999)), VALID, CORRUPT, False),
}


@pytest.fixture(scope="module")
def damaged(four: Path, make_real: MakeReal, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """One for each damage, and what torch says when it loads it."""
    folders = [tmp_path_factory.mktemp("damaged") / four.name for _ in DAMAGES]
    for folder, (damaging, *_) in zip(folders, DAMAGES.values(), strict=True):
        shutil.copytree(four, folder)
        damaging(folder)
    said = make_real("make_dcp.py", "load", *folders).splitlines()
    return dict(zip(DAMAGES, zip(folders, said, strict=True), strict=True))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage(damage: str, damaged: dict[str, tuple[Path, str]]) -> None:
    """What torch loads silently, CONTENT finds; what torch cannot load, STRUCTURE finds."""
    (folder, said), (_, structure, content, seen) = damaged[damage], DAMAGES[damage]
    assert check(folder, Level.STRUCTURE).validity is structure
    assert check(folder, Level.CONTENT).validity is content
    assert (said != "loaded 500") == seen, said


def test_a_save_that_died_in_the_folder_of_another(one: Path, make_real: MakeReal, tmp_path: Path) -> None:
    """Old metadata, new shards of the same sizes: torch loads a mix of both, and only the times tell."""
    folder = tmp_path / one.name
    shutil.copytree(one, folder)
    for path in folder.iterdir():
        os.utime(path, (path.stat().st_mtime - 600,) * 2)
    assert check(folder, Level.CONTENT).validity is VALID
    assert make_real("make_dcp.py", "again", folder) == "CheckpointException\n"
    assert {path.name: path.stat().st_size for path in folder.iterdir()} == {
        path.name: path.stat().st_size for path in one.iterdir()
    }
    assert make_real("make_dcp.py", "load", folder) == "loaded 500\n"
    found = check(folder, Level.STRUCTURE)
    assert found.validity is Validity.UNKNOWN
    assert "a later save into this folder died" in found.reason


def test_shards_of_safetensors_are_not_judged(make_real: MakeReal, tmp_path: Path) -> None:
    make_real("make_dcp.py", "safetensors", tmp_path / "ckpt_500")
    assert check(tmp_path / "ckpt_500", Level.NAMES).validity is VALID
    found = check(tmp_path / "ckpt_500", Level.CONTENT)
    assert found.validity is Validity.UNKNOWN
    assert "safetensors" in found.reason


def test_metadata_that_lacks_a_slice(make_real: MakeReal, tmp_path: Path) -> None:
    """As a save with a wrong cached plan leaves it (Megatron-LM#4378): torch cannot load it."""
    assert make_real("make_dcp.py", "lacking", tmp_path / "ckpt_500") != "loaded 500\n"
    found = check(tmp_path / "ckpt_500", Level.STRUCTURE)
    assert found.validity is INCOMPLETE
    assert "has no data" in found.reason
