"""What the files of a run directory say, from their bytes or their JSON. Pure: whoever reads them is elsewhere."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from fleetctl.errors import RunDirError
from fleetctl.rundir.model import SCHEMA_VERSION, Claim, Event, EventKind, Progress, RunKind, RunRecord, Save

_KINDS = {kind.value: kind for kind in EventKind}
_MOST_TEXT = 200
_MOST = 1 << 63  # what a step or a size cannot be


def record_in(raw: object, where: str) -> RunRecord:
    """The record in run.json, which is at `where`; `raw` None: it is missing or no JSON.

    :raises RunDirError: missing, torn, or of a newer schema.
    """
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA_VERSION:
        what = "missing or damaged" if not isinstance(raw, dict) else f"of schema {raw.get('schema')}"
        raise RunDirError(
            f"{where} is {what}",
            remedy="use the fleetctl that made it; or, once its job has ended, move it away",
        )
    try:
        values = {name: raw[name] for name in RunRecord.__struct_fields__}
        values |= {"created_at": datetime.fromisoformat(raw["created_at"]), "kind": RunKind(raw["kind"])}
    except (KeyError, TypeError, ValueError) as error:
        raise RunDirError(f"{where} is damaged ({error})", remedy="once its job has ended, move it away") from None
    return RunRecord(**values)


def events_in(data: bytes) -> Iterator[Event]:
    """The events of one writer's file, in its order; of kinds that we know, since a newer fleetctl may write more.

    :raises ValueError, KeyError, TypeError, AttributeError: not what fleetctl wrote.
    """
    for line in data.split(b"\n")[:-1]:  # what follows the last newline was torn by a crash
        try:
            raw = json.loads(line)
        except ValueError:  # torn too, by a full disk: an append that failed never happened
            continue
        if (kind := _KINDS.get(raw["kind"])) is not None:
            yield Event(datetime.fromisoformat(raw["time"]), kind, raw)


def claim_in(raw: Mapping[str, Any]) -> Claim:
    """claim.json of a submission.

    :raises ValueError, KeyError, TypeError: not what fleetctl wrote.
    """
    return Claim(raw["job_id"], raw.get("cluster"), raw["host"], datetime.fromisoformat(raw["time"]))


def progress_in(raw: object) -> Progress | None:
    """What progress.json says; None: it is no progress at all. Its user may write anything there."""
    if not isinstance(raw, dict):
        return None
    attempt, loss_text = raw.get("attempt"), raw.get("loss_text")
    return Progress(
        training_step=whole_in(raw, "training_step"),
        target_step=whole_in(raw, "target_step"),
        loss=_finite(raw.get("loss")),
        done=raw.get("done") is True,
        at=moment_in(raw, "time"),
        first_step=whole_in(raw, "first_step"),
        first_at=moment_in(raw, "first_time"),
        attempt=attempt if isinstance(attempt, str) else None,
        loss_text=loss_text[:_MOST_TEXT] if isinstance(loss_text, str) else None,
    )


def saves_of(raw: bytes) -> tuple[Save, ...]:
    """The saves that a saves.jsonl tells of; what follows the last newline was torn by a crash."""
    return tuple(save for line in raw.split(b"\n")[:-1] if (save := _save(line)) is not None)


def _save(line: bytes) -> Save | None:
    try:
        raw = json.loads(line)
        flag, blocked_s = raw.get("flag"), raw.get("blocked_s")
        return Save(
            training_step=int(raw["training_step"]),
            name=str(raw["name"]),
            committed=raw["state"] == "committed",
            total_s=float(raw["total_s"]),
            flag=None if flag is None else str(flag),
            blocked_s=None if blocked_s is None else float(blocked_s),
            saved_at=moment_in(raw, "time"),
            size_bytes=whole_in(raw, "bytes"),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def whole_in(raw: Mapping[str, Any], name: str) -> int | None:
    """A whole number that 64 bits hold; None for anything else."""
    value = raw.get(name)
    return value if type(value) is int and -_MOST <= value < _MOST else None


def moment_in(raw: Mapping[str, Any], name: str) -> datetime | None:
    """A time that says its zone; None for anything else."""
    value = raw.get(name)
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return moment if moment is not None and moment.utcoffset() is not None else None


def _finite(value: object) -> float | None:
    """Python's json reads NaN, Infinity and numbers of a thousand digits; nobody else does."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
