"""What an agent sees of the ranks of its node; a rank's user may have put anything there."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetctl.launch import hearts as module
from fleetctl.launch import moved
from fleetctl.launch.agent import MAX_LINE
from fleetctl.launch.hearts import MOST_TOLD, Hearts, folder_of
from fleetctl.launch.moved import Moved
from fleetctl.launch.ranks import _MOST_TOLD
from fleetctl.train.beats import STEP, Beats


class Node:
    """A folder of beats, written as a training does, and one that looks at it."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = Path(folder_of(tmp_path.name, "1.0", str(os.getpid())))
        self.hearts = Hearts(str(tmp_path / "attempts"))
        self.hearts.heed(self.order())

    def order(self, attempt: str = "1.0", folder: str = "") -> dict[str, Any]:
        return {"t": "hearts", "attempt": attempt, "folder": folder or str(self.folder)}

    def beats(self, rank: int) -> Beats:
        return Beats({"FLEETCTL_BEATS": str(self.folder), "WORLD_SIZE": "8"}, rank, STEP)

    def told(self, now_s: float) -> list[Any]:
        found: list[Any] = self.hearts.told(now_s)["hearts"]["ranks"]
        return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    shutil.rmtree(made.folder, ignore_errors=True)


def test_an_age_is_counted_from_when_a_beat_was_seen_to_change(node: Node) -> None:
    zero, one = node.beats(0), node.beats(1)
    zero.step(5)
    assert node.told(100.0) == [[0, "step", 5, 0.0, "?"], [1, "step", None, 0.0, "?"]]
    one.step(6)
    assert node.told(101.5) == [[0, "step", 5, 1.5, "?"], [1, "step", 6, 0.0, "?"]]
    assert node.hearts.told(102.0)["hearts"]["world"] == 8


def test_our_own_pause_does_not_count_and_after_a_long_one_all_begins_anew(node: Node) -> None:
    node.beats(0)
    assert node.told(100.0)[0][3] == 0
    assert node.told(104.0)[0][3] == 4
    assert node.told(124.0)[0][3] == 4
    assert node.told(224.0)[0][3] == 0


def test_nothing_is_told_before_the_head_has_said_where(tmp_path: Path) -> None:
    assert Hearts(str(tmp_path)).told(1.0) == {}


@pytest.mark.parametrize(
    "order",
    [
        {"folder": "/etc"},
        {"folder": "/dev/shm/fleetctl-/../x"},
        {"folder": "/dev/shm/fleetctl-a/b"},
        {"attempt": "../../1.0"},
        {"attempt": "x"},
    ],
)
def test_an_order_for_another_place_is_refused(node: Node, order: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="no place"):
        node.hearts.heed(node.order() | order)


def test_the_next_attempt_forgets_and_removes_the_one_before(node: Node, tmp_path: Path) -> None:
    node.beats(0).step(3)
    assert node.told(1.0)
    node.hearts.heed(node.order())
    assert node.told(2.0), "the same order again changes nothing"
    node.hearts.heed(node.order("1.1", folder_of(tmp_path.name, "1.1", "7")))
    assert node.told(3.0) == []
    assert not node.folder.exists()


def test_at_the_end_only_beats_are_removed(node: Node) -> None:
    node.beats(0)
    (node.folder / "mine").write_text("x")
    node.hearts.heed({"t": "bye"})
    assert [path.name for path in node.folder.iterdir()] == ["mine"]
    assert node.hearts.told(9.0) == {}


def test_what_is_no_beat_is_not_heard_and_never_waited_for(node: Node, tmp_path: Path) -> None:
    node.beats(0)
    os.mkfifo(node.folder / "rank-1")
    (tmp_path / "target").write_bytes((node.folder / "rank-0").read_bytes())
    (node.folder / "rank-2").symlink_to(tmp_path / "target")
    (node.folder / "rank-3").mkdir()
    (node.folder / "rank-4").write_bytes(b"\0" * 10_000)
    (node.folder / "rank-5").write_bytes(b"fleetctl-beat 1 5 6 7 step 8 9\n")  # read while it was written
    (node.folder / "rank-6").write_bytes(b"fleetctl-beat 1 5 6 7 STEP! 8 5\n")
    (node.folder / "rank-7").write_bytes(b"fleetctl-beat 2 5 6 7 step 8 5\n")
    (node.folder / "rank-8").write_bytes(b"fleetctl-beat 1 5 -6 7 step 8 5\n")
    (node.folder / "rank-9").write_bytes(b"fleetctl-beat 1 5 6 7 step " + b"8" * 100 + b" 5\n")
    (node.folder / "rank-x").write_bytes((node.folder / "rank-0").read_bytes())
    assert [one[0] for one in node.told(1.0)] == [0]


