"""Every way in which a checkpoint of torch.distributed.checkpoint is known to break, and what each level says."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.formats import dcp
from fleetctl.checkpoint.look import Ledger, Look, moment
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from tests.formats.damage import Damage, cut, flip, instead, move, put, remove, zeros
from tests.formats.dcp import (
    SAVED_AT_S,
    metadata,
    metadata_bytes,
    of,
    put_at,
    shards_of,
    size,
    value_bytes,
    write_dcp,
    write_uncoordinated,
)
from tests.formats.pickles import Made, Named, pickled

VALID, INCOMPLETE, CORRUPT, UNKNOWN = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT, Validity.UNKNOWN
FIRST, SECOND, META = "__0_0.distcp", "__1_0.distcp", ".metadata"


def check(folder: Path, level: Level) -> Checked:
    return examine(LocalStorage(), folder.parent, Entry(folder.name, 5), level, wanted="torch_dcp")


def look_at(folder: Path) -> Look:
    return Look(LocalStorage(), folder.parent, (folder.name,), Ledger(lambda _: None))


def says(**change: object) -> Damage:
    """Metadata of other words."""
    return lambda folder: put_at(folder / META, metadata_bytes(metadata(shards_of(), **change)), SAVED_AT_S)


def places(**change: object) -> Damage:
    """Metadata that says something else of where its first slice lies."""

    def damage(folder: Path) -> None:
        state: dict[str, Any] = metadata(shards_of())
        first = next(iter(state["storage_data"]))
        state["storage_data"][first].state.update(change)
        put_at(folder / META, metadata_bytes(state), SAVED_AT_S)

    return damage


def late(name: str, seconds: float) -> Damage:
    """A file that was written so long after the metadata."""
    return lambda folder: os.utime(folder / name, (SAVED_AT_S + seconds, SAVED_AT_S + seconds))


def put_late(name: str, raw: bytes, seconds: float) -> Damage:
    return lambda folder: put_at(folder / name, raw, SAVED_AT_S + seconds)


def another_save(folder: Path) -> None:
    """New shards of the same sizes under old metadata: it died before it wrote its own."""
    for name in (FIRST, SECOND):
        late(name, 600)(folder)


def with_names(folder: Path) -> None:
    state = metadata(shards_of())
    state["planner_data"] = Made(Named("os", "system"), ("true",))
    put_at(folder / META, metadata_bytes(state), SAVED_AT_S)


def without_shards(folder: Path) -> None:
    """Killed while it deleted."""
    for name in (FIRST, SECOND):
        (folder / name).unlink()


DEEP, SHALLOW = (VALID, VALID, CORRUPT), (VALID, CORRUPT, CORRUPT)
ALL_VALID, ALL_CORRUPT, ALL_INCOMPLETE = (VALID,) * 3, (CORRUPT,) * 3, (INCOMPLETE,) * 3
# damage -> what NAMES, STRUCTURE and CONTENT say, a word of the reason; facts 1.1, 1.3 and 1.10
DAMAGES: list[tuple[str, Damage, tuple[Validity, ...], str]] = [
    ("shard cut to 0", cut(FIRST, lambda n: 0), SHALLOW, "has 0 bytes, not"),
    ("shard cut to 1", cut(FIRST, lambda n: 1), SHALLOW, "has 1 bytes, not"),
    ("shard cut to half", cut(SECOND, lambda n: n // 2), SHALLOW, "bytes, not"),
    ("shard short of 1", cut(SECOND, lambda n: n - 1), SHALLOW, "bytes, not"),
    ("shard longer by 1", cut(SECOND, lambda n: n + 1), SHALLOW, "bytes, not"),
    ("shard of zeros", zeros(SECOND, lambda n: 0, lambda n: n), DEEP, "zip directory"),
    ("zeros at the end of a shard", zeros(SECOND, lambda n: n - 500, lambda n: 500), DEEP, "zip directory"),
    ("hole in a shard", zeros(FIRST, lambda n: 700, lambda n: 300), DEEP, "another content"),
    ("bit of the data", flip(FIRST, lambda n: 900), DEEP, "another content"),
    ("no shard", remove(SECOND), (VALID, INCOMPLETE, INCOMPLETE), f"{SECOND} is missing"),
    ("no shards", without_shards, (VALID, INCOMPLETE, INCOMPLETE), "and 1 more"),
    ("no metadata", remove(META), ALL_INCOMPLETE, ".metadata is missing"),
    ("metadata under its first name", move(META, ".metadata.tmp"), ALL_INCOMPLETE, ".metadata is missing"),
    ("metadata cut to 0", cut(META, lambda n: 0), SHALLOW, "ends within its pickle"),
    ("metadata cut to 1", cut(META, lambda n: 1), SHALLOW, "pickle"),
    ("metadata cut to half", cut(META, lambda n: n // 2), SHALLOW, "ends within its pickle"),
    ("metadata short of 1", cut(META, lambda n: n - 1), SHALLOW, "ends within its pickle"),
    ("metadata with a tail", cut(META, lambda n: n + 9), SHALLOW, "behind its pickle"),
    ("metadata of zeros", zeros(META, lambda n: 0, lambda n: n), SHALLOW, "broken pickle"),
    ("metadata of text", put(META, b"hello"), (VALID, UNKNOWN, UNKNOWN), "never writes"),
    ("metadata that is none", put(META, pickled({"storage_data": 1}, 4)), SHALLOW, "is no metadata"),
    ("metadata of an older kind", put(META, b"I1\n."), (VALID, UNKNOWN, UNKNOWN), "never writes"),
    ("metadata that names others", with_names, (VALID, UNKNOWN, UNKNOWN), "names os.system"),
    ("metadata without places", says(storage_data=None), SHALLOW, "where it lies"),
    ("metadata of other slices", says(state_dict_metadata={}), SHALLOW, "does not describe"),
    ("a place of no kind", says(storage_data={of("MetadataIndex", {"fqn": "step"}): 5}), SHALLOW, "lies nowhere"),
    ("a path upwards", places(relative_path="../x"), SHALLOW, "outside its folder"),
    ("an absolute path", places(relative_path="/etc/passwd"), SHALLOW, "outside its folder"),
    ("no name", places(relative_path=""), SHALLOW, "outside its folder"),
    ("the folder above", places(relative_path=".."), SHALLOW, "outside its folder"),
    ("a name with a zero byte", places(relative_path="a\0"), SHALLOW, "outside its folder"),
    ("a name of no kind", places(relative_path=5), SHALLOW, "lies nowhere"),
    ("an offset before the file", places(offset=-1), SHALLOW, "outside its folder or file"),
    ("an offset beyond the file", places(offset=2**70), SHALLOW, "has a slice at byte"),
    ("a slice of another length", places(length=1), SHALLOW, "has a slice at byte"),
    ("a slice of absurd length", places(length=10**18), SHALLOW, "has a slice at byte"),
    ("slices that overlap", places(offset=1), SHALLOW, "has a slice at byte"),
    ("another save died", another_save, SHALLOW, "another save began"),
    ("another save died within the first shard", late(FIRST, 11), SHALLOW, "another save began"),
    ("a clock that is ahead", late(FIRST, 9), ALL_VALID, ""),
    ("another save died with its metadata", put_late(".metadata.tmp", b"x", 600), ALL_CORRUPT, "did not end"),
    ("another save of more ranks died", put_late("__2_0.distcp", b"x", 1), SHALLOW, "is not in the metadata"),
    ("a shard of an older save of more ranks", put_late("__2_0.distcp", b"x", -60), ALL_VALID, ""),
    ("somebody's file", put_late("README", b"x", 600), ALL_VALID, ""),
    ("a folder as shard", instead(SECOND, Path.mkdir), SHALLOW, "is no file"),
    ("a FIFO as shard", instead(SECOND, os.mkfifo), SHALLOW, "is no file"),
    ("a link as shard", instead(SECOND, lambda path: path.symlink_to(FIRST)), SHALLOW, "is no file"),
    ("a FIFO as metadata", instead(META, os.mkfifo), ALL_CORRUPT, "is no file"),
    ("a folder as metadata", instead(META, Path.mkdir), ALL_CORRUPT, "is no file"),
    ("a link as metadata", instead(META, lambda path: path.symlink_to(FIRST)), ALL_CORRUPT, "is no file"),
]


@pytest.mark.parametrize(("damage", "expected", "word"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_damage(damage: Damage, expected: tuple[Validity, ...], word: str, tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "ckpt_5")
    damage(folder)
    for level, validity in zip(Level, expected, strict=True):
        found = check(folder, level)
        assert found.validity is validity, (level, found.reason)
        assert found.reason.isprintable()
        if validity is VALID:
            assert (found.level, found.reason) == (level, "")
        else:
            assert word in found.reason
            assert found.level is max(
                (one for one in Level if one < level and expected[one - 1] is VALID), default=None
            )


@pytest.mark.parametrize("level", list(Level))
def test_a_whole_one_is_valid(level: Level, tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "ckpt_5")
    found = check(folder, level)
    assert (found.validity, found.level, found.reason, found.format) == (VALID, level, "", "torch_dcp")
    assert (found.saved_at, found.ranks, found.uncommitted) == (moment(SAVED_AT_S), None, False)
    if level is not Level.NAMES:
        assert found.size_bytes == sum(path.stat().st_size for path in folder.glob("*.distcp"))


def test_one_that_was_never_committed_says_so(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "ckpt_5")
    (folder / META).unlink()
    assert check(folder, Level.NAMES).uncommitted


def test_each_fault_is_named(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "ckpt_5", shards_of(4))
    os.truncate(folder / FIRST, 5)
    (folder / SECOND).unlink()
    os.truncate(folder / "__3_0.distcp", 7)
    pieces = check(folder, Level.STRUCTURE).pieces
    assert [(piece.name, piece.validity) for piece in pieces] == [
        (FIRST, CORRUPT), (SECOND, INCOMPLETE), ("__3_0.distcp", CORRUPT),
    ]  # fmt: skip


def test_one_without_checksums_is_valid_and_says_so(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "ckpt_5", shards_of(crcs=False))
    found = check(folder, Level.CONTENT)
    assert (found.validity, found.level, found.deepest) == (VALID, Level.STRUCTURE, Level.STRUCTURE)
    assert found.reason == f"{FIRST} and 1 more: the format has no checksum"


def test_slices_that_are_no_zips_are_valid_and_have_no_checksum(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "ckpt_5", {FIRST: {"a": b"x" * 500}, SECOND: {"b": b"y" * 500}})
    assert check(folder, Level.CONTENT).deepest is Level.STRUCTURE
    assert check(folder, Level.CONTENT).validity is VALID


def test_slices_through_a_transformation_have_no_checksum(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "ckpt_5")
    places(transform_descriptors=["zstd"])(folder)
    found = check(folder, Level.CONTENT)
    assert (found.validity, found.level) == (VALID, Level.STRUCTURE)
    assert found.reason == f"{FIRST}: the format has no checksum"


def test_one_broken_slice_does_not_make_a_save_one_without_checksums(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "ckpt_5", shards_of(4))
    zeros(FIRST, lambda n: 0, lambda n: n)(folder)
    found = check(folder, Level.CONTENT)
    assert (found.validity, found.level) == (CORRUPT, Level.STRUCTURE)
    assert FIRST in found.reason


def test_a_slice_without_checksum_among_others_is_not_judged(tmp_path: Path) -> None:
    shards = {FIRST: shards_of()[FIRST], SECOND: shards_of(crcs=False)[SECOND]}
    found = check(write_dcp(tmp_path / "ckpt_5", shards), Level.CONTENT)
    assert (found.validity, found.level) == (UNKNOWN, Level.STRUCTURE)


def test_one_without_slices_is_valid(tmp_path: Path) -> None:
    assert check(write_dcp(tmp_path / "ckpt_5", {}), Level.CONTENT).validity is VALID


@pytest.mark.parametrize("level", list(Level))
def test_one_metadata_file_for_each_rank(level: Level, tmp_path: Path) -> None:
    found = check(write_uncoordinated(tmp_path / "ckpt_5", 3), level)
    assert (found.validity, found.level, found.ranks) == (VALID, level, 3)


@pytest.mark.parametrize(
    ("damage", "level", "validity", "word"),
    [
        (remove("__0.metadata"), Level.NAMES, INCOMPLETE, "__0.metadata is missing"),
        (remove("__2.metadata"), Level.NAMES, INCOMPLETE, "__2.metadata is missing"),
        (remove("__2.metadata", "__2_0.distcp"), Level.CONTENT, VALID, ""),
        (remove("__1_0.distcp"), Level.STRUCTURE, INCOMPLETE, "__1_0.distcp is missing"),
        (cut("__1.metadata", lambda n: n - 1), Level.STRUCTURE, CORRUPT, "__1.metadata ends"),
        (put("__999999.metadata", b""), Level.NAMES, INCOMPLETE, "__3.metadata is missing"),
    ],
)
def test_damage_to_one_of_ranks(damage: Damage, level: Level, validity: Validity, word: str, tmp_path: Path) -> None:
    folder = write_uncoordinated(tmp_path / "ckpt_5", 3)
    damage(folder)
    found = check(folder, level)
    assert found.validity is validity
    assert word in found.reason


def test_a_folder_inside_a_checkpoint(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "ckpt_5" / "optimizer_0")
    os.truncate(folder / FIRST, 3)
    outer = look_at(tmp_path / "ckpt_5")
    dcp.check_dcp(outer.below("optimizer_0"), Level.STRUCTURE)
    dcp.check_dcp(outer.below("optimizer_1"), Level.STRUCTURE)
    assert [(piece.name, piece.validity) for piece in outer.ledger.pieces] == [
        (f"optimizer_0/{FIRST}", CORRUPT), ("optimizer_1", INCOMPLETE),
    ]  # fmt: skip


def test_units_of_a_folder_inside_are_named_from_the_top(tmp_path: Path) -> None:
    write_dcp(tmp_path / "ckpt_5" / "optimizer_0", shards_of(floats=5000))
    facts = dcp.check_dcp(look_at(tmp_path / "ckpt_5").below("optimizer_0"), Level.STRUCTURE)
    assert {unit.file for unit in facts.content()} == {("optimizer_0", FIRST), ("optimizer_0", SECOND)}


def test_only_content_opens_all_shards(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "ckpt_5", shards_of(floats=100_000))
    assert check(folder, Level.NAMES).bytes_read == 0
    assert check(folder, Level.STRUCTURE).bytes_read < 10_000
    assert check(folder, Level.CONTENT).bytes_read > 1_500_000


def test_metadata_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "ckpt_5")
    os.truncate(folder / META, 1 << 30)
    tracemalloc.start()
    try:
        found = check(folder, Level.CONTENT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.validity, found.bytes_read) == (UNKNOWN, 0)
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-500", 500), ("step_500", 500), ("500", 500), ("ckpt_500", 500), ("checkpoint_7", 7),
        ("iter_0000120", 120),
        ("global_step12", 12), ("epoch_3", 3), ("ep1-ba200", 200), ("step500", 500), ("last", None), ("run-3", None),
        ("step-", None), ("v1.2", None), ("step-500.tmp", None), ("step-500\n", None), ("9" * 19, None), ("-5", None),
        ("step-\u0665", None), ("", None),
    ],
)  # fmt: skip
def test_the_step_in_a_name(name: str, step: int | None) -> None:
    assert dcp.step_named(name) == step


@pytest.mark.parametrize(
    ("shards", "step"),
    [
        (shards_of(), 5),
        ({FIRST: {"app.global_step": value_bytes(9)}}, 9),
        ({FIRST: {"a.b.step": value_bytes(9)}}, None),
        ({FIRST: {"step": value_bytes("x")}}, None),
        ({FIRST: {"step": value_bytes(-1)}}, None),
        ({FIRST: {"step": b"nonsense"}}, None),
        ({FIRST: {"model": value_bytes(9)}}, None),
    ],
)
def test_the_step_inside(shards: dict[str, dict[str, bytes]], step: int | None, tmp_path: Path) -> None:
    assert dcp.peek(look_at(write_dcp(tmp_path / "last", shards))) == step


def test_a_broken_one_says_no_step(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "last")
    os.truncate(folder / FIRST, 100)
    assert dcp.peek(look_at(folder)) is None
    os.truncate(folder / META, 100)
    assert dcp.peek(look_at(folder)) is None


@pytest.mark.parametrize(
    ("make", "known"),
    [
        (lambda path: write_dcp(path), True),
        (lambda path: write_uncoordinated(path), True),
        (lambda path: (path.mkdir(), (path / META).touch()), True),
        (lambda path: (path.mkdir(), (path / ".metadata.tmp").touch()), True),
        (lambda path: (path.mkdir(), (path / FIRST).touch()), True),
        (lambda path: (path.mkdir(), (path / "__0.metadata").touch()), True),
        (lambda path: (path.mkdir(), (path / "x.distcp").touch()), False),
        (Path.mkdir, False),
        (Path.touch, False),
        (os.mkfifo, False),
    ],
)
def test_what_is_recognised(make: Callable[[Path], object], known: bool, tmp_path: Path) -> None:
    make(tmp_path / "x")
    assert dcp.recognise(look_at(tmp_path / "x")) is known


def test_sizes_may_be_of_any_class_that_dcp_writes(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "ckpt_5")
    for name in ("float8_e4m3fn", "bfloat16", "complex64", "quint4x2", "uint16", "int1", "bits1x8", "bool"):
        says(version=[size(1), Named("torch", name)])(folder)
        assert check(folder, Level.STRUCTURE).validity is VALID, name
    for name in ("load", "save", "Tensor", "floats"):
        says(version=[Named("torch", name)])(folder)
        assert check(folder, Level.STRUCTURE).validity is UNKNOWN, name


def test_memory_grows_with_the_slices_and_no_faster(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        folder = write_dcp(tmp_path / f"ckpt_{count}", {FIRST: {f"w{number}": b"x" for number in range(count)}})
        tracemalloc.start()
        try:
            assert check(folder, Level.STRUCTURE).validity is VALID
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)  # compiles the patterns
    small, large = peak(1000), peak(4000)
    assert large < 4.5 * small
    assert large < 4000 * 5000
