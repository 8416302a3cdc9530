"""Zip directories: right ones are read to the byte, and no wrong one is believed."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetctl.checkpoint import zips
from fleetctl.checkpoint.look import Unjudged
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.checkpoint.zips import Zip, has_crcs, read_zip
from tests.formats.torch import torch_bytes, zip_bytes

ENTRIES = {"a/data.pkl": b"N.", "a/empty": b"", "a/data/0": bytes(range(256)) * 20, "a/version": b"3\n"}


def read(raw: bytes, folder: Path, start: int = 0, size: int | None = None) -> Zip:
    (folder / "file").write_bytes(raw)
    with LocalStorage().open(folder, "file") as blob:
        return read_zip(blob, start, size)


def check_entries(found: Zip, raw: bytes, wanted: dict[str, bytes]) -> None:
    assert {entry.name: raw[entry.offset : entry.offset + entry.size_bytes] for entry in found.entries} == wanted
    with zipfile.ZipFile(io.BytesIO(raw)) as known:
        assert [entry.crc32 for entry in found.entries] == [known.getinfo(entry.name).CRC for entry in found.entries]


def test_a_zip_of_torch(tmp_path: Path) -> None:
    raw = zip_bytes(ENTRIES)
    check_entries(read(raw, tmp_path), raw, ENTRIES)


@pytest.mark.parametrize("comment", [b"", b"x", b"PK\5" * 10, b"y" * 65_535])
def test_a_zip_of_python_with_a_comment(comment: bytes, tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, data in ENTRIES.items():
            made.writestr(name, data)
        made.comment = comment
    check_entries(read(out.getvalue(), tmp_path), out.getvalue(), ENTRIES)


def test_one_of_large_sizes(tmp_path: Path) -> None:
    """Sizes that need 64 bits, written so for a small file."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made, made.open("a/data.pkl", "w", force_zip64=True) as entry:
        entry.write(b"N.")
    raw = bytearray(out.getvalue())
    at = raw.index(b"PK\1\2")
    directory = bytearray(raw[at : raw.index(b"PK\5\6")])
    struct.pack_into("<II", directory, 20, 0xFFFFFFFF, 0xFFFFFFFF)
    struct.pack_into("<H", directory, 30, 20)
    directory += struct.pack("<HHQQ", 1, 16, 2, 2)
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, len(directory), at, 0)
    found = read(bytes(raw[:at] + directory + end), tmp_path)
    assert [(entry.name, entry.size_bytes) for entry in found.entries] == [("a/data.pkl", 2)]


def test_a_slice_of_a_file(tmp_path: Path) -> None:
    raw = zip_bytes(ENTRIES)
    found = read(b"before" * 100 + raw + b"behind", tmp_path, 600, len(raw))
    whole = read(raw, tmp_path)
    assert [entry.offset - 600 for entry in found.entries] == [entry.offset for entry in whole.entries]


@pytest.mark.parametrize(("start", "size"), [(1, None), (0, 10), (0, 10**9), (10**9, None), (10**9, 22)])
def test_a_slice_that_is_none(start: int, size: int | None, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"zip|ends before"):
        read(zip_bytes(ENTRIES), tmp_path, start, size)


def test_whether_crcs_were_computed(tmp_path: Path) -> None:
    assert has_crcs(read(zip_bytes(ENTRIES), tmp_path))
    assert not has_crcs(read(zip_bytes(ENTRIES, crcs=False), tmp_path))


def test_every_cut_is_seen(tmp_path: Path) -> None:
    raw = zip_bytes({"a/data.pkl": b"N.", "a/data/0": b"x" * 100})
    for size in range(len(raw)):
        with pytest.raises(ValueError, match=r"zip|ends before"):
            read(raw[:size], tmp_path)


def test_every_tail_of_zeros_is_seen(tmp_path: Path) -> None:
    raw = zip_bytes({"a/data.pkl": b"N.", "a/data/0": b"x" * 100})
    last = len(raw.rstrip(b"\0"))
    for size in range(last):
        zeros = raw[:size] + bytes(len(raw) - size)
        with pytest.raises(ValueError, match=r"zip|ends before"):
            read(zeros, tmp_path)


def patched(place: Callable[[bytes], int], form: str, *values: object) -> bytes:
    raw = bytearray(zip_bytes(ENTRIES))
    struct.pack_into(form, raw, place(bytes(raw)), *values)
    end = raw.index(b"PK\5\6")
    raw[end + 4 : end + 20] = b"\xff" * 16  # the record of zip64 has the values
    return bytes(raw)


def central(field: int) -> Callable[[bytes], int]:
    return lambda raw: raw.index(b"PK\1\2") + field


def end64(field: int) -> Callable[[bytes], int]:
    return lambda raw: raw.index(b"PK\6\6") + field


def locator(field: int) -> Callable[[bytes], int]:
    return lambda raw: raw.index(b"PK\6\7") + field


def local(field: int) -> Callable[[bytes], int]:
    return lambda raw: raw.rindex(b"PK\3\4") + field


