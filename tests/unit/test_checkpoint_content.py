"""The reader of contents: bounded, in turns, in threads, and never twice what is noted as read."""

from __future__ import annotations

import os
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fleetctl.checkpoint import content, verified
from fleetctl.checkpoint.content import check_content
from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.format import Unit
from fleetctl.checkpoint.look import Ledger, Look
from fleetctl.checkpoint.model import Level, Validity, entry_of
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.checkpoint.verified import NoNotes, Notes, folder_of, forget, open_notes, path_of
from fleetctl.train.digests import digest_of
from tests.checkpoints import write_checkpoint

NONE = NoNotes()


def look_at(tmp_path: Path, told: list[int] | None = None) -> Look:
    (tmp_path / "c").mkdir(exist_ok=True)
    return Look(LocalStorage(), tmp_path, ("c",), Ledger((told if told is not None else []).append))


def put(tmp_path: Path, name: str, raw: bytes) -> None:
    (tmp_path / "c" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "c" / name).write_bytes(raw)


def unit(name: str, raw: bytes, offset: int = 0, *, kind: str = "crc32", piece: str = "") -> Unit:
    return Unit(tuple(name.split("/")), offset, len(raw), digest_of(kind, raw), piece)


@pytest.mark.parametrize("kind", ["crc32", "sha256"])
@pytest.mark.parametrize("size", [0, 1, content._CHUNK_BYTES - 1, content._CHUNK_BYTES, 3 * content._CHUNK_BYTES + 7])
def test_what_is_as_written_is_no_fault(kind: str, size: int, tmp_path: Path) -> None:
    told: list[int] = []
    look, raw = look_at(tmp_path, told), os.urandom(size)
    put(tmp_path, "in/x", raw)
    assert check_content(look, [unit("in/x", raw, kind=kind)], NONE) == ""
    assert (look.ledger.faults, look.ledger.bytes_read, sum(told)) == (0, size, size)


@pytest.mark.parametrize("place", [0, 1 << 20, (3 << 20) - 1])
def test_any_other_byte_is_a_fault_of_its_piece(place: int, tmp_path: Path) -> None:
    look, raw = look_at(tmp_path), bytearray(os.urandom(3 << 20))
    before = bytes(raw)
    raw[place] ^= 1
    put(tmp_path, "x", bytes(raw))
    parts = [unit("x", before[at : at + (1 << 19)], at, piece=f"part {at}") for at in range(0, len(before), 1 << 19)]
    check_content(look, parts, NONE)
    (fault,) = look.ledger.pieces
    at = place // (1 << 19) * (1 << 19)
    assert (fault.validity, fault.reason) == (
        Validity.CORRUPT,
        f"x: part {at} has another content than was written",
    )


def test_what_is_short_missing_or_no_file_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    look = look_at(tmp_path)
    put(tmp_path, "short", b"12345")
    put(tmp_path, "whole", b"12345")
    os.mkfifo(tmp_path / "c" / "fifo")
    (tmp_path / "c" / "link").symlink_to("whole")
    names = ("short", "gone", "fifo", "link", "whole")
    check_content(look, [unit(name, b"123456" if name == "short" else b"12345") for name in names], NONE)
    assert {(piece.name, piece.validity, piece.reason) for piece in look.ledger.pieces} == {
        ("short", Validity.CORRUPT, "short ends at byte 5"),
        ("gone", Validity.INCOMPLETE, "gone is missing"),
        ("fifo", Validity.CORRUPT, "fifo is no file"),
        ("link", Validity.CORRUPT, "link is no file"),
    }


def test_a_digest_that_is_none_is_a_fault(tmp_path: Path) -> None:
    look = look_at(tmp_path)
    put(tmp_path, "x", b"1")
    check_content(look, [Unit(("x",), 0, 1, "md5:00")], NONE)
    assert look.ledger.worst is not None
    assert look.ledger.worst.validity is Validity.CORRUPT


def test_many_pieces_are_not_held_in_memory_nor_opened_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, raw, opened, ahead = look_at(tmp_path), os.urandom(1 << 16), [0], [0]
    put(tmp_path, "x", raw)
    whole = LocalStorage.open

    def count(self: LocalStorage, directory: Path, *inside: str) -> object:
        opened[0] += 1
        return whole(self, directory, *inside)

    monkeypatch.setattr(LocalStorage, "open", count)
    one_at_a_time = threading.Lock()

    class Counting:
        def has(self, stamp: str, units: Sequence[Unit]) -> bool:
            return False

        def add(self, stamp: str, units: Sequence[Unit]) -> None:
            with one_at_a_time:
                done[0] += len(units)

    done = [0]

    def units() -> Iterator[Unit]:
        for number in range(30_000):
            ahead[0] = max(ahead[0], number - done[0])
            at = number % (1 << 15)
            yield unit("x", raw[at : at + 16], at)

    tracemalloc.start()
    try:
        check_content(look, units(), Counting())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    workers = min(8, len(os.sched_getaffinity(0)))
    assert (look.ledger.faults, done[0], opened[0] <= workers) == (0, 30_000, True)
    assert ahead[0] <= content._BATCH_UNITS * workers * (content._AHEAD + 2)
    assert peak < (64 << 20)


