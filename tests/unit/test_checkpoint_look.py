"""One look: what it tells of each piece, what it costs, and that nothing leads it out of its checkpoint."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleetctl.checkpoint.look import Ledger, Look, Unjudged, moment, read_exactly
from fleetctl.checkpoint.model import Level, Piece, Validity
from fleetctl.checkpoint.storage import Kind, LocalStorage, NotRegular


def look_at(tmp_path: Path, told: list[int] | None = None) -> Look:
    (tmp_path / "c").mkdir(exist_ok=True)
    return Look(LocalStorage(), tmp_path, ("c",), Ledger((told if told is not None else []).append))


@pytest.mark.parametrize(
    ("error", "validity", "reason"),
    [
        (ValueError(": no JSON"), Validity.CORRUPT, "x: no JSON"),
        (ValueError("has 3 bytes, not 5"), Validity.CORRUPT, "x has 3 bytes, not 5"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), Validity.CORRUPT, "x 'utf-8' codec"),
        (Unjudged("refuses its pickle"), Validity.UNKNOWN, "x refuses its pickle"),
        (FileNotFoundError(errno.ENOENT, "No such file"), Validity.INCOMPLETE, "x is missing"),
        (NotRegular(errno.EINVAL, "not a regular file"), Validity.CORRUPT, "x is no file"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), Validity.UNKNOWN, "x cannot be read: Not a directory"),
        (PermissionError(errno.EACCES, "Permission denied"), Validity.UNKNOWN, "x cannot be read: Permission denied"),
        (OSError(errno.ESTALE, "Stale file handle"), Validity.UNKNOWN, "x cannot be read: Stale file handle"),
        (OSError("odd"), Validity.UNKNOWN, "x cannot be read: odd"),
        (MemoryError(), Validity.UNKNOWN, "x cannot be looked at (MemoryError)"),
        (RecursionError(), Validity.UNKNOWN, "x cannot be looked at (RecursionError)"),
        (OverflowError(), Validity.UNKNOWN, "x cannot be looked at (OverflowError)"),
    ],
)
def test_what_goes_wrong_is_told_of_its_piece(
    error: Exception, validity: Validity, reason: str, tmp_path: Path
) -> None:
    look = look_at(tmp_path)
    with look.judging("x"):
        raise error
    (piece,) = look.ledger.pieces
    assert (piece.name, piece.validity) == ("x", validity)
    assert piece.reason.startswith(reason)


@pytest.mark.parametrize("error", [KeyError("x"), TypeError("x"), AssertionError("x"), KeyboardInterrupt()])
def test_what_is_our_own_fault_is_not_hidden(error: BaseException, tmp_path: Path) -> None:
    look = look_at(tmp_path)
    with pytest.raises(type(error)), look.judging("x"):
        raise error
    assert look.ledger.faults == 0


def test_names_of_pieces_are_paths_below_the_checkpoint(tmp_path: Path) -> None:
    look = look_at(tmp_path)
    look.below("a/b").missing("c")
    look.below("a").wrong("", "is no folder")
    look.wrong("", "is no folder")
    look.unread("n\new\x1b", "x" * 1000)
    assert [piece.name for piece in look.ledger.pieces] == ["a/b/c", "a", "c", "n\\new\\x1b"]
    assert look.ledger.pieces[0] == Piece("a/b/c", Validity.INCOMPLETE, "a/b/c is missing")
    assert all(piece.reason.isprintable() and len(piece.reason) < 300 for piece in look.ledger.pieces)
    assert look.below("a").inner("b/c") == ("a", "b", "c")
    assert look.below("a").inner() == ("a",)
    assert look.inner() == ()


def test_the_worst_one_is_kept_and_the_first_of_its_kind(tmp_path: Path) -> None:
    look = look_at(tmp_path)
    for tell in (look.unread, look.missing, look.missing, look.wrong, look.wrong, look.unread):
        tell(f"{look.ledger.faults}", "is so")
    assert look.ledger.worst is not None
    assert (look.ledger.worst.name, look.ledger.faults) == ("3", 6)


def test_a_level_is_passed_only_without_faults(tmp_path: Path) -> None:
    look = look_at(tmp_path)
    look.passed(Level.NAMES)
    look.missing("x")
    look.passed(Level.STRUCTURE)
    assert look.ledger.passed is Level.NAMES


def test_faults_beside_it_count_for_nothing_but_their_cost_does(tmp_path: Path) -> None:
    told: list[int] = []
    look = look_at(tmp_path, told)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").write_bytes(b"12345")
    beside = look.beside("other")
    beside.missing("y")
    assert beside.read_whole("x", 10) == b"12345"
    assert (look.ledger.faults, look.ledger.bytes_read, sum(told)) == (0, 5, 5)
    assert set(look.siblings()) == {"c", "other"}


def test_children_are_listed_once_and_of_each_kind(tmp_path: Path) -> None:
    told: list[int] = []
    look = look_at(tmp_path, told)
    for name, size in (("a", 3), ("b", 0)):
        (tmp_path / "c" / name).write_bytes(b"x" * size)
    (tmp_path / "c" / "in").mkdir()
    (tmp_path / "c" / "link").symlink_to("a")
    os.mkfifo(tmp_path / "c" / "fifo")
    assert look.names() == {"a", "b", "in", "link", "fifo"}
    assert [look.has_file(name) for name in ("a", "b", "in", "link", "fifo", "none")] == [True, True] + [False] * 4
    (tmp_path / "c" / "late").touch()
    assert "late" not in look.names()
    assert (look.file_size("a"), look.file_size("in"), look.file_size("link"), look.file_size("none")) == (
        3,
        *[None] * 3,
    )
    assert [(piece.name, piece.validity) for piece in look.ledger.pieces] == [
        ("in", Validity.CORRUPT),
        ("link", Validity.CORRUPT),
        ("none", Validity.INCOMPLETE),
    ]
    assert told == [0]


def test_what_is_there_is_looked_at_once_and_what_is_not_again(tmp_path: Path) -> None:
    told: list[int] = []
    look = look_at(tmp_path, told).below("x")
    assert look.kind() is None
    (tmp_path / "c" / "x").touch()
    assert (look.kind(), look.kind(), told) == (Kind.FILE, Kind.FILE, [0, 0])


@pytest.mark.parametrize("name", ["..", "../c", "a/../../c", ".", "", "/etc/hostname"])
def test_no_name_leads_out(name: str, tmp_path: Path) -> None:
    look = look_at(tmp_path)
    (tmp_path / "c" / "a").mkdir()
    assert look.read_whole(name, 100) is None
    assert look.ledger.faults == 1
    with pytest.raises(OSError, match="not a name"):
        look.below(name or "/").kind()


def test_a_file_larger_than_it_can_be_is_not_read(tmp_path: Path) -> None:
    look = look_at(tmp_path)
    (tmp_path / "c" / "x").touch()
    os.truncate(tmp_path / "c" / "x", 1 << 40)
    assert look.read_whole("x", 100) is None
    assert look.ledger.bytes_read == 0
    assert "more than the 100" in look.ledger.pieces[0].reason


def test_the_newest_write_is_known(tmp_path: Path) -> None:
    look = look_at(tmp_path)
    for name, at_s in (("a", 100), ("b", 300), ("x", 200)):
        (tmp_path / "c" / name).touch()
        os.utime(tmp_path / "c" / name, (at_s, at_s))
    os.utime(tmp_path / "c", (50, 50))
    look.kind()
    assert look.ledger.touched_at_s == 50
    look.children()
    assert look.ledger.touched_at_s == 300


@pytest.mark.parametrize(("offset", "size"), [(0, 6), (5, 1), (2, 10**12), (10**12, 1)])
def test_just_these_bytes_or_none(offset: int, size: int, tmp_path: Path) -> None:
    look = look_at(tmp_path)
    (tmp_path / "c" / "x").write_bytes(b"12345")
    with look.open("x") as blob:
        assert read_exactly(blob, 1, 3) == b"234"
        assert read_exactly(blob, 5, 0) == b""
        with pytest.raises(ValueError, match=f"ends before byte {offset + size}"):
            read_exactly(blob, offset, size)
    assert look.ledger.bytes_read <= 5


def test_a_buffer_is_filled(tmp_path: Path) -> None:
    look, buffer = look_at(tmp_path), bytearray(10)
    (tmp_path / "c" / "x").write_bytes(b"12345")
    with look.below("x").open() as blob:
        assert blob.read_into(memoryview(buffer)[:3], 1) == 3
        assert blob.read_into(memoryview(buffer), 3) == 2
        assert blob.read_into(memoryview(buffer), 100) == 0
    assert buffer == b"454\0\0\0\0\0\0\0"
    assert look.ledger.bytes_read == 5


@pytest.mark.parametrize("at_s", [0.0, -1.0, 1e300, float("inf"), float("nan"), 1e15])
def test_a_time_that_no_calendar_has_is_none(at_s: float) -> None:
    assert moment(at_s) is None
    assert moment(1.5) == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
