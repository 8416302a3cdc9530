"""Every way in which a checkpoint of fleetctl's own format is known to break, and what each level says about it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity, entry_of
from fleetctl.checkpoint.storage import Blob, Found, LocalStorage
from fleetctl.train import digests, layout
from tests.checkpoints import ARRAYS, lie, shard, write_checkpoint

VALID, INCOMPLETE, CORRUPT, UNKNOWN = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT, Validity.UNKNOWN
SHARD, SECOND, SAID, MANIFEST = "shard-00000.bin", "shard-00001.bin", "shard-00000.json", "manifest.json"
NAME = layout.committed_name(120, "run-a", "1.0")
HEADER_END = layout.PREFIX_BYTES + layout.parse_prefix(shard()[: layout.PREFIX_BYTES])


def entry(folder: Path) -> Entry:
    found = entry_of(folder.name)
    assert found is not None
    return found


def check(folder: Path, level: Level) -> Checked:
    return examine(LocalStorage(), folder.parent, entry(folder), level)


def cut(name: str, size: Callable[[int], int]) -> Callable[[Path], object]:
    return lambda folder: os.truncate(folder / name, size((folder / name).stat().st_size))


def flip(name: str, place: Callable[[int], int]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        raw = bytearray((folder / name).read_bytes())
        raw[place(len(raw))] ^= 1
        (folder / name).write_bytes(raw)

    return damage


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def put(name: str, raw: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(raw)


def hole(folder: Path) -> None:
    """Delayed allocation lost in a crash: the right size, zeros inside."""
    raw = (folder / SHARD).read_bytes()
    (folder / SHARD).write_bytes(raw[:-600] + bytes(500) + raw[-100:])


def instead(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return damage


def says(**words: object) -> Callable[[Path], object]:
    return lambda folder: lie(folder, **words)


def lists(*change: dict[str, object]) -> Callable[[Path], object]:
    """A manifest with other words about its files, and a right digest of its own."""

    def damage(folder: Path) -> None:
        record = json.loads((folder / MANIFEST).read_bytes())
        for file, words in zip(record["files"], change, strict=False):
            file.update(words)
        write_raw(folder, record)

    return damage


def record_with(**words: object) -> Callable[[Path], object]:
    return lambda folder: write_raw(folder, {**json.loads((folder / MANIFEST).read_bytes()), **words})


def write_raw(folder: Path, record: dict[str, object]) -> None:
    told = {key: value for key, value in record.items() if key != "self"}
    text = json.dumps(told, sort_keys=True, separators=(",", ":")).encode()
    record["self"] = digests.digest_of("crc32", text)
    (folder / MANIFEST).write_text(json.dumps(record, indent=1))


def longer_than_it_is(folder: Path) -> None:
    """A shard whose manifest and said agree with it, and whose header promises more data."""
    raw = shard()[:-10]
    (folder / SHARD).write_bytes(raw)
    lists({"bytes": len(raw), "digest": digests.digest_of("crc32", raw)})(folder)


def swapped(folder: Path) -> None:
    """Both shards whole, each under the other's name."""
    first, second = (folder / SHARD).read_bytes(), (folder / SECOND).read_bytes()
    (folder / SHARD).write_bytes(second)
    (folder / SECOND).write_bytes(first)


def longer_by_a_line(folder: Path) -> None:
    (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes() + b"\n")


def another_word(folder: Path) -> None:
    (folder / SAID).write_bytes((folder / "shard-00001.json").read_bytes())


