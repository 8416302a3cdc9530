"""Every way in which safetensors files are known to break, and what each level says about it."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.formats import safetensors
from fleetctl.checkpoint.look import Ledger, Look
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from tests.formats.safetensors import HEADER, Header, safe_bytes, shard_name, tensor, write_safe, write_sharded

VALID, INCOMPLETE, CORRUPT, UNKNOWN = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT, Validity.UNKNOWN
INDEX, FIRST, SECOND = "model.safetensors.index.json", shard_name(1, 2), shard_name(2, 2)
Damage = Callable[[Path], object]


def check(path: Path, level: Level) -> Checked:
    return examine(LocalStorage(), path.parent, Entry(path.name, 0), level, wanted="safetensors")


def cut(name: str, size: Callable[[int], int]) -> Damage:
    return lambda folder: os.truncate(folder / name, size((folder / name).stat().st_size))


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def put(name: str, raw: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(raw)


def flip(name: str, place: int) -> Damage:
    def damage(folder: Path) -> None:
        raw = bytearray((folder / name).read_bytes())
        raw[place] ^= 1
        (folder / name).write_bytes(raw)

    return damage


def instead(name: str, make: Damage) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return damage


def mapped(**words: str) -> Damage:
    """An index that says more, or other things."""

    def damage(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_bytes())
        index["weight_map"].update(words)
        (folder / INDEX).write_text(json.dumps(index))

    return damage


def swapped(folder: Path) -> None:
    """Both shards whole, each under the other's name."""
    first, second = (folder / FIRST).read_bytes(), (folder / SECOND).read_bytes()
    (folder / FIRST).write_bytes(second)
    (folder / SECOND).write_bytes(first)


