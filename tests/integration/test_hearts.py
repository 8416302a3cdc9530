"""Ranks in processes of their own, seen through the agent of their node."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetctl.launch.hearts import Hearts, folder_of
from tests.integration.test_watch import Nodes
from tests.support import wait_until

READER = """
import os, sys, time
with open("/dev/zero", "rb", buffering=0) as file:
    while os.getppid() == int(sys.argv[1]):
        file.read(1 << 20)
        time.sleep(0.01)
"""
RANK = """
import os, subprocess, sys, time
from fleetctl.train.progress import Progress
progress = Progress()
if "READER" in os.environ:
    subprocess.Popen([sys.executable, "-c", os.environ["READER"], str(os.getpid())])
for step in range(1, 10**6):
    progress.update(training_step=step)
    print(step, flush=True)
    time.sleep(0.05)
"""
PY_SPY = """#!/bin/sh
echo "stacks: $*"
head -c 1000000 /dev/zero
"""


class Ranks:
    """Real processes that beat into one folder."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.folder = folder_of(tmp_path.name, "1.0", str(os.getpid()))
        self.order: dict[str, Any] = {"t": "hearts", "attempt": "1.0", "folder": self.folder}
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, rank: int, **environ: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "FLEETCTL_BEATS": self.folder, "RANK": str(rank), "WORLD_SIZE": "2", **environ}
        self.children.append(subprocess.Popen([sys.executable, "-c", RANK], env=env, stdout=subprocess.PIPE))
        stdout = self.children[-1].stdout
        assert stdout is not None
        assert stdout.readline(), "its first step is done"
        return self.children[-1]

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path)
    yield made
    made.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path / "nodes")
    yield made
    made.close()


def told_of(hearts: Hearts, rank: int) -> list[Any]:
    found = hearts.told(time.monotonic())["hearts"]["ranks"]
    return next((one for one in found if one[0] == rank), [rank, "", None, 0.0, ""])


def await_stopped(pid: int) -> None:
    stat = Path(f"/proc/{pid}/stat")
    wait_until(lambda: ") T " in stat.read_text(), "it is stopped", 20)


def test_a_rank_that_is_stopped_or_dies_is_seen_as_that(ranks: Ranks, tmp_path: Path) -> None:
    hearts = Hearts(str(tmp_path))
    hearts.heed(ranks.order)
    stopped, dies = ranks.start(0), ranks.start(1)
    wait_until(lambda: told_of(hearts, 0)[1] == told_of(hearts, 1)[1] == "step", "both are heard", 20)
    os.kill(stopped.pid, signal.SIGSTOP)
    dies.kill()
    wait_until(lambda: told_of(hearts, 0)[4] == "T", "one is stopped", 20)
    wait_until(lambda: told_of(hearts, 1)[4] == "Z", "one is dead, and its parent has not looked", 20)
    assert told_of(hearts, 0)[3] >= 2
    dies.wait()
    assert told_of(hearts, 1)[4] == "X"
    os.kill(stopped.pid, signal.SIGCONT)
    wait_until(lambda: told_of(hearts, 0)[3] == 0, "it goes on", 20)


def test_what_a_child_of_a_silent_rank_reads_is_told(ranks: Ranks, tmp_path: Path) -> None:
    for rank, more in ((0, {"READER": READER}), (1, {})):
        child = ranks.start(rank, **more)
        hearts, now_s = Hearts(str(tmp_path)), 0.0
        hearts.heed(ranks.order)
        os.kill(child.pid, signal.SIGSTOP)
        await_stopped(child.pid)
        told: list[int] = []
        for _ in range(8):
            told.append(hearts.told(now_s)["hearts"]["io"])
            now_s += 4.0
        began_s = time.monotonic()
        while not told[-1] and time.monotonic() - began_s < 2 and more:
            now_s += 4.0
            told.append(hearts.told(now_s)["hearts"]["io"])
        assert (told[-1] > 0) is bool(more), told
        child.kill()
        child.wait()
        os.unlink(Path(ranks.folder) / f"rank-{rank}")


