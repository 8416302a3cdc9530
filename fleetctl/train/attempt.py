"""The folder of this attempt: what Checkpointer tells there and what fleetctl asks there; and the fence.

The fence: each attempt of a run has a folder beside ours, named like 2.0. When a newer one is there, the run goes on
elsewhere, and this process must not commit anything more. Standard library only, Python 3.8 and newer.
"""

from __future__ import annotations

import contextlib
import json
import os
from datetime import datetime, timezone
from typing import Any, Callable

from fleetctl.train.layout import attempt_number
from fleetctl.train.records import read_object, text_in

SCHEMA = 1
_MAX_FLAG_BYTES = 64 << 10


class Superseded(Exception):
    """A newer attempt of this run has started: this process must end and write nothing more."""


class AttemptFolder:
    """Empty `path`: there is no fleetctl, nothing is told or asked. `flag` is the file of a request to save."""

    def __init__(self, path: str, flag: str, attempt: str, rank: int, clock: Callable[[], float]) -> None:
        self._path, self._flag, self._attempt, self._rank = path, flag, attempt, rank
        self._clock = clock
        self._torn = False  # our last line may have no end

    def check_fence(self) -> None:
        """Raises Superseded; OSError when the folder cannot be listed, which is no leave to commit."""
        if not self._path:
            return
        ours = attempt_number(self._attempt)
        for name in os.listdir(os.path.dirname(self._path)):
            with contextlib.suppress(ValueError):
                if attempt_number(name) > ours:
                    raise Superseded(f"attempt {name} of this run has started: attempt {self._attempt} must end")

    def request(self) -> str | None:
        """The id of the newest request to save, if there is one and it can be read."""
        if not self._flag:
            return None
        try:
            with open(self._flag, "rb") as file:
                return text_in(read_object(file.read(_MAX_FLAG_BYTES), "the flag"), "id")
        except (OSError, ValueError):
            return None  # half a second later we ask again

    def tell_save(self, record: dict[str, Any]) -> None:
        """One line of saves.jsonl. Raises OSError."""
        if not self._path:
            return
        line = json.dumps({"schema": SCHEMA, "time": self.now(), **record}, allow_nan=False).encode("ascii") + b"\n"
        file = os.open(f"{self._path}/saves.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            line = b"\n" + line if self._torn else line
            self._torn = True
            self._torn = os.write(file, line) != len(line)
        finally:
            os.close(file)

    def tell_load(self, record: dict[str, Any]) -> None:
        """load.json, or load-failed-RANK.json of another rank. Raises OSError."""
        if not self._path or (self._rank != 0 and record["state"] not in ("failed", "refused")):
            return
        name = "load.json" if self._rank == 0 else f"load-failed-{self._rank}.json"
        text = json.dumps({"schema": SCHEMA, **record, "rank": self._rank, "time": self.now()})
        beside = f"{self._path}/{name}.{os.urandom(4).hex()}.tmp"
        with open(beside, "w", encoding="ascii") as file:
            file.write(text + "\n")
        os.replace(beside, f"{self._path}/{name}")

    def now(self) -> str:
        """ISO 8601 in UTC."""
        return datetime.fromtimestamp(self._clock(), timezone.utc).isoformat(timespec="milliseconds")
