"""Every way in which a checkpoint of the Trainer is known to break, and what each level says about it."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.formats import huggingface
from fleetctl.checkpoint.look import Ledger, Look
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from tests.formats.accelerate import write_state
from tests.formats.damage import Damage, cut, flip, instead, move, put, remove, zeros
from tests.formats.huggingface import SAVED_AT_S, aged, arguments, plain, torch_bytes, write_trainer
from tests.formats.safetensors import shard_name, write_safe

VALID, INCOMPLETE, CORRUPT, UNKNOWN = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT, Validity.UNKNOWN
MODEL, OPTIMIZER, SCHEDULER, STATE, ARGUMENTS = (
    "model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json", "training_args.bin",
)  # fmt: skip
Verdicts = tuple[Validity, Validity, Validity]
ALL_VALID, ALL_INCOMPLETE = (VALID, VALID, VALID), (INCOMPLETE, INCOMPLETE, INCOMPLETE)
AT_STRUCTURE = (VALID, CORRUPT, CORRUPT)


def check(folder: Path, level: Level, ranks: int | None = None) -> Checked:
    return examine(LocalStorage(), folder.parent, Entry(folder.name, 4), level, wanted="huggingface", ranks=ranks)


def look_at(folder: Path) -> Look:
    return Look(LocalStorage(), folder.parent, (folder.name,), Ledger(lambda _: None))


def says(**words: object) -> Damage:
    return put(STATE, json.dumps(words).encode())


def bit_of_a_storage(name: str) -> Damage:
    def damage(folder: Path) -> None:
        raw = (folder / name).read_bytes()
        (folder / name).write_bytes(raw.replace(bytes(range(50, 60)), b"\x33" + bytes(range(51, 60))))

    return damage


# damage -> what NAMES, STRUCTURE and CONTENT say, a word of the reason. Two ranks, weights in one file
DAMAGES: list[tuple[str, Damage, Verdicts, str]] = [
    ("model cut to 0", cut(MODEL, lambda n: 0), AT_STRUCTURE, "model.safetensors has 0 bytes"),
    ("model cut to half", cut(MODEL, lambda n: n // 2), AT_STRUCTURE, "model.safetensors"),
    ("model short of 1", cut(MODEL, lambda n: n - 1), AT_STRUCTURE, "bytes, not"),
    ("model longer by 1", cut(MODEL, lambda n: n + 1), AT_STRUCTURE, "bytes, not"),
    ("bit of the model's data", flip(MODEL, lambda n: n - 1), ALL_VALID, ""),
    ("optimizer cut to 0", cut(OPTIMIZER, lambda n: 0), AT_STRUCTURE, "optimizer.pt has 0 bytes"),
    ("optimizer cut to 1", cut(OPTIMIZER, lambda n: 1), AT_STRUCTURE, "optimizer.pt"),
    ("optimizer cut to half", cut(OPTIMIZER, lambda n: n // 2), AT_STRUCTURE, "optimizer.pt"),
    ("optimizer short of 1", cut(OPTIMIZER, lambda n: n - 1), AT_STRUCTURE, "optimizer.pt"),
    ("optimizer ends in zeros", zeros(OPTIMIZER, lambda n: n - 30, lambda n: 30), AT_STRUCTURE, "optimizer.pt"),
    ("bit of the optimizer", bit_of_a_storage(OPTIMIZER), (VALID, VALID, CORRUPT), "another content"),
    ("hole in the optimizer", zeros(OPTIMIZER, lambda n: torch_bytes().index(bytes(range(100))), lambda n: 100),
     (VALID, VALID, CORRUPT), "another content"),
    ("scheduler cut to half", cut(SCHEDULER, lambda n: n // 2), AT_STRUCTURE, "scheduler.pt"),
    ("bit of the scheduler", bit_of_a_storage(SCHEDULER), (VALID, VALID, CORRUPT), "another content"),
    ("arguments cut to half", cut(ARGUMENTS, lambda n: n // 2), AT_STRUCTURE, "training_args.bin"),
    ("rng cut to half", cut("rng_state_1.pth", lambda n: n // 2), AT_STRUCTURE, "rng_state_1.pth"),
    ("bit of the rng", bit_of_a_storage("rng_state_1.pth"), (VALID, VALID, CORRUPT), "another content"),
    ("no model", remove(MODEL), ALL_INCOMPLETE, "model.safetensors is missing"),
    ("no optimizer", remove(OPTIMIZER), ALL_INCOMPLETE, "optimizer.pt is missing"),
    ("no scheduler", remove(SCHEDULER), ALL_INCOMPLETE, "scheduler.pt is missing"),
    ("no rng at all", remove("rng_state_0.pth", "rng_state_1.pth"), ALL_INCOMPLETE, "rng_state.pth is missing"),
    ("no rng of rank 0", remove("rng_state_0.pth"), (VALID, INCOMPLETE, INCOMPLETE), "rng_state_0.pth is missing"),
    ("no rng of the last", remove("rng_state_1.pth"), (VALID, INCOMPLETE, INCOMPLETE), "rng_state_1.pth is missing"),
    ("no trainer_state.json", remove(STATE), ALL_INCOMPLETE, "trainer_state.json is missing"),
    ("no arguments", remove(ARGUMENTS), ALL_VALID, ""),
    ("only the training state is gone", remove(OPTIMIZER, SCHEDULER, "rng_state_0.pth", "rng_state_1.pth"),
     (VALID, INCOMPLETE, INCOMPLETE), "training_args.bin says"),
    ("state cut to 0", cut(STATE, lambda n: 0), AT_STRUCTURE, "trainer_state.json: no JSON"),
    ("state cut to half", cut(STATE, lambda n: n // 2), AT_STRUCTURE, "trainer_state.json: no JSON"),
    ("state of another step", says(global_step=6), AT_STRUCTURE, "is of step 6, the folder of step 4"),
    ("state without a step", says(epoch=1), AT_STRUCTURE, "says no global_step"),
    ("state with a step of true", says(global_step=True), AT_STRUCTURE, "says no global_step"),
    ("state with half a step", says(global_step=4.0), AT_STRUCTURE, "says no global_step"),
    ("state with an absurd step", says(global_step=10**30), AT_STRUCTURE, "says no global_step"),
    ("state that is a list", put(STATE, b"[4]"), AT_STRUCTURE, "says no global_step"),
    ("state that is deep", put(STATE, b"[" * 100_000), AT_STRUCTURE, "no JSON"),
    ("state of one number", put(STATE, b"9" * 100_000), AT_STRUCTURE, "trainer_state.json"),
    ("a huge state", cut(STATE, lambda n: 1 << 30), AT_STRUCTURE, "more than"),
    ("a FIFO as state", instead(STATE, os.mkfifo), AT_STRUCTURE, "is no file"),
    ("a FIFO as optimizer", instead(OPTIMIZER, os.mkfifo), AT_STRUCTURE, "is no file"),
    ("a link as optimizer", instead(OPTIMIZER, lambda path: path.symlink_to(SCHEDULER)), AT_STRUCTURE, "is no file"),
    ("a link as model", instead(MODEL, lambda path: path.symlink_to(path)), AT_STRUCTURE, "is no file"),
    ("a scaler", put("scaler.pt", torch_bytes()), ALL_VALID, ""),
    ("half a scaler", put("scaler.pt", torch_bytes()[:99]), AT_STRUCTURE, "scaler.pt"),
    ("somebody's file", put("notes.bin", b"x"), ALL_VALID, ""),
    ("a line break in a name", put("a\nb.safetensors", b"x"), AT_STRUCTURE, "a\\nb.safetensors"),
    ("no CRCs in the optimizer", lambda folder: without_crcs(folder / OPTIMIZER), ALL_VALID, ""),
]  # fmt: skip


def without_crcs(path: Path) -> None:
    """As with `torch.utils.serialization.config.save.compute_crc32 = False`."""
    import zipfile

    raw = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        crcs = {entry.CRC.to_bytes(4, "little") for entry in archive.infolist()}
    for crc in crcs:
        raw = raw.replace(crc, bytes(4))
    path.write_bytes(raw)


@pytest.mark.parametrize(("damage", "expected", "word"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_damage(damage: Damage, expected: Verdicts, word: str, tmp_path: Path) -> None:
    folder = write_trainer(tmp_path, 4, ranks=2)
    damage(folder)
    aged(folder)
    for level, validity in zip(Level, expected, strict=True):
        found = check(folder, level)
        assert found.validity is validity, (level, found.reason)
        assert word in found.reason or validity is VALID
        assert found.reason.isprintable()
        assert found.uncommitted == (not (folder / STATE).exists() and not (folder / STATE).is_fifo())


@pytest.mark.parametrize(
    ("names", "by_s", "expected"),
    [
        ([MODEL, ARGUMENTS], 600, UNKNOWN),  # a save over this one, which did not come to the optimizer
        ([MODEL, ARGUMENTS, OPTIMIZER], 600, UNKNOWN),
        ([MODEL, ARGUMENTS], 30, VALID),  # as a copy without its times may look
        ([MODEL, ARGUMENTS, OPTIMIZER, SCHEDULER], 600, VALID),  # a copy, in another order
        ([MODEL, OPTIMIZER, SCHEDULER, STATE], 600, VALID),
        (["rng_state_1.pth"], 600, VALID),  # the other rank is slow
        ([STATE], 600, VALID),
    ],
)
def test_a_save_over_another_one(names: list[str], by_s: float, expected: Validity, tmp_path: Path) -> None:
    folder = write_trainer(tmp_path, 4, ranks=2)
    for name in names:
        os.utime(folder / name, (SAVED_AT_S + by_s, SAVED_AT_S + by_s))
    found = check(folder, Level.CONTENT)
    assert (found.validity, "saved over another" in found.reason) == (expected, expected is UNKNOWN)


@pytest.mark.parametrize("kind", ["single", "sharded", "bin", "adapter"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_whole_one_is_valid(kind: str, ranks: int, tmp_path: Path) -> None:
    folder = write_trainer(tmp_path, 4, ranks=ranks, kind=kind)
    deepest = Level.CONTENT if kind == "bin" else Level.STRUCTURE  # safetensors carries no checksum
    for level in Level:
        found = check(folder, level)
        assert (found.validity, found.level) == (VALID, min(level, deepest)), found.reason
        assert (found.resumable, found.uncommitted, found.ranks) == (True, False, None)
    assert (found.deepest, found.saved_at) == (deepest, datetime.fromtimestamp(SAVED_AT_S, UTC))
    assert found.size_bytes == sum(path.stat().st_size for path in folder.iterdir())


def test_one_file_without_crcs_leaves_it_at_structure(tmp_path: Path) -> None:
    folder = write_trainer(tmp_path, 4, kind="bin")
    without_crcs(folder / OPTIMIZER)
    found = check(aged(folder), Level.CONTENT)
    assert (found.validity, found.level, found.deepest) == (VALID, Level.STRUCTURE, Level.STRUCTURE)
    assert found.reason == "optimizer.pt: the format has no checksum"


def test_several_adapters_have_a_folder_each(tmp_path: Path) -> None:
    folder = write_trainer(tmp_path, 4, kind="none")
    for name in ("first", "second"):
        write_safe(folder / name / "adapter_model.safetensors")
    assert check(folder, Level.STRUCTURE).validity is VALID
    cut("adapter_model.safetensors", lambda n: n - 1)(folder / "second")
    found = check(folder, Level.STRUCTURE)
    assert (found.validity, found.pieces[0].name) == (CORRUPT, "second/adapter_model.safetensors")


def test_a_save_of_the_model_alone_is_nothing_to_resume_from(tmp_path: Path) -> None:
    folder = write_trainer(tmp_path, 4, only_model=True)
    for level in Level:
        found = check(folder, level)
        assert (found.validity, found.resumable) == (VALID, False)


def test_all_faults_are_named(tmp_path: Path) -> None:
    folder = write_trainer(tmp_path, 4, ranks=4, kind="sharded")
    remove("rng_state_2.pth", SCHEDULER, shard_name(1, 2))(folder)
    cut(OPTIMIZER, lambda n: n - 1)(folder)
    found = check(folder, Level.CONTENT)
    names = sorted(piece.name for piece in found.pieces)
    assert names == sorted(["rng_state_2.pth", SCHEDULER, shard_name(1, 2), OPTIMIZER])
    assert (found.validity, found.faults, found.level) == (CORRUPT, 4, None)


SHARDS = [f"pytorch_model-{number:05d}-of-00002.bin" for number in (1, 2)]


def in_bin_shards(folder: Path) -> None:
    for name in SHARDS:
        (folder / name).write_bytes(torch_bytes())
    index = {"metadata": {}, "weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "expected", "word"),
    [
        (lambda folder: None, ALL_VALID, ""),
        (remove(SHARDS[1]), ALL_INCOMPLETE, f"{SHARDS[1]} is missing"),
        (remove("pytorch_model.bin.index.json"), ALL_INCOMPLETE, "pytorch_model.bin.index.json is missing"),
        (cut(SHARDS[0], lambda n: n - 1), AT_STRUCTURE, SHARDS[0]),
        (bit_of_a_storage(SHARDS[0]), (VALID, VALID, CORRUPT), "another content"),
        (put("pytorch_model.bin.index.json", b"{}"), AT_STRUCTURE, "no index"),
        (put("pytorch_model.bin.index.json", b'{"weight_map":{"a":"more.bin"}}'),
         (VALID, INCOMPLETE, INCOMPLETE), "more.bin is missing"),
    ],
)  # fmt: skip
def test_weights_of_torch_in_shards(damage: Damage, expected: Verdicts, word: str, tmp_path: Path) -> None:
    folder = write_trainer(tmp_path, 4, kind="none")
    in_bin_shards(folder)
    damage(folder)
    aged(folder)
    for level, validity in zip(Level, expected, strict=True):
        found = check(folder, level)
        assert (found.validity, word in found.reason or validity is VALID) == (validity, True), found.reason


# (ranks of the step before, of this one, of the training now) -> what is missing; nothing says how many there were
@pytest.mark.parametrize(
    ("before", "have", "now", "missing"),
    [
        (None, 2, None, []),
        (None, 2, 2, []),
        (None, 2, 3, ["rng_state_2.pth"]),
        (3, 2, None, ["rng_state_2.pth"]),
        (3, 2, 2, []),
        (2, 2, 4, []),
        (3, 2, 4, ["rng_state_2.pth"]),
        (2, 3, 1, []),
    ],
)
def test_ranks_that_nothing_tells(
    before: int | None, have: int, now: int | None, missing: list[str], tmp_path: Path
) -> None:
    if before is not None:
        write_trainer(tmp_path, 2, ranks=before, said_ranks=False)
    folder = write_trainer(tmp_path, 4, ranks=have, said_ranks=False)
    write_trainer(tmp_path, 6, ranks=9)
    found = check(folder, Level.STRUCTURE, now)
    assert [piece.name for piece in found.pieces] == missing


def test_ranks_that_the_arguments_tell_count_before_all_others(tmp_path: Path) -> None:
    write_trainer(tmp_path, 2, ranks=4)
    folder = write_trainer(tmp_path, 4, ranks=2)
    assert check(folder, Level.STRUCTURE, 8).validity is VALID
    folder = write_trainer(tmp_path, 6, ranks=2)
    (folder / ARGUMENTS).write_bytes(torch_bytes(arguments(3)))
    found = check(folder, Level.STRUCTURE, 2)
    assert [piece.name for piece in found.pieces] == ["rng_state_2.pth"]


@pytest.mark.parametrize(
    "value", [b"N", b"K\x05", b"\x8a\x09" + b"\xff" * 8 + b"\0", b"cos\nsystem\nX\4\0\0\0true\x85R"]
)
def test_arguments_that_say_nothing_are_no_fault(value: bytes, tmp_path: Path) -> None:
    folder = write_trainer(tmp_path, 4, ranks=2)
    (folder / ARGUMENTS).write_bytes(torch_bytes(value))
    assert check(folder, Level.CONTENT).validity is VALID


def test_a_save_of_fsdp_in_one_file_each(tmp_path: Path) -> None:
    folder = write_trainer(tmp_path, 4, ranks=2, kind="none")
    move(OPTIMIZER, "optimizer.bin")(folder)
    (folder / "pytorch_model_fsdp.bin").write_bytes(torch_bytes())
    found = check(aged(folder), Level.CONTENT)
    assert (found.validity, found.level) == (VALID, Level.CONTENT)
    cut("pytorch_model_fsdp.bin", lambda n: n - 1)(folder)
    assert check(folder, Level.STRUCTURE).validity is CORRUPT


def test_a_save_of_deepspeed(tmp_path: Path) -> None:
    folder = write_trainer(tmp_path, 4, kind="none")
    remove(OPTIMIZER, SCHEDULER)(folder)
    (folder / "global_step4").mkdir()
    states = folder / "global_step4" / "mp_rank_00_model_states.pt"
    states.write_bytes(torch_bytes(plain({"global_steps": 4, "dp_world_size": 1, "mp_world_size": 1})))
    assert [piece.name for piece in check(folder, Level.NAMES).pieces] == ["latest"]
    (folder / "latest").write_text("global_step3\n")
    assert check(folder, Level.NAMES).validity is VALID
    found = check(folder, Level.STRUCTURE)
    assert (found.validity, "names 'global_step3'" in found.reason) == (CORRUPT, True)
    (folder / "latest").write_text("global_step4")
    found = check(folder, Level.CONTENT)
    assert (found.validity, found.level) == (VALID, Level.CONTENT)
    bit_of_a_storage("mp_rank_00_model_states.pt")(states.parent)
    assert check(folder, Level.STRUCTURE).validity is VALID
    assert check(folder, Level.CONTENT).validity is CORRUPT
    states.unlink()
    found = check(folder, Level.NAMES)
    assert (found.validity, found.level) == (INCOMPLETE, None)


@pytest.mark.parametrize(
    ("name", "files", "recognised"),
    [
        ("checkpoint-4", [], True),
        ("checkpoint-4", [MODEL], True),
        ("checkpoint-4", ["model-00001-of-00002.safetensors"], True),
        ("checkpoint-4", [ARGUMENTS], True),
        ("checkpoint-4", ["rng_state_1.pth"], True),
        ("checkpoint-4", ["README.md"], False),
        ("checkpoint-4", [".metadata", "__0_0.distcp"], False),
        ("checkpoint-4", [MODEL, "optimizer.bin", "scheduler.bin", "random_states_0.pkl"], False),
        ("best", [MODEL, STATE], True),
        ("best", [MODEL, OPTIMIZER, SCHEDULER], True),
        ("best", [MODEL, ARGUMENTS], False),
        ("best", [], False),
        ("step-4", [MODEL], False),
    ],
)  # fmt: skip
def test_recognition(name: str, files: list[str], recognised: bool, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    for file in files:
        (tmp_path / name / file).touch()
    assert huggingface.recognise(look_at(tmp_path / name)) is recognised


def test_what_is_no_folder_is_not_recognised(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-4").touch()
    assert not huggingface.recognise(look_at(tmp_path / "checkpoint-4"))
    write_trainer(tmp_path / "there", 6)
    (tmp_path / "checkpoint-6").symlink_to(tmp_path / "there" / "checkpoint-6")
    assert not huggingface.recognise(look_at(tmp_path / "checkpoint-6"))


def test_a_save_of_accelerate_is_not_recognised(tmp_path: Path) -> None:
    assert not huggingface.recognise(look_at(write_state(tmp_path, 4, name="checkpoint-4")))


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-0", 0), ("checkpoint-500", 500), ("checkpoint-0500", None), ("checkpoint-", None),
        ("checkpoint_5", None), ("checkpoint-5.tmp", None), ("tmp-checkpoint-5", None), ("checkpoint--5", None),
        ("checkpoint-5\n", None), ("checkpoint-\u0665", None), ("checkpoint-" + "9" * 19, None), ("step-5", None),
    ],
)  # fmt: skip
def test_steps_in_names(name: str, step: int | None) -> None:
    assert huggingface.step_named(name) == step


def test_a_folder_with_another_name_says_its_step_inside(tmp_path: Path) -> None:
    folder = write_trainer(tmp_path, 4).rename(tmp_path / "best")
    assert huggingface.FORMAT.peek(look_at(folder)) == 4
    assert check(folder, Level.STRUCTURE).validity is VALID
    (folder / STATE).write_bytes(b"{")
    assert huggingface.FORMAT.peek(look_at(folder)) is None


def test_only_content_reads_the_data(tmp_path: Path) -> None:
    folder = aged(write_trainer(tmp_path, 4))
    write_safe(
        folder / MODEL, {"x": {"dtype": "U8", "shape": [3_000_000], "data_offsets": [0, 3_000_000]}}, bytes(3_000_000)
    )
    assert check(folder, Level.NAMES).bytes_read == 0
    assert check(folder, Level.STRUCTURE).bytes_read < 20_000