def test_what_is_kept_of_a_silent_rank_is_bounded(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_, traces = tmp_path / "bin", tmp_path / "traces"
    bin_.mkdir()
    traces.mkdir()
    (bin_ / "py-spy").write_text(PY_SPY)
    (bin_ / "py-spy").chmod(0o755)
    (traces / "nccl_0").write_bytes(b"x" * (3 << 20))
    (traces / "nccl_1").symlink_to("/etc/passwd")
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    child = ranks.start(0, TORCH_NCCL_DEBUG_INFO_TEMP_FILE=str(traces / "nccl_"))
    hearts = Hearts(str(tmp_path / "attempts"))
    hearts.heed(ranks.order)
    hearts.told(time.monotonic())
    hearts.heed({"t": "gather", "attempt": "0.9", "ranks": [0]})
    hearts.heed({"t": "gather", "attempt": "1.0", "ranks": [0, 77, 78]})

    def kept() -> Any:
        return hearts.told(time.monotonic())["hearts"]["kept"]

    wait_until(kept, "evidence", 20)
    assert kept() == ["rank-0.txt", "nccl_0"]
    evidence = tmp_path / "attempts" / "1.0" / "evidence"
    text = (evidence / "rank-0.txt").read_bytes()
    assert text.startswith(f"stacks: dump --nonblocking --pid {child.pid}\n".encode())
    assert len(text) == 256 << 10
    assert (evidence / "nccl_0").stat().st_size == 1 << 20
    assert not (evidence / "nccl_1").exists(), "no link is followed"
    assert not (tmp_path / "attempts" / "0.9").exists()


def test_the_kernels_word_stands_where_py_spy_is_missing(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    child = ranks.start(0)
    os.kill(child.pid, signal.SIGSTOP)
    await_stopped(child.pid)
    hearts = Hearts(str(tmp_path / "attempts"))
    hearts.heed(ranks.order)
    hearts.told(time.monotonic())
    hearts.heed({"t": "gather", "attempt": "1.0", "ranks": [0]})
    wait_until(lambda: hearts.told(time.monotonic())["hearts"]["kept"], "evidence", 20)
    text = (tmp_path / "attempts" / "1.0" / "evidence" / "rank-0.txt").read_text()
    assert f"thread {child.pid} state T" in text


def test_the_head_hears_of_ranks_through_agents_that_join_early_or_late(nodes: Nodes, ranks: Ranks) -> None:
    watch = nodes.watch("n1", "n2")
    nodes.all_join(watch, "n1")
    ranks.start(0)
    ranks.start(1)
    watch.tell_all(**ranks.order)
    heard: dict[str, Any] = {}

    def has_heard(node: str) -> bool:
        heard.update(watch.hearts())
        return node in heard and len(heard[node]["ranks"]) == 2

    nodes.until(watch, lambda: has_heard("n1"), "n1's ranks", 20)
    assert {one[0] for one in heard["n1"]["ranks"]} == {0, 1}
    assert heard["n1"]["world"] == 2
    nodes.all_join(watch, "n2")
    nodes.until(watch, lambda: has_heard("n2"), "ranks as n2 sees them, too", 20)
    watch.tell("n1", t="gather", attempt="1.0", ranks=[1])
    nodes.until(watch, lambda: has_heard("n1") and heard["n1"]["kept"], "evidence", 20)
    assert (nodes.attempts / "1.0" / "evidence" / "rank-1.txt").exists()
    watch.tell_all(t="hearts", attempt="1.1", folder=f"{ranks.folder}x")
    nodes.until(watch, lambda: (heard.update(watch.hearts()), heard["n1"]["attempt"] == "1.1")[1], "the next", 20)
    assert heard["n1"]["ranks"] == []
