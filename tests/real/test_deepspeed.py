"""What DeepSpeed writes on the CPU is valid and loads again, and what it cannot load is not valid."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetctl.checkpoint import known
from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.checkpoint.survey import survey
from tests.formats.damage import Damage, cut, flip, remove
from tests.real.conftest import MakeReal

VALID, INCOMPLETE, CORRUPT = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT
SCRIPT, TAG = "make_deepspeed.py", "global_step4"
PART = {
    1: "zero_pp_rank_1_mp_rank_00_optim_states.pt",
    2: "zero_pp_rank_1_mp_rank_00_optim_states.pt",
    3: "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
}
MODEL = {
    1: "mp_rank_00_model_states.pt",
    2: "mp_rank_00_model_states.pt",
    3: "zero_pp_rank_0_mp_rank_00_model_states.pt",
}


def check(folder: Path, level: Level, ranks: int | None = None) -> Checked:
    return examine(LocalStorage(), folder.parent, Entry(folder.name, 4), level, ranks=ranks)


@pytest.fixture(scope="module")
def saved(make_real: MakeReal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deepspeed")
    make_real(SCRIPT, "save", folder, 0, 1, 2, 3)
    return folder


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_what_two_ranks_write_is_valid(stage: int, level: Level, saved: Path) -> None:
    folder = saved / f"zero{stage}"
    found = check(folder / TAG, level)
    assert (found.validity, found.level, found.reason, found.format) == (VALID, level, "", "deepspeed")
    assert found.ranks == (2 if stage else None)
    steps = sorted(entry.training_step for entry in survey(LocalStorage(), folder, known.AUTO).entries)
    assert steps == [2, 4]


@pytest.mark.parametrize("stage", [1, 3])
def test_what_is_valid_loads_with_as_many_ranks(stage: int, saved: Path, make_real: MakeReal) -> None:
    assert "loaded 4" in make_real(SCRIPT, "load", saved / f"zero{stage}", stage, 2, TAG)


def test_zero_does_not_load_with_another_number_of_ranks(saved: Path, make_real: MakeReal) -> None:
    """DeepSpeed#2898: what `ranks` is for."""
    assert check(saved / "zero1" / TAG, Level.STRUCTURE, ranks=1).ranks == 2
    with pytest.raises(AssertionError, match="world size of 2 but the current world size is 1"):
        make_real(SCRIPT, "load", saved / "zero1", 1, 1, TAG)


DAMAGES = [
    ("part cut to half", lambda stage: cut(PART[stage], lambda n: n // 2), (VALID, CORRUPT, CORRUPT)),
    ("part cut to 0", lambda stage: cut(PART[stage], lambda n: 0), (VALID, CORRUPT, CORRUPT)),
    ("model short of 1", lambda stage: cut(MODEL[stage], lambda n: n - 1), (VALID, CORRUPT, CORRUPT)),
    ("bit of a part", lambda stage: flip(PART[stage], lambda n: n // 2), (VALID, VALID, CORRUPT)),
    ("no model", lambda stage: remove(MODEL[stage]), (INCOMPLETE, INCOMPLETE, INCOMPLETE)),
    ("no last part", lambda stage: remove(PART[stage]), (INCOMPLETE, INCOMPLETE, INCOMPLETE)),  # the older step tells
]


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize(("damage", "expected"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_damage(
    damage: Callable[[int], Damage], expected: tuple[Validity, ...], stage: int, saved: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(saved / f"zero{stage}", tmp_path / "copy")) / TAG
    damage(stage)(folder)
    assert tuple(check(folder, level).validity for level in Level) == expected


def test_the_files_that_are_left_tell_how_many_there_were(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved / "zero2" / TAG, tmp_path / TAG))
    (folder / PART[2]).unlink()
    names, structure = check(folder, Level.NAMES), check(folder, Level.STRUCTURE)
    assert (names.validity, structure.validity) == (VALID, INCOMPLETE)
    assert structure.reason == f"{PART[2]} is missing"


def test_a_part_of_another_save_is_found_by_what_it_says_of_itself(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved / "zero3" / TAG, tmp_path / TAG))
    name = "zero_pp_rank_1_mp_rank_00_model_states.pt"
    shutil.copyfile(saved / "zero3" / "global_step2" / name, folder / name)
    assert "its training step is" in check(folder, Level.STRUCTURE).reason


@pytest.mark.parametrize("stage", [1, 3])
def test_what_was_converted_to_the_universal_layout(
    stage: int, saved: Path, tmp_path: Path, make_real: MakeReal
) -> None:
    root = Path(shutil.copytree(saved / f"zero{stage}", tmp_path / "copy"))
    make_real(SCRIPT, "convert", root, TAG)
    folder = root / f"{TAG}_universal"
    for level in Level:
        found = check(folder, level)
        assert (found.validity, found.level, found.ranks, found.reason) == (VALID, level, None, "")
    assert Entry(folder.name, 4) in survey(LocalStorage(), root, known.AUTO).entries
    flip("zero/0.weight/fp32.pt", lambda n: n // 2)(folder)
    assert check(folder, Level.CONTENT).validity is CORRUPT
    (folder / "zero/0.weight/fp32.pt").unlink()
    assert check(folder, Level.STRUCTURE).reason == "zero/0.weight/fp32.pt is missing"
    shutil.rmtree(folder / "zero" / "0.weight")
    assert check(folder, Level.STRUCTURE).reason == "zero/0.weight is missing"
