"""The folders of one run as launch makes them, for tests of Checkpointer; time and faults are passed in."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleetctl.train.checkpointer import Checkpointer, Loaded
from fleetctl.train.disk import Disk

RUN = "train-4taw7w"


class Time:
    """Stands still until somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Faulty(Disk):
    """A disk on which something happens just before a file is written or renamed."""

    def __init__(self) -> None:
        super().__init__()
        self.before_write: Callable[[str], None] = lambda path: None
        self.before_rename: Callable[[str], None] = lambda path: None

    def write(self, path: str, pieces: Any) -> None:
        self.before_write(path)
        super().write(path, pieces)

    def rename(self, old: str, new: str) -> None:
        self.before_rename(new)
        super().rename(old, new)


class Site:
    """One run's folders, as launch makes them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.checkpoints = folder, folder / "ckpt"
        self.time, self.disk = Time(), Faulty()
        self.opened: list[Checkpointer] = []

    def attempt(self, attempt: str = "2.0") -> Path:
        folder = self.folder / "attempts" / attempt
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def open(self, attempt: str = "2.0", env: dict[str, str] | None = None, **more: Any) -> Checkpointer:
        folder = self.attempt(attempt)
        environ = {
            "FLEETCTL_RUN_ID": RUN,
            "FLEETCTL_ATTEMPT": attempt,
            "FLEETCTL_ATTEMPT_DIR": str(folder),
            "FLEETCTL_SAVE_FLAG": str(folder / "save-now"),
            "FLEETCTL_CHECKPOINT_DIR": str(self.checkpoints),
            **(env or {}),
        }
        times = {"monotonic": self.time, "sleep": self.time.sleep, "clock": lambda: 1_700_000_000.25}
        opened = Checkpointer(environ=environ, **{"disk": self.disk, **times, **more})
        self.opened.append(opened)
        return opened

    def path(self, step: int, attempt: str = "2.0") -> Path:
        return self.checkpoints / f"step-{step:09d}@{RUN}@{attempt}"

    def load(self, step: int, attempt: str = "2.0", **more: Any) -> Loaded:
        loaded = self.open("9.0", {"FLEETCTL_RESUME_PATH": str(self.path(step, attempt))}, **more).load()
        assert loaded is not None
        return loaded

    def saves(self, attempt: str = "2.0") -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.attempt(attempt) / "saves.jsonl").read_text().splitlines()]

    def committed(self) -> list[str]:
        return sorted(path.name for path in self.checkpoints.iterdir() if not path.name.startswith("."))

    def left(self) -> list[str]:
        """What lies where nothing should stay."""
        places = [self.checkpoints / ".staging", self.checkpoints / ".trash"]
        return [path.name for place in places if place.exists() for path in place.iterdir()]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def ask(self, request: str) -> None:
        (self.attempt() / "save-now").write_text(json.dumps({"schema": 1, "id": request, "why": "time limit"}))


def no_space(*_path: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def open_rank(site: Site, rank: int, world: int, attempt: str = "2.0", **more: Any) -> Checkpointer:
    env = {"RANK": str(rank), "WORLD_SIZE": str(world), **more.pop("env", {})}
    return site.open(attempt, env, **{"shards": world, "monotonic": time.monotonic, "sleep": time.sleep, **more})


def load_rank(site: Site, step: int, rank: int, world: int) -> Loaded:
    loaded = open_rank(site, rank, world, "9.0", env={"FLEETCTL_RESUME_PATH": str(site.path(step))}).load()
    assert loaded is not None
    return loaded


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.write_bytes(raw)
