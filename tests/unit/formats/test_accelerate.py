"""Every way in which a checkpoint of accelerate is known to break, and what each level says about it."""

from __future__ import annotations

import json
import os
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.formats import accelerate
from fleetctl.checkpoint.look import Ledger, Look
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from tests.formats.accelerate import random_states, write_state
from tests.formats.damage import Damage, cut, flip, instead, put, remove
from tests.formats.huggingface import SAVED_AT_S, aged, plain, torch_bytes, write_trainer
from tests.formats.safetensors import shard_name, write_safe

VALID, INCOMPLETE, CORRUPT, UNKNOWN = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT, Validity.UNKNOWN
MODEL, OPTIMIZER, SCHEDULER, RANDOM = "model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"
Verdicts = tuple[Validity, Validity, Validity]
ALL_VALID, ALL_INCOMPLETE = (VALID, VALID, VALID), (INCOMPLETE, INCOMPLETE, INCOMPLETE)
AT_STRUCTURE, GAP = (VALID, CORRUPT, CORRUPT), (VALID, INCOMPLETE, INCOMPLETE)


def check(folder: Path, level: Level, ranks: int | None = None) -> Checked:
    return examine(LocalStorage(), folder.parent, Entry(folder.name, 3), level, wanted="accelerate", ranks=ranks)


def look_at(folder: Path) -> Look:
    return Look(LocalStorage(), folder.parent, (folder.name,), Ledger(lambda _: None))


def hole(name: str) -> Damage:
    def damage(folder: Path) -> None:
        raw = (folder / name).read_bytes()
        (folder / name).write_bytes(raw.replace(bytes(range(100)), bytes(100)))

    return damage


