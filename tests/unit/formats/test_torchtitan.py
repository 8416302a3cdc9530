"""Every way in which a checkpoint of torchtitan is known to break, and what each level says about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.checkpoint import known
from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.formats import torchtitan
from fleetctl.checkpoint.look import Ledger, Look
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.checkpoint.survey import survey
from tests.formats.damage import Damage, cut, flip, put, remove, zeros
from tests.formats.dcp import slice_bytes
from tests.formats.torch import data
from tests.formats.torchtitan import MORE, write_export, write_torchtitan

VALID, INCOMPLETE, CORRUPT = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT
DCP, FIRST, SECOND, INDEX = ".metadata", "__0_0.distcp", "__1_0.distcp", "model.safetensors.index.json"
WEIGHT = slice_bytes(1, 200).index(data(200)) + 100  # a place in the numbers of the first slice
GOOD, ALL_I, S_I = (VALID,) * 3, (INCOMPLETE,) * 3, (VALID, INCOMPLETE, INCOMPLETE)
S_C, C_ONLY = (VALID, CORRUPT, CORRUPT), (VALID, VALID, CORRUPT)


def look_at(path: Path) -> Look:
    return Look(LocalStorage(), path.parent, (path.name,), Ledger(lambda _: None))


def check(folder: Path, level: Level) -> Checked:
    return examine(LocalStorage(), folder.parent, Entry(folder.name, 120), level, wanted="torchtitan")


def judge(folder: Path, expected: tuple[Validity, ...], word: str, most: Level = Level.CONTENT) -> None:
    for level, validity in zip(Level, expected, strict=True):
        found = check(folder, level)
        assert found.validity is validity, (level, found.reason)
        passed = [min(one, most) for one, said in zip(Level, expected, strict=True) if said is VALID and one <= level]
        assert found.level == max(passed, default=None)
        assert found.format == "torchtitan"
        if validity is not VALID:
            assert word in found.reason


DAMAGES: list[tuple[str, Damage, tuple[Validity, Validity, Validity], str]] = [
    ("no metadata", remove(DCP), ALL_I, ".metadata is missing"),
    ("no metadata, and one shard", remove(DCP, FIRST), ALL_I, ".metadata is missing"),
    ("nothing", remove(DCP, FIRST, SECOND), ALL_I, ".metadata is missing"),
    ("metadata alone", remove(FIRST, SECOND), S_I, "is missing"),
    ("a shard gone", remove(SECOND), S_I, f"{SECOND} is missing"),
    ("a shard cut to 0", cut(SECOND, lambda n: 0), S_C, "has 0 bytes"),
    ("a shard cut to half", cut(SECOND, lambda n: n // 2), S_C, "bytes, not"),
    ("a shard short of 1", cut(SECOND, lambda n: n - 1), S_C, "bytes, not"),
    ("a shard longer by 1", cut(SECOND, lambda n: n + 1), S_C, "bytes, not"),
    ("bit of a shard", flip(SECOND, lambda n: WEIGHT), C_ONLY, SECOND),
    ("hole in a shard", zeros(SECOND, lambda n: WEIGHT, lambda n: 200), C_ONLY, SECOND),
    ("metadata cut to 0", cut(DCP, lambda n: 0), S_C, DCP),
    ("metadata cut to half", cut(DCP, lambda n: n // 2), S_C, DCP),
    ("metadata short of 1", cut(DCP, lambda n: n - 1), S_C, DCP),
    ("somebody's file", put("README", b"x"), GOOD, ""),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "expected", "word"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_damage(damage: Damage, expected: tuple[Validity, ...], word: str, tmp_path: Path) -> None:
    folder = write_torchtitan(tmp_path)
    damage(folder)
    judge(folder, expected, word)


def shard_of_export(folder: Path) -> str:
    return max(path.name for path in folder.glob("*.safetensors"))


EXPORT_DAMAGES: list[tuple[str, Damage, tuple[Validity, Validity, Validity], str]] = [
    ("no index", remove(INDEX), ALL_I, f"{INDEX} is missing"),
    ("a shard gone", lambda folder: (folder / shard_of_export(folder)).unlink(), ALL_I, "is missing"),
    ("a shard cut", lambda folder: cut(shard_of_export(folder), lambda n: n - 1)(folder), S_C, ".safetensors"),
    ("index cut", cut(INDEX, lambda n: n // 2), S_C, INDEX),
    ("bit of a shard", lambda folder: flip(shard_of_export(folder), lambda n: n - 1)(folder), GOOD, ""),
]


@pytest.mark.parametrize(
    ("damage", "expected", "word"), [row[1:] for row in EXPORT_DAMAGES], ids=[row[0] for row in EXPORT_DAMAGES]
)
def test_damage_of_an_export(damage: Damage, expected: tuple[Validity, ...], word: str, tmp_path: Path) -> None:
    folder = write_export(tmp_path)
    damage(folder)
    judge(folder, expected, word, most=Level.STRUCTURE)
    assert not check(folder, Level.NAMES).resumable


@pytest.mark.parametrize("level", list(Level))
def test_a_whole_one_is_valid(level: Level, tmp_path: Path) -> None:
    found = check(write_torchtitan(tmp_path), level)
    assert (found.validity, found.level, found.reason) == (VALID, level, "")
    assert (found.resumable, found.uncommitted, found.ranks) == (True, False, None)


@pytest.mark.parametrize("level", list(Level))
def test_a_whole_export_is_valid_and_nothing_to_go_on_from(level: Level, tmp_path: Path) -> None:
    found = check(write_export(tmp_path), level)
    assert (found.validity, found.level, found.resumable) == (VALID, min(level, Level.STRUCTURE), False)


@pytest.mark.parametrize("left", [(DCP,), (DCP, FIRST, SECOND)], ids=str)
def test_what_was_never_finished_is_uncommitted(left: tuple[str, ...], tmp_path: Path) -> None:
    folder = write_torchtitan(tmp_path)
    remove(*left)(folder)
    assert check(folder, Level.STRUCTURE).uncommitted


@pytest.mark.parametrize("more", [(name,) for name in MORE] + [("app.optim.w",)], ids=str)
def test_what_has_any_state_of_a_training_can_be_resumed_from(more: tuple[str, ...], tmp_path: Path) -> None:
    assert check(write_torchtitan(tmp_path, more=more), Level.STRUCTURE).resumable


def test_weights_alone_cannot(tmp_path: Path) -> None:
    """As `last_save_model_only` leaves them after the last step."""
    found = check(write_torchtitan(tmp_path, more=()), Level.CONTENT)
    assert (found.validity, found.level, found.resumable) == (VALID, Level.CONTENT, False)


def test_a_word_across_two_pieces_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_torchtitan(tmp_path, more=MORE[:1])
    monkeypatch.setattr(torchtitan, "_PIECE_BYTES", 3)  # shorter than any of the words
    assert check(folder, Level.STRUCTURE).resumable


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-120", 120), ("step-0", 0), ("step-120.tmp", None), ("step_120", None), ("120", None), ("step-", None),
        ("my-step-120", None), ("step-" + "9" * 19, None), ("step-1\n", None), ("", None),
    ],
)  # fmt: skip
def test_a_step_from_a_name(name: str, step: int | None) -> None:
    assert torchtitan.step_named(name) == step


@pytest.mark.parametrize("level", list(Level))
def test_an_export_that_was_never_put_together(level: Level, tmp_path: Path) -> None:
    (tmp_path / "step-120" / "sharded").mkdir(parents=True)
    found = check(tmp_path / "step-120", level)
    assert (found.validity, found.uncommitted, found.reason) == (INCOMPLETE, True, f"{INDEX} is missing")


def test_what_is_none(tmp_path: Path) -> None:
    """A plain DCP, weights of another name, levanter's folder, a file, a link."""
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "metadata.json").write_text("{}")
    (tmp_path / "step-2").write_bytes(b"x")
    (tmp_path / "step-3").symlink_to(write_torchtitan(tmp_path, "step-4"))
    write_torchtitan(tmp_path, "ckpt_5")
    write_export(tmp_path, "weights")
    for name in ("step-1", "step-2", "step-3", "ckpt_5", "weights"):
        assert not torchtitan.recognise(look_at(tmp_path / name)), name
    found = known.recognise(look_at(tmp_path / "step-4"), known.AUTO)
    assert found is torchtitan.FORMAT


def test_a_folder_of_checkpoints(tmp_path: Path) -> None:
    for step in (40, 80):
        write_torchtitan(tmp_path, f"step-{step}")
    write_export(tmp_path, "step-120")
    (tmp_path / "step-160").mkdir()
    found = survey(LocalStorage(), tmp_path, "torchtitan")
    assert {entry.name: entry.training_step for entry in found.entries} == {
        f"step-{step}": step for step in (40, 80, 120, 160)
    }