OTHER = digests.digest_of("crc32", b"another file")
# damage -> what NAMES, STRUCTURE and CONTENT say, a word of the reason
DAMAGES: list[tuple[str, Callable[[Path], object], tuple[Validity, Validity, Validity], str]] = [
    ("shard cut to 0", cut(SHARD, lambda n: 0), (VALID, CORRUPT, CORRUPT), "has 0 bytes"),
    ("shard cut to 1", cut(SHARD, lambda n: 1), (VALID, CORRUPT, CORRUPT), "has 1 bytes"),
    ("shard cut to half", cut(SHARD, lambda n: n // 2), (VALID, CORRUPT, CORRUPT), "bytes, not"),
    ("shard short of 1", cut(SHARD, lambda n: n - 1), (VALID, CORRUPT, CORRUPT), "bytes, not"),
    ("shard longer by 1", cut(SECOND, lambda n: n + 1), (VALID, CORRUPT, CORRUPT), "bytes, not"),
    ("manifest cut to 0", cut(MANIFEST, lambda n: 0), (VALID, CORRUPT, CORRUPT), "not JSON"),
    ("manifest cut to 1", cut(MANIFEST, lambda n: 1), (VALID, CORRUPT, CORRUPT), "not JSON"),
    ("manifest cut to half", cut(MANIFEST, lambda n: n // 2), (VALID, CORRUPT, CORRUPT), "not JSON"),
    ("manifest short of 1", cut(MANIFEST, lambda n: n - 1), (VALID, CORRUPT, CORRUPT), "not JSON"),
    ("manifest with a tail", longer_by_a_line, (VALID, VALID, CORRUPT), "other bytes"),
    ("bit of the data", flip(SHARD, lambda n: n - 5), (VALID, VALID, CORRUPT), "another content"),
    ("bit of the magic", flip(SHARD, lambda n: 0), (VALID, CORRUPT, CORRUPT), "starts with"),
    ("bit of the header's length", flip(SHARD, lambda n: 9), (VALID, CORRUPT, CORRUPT), "header"),
    ("bit of the header", flip(SHARD, lambda n: 20), (VALID, CORRUPT, CORRUPT), SHARD),
    ("bit of the header's padding", flip(SHARD, lambda n: HEADER_END - 1), (VALID, CORRUPT, CORRUPT), "not JSON"),
    ("bit of the manifest", flip(MANIFEST, lambda n: n // 2), (VALID, CORRUPT, CORRUPT), MANIFEST),
    ("bit of what a rank said", flip(SAID, lambda n: n - 5), (VALID, VALID, CORRUPT), SAID),
    ("hole of zeros", hole, (VALID, VALID, CORRUPT), "another content"),
    ("all zeros", put(SHARD, bytes(len(shard({**ARRAYS, "rank": b"0"})))), (VALID, CORRUPT, CORRUPT), "starts with"),
    ("no manifest", remove(MANIFEST), (INCOMPLETE, INCOMPLETE, INCOMPLETE), "manifest.json is missing"),
    ("no shard", remove(SECOND), (VALID, INCOMPLETE, INCOMPLETE), "shard-00001.bin is missing"),
    ("no word of a rank", remove(SAID), (VALID, VALID, INCOMPLETE), "shard-00000.json is missing"),
    ("a shard too many", put("shard-00002.bin", b"x"), (VALID, CORRUPT, CORRUPT), "not in the manifest"),
    ("somebody's file", put("README", b"x"), (VALID, VALID, VALID), ""),
    ("two shards swapped", swapped, (VALID, VALID, CORRUPT), "another content"),
    ("a manifest of nothing", put(MANIFEST, b"{}"), (VALID, CORRUPT, CORRUPT), "self"),
    ("a manifest that is deep", put(MANIFEST, b"[" * 100_000), (VALID, CORRUPT, CORRUPT), "not JSON"),
    ("a manifest of one number", put(MANIFEST, b"9" * 100_000), (VALID, CORRUPT, CORRUPT), "manifest.json"),
    ("a wrong size", lists({"bytes": 1}), (VALID, CORRUPT, CORRUPT), "bytes, not 1"),
    ("an absurd size", lists({"bytes": 2**62}), (VALID, CORRUPT, CORRUPT), "bytes, not 4611"),
    ("a negative size", lists({"bytes": -1}), (VALID, CORRUPT, CORRUPT), "not a count"),
    ("a wrong step", says(training_step=121), (VALID, CORRUPT, CORRUPT), "step 121"),
    ("a wrong attempt", says(attempt="1.1"), (VALID, CORRUPT, CORRUPT), "attempt 1.1"),
    ("a wrong run", says(run_id="run-b"), (VALID, CORRUPT, CORRUPT), "run-b"),
    ("the digest of another file", lists({"digest": OTHER}), (VALID, VALID, CORRUPT), "not agree"),
    ("an unknown digest", lists({"digest": "md5:00"}), (VALID, CORRUPT, CORRUPT), "digest"),
    ("a file twice", lists({}, {"name": SHARD}), (VALID, CORRUPT, CORRUPT), "does not list"),
    ("a path upwards", lists({"name": "../x"}), (VALID, CORRUPT, CORRUPT), "does not list"),
    ("an absolute path", lists({"name": "/etc/passwd"}), (VALID, CORRUPT, CORRUPT), "does not list"),
    ("too many shards", record_with(shards=10**9), (VALID, CORRUPT, CORRUPT), "as many files"),
    ("no shards", record_with(shards=0, files=[]), (VALID, CORRUPT, CORRUPT), "as many files"),
    ("another schema", record_with(schema=2), (VALID, CORRUPT, CORRUPT), "schema"),
    ("a header that promises more", longer_than_it_is, (VALID, CORRUPT, CORRUPT), "its entries end"),
    ("a folder as shard", instead(SHARD, Path.mkdir), (VALID, CORRUPT, CORRUPT), "is no file"),
    ("a FIFO as shard", instead(SHARD, os.mkfifo), (VALID, CORRUPT, CORRUPT), "is no file"),
    ("a FIFO as manifest", instead(MANIFEST, os.mkfifo), (CORRUPT, CORRUPT, CORRUPT), "is no file"),
    ("a link as shard", instead(SHARD, lambda p: p.symlink_to(SECOND)), (VALID, CORRUPT, CORRUPT), "is no file"),
    ("a loop as shard", instead(SHARD, lambda p: p.symlink_to(p)), (VALID, CORRUPT, CORRUPT), "is no file"),
    ("a FIFO as a rank's word", instead(SAID, os.mkfifo), (VALID, VALID, CORRUPT), "is no file"),
    ("another rank's word", another_word, (VALID, VALID, CORRUPT), "agree"),
    ("a huge word of a rank", cut(SAID, lambda n: 1 << 30), (VALID, VALID, CORRUPT), "more than the"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "expected", "word"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_damage(damage: Callable[[Path], object], expected: tuple[Validity, ...], word: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 120)
    damage(folder)
    for level, validity in zip(Level, expected, strict=True):
        found = check(folder, level)
        assert found.validity is validity, (level, found.reason)
        assert found.level == (level if validity is VALID else previous(expected, level))
        assert word in found.reason if validity is not VALID else found.reason == ""
        assert found.reason.isprintable()


def previous(expected: tuple[Validity, ...], level: Level) -> Level | None:
    """The deepest level that says valid."""
    passed = [one for one, validity in zip(Level, expected, strict=True) if validity is VALID and one <= level]
    return max(passed, default=None)


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("kind", ["crc32", "sha256"])
def test_a_whole_one_is_valid(level: Level, kind: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 120, digest=kind)
    found = check(folder, level)
    assert (found.validity, found.level, found.reason) == (VALID, level, "")
    if level is not Level.NAMES:
        assert found.saved_at == datetime(2026, 1, 1, tzinfo=UTC)
        assert found.size_bytes == sum(path.stat().st_size for path in folder.glob("*.bin"))


def test_what_a_newer_fleetctl_adds_to_the_manifest_is_no_fault(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 120)
    record_with(world_size=2)(folder)
    assert check(folder, Level.CONTENT).validity is VALID


def test_only_content_reads_the_data(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 120, shards=1, data=bytes(3_000_000))
    assert check(folder, Level.NAMES).bytes_read == 0
    assert 0 < check(folder, Level.STRUCTURE).bytes_read < 2_000
    assert check(folder, Level.CONTENT).bytes_read > 3_000_000


def test_whoever_watches_is_told_every_byte(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 120, data=bytes(9_000_000))
    told: list[int] = []
    found = examine(LocalStorage(), tmp_path, entry(folder), Level.CONTENT, pulse=told.append)
    assert found.size_bytes is not None
    assert sum(told) == found.bytes_read
    assert found.size_bytes < found.bytes_read < found.size_bytes + 2_000
    assert len(told) < 100, "a bar is not told every page"


def test_a_date_in_the_future_is_no_fault(tmp_path: Path) -> None:
    later = datetime(2126, 1, 1, tzinfo=UTC)
    folder = write_checkpoint(tmp_path, 120, saved_at=later.isoformat())
    os.utime(folder / MANIFEST, (later.timestamp(), later.timestamp()))
    found = check(folder, Level.CONTENT)
    assert (found.validity, found.saved_at) == (VALID, later)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-01T00:00:00", "0001-01-01T00:00:00+23:59"])
def test_a_time_that_says_nothing_is_no_fault(text: str, tmp_path: Path) -> None:
    found = check(write_checkpoint(tmp_path, 120, saved_at=text), Level.CONTENT)
    assert (found.validity, found.saved_at) == (VALID, None)


def test_a_time_in_another_zone_is_told_in_utc(tmp_path: Path) -> None:
    found = check(write_checkpoint(tmp_path, 120, saved_at="2026-01-01T02:00:00+02:00"), Level.STRUCTURE)
    assert found.saved_at is not None
    assert found.saved_at.utcoffset() == timedelta(0)


NO_KIND = "is no file and no folder"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Path.touch, "is no folder"),
        (os.mkfifo, NO_KIND),
    ],
)
def test_what_is_no_folder_is_corrupt(make: Callable[[Path], object], why: str, tmp_path: Path) -> None:
    path = tmp_path / NAME
    make(path)
    found = check(path, Level.CONTENT)
    assert (found.validity, found.level, found.reason) == (CORRUPT, None, why)


def test_a_link_is_not_followed_wherever_it_points(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "elsewhere", 120)
    link = tmp_path / folder.name
    for target in (folder, Path("/"), link):
        link.symlink_to(target)
        found = check(link, Level.NAMES)
        assert (found.validity, found.level) == (UNKNOWN, None)
        assert found.reason.endswith("is a link, and links are not followed")
        link.unlink()


def test_a_missing_one_is_incomplete(tmp_path: Path) -> None:
    found = check(tmp_path / NAME, Level.CONTENT)
    assert (found.validity, found.reason) == (INCOMPLETE, "is gone")


def test_a_digest_that_cannot_be_computed_leaves_it_at_structure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path, 120)
    fake = "xxh3:0123456789abcdef"
    lists({"digest": fake}, {"digest": fake})(folder)
    for rank in (0, 1):
        raw = (folder / layout.shard_name(rank)).stat().st_size
        (folder / layout.said_name(rank)).write_bytes(layout.encode_said(layout.Said(raw, fake, None)))
    monkeypatch.setitem(__import__("sys").modules, "xxhash", None)
    found = check(folder, Level.CONTENT)
    assert (found.validity, found.level) == (VALID, Level.STRUCTURE)
    assert found.reason == "xxhash is not installed: the content was not checked"


def test_a_manifest_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 120)
    os.truncate(folder / MANIFEST, 1 << 30)
    tracemalloc.start()
    try:
        found = check(folder, Level.CONTENT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.validity, found.bytes_read) == (CORRUPT, 0)
    assert peak < 1 << 20


def test_a_header_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 120, shards=1)
    (folder / SHARD).write_bytes(layout.MAGIC + ((1 << 30) - 16).to_bytes(8, "little"))
    os.truncate(folder / SHARD, 2 << 30)
    lists({"bytes": 2 << 30})(folder)
    found = check(folder, Level.STRUCTURE)
    assert (found.validity, found.bytes_read < 2_000) == (CORRUPT, True)


def test_a_header_longer_than_its_file_is_not_read(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 120, shards=1)
    (folder / SHARD).write_bytes(layout.MAGIC + (4096 - 16).to_bytes(8, "little"))
    lists({"bytes": 16})(folder)
    assert "longer than the file" in check(folder, Level.STRUCTURE).reason


class Failing:
    """A storage where one verb on one name fails."""

    def __init__(self, verb: str, name: str, number: int) -> None:
        self._inner, self._verb, self._name = LocalStorage(), verb, name
        self._error = OSError(number, os.strerror(number))

    def _fail(self, verb: str, name: str) -> None:
        if (verb, name) == (self._verb, self._name):
            raise self._error

    def names(self, directory: Path) -> tuple[str, ...]:
        return self._inner.names(directory)

    def listing(self, directory: Path, *inside: str) -> tuple[str, ...]:
        self._fail("listing", inside[-1])
        return self._inner.listing(directory, *inside)

    def look(self, directory: Path, *inside: str) -> Found | None:
        self._fail("look", inside[-1])
        return self._inner.look(directory, *inside)

    def look_all(self, directory: Path, *inside: str) -> dict[str, Found]:
        self._fail("look_all", inside[-1])
        return self._inner.look_all(directory, *inside)

    @contextlib.contextmanager
    def open(self, directory: Path, *inside: str) -> Iterator[Blob]:
        self._fail("open", inside[-1])
        with self._inner.open(directory, *inside) as blob:
            yield _FailingBlob(blob, self._error) if (self._verb, self._name) == ("read", inside[-1]) else blob


class _FailingBlob:
    def __init__(self, inner: Blob, error: OSError) -> None:
        self.size_bytes, self.stamp, self._error = inner.size_bytes, inner.stamp, error

    def read(self, offset: int, size_bytes: int) -> bytes:
        raise self._error

    def read_into(self, buffer: memoryview, offset: int) -> int:
        raise self._error


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ELOOP, errno.ETIMEDOUT])
@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("look", NAME), ("look_all", NAME), ("open", MANIFEST), ("read", MANIFEST), ("open", SECOND), ("read", SECOND),
        ("open", SAID), ("read", SAID),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_unknown_and_says_why(verb: str, name: str, number: int, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 120)
    found = examine(Failing(verb, name, number), tmp_path, entry(folder), Level.CONTENT)
    assert found.validity is UNKNOWN
    assert os.strerror(number) in found.reason
    assert found.faults == 1


