"""The run root on the shared file system: create runs, append events, read histories.

Readers tolerate what a crash or a newer fleetctl leaves: a torn last line, an unknown event kind, a foreign folder.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from fleetctl.clock import Clock
from fleetctl.errors import CannotTell, RunDirError, RunUnknown
from fleetctl.rundir import files
from fleetctl.rundir.history import History, add_up
from fleetctl.rundir.model import RUN_ID, SCHEMA_VERSION, Claim, Event, EventKind, Progress, RunRecord
from fleetctl.rundir.parse import claim_in, events_in, progress_in, record_in

_LOCK_S = 180.0  # sbatch may take 150 s, and what follows it a moment
_LOCK_POLL_S = 0.2


def new_run_id(name: str) -> str:
    """A readable id: the spec's name, made safe for a path and a comment, and 30 random bits."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:40] or "run"
    letters = "abcdefghijklmnopqrstuvwxyz234567"
    return f"{slug}-{''.join(secrets.choice(letters) for _ in range(6))}"


class EventLog(Struct, frozen=True):
    """One writer's event file. Nobody else appends to it."""

    path: Path

    def append(self, now: datetime, kind: EventKind, **data: Any) -> None:
        """Write one event and fsync it: it is on disk before what it announces is done.

        :raises RunDirError: disk full, read-only, ...
        """
        with files.explained(self.path, "write"):
            files.append_line(
                self.path, {"schema": SCHEMA_VERSION, "time": now.isoformat(), "kind": kind.value, **data}
            )


