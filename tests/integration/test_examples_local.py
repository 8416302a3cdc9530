"""The shipped training as local processes, without Slurm, and fleetctl.train under an old Python."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DONE = re.compile(r"^done: loss \S+, parameters sha256 ([0-9a-f]{64})$", re.MULTILINE)
LOSS = re.compile(r"^training step +(\d+)  loss (\S+)$", re.MULTILINE)
ENDS_WITHIN_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


class Team:
    """Local ranks of one training; whatever still lives at the end is killed."""

    def __init__(self, train_alone: Path, folder: Path) -> None:
        self.folder = folder
        self.progress_file = folder / "progress.json"
        self.ranks: list[subprocess.Popen[str]] = []
        # Nothing of Slurm, torchrun or an outer fleetctl; fleetctl.train alone, as it lies in a run directory.
        self.env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(train_alone), "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, program: str, *arguments: str, **env: str) -> subprocess.Popen[str]:
        argv = [sys.executable, program, *arguments]
        with open(self.folder / f"{len(self.ranks)}.out", "w") as out:
            child = subprocess.Popen(
                argv, cwd=ROOT / "examples", env={**self.env, **env}, stdout=out, stderr=subprocess.STDOUT, text=True
            )
        self.ranks.append(child)
        return child

    def train(self, world: int, *arguments: str) -> None:
        port = str(free_port())
        for rank in range(world):
            env = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(world), "MASTER_PORT": port}
            env.update(FLEETCTL_PROGRESS_FILE=str(self.progress_file), FLEETCTL_ATTEMPT="1.0")
            self.start("train_numpy.py", *arguments, **env)

    def ends(self, within_s: float = ENDS_WITHIN_S) -> list[int]:
        deadline = time.monotonic() + within_s
        return [rank.wait(max(0.01, deadline - time.monotonic())) for rank in self.ranks]

    def said(self, rank: int) -> str:
        return (self.folder / f"{rank}.out").read_text()

    def progress(self) -> dict[str, Any] | None:
        if not self.progress_file.exists():
            return None
        record: dict[str, Any] = json.loads(self.progress_file.read_text())
        return record

    def wait_for(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + ENDS_WITHIN_S
        while not what():
            assert time.monotonic() < deadline, [self.said(rank) for rank in range(len(self.ranks))]
            time.sleep(0.01)


@pytest.fixture
def train_alone(tmp_path: Path) -> Path:
    """A PYTHONPATH that holds fleetctl.train and nothing else of fleetctl."""
    folder = tmp_path / "python"
    shutil.copytree(ROOT / "fleetctl" / "train", folder / "fleetctl" / "train")
    shutil.copy(ROOT / "fleetctl" / "__init__.py", folder / "fleetctl")
    return folder


@pytest.fixture
def make_team(tmp_path: Path, train_alone: Path) -> Iterator[Callable[[], Team]]:
    teams: list[Team] = []

    def make() -> Team:
        folder = tmp_path / f"team{len(teams)}"
        folder.mkdir()
        teams.append(Team(train_alone, folder))
        return teams[-1]

    yield make
    for team in teams:
        for rank in team.ranks:
            rank.kill()
            rank.wait()


@pytest.mark.parametrize("world", [1, 2, 4])
def test_loss_falls_and_two_runs_agree_bit_for_bit(make_team: Callable[[], Team], world: int) -> None:
    digests = []
    for _ in range(2):
        team = make_team()
        team.train(world)
        assert team.ends() == [0] * world, [team.said(rank) for rank in range(world)]
        losses = [(int(step), float(loss)) for step, loss in LOSS.findall(team.said(0))]
        assert [step for step, _ in losses] == list(range(20, 301, 20))
        assert losses[-1][1] < losses[0][1] / 3
        assert [team.said(rank) for rank in range(1, world)] == [""] * (world - 1)
        digests += DONE.findall(team.said(0))
        progress = team.progress()
        assert progress is not None
        assert (progress["attempt"], progress["training_step"], progress["target_step"]) == ("1.0", 300, 300)
        assert progress["done"]
        assert progress["loss"] == pytest.approx(losses[-1][1], abs=1e-5)
    assert len(digests) == 2
    assert digests[0] == digests[1]


def test_world_sizes_train_the_same_network(make_team: Callable[[], Team]) -> None:
    ends = []
    for world in (1, 4):
        team = make_team()
        team.train(world, "--steps", "60")
        assert team.ends() == [0] * world
        ends.append(float(LOSS.findall(team.said(0))[-1][1]))
    assert ends[0] == pytest.approx(ends[1], abs=1e-4)


def test_by_hand_without_any_variable(make_team: Callable[[], Team]) -> None:
    team = make_team()
    team.start("train_numpy.py", "--steps", "40")
    assert team.ends() == [0]
    assert DONE.search(team.said(0))
    assert not team.progress_file.exists()


def test_group_of_a_hetjob_counts_its_own_ranks(make_team: Callable[[], Team]) -> None:
    team, port = make_team(), str(free_port())
    for rank in range(2):
        env = {"FLEETCTL_GROUP_RANK": str(rank), "FLEETCTL_GROUP_SIZE": "2", "MASTER_PORT": port}
        team.start("train_numpy.py", "--steps", "40", SLURM_PROCID=str(rank + 1), SLURM_NTASKS="3", **env)
    assert team.ends() == [0, 0]


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_killed_rank_ends_the_others_within_seconds(make_team: Callable[[], Team], victim: int) -> None:
    team = make_team()
    team.train(4, "--steps", "100000", "--step-time-ms", "5")
    team.wait_for(lambda: "training step   20" in team.said(0))
    team.ranks[victim].kill()
    codes = team.ends(within_s=10.0)
    assert codes == [-signal.SIGKILL if rank == victim else 1 for rank in range(4)]
    survivor = 1 if victim == 0 else 0
    assert f"rank {survivor}: lost rank {victim}: " in team.said(survivor)
    progress = team.progress()
    assert progress is not None
    assert not progress["done"]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_frozen_rank_ends_the_others_within_seconds(make_team: Callable[[], Team], victim: int) -> None:
    team = make_team()
    team.train(2, "--steps", "100000", "--step-time-ms", "5", "--peer-timeout-s", "3")
    team.wait_for(lambda: "training step   20" in team.said(0))
    team.ranks[victim].send_signal(signal.SIGSTOP)
    assert team.ranks[1 - victim].wait(10.0) == 1
    assert f"rank {1 - victim}: lost rank {victim}: timed out" in team.said(1 - victim)


def test_ranks_that_never_come_are_named(make_team: Callable[[], Team]) -> None:
    team, port = make_team(), str(free_port())
    for rank in (0, 2):
        env = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "4", "MASTER_PORT": port}
        team.start("train_numpy.py", "--connect-timeout-s", "3", **env)
    assert team.ends(within_s=15.0) == [1, 1]
    assert "rank 0: ranks [1, 3] did not come" in team.said(0)
    assert "rank 2: rank 0 was not found at 127.0.0.1:" in team.said(1)


def test_a_rank_may_start_later_than_the_others_have_patience(make_team: Callable[[], Team]) -> None:
    team, port = make_team(), str(free_port())
    for rank in (0, 1, 2):
        if rank == 2:
            time.sleep(2.5)
        env = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "3", "MASTER_PORT": port}
        team.start("train_numpy.py", "--steps", "20", "--peer-timeout-s", "1", **env)
    assert team.ends() == [0, 0, 0]


def test_strangers_cannot_join(make_team: Callable[[], Team]) -> None:
    team, port = make_team(), free_port()
    team.start("train_numpy.py", "--steps", "40", SLURM_PROCID="0", SLURM_NTASKS="2", MASTER_PORT=str(port))

    def connected() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5.0) as stranger:
                stranger.sendall(b"\xff" * 8)  # announces 2**64 - 1 bytes
                return stranger.recv(1) == b""  # and is shown the door
        except ConnectionResetError:
            return True
        except OSError:
            return False

    team.wait_for(connected)
    env = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "MASTER_PORT": str(port)}
    other = team.start("train_numpy.py", "--connect-timeout-s", "1", FLEETCTL_ATTEMPT="0.9", **env)
    assert other.wait(10.0) == 1
    team.start("train_numpy.py", "--steps", "40", **env)
    assert team.ends() == [0, 1, 0]


def test_evaluator_follows_the_training_to_its_end(make_team: Callable[[], Team]) -> None:
    team = make_team()
    team.progress_file.write_text('{"attempt": "0.0", "training_step": 9, "loss": 0.0, "done": true}')  # an older one
    env = {"FLEETCTL_PROGRESS_FILE": str(team.progress_file), "FLEETCTL_ATTEMPT": "1.0"}
    evaluator = team.start("evaluate.py", **env)
    team.start("train_numpy.py", "--steps", "150", "--step-time-ms", "20", **env)
    assert team.ends() == [0, 0]
    assert evaluator.returncode == 0
    assert team.said(0).count("best loss so far") >= 2
    assert "best loss so far 0.0000" not in team.said(0)


def test_evaluator_does_not_wait_for_ever(make_team: Callable[[], Team]) -> None:
    team = make_team()
    team.start("evaluate.py", "--progress", str(team.progress_file), "--patience-s", "1")
    assert team.ends() == [1]
    assert "no news of the training for 1 s" in team.said(0)


def test_a_reader_never_sees_half_a_file(make_team: Callable[[], Team]) -> None:
    team = make_team()
    (team.folder / "hammer.py").write_text(
        "from itertools import count\n"
        "from fleetctl.train.progress import Progress\n"
        "progress = Progress(min_interval_s=0.0)\n"
        "for step in count(): progress.update(training_step=step, **{f'm{i}': step for i in range(step % 400)})\n"
    )
    team.start(str(team.folder / "hammer.py"), FLEETCTL_PROGRESS_FILE=str(team.progress_file))
    team.wait_for(team.progress_file.exists)
    reads, seen, deadline = 0, set(), time.monotonic() + 2.0
    while time.monotonic() < deadline:
        record = team.progress()  # fails on half a file
        assert record is not None
        seen.add(record["training_step"])
        reads += 1
    assert team.ranks[0].poll() is None, team.said(0)
    team.ranks[0].kill()
    team.ranks[0].wait()
    assert team.progress() is not None
    assert len(seen) > 50


def old_python() -> str | None:
    """A Python 3.8 that starts, where this machine has one (pyenv's shim exists even where it does not)."""
    found = [str(path) for path in (Path.home() / ".pyenv" / "versions").glob("3.8.*/bin/python3.8")]
    for python in (*found, shutil.which("python3.8") or sys.executable):
        asked = subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info[:2] != (3, 8))"], check=False)
        if asked.returncode == 0:
            return python
    return None


def test_train_needs_no_more_than_python_3_8(train_alone: Path) -> None:
    """By vermin always, and by running the unit tests of fleetctl.train where a 3.8 is installed."""
    vermin = [str(Path(sys.executable).with_name("vermin")), "-t=3.8-", "--no-tips"]
    checked = subprocess.run([*vermin, str(train_alone)], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout
    python = old_python()
    if python is None:
        print("no Python 3.8 here: vermin's check alone was done")
        return
    script = ROOT / "tests" / "unit" / "test_train_progress.py"
    env = {"PYTHONPATH": str(train_alone), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run([python, "-W", "error", str(script)], env=env, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(r"\d+ tests passed\n", ran.stdout)