def test_every_fault_is_named_and_the_worst_one_is_the_reason(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 120, shards=5)
    (folder / "shard-00000.bin").unlink()
    os.truncate(folder / "shard-00001.bin", 3)
    flip("shard-00002.bin", lambda n: 0)(folder)
    put("shard-00009.bin", b"x")(folder)
    found = check(folder, Level.CONTENT)
    assert (found.validity, found.level, found.faults) == (CORRUPT, Level.NAMES, 4)
    assert [(piece.name, piece.validity) for piece in found.pieces] == [
        ("shard-00000.bin", INCOMPLETE),
        ("shard-00001.bin", CORRUPT),
        ("shard-00002.bin", CORRUPT),
        ("shard-00009.bin", CORRUPT),
    ]
    assert found.reason == f"{found.pieces[1].reason} (and 3 more)"


def test_every_shard_of_other_content_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 120, shards=40)
    bad = [layout.shard_name(rank) for rank in range(3, 40, 7)]
    for name in bad:
        flip(name, lambda n: n - 1)(folder)
    (folder / layout.said_name(39)).unlink()
    found = check(folder, Level.CONTENT)
    assert (found.validity, found.level) == (CORRUPT, Level.STRUCTURE)
    assert sorted(piece.name for piece in found.pieces) == sorted([*bad, layout.said_name(39)])


