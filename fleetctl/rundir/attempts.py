"""The attempts of one run, or of one element of a sweep: a folder each, with one owner, and what lies in them.

A.B/owner.json     who claimed the attempt: made exclusively, before anything else
A.B/claim.json     the head, before anything starts: which checkpoints stood, {"stands": [NAME, ...]}, and of what
                   frameworks wrote what was there and does not count, {"aside": {NAME: {FILE: TIME}}}
A.B/resume.json    the head: what it resumes from, or why from nothing
A.B/seen.json      the head: a valid checkpoint that this attempt had, {"name": NAME, "training_step": STEP}
A.B/head.json      the head: where agents find it
A.B/interval.json  the head: how often it saves and why, under `interval: auto`
A.B/save-now       the head: a request to save
A.B/saves.jsonl    Checkpointer: one line for each save
A.B/load.json      Checkpointer: how the load of the resumed checkpoint went; load-failed-RANK.json of other ranks
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from fleetctl.errors import RunDirError
from fleetctl.rundir import files
from fleetctl.rundir.model import SCHEMA_VERSION, AttemptNumber, Save, attempt_name, attempt_number
from fleetctl.rundir.parse import saves_of

Aside = Mapping[str, Mapping[str, float]]  # name -> some of its files -> when they were written, seconds since 1970

_OWNER, _RESUME, SEEN = "owner.json", "resume.json", "seen.json"


class Claimed(Struct, frozen=True):
    """What the claim of attempt `number` says. `aside`: what lay in the folder and does not count, while nobody has
    written to these files of it since."""

    number: AttemptNumber
    stands: frozenset[str]
    aside: Aside = {}


class Attempts(Struct, frozen=True):
    """The folder of all attempts."""

    folder: Path

    def path(self, number: AttemptNumber) -> Path:
        return self.folder / attempt_name(number)

    def numbers(self) -> tuple[AttemptNumber, ...]:
        """All that were ever claimed, oldest first.

        :raises RunDirError: the folder cannot be read. Whoever leads an attempt must take it as "not known": it says
            neither that a newer attempt leads nor that none does.
        """
        with files.explained(self.folder, "read"):
            try:
                names = [entry.name for entry in self.folder.iterdir()]
            except FileNotFoundError:
                return ()
        return tuple(sorted(number for name in names if (number := attempt_number(name)) is not None))

    def newest(self) -> AttemptNumber:
        """(0, 0) before the first."""
        return max(self.numbers(), default=(0, 0))

    def claim(self, number: AttemptNumber, *, host: str = "", now: datetime | None = None) -> bool:
        """Make the attempt's folder and own it. True for exactly one caller, ever.

        The folder decides nothing: when NFS loses the answer of a mkdir, its repetition finds the folder and fails,
        although it is ours, and then nobody would lead. `owner.json` decides.

        :raises RunDirError: disk full, read-only, ...
        """
        path, time = self.path(number), None if now is None else now.isoformat()
        mine = {"schema": SCHEMA_VERSION, "host": host, "time": time}
        with files.explained(path, "claim"):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except FileExistsError:  # something else has that name
                return False
            if any(not name.startswith(f".{_OWNER}.") for name in os.listdir(path)):
                # It is owned: by another, or by us, who tried before and failed after the deed. A fleetctl before
                # owner.json left other files.
                return now is not None and files.read_json(str(path / _OWNER)) == mine
            files.sync_dir(self.folder)
            return files.claim_file(path / _OWNER, mine)

    def claim_next(self, *, host: str = "", now: datetime | None = None) -> AttemptNumber:
        """The first sub-number of the next attempt: 1.0, then 2.0, ...

        :raises RunDirError: disk full, read-only, ...
        """
        number = self.newest()
        while True:
            number = (number[0] + 1, 0)
            if self.claim(number, host=host, now=now):
                return number

    def write_stands(
        self,
        number: AttemptNumber,
        stands: Sequence[str],
        now: datetime,
        job_id: str,
        aside: Aside | None = None,
    ) -> None:
        """The second half of a claim: from now on only these checkpoints and those of this and later attempts count."""
        value = {"schema": SCHEMA_VERSION, "time": now.isoformat(), "job_id": job_id, "stands": list(stands)}
        self.write(number, "claim.json", {**value, "aside": dict(aside)} if aside else value)

    def claimed(self, number: AttemptNumber) -> Claimed | None:
        """What this one claimed; None if it never came so far.

        :raises RunDirError: its claim is there and cannot be read.
        """
        return _claimed(self.path(number) / "claim.json", number)

    def claimed_before(self, number: AttemptNumber) -> Claimed | None:
        """The newest complete claim older than `number`.

        An attempt without one started nothing, since its head writes it before the first step.

        :raises RunDirError: a claim is there and cannot be read. An older one must not count instead: it does not know
            what was committed since, and lets stand what was fenced off.
        """
        for older in reversed([one for one in self.numbers() if one < number]):
            claimed = self.claimed(older)
            if claimed is not None:
                return claimed
        return None

    def write(self, number: AttemptNumber, name: str, value: Mapping[str, Any]) -> None:
        """Put one small JSON file into the attempt's folder, whole or not at all.

        :raises RunDirError: disk full, read-only, ...
        """
        path = self.path(number) / name
        with files.explained(path, "write"):
            files.replace_file(path, json.dumps(value, indent=1) + "\n")

    def resumed(self, number: AttemptNumber) -> frozenset[str]:
        """The name of the checkpoint that this attempt resumed from; none when it started from scratch.

        :raises RunDirError: that cannot be read now.
        """
        taken = self._json(number, _RESUME).get("path")
        return frozenset({taken.rstrip("/").rpartition("/")[2]}) if isinstance(taken, str) else frozenset()

    def void(self, number: AttemptNumber) -> frozenset[str]:
        """The names in which the start of this attempt found nothing to go on from, now or ever: saves that were never
        finished, weights alone.

        :raises RunDirError: that cannot be read now.
        """
        names = self._json(number, _RESUME).get("void")
        return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()

    def passed_over(self, number: AttemptNumber) -> frozenset[str]:
        """The names, each as one line, that the start of this attempt did not take, so far as it wrote them down.

        :raises RunDirError: that cannot be read now.
        """
        lines = self._json(number, _RESUME).get("passed_over")
        found = [line.partition(": ")[0] for line in lines if isinstance(line, str)] if isinstance(lines, list) else []
        return self.void(number).union(found)

    def had_valid(self, number: AttemptNumber) -> bool:
        """Whether this attempt resumed from a checkpoint, knew that there had been one, or had a valid one itself.

        :raises RunDirError: that cannot be read now.
        """
        resume = self._json(number, _RESUME)
        return resume.get("path") is not None or bool(resume.get("once_valid")) or bool(self._json(number, SEEN))

    def _json(self, number: AttemptNumber, name: str) -> Mapping[str, Any]:
        path = self.path(number) / name
        with files.explained(path, "read"):
            raw = files.read_json(str(path))
        return raw if isinstance(raw, dict) else {}

    def saves(self, number: AttemptNumber) -> tuple[Save, ...]:
        """What rank 0's Checkpointer saved, oldest first. Its user may write anything there: bad lines are left out."""
        try:
            raw = files.read_bounded(str(self.path(number) / "saves.jsonl")) or b""
        except (OSError, ValueError):
            return ()
        return saves_of(raw)

    def loads(self, number: AttemptNumber) -> tuple[Any, ...]:
        """What the Checkpointers said of loading the resumed checkpoint: rank 0 always, another rank if it failed.

        What cannot be read said nothing.
        """
        found = []
        with contextlib.suppress(OSError):
            names = [e.name for e in self.path(number).iterdir() if e.name.startswith("load") and e.suffix == ".json"]
            for name in sorted(names):
                with contextlib.suppress(OSError):
                    found.append(files.read_json(str(self.path(number) / name)))
        return tuple(found)


def _claimed(path: Path, number: AttemptNumber) -> Claimed | None:
    """What this claim.json says, None when it is missing. It was written whole: one that is not is damaged.

    :raises RunDirError: it cannot be read, or is damaged.
    """
    with files.explained(path, "read"):
        try:
            raw = files.read_bounded(str(path))
            if raw is None:
                return None
            said = json.loads(raw)
            stands, aside = said["stands"], said.get("aside", {})
            if not isinstance(stands, list) or not all(isinstance(name, str) for name in stands):
                why = "`stands` is no list of names"
            elif not isinstance(aside, dict) or not all(map(_are_times, aside.values())):
                why = "`aside` has no times of files for each name"
            else:
                return Claimed(number, frozenset(stands), aside)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"
    raise RunDirError(
        f"{path} is damaged ({why}), so it is not known which checkpoints stand",
        remedy='restore it, or list in it those that may be resumed from: {"stands": ["NAME"]}',
    )


def _are_times(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(at_s, int | float) for at_s in value.values())
