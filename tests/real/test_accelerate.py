"""Checkpoints by accelerate's `save_state`: what is called valid is what it loads."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from tests.formats.damage import Damage, cut, remove
from tests.real.conftest import MakeReal

VALID, INCOMPLETE, CORRUPT = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT
SCRIPT = "make_accelerate.py"
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
    return examine(LocalStorage(), folder.parent, Entry(folder.name, 1), level)


@pytest.fixture(scope="module")
def one(make_real: MakeReal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one process."""
    folder = tmp_path_factory.mktemp("one")
    make_real(SCRIPT, "train", folder)
    return folder / "checkpoints" / "checkpoint_1"


@pytest.fixture(scope="module")
def two(make_real: MakeReal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two processes."""
    folder = tmp_path_factory.mktemp("two")
    make_real(SCRIPT, "ranks", folder, "2")
    return folder / "checkpoints" / "checkpoint_1"


@pytest.fixture(scope="module")
def fsdp(make_real: MakeReal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two processes, by FSDP."""
    folder = tmp_path_factory.mktemp("fsdp")
    make_real(SCRIPT, "fsdp", folder, "2")
    return folder / "checkpoints" / "checkpoint_0"


@pytest.fixture
def copy(two: Path, tmp_path: Path) -> Path:
    """A copy with its times, to be damaged; the older one is beside it."""
    for name in ("checkpoint_0", "checkpoint_1"):
        shutil.copytree(two.parent / name, tmp_path / name)
    return tmp_path / "checkpoint_1"


@pytest.mark.parametrize("level", list(Level))
def test_what_accelerate_saves_is_valid(level: Level, one: Path, two: Path) -> None:
    for folder in (one, one.parent / "checkpoint_0", two, two.parent / "checkpoint_0"):
        found = check(folder, level)
        assert (found.format, found.validity, found.level) == ("accelerate", VALID, min(level, Level.STRUCTURE)), found
        assert (found.resumable, found.uncommitted, found.ranks) == (True, False, None)


def test_accelerate_goes_on_from_what_is_valid(one: Path, make_real: MakeReal) -> None:
    assert check(one, Level.CONTENT).validity is VALID
    said = json.loads(make_real(SCRIPT, "resume", one).splitlines()[-1])
    assert (said["rate"], said["count"]) == (0.025, 4)  # two steps of the optimizer, each half the rate


ALL_INCOMPLETE, GAP, AT_STRUCTURE = (INCOMPLETE,) * 3, (VALID, INCOMPLETE, INCOMPLETE), (VALID, CORRUPT, CORRUPT)
DAMAGES: list[tuple[str, Damage, Verdicts, str]] = [
    ("model cut", cut("model.safetensors", lambda n: n - 1), AT_STRUCTURE, "model.safetensors has"),
    ("second model empty", cut("model_1.safetensors", lambda n: 0), AT_STRUCTURE, "model_1.safetensors has 0"),
    ("optimizer cut", cut("optimizer.bin", lambda n: n // 2), AT_STRUCTURE, "optimizer.bin"),
    ("bit of the random states", bit_of_a_tensor("random_states_1.pkl"), (VALID, VALID, CORRUPT), "another"),
    ("no optimizer", remove("optimizer.bin"), GAP, "optimizer.bin is missing"),
    ("no second optimizer", remove("optimizer_1.bin"), GAP, "optimizer_1.bin is missing"),
    ("no scheduler", remove("scheduler.bin"), GAP, "scheduler.bin is missing"),
    ("no object of the user's", remove("custom_checkpoint_0.pkl"), GAP, "custom_checkpoint_0.pkl is missing"),
    ("no random states of rank 0", remove("random_states_0.pkl"), ALL_INCOMPLETE, "random_states_0.pkl is missing"),
    ("no random states of rank 1", remove("random_states_1.pkl"), GAP, "random_states_1.pkl is missing"),
    ("random states of another save",
     lambda folder: shutil.copy2(folder.parent / "checkpoint_0" / "random_states_1.pkl", folder),
     AT_STRUCTURE, "is of batch 2, that of rank 0 of batch 4"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "expected", "word"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_damage(damage: Damage, expected: Verdicts, word: str, copy: Path) -> None:
    damage(copy)
    for level, validity in zip(Level, expected, strict=True):
        found = check(copy, level)
        assert found.validity is validity, (level, found.reason)
        assert word in found.reason or validity is VALID


@pytest.mark.parametrize(
    ("damage", "expected", "piece"),
    [
        (lambda folder: None, (VALID, VALID, VALID), ""),
        (remove("optimizer_0/.metadata"), ALL_INCOMPLETE, "optimizer_0/.metadata"),
        (remove("pytorch_model_fsdp_0"), ALL_INCOMPLETE, "model.safetensors"),
        (cut("pytorch_model_fsdp_0/__1_0.distcp", lambda n: n - 1), AT_STRUCTURE, "pytorch_model_fsdp_0/__1_0.distcp"),
        (remove("optimizer_0/__1_0.distcp"), GAP, "optimizer_0/__1_0.distcp"),
        (
            bit_of_a_tensor("optimizer_0/__1_0.distcp"),
            (VALID, VALID, CORRUPT),
            "optimizer_0/__1_0.distcp",
        ),
    ],
    ids=["whole", "no metadata", "no model", "shard cut", "no shard", "bit of a shard"],
)
def test_shards_of_fsdp(damage: Damage, expected: Verdicts, piece: str, fsdp: Path, tmp_path: Path) -> None:
    folder = tmp_path / fsdp.name
    shutil.copytree(fsdp, folder)
    damage(folder)
    for level, validity in zip(Level, expected, strict=True):
        found = check(folder, level)
        assert found.validity is validity, (level, found.reason)
        assert [one.name for one in found.pieces] == ([] if validity is VALID else [piece])
        assert found.deepest is Level.CONTENT