WRONG = {
    "compressed": (patched(central(10), "<H", 8), "compressed"),
    "encrypted": (patched(central(8), "<H", 1), "compressed or encrypted"),
    "another stored size": (patched(central(20), "<I", 1), "compressed"),
    "a size that overlaps": (zip_bytes(ENTRIES).replace(struct.pack("<I", 5120), struct.pack("<I", 5600)), "reaches"),
    "an offset beyond": (patched(central(42), "<I", 10**9), "reaches"),
    "an offset of another": (patched(central(42), "<I", 64), "reaches"),
    "a header of nothing": (patched(local(0), "<I", 0), "broken"),
    "another name in the header": (patched(local(30), "<I", 0), "broken"),
    "a longer name in the header": (patched(local(26), "<H", 500), "broken"),
    "a longer extra field": (patched(local(28), "<H", 60_000), "reaches"),
    "a longer name in the directory": (patched(central(28), "<H", 60_000), "broken"),
    "a directory elsewhere": (patched(end64(48), "<Q", 5), "directory ends at"),
    "a directory far away": (patched(end64(48), "<Q", 2**63), "directory ends at"),
    "a directory of nothing": (patched(end64(40), "<Q", 0), "directory ends at"),
    "one entry more": (patched(end64(24), "<QQ", 5, 5), "4 entries, not 5"),
    "no entries": (patched(end64(24), "<QQ", 0, 0), "4 entries, not 0"),
    "two counts of entries": (patched(end64(24), "<Q", 5), "directory"),
    "another end record": (zip_bytes(ENTRIES).replace(b"PK\5\6\0\0", b"PK\5\6\1\0"), "end record is broken"),
    "a second disk": (patched(end64(16), "<I", 1), "directory ends at"),
    "an end record elsewhere": (patched(locator(8), "<Q", 0), "end record"),
    "an end record far away": (patched(locator(8), "<Q", 2**63), "outside"),
    "large sizes that are not there": (patched(central(24), "<I", 0xFFFFFFFF), "large sizes"),
}


@pytest.mark.parametrize(("raw", "word"), WRONG.values(), ids=WRONG)
def test_no_lie_is_believed(raw: bytes, word: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=word) as raised:
        read(raw, tmp_path)
    assert not isinstance(raised.value, Unjudged)


def test_one_name_twice(tmp_path: Path) -> None:
    raw = zip_bytes({"a/1": b"x", "a/2": b"y"}).replace(b"a/2", b"a/1")
    with pytest.raises(ValueError, match="different names"):
        read(raw, tmp_path)


def test_two_names_for_the_same_bytes(tmp_path: Path) -> None:
    """The zip bomb that needs no compression within."""
    raw = bytearray(zip_bytes({"a/1": b"x", "a/data.pkl": b"y"}))
    struct.pack_into("<I", raw, raw.rindex(b"PK\1\2") + 42, 0)
    with pytest.raises(ValueError, match=r"reaches|broken"):
        read(bytes(raw), tmp_path)


def test_too_large_a_directory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zips, "_MOST_ENTRIES", 3)
    with pytest.raises(Unjudged, match="4 entries"):
        read(zip_bytes(ENTRIES), tmp_path)


def test_a_directory_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    raw = zip_bytes(ENTRIES)
    with (tmp_path / "file").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, 2)
        file.write(raw[raw.index(b"PK\6\6") :])
        end = file.seek(1 << 40)
        file.seek(end + 40)
        file.write(struct.pack("<QQ", 1 << 40, 0))
        file.seek(end + 56 + 8)
        file.write(struct.pack("<Q", end))
        file.seek(end + 56 + 20 + 4)
        file.write(b"\xff" * 16)
    with LocalStorage().open(tmp_path, "file") as blob, pytest.raises(Unjudged, match="more than is looked at"):
        read_zip(blob)


def test_what_torch_writes_is_read(tmp_path: Path) -> None:
    names = [entry.name for entry in read(torch_bytes(), tmp_path).entries]
    assert names[0] == "archive/data.pkl"
    assert "archive/data/1" in names


def deflated(*names: str) -> bytes:
    """As Python zips, the last one compressed."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name in names:
            made.writestr(name, b"x" * 50, zipfile.ZIP_DEFLATED if name == names[-1] else zipfile.ZIP_STORED)
    return out.getvalue()


OTHERS = {
    "of torch.jit": deflated("m/data.pkl", "m/constants.pkl", "m/code/__torch__.py"),
    "of torch.jit without code": deflated("m/data.pkl", "m/constants.pkl"),
    "of torch.jit with code alone": deflated("m/data.pkl", "m/code/__torch__/nn/linear.py"),
    "of torch.export": zip_bytes({"m/data/weights/weight_0": b"x", "m/models/model.json": b"{}"}),
    "of numpy": deflated("a.npy", "b.npy"),
}


@pytest.mark.parametrize("raw", OTHERS.values(), ids=OTHERS)
def test_a_zip_of_something_else_is_not_judged(raw: bytes, tmp_path: Path) -> None:
    with pytest.raises(Unjudged, match=r"not a checkpoint|not one of torch\.save"):
        read(raw, tmp_path)


@pytest.mark.parametrize(
    "names", [("m/data.pkl",), ("m/data.pkl", "m/data/code/0"), ("m/data.pkl", "m/data/constants.pkl")]
)
def test_a_compressed_one_of_torch_is_wrong(names: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="compressed") as raised:
        read(deflated(*names), tmp_path)
    assert not isinstance(raised.value, Unjudged)
