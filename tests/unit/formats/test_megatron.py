"""Every way in which a step of Megatron-LM is known to break, and what each level says about it."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleetctl.checkpoint import known
from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.formats import megatron
from fleetctl.checkpoint.look import Ledger, Look
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.checkpoint.survey import survey
from tests.formats.damage import Damage, cut, flip, instead, put, remove, zeros
from tests.formats.dcp import SAVED_AT_S, value_bytes
from tests.formats.megatron import (
    common_bytes,
    model_bytes,
    put_commit,
    put_integrity,
    write_dist,
    write_legacy,
)
from tests.formats.torch import torch_bytes

VALID, INCOMPLETE, CORRUPT, UNKNOWN = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT, Validity.UNKNOWN
Verdicts = tuple[Validity, Validity, Validity]
ALL_VALID, ALL_INCOMPLETE, ALL_CORRUPT, ALL_UNKNOWN = (VALID,) * 3, (INCOMPLETE,) * 3, (CORRUPT,) * 3, (UNKNOWN,) * 3
AT_STRUCTURE, AT_CONTENT, GAP = (VALID, CORRUPT, CORRUPT), (VALID, VALID, CORRUPT), (VALID, INCOMPLETE, INCOMPLETE)
UNJUDGED = (VALID, UNKNOWN, UNKNOWN)
SHARD, COMMIT, COMMON, METADATA = "__1_0.distcp", "metadata.json", "common.pt", ".metadata"
MODEL = "mp_rank_01_001/model_optim_rng.pt"
TRACKER = "latest_checkpointed_iteration.txt"


def check(folder: Path, level: Level, ranks: int | None = None) -> Checked:
    return examine(LocalStorage(), folder.parent, Entry(folder.name, 20), level, ranks=ranks)


def look_at(folder: Path) -> Look:
    return Look(LocalStorage(), folder.parent, (folder.name,), Ledger(lambda _: None))


def judge(folder: Path, damage: Damage, expected: Verdicts, word: str) -> None:
    damage(folder)
    found = [check(folder, level) for level in Level]
    assert tuple(one.validity for one in found) == expected, [one.reason for one in found]
    assert word in found[-1].reason
    passed = None
    for level, one in zip(Level, found, strict=True):
        passed = level if one.validity is VALID else passed
        assert (one.level, one.format) == (passed, "megatron")
        assert one.reason.isprintable()


DIST: list[tuple[str, Damage, Verdicts, str]] = [
    ("shard cut to 0", cut(SHARD, lambda n: 0), AT_STRUCTURE, "has 0 bytes"),
    ("shard cut to half", cut(SHARD, lambda n: n // 2), AT_STRUCTURE, SHARD),
    ("shard short of 1", cut(SHARD, lambda n: n - 1), AT_STRUCTURE, SHARD),
    ("bit of a shard's data", flip(SHARD, lambda n: n // 4), AT_CONTENT, "another content"),
    ("hole in a shard", zeros(SHARD, lambda n: n // 8, lambda n: n // 8), AT_STRUCTURE, SHARD),
    ("no shard", remove(SHARD), GAP, f"{SHARD} is missing"),
    ("no .metadata", remove(METADATA), ALL_INCOMPLETE, f"{METADATA} is missing"),
    (".metadata cut to half", cut(METADATA, lambda n: n // 2), AT_STRUCTURE, METADATA),
    ("no metadata.json", remove(COMMIT), ALL_INCOMPLETE, f"{COMMIT} is missing"),
    ("metadata.json cut to 0", cut(COMMIT, lambda n: 0), AT_STRUCTURE, COMMIT),
    ("metadata.json cut to half", cut(COMMIT, lambda n: n // 2), AT_STRUCTURE, COMMIT),
    ("metadata.json of nothing", put(COMMIT, b"{}"), AT_STRUCTURE, "sharded_backend"),
    ("metadata.json of a list", put(COMMIT, b"[]"), AT_STRUCTURE, COMMIT),
    ("metadata.json that is deep", put(COMMIT, b"[" * 10_000), AT_STRUCTURE, COMMIT),
    ("metadata.json that is huge", cut(COMMIT, lambda n: 1 << 30), AT_STRUCTURE, "more than"),
    ("metadata.json of another backend", lambda folder: put_commit(folder, "zarr"), UNJUDGED, "backend is zarr"),
    ("a FIFO as metadata.json", instead(COMMIT, os.mkfifo), ALL_CORRUPT, "is no file"),
    ("common cut to 0", cut(COMMON, lambda n: 0), AT_STRUCTURE, f"{COMMON} has 0 bytes"),
    ("common cut to half", cut(COMMON, lambda n: n // 2), AT_STRUCTURE, COMMON),
    ("bit of common", flip(COMMON, lambda n: 200), AT_STRUCTURE, COMMON),
    ("bit of common's data", flip(COMMON, lambda n: n // 2), AT_CONTENT, f"{COMMON}: 'common/data/0' has another"),
    ("common of another iteration", put(COMMON, common_bytes(10)), AT_STRUCTURE, "iteration 10, not 20"),
    ("common without an iteration", put(COMMON, value_bytes({"args": None})), ALL_VALID, ""),
    ("common of a list", put(COMMON, value_bytes([1])), ALL_VALID, ""),
    ("common of an absurd iteration", put(COMMON, value_bytes({"iteration": -20})), ALL_VALID, ""),
    ("no common", remove(COMMON), ALL_VALID, ""),
    ("a dead fork, as training-gym#506", remove(METADATA, COMMIT), ALL_INCOMPLETE, f"{COMMIT} is missing (and 1 more)"),
    ("nothing but common", remove(METADATA, COMMIT, "__0_0.distcp", SHARD), ALL_INCOMPLETE, f"{COMMIT} is missing"),
    ("nothing but shards", remove(METADATA, COMMIT, COMMON), ALL_INCOMPLETE, f"{COMMIT} is missing"),
    ("left of another save", put(".metadata.tmp", b"x"), ALL_CORRUPT, ".metadata.tmp"),
    ("a data loader's state", lambda folder: (folder / "mp_rank_00").mkdir(), ALL_VALID, ""),
    ("somebody's file", put("run_config.yaml", b"x"), ALL_VALID, ""),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "expected", "word"), [row[1:] for row in DIST], ids=[row[0] for row in DIST])
def test_damage(damage: Damage, expected: Verdicts, word: str, tmp_path: Path) -> None:
    judge(write_dist(tmp_path, 20), damage, expected, word)


def changed(**words: object) -> Damage:
    return lambda folder: put_integrity(folder, **words)


def with_file(name: str) -> Damage:
    return changed(files={name: hashlib.sha256(b"").hexdigest()})


INTEGRITY: list[tuple[str, Damage, Verdicts, str]] = [
    ("whole", lambda _: None, ALL_VALID, ""),
    ("bit of a shard's data", flip(SHARD, lambda n: n // 4), AT_CONTENT, SHARD),
    ("bit of a shard's last bytes", flip(SHARD, lambda n: n - 60), AT_CONTENT, SHARD),
    ("bit of metadata.json", flip(COMMIT, lambda n: n - 2), AT_CONTENT, COMMIT),
    ("hole in common", zeros(COMMON, lambda n: n // 2, lambda n: 200), AT_CONTENT, COMMON),
    ("no shard", remove(SHARD), GAP, f"{SHARD} is missing"),
    ("no common", remove(COMMON), GAP, f"{COMMON} is missing"),
    ("a FIFO as common", instead(COMMON, os.mkfifo), AT_STRUCTURE, f"{COMMON} is no file"),
    ("cut to 0", cut("integrity.json", lambda n: 0), AT_STRUCTURE, "integrity.json"),
    ("cut to half", cut("integrity.json", lambda n: n // 2), AT_STRUCTURE, "integrity.json"),
    ("huge", cut("integrity.json", lambda n: 1 << 30), AT_STRUCTURE, "more than"),
    ("of a list", put("integrity.json", b"[]"), AT_STRUCTURE, "integrity.json"),
    ("that is deep", put("integrity.json", b'{"files":' * 100_000), AT_STRUCTURE, "integrity.json"),
    ("a path upwards", with_file("../x"), AT_STRUCTURE, "no file beside it"),
    ("an absolute path", with_file("/etc/passwd"), AT_STRUCTURE, "no file beside it"),
    ("the folder", with_file("."), AT_STRUCTURE, "no file beside it"),
    ("a name with a zero byte", with_file("a\0b"), AT_STRUCTURE, "no file beside it"),
    ("a name with a line end", with_file("a\nb"), GAP, "a\\nb is missing"),
    ("no digest", changed(files={SHARD: "00"}), AT_STRUCTURE, "is no digest"),
    ("the digest of another file", with_file(SHARD), AT_CONTENT, "another content"),
    ("digests of another kind", changed(algorithm="md5"), UNJUDGED, "md5"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "expected", "word"), [row[1:] for row in INTEGRITY], ids=[row[0] for row in INTEGRITY]
)
def test_damage_where_there_are_digests(damage: Damage, expected: Verdicts, word: str, tmp_path: Path) -> None:
    judge(write_dist(tmp_path, 20, integrity=True), damage, expected, word)


def test_content_reads_what_has_a_digest_and_tells_what_has_none(tmp_path: Path) -> None:
    folder = write_dist(tmp_path, 20, integrity=True)
    whole = check(folder, Level.CONTENT)
    assert (whole.level, whole.deepest) == (Level.CONTENT, Level.CONTENT)
    assert whole.bytes_read > sum(path.stat().st_size for path in folder.iterdir() if path.name != "integrity.json")
    digest = hashlib.sha256((folder / SHARD).read_bytes()).hexdigest()
    put_integrity(folder, files={SHARD: digest})
    found = check(folder, Level.CONTENT)
    assert (found.validity, found.level, found.deepest) == (VALID, Level.STRUCTURE, Level.STRUCTURE)
    assert found.reason == ".metadata and 3 more: the format has no checksum"


def test_common_without_checksums_cannot_be_proved(tmp_path: Path) -> None:
    folder = write_dist(tmp_path, 20)
    (folder / COMMON).write_bytes(common_bytes(20, crcs=False))
    found = check(folder, Level.CONTENT)
    assert (found.validity, found.level, found.reason) == (
        VALID, Level.STRUCTURE, "common.pt: the format has no checksum",
    )  # fmt: skip


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize(("common", "integrity"), [(True, False), (False, False), (True, True)])
def test_a_whole_one_is_valid(common: bool, integrity: bool, level: Level, tmp_path: Path) -> None:
    folder = write_dist(tmp_path, 20, common=common, integrity=integrity)
    found = check(folder, level)
    assert (found.validity, found.level, found.reason, found.format) == (VALID, level, "", "megatron")
    assert found.saved_at == datetime.fromtimestamp(SAVED_AT_S + 1, UTC)
    assert found.size_bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert (found.ranks, found.uncommitted, found.resumable) == (None, False, True)


def test_names_opens_no_file(tmp_path: Path) -> None:
    assert check(write_dist(tmp_path, 20, integrity=True), Level.NAMES).bytes_read == 0
    assert check(write_legacy(tmp_path, 10), Level.NAMES).bytes_read == 0


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (remove(COMMIT), True), (remove(COMMIT, METADATA), True), (remove(METADATA), False), (remove(SHARD), False),
        (cut(COMMON, lambda n: 0), False),
    ],
)  # fmt: skip
def test_a_save_was_never_finished_without_its_commit_marker(damage: Damage, expected: bool, tmp_path: Path) -> None:
    folder = write_dist(tmp_path, 20)
    damage(folder)
    assert [check(folder, level).uncommitted for level in Level] == [expected] * 3


def test_each_fault_is_named(tmp_path: Path) -> None:
    folder = write_dist(tmp_path, 20)
    (folder / COMMIT).unlink()
    os.truncate(folder / COMMON, 10)
    os.truncate(folder / SHARD, 10)
    found = check(folder, Level.STRUCTURE)
    assert {one.name: one.validity for one in found.pieces} == {COMMIT: INCOMPLETE, COMMON: CORRUPT, SHARD: CORRUPT}


def test_dcp_alone_is_whole_unless_the_older_step_has_a_marker(tmp_path: Path) -> None:
    """torch_dcp and fsdp_dtensor write nothing else; torch_dist without its marker looks the same."""
    folder = write_dist(tmp_path, 20, common=False, commit=False)
    found = [check(folder, level) for level in Level]
    assert [(one.validity, one.format, one.uncommitted) for one in found] == [(VALID, "megatron", False)] * 3
    assert found[-1].saved_at == datetime.fromtimestamp(SAVED_AT_S, UTC)
    (folder / SHARD).unlink()
    assert check(folder, Level.STRUCTURE).reason == f"{SHARD} is missing"
    write_dist(tmp_path, 10)
    found = [check(folder, level) for level in Level]
    assert [(one.validity, one.uncommitted) for one in found] == [(INCOMPLETE, True)] * 3
    assert found[0].reason == f"{COMMIT} is missing"


def test_an_old_backend_is_not_judged(tmp_path: Path) -> None:
    folder = tmp_path / "iter_0000020"
    (folder / "model.weight").mkdir(parents=True)
    (folder / COMMON).write_bytes(common_bytes(20))
    put_commit(folder, "zarr")
    judge(folder, lambda _: None, ALL_UNKNOWN, f"{COMMIT} says that its backend is zarr")


LEGACY: list[tuple[str, Damage, Verdicts, str]] = [
    ("whole", lambda _: None, ALL_VALID, ""),
    ("model cut to 0", cut(MODEL, lambda n: 0), AT_STRUCTURE, f"{MODEL} has 0 bytes"),
    ("model cut to half", cut(MODEL, lambda n: n // 2), AT_STRUCTURE, MODEL),
    ("model short of 1", cut(MODEL, lambda n: n - 1), AT_STRUCTURE, MODEL),
    ("bit of the model", flip(MODEL, lambda n: n // 2), AT_CONTENT, f"{MODEL}: 'model_optim_rng/data/0' has another"),
    ("no model", remove(MODEL), ALL_INCOMPLETE, f"{MODEL} is missing"),
    ("no last rank", remove("mp_rank_01_001"), ALL_INCOMPLETE, f"{MODEL} is missing"),
    ("no first rank", remove("mp_rank_00_000"), ALL_INCOMPLETE, "mp_rank_00_000/model_optim_rng.pt is missing"),
    ("no last stage", remove("mp_rank_00_001", "mp_rank_01_001"), GAP, "mp_rank_00_001/model_optim_rng.pt is missing"),
    ("no last slice", remove("mp_rank_01_000", "mp_rank_01_001"), GAP, "mp_rank_01_000/model_optim_rng.pt is missing"),
    ("but a diagonal", remove("mp_rank_00_001", "mp_rank_01_000"), GAP, "mp_rank_00_001/model_optim_rng.pt is missing"),
    ("no optimizer", remove("mp_rank_01_000/distrib_optim.pt"), ALL_INCOMPLETE, "distrib_optim.pt is missing"),
    ("optimizer cut to 0", cut("mp_rank_01_000/distrib_optim.pt", lambda n: 0), AT_STRUCTURE, "distrib_optim.pt"),
    ("another iteration", put(MODEL, model_bytes(10, (2, 2, 1))), AT_STRUCTURE, "it says iteration 10, not 20"),
    ("a model of a list", put(MODEL, torch_bytes([1], {})), ALL_VALID, ""),
    ("a model without arguments", put(MODEL, model_bytes(20, (2, 2, 1), args=None)), ALL_VALID, ""),
    ("absurd arguments", put(MODEL, model_bytes(20, (10**30, -1, 1))), ALL_VALID, ""),
    ("a FIFO as model", instead(MODEL, os.mkfifo), ALL_CORRUPT, "is no file"),
    ("a data loader's state", put("mp_rank_00_000/train_dataloader_dprank000.pt", b"x"), ALL_VALID, ""),
    ("somebody's folder", lambda folder: (folder / "mp_rank_00_000x").mkdir(), ALL_VALID, ""),
    ("somebody's rank in other digits", lambda folder: (folder / "mp_rank_000_002").mkdir(), ALL_VALID, ""),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "expected", "word"), [row[1:] for row in LEGACY], ids=[row[0] for row in LEGACY])
def test_damage_in_the_older_layout(damage: Damage, expected: Verdicts, word: str, tmp_path: Path) -> None:
    judge(write_legacy(tmp_path, 20), damage, expected, word)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (4, 1, 1), (1, 3, 1), (2, 1, 2), (2, 2, 2)])
def test_a_whole_one_in_the_older_layout_is_valid(sizes: tuple[int, int, int], tmp_path: Path) -> None:
    folder = write_legacy(tmp_path, 20, sizes)
    found = check(folder, Level.CONTENT)
    assert (found.validity, found.level, found.reason, found.ranks) == (VALID, Level.CONTENT, "", None)
    assert found.saved_at == datetime.fromtimestamp(SAVED_AT_S, UTC)
    assert found.size_bytes == sum(path.stat().st_size for path in folder.rglob("*.pt"))


FOLDED = ((0, 0), (1, 1), (2, 0), (3, 1))  # tensor and expert ranks of four processes: no full product


def test_experts_that_share_ranks_with_tensors_are_no_full_product(tmp_path: Path) -> None:
    folder = write_legacy(tmp_path, 20, (4, 1, 2), ranks=FOLDED)
    assert check(folder, Level.CONTENT).level is Level.CONTENT


@pytest.mark.parametrize(
    ("lost", "verdict", "word"),
    [
        (["mp_rank_03_001"], (INCOMPLETE, INCOMPLETE), "mp_rank_03_*"),
        (["mp_rank_02_000"], (INCOMPLETE, INCOMPLETE), "mp_rank_02_000"),
        (["mp_rank_02_000", "mp_rank_03_001"], (VALID, INCOMPLETE), "mp_rank_02_*"),
        (["mp_rank_01_001", "mp_rank_03_001"], (INCOMPLETE, INCOMPLETE), "mp_rank_*_001"),
    ],
)
def test_experts_that_are_missed(
    lost: list[str], verdict: tuple[Validity, Validity], word: str, tmp_path: Path
) -> None:
    folder = write_legacy(tmp_path, 20, (4, 1, 2), ranks=FOLDED)
    remove(*lost)(folder)
    names, structure = check(folder, Level.NAMES), check(folder, Level.STRUCTURE)
    assert (names.validity, structure.validity) == verdict
    assert f"{word}/model_optim_rng.pt is missing" in {one.reason for one in structure.pieces}


def test_the_older_step_tells_by_names_which_ranks_there_were(tmp_path: Path) -> None:
    write_legacy(tmp_path, 10)
    folder = write_legacy(tmp_path, 20)
    remove("mp_rank_00_001", "mp_rank_01_001")(folder)
    names, structure, _ = (check(folder, level) for level in Level)
    assert [(one.validity, one.level) for one in (names, structure)] == [(INCOMPLETE, None)] * 2
    assert names.reason == "mp_rank_00_001/model_optim_rng.pt is missing (and 1 more)"


def test_a_training_that_was_split_otherwise_before_is_whole(tmp_path: Path) -> None:
    write_legacy(tmp_path, 10, (4, 2, 1))
    found = check(write_legacy(tmp_path, 20, (2, 2, 1)), Level.STRUCTURE)
    assert (found.validity, found.level) == (VALID, Level.STRUCTURE)


def test_where_no_file_says_the_split_the_older_step_tells(tmp_path: Path) -> None:
    write_legacy(tmp_path, 10)
    folder = write_legacy(tmp_path, 20)
    remove("mp_rank_00_001", "mp_rank_01_001")(folder)
    for path in folder.glob("*/model_optim_rng.pt"):
        path.write_bytes(model_bytes(20, (2, 2, 1), args=None))
    assert check(folder, Level.STRUCTURE).faults == 2


def test_arguments_that_a_converter_kept_are_no_reason(tmp_path: Path) -> None:
    """Its folders have other names than the arguments of what it read would make."""
    folder = write_legacy(tmp_path, 20, (8, 1, 1), ranks=[(0, 0), (0, 1)])
    assert check(folder, Level.STRUCTURE).validity is VALID


@pytest.mark.parametrize("lost", ["mp_rank_00/layer_wise_optimizer_0.pt", "mp_rank_01/layer_wise_optimizer_1.pt"])
def test_an_optimizer_in_parts_has_as_many_in_each_folder(lost: str, tmp_path: Path) -> None:
    folder = write_legacy(tmp_path, 20, (2, 1, 1), optimizer=False)
    for rank in (0, 1):
        for part in (0, 1):
            (folder / f"mp_rank_0{rank}/layer_wise_optimizer_{part}.pt").write_bytes(torch_bytes({}, {}))
    assert check(folder, Level.CONTENT).level is Level.CONTENT
    (folder / lost).unlink()
    assert check(folder, Level.NAMES).reason == f"{lost} is missing"


@pytest.mark.parametrize(
    ("tracker", "expected"),
    [(None, True), ("10", True), ("20", False), ("30\n", False), ("", False), ("release", False)],
)
def test_an_older_layout_was_never_finished_if_the_tracker_did_not_come_to_it(
    tracker: str | None, expected: bool, tmp_path: Path
) -> None:
    folder = write_legacy(tmp_path, 20)
    (tmp_path / TRACKER).unlink() if tracker is None else (tmp_path / TRACKER).write_text(tracker)
    assert not check(folder, Level.STRUCTURE).uncommitted
    (folder / MODEL).unlink()
    assert check(folder, Level.STRUCTURE).uncommitted is expected


def test_high_ranks_tell_of_a_thousand_others(tmp_path: Path) -> None:
    folder = tmp_path / "iter_0000020"
    (folder / "mp_rank_999999_999999_999999").mkdir(parents=True)
    for rank in range(3):
        (folder / f"mp_rank_{rank:02d}").mkdir()
    (folder / "mp_rank_00" / "layer_wise_optimizer_999999.pt").write_bytes(b"")
    tracemalloc.start()
    faults = check(folder, Level.NAMES).faults
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert faults == 1000 + 1000 + 4  # ranks, parts, models
    assert peak_bytes < 4_000_000


def test_what_was_released_are_weights(tmp_path: Path) -> None:
    write_legacy(tmp_path, 20, (2, 1, 1), optimizer=False, name="release")
    found = check(tmp_path / "release", Level.CONTENT)
    assert (found.validity, found.resumable, found.format) == (VALID, False, "megatron")
    assert survey(LocalStorage(), tmp_path, known.AUTO).entries == (Entry("release", 20),)


@pytest.mark.parametrize(
    ("name", "step"),
    [("iter_0000020", 20), ("iter_0000000", 0), ("iter_12345678", 12_345_678), ("iter_20", None),
     ("iter_00000020", None), ("iter_0000020_mp", None), ("release", None), ("global_step20", None),
     ("iter_" + "9" * 19, None)],
)  # fmt: skip
def test_names(name: str, step: int | None) -> None:
    assert megatron.FORMAT.step_named(name) == step


@pytest.mark.parametrize(
    ("name", "make", "expected"),
    [
        ("iter_0000020", lambda _: None, True),
        ("iter_0000020", put("__0_0.distcp", b""), True),
        ("iter_0000020", put(".metadata", b""), True),
        ("iter_0000020", put("common.pt", b""), True),
        ("iter_0000020", lambda folder: (folder / "mp_rank_00").mkdir(), True),
        ("iter_0000020", put("model.safetensors", b""), False),
        ("best", put_commit, True),
        ("best", put("metadata.json", b'{"step": 20, "is_temporary": false}'), False),
        ("best", put("metadata.json", b"{"), False),
        ("best", put("metadata.json", b"[" * 60_000), False),
        ("best", put("metadata.json", b" " * 70_000), False),
        ("best", put(".metadata", b""), False),
        ("best", lambda folder: (folder / "mp_rank_00").mkdir(), False),
        ("best", put("mp_rank_00_model_states.pt", b""), False),
        ("best", lambda _: None, False),
        ("non_persistent", lambda folder: write_dist(folder, 20), False),
    ],
)
def test_what_is_recognised(name: str, make: Callable[[Path], object], expected: bool, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    make(folder)
    assert megatron.FORMAT.recognise(look_at(folder)) is expected


def test_a_file_is_not_recognised(tmp_path: Path) -> None:
    (tmp_path / "iter_0000020").touch()
    assert not megatron.FORMAT.recognise(look_at(tmp_path / "iter_0000020"))


def test_an_empty_folder_is_a_save_that_had_only_begun(tmp_path: Path) -> None:
    (tmp_path / "iter_0000020").mkdir()
    found = check(tmp_path / "iter_0000020", Level.CONTENT)
    assert (found.validity, found.uncommitted) == (INCOMPLETE, True)
    assert {one.name for one in found.pieces} == {COMMIT, METADATA}


@pytest.mark.parametrize("write", [write_dist, write_legacy])
def test_a_folder_that_its_user_named(write: Callable[[Path, int], Path], tmp_path: Path) -> None:
    write(tmp_path, 20).rename(tmp_path / "best-7")
    found = survey(LocalStorage(), tmp_path, "megatron").entries
    assert found == (Entry("best-7", 20),)
    assert check(tmp_path / "best-7", Level.CONTENT).level is Level.CONTENT


def test_the_step_of_dcp_alone_comes_from_dcp(tmp_path: Path) -> None:
    folder = write_dist(tmp_path, 20, common=False)
    assert megatron.FORMAT.peek(look_at(folder)) == 5
    (folder / METADATA).unlink()
    assert megatron.FORMAT.peek(look_at(folder)) is None
