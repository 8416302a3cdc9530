"""A decision in which a mistake of ours costs the one run that brings it to light, and its place is told."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import msgspec

from fleetctl.errors import FleetctlError
from fleetctl.recovery.model import Decision, Memory, RunSeen, Snapshot, Verdict


def decided(decide: Callable[[Snapshot, Memory], Decision], snapshot: Snapshot, memory: Memory) -> tuple[Decision, str]:
    """The decision. A run that brings a mistake of ours to light is left alone, the others are not; the text says so.

    What one user can write must not take the recovery of all others away.
    """
    try:
        return decide(snapshot, memory), ""
    except Exception as error:
        bad = {run.key: trouble for run in snapshot.runs or () if (trouble := _trouble(decide, snapshot, run, memory))}
        if not bad:
            raise
        others = tuple(run for run in snapshot.runs or () if run.key not in bad)
        decision = decide(msgspec.structs.replace(snapshot, runs=others), memory)
        verdicts = tuple(Verdict(key, "internal_error", trouble) for key, trouble in bad.items())
        first = next(iter(bad))
        said = (
            f"a mistake of fleetctl's about {len(bad)} runs, which are left alone, such as {first}: {words_of(error)}"
        )
        return msgspec.structs.replace(decision, verdicts=(*decision.verdicts, *verdicts)), said


def _trouble(decide: Callable[[Snapshot, Memory], Decision], snapshot: Snapshot, run: RunSeen, memory: Memory) -> str:
    try:
        decide(msgspec.structs.replace(snapshot, runs=(run,)), memory)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is about this run
        return words_of(error)
    return ""


def words_of(error: Exception) -> str:
    """One line; of a mistake of ours also its place."""
    if isinstance(error, FleetctlError):
        return error.message + (f" ({error.remedy})" if error.remedy else "")
    if isinstance(error, OSError):
        return f"{type(error).__name__}: {error}"
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    place = "".join(f" at {one.filename.rpartition('/')[2]}:{one.lineno}" for one in frame)
    return f"internal error: {type(error).__name__}: {' '.join(str(error).split())[:200]}{place}"