class RunDir(Struct, frozen=True):
    """The folder of one run."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    def submission_dir(self, submission: int) -> Path:
        return self.path / "submissions" / str(submission)

    def script(self, submission: int) -> Path:
        return self.submission_dir(submission) / "script.sh"

    def claim_path(self, submission: int) -> Path:
        return self.submission_dir(submission) / "claim.json"

    def attempts_dir(self, task: int | None) -> Path:
        """One folder for each attempt: of the run, or of one element of a sweep."""
        return self.path / "attempts" if task is None else self.path / "tasks" / str(task) / "attempts"

    def attempt_dir(self, attempt: str, task: int | None) -> Path:
        """What one attempt writes: output.log and progress.json."""
        return self.attempts_dir(task) / attempt

    def event_log(self, writer: str) -> EventLog:
        """A new file for this writer; the random part keeps two processes of one name apart."""
        return EventLog(self.path / "events" / f"{writer}-{secrets.token_hex(4)}.jsonl")

    def claim(self, submission: int, job_id: str | None, cluster: str | None, host: str, now: datetime) -> bool:
        """Claim a submission for `job_id`, or void it with None. True for exactly one caller, ever.

        :raises RunDirError: the claim could not be written.
        """
        path = self.claim_path(submission)
        with files.explained(path, "claim"):
            return files.claim_file(
                path,
                {
                    "schema": SCHEMA_VERSION,
                    "job_id": job_id,
                    "cluster": cluster,
                    "host": host,
                    "time": now.isoformat(),
                },
            )

    def read_claim(self, submission: int) -> Claim | None:
        """The owner of a submission, if any."""
        raw = files.read_json(str(self.claim_path(submission)))
        return None if raw is None else claim_in(raw)

    def record(self) -> RunRecord:
        """:raises RunDirError: run.json is missing, torn, or of a newer schema."""
        where = f"{self.path}/run.json"
        return record_in(files.read_json(where), where)

    def history(self) -> History:
        """Everything that all writers wrote, added up.

        :raises RunDirError: not a readable run directory.
        """
        with files.explained(self.path, "read"):
            record = self.record()
            try:
                events = self.events()
                numbers = {int(event.data["submission"]) for event in events if event.kind is EventKind.INTENT}
                claims = {number: claim for number in numbers if (claim := self.read_claim(number)) is not None}
                return add_up(record, events, claims)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise RunDirError(
                    f"{self.path}/events is damaged ({type(error).__name__}: {error})",
                    remedy="once its job has ended, move the run away",
                ) from None

    def events(self) -> tuple[Event, ...]:
        """What all writers wrote, in no order.

        :raises ValueError, KeyError: not what fleetctl wrote; `history` says it as a RunDirError.
        """
        return tuple(self._events())

    def _events(self) -> Iterator[Event]:
        folder = f"{self.path}/events"
        for name in sorted(os.listdir(folder)):
            yield from events_in(files.read_bounded(f"{folder}/{name}") or b"")

    def progress(self, attempt: str, task: int | None) -> Progress | None:
        """What rank 0 of this attempt last wrote; a damaged, foreign or unreadable file is no progress."""
        try:
            return progress_in(files.read_json(f"{self.attempt_dir(attempt, task)}/progress.json"))
        except OSError:
            return None


class Store(Struct, frozen=True):
    """All runs under one root."""

    root: Path

    def ensure(self) -> None:
        """Make the root and its index.

        :raises RunDirError: it cannot be made or written.
        """
        with files.explained(self.root, "make"):
            (self.root / ".index").mkdir(parents=True, exist_ok=True)

    def reserve(self, run_id: str) -> bool:
        """Make the empty folder of a run. False: the id is taken, by a run that must not be touched."""
        with files.explained(self.root / run_id, "make"):
            try:
                (self.root / run_id).mkdir()
            except FileExistsError:
                return False
        return True

    def fill(self, record: RunRecord, spec_text: str, effective_spec: dict[str, Any]) -> RunDir:
        """Write the record and the spec into a reserved folder, durable; run.json last: without it there is no run."""
        run = RunDir(self.root / record.run_id)
        raw = {name: getattr(record, name) for name in RunRecord.__struct_fields__}
        raw |= {"schema": SCHEMA_VERSION, "created_at": record.created_at.isoformat(), "kind": record.kind.value}
        with files.explained(run.path, "write"):
            for name in ("events", "logs", "submissions", "attempts", "python"):
                (run.path / name).mkdir()
            files.write_synced(run.path / "spec.yaml", spec_text)
            files.write_synced(run.path / "spec.json", json.dumps(effective_spec, indent=1) + "\n")
            files.write_synced(run.path / "run.json", json.dumps(raw, indent=1) + "\n")
            files.sync_dir(run.path)
            files.sync_dir(self.root)
        return run

    def runs(self) -> tuple[RunDir, ...]:
        """Every folder that has a run's name, in no order. A missing root has no runs."""
        try:
            with os.scandir(self.root) as entries:
                names = [entry.name for entry in entries if RUN_ID.fullmatch(entry.name) and entry.is_dir()]
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise RunDirError(f"cannot read {self.root}: {error.strerror}", remedy="FLEETCTL_RUNS names it") from None
        return tuple(RunDir(self.root / name) for name in names)

    def find(self, wanted: str, *, whole: bool = False) -> RunDir:
        """The run of this id, or submitted as this job id; else the only one whose id starts so, unless it must be
        `whole`.

        :raises RunUnknown: none, or several.
        """
        if RUN_ID.fullmatch(wanted) and (self.root / wanted / "run.json").exists():
            return RunDir(self.root / wanted)
        runs = self.runs() if wanted else ()
        found = []
        if wanted.isascii() and wanted.isdigit():
            found = [run for run in runs if _job_id_of(run) == wanted]
        if not found and not whole:
            found = [run for run in runs if run.run_id.startswith(wanted)]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(sorted(run.run_id for run in found)[:5])
            raise RunUnknown(f"{wanted} can be {len(found)} runs: {names}", remedy="give the whole id")
        kind = "run with the whole id" if whole else "run"
        raise RunUnknown(f"no {kind} {wanted!r} under {self.root}", remedy="`fleetctl ls --all` shows what there is")

    @contextmanager
    def locked_index(self, spec_digest: str, clock: Clock, say: Callable[[str], None]) -> Iterator[Index]:
        """Hold the lock of one spec: while it is held, nobody else submits the same spec from this root.

        :raises RunDirError: no lock can be had on this file system.
        :raises CannotTell: somebody holds it for longer than a submission takes.
        """
        path = self._lock_path(spec_digest)
        deadline_s = clock.monotonic_s() + _LOCK_S
        with files.explained(path, "lock"):
            lock = files.try_lock(path)
            if lock is None:
                say("another submit of this spec is under way; waiting for its answer")
            while lock is None:
                if clock.monotonic_s() > deadline_s:
                    raise CannotTell(
                        f"another submit of this spec does not end: it holds the lock of {path}",
                        remedy="is there a stopped `fleetctl submit` on some login node? end it",
                    )
                clock.sleep(_LOCK_POLL_S)
                lock = files.try_lock(path)
        try:
            yield Index(self.root / ".index" / spec_digest)
        finally:
            os.close(lock)

    def _lock_path(self, spec_digest: str) -> Path:
        """A file of its own: a process loses its POSIX locks on a file when it closes any handle of that file."""
        return self.root / ".index" / f"{spec_digest}.lock"


class Index(Struct, frozen=True):
    """The ids of the runs of one spec, oldest first. Only its lock's holder uses it."""

    path: Path

    def run_ids(self) -> tuple[str, ...]:
        text = self.path.read_text() if self.path.exists() else ""
        return tuple(name for name in text.split("\n")[:-1] if RUN_ID.fullmatch(name))

    def add(self, run_id: str) -> None:
        """Written before the run's folder is made: an id without a folder is harmless, the reverse is not."""
        with files.explained(self.path, "write"):
            with open(self.path, "a") as file:
                file.write(f"\n{run_id}\n")  # a line that a full disk tore stays alone
                file.flush()
                os.fsync(file.fileno())
            files.sync_dir(self.path.parent)


def _job_id_of(run: RunDir) -> str | None:
    try:
        return run.history().job_id
    except RunDirError:
        return None