# damage -> what NAMES, STRUCTURE and CONTENT say, a word of the reason. Of each kind there are two
DAMAGES: list[tuple[str, Damage, Verdicts, str]] = [
    ("model cut to 0", cut(MODEL, lambda n: 0), AT_STRUCTURE, "model.safetensors has 0 bytes"),
    ("model short of 1", cut(MODEL, lambda n: n - 1), AT_STRUCTURE, "bytes, not"),
    ("second model longer by 1", cut("model_1.safetensors", lambda n: n + 1), AT_STRUCTURE, "bytes, not"),
    ("bit of the model's data", flip(MODEL, lambda n: n - 1), ALL_VALID, ""),
    ("optimizer cut to 0", cut(OPTIMIZER, lambda n: 0), AT_STRUCTURE, "optimizer.bin has 0 bytes"),
    ("optimizer cut to 1", cut(OPTIMIZER, lambda n: 1), AT_STRUCTURE, "optimizer.bin"),
    ("optimizer cut to half", cut(OPTIMIZER, lambda n: n // 2), AT_STRUCTURE, "optimizer.bin"),
    ("optimizer short of 1", cut(OPTIMIZER, lambda n: n - 1), AT_STRUCTURE, "optimizer.bin"),
    ("hole in the optimizer", hole(OPTIMIZER), (VALID, VALID, CORRUPT), "another content"),
    ("hole in the second optimizer", hole("optimizer_1.bin"), (VALID, VALID, CORRUPT), "another content"),
    ("hole in the scheduler", hole(SCHEDULER), (VALID, VALID, CORRUPT), "another content"),
    ("hole in the random states", hole("random_states_1.pkl"), (VALID, VALID, CORRUPT), "another content"),
    ("hole in the user's object", hole("custom_checkpoint_1.pkl"), (VALID, VALID, CORRUPT), "another content"),
    ("scheduler cut to half", cut(SCHEDULER, lambda n: n // 2), AT_STRUCTURE, "scheduler.bin"),
    ("random states cut to half", cut("random_states_1.pkl", lambda n: n // 2), AT_STRUCTURE, "random_states_1.pkl"),
    ("no model", remove(MODEL, "model_1.safetensors"), ALL_INCOMPLETE, "model.safetensors is missing"),
    ("no first model", remove(MODEL), GAP, "model.safetensors is missing"),
    ("no second model", remove("model_1.safetensors"), GAP, "model_1.safetensors is missing"),
    ("no optimizer", remove(OPTIMIZER, "optimizer_1.bin"), ALL_INCOMPLETE, "optimizer.bin is missing"),
    ("no first optimizer", remove(OPTIMIZER), GAP, "optimizer.bin is missing"),
    ("no second optimizer", remove("optimizer_1.bin"), GAP, "optimizer_1.bin is missing"),
    ("no scheduler", remove(SCHEDULER), GAP, "scheduler.bin is missing"),
    ("no first object", remove("custom_checkpoint_0.pkl"), GAP, "custom_checkpoint_0.pkl is missing"),
    ("no last object", remove("custom_checkpoint_1.pkl"), GAP, "custom_checkpoint_1.pkl is missing"),
    ("no random states of rank 0", remove(RANDOM), ALL_INCOMPLETE, "random_states_0.pkl is missing"),
    ("no random states of the last", remove("random_states_1.pkl"), GAP, "random_states_1.pkl is missing"),
    ("no random states", remove(RANDOM, "random_states_1.pkl"), ALL_INCOMPLETE, "random_states_0.pkl is missing"),
    ("random states of another save", put("random_states_1.pkl", random_states(7)), AT_STRUCTURE, "is of batch 7"),
    ("random states without a step", put("random_states_1.pkl", torch_bytes(plain({}))), ALL_VALID, ""),
    ("random states of a list", put("random_states_1.pkl", torch_bytes(plain([1]))), ALL_VALID, ""),
    ("a FIFO as optimizer", instead(OPTIMIZER, os.mkfifo), AT_STRUCTURE, "is no file"),
    ("a FIFO as random states", instead(RANDOM, os.mkfifo), AT_STRUCTURE, "is no file"),
    ("a link as scheduler", instead(SCHEDULER, lambda path: path.symlink_to(OPTIMIZER)), AT_STRUCTURE, "is no file"),
    ("a sampler", put("sampler_2.bin", torch_bytes()), ALL_VALID, ""),
    ("half a sampler", put("sampler.bin", torch_bytes()[:99]), AT_STRUCTURE, "sampler.bin"),
    ("a scaler", put("scaler.pt", torch_bytes()), ALL_VALID, ""),
    ("somebody's file", put("notes.pkl", b"x"), ALL_VALID, ""),
    ("a rank of millions", put("random_states_99999999.pkl", random_states(8)), AT_STRUCTURE, "no training comes to"),
    ("an optimizer of millions", put("optimizer_99999999.bin", torch_bytes()), AT_STRUCTURE, "no training comes to"),
    ("an object of millions", put("custom_checkpoint_99999999.pkl", torch_bytes()), AT_STRUCTURE, "no training"),
    ("Megatron-LM inside", put("latest_checkpointed_iteration.txt", b"3"), (VALID, UNKNOWN, UNKNOWN), "Megatron"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "expected", "word"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_damage(damage: Damage, expected: Verdicts, word: str, tmp_path: Path) -> None:
    write_state(tmp_path, 2, ranks=2, models=2, custom=2)
    folder = write_state(tmp_path, 3, ranks=2, models=2, custom=2)
    damage(folder)
    aged(folder)
    for level, validity in zip(Level, expected, strict=True):
        found = check(folder, level)
        assert found.validity is validity, (level, found.reason)
        assert word in found.reason or validity is VALID
        assert found.reason.isprintable()
        assert len({piece.name for piece in found.pieces}) == found.faults
        assert found.uncommitted == (RANDOM not in os.listdir(folder))


# What nothing else tells of when the step before is gone
@pytest.mark.parametrize("name", [SCHEDULER, "custom_checkpoint_1.pkl", "optimizer_1.bin", "random_states_1.pkl"])
def test_what_no_other_file_tells_of_is_found_only_by_the_save_before(name: str, tmp_path: Path) -> None:
    folder = write_state(tmp_path, 3, ranks=2, models=2, custom=2)
    remove(name)(folder)
    assert check(folder, Level.CONTENT).validity is VALID
    write_state(tmp_path, 2, ranks=2, models=2, custom=2)
    found = check(folder, Level.CONTENT)
    assert (found.validity, [piece.name for piece in found.pieces]) == (INCOMPLETE, [name])


def test_a_torn_save_before_this_one_asks_for_nothing(tmp_path: Path) -> None:
    before = write_state(tmp_path, 2)
    for path in before.iterdir():
        path.unlink()
    assert check(write_state(tmp_path, 3, ranks=2, custom=1), Level.CONTENT).validity is VALID


@pytest.mark.parametrize("kind", ["single", "sharded", "bin"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_whole_one_is_valid(kind: str, ranks: int, tmp_path: Path) -> None:
    folder = write_state(tmp_path, 3, ranks=ranks, kind=kind, custom=1)
    deepest = Level.CONTENT if kind == "bin" else Level.STRUCTURE  # safetensors carries no checksum
    for level in Level:
        found = check(folder, level, ranks)
        assert (found.validity, found.level) == (VALID, min(level, deepest)), found.reason
        assert (found.resumable, found.uncommitted, found.ranks) == (True, False, None)
    assert (found.deepest, found.saved_at) == (deepest, datetime.fromtimestamp(SAVED_AT_S, UTC))
    assert found.size_bytes == sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize(
    ("before", "have", "now", "missing"),
    [
        (None, 2, None, []),
        (None, 2, 2, []),
        (None, 2, 3, ["random_states_2.pkl"]),
        (3, 2, None, ["random_states_2.pkl"]),
        (3, 2, 2, []),
        (2, 2, 4, []),
        (2, 3, 1, []),
    ],
)
def test_ranks(before: int | None, have: int, now: int | None, missing: list[str], tmp_path: Path) -> None:
    if before is not None:
        write_state(tmp_path, 2, ranks=before)
    folder = write_state(tmp_path, 3, ranks=have)
    write_state(tmp_path, 4, ranks=9)
    found = check(folder, Level.STRUCTURE, now)
    assert [piece.name for piece in found.pieces] == missing


def test_ranks_without_a_gap(tmp_path: Path) -> None:
    folder = write_state(tmp_path, 3, ranks=5)
    remove("random_states_1.pkl", "random_states_3.pkl")(folder)
    found = check(folder, Level.STRUCTURE)
    assert [piece.name for piece in found.pieces] == ["random_states_1.pkl", "random_states_3.pkl"]


def test_parts_of_fsdp_load_at_their_number_of_ranks_only(tmp_path: Path) -> None:
    folder = write_state(tmp_path, 3, ranks=2, kind="none")
    remove(OPTIMIZER)(folder)
    for name in ("pytorch_model_fsdp_0_rank", "optimizer_0_rank"):
        for rank in (0, 1):
            (folder / f"{name}{rank}.bin").write_bytes(torch_bytes())
    found = check(aged(folder), Level.CONTENT)
    assert (found.validity, found.level, found.ranks) == (VALID, Level.CONTENT, 2)
    remove("optimizer_0_rank1.bin")(folder)
    found = check(folder, Level.STRUCTURE)
    assert (found.validity, found.pieces[0].name) == (INCOMPLETE, "optimizer_0_rank1.bin")


@pytest.mark.parametrize("name", ["random_states_999999.pkl", "optimizer_999999.bin", "optimizer_0_rank999999.bin"])
def test_a_high_number_tells_of_a_thousand_others(name: str, tmp_path: Path) -> None:
    folder = write_state(tmp_path, 3)
    (folder / name).write_bytes(b"")
    tracemalloc.start()
    faults = check(folder, Level.STRUCTURE).faults
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 1000 <= faults <= 1002
    assert peak_bytes < 4_000_000


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (".ipynb_checkpoints/model.safetensors", ALL_INCOMPLETE), ("logs/events.1", ALL_INCOMPLETE),
        ("logs/.x/y.bin", ALL_INCOMPLETE), ("a/b/c/model.safetensors", ALL_INCOMPLETE),
        ("unet/diffusion_pytorch_model.safetensors", ALL_VALID), ("unet/diffusion_pytorch_model.bin", ALL_VALID),
        ("lora/default/adapter_model.safetensors", ALL_VALID), ("mine/weights.pt", ALL_VALID),
    ],
)  # fmt: skip
def test_which_folders_hold_the_weights(name: str, expected: Verdicts, tmp_path: Path) -> None:
    folder = write_state(tmp_path, 3)
    (folder / MODEL).unlink()
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / "empty").mkdir()
    write_safe(folder / name)
    aged(folder)
    for level, validity in zip(Level, expected, strict=True):
        found = check(folder, level)
        assert found.validity is validity, found.reason
        assert found.reason.startswith("model.safetensors is missing") or validity is VALID


def test_models_that_a_hook_has_saved(tmp_path: Path) -> None:
    """As the scripts of diffusers do, in a folder of each, and in checkpoint-N."""
    folder = write_state(tmp_path, 3, kind="none", name="checkpoint-500")
    write_safe(folder / "unet" / "diffusion_pytorch_model.safetensors")
    assert check(aged(folder), Level.STRUCTURE).validity is VALID
    cut("diffusion_pytorch_model.safetensors", lambda n: n - 1)(folder / "unet")
    found = check(folder, Level.STRUCTURE)
    assert (found.validity, found.pieces[0].name) == (CORRUPT, "unet/diffusion_pytorch_model.safetensors")


def test_a_save_of_deepspeed(tmp_path: Path) -> None:
    folder = write_state(tmp_path, 3, kind="none")
    remove(OPTIMIZER)(folder)
    (folder / "pytorch_model").mkdir()
    states = folder / "pytorch_model" / "mp_rank_00_model_states.pt"
    states.write_bytes(torch_bytes(plain({"global_steps": 3, "dp_world_size": 1, "mp_world_size": 1})))
    assert [piece.name for piece in check(folder, Level.NAMES).pieces] == ["latest"]
    (folder / "latest").write_text("pytorch_model")
    found = check(folder, Level.CONTENT)
    assert (found.validity, found.level) == (VALID, Level.CONTENT)
    cut(states.name, lambda n: n - 1)(states.parent)
    found = check(folder, Level.STRUCTURE)
    assert (found.validity, found.level, found.pieces[0].name) == (CORRUPT, Level.NAMES, f"pytorch_model/{states.name}")
    (folder / "pytorch_model").rename(folder / "pytorch_model_1")  # of two models, the second one
    (folder / "pytorch_model").mkdir()
    (folder / "pytorch_model" / states.name).write_bytes(torch_bytes(plain({"dp_world_size": 1})))
    found = check(folder, Level.STRUCTURE)
    assert (found.level, found.pieces[0].name) == (Level.NAMES, f"pytorch_model_1/{states.name}")
    (folder / "pytorch_model_1" / states.name).unlink()
    found = check(folder, Level.NAMES)
    assert (found.validity, found.level) == (INCOMPLETE, None)


@pytest.mark.parametrize(
    ("names", "by_s", "expected"),
    [
        ([MODEL], 600, UNKNOWN),
        ([MODEL, OPTIMIZER], 600, UNKNOWN),
        ([MODEL], 30, VALID),
        ([MODEL, OPTIMIZER, SCHEDULER], 600, VALID),
        (["random_states_1.pkl"], 600, VALID),
        ([RANDOM], 600, VALID),
    ],
)
def test_a_save_over_another_one(names: list[str], by_s: float, expected: Validity, tmp_path: Path) -> None:
    folder = write_state(tmp_path, 3, ranks=2)
    for name in names:
        os.utime(folder / name, (SAVED_AT_S + by_s, SAVED_AT_S + by_s))
    found = check(folder, Level.CONTENT)
    assert (found.validity, "saved over another" in found.reason) == (expected, expected is UNKNOWN)


def test_every_fault_is_named(tmp_path: Path) -> None:
    folder = write_state(tmp_path, 3, ranks=4, kind="sharded")
    remove("random_states_2.pkl", shard_name(2, 2))(folder)
    cut(OPTIMIZER, lambda n: n - 1)(folder)
    found = check(folder, Level.CONTENT)
    assert {piece.name for piece in found.pieces} == {"random_states_2.pkl", shard_name(2, 2), OPTIMIZER}
    assert (found.validity, found.faults) == (CORRUPT, 3)


@pytest.mark.parametrize(
    ("name", "files", "recognised"),
    [
        ("checkpoint_3", [], True),
        ("checkpoint_3", [MODEL], True),
        ("checkpoint_3", [OPTIMIZER], True),
        ("checkpoint_3", ["random_states_1.pkl"], True),
        ("checkpoint_3", ["README.md"], False),
        ("checkpoint_3", [".metadata", "__0_0.distcp"], False),
        ("checkpoint_3", ["manifest.ocdbt"], False),
        ("checkpoint-500", [RANDOM, MODEL], True),
        ("checkpoint-500", [MODEL], False),
        ("epoch_3", [OPTIMIZER, SCHEDULER], True),
        ("epoch_3", [RANDOM], True),
        ("epoch_3", [OPTIMIZER], False),
        ("epoch_3", [], False),
    ],
)
def test_recognition(name: str, files: list[str], recognised: bool, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    for file in files:
        (tmp_path / name / file).touch()
    assert accelerate.recognise(look_at(tmp_path / name)) is recognised


def test_a_save_of_the_trainer_is_not_recognised(tmp_path: Path) -> None:
    assert not accelerate.recognise(look_at(write_trainer(tmp_path, 4)))


def test_what_is_no_folder_is_not_recognised(tmp_path: Path) -> None:
    (tmp_path / "checkpoint_3").touch()
    assert not accelerate.recognise(look_at(tmp_path / "checkpoint_3"))


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("checkpoint_0", 0), ("checkpoint_12", 12), ("checkpoint_012", None), ("checkpoint-5", None),
        ("checkpoint_000004", None), ("checkpoint_5.orbax-checkpoint-tmp", None), ("checkpoint_\u0665", None),
        ("epoch_5", None),
    ],
)  # fmt: skip
def test_numbers_in_names(name: str, number: int | None) -> None:
    assert accelerate.step_named(name) == number


def test_only_content_reads_the_data(tmp_path: Path) -> None:
    folder = write_state(tmp_path, 3)
    header = {"x": {"dtype": "U8", "shape": [3_000_000], "data_offsets": [0, 3_000_000]}}
    write_safe(folder / MODEL, header, bytes(3_000_000))
    assert check(folder, Level.NAMES).bytes_read == 0
    assert check(aged(folder), Level.STRUCTURE).bytes_read < 20_000


def test_the_index_of_a_model_says_what_must_be_there(tmp_path: Path) -> None:
    folder = write_state(tmp_path, 3, kind="sharded")
    index = {"weight_map": {"x": "model-00003-of-00003.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert check(aged(folder), Level.STRUCTURE).validity is INCOMPLETE
