"""Checkpoints by the Trainer of transformers: what is called valid is what it goes on from."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from tests.formats.damage import Damage, cut, put, remove
from tests.real.conftest import MakeReal

VALID, INCOMPLETE, CORRUPT = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT
SCRIPT, STATE = "make_huggingface.py", "trainer_state.json"
Verdicts = tuple[Validity, Validity, Validity]


def bit_of_a_tensor(name: str) -> Damage:
    """In the first storage: what lies between entries is covered by no CRC, and read by nobody."""

    def damage(folder: Path) -> None:
        raw = bytearray((folder / name).read_bytes())
        header = raw.rindex(b"PK\x03\x04", 0, raw.index(b"/data/0"))
        name_bytes, extra_bytes = struct.unpack_from("<HH", raw, header + 26)
        raw[header + 30 + name_bytes + extra_bytes + 1] ^= 1
        (folder / name).write_bytes(raw)

    return damage


def check(folder: Path, level: Level) -> Checked:
    return examine(LocalStorage(), folder.parent, Entry(folder.name, 4), level)


@pytest.fixture(scope="module")
def one(make_real: MakeReal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one process."""
    folder = tmp_path_factory.mktemp("one")
    make_real(SCRIPT, "train", folder)
    return folder / "checkpoint-4"


@pytest.fixture(scope="module")
def two(make_real: MakeReal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two processes."""
    folder = tmp_path_factory.mktemp("two")
    make_real(SCRIPT, "ranks", folder, "2")
    return folder / "checkpoint-4"


@pytest.fixture
def copy(two: Path, tmp_path: Path) -> Path:
    """A copy with its times, to be damaged; the older one is beside it."""
    for name in ("checkpoint-2", "checkpoint-4"):
        shutil.copytree(two.parent / name, tmp_path / name)
    return tmp_path / "checkpoint-4"


@pytest.mark.parametrize("level", list(Level))
def test_what_the_trainer_saves_is_valid(level: Level, one: Path, two: Path) -> None:
    for folder in (one, one.parent / "checkpoint-2", two, two.parent / "checkpoint-2"):
        found = check(folder, level)
        assert (found.format, found.validity, found.level) == ("huggingface", VALID, min(level, Level.STRUCTURE)), found
        assert (found.resumable, found.uncommitted, found.ranks) == (True, False, None)


def test_the_trainer_goes_on_from_what_is_valid(one: Path, make_real: MakeReal) -> None:
    assert check(one, Level.CONTENT).validity is VALID
    said = json.loads(make_real(SCRIPT, "resume", one).splitlines()[-1])
    assert said == {"began": 4, "ended": 6}


def test_a_save_of_the_model_alone_is_nothing_to_go_on_from(make_real: MakeReal, tmp_path: Path) -> None:
    make_real(SCRIPT, "train", tmp_path, "save_only_model=true")
    found = check(tmp_path / "checkpoint-4", Level.CONTENT)
    assert (found.format, found.validity, found.resumable) == ("huggingface", VALID, False)


DAMAGES: list[tuple[str, Damage, Verdicts, str]] = [
    ("model cut", cut("model.safetensors", lambda n: n - 1), (VALID, CORRUPT, CORRUPT), "model.safetensors has"),
    ("model empty", cut("model.safetensors", lambda n: 0), (VALID, CORRUPT, CORRUPT), "model.safetensors has 0"),
    ("optimizer cut", cut("optimizer.pt", lambda n: n // 2), (VALID, CORRUPT, CORRUPT), "optimizer.pt"),
    ("bit of the optimizer", bit_of_a_tensor("optimizer.pt"), (VALID, VALID, CORRUPT), "another content"),
    ("no optimizer", remove("optimizer.pt"), (INCOMPLETE, INCOMPLETE, INCOMPLETE), "optimizer.pt is missing"),
    ("no scheduler", remove("scheduler.pt"), (INCOMPLETE, INCOMPLETE, INCOMPLETE), "scheduler.pt is missing"),
    ("no rng of rank 0", remove("rng_state_0.pth"), (VALID, INCOMPLETE, INCOMPLETE), "rng_state_0.pth is missing"),
    ("no rng of rank 1", remove("rng_state_1.pth"), (VALID, INCOMPLETE, INCOMPLETE), "rng_state_1.pth is missing"),
    ("no state", remove(STATE), (INCOMPLETE, INCOMPLETE, INCOMPLETE), "trainer_state.json is missing"),
    ("state of another step", put(STATE, b'{"global_step": 2}'), (VALID, CORRUPT, CORRUPT), "is of step 2"),
    ("only the weights are left", remove("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"),
     (VALID, INCOMPLETE, INCOMPLETE), "training_args.bin says"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "expected", "word"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_damage(damage: Damage, expected: Verdicts, word: str, copy: Path) -> None:
    damage(copy)
    for level, validity in zip(Level, expected, strict=True):
        found = check(copy, level)
        assert found.validity is validity, (level, found.reason)
        assert word in found.reason or validity is VALID
    assert found.uncommitted == (not (copy / STATE).exists())


def test_the_last_rank_is_missed_without_any_other_checkpoint(copy: Path) -> None:
    """It is training_args.bin that tells how many there were."""
    shutil.rmtree(copy.parent / "checkpoint-2")
    (copy / "rng_state_1.pth").unlink()
    assert [piece.name for piece in check(copy, Level.STRUCTURE).pieces] == ["rng_state_1.pth"]


def test_each_file_of_a_save_that_ended_early(two: Path, tmp_path: Path) -> None:
    """Killed after each file in turn, in the order in which they were written: none is taken for a whole one."""
    files = sorted(two.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert files[-1].name == STATE
    for count in range(len(files)):
        folder = tmp_path / f"{count}" / two.name
        folder.mkdir(parents=True)
        for path in files[:count]:
            shutil.copy2(path, folder)
        if count:  # the last one is cut short
            os.truncate(folder / files[count - 1].name, files[count - 1].stat().st_size // 2)
        found = check(folder, Level.NAMES)
        assert found.validity is not VALID, (count, found)
        assert found.uncommitted or found.format != "huggingface"
