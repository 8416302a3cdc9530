"""Every way in which one file of torch.save is known to break, and what each level says about it."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.formats import torch
from fleetctl.checkpoint.look import Ledger, Look, moment
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from tests.formats.damage import Damage, cut, flip, instead, put, remove, zeros
from tests.formats.pickles import Made, Named, pickled
from tests.formats.torch import data, legacy_bytes, state, tensor, torch_bytes, write_torch, zip_bytes

VALID, INCOMPLETE, CORRUPT, UNKNOWN = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT, Validity.UNKNOWN
NAME = "ckpt_5.pt"
RAW = torch_bytes()
DATA = RAW.index(data(600))
PICKLE = RAW.index(b"\x80\x02}")


def check(path: Path, level: Level) -> Checked:
    return examine(LocalStorage(), path.parent, Entry(path.name, 5), level, wanted="torch")


def with_pickle(raw: bytes) -> bytes:
    return zip_bytes({"a/data.pkl": raw, "a/byteorder": b"little", "a/version": b"3\n"})


ALL_WRONG, DEEP_WRONG = (VALID, CORRUPT, CORRUPT), (VALID, VALID, CORRUPT)
NOT_JUDGED = (VALID, UNKNOWN, UNKNOWN)
CUT_SHORT = "no zip directory at its end"
# damage -> what NAMES, STRUCTURE and CONTENT say, a word of the reason; facts 1.1 and 1.10
DAMAGES: list[tuple[str, Damage, tuple[Validity, Validity, Validity], str]] = [
    ("cut to 0", cut(NAME, lambda n: 0), ALL_WRONG, "has 0 bytes"),
    ("cut to 1", cut(NAME, lambda n: 1), ALL_WRONG, CUT_SHORT),
    ("cut to 1000", cut(NAME, lambda n: 1000), ALL_WRONG, CUT_SHORT),
    ("cut to half", cut(NAME, lambda n: n // 2), ALL_WRONG, CUT_SHORT),
    ("short of 100", cut(NAME, lambda n: n - 100), ALL_WRONG, CUT_SHORT),
    ("short of 22", cut(NAME, lambda n: n - 22), ALL_WRONG, CUT_SHORT),
    ("short of 1", cut(NAME, lambda n: n - 1), ALL_WRONG, CUT_SHORT),
    ("longer by 1", cut(NAME, lambda n: n + 1), ALL_WRONG, CUT_SHORT),
    ("tail of zeros", zeros(NAME, lambda n: n - 300, lambda n: 300), ALL_WRONG, CUT_SHORT),
    ("hole in the data", zeros(NAME, lambda n: DATA + 100, lambda n: 500), DEEP_WRONG, "'archive/data/0' has another"),
    ("hole in the pickle", zeros(NAME, lambda n: PICKLE + 9, lambda n: 99), ALL_WRONG, "data.pkl' has another"),
    ("hole at the begin", zeros(NAME, lambda n: 0, lambda n: 40), ALL_WRONG, "header of b'archive/data.pkl'"),
    ("all zeros", put(NAME, bytes(5000)), ALL_WRONG, CUT_SHORT),
    ("bit of the data", flip(NAME, lambda n: DATA + 7), DEEP_WRONG, "another content"),
    ("bit of the pickle", flip(NAME, lambda n: PICKLE + 30), ALL_WRONG, "another content"),
    ("bit of a small entry", flip(NAME, lambda n: RAW.index(b"0123456789")), DEEP_WRONG, "another content"),
    ("bit of a CRC", flip(NAME, lambda n: RAW.rindex(b"archive/data/0") - 30), DEEP_WRONG, "another content"),
    ("bit of the byte order", flip(NAME, lambda n: RAW.index(b"little")), ALL_WRONG, "byte order"),
    ("no pickle", put(NAME, zip_bytes({"a/byteorder": b"little"})), NOT_JUDGED, "not one of torch.save"),
    ("a pickle too deep", put(NAME, zip_bytes({"a/b/data.pkl": b"N."})), ALL_WRONG, "0 entries named"),
    ("a program", put(NAME, zip_bytes({"a/data.pkl": b"N.", "a/constants.pkl": b"N."})), NOT_JUDGED, "torch.jit"),
    ("two pickles", put(NAME, zip_bytes({"a/data.pkl": b"N.", "b/data.pkl": b"N."})), ALL_WRONG, "2 entries named"),
    ("a broken pickle", put(NAME, with_pickle(b"\x80\x02R.")), ALL_WRONG, "broken pickle"),
    ("a pickle of an older kind", put(NAME, with_pickle(b"I1\n.")), (VALID, VALID, VALID), ""),
    ("a pickle that would call", put(NAME, with_pickle(b"cos\nsystem\nX\x01\0\0\0a\x85R.")), (VALID, VALID, VALID), ""),
    ("no checksums", put(NAME, torch_bytes(crcs=False)), (VALID, VALID, VALID), "no checksum"),
    ("big endian", put(NAME, RAW.replace(b"little", b"big\0\0\0")), ALL_WRONG, "byte order"),
    ("somebody's text", put(NAME, b"hello\n"), ALL_WRONG, CUT_SHORT),
    ("removed", remove(NAME), (INCOMPLETE, INCOMPLETE, INCOMPLETE), "gone"),
    ("a FIFO", instead(NAME, os.mkfifo), (CORRUPT, CORRUPT, CORRUPT), "is no file"),
    ("a link", instead(NAME, lambda path: path.symlink_to("/etc/passwd")), (UNKNOWN, UNKNOWN, UNKNOWN), "is a link"),
    ("a loop", instead(NAME, lambda path: path.symlink_to(path)), (UNKNOWN, UNKNOWN, UNKNOWN), "is a link"),
]


@pytest.mark.parametrize(("damage", "expected", "word"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_damage(damage: Damage, expected: tuple[Validity, ...], word: str, tmp_path: Path) -> None:
    path = write_torch(tmp_path / NAME)
    damage(tmp_path)
    for level, validity in zip(Level, expected, strict=True):
        found = check(path, level)
        assert found.validity is validity, (level, found.reason)
        assert found.reason.isprintable()
        if validity is VALID and level <= found.deepest:
            assert found.level is level
        assert word in found.reason if level is Level.CONTENT else True


LEGACY = legacy_bytes()
OTHER_STORAGE = LEGACY.replace(b"X\x01\0\0\x001q\x02e", b"X\x01\0\0\x003q\x02e")
LEGACY_DAMAGES: list[tuple[str, Damage, Validity, str]] = [
    ("whole", put(NAME, LEGACY), VALID, "no checksum"),
    ("cut within its pickles", cut(NAME, lambda n: 100), CORRUPT, "ends within its pickle"),
    ("cut to half", cut(NAME, lambda n: n // 2), CORRUPT, "ends before"),
    ("short of 1", cut(NAME, lambda n: n - 1), CORRUPT, "bytes, not"),
    ("longer by 1", cut(NAME, lambda n: n + 1), CORRUPT, "bytes, not"),
    ("bit of a count", flip(NAME, lambda n: LEGACY.index(data(600)) - 8), CORRUPT, "bytes, not"),
    ("a storage that is not known", put(NAME, OTHER_STORAGE), CORRUPT, "no storage"),
    ("an unknown kind of storage", put(NAME, LEGACY.replace(b"FloatStorage", b"FloetStorage")), UNKNOWN, "kind"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "expected", "word"), [row[1:] for row in LEGACY_DAMAGES], ids=[row[0] for row in LEGACY_DAMAGES]
)
def test_damage_to_one_of_the_old_kind(damage: Damage, expected: Validity, word: str, tmp_path: Path) -> None:
    path = write_torch(tmp_path / NAME, LEGACY)
    damage(tmp_path)
    assert check(path, Level.NAMES).validity is VALID
    for level in (Level.STRUCTURE, Level.CONTENT):
        found = check(path, level)
        assert (found.validity, found.deepest) == (expected, Level.STRUCTURE if expected is VALID else found.deepest)
        assert word in found.reason if expected is not VALID or level is Level.CONTENT else found.reason == ""
        assert found.level is (Level.STRUCTURE if expected is VALID else Level.NAMES)


@pytest.mark.parametrize("level", list(Level))
def test_a_whole_one_is_valid(level: Level, tmp_path: Path) -> None:
    path = write_torch(tmp_path / NAME)
    os.utime(path, (1e9, 1e9))
    found = check(path, level)
    assert (found.validity, found.level, found.reason, found.format) == (VALID, level, "", "torch")
    assert (found.saved_at, found.resumable, found.ranks) == (moment(1e9), True, None)
    if level is not Level.NAMES:
        assert found.size_bytes == path.stat().st_size


def test_only_content_reads_the_data(tmp_path: Path) -> None:
    raw = torch_bytes({"w": tensor(0, 500_000)}, {0: data(500_000)})
    path = write_torch(tmp_path / NAME, raw)
    assert check(path, Level.NAMES).bytes_read == 0
    assert 0 < check(path, Level.STRUCTURE).bytes_read < 5000
    assert check(path, Level.CONTENT).bytes_read > 2_000_000


def test_a_large_pickle_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_MOST_PICKLE_BYTES", 1000)
    path = write_torch(tmp_path / NAME, torch_bytes({"text": "x" * 200_000}, {}))
    tracemalloc.start()
    try:
        found = check(path, Level.STRUCTURE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.validity is VALID
    assert peak < 150_000


@pytest.mark.parametrize(
    ("value", "step"),
    [
        ({"global_step": 7, "step": 8}, 7), ({"step": 8}, 8), ({"iteration": 9}, 9), ({"training_step": 10}, 10),
        ({"step": -1}, None), ({"step": 1.5}, None), ({"step": True}, None), ({"step": 10**30}, None), ([1], None),
        ({"epoch": 3}, None), ({1: 2}, None), (5, None), ({"global_step": "x", "step": 3}, 3),
        (Made(Named("collections", "OrderedDict"), items={"step": 4}), 4),
    ],
)  # fmt: skip
def test_the_step_that_it_says(value: object, step: int | None, tmp_path: Path) -> None:
    path = write_torch(tmp_path / "last.pt", torch_bytes(value, {}))
    assert torch.peek(Look(LocalStorage(), tmp_path, (path.name,), Ledger(lambda _: None))) == step


def test_a_broken_one_says_no_step(tmp_path: Path) -> None:
    write_torch(tmp_path / "last.pt", RAW[:-1])
    assert torch.peek(Look(LocalStorage(), tmp_path, ("last.pt",), Ledger(lambda _: None))) is None


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("ckpt_500.pt", 500), ("model_step500.pth", 500), ("checkpoint-500.pt", 500), ("epoch_3.pt", 3),
        ("checkpoint.500.pt", 500), ("run7_iter_000120.pth", 120), ("step=12.ckpt", 12), ("model_500.pt", 500),
        ("ep1-ba200-rank0.pt", 200), ("ep1-ba200.pt", 200), ("Checkpoint_5.pt", 5), ("global_step12.pt", 12),
        ("last.pt", None), ("latest-rank0.pt", None), ("mp_rank_00_model_states.pt", None), ("500", None),
        ("ckpt_500", None), ("ckpt_500.bin", None), ("model_v2.pt", None), ("superstep.pt", None),
        ("ckpt_" + "9" * 30 + ".pt", None), ("ckpt_5.pt\n", None), ("ckpt_\u0665.pt", None),
    ],
)  # fmt: skip
def test_the_step_in_a_name(name: str, step: int | None) -> None:
    assert torch.step_named(name) == step


@pytest.mark.parametrize(
    ("name", "make", "known"),
    [
        ("ckpt_5.pt", Path.touch, True),
        ("x.pth", lambda path: path.write_bytes(b"hello"), True),
        ("x", lambda path: path.write_bytes(RAW), True),
        ("x", lambda path: path.write_bytes(LEGACY), True),
        ("x.bin", lambda path: path.write_bytes(RAW[:1000]), True),
        ("x.zip", lambda path: path.write_bytes(zip_bytes({"a": b"b"})), False),
        ("x.txt", lambda path: path.write_bytes(b"hello"), False),
        ("x.pkl", lambda path: path.write_bytes(pickled({"step": 5})), False),
        ("x", Path.touch, False),
        ("x.pt", Path.mkdir, False),
        ("x.pt", os.mkfifo, False),
        ("x.pt", lambda path: path.symlink_to("/etc/passwd"), False),
    ],
)
def test_what_is_recognised(name: str, make: Callable[[Path], object], known: bool, tmp_path: Path) -> None:
    make(tmp_path / name)
    assert torch.recognise(Look(LocalStorage(), tmp_path, (name,), Ledger(lambda _: None))) is known


def test_the_helpers_tell_what_is_wrong_of_a_file_inside(tmp_path: Path) -> None:
    write_torch(tmp_path / "ckpt" / "sub" / "x.bin", RAW)
    write_torch(tmp_path / "ckpt" / "sub" / "y.bin", RAW[:-5])
    ledger = Ledger(lambda _: None)
    look = Look(LocalStorage(), tmp_path, ("ckpt",), ledger).below("sub")
    zipped = torch.check_torch_file(look, "x.bin")
    assert zipped is not None
    assert torch.step_of(torch.pickle_of(look, "x.bin", zipped)) == 5
    assert [unit.file for unit in torch.units_of(look, "x.bin", zipped)] == []
    assert ledger.faults == 0
    assert torch.check_torch_file(look, "y.bin") is None
    assert torch.check_torch_file(look, "z.bin") is None
    assert [(piece.name, piece.validity) for piece in ledger.pieces] == [
        ("sub/y.bin", CORRUPT),
        ("sub/z.bin", INCOMPLETE),
    ]


def test_large_entries_are_handed_out_by_name(tmp_path: Path) -> None:
    path = write_torch(tmp_path / NAME, torch_bytes(state(5, 3000), {0: data(3000), 1: data(4)}))
    look = Look(LocalStorage(), tmp_path, (NAME,), Ledger(lambda _: None))
    zipped = torch.check_torch_file(look, "")
    assert zipped is not None
    (unit,) = torch.units_of(look, "", zipped)
    raw = path.read_bytes()
    assert (unit.file, unit.piece) == ((), "archive/data/0")
    assert raw[unit.offset : unit.offset + unit.size_bytes] == data(3000)
