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
    described_as,
    metadata,
    metadata_bytes,
    of,
    put_at,
    shards_of,
    size,
    slice_bytes,
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


def without_slices(*names: str) -> Damage:
    """Metadata that describes these and does not say where they lie; the shard ends before them."""

    def damage(folder: Path) -> None:
        state: dict[str, Any] = metadata(shards_of())
        for index in [index for index in state["storage_data"] if index.state["fqn"] in names]:
            place = state["storage_data"].pop(index).state
            os.truncate(folder / place["relative_path"], place["offset"])
            os.utime(folder / place["relative_path"], (SAVED_AT_S, SAVED_AT_S))
        put_at(folder / META, metadata_bytes(state), SAVED_AT_S)

    return damage


def of_pieces(count: int) -> Damage:
    """Metadata that describes more pieces of one tensor than there are."""

    def damage(folder: Path) -> None:
        state: dict[str, Any] = metadata(shards_of())
        state["state_dict_metadata"]["model.1.w1"] = described_as("model.1.w1", pieces=count)
        put_at(folder / META, metadata_bytes(state), SAVED_AT_S)

    return damage


def older_names(folder: Path) -> None:
    """As torch wrote them before 2.3."""
    state: dict[str, Any] = metadata(shards_of())
    module = "torch.distributed._shard.sharded_tensor.metadata"
    encoding = Made(Named(module, "MEM_FORMAT_ENCODING"), (0,))
    for value in state["state_dict_metadata"].values():
        if "properties" in value.state:
            said = (Named("torch", "float32"), None, False, encoding, False)
            value.state["properties"] = Made(Named(module, "TensorProperties"), state=said, new=True)
    put_at(folder / META, metadata_bytes(state), SAVED_AT_S)


def without_shards(folder: Path) -> None:
    """Killed while it deleted."""
    for name in (FIRST, SECOND):
        (folder / name).unlink()


