"""What torch writes in the layout of torchtitan, which is not installed, is valid: make_torchtitan.py says how."""

from __future__ import annotations

import shutil
from pathlib import Path

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.model import Checked, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.checkpoint.survey import survey
from tests.formats.damage import Damage, cut, flip, remove
from tests.real.conftest import MakeReal

VALID, INCOMPLETE, CORRUPT = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT
INDEX, SHARD = "model.safetensors.index.json", "model-00002-of-00002.safetensors"


def check(path: Path, level: Level) -> Checked:
    (entry,) = (entry for entry in survey(LocalStorage(), path.parent, "auto").entries if entry.name == path.name)
    return examine(LocalStorage(), path.parent, entry, level)


def assert_valid(path: Path, *, resumable: bool, deepest: Level) -> None:
    for level in Level:
        found = check(path, level)
        assert (found.format, found.validity, found.level) == ("torchtitan", VALID, min(level, deepest)), found.reason
    assert (found.resumable, found.uncommitted, found.deepest) == (resumable, False, deepest)


def test_the_layout_of_torchtitan(make_real: MakeReal, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    make_real("make_torchtitan.py", folder)
    found = survey(LocalStorage(), folder, "auto").entries
    assert {entry.name: entry.training_step for entry in found} == {f"step-{n}": n for n in range(10, 70, 10)}
    for step in (10, 20, 30):
        assert_valid(folder / f"step-{step}", resumable=True, deepest=Level.CONTENT)
    assert_valid(folder / "step-40", resumable=False, deepest=Level.CONTENT)
    assert_valid(folder / "step-50", resumable=False, deepest=Level.STRUCTURE)
    for level in Level:
        torn = check(folder / "step-60", level)
        assert (torn.validity, torn.uncommitted, torn.reason) == (INCOMPLETE, True, ".metadata is missing")
    rows: list[tuple[str, Damage, list[Validity]]] = [
        ("step-30", remove(".metadata"), [INCOMPLETE] * 3),
        ("step-30", remove("__1_0.distcp"), [VALID, INCOMPLETE, INCOMPLETE]),
        ("step-30", cut("__1_0.distcp", lambda size: size - 1), [VALID, CORRUPT, CORRUPT]),
        ("step-30", flip("__1_0.distcp", lambda size: size // 2), [VALID, VALID, CORRUPT]),
        ("step-50", remove(INDEX), [INCOMPLETE] * 3),
        ("step-50", remove(SHARD), [INCOMPLETE] * 3),
        ("step-50", cut(SHARD, lambda size: size - 1), [VALID, CORRUPT, CORRUPT]),
    ]
    for number, (name, damage, expected) in enumerate(rows):
        copy = tmp_path / str(number) / name
        shutil.copytree(folder / name, copy)
        damage(copy)
        assert [check(copy, level).validity for level in Level] == expected, number