def test_of_very_many_faults_the_first_are_named_and_all_are_counted(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 120, shards=250)
    for rank in range(250):
        (folder / layout.shard_name(rank)).unlink()
    found = check(folder, Level.STRUCTURE)
    assert (found.validity, found.faults, len(found.pieces)) == (INCOMPLETE, 250, 100)
    assert found.reason == "shard-00000.bin is missing (and 249 more)"


def test_what_cannot_be_read_hides_nothing_that_is_wrong(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 120)
    storage = Failing("open", SHARD, errno.EIO)
    assert examine(storage, tmp_path, entry(folder), Level.STRUCTURE).validity is UNKNOWN
    os.truncate(folder / SECOND, 3)
    found = examine(storage, tmp_path, entry(folder), Level.STRUCTURE)
    assert (found.validity, found.faults) == (CORRUPT, 2)
    (folder / SECOND).unlink()
    assert examine(storage, tmp_path, entry(folder), Level.STRUCTURE).validity is INCOMPLETE


def test_a_reason_never_carries_what_a_file_says_raw(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 120)
    lie(folder, run_id="\x1b[2J\n\u202e" + "x" * 10_000)
    reason = check(folder, Level.STRUCTURE).reason
    assert reason.isascii()
    assert reason.isprintable()
    assert len(reason) < 600