LACKING = (VALID, INCOMPLETE, INCOMPLETE)
ASIDE = (VALID, UNKNOWN, UNKNOWN)
FIRST_BYTES = b"".join(shards_of()[FIRST].values())
END, STEP_BYTES = FIRST_BYTES.index(b"PK\5\6"), len(value_bytes(5))
DEEP, SHALLOW = (VALID, VALID, CORRUPT), (VALID, CORRUPT, CORRUPT)
ALL_VALID, ALL_CORRUPT, ALL_INCOMPLETE = (VALID,) * 3, (CORRUPT,) * 3, (INCOMPLETE,) * 3
# damage -> what NAMES, STRUCTURE and CONTENT say, a word of the reason; facts 1.1, 1.3 and 1.10
DAMAGES: list[tuple[str, Damage, tuple[Validity, ...], str]] = [
    ("shard cut to 0", cut(FIRST, lambda n: 0), SHALLOW, "has 0 bytes, not"),
    ("shard cut to 1", cut(FIRST, lambda n: 1), SHALLOW, "has 1 bytes, not"),
    ("shard cut to half", cut(SECOND, lambda n: n // 2), SHALLOW, "bytes, not"),
    ("shard short of 1", cut(SECOND, lambda n: n - 1), SHALLOW, "bytes, not"),
    ("shard longer by 1", cut(SECOND, lambda n: n + 1), SHALLOW, "bytes, not"),
    ("shard of zeros", zeros(SECOND, lambda n: 0, lambda n: n), SHALLOW, "zip directory"),
    (
        "shards of zeros",
        lambda folder: [zeros(name, lambda n: 0, lambda n: n)(folder) for name in (FIRST, SECOND)],
        SHALLOW,
        "are zeros (and 1 more)",
    ),
    ("end of the first slice", zeros(FIRST, lambda n: END, lambda n: 1), SHALLOW, "no zip directory at its end"),
    ("a value that is no zip", zeros(FIRST, lambda n: n - STEP_BYTES, lambda n: 700), SHALLOW, "are zeros"),
    ("a value of nonsense", zeros(FIRST, lambda n: n - STEP_BYTES, lambda n: 4), SHALLOW, "header of"),
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
    ("metadata of no values", says(state_dict_metadata=5), SHALLOW, "describes no value"),
    ("metadata without slices", says(storage_data={}), LACKING, "has no data (and 4 more)"),
    ("metadata without one slice", without_slices("model.1.w1"), LACKING, "'model.1.w1' has no data"),
    ("metadata without the step", without_slices("step"), LACKING, "'step' has no data"),
    ("a tensor of more pieces", of_pieces(3), LACKING, "'model.1.w1' has only 1 of the 3 pieces of its data"),
    ("metadata of torch 2.0", older_names, ALL_VALID, ""),
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
    ("another save died", another_save, ASIDE, "a later save into this folder died"),
    ("another save died within the first shard", late(FIRST, 11), ASIDE, "copied without its times"),
    ("a clock that is ahead", late(FIRST, 9), ALL_VALID, ""),
    ("another save died with its metadata", put_late(".metadata.tmp", b"x", 600), ALL_CORRUPT, "did not end"),
    ("another save of more ranks died", put_late("__2_0.distcp", b"x", 1), ASIDE, "is not in the metadata"),
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
    assert (found.validity, found.level) == (CORRUPT, Level.NAMES)
    assert FIRST in found.reason


@pytest.mark.parametrize("crcs", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
def test_shards_of_zeros_are_seen_however_many_there_are(ranks: int, crcs: bool, tmp_path: Path) -> None:
    """Lost in a crash: all of them, the last one."""
    for number, names in enumerate([[f"__{rank}_0.distcp" for rank in range(ranks)], [f"__{ranks - 1}_0.distcp"]]):
        folder = write_dcp(tmp_path / f"ckpt_{number}", shards_of(ranks, crcs=crcs))
        for name in names:
            zeros(name, lambda n: 0, lambda n: n)(folder)
        found = check(folder, Level.CONTENT)
        assert (found.validity, {piece.name for piece in found.pieces} <= set(names)) == (CORRUPT, True), found.reason


@pytest.mark.parametrize("size", [1, 100, 511])
def test_bare_values_may_be_short_zeros(size: int, tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "ckpt_5", {FIRST: {"a": bytes(size), **shards_of(1)[FIRST]}})
    state: dict[str, Any] = metadata({FIRST: {"a": bytes(size)}})
    assert "Bytes" in state["state_dict_metadata"]["a"].named.name
    assert check(folder, Level.STRUCTURE).validity is CORRUPT  # the step is a zip, and of the same kind
    without_step = {name: raw for name, raw in shards_of(1)[FIRST].items() if name != "step"}
    found = check(write_dcp(tmp_path / "ckpt_6", {FIRST: {"a": bytes(size), **without_step}}), Level.CONTENT)
    assert (found.validity, found.level) == (VALID, Level.STRUCTURE)


def test_bare_values_beside_tensors_have_no_checksum_and_the_tensors_have(tmp_path: Path) -> None:
    shards = {FIRST: {"a": b"x" * 500, "w": slice_bytes(1, 200)}, SECOND: {"v": slice_bytes(2, 200)}}
    folder = write_dcp(tmp_path / "ckpt_5", shards)
    found = check(folder, Level.CONTENT)
    assert (found.validity, found.level) == (VALID, Level.STRUCTURE)
    assert found.reason == f"{FIRST}: the format has no checksum"
    flip(FIRST, lambda n: 500 + 900)(folder)
    assert check(folder, Level.CONTENT).validity is CORRUPT


def test_many_values_without_data_are_counted(tmp_path: Path) -> None:
    folder = write_dcp(tmp_path / "ckpt_5", {FIRST: {f"w{number}": b"x" for number in range(50)}})
    state = metadata({FIRST: {f"w{number}": b"x" for number in range(50)}}, storage_data={})
    put_at(folder / META, metadata_bytes(state), SAVED_AT_S)
    found = check(folder, Level.STRUCTURE)
    assert (found.validity, found.faults) == (INCOMPLETE, 21)
    assert found.pieces[-1].reason == ".metadata: 30 more have no data"


def test_pieces_at_one_place_need_one_slice(tmp_path: Path) -> None:
    """As their index in the metadata is one."""
    folder = write_dcp(tmp_path / "ckpt_5")
    state: dict[str, Any] = metadata(shards_of())
    chunks = state["state_dict_metadata"]["model.1.w1"].state["chunks"]
    chunks.append(of("ChunkStorageMetadata", dict(chunks[0].state)))
    put_at(folder / META, metadata_bytes(state), SAVED_AT_S)
    assert check(folder, Level.CONTENT).validity is VALID


@pytest.mark.parametrize("tensors", [1, 3])
def test_shards_of_safetensors_are_not_judged(tensors: int, tmp_path: Path) -> None:
    """torch says of each of their slices that it lies where the file begins."""
    names, header = [f"w{number}" for number in range(tensors)], b'{"w0":{}}'
    folder = write_dcp(tmp_path / "ckpt_5", {FIRST: {name: slice_bytes(1, 9) for name in names}})
    state: dict[str, Any] = metadata({FIRST: {name: slice_bytes(1, 9) for name in names}})
    for place in state["storage_data"].values():
        place.state.update(offset=0, length=36)
    put_at(folder / META, metadata_bytes(state), SAVED_AT_S)
    put_at(folder / FIRST, len(header).to_bytes(8, "little") + header + bytes(36 * tensors), SAVED_AT_S)
    found = check(folder, Level.CONTENT)
    assert (found.validity, found.level) == (UNKNOWN, Level.NAMES)
    assert "safetensors" in found.reason
    put_at(folder / FIRST, b"\xff" * 8 + header + bytes(36 * tensors), SAVED_AT_S)
    assert check(folder, Level.CONTENT).validity is CORRUPT


def test_data_may_lie_in_the_shards_of_several_ranks(tmp_path: Path) -> None:
    """Each tells of its own."""
    folder = write_uncoordinated(tmp_path / "ckpt_5", 2)
    state = metadata({SECOND: shards_of(2)[SECOND]}, storage_data={})
    put_at(folder / "__1.metadata", metadata_bytes(state), SAVED_AT_S)
    found = check(folder, Level.STRUCTURE)
    assert found.validity is INCOMPLETE
    assert "'model.1.w0' has no data" in found.reason


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