# damage -> what NAMES and STRUCTURE say, a word of the reason. CONTENT says what STRUCTURE does: there is no checksum
SHARDED: list[tuple[str, Damage, tuple[Validity, Validity], str]] = [
    ("shard cut to 0", cut(FIRST, lambda n: 0), (VALID, CORRUPT), "has 0 bytes, too few"),
    ("shard cut to 1", cut(FIRST, lambda n: 1), (VALID, CORRUPT), "has 1 bytes, too few"),
    ("shard cut to 8", cut(FIRST, lambda n: 8), (VALID, CORRUPT), "longer than the file"),
    ("shard cut in the header", cut(FIRST, lambda n: 30), (VALID, CORRUPT), "longer than the file"),
    ("shard cut in the data", cut(FIRST, lambda n: n - 10), (VALID, CORRUPT), "bytes, not"),
    ("shard short of 1", cut(FIRST, lambda n: n - 1), (VALID, CORRUPT), "bytes, not"),
    ("shard longer by 1", cut(SECOND, lambda n: n + 1), (VALID, CORRUPT), "bytes, not"),
    ("no shard", remove(SECOND), (INCOMPLETE, INCOMPLETE), f"{SECOND} is missing"),
    ("no index", remove(INDEX), (INCOMPLETE, INCOMPLETE), f"{INDEX} is missing"),
    ("index cut to 0", cut(INDEX, lambda n: 0), (VALID, CORRUPT), "no index"),
    ("index cut to half", cut(INDEX, lambda n: n // 2), (VALID, CORRUPT), "no index"),
    ("index short of 1", cut(INDEX, lambda n: n - 1), (VALID, CORRUPT), "no index"),
    ("index of nothing", put(INDEX, b"{}"), (VALID, CORRUPT), "no index"),
    ("index of no tensor", put(INDEX, b'{"weight_map":{}}'), (VALID, CORRUPT), "names no tensor"),
    ("deep index", put(INDEX, b'{"weight_map":' + b"[" * 100_000), (VALID, CORRUPT), "no index"),
    ("deep beside the map", put(INDEX, b'{"x":' + b"[" * 100_000), (VALID, CORRUPT), "too deep"),
    ("a huge index", cut(INDEX, lambda n: 1 << 30), (VALID, CORRUPT), "more than"),
    ("index with a path upwards", mapped(x="../model.safetensors"), (VALID, CORRUPT), "no file beside it"),
    ("index with an absolute path", mapped(x="/etc/passwd"), (VALID, CORRUPT), "no file beside it"),
    ("index with a null byte", mapped(x="a\0b"), (VALID, CORRUPT), "no file beside it"),
    ("index with a shard too many", mapped(x="other.safetensors"), (VALID, INCOMPLETE), "other.safetensors is missing"),
    ("index with a tensor too many", mapped(**{"a\nb": FIRST}), (VALID, CORRUPT), "lacks 1 of its 3 tensors"),
    ("two shards swapped", swapped, (VALID, CORRUPT), "lacks 2 of its 2 tensors"),
    ("a shard too many", put(shard_name(3, 3), b"x"), (VALID, CORRUPT), "too few for a header"),
    ("bit of the header", flip(FIRST, 12), (VALID, CORRUPT), FIRST),
    ("all zeros", put(FIRST, bytes(len(safe_bytes()))), (VALID, CORRUPT), "no JSON"),
    ("bit of the data", flip(FIRST, -1), (VALID, VALID), "no checksum"),
    ("a folder as shard", instead(FIRST, Path.mkdir), (VALID, CORRUPT), "is no file"),
    ("a FIFO as shard", instead(FIRST, os.mkfifo), (VALID, CORRUPT), "is no file"),
    ("a link as shard", instead(FIRST, lambda path: path.symlink_to(SECOND)), (VALID, CORRUPT), "is no file"),
    ("a FIFO as index", instead(INDEX, os.mkfifo), (VALID, CORRUPT), "is no file"),
    ("somebody's file", put("README.md", b"x"), (VALID, VALID), "no checksum"),
]


@pytest.mark.parametrize(("damage", "expected", "word"), [row[1:] for row in SHARDED], ids=[row[0] for row in SHARDED])
def test_damage(damage: Damage, expected: tuple[Validity, Validity], word: str, tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "model")
    damage(folder)
    for level, validity in zip(Level, (*expected, expected[1]), strict=True):
        found = check(folder, level)
        assert found.validity is validity, (level, found.reason)
        assert word in found.reason or validity is VALID
        assert found.reason.isprintable()
        assert (found.resumable, found.deepest) == (False, Level.STRUCTURE)


@pytest.mark.parametrize(
    "write", [write_sharded, lambda path: write_safe(path / "model.safetensors").parent, write_safe]
)
def test_a_whole_one_is_valid_and_nothing_to_resume_from(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path / "weights.safetensors")
    for level, passed in zip(Level, (Level.NAMES, Level.STRUCTURE, Level.STRUCTURE), strict=True):
        found = check(path, level)
        assert (found.validity, found.level, found.resumable, found.uncommitted) == (VALID, passed, False, False)
    assert found.saved_at is not None
    files = [path] if path.is_file() else list(path.iterdir())
    assert found.size_bytes == sum(one.stat().st_size for one in files)


def test_shards_without_their_index_were_never_finished(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "model")
    assert not check(folder, Level.NAMES).uncommitted
    (folder / INDEX).unlink()
    assert check(folder, Level.NAMES).uncommitted


def test_shards_of_an_older_save_are_no_fault(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "model", 3)
    (folder / INDEX).unlink()
    (folder / shard_name(2, 3)).unlink()
    assert check(write_sharded(folder, 2), Level.STRUCTURE).validity is VALID


def test_two_counts_of_shards_tell_nothing_by_their_names(tmp_path: Path) -> None:
    names = [shard_name(1, 3), shard_name(1, 2), shard_name(2, 2)]
    for ordered in (names, names[::-1]):
        look = Look(LocalStorage(), tmp_path, ("model",), Ledger(lambda _: None))
        assert safetensors.tell_missing_shards(look, ordered) == frozenset()


def test_every_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "model", 5)
    for number in (2, 4):
        (folder / shard_name(number, 5)).unlink()
    found = check(folder, Level.NAMES)
    assert [piece.name for piece in found.pieces] == [shard_name(2, 5), shard_name(4, 5)]


def one(dtype: str, shape: list[int], size: int) -> Header:
    return {"x": tensor(dtype, shape, 0, size)}


GOOD_HEADERS: dict[str, tuple[Header | bytes, int]] = {
    "no tensor": ({}, 0),
    "metadata alone": ({"__metadata__": {"a": "b"}}, 0),
    "metadata is null": ({"__metadata__": None}, 0),
    "a scalar": (one("F64", [], 8), 8),
    "an empty tensor": (one("F64", [0, 4], 0), 0),
    "two FP4 in a byte": (one("F4", [2, 4], 4), 4),
    "four FP6 in three bytes": (one("F6_E2M3", [4], 3), 3),
    "FP8": (one("F8_E8M0", [3], 3), 3),
    "a name of nothing": ({"": tensor("U8", [1], 0, 1)}, 1),
    "a name with a line break": ({"a\nb": tensor("U8", [1], 0, 1)}, 1),
    "a word more": ({"x": {**tensor("U8", [1], 0, 1), "more": {"a": [1]}}}, 1),
    "blanks behind it": (json.dumps(one("U8", [1], 1)).encode() + b"   ", 1),
    "in another order": ({"b": tensor("U8", [1], 1, 2), "a": tensor("U8", [1], 0, 1)}, 2),
}
BAD_HEADERS: dict[str, tuple[Header | bytes, int, str]] = {
    "empty": (b"", 0, "no JSON"),
    "a list": (b"[]", 0, "no JSON"),
    "no UTF-8": (b'{"\xff":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1, "UTF-8"),
    "deep": (b'{"x":' + b"[" * 200_000, 0, "too deep"),
    "deep in a word that nobody reads": (b'{"x":{"y":' + b"[" * 200_000, 0, "too deep"),
    "a gap": ({"x": tensor("U8", [1], 1, 2)}, 2, "starts at byte 1"),
    "a gap inside": ({"a": tensor("U8", [1], 0, 1), "b": tensor("U8", [1], 2, 3)}, 3, "b starts at byte 2"),
    "two at one place": ({"a": tensor("U8", [2], 0, 2), "b": tensor("U8", [1], 1, 2)}, 2, "b starts at byte 1"),
    "ends before it starts": ({"a": tensor("U8", [4], 0, 4), "b": tensor("U8", [0], 4, 3)}, 4, "-1 bytes"),
    "less than its shape": (one("F32", [2], 4), 4, "not what its shape"),
    "half a byte": (one("F4", [3], 2), 2, "not what its shape"),
    "FP6 without a whole byte": (one("F6_E3M2", [3], 3), 3, "not what its shape"),
    "an absurd shape": (one("U8", [2**62, 2**62], 1), 1, "not what its shape"),
    "absurd and empty": (one("U8", [0, 2**64], 0), 0, "not what its shape"),
    "a huge number": (b'{"x":{"dtype":"U8","shape":[' + b"9" * 100_000 + b'],"data_offsets":[0,1]}}', 1, "of x"),
    "a negative size": (one("U8", [-1, -1], 1), 1, "of x"),
    "a negative offset": ({"x": tensor("U8", [1], -1, 0)}, 0, "of x"),
    "a size of 1.0": (b'{"x":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}', 1, "of x"),
    "NaN": (b'{"x":{"dtype":"U8","shape":[NaN],"data_offsets":[0,1]}}', 1, "no JSON"),
    "three offsets": (b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}}', 1, "of x"),
    "no shape": (b'{"x":{"dtype":"U8","data_offsets":[0,1]}}', 1, "of x"),
    "the same name twice": (
        b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        2,
        "starts at byte 1",
    ),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, 0, "metadata"),
    "metadata that is a text": ({"__metadata__": "a"}, 0, "metadata"),
    "more data than tensors": (HEADER, 25, "bytes, not"),
    "data without a tensor": ({}, 1, "bytes, not"),
}


