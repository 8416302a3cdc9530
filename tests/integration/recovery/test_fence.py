"""The site's fence command, a stub here: only its status 0 proves that a node is dead."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleetctl.recovery.fence import AGAIN_S, Fence

# FOLDER NODE: notes that it was asked, and does what the node's name says
STUB = """
import os, sys, time
folder, node = sys.argv[1:]
with open(os.path.join(folder, "asked"), "a") as file:
    file.write(node + "\\n")
if node.startswith("hangs"):
    child = os.fork()
    with open(os.path.join(folder, "pids"), "a") as file:
        file.write(str(os.getpid()) + "\\n")
    time.sleep(600)
print("a word of the BMC")
sys.exit({"dead": 0, "alive": 1}.get(node.rstrip("0123456789"), 2))
"""


class HandClock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.at_s, UTC)

    def monotonic_s(self) -> float:
        return self.at_s

    def sleep(self, duration_s: float) -> None:
        self.at_s += duration_s


class Scene:
    """A fence with the stub behind it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said, self.clock = folder, list[str](), HandClock()
        stub = folder / "stub.py"
        stub.write_text(STUB)
        self.argv = (sys.executable, "-I", "-S", str(stub), str(folder))

    def fence(self, *argv: str, timeout_s: float = 20.0) -> Callable[..., frozenset[str]]:
        made = Fence(argv or self.argv, self.clock, self.said.append, timeout_s)
        return lambda *nodes: made.prove_dead(nodes)

    def asked(self) -> list[str]:
        found = self.folder / "asked"
        return sorted(found.read_text().split()) if found.exists() else []


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_status_0_proves_that_a_node_is_dead_and_any_other_proves_nothing(scene: Scene) -> None:
    assert scene.fence()("dead1", "alive1", "strange", "dead2") == {"dead1", "dead2"}
    assert scene.asked() == ["alive1", "dead1", "dead2", "strange"]
    assert "the fence command proves nothing (status 1): alive1" in scene.said
    assert "the fence command proves nothing (status 2): strange" in scene.said
    assert "the fence command proves the death: dead1" in scene.said


def test_a_command_that_hangs_is_killed_with_its_children_and_proves_nothing(scene: Scene) -> None:
    began_s = time.monotonic()
    assert scene.fence(timeout_s=2.0)("hangs1", "dead1", "hangs2") == {"dead1"}
    assert time.monotonic() - began_s < 15, "all at once, and none waits for the other"
    assert sum("proves nothing" in line for line in scene.said) == 2
    for pid in (scene.folder / "pids").read_text().split():
        until_s = time.monotonic() + 10
        while alive(int(pid)) and time.monotonic() < until_s:
            time.sleep(0.05)
        assert not alive(int(pid))


def alive(pid: int) -> bool:
    """A zombie, whose parent is away, is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("name", ["nothing", "folder", "plain"])
def test_a_command_that_cannot_be_run_proves_nothing_and_raises_nothing(scene: Scene, name: str) -> None:
    (scene.folder / "folder").mkdir()
    (scene.folder / "plain").write_text("no program")
    assert scene.fence(str(scene.folder / name))("n1") == frozenset()
    assert len(scene.said) == 1
    assert "proves nothing" in scene.said[0]


def test_a_node_is_asked_for_again_after_a_while_and_not_in_each_pass(scene: Scene) -> None:
    prove = scene.fence()
    prove("alive1")
    scene.clock.sleep(AGAIN_S - 1)
    assert prove("alive1") == frozenset()
    assert scene.asked() == ["alive1"]
    scene.clock.sleep(2)
    prove("alive1")
    assert scene.asked() == ["alive1"] * 2


def test_of_many_nodes_some_are_asked_for_at_once_and_the_others_in_the_next_pass(scene: Scene) -> None:
    prove, nodes = scene.fence(), [f"dead{number}" for number in range(11)]
    first = prove(*nodes)
    assert len(first) == 8
    assert prove(*nodes) == set(nodes) - first


def test_no_node_is_nothing_to_ask(scene: Scene) -> None:
    assert scene.fence()() == frozenset()
    assert (scene.asked(), scene.said) == ([], [])


def test_the_nodes_name_is_one_word_for_no_shell(scene: Scene) -> None:
    assert scene.fence()("dead1; touch x", "$(id)") == frozenset()
    assert not (scene.folder / "x").exists()
