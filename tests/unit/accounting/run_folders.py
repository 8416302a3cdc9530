"""Run directories as fleetctl makes them, for what reads them."""

from __future__ import annotations

import json
import os
import pwd
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event

from fleetctl.rundir.model import EventKind, RunKind, RunRecord
from fleetctl.rundir.store import RunDir, Store

NOW = datetime(2026, 11, 1, tzinfo=UTC)
NOW_S = int(NOW.timestamp())
NOW_MS = NOW_S * 1000
ME = pwd.getpwuid(os.geteuid()).pw_name


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


class Folder:
    """One run directory; times are seconds after NOW. The job is 7, of cluster `lab`."""

    def __init__(self, store: Store, run_id: str = "r-1", **fields: Any) -> None:
        usual: dict[str, Any] = {
            "run_id": run_id,
            "name": "train",
            "user": ME,
            "created_at": NOW,
            "kind": RunKind.PLAIN,
            "spec_digest": "d",
            "spec_source": "/s/train.yaml",
            "workdir": "/w",
            "nodes": 2,
            "tasks": 1,
            "cluster": "lab",
            "fleetctl_version": "0",
        }
        spec = {"name": "train", "checkpoint": {"format": "fleetctl", "dir": "/c"}}
        store.ensure()
        assert store.reserve(run_id)
        self.run: RunDir = store.fill(RunRecord(**{**usual, **fields}), "", spec)
        self.path: Path = self.run.path
        self._log, self._job = self.run.event_log("submit"), self.run.event_log("job-7")

    def submitted(self, job_id: str = "7", submission: int = 1, seconds: float = 0) -> Folder:
        self._log.append(at(seconds), EventKind.INTENT, submission=submission, comment=f"fleetctl:x/{submission}")
        self._log.append(at(seconds + 1), EventKind.SUBMITTED, submission=submission, job_id=job_id, cluster=None)
        return self

    def event(self, seconds: float, kind: EventKind, **data: Any) -> Folder:
        self._job.append(at(seconds), kind, submission=1, **{"task": None, **data})
        return self

    def started(self, name: str, seconds: float, task: int | None = None, **data: Any) -> Folder:
        usual = {"job_id": "7" if task is None else f"7_{task}", "host": "n1", "nodes": "n[1-2]", "resume_step": None}
        self.run.attempt_dir(name, task).mkdir(parents=True)
        return self.event(seconds, EventKind.ATTEMPT_STARTED, attempt=name, **{**usual, "task": task, **data})

    def ended(self, name: str, seconds: float, ending: str, status: int = 0, **data: Any) -> Folder:
        usual = {"job_id": "7", "exit_code": status, "terminated": ending == "told", "ending": ending, "failure": ""}
        return self.event(seconds, EventKind.ATTEMPT_ENDED, attempt=name, **{**usual, **data})

    def told(self, name: str, seconds: float, step: int, task: int | None = None, **more: Any) -> Folder:
        raw = {"schema": 1, "attempt": name, "training_step": step, "time": at(seconds).isoformat(), "done": False}
        text = json.dumps({**raw, **more})
        (self.run.attempt_dir(name, task) / "progress.json").write_text(text)
        return self

    def saved(self, name: str, seconds: float, step: int, **more: Any) -> Folder:
        raw = {"training_step": step, "name": f"s-{step}", "state": "committed", "total_s": 2.5, "flag": None}
        raw |= {"time": at(seconds).isoformat(), "blocked_s": 0.5, "bytes": 100}
        with (self.run.attempt_dir(name, None) / "saves.jsonl").open("a") as file:
            file.write(json.dumps({**raw, **more}) + "\n")
        return self


def lived(store: Store, run_id: str = "r-1") -> Folder:
    """A run that failed after 100 s and is held."""
    folder = Folder(store, run_id).submitted().started("1.0", 10).told("1.0", 90, 20).saved("1.0", 60, 10)
    return folder.ended("1.0", 100, "failed", 1).event(101, EventKind.HELD, attempts=1, why="x")


def writes(engine: Engine) -> list[str]:
    """A list that gets every statement that writes, from now on."""
    seen: list[str] = []

    def note(_connection: Connection, _cursor: object, statement: str, *_more: object) -> None:
        if statement.split()[0] in ("INSERT", "UPDATE", "DELETE"):
            seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    return seen
