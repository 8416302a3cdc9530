"""Every way in which a checkpoint of Lightning is known to break, and what each level says about it."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleetctl.checkpoint import known
from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.formats import lightning
from fleetctl.checkpoint.look import Ledger, Look
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.checkpoint.survey import survey
from tests.formats.damage import Damage, cut, flip, instead, move, put, remove, zeros
from tests.formats.dcp import SAVED_AT_S, put_at, slice_bytes
from tests.formats.deepspeed import optimizer_bytes
from tests.formats.lightning import keys, write_deepspeed, write_file, write_folder
from tests.formats.torch import data, torch_bytes

VALID, INCOMPLETE, CORRUPT, UNKNOWN = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT, Validity.UNKNOWN
NAME, META, DCP, SHARD = "epoch=0-step=120.ckpt", "meta.pt", ".metadata", "__1_0.distcp"
GOOD, S_C, S_I = (VALID,) * 3, (VALID, CORRUPT, CORRUPT), (VALID, INCOMPLETE, INCOMPLETE)
ALL_I, ALL_C, C_ONLY = (INCOMPLETE,) * 3, (CORRUPT,) * 3, (VALID, VALID, CORRUPT)


def look_at(path: Path) -> Look:
    return Look(LocalStorage(), path.parent, (path.name,), Ledger(lambda _: None))


def check(path: Path, level: Level) -> Checked:
    return examine(LocalStorage(), path.parent, Entry(path.name, 120), level, wanted="lightning")


def judge(path: Path, expected: tuple[Validity, ...], word: str) -> None:
    for level, validity in zip(Level, expected, strict=True):
        found = check(path, level)
        assert found.validity is validity, (level, found.reason)
        passed = [one for one, said in zip(Level, expected, strict=True) if said is VALID and one <= level]
        assert found.level == max(passed, default=None)
        assert found.format == "lightning"
        assert found.reason.isprintable()
        assert word in found.reason if validity is not VALID else found.reason == ""


def says(**words: object) -> Damage:
    """With other words of its keys; None takes one away."""

    def damage(folder: Path) -> None:
        record = {key: value for key, value in {**keys(120), **words}.items() if value is not None}
        write_file(folder, NAME, record)

    return damage


def where_data_lies(name: str) -> int:
    """A place in the numbers of its first tensor."""
    raw = torch_bytes(keys(120), stem=name.removesuffix(".ckpt"))
    return raw.index(b"/data/0") + 400


VERSION = "pytorch-lightning_version"
FILE_DAMAGES: list[tuple[str, Damage, tuple[Validity, Validity, Validity], str]] = [
    ("cut to 0", cut(NAME, lambda n: 0), S_C, "has 0 bytes"),
    ("cut to 1", cut(NAME, lambda n: 1), S_C, "zip directory"),
    ("cut to 100", cut(NAME, lambda n: 100), S_C, "zip directory"),
    ("cut to half", cut(NAME, lambda n: n // 2), S_C, "zip directory"),
    ("cut by the end record", cut(NAME, lambda n: n - 22), S_C, "zip directory"),
    ("short of 1", cut(NAME, lambda n: n - 1), S_C, "zip directory"),
    ("longer by 1", cut(NAME, lambda n: n + 1), S_C, "zip directory"),
    ("tail of zeros", zeros(NAME, lambda n: n - 500, lambda n: 500), S_C, "zip directory"),
    ("all zeros", zeros(NAME, lambda n: 0, lambda n: n), S_C, "zip directory"),
    ("bit of the data", flip(NAME, lambda n: where_data_lies(NAME)), C_ONLY, "another content"),
    ("hole in the data", zeros(NAME, lambda n: where_data_lies(NAME), lambda n: 512), C_ONLY, "another content"),
    ("bit of the pickle", flip(NAME, lambda n: 200), S_C, "another content"),
    ("bit of the directory", flip(NAME, lambda n: n - 120), S_C, "the header of"),
    ("no state_dict", says(state_dict=None), S_C, "has no state_dict"),
    ("no global_step", says(global_step=None), S_C, "has no global_step"),
    ("no epoch", says(epoch=None), S_C, "has no epoch"),
    ("no version", says(**{VERSION: None}), S_C, f"has no {VERSION}"),
    ("a step that is none", says(global_step="120"), S_C, "no count"),
    ("a negative step", says(global_step=-1), S_C, "no count"),
    ("of another step", says(global_step=80), S_C, "is of step 80, and its name says 120"),
    ("no dict", lambda folder: write_file(folder, NAME, [VERSION]), S_C, "holds no dict"),
    ("another kind of file", put(NAME, b"hello" * 100), S_C, "zip directory"),
    ("no loops, as Lightning 1.4", says(loops=None), GOOD, ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "expected", "word"), [row[1:] for row in FILE_DAMAGES], ids=[row[0] for row in FILE_DAMAGES]
)
def test_damage_of_a_file(damage: Damage, expected: tuple[Validity, ...], word: str, tmp_path: Path) -> None:
    path = write_file(tmp_path, NAME)
    damage(tmp_path)
    judge(path, expected, word)


def older_meta(folder: Path) -> None:
    os.utime(folder / META, (SAVED_AT_S - 600, SAVED_AT_S - 600))


def meta(record: object) -> Damage:
    return lambda folder: put_at(folder / META, torch_bytes(record, {}, stem="meta"), SAVED_AT_S + 1)


WEIGHT = slice_bytes(10, 200).index(data(200)) + 100  # a place in the numbers of the first slice
META_120 = {"epoch": 0, "global_step": 120, VERSION: "2.6.6", "lr_schedulers": []}
FOLDER_DAMAGES: list[tuple[str, Damage, tuple[Validity, Validity, Validity], str]] = [
    ("no meta.pt", remove(META), ALL_I, "meta.pt is missing"),
    ("no metadata", remove(DCP), ALL_I, ".metadata is missing"),
    ("neither", remove(META, DCP), ALL_I, "missing"),
    ("nothing but shards of one rank", remove(META, DCP, SHARD), ALL_I, "missing"),
    ("nothing", remove(META, DCP, SHARD, "__0_0.distcp"), ALL_I, "missing"),
    ("a shard gone", remove(SHARD), S_I, f"{SHARD} is missing"),
    ("a shard cut to 0", cut(SHARD, lambda n: 0), S_C, "has 0 bytes"),
    ("a shard short of 1", cut(SHARD, lambda n: n - 1), S_C, "bytes, not"),
    ("bit of a shard", flip(SHARD, lambda n: WEIGHT), C_ONLY, SHARD),
    ("meta.pt cut to 0", cut(META, lambda n: 0), S_C, "meta.pt has 0 bytes"),
    ("meta.pt cut to half", cut(META, lambda n: n // 2), S_C, META),
    ("meta.pt short of 1", cut(META, lambda n: n - 1), S_C, META),
    ("bit of meta.pt", flip(META, lambda n: 200), S_C, "meta.pt"),
    ("a FIFO as meta.pt", instead(META, os.mkfifo), ALL_C, "meta.pt is no file"),
    ("meta.pt of another step", meta({**META_120, "global_step": 80}), S_C, "meta.pt is of step 80"),
    ("meta.pt without a step", meta({**META_120, "global_step": None}), S_C, "meta.pt has no global_step"),
    ("meta.pt without a dict", meta([1]), S_C, "meta.pt holds no dict"),
    ("meta.pt of Fabric, with what its user wants", meta({"batch": 7}), GOOD, ""),
    ("a step that is no count, of Fabric", meta({"global_step": "x"}), S_C, "no count"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "expected", "word"), [row[1:] for row in FOLDER_DAMAGES], ids=[row[0] for row in FOLDER_DAMAGES]
)
def test_damage_of_a_folder(damage: Damage, expected: tuple[Validity, ...], word: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    damage(folder)
    judge(folder, expected, word)


@pytest.mark.parametrize("level", list(Level))
def test_a_whole_file_is_valid(level: Level, tmp_path: Path) -> None:
    path = write_file(tmp_path)
    os.utime(path, (SAVED_AT_S, SAVED_AT_S))
    found = check(path, level)
    assert (found.validity, found.level, found.reason) == (VALID, level, "")
    assert (found.resumable, found.uncommitted, found.ranks) == (True, False, None)
    assert found.saved_at == datetime(2026, 1, 1, tzinfo=UTC)
    if level > Level.NAMES:
        assert found.size_bytes == path.stat().st_size


@pytest.mark.parametrize("level", list(Level))
def test_a_whole_folder_is_valid(level: Level, tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    found = check(folder, level)
    assert (found.validity, found.level, found.reason) == (VALID, level, "")
    assert (found.resumable, found.uncommitted, found.ranks) == (True, False, None)
    assert found.saved_at == datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)
    if level > Level.NAMES:
        wanted = sum(path.stat().st_size for path in folder.iterdir() if path.name != DCP)
        assert found.size_bytes == wanted


@pytest.mark.parametrize("left", [(META,), (META, DCP), (DCP,)], ids=str)
def test_a_folder_without_what_is_written_last_was_never_finished(left: tuple[str, ...], tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    remove(*left)(folder)
    assert check(folder, Level.NAMES).uncommitted


@pytest.mark.parametrize("key", ["optimizer_states", "lr_schedulers"])
def test_weights_alone_cannot_be_resumed_from(key: str, tmp_path: Path) -> None:
    """As `save_weights_only=True` writes; Lightning refuses to resume without either of these."""
    path = write_file(tmp_path, NAME, {name: value for name, value in keys(120).items() if name != key})
    found = check(path, Level.CONTENT)
    assert (found.validity, found.level, found.resumable) == (VALID, Level.CONTENT, False)


def test_weights_alone_in_a_folder(tmp_path: Path) -> None:
    record = {name: value for name, value in META_120.items() if name != "lr_schedulers"}
    assert not check(write_folder(tmp_path, NAME, record), Level.STRUCTURE).resumable
    assert check(write_folder(tmp_path, "step=7.ckpt", {"a": 1}), Level.STRUCTURE).resumable  # Fabric's


def test_without_crcs_the_content_is_not_proved(tmp_path: Path) -> None:
    found = check(write_file(tmp_path, crcs=False), Level.CONTENT)
    assert (found.validity, found.level, found.deepest) == (VALID, Level.STRUCTURE, Level.STRUCTURE)


@pytest.mark.parametrize("key", ["best_model_path", "last_model_path", "kth_best_model_path"])
def test_a_training_that_logs_a_step_of_its_own_has_that_in_the_names(key: str, tmp_path: Path) -> None:
    """`self.log("step", ...)` goes into the name; ModelCheckpoint notes the name before it saves."""
    path = write_file(tmp_path, NAME, keys(12, paths={key: f"/somewhere/{NAME}"}))
    assert check(path, Level.CONTENT).validity is VALID
    path = write_file(tmp_path, NAME, keys(12, paths={key: "/somewhere/epoch=0-step=80.ckpt"}))
    assert check(path, Level.STRUCTURE).validity is CORRUPT


def test_last_that_was_written_over_and_never_finished(tmp_path: Path) -> None:
    """New shards and metadata, and the `meta.pt` of the save before."""
    folder = write_folder(tmp_path, "last.ckpt")
    assert check(folder, Level.CONTENT).validity is VALID
    older_meta(folder)
    judge(folder, (VALID, UNKNOWN, UNKNOWN), "meta.pt is 600 s older than .metadata")


def test_a_copy_without_times_has_any_order(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, NAME)
    older_meta(folder)
    assert check(folder, Level.CONTENT).validity is VALID


@pytest.mark.parametrize(
    ("name", "step"),
    [
        (NAME, 120), ("step=7.ckpt", 7), ("epoch=02-step=000400-v1.ckpt", 400), ("a-step=5-loss=0.25.ckpt", 5),
        ("last.ckpt", None), ("hpc_ckpt_3.ckpt", None), ("epoch=3.ckpt", None), ("step=5.pt", None),
        ("mystep=5.ckpt", None), ("step=.ckpt", None), ("step=5", None), ("step=5.ckpt.tmp", None), ("", None),
        ("step=" + "9" * 19 + ".ckpt", None),
    ],
)  # fmt: skip
def test_a_step_from_a_name(name: str, step: int | None) -> None:
    assert lightning.step_named(name) == step


def test_steps_of_names_that_say_none(tmp_path: Path) -> None:
    """hpc_ckpt_N counts saves, last is the newest, and users choose names: the step stands inside."""
    for step, name in ((120, "hpc_ckpt_3.ckpt"), (160, "last.ckpt"), (40, "best.ckpt")):
        write_file(tmp_path, name, keys(step))
    write_folder(tmp_path, "last-v1.ckpt")
    write_file(tmp_path, NAME)
    (tmp_path / "latest.ckpt").symlink_to(NAME)
    found = survey(LocalStorage(), tmp_path, "auto")
    assert {entry.name: entry.training_step for entry in found.entries} == {
        "hpc_ckpt_3.ckpt": 120,
        "last.ckpt": 160,
        "best.ckpt": 40,
        "last-v1.ckpt": 120,
        NAME: 120,
    }
    assert found.foreign == ("latest.ckpt",)


@pytest.mark.parametrize("name", [NAME, "hpc_ckpt_3.ckpt", "last.ckpt", "last-v2.ckpt", "epoch=1-step=9-v1.ckpt"])
@pytest.mark.parametrize("raw", [b"", b"x", bytes(5000)], ids=["empty", "one byte", "zeros"])
def test_what_is_torn_is_recognised_by_its_name(name: str, raw: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(raw)
    assert lightning.recognise(look_at(tmp_path / name))


def test_what_is_cut_short_is_recognised_by_its_first_bytes(tmp_path: Path) -> None:
    path = write_file(tmp_path, "of-its-users-choice.ckpt")
    cut(path.name, lambda n: n // 2)(tmp_path)
    assert check(path, Level.STRUCTURE).validity is CORRUPT


def test_what_is_none(tmp_path: Path) -> None:
    """Other files of torch, and the folders of others with such a name."""
    (tmp_path / "last.ckpt").write_bytes(torch_bytes())
    (tmp_path / "other.ckpt").write_bytes(b"")
    (tmp_path / "step=5.ckpt").mkdir()
    write_folder(tmp_path, "plain")
    (tmp_path / "plain" / META).unlink()
    (tmp_path / "epoch=0-step=5.ckpt" / "checkpoint").mkdir(parents=True)
    (tmp_path / "epoch=0-step=5.ckpt" / "checkpoint" / "notes").write_text("")
    (tmp_path / "epoch=0-step=6.ckpt").mkdir()
    (tmp_path / "epoch=0-step=6.ckpt" / "checkpoint").write_text("")
    (write_deepspeed(tmp_path, "a-folder") / "latest").unlink()
    (tmp_path / "b-folder" / "checkpoint").mkdir(parents=True)
    (tmp_path / "b-folder" / "latest").write_text("checkpoint")
    (tmp_path / "link.ckpt").symlink_to(write_file(tmp_path, NAME))
    folders = "epoch=0-step=5.ckpt", "epoch=0-step=6.ckpt", "a-folder", "b-folder"
    for name in ("last.ckpt", "other.ckpt", "step=5.ckpt", "plain", *folders, "link.ckpt"):
        assert not lightning.recognise(look_at(tmp_path / name)), name


PART, STATES = "checkpoint/zero_pp_rank_1_mp_rank_00_optim_states.pt", "checkpoint/mp_rank_00_model_states.pt"


def all_gone(folder: Path) -> None:
    for path in (folder / "checkpoint").iterdir():
        path.unlink()


DEEPSPEED_DAMAGES: list[tuple[str, Damage, tuple[Validity, Validity, Validity], str]] = [
    ("nothing", lambda folder: None, GOOD, ""),
    ("part gone", remove(PART), S_I, f"{PART} is missing"),
    ("model gone", remove(STATES), ALL_I, f"{STATES} is missing"),
    ("all of it gone", all_gone, ALL_I, STATES),
    ("part cut", cut(PART, lambda n: n // 2), S_C, PART),
    ("bit of a part", flip(PART, lambda n: n // 2), C_ONLY, "another content"),
    ("no pointer", remove("latest"), ALL_I, "latest is missing"),
    ("pointer to another", put("latest", b"global_step5"), S_C, "latest names 'global_step5'"),
    ("pointer of zeros", put("latest", bytes(9)), S_C, "latest names"),
    ("pointer of any length", cut("latest", lambda n: 1 << 30), S_C, "more than"),
    ("a link as pointer", instead("latest", lambda path: path.symlink_to("x")), ALL_C, "is no file"),
    ("no script to convert it", remove("zero_to_fp32.py"), GOOD, ""),
]


@pytest.mark.parametrize(("damage", "expected", "word"), [row[1:] for row in DEEPSPEED_DAMAGES],
                         ids=[row[0] for row in DEEPSPEED_DAMAGES])  # fmt: skip
@pytest.mark.parametrize("name", [NAME, "last.ckpt", "of-its-users-choice.ckpt"])
def test_a_folder_of_the_deepspeed_strategy(
    name: str, damage: Callable[[Path], object], expected: tuple[Validity, ...], word: str, tmp_path: Path
) -> None:
    folder = write_deepspeed(tmp_path, name)
    damage(folder)
    judge(folder, expected, word)
    assert known.recognise(look_at(folder), "auto") is lightning.FORMAT
    found = check(folder, Level.NAMES)
    assert found.uncommitted == (not (folder / "latest").is_file() and not (folder / "latest").is_symlink())


def test_what_a_step_of_deepspeed_says(tmp_path: Path) -> None:
    folder = write_deepspeed(tmp_path, NAME)
    found = check(folder, Level.CONTENT)
    assert (found.level, found.training_step, found.ranks, found.resumable) == (Level.CONTENT, 120, 2, True)
    assert lightning.peek(look_at(folder)) == 120
    part = folder / PART
    part.write_bytes(optimizer_bytes(2, 1, crcs=False))
    assert check(folder, Level.CONTENT).reason == f"{PART}: the format has no checksum"


def test_fabric_has_folders_of_any_name(tmp_path: Path) -> None:
    assert lightning.recognise(look_at(write_deepspeed(tmp_path, "of-deepspeed")))
    assert lightning.recognise(look_at(write_folder(tmp_path, "state")))


def test_a_folder_that_was_renamed_away_is_gone(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    move(NAME, "elsewhere")(tmp_path)
    assert check(folder, Level.CONTENT).reason == "is gone"


def test_only_content_reads_the_data(tmp_path: Path) -> None:
    record = keys(120)
    path = tmp_path / NAME
    path.write_bytes(torch_bytes(record, {0: bytes(3_000_000)}, stem="a"))
    assert check(path, Level.NAMES).bytes_read <= 64 << 10
    assert check(path, Level.STRUCTURE).bytes_read < 100_000
    assert check(path, Level.CONTENT).bytes_read > 3_000_000
