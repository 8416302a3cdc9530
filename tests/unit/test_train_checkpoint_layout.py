"""The form on disk: what is written can be read, and what is not of that form is refused with a reason."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.train import layout
from fleetctl.train.digests import DigestMissing, digest_of, parse_digest
from fleetctl.train.layout import Manifest, Name, Part, Said, ShardFile

NAME = "step-000000120@train-numpy-4taw7w@2.0"
FILES = (ShardFile("shard-00000.bin", 10, "crc32:00000001"), ShardFile("shard-00001.bin", 0, f"sha256:{'0' * 64}"))
MANIFEST = Manifest(120, "train-numpy-4taw7w", "2.0", "2026-01-01T00:00:00+00:00", "node1", 2, FILES)
PARTS = (
    Part("a", "array", "<f8", (2, 3), 0, 48),
    Part("é", "bytes", None, None, 48, 5),
    Part("", "json", None, None, 53, 2),
)


def test_names() -> None:
    assert layout.committed_name(120, "train-numpy-4taw7w", "2.0") == NAME
    assert layout.parse_committed(NAME) == Name(120, "train-numpy-4taw7w", "2.0")
    assert layout.staging_name(120, "train-numpy-4taw7w", "2.0", 7) == f"{NAME}@7"
    assert layout.parse_staging(f"{NAME}@7") == (Name(120, "train-numpy-4taw7w", "2.0"), 7)
    assert layout.staging_name(120, "train-numpy-4taw7w", "2.0", 7, "0123abcd") == f"{NAME}@7-0123abcd"
    assert layout.parse_staging(f"{NAME}@7-0123abcd") == (Name(120, "train-numpy-4taw7w", "2.0"), 7)
    assert layout.parse_committed("step-1234567890@r@0.0").training_step == 1234567890
    assert (layout.shard_name(3), layout.said_name(3), layout.parse_shard_name("shard-00003.bin")) == (
        "shard-00003.bin",
        "shard-00003.json",
        3,
    )
    assert sorted(["10.0", "9.1", "9.0"], key=layout.attempt_number) == ["9.0", "9.1", "10.0"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "step-120@r@2.0",
        "step-0000000120@r@2.0",
        "step-000000120@r@2",
        "step-000000120@r@2.0@1",
        "step-000000120@-r@2.0",
        f"step-000000120@{'r' * 81}@2.0",
        "step-000000120@a/b@2.0",
        "step-000000120@r@2.0\n",
        "step-00000012\u0661@r@2.0",
        "step--00000120@r@2.0",
    ],
)
def test_foreign_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"is n|like|needless"):
        layout.parse_committed(name)


@pytest.mark.parametrize(
    "name", [NAME, f"{NAME}@", f"{NAME}@x", "@1", f"{NAME}@1-", f"{NAME}@1-0123ABCD", f"{NAME}@1-0123abcd0"]
)
def test_foreign_staging_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is n"):
        layout.parse_staging(name)


@pytest.mark.parametrize("step", [-1, 10**18])
def test_a_step_that_no_name_can_hold_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match="is not like"):
        layout.committed_name(step, "r", "2.0")


def test_header_comes_back() -> None:
    raw = layout.encode_header(PARTS)
    length = layout.parse_prefix(raw[: layout.PREFIX_BYTES])
    assert len(raw) == layout.PREFIX_BYTES + length
    assert len(raw) % 64 == 0
    assert layout.parse_header(raw[layout.PREFIX_BYTES :]) == PARTS
    assert layout.shard_bytes(length, PARTS) == len(raw) + 55


HEADERS: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "a gap": lambda entries: entries[1].update(offset=49),
    "an overlap": lambda entries: entries[1].update(offset=40),
    "another order": lambda entries: entries.reverse(),
    "a name twice": lambda entries: entries[1].update(name="a"),
    "an unknown kind": lambda entries: entries[1].update(kind="pickle"),
    "bytes that are not those of the shape": lambda entries: entries[0].update(shape=[3, 3]),
    "a negative length": lambda entries: entries[0].update(shape=[-2, -3]),
    "a length that is true": lambda entries: entries[0].update(shape=[True, 6]),
    "an object dtype": lambda entries: entries[0].update(dtype="|O8"),
    "a dtype of no size": lambda entries: entries[0].update(dtype="<U0", bytes=0),
    "no dtype": lambda entries: entries[0].update(dtype=None),
    "a size that is text": lambda entries: entries[1].update(bytes="5"),
    "a huge size": lambda entries: entries[2].update(bytes=2**70),
    "an entry that is none": lambda entries: entries.append(7),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("change", HEADERS.values(), ids=HEADERS.keys())
def test_a_wrong_header_is_refused(change: Callable[[list[dict[str, Any]]], object]) -> None:
    entries = json.loads(layout.encode_header(PARTS)[layout.PREFIX_BYTES :])["entries"]
    change(entries)
    with pytest.raises(ValueError, match=r"header|entry|array|dtype|count"):
        layout.parse_header(json.dumps({"entries": entries}).encode())


@pytest.mark.parametrize(
    "raw", [b"", b"fleetck1", b"fleetck2" + bytes(8), b"fleetck1" + b"\xff" * 8, b"fleetck1" + bytes(8)]
)
def test_a_wrong_start_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"file|header"):
        layout.parse_prefix(raw)


def test_manifest_comes_back_and_belongs_to_its_folder() -> None:
    manifest = layout.parse_manifest(layout.encode_manifest(MANIFEST))
    assert manifest == MANIFEST
    layout.check_agreement(manifest, layout.parse_committed(NAME))
    for name in (Name(121, *MANIFEST[1:3]), Name(120, "other", "2.0"), Name(120, MANIFEST.run_id, "2.1")):
        with pytest.raises(ValueError, match="not what the folder's name says"):
            layout.check_agreement(manifest, name)


MANIFESTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "another schema": lambda record: record.update(schema=2),
    "another format": lambda record: record.update(format="torch"),
    "fewer files": lambda record: record["files"].pop(),
    "no shards": lambda record: record.update(shards=0, files=[]),
    "shards that are true": lambda record: record.update(shards=True, files=record["files"][:1]),
    "another order": lambda record: record["files"].reverse(),
    "a path that leads out": lambda record: record["files"][0].update(name="../shard-00000.bin"),
    "no digest": lambda record: record["files"][0].pop("digest"),
    "an unknown digest": lambda record: record["files"][0].update(digest="md5:00"),
    "a negative size": lambda record: record["files"][0].update(bytes=-1),
    "a step that is text": lambda record: record.update(training_step="120"),
    "no host": lambda record: record.pop("host"),
}


@pytest.mark.parametrize("change", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_a_wrong_manifest_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    record = json.loads(layout.encode_manifest(MANIFEST))
    del record["self"]
    change(record)
    with pytest.raises(ValueError, match="digest") as unsigned:
        layout.parse_manifest(json.dumps({**record, "self": "crc32:00000000"}).encode())
    assert "own digest" in str(unsigned.value)
    signed = digest_of("crc32", json.dumps(record, sort_keys=True, separators=(",", ":")).encode())
    with pytest.raises(ValueError, match=r"manifest|digest|count|text") as wrong:
        layout.parse_manifest(json.dumps({**record, "self": signed}).encode())
    assert "own digest" not in str(wrong.value)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_nothing_but_value_error(raw: bytes) -> None:
    for parse in (layout.parse_manifest, layout.parse_header, layout.parse_prefix, layout.parse_said):
        with contextlib.suppress(ValueError):
            parse(raw)


@pytest.mark.parametrize("raw", [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b"null", b"\xff"])
def test_json_that_hurts_is_refused(raw: bytes) -> None:
    for parse in (layout.parse_manifest, layout.parse_header, layout.parse_said):
        with pytest.raises(ValueError, match="JSON"):
            parse(raw)


@pytest.mark.parametrize("said", [Said(5, "crc32:0000000a", None), Said(0, "", "disk full")])
def test_what_a_rank_says_comes_back(said: Said) -> None:
    assert layout.parse_said(layout.encode_said(said)) == said


def test_digests() -> None:
    assert digest_of("crc32", b"123456789") == "crc32:cbf43926"
    assert digest_of("sha256", b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert parse_digest("xxh3:2d06800538d394c2") == ("xxh3", "2d06800538d394c2")
    for text in ("crc32:CBF43926", "crc32:1", "md5:1", "crc32", ""):
        with pytest.raises(ValueError, match="is no digest"):
            parse_digest(text)


def test_without_xxhash_its_digest_is_missing_and_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "xxhash", None)
    with pytest.raises(DigestMissing, match="xxhash is not installed"):
        digest_of("xxh3", b"")
