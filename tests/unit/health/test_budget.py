from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from fleetctl.health.budget import Token, take_token

DAY = 86400.0
NOW = 20_000 * DAY + 5
SPENT = "2 nodes of the fleet were drained in this window already"


def take(folder: Path, node: str, most: int = 2, now: float = NOW) -> Token:
    return take_token(str(folder), most, DAY, node, now)


def test_as_many_nodes_as_the_budget_has_get_a_token(tmp_path: Path) -> None:
    assert [take(tmp_path, f"n{number}") for number in range(4)] == [
        Token(True),
        Token(True),
        Token(False, SPENT),
        Token(False, SPENT),
    ]
    assert sorted(os.listdir(tmp_path / "20000")) == ["slot-0", "slot-1"]
    assert (tmp_path / "20000" / "slot-1").read_text() == f"n1 {NOW:.3f}\n"


def test_a_node_that_has_a_token_needs_no_second_one(tmp_path: Path) -> None:
    assert [take(tmp_path, "n1").granted for _ in range(5)] == [True] * 5
    assert take(tmp_path, "n2").granted
    assert take(tmp_path, "n1").granted
    assert not take(tmp_path, "n3").granted


def test_a_token_counts_for_a_whole_window_from_when_it_was_taken(tmp_path: Path) -> None:
    """Whole multiples of the day are no moment at which the fleet may lose twice as many nodes."""
    evening = NOW + 0.9 * DAY
    assert take(tmp_path, "n1", 2, NOW).granted
    assert take(tmp_path, "n2", 2, evening).granted
    assert not take(tmp_path, "n3", 2, NOW + DAY - 1).granted  # the next window has begun
    assert take(tmp_path, "n2", 2, NOW + DAY - 1).granted
    assert take(tmp_path, "n3", 2, NOW + DAY).granted
    assert not take(tmp_path, "n4", 2, evening + DAY - 1).granted
    assert take(tmp_path, "n4", 2, evening + DAY).granted
    assert not take(tmp_path, "n5", 2, evening + DAY).granted


@pytest.mark.parametrize("text", ["", "n9", "n9 soon"])
def test_a_slot_without_a_time_counts_for_the_whole_of_the_next_window(tmp_path: Path, text: str) -> None:
    (tmp_path / "20000").mkdir()
    (tmp_path / "20000" / "slot-0").write_text(text)
    assert not take(tmp_path, "n1", 1, NOW + 2 * DAY - 6).granted
    assert take(tmp_path, "n1", 1, NOW + 2 * DAY).granted


def test_windows_before_the_last_two_are_removed(tmp_path: Path) -> None:
    for number in range(5):
        assert take(tmp_path, "n1", 2, NOW + number * DAY).granted
    assert sorted(os.listdir(tmp_path)) == ["20002", "20003", "20004"]


def test_what_is_not_ours_stays_and_costs_no_token(tmp_path: Path) -> None:
    for name in ("1", "2", "3", "old", "99999"):
        (tmp_path / name).mkdir()
    (tmp_path / "1" / "thesis").write_text("")
    (tmp_path / "3" / "slot-0").mkdir()
    (tmp_path / "2" / "slot-0").write_text("n1")
    (tmp_path / "2" / ".n1.77").write_text("half")
    elsewhere = tmp_path / "old" / "slot-0"
    elsewhere.write_text("")
    (tmp_path / "4").symlink_to(tmp_path / "old")
    (tmp_path / "5").write_text("")
    assert take(tmp_path, "n1").granted
    assert sorted(os.listdir(tmp_path)) == ["1", "20000", "3", "4", "5", "99999", "old"]
    assert (tmp_path / "1" / "thesis").exists()
    assert elsewhere.exists()


def test_a_budget_of_nothing_gives_nothing(tmp_path: Path) -> None:
    assert not take(tmp_path, "n1", 0).granted


@pytest.mark.parametrize("node", ["n1", "n10", "N1", "n1.example"])
def test_only_the_whole_name_is_a_nodes_own(tmp_path: Path, node: str) -> None:
    assert take(tmp_path, "n1 ".strip() + "x", 1).granted
    assert not take(tmp_path, node, 1).granted


def test_processes_at_the_same_moment_share_the_slots_out(tmp_path: Path) -> None:
    read, write = os.pipe()
    pids = []
    for number in range(16):
        pid = os.fork()
        if pid == 0:
            granted = b"0"
            try:
                granted = b"1" if take(tmp_path, f"n{number}", 5).granted else b"0"
            finally:
                os.write(write, granted)
                os._exit(0)
        pids.append(pid)
    os.close(write)
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
    with os.fdopen(read, "rb") as stream:
        assert sorted(stream.read()) == sorted(b"1" * 5 + b"0" * 11)
    assert len(os.listdir(tmp_path / "20000")) == 5


def test_two_prologs_of_one_node_spend_one_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, others = os.link, ["of the other prolog, which is quicker: between our look and our claim"]

    def link(*arguments: Any, **options: Any) -> None:
        if others.pop(0) if others else "":
            with monkeypatch.context() as other:
                other.setattr(os, "getpid", lambda: 1)
                assert take(tmp_path, "n1") == Token(True)
        real(*arguments, **options)

    monkeypatch.setattr(os, "link", link)
    assert take(tmp_path, "n1") == Token(True)
    assert others == []
    assert os.listdir(tmp_path / "20000") == ["slot-0"]


def test_a_file_system_without_hard_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    assert [take(tmp_path, f"n{number}").granted for number in range(3)] == [True, True, False]
    assert sorted(os.listdir(tmp_path / "20000")) == ["slot-0", "slot-1"]


@pytest.mark.parametrize("made", ["missing", "file", "link"])
def test_a_folder_that_is_none_is_an_error(tmp_path: Path, made: str) -> None:
    folder = tmp_path / "budget"
    if made == "file":
        folder.write_text("")
    if made == "link":
        folder.mkdir()
        (folder / "20000").symlink_to(tmp_path)
    with pytest.raises(OSError, match=r"."):
        take(folder, "n1")
    assert not list(tmp_path.glob("slot-*"))


def test_what_a_killed_prolog_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "20000").mkdir()
    (tmp_path / "20000" / f".n1.{os.getpid()}").write_text("half")
    assert take(tmp_path, "n1").granted
    assert (tmp_path / "20000" / "slot-0").read_text() == f"n1 {NOW:.3f}\n"
    assert os.listdir(tmp_path / "20000") == ["slot-0"]


def test_a_slot_that_is_no_plain_file_is_taken(tmp_path: Path) -> None:
    (tmp_path / "20000").mkdir()
    os.mkfifo(tmp_path / "20000" / "slot-0")
    assert take(tmp_path, "n1").granted
    assert not take(tmp_path, "n2").granted