@pytest.mark.parametrize("name", GOOD_HEADERS)
def test_headers_that_the_library_reads(name: str, tmp_path: Path) -> None:
    header, size = GOOD_HEADERS[name]
    assert check(write_safe(tmp_path / "x.safetensors", header, bytes(size)), Level.STRUCTURE).validity is VALID


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_headers_that_cannot_be(name: str, tmp_path: Path) -> None:
    header, size, word = BAD_HEADERS[name]
    found = check(write_safe(tmp_path / "x.safetensors", header, bytes(size)), Level.STRUCTURE)
    assert (found.validity, word in found.reason, found.reason.isprintable()) == (CORRUPT, True, True), found.reason


def test_a_type_of_a_newer_library_is_unknown(tmp_path: Path) -> None:
    found = check(write_safe(tmp_path / "x.safetensors", one("F2", [4], 1), bytes(1)), Level.STRUCTURE)
    assert (found.validity, "type F2" in found.reason) == (UNKNOWN, True)


@pytest.mark.parametrize("length", [0, 7, 100_000_001, 2**63, 2**64 - 1])
def test_an_absurd_length_is_not_believed(length: int, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{" * 7)
    os.truncate(path, 1 << 30)
    tracemalloc.start()
    try:
        found = check(path, Level.STRUCTURE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.validity, found.bytes_read < 100, peak < 1 << 20) == (CORRUPT, True, True)


def test_only_headers_are_read(tmp_path: Path) -> None:
    size = 3_000_000
    found = check(write_safe(tmp_path / "x.safetensors", one("U8", [size], size), bytes(size)), Level.CONTENT)
    assert (found.validity, found.bytes_read < 1_000, found.level) == (VALID, True, Level.STRUCTURE)


@pytest.mark.parametrize(
    ("make", "recognised"),
    [
        (lambda path: (path / "model").mkdir(parents=True), False),
        (lambda path: write_safe(path / "model" / "model.safetensors.tmp"), False),
        (lambda path: write_safe(path / "model"), False),
        (lambda path: path.symlink_to("x.safetensors"), False),
        (lambda path: write_safe(path / "model" / "adapter_model.safetensors"), True),
        (lambda path: write_sharded(path / "model").joinpath(FIRST).unlink(), True),
    ],
)
def test_recognition(make: Damage, recognised: bool, tmp_path: Path) -> None:
    path = tmp_path / "here"
    make(path)
    name = "here" if path.is_symlink() else "model"
    look = Look(LocalStorage(), tmp_path if path.is_symlink() else path, (name,), Ledger(lambda _: None))
    assert safetensors.recognise(look) is recognised


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["shard-00001-model-00001-of-00001"], []),
        (["shard-00001-model-00001-of-00002", "shard-00003-model-00002-of-00002"], []),
        (["shard-00001-model-00001-of-00002", "shard-00002-model-00001-of-00002"], ["shard-*-model-00002-of-00002"]),
        (["shard-00001-model-00001-of-00001", "model-00001-of-00001"], ["model.safetensors.index.json"]),
        (["shard-1-model-00001-of-00001"], ["shard-1-model.safetensors.index.json"]),
    ],
)
def test_what_each_rank_has_saved_has_no_index(names: list[str], missing: list[str], tmp_path: Path) -> None:
    """As HuggingFaceStorageWriter(save_distributed=True) of torch does."""
    for name in names:
        write_safe(tmp_path / "model" / f"{name}.safetensors")
    found = check(tmp_path / "model", Level.STRUCTURE)
    assert [piece.name.removesuffix(".safetensors") for piece in found.pieces] == missing
    assert (found.validity is VALID) == (not missing)


def test_counts_in_many_names_tell_of_a_thousand_others(tmp_path: Path) -> None:
    for stem in range(5):
        write_safe(tmp_path / "model" / f"model{stem}-00001-of-99999.safetensors")
    assert check(tmp_path / "model", Level.NAMES).faults == 5 + 1000


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint-4", "step-4", "4"])
def test_a_name_says_no_step(name: str) -> None:
    assert safetensors.FORMAT.step_named(name) is None
