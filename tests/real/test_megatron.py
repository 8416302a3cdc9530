"""What megatron-core writes on the CPU is valid and loads again, and what its load refuses is not valid.

Its Megatron-LM, which no registry has, is not run: what that writes besides is built by torch, as the names say.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.formats.dcp import check_dcp
from fleetctl.checkpoint.look import Ledger, Look
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from tests.formats.damage import Damage, cut, flip, remove
from tests.formats.megatron import put_integrity
from tests.real.conftest import MakeReal

VALID, INCOMPLETE, CORRUPT = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT
SCRIPT, STEP, SHARD = "make_megatron.py", "iter_0000020", "__1_0.distcp"


def check(folder: Path, level: Level) -> Checked:
    return examine(LocalStorage(), folder.parent, Entry(folder.name, 20), level)


@pytest.fixture(scope="module")
def saved(make_real: MakeReal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("megatron")
    make_real(SCRIPT, "save", folder)
    return folder


@pytest.mark.parametrize("level", list(Level))
def test_what_two_ranks_write_is_valid(level: Level, saved: Path) -> None:
    found = check(saved / "dist" / STEP, level)
    assert (found.validity, found.level, found.reason, found.format) == (VALID, level, "", "megatron")
    assert (found.ranks, found.resumable, found.uncommitted) == (None, True, False)


def test_what_is_valid_loads_and_what_is_incomplete_does_not(saved: Path, make_real: MakeReal) -> None:
    printed = make_real(SCRIPT, "load", saved, 20, 30)
    assert "loaded 20" in printed
    assert "refused 30" in printed
    assert "is not a distributed checkpoint" in printed


@pytest.mark.parametrize("level", list(Level))
def test_a_save_that_was_killed_after_the_shards_is_incomplete(level: Level, saved: Path) -> None:
    """training-gym#506: shards and common.pt are there, and were taken for a checkpoint."""
    folder = saved / "dist" / "iter_0000030"
    assert (folder / SHARD).exists()
    assert (folder / "common.pt").exists()
    found = check(folder, level)
    assert (found.validity, found.uncommitted) == (INCOMPLETE, True)
    assert {piece.name for piece in found.pieces} == {"metadata.json", ".metadata"}


def common_of_another_step(folder: Path) -> None:
    shutil.copyfile(folder.parent / "iter_0000010" / "common.pt", folder / "common.pt")


DAMAGES: list[tuple[str, Damage, tuple[Validity, ...]]] = [
    ("shard cut to half", cut(SHARD, lambda n: n // 2), (VALID, CORRUPT, CORRUPT)),
    ("bit of a shard", flip(SHARD, lambda n: n // 4), (VALID, VALID, CORRUPT)),
    ("no shard", remove(SHARD), (VALID, INCOMPLETE, INCOMPLETE)),
    ("no commit marker", remove("metadata.json"), (INCOMPLETE, INCOMPLETE, INCOMPLETE)),
    ("no DCP metadata", remove(".metadata"), (INCOMPLETE, INCOMPLETE, INCOMPLETE)),
    ("common cut to half", cut("common.pt", lambda n: n // 2), (VALID, CORRUPT, CORRUPT)),
    ("common of another step", common_of_another_step, (VALID, CORRUPT, CORRUPT)),
]


@pytest.mark.parametrize(("damage", "expected"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_damage(damage: Damage, expected: tuple[Validity, ...], saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved / "dist", tmp_path / "dist")) / STEP
    damage(folder)
    assert tuple(check(folder, level).validity for level in Level) == expected


def in_a_tensor(folder: Path) -> int:
    """A place within the largest one of the shard: elsewhere its zip directory may say it."""
    look = Look(LocalStorage(), folder.parent, (folder.name,), Ledger(lambda _: None))
    units = [unit for unit in check_dcp(look, Level.STRUCTURE).content() if unit.file == (SHARD,)]
    largest = max(units, key=lambda unit: unit.size_bytes)
    return largest.offset + largest.size_bytes // 2


def test_digests_that_a_newer_megatron_adds_built_here(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved / "dist" / STEP, tmp_path / STEP))
    put_integrity(folder)
    assert check(folder, Level.CONTENT).level is Level.CONTENT
    flip(SHARD, lambda _: in_a_tensor(folder))(folder)
    assert [check(folder, level).validity for level in Level] == [VALID, VALID, CORRUPT]


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("layout", ["dcp", "legacy"])
def test_layouts_of_megatron_lm_built_by_torch_are_valid(layout: str, level: Level, saved: Path) -> None:
    found = check(saved / layout / "iter_0000010", level)
    assert (found.validity, found.level, found.reason, found.format) == (VALID, level, "", "megatron")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (remove("mp_rank_01"), (VALID, INCOMPLETE, INCOMPLETE)),
        (remove("mp_rank_00"), (INCOMPLETE, INCOMPLETE, INCOMPLETE)),
        (cut("mp_rank_01/model_optim_rng.pt", lambda n: n - 1), (VALID, CORRUPT, CORRUPT)),
        (flip("mp_rank_01/distrib_optim.pt", lambda n: n // 2), (VALID, VALID, CORRUPT)),
    ],
    ids=["no last rank", "no first rank", "model short of 1", "bit of the optimizer"],
)
def test_damage_in_the_older_layout_built_by_torch(
    damage: Damage, expected: tuple[Validity, ...], saved: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(saved / "legacy" / "iter_0000010", tmp_path / "iter_0000010"))
    damage(folder)
    assert tuple(check(folder, level).validity for level in Level) == expected