def test_a_big_file_takes_no_more_memory_than_its_workers_have(tmp_path: Path) -> None:
    look, size = look_at(tmp_path), 64 << 20
    put(tmp_path, "x", b"")
    os.truncate(tmp_path / "c" / "x", size)
    tracemalloc.start()
    try:
        check_content(look, [Unit(("x",), 0, size, "crc32:00000000")], NONE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < (content._MOST_WORKERS + 1) * content._CHUNK_BYTES


def test_it_works_in_several_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    look, seen = look_at(tmp_path), set[int]()
    meet = threading.Barrier(4, timeout=20)

    class Meeting:
        def has(self, stamp: str, units: object) -> bool:
            seen.add(threading.get_ident())
            meet.wait()
            return False

        def add(self, stamp: str, units: object) -> None:
            pass

    for name in "abcd":
        put(tmp_path, name, b"1")
    check_content(look, [unit(name, b"1") for name in "abcd"], Meeting())
    assert (len(seen), look.ledger.faults) == (4, 0)


def test_no_read_is_lost_to_the_count_of_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the pulse have to bear two threads."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    inside, told = threading.Lock(), [0]

    def pulse(size_bytes: int) -> None:
        assert inside.acquire(blocking=False)
        before = told[0]
        time.sleep(0)  # let go of the interpreter: another thread would write over it
        told[0] = before + size_bytes
        inside.release()

    (tmp_path / "c").mkdir()
    look = Look(LocalStorage(), tmp_path, ("c",), Ledger(pulse))
    units = []
    for number in range(400):
        put(tmp_path, str(number), b"x" * 1000)
        units.append(unit(str(number), b"x" * 1000))
    check_content(look, units, NONE)
    assert look.ledger.bytes_read == told[0] == 400_000


def test_an_interruption_does_not_wait_for_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = look_at(tmp_path)
    put(tmp_path, "x", b"")
    os.truncate(tmp_path / "c" / "x", 1 << 40)
    reading = threading.Event()
    whole = LocalStorage.open

    def opened(self: LocalStorage, directory: Path, *inside: str) -> object:
        reading.set()
        return whole(self, directory, *inside)

    monkeypatch.setattr(LocalStorage, "open", opened)

    def units() -> Iterator[Unit]:
        yield Unit(("x",), 0, 1 << 40, "crc32:00000000")
        assert reading.wait(20)
        raise KeyboardInterrupt

    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        check_content(look, units(), NONE)
    assert time.monotonic() - began_s < 20
    assert look.ledger.faults == 0


def test_what_yields_the_units_may_fail(tmp_path: Path) -> None:
    look = look_at(tmp_path)
    put(tmp_path, "x", b"1")

    def units() -> Iterator[Unit]:
        yield unit("x", b"1")
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input"):
        check_content(look, units(), NONE)


# Notes


def check(folder: Path, notes: Path | None, *, trusted: bool = True) -> tuple[Validity, Level | None, int]:
    """What is found, and how much of the content was read."""
    entry = entry_of(folder.name)
    assert entry is not None
    with open_notes(notes, trusted=trusted) as opened:
        found = examine(LocalStorage(), folder.parent, entry, Level.CONTENT, notes=opened)
    other = examine(LocalStorage(), folder.parent, entry, Level.STRUCTURE).bytes_read
    other += sum(path.stat().st_size for path in folder.glob("shard-*.json"))  # what the ranks said
    return found.validity, found.level, found.bytes_read - other


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "c", 1, data=bytes(100_000))


VALID = (Validity.VALID, Level.CONTENT)


def shard_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.bin"))


def test_what_was_right_is_read_once_if_it_is_asked_so(folder: Path, tmp_path: Path) -> None:
    notes, size = tmp_path / "home" / "notes", shard_bytes(folder)
    assert check(folder, notes) == (*VALID, size)
    assert check(folder, notes) == (*VALID, 0)
    assert check(folder, notes, trusted=False) == (*VALID, size)
    assert notes.stat().st_mode & 0o777 == 0o600
    assert notes.parent.stat().st_mode & 0o777 == 0o700
    forget(str(notes))
    forget(str(notes))
    assert check(folder, notes) == (*VALID, size)


