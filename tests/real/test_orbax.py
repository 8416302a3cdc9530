"""What Orbax writes is valid, what dies while it writes is not, and what we call broken is not restored by it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.checkpoint.survey import survey
from tests.formats.damage import Damage, cut, flip, put, remove, zeros
from tests.real.conftest import MakeReal

VALID, INCOMPLETE, CORRUPT = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT
SCRIPT = "make_orbax.py"


def check(folder: Path, level: Level) -> Checked:
    return examine(LocalStorage(), folder.parent, Entry(folder.name, 0), level)


def steps(folder: Path) -> dict[str, int]:
    return {entry.name: entry.training_step for entry in survey(LocalStorage(), folder, "auto").entries}


@pytest.fixture(scope="module")
def managed(make_real: MakeReal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("orbax") / "managed"
    make_real(SCRIPT, "managed", folder)
    return folder


def assert_valid(folder: Path) -> None:
    for level in Level:
        found = check(folder, level)
        assert (found.format, found.validity, found.reason) == ("orbax", VALID, found.reason)
        assert (found.level, found.resumable, found.uncommitted) == (min(level, Level.STRUCTURE), True, False)
    assert found.deepest is Level.STRUCTURE
    assert found.saved_at is not None
    assert found.size_bytes == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_what_a_manager_writes_is_valid(managed: Path) -> None:
    assert steps(managed) == {"10": 10, "20": 20, "30": 30}
    for step in ("10", "20", "30"):
        assert_valid(managed / step)


def test_every_layout_of_arrays_is_valid_and_its_damage_found(make_real: MakeReal, tmp_path: Path) -> None:
    make_real(SCRIPT, "kinds", tmp_path)
    assert steps(tmp_path) == {
        "standard_1": 1, "ocdbt_2": 2, "zarr_3": 3, "zarr3_4": 4, "zarr3_5": 5, "ckpt_00000006": 6
    }  # fmt: skip
    for name in steps(tmp_path):
        assert_valid(tmp_path / name)
    for chunk in ("zarr_3/params.w1/2.0", "zarr3_5/params.w1/c/2/0"):
        (tmp_path / chunk).unlink()
        found = check(tmp_path / chunk.partition("/")[0], Level.STRUCTURE)
        assert (found.validity, found.reason) == (INCOMPLETE, f"{chunk.partition('/')[2]} is missing")
    for name in ("standard_1", "ocdbt_2", "zarr3_4"):
        largest = max((tmp_path / name).glob("ocdbt.process_0/d/*"), key=lambda path: path.stat().st_size)
        cut(largest.name, lambda size: size - 1200)(largest.parent)
        assert check(tmp_path / name, Level.STRUCTURE).validity is CORRUPT


@pytest.mark.parametrize("where", ["killed-merge", "killed-rename", "killed-commit"])
def test_a_save_whose_process_died_is_incomplete_and_the_one_before_valid(
    where: str, make_real: MakeReal, tmp_path: Path
) -> None:
    make_real(SCRIPT, where, tmp_path)
    name = "20" if where == "killed-commit" else "20.orbax-checkpoint-tmp"
    assert steps(tmp_path) == {"10": 10, name: 20}
    assert_valid(tmp_path / "10")
    for level in Level:
        assert check(tmp_path / name, level).validity is INCOMPLETE
    assert check(tmp_path / name, Level.STRUCTURE).uncommitted


DATA = "state/ocdbt.process_0/d/*"
# damage of the largest file that the pattern names -> what STRUCTURE says; what Orbax says
DAMAGES: dict[str, tuple[str, Damage, Validity, bool]] = {
    "whole": ("state/_METADATA", lambda folder: None, VALID, True),
    "values cut": (DATA, cut("it", lambda size: size - 1500), CORRUPT, False),
    "values of 0 bytes": (DATA, cut("it", lambda size: 0), CORRUPT, False),
    "values gone": (DATA, remove("it"), INCOMPLETE, False),
    "root cut": ("state/d/*", cut("it", lambda size: size - 1), CORRUPT, False),
    "root gone": ("state/d/*", remove("it"), INCOMPLETE, False),
    "bit of the root": ("state/d/*", flip("it", lambda size: size // 2), CORRUPT, False),
    "manifest cut": ("state/manifest.ocdbt", cut("it", lambda size: size - 1), CORRUPT, False),
    "manifest of 0 bytes": ("state/manifest.ocdbt", cut("it", lambda size: 0), CORRUPT, False),
    "bit of the manifest": ("state/manifest.ocdbt", flip("it", lambda size: 40), CORRUPT, False),
    "manifest gone": ("state/manifest.ocdbt", remove("it"), INCOMPLETE, False),
    "tree cut": ("state/_METADATA", cut("it", lambda size: size // 2), CORRUPT, False),
    "tree gone": ("state/_METADATA", remove("it"), INCOMPLETE, False),
    "JSON cut": ("data/metadata", put("it", b"{"), CORRUPT, False),
    "hole in the values": (DATA, zeros("it", lambda size: 0, lambda size: 2000), VALID, False),
}


def test_what_is_called_broken_is_not_restored(managed: Path, make_real: MakeReal, tmp_path: Path) -> None:
    for name, (pattern, damage, _, _) in DAMAGES.items():
        folder = tmp_path / name / "30"
        shutil.copytree(managed / "30", folder)
        path = max(folder.glob(pattern), key=lambda path: path.stat().st_size)
        path.rename(path.parent / "it")
        damage(path.parent)
        if (path.parent / "it").exists():
            (path.parent / "it").rename(path)
    said = json.loads(make_real(SCRIPT, "restore", *(tmp_path / name for name in DAMAGES)).splitlines()[-1])
    ours = {name: check(tmp_path / name / "30", Level.STRUCTURE).validity for name in DAMAGES}
    theirs = {name: said[str(tmp_path / name)] == "" for name in DAMAGES}
    assert ours == {name: row[2] for name, row in DAMAGES.items()}
    assert theirs == {name: row[3] for name, row in DAMAGES.items()}