def test_a_folder_of_another_user_is_not_looked_into(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.beats(0)
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert node.told(1.0) == []


def test_of_many_ranks_each_beat_tells_the_next_ones_and_fits_a_line(node: Node) -> None:
    made = [node.beats(1_000_000 + rank) for rank in range(150)]
    for one in made:
        one.step(10**17)
    assert MOST_TOLD == _MOST_TOLD
    seen: set[int] = set()
    for now_s in (9_000_000.0, 9_000_001.0, 9_000_002.0):
        told = node.hearts.told(now_s)
        seen |= {one[0] for one in told["hearts"]["ranks"]}
        assert len(told["hearts"]["ranks"]) == MOST_TOLD
        assert len(str({"t": "beat", **told})) < MAX_LINE
    assert len(seen) == 150


def test_only_a_process_that_has_this_folder_in_its_environment_is_looked_at(node: Node) -> None:
    node.beats(0)
    node.told(1.0)
    assert node.told(5.0) == [[0, "step", None, 4.0, "?"]], "ours has not"


def test_torchs_dumps_are_found_by_their_prefix(tmp_path: Path) -> None:
    for name in ("trace_0", "trace_12", "trace_x", "other_0"):
        (tmp_path / name).touch()
    environ = b"A=1\0TORCH_NCCL_DEBUG_INFO_TEMP_FILE=" + bytes(tmp_path / "trace_") + b"\0B=2"
    assert module._traces(environ) == [str(tmp_path / "trace_0"), str(tmp_path / "trace_12")]
    for bad in (b"", b"TORCH_NCCL_DEBUG_INFO_TEMP_FILE=", b"TORCH_NCCL_DEBUG_INFO_TEMP_FILE=trace_"):
        assert module._traces(bad) == []


def test_network_cards_count_bytes_since_the_look_before(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    carried = iter([1000, 5000, 4000])
    monkeypatch.setattr(module, "_carried_bytes", lambda: next(carried))
    rates = [node.hearts.told(now_s)["hearts"]["nic"] for now_s in (1.0, 3.0, 4.0)]
    assert rates == [0, 2000, 0], "a card that was taken away carried nothing"


def test_a_beat_with_a_number_that_is_none_is_not_heard(node: Node) -> None:
    node.beats(0)
    for rank, step in enumerate((b"--5", b"5-", b"-", b"-5"), start=1):
        (node.folder / f"rank-{rank}").write_bytes(b"fleetctl-beat 1 5 6 7 step %b 5\n" % step)
    assert [one[0] for one in node.told(1.0)] == [0, 3, 4]


def test_the_folders_of_this_jobs_older_attempts_are_removed(node: Node, tmp_path: Path) -> None:
    job = str(os.getpid())
    others = [folder_of(tmp_path.name, "1.2", "0"), folder_of(tmp_path.name, "2.0", job), folder_of("x", "1.0", job)]
    for folder in (folder_of(tmp_path.name, "0.9", job), *others):
        Beats({"FLEETCTL_BEATS": folder}, 0, STEP)
    node.beats(0)
    hearts = Hearts(str(tmp_path))  # of the head that takes over: nobody told it of the attempt before
    hearts.heed(node.order("1.3", folder_of(tmp_path.name, "1.3", job)))
    left = [folder for folder in others if Path(folder).exists()]
    for folder in left:
        shutil.rmtree(folder)
    assert left == others
    assert not node.folder.exists()
    assert not Path(folder_of(tmp_path.name, "0.9", job)).exists()


def test_a_rank_whose_file_was_taken_away_is_in_no_phase_that_is_known(node: Node) -> None:
    node.beats(0)
    node.told(1.0)
    (node.folder / "rank-0").unlink()
    assert node.told(2.0) == [[0, "untold", None, 1.0, "?"]]


def test_what_silent_ranks_and_their_children_move_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    counts, children = {7: 10, 8: 5 << 20}, [7, 8]
    monkeypatch.setattr(moved, "_bytes_of", lambda pid: counts[pid])
    monkeypatch.setattr(moved, "_with_children", lambda pids: children)
    monkeypatch.setattr(Hearts, "_is_ours", lambda self, pid: True)
    one = node.beats(0)

    def io(now_s: float) -> int:
        found: int = node.hearts.told(now_s)["hearts"]["io"]
        return found

    monkeypatch.setattr(module, "_IDLE_S", 2.0)
    assert (io(1.0), io(4.0)) == (0, 0), "what was moved before is nothing new"
    counts[7] += 1000
    counts[9] = 300  # begun meanwhile
    children.append(9)
    assert (io(8.0), io(9.5), io(10.0)) == (0, 1300, 1300)
    assert io(15.0) == 0
    counts[7] += 1000
    one.step(1)
    assert (io(16.0), io(19.0)) == (0, 0), "it was not silent"


def test_the_bytes_of_a_process_are_read_with_those_of_its_children() -> None:
    mine = Moved()
    assert mine.look([os.getpid()], 1.0) == 0
    with open("/dev/zero", "rb", buffering=0) as file:
        file.read(3 << 20)
    assert mine.look([os.getpid()], 2.0) == 0, "too soon"
    assert mine.look([os.getpid()], 7.0) >= 3 << 20
    assert os.getpid() in moved._with_children([os.getppid()])
    assert moved._bytes_of(0) == 0


def test_a_look_at_sixteen_ranks_is_cheap(node: Node) -> None:
    for rank in range(16):
        node.beats(rank)
    began_s = time.process_time()
    for look in range(100):
        node.told(float(look) / 10)
    assert (time.process_time() - began_s) / 100 < 0.02
    assert len(os.listdir("/proc/self/fd")) < 100