def test_only_what_passed_is_noted(folder: Path, tmp_path: Path) -> None:
    notes, shard = tmp_path / "notes", folder / "shard-00001.bin"
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(bytes(raw))
    assert check(folder, notes)[0] is Validity.CORRUPT
    assert check(folder, notes) == (Validity.CORRUPT, Level.STRUCTURE, len(raw)), "the wrong one alone is read again"


@pytest.mark.parametrize("how", ["content", "time", "inode"])
def test_what_was_written_to_since_is_read_again(how: str, folder: Path, tmp_path: Path) -> None:
    notes, shard = tmp_path / "notes", folder / "shard-00000.bin"
    check(folder, notes)
    time.sleep(0.02)  # a file system's clock ticks some hundred times a second
    raw, status = bytearray(shard.read_bytes()), shard.stat()
    if how == "inode":
        shard.rename(folder / "old")
        shard.write_bytes(bytes(raw))
    elif how == "content":
        raw[-1] ^= 1
        shard.write_bytes(bytes(raw))
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))  # who hides a change cannot hide that of ctime
    validity, _, read = check(folder, notes)
    assert validity is (Validity.CORRUPT if how == "content" else Validity.VALID)
    assert read == len(raw)


@pytest.mark.parametrize("damage", ["cut", "noise", "swapped"])
def test_damaged_notes_only_cost_a_read(damage: str, folder: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    check(folder, notes)
    raw = notes.read_bytes()
    assert len(raw.splitlines()) == 2
    notes.write_bytes({"cut": raw[:40], "noise": b"\xff\x00\n" * 100, "swapped": raw[33:] + b"\n\n" + raw[:33]}[damage])
    validity, _, read = check(folder, notes)
    assert validity is Validity.VALID
    assert read == {"cut": shard_bytes(folder) // 2, "noise": shard_bytes(folder), "swapped": 0}[damage]


def test_another_digest_is_another_unit(folder: Path, tmp_path: Path) -> None:
    raw = (folder / "shard-00000.bin").read_bytes()
    with (
        LocalStorage().open(folder.parent, folder.name, "shard-00000.bin") as blob,
        open_notes(tmp_path / "notes", trusted=True) as notes,
    ):
        notes.add(blob.stamp, [unit("x", raw)])
    with open_notes(tmp_path / "notes", trusted=True) as notes:
        assert notes.has(blob.stamp, [unit("x", raw)])
        for other in (unit("y", raw), unit("x", raw, 1), unit("x", raw[:-1]), unit("x", raw, kind="sha256")):
            assert not notes.has(blob.stamp, [other])
        assert not notes.has(f"{blob.stamp}1", [unit("x", raw)])
        assert not notes.has(blob.stamp, [unit("x", raw)] * 2)


@pytest.mark.parametrize("spoil", [Path.mkdir, lambda path: path.symlink_to("/dev/null"), os.mkfifo])
def test_without_notes_all_is_read(spoil: object, folder: Path, tmp_path: Path) -> None:
    spoil(tmp_path / "notes")  # type: ignore[operator]
    assert check(folder, tmp_path / "notes") == (*VALID, shard_bytes(folder))
    assert check(folder, tmp_path / "c" / folder.name / "shard-00000.bin" / "x") == (*VALID, shard_bytes(folder))
    assert check(folder, None) == (*VALID, shard_bytes(folder))


def test_notes_that_are_too_long_are_not_read(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified, "_MOST_BYTES", 60)
    notes = tmp_path / "notes"
    check(folder, notes)
    assert check(folder, notes) == (*VALID, shard_bytes(folder))


def test_a_full_disk_only_costs_the_note(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, raw: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        assert check(folder, tmp_path / "notes") == (*VALID, shard_bytes(folder))
    assert (tmp_path / "notes").read_bytes() == b""


def test_where_notes_are(tmp_path: Path) -> None:
    assert folder_of({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/fleetctl/verified")
    assert folder_of({"XDG_CACHE_HOME": "x", "HOME": "/h"}) == Path("/h/.cache/fleetctl/verified")
    assert folder_of({"HOME": "/h"}) == Path("/h/.cache/fleetctl/verified")
    assert folder_of({}) is None
    one, other = path_of(tmp_path, Path("/c/a")), path_of(tmp_path, Path("/c/b"))
    assert one == path_of(tmp_path, Path("/c/x/../a")) != other
    assert path_of(tmp_path, Path(os.fsdecode(b"/c/\xff"))).parent == tmp_path


def test_notes_are_a_protocol() -> None:
    notes: Notes = NONE
    assert not notes.has("", [])
