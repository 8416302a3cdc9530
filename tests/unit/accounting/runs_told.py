"""Runs for the tests of the ledgers, told in seconds after T0; and what came of them, in seconds as well."""

from __future__ import annotations

from typing import Any

from fleetctl.accounting.ledger import WallLedger, interruption_costs, wall_ledger
from fleetctl.accounting.ledger_gpu import GpuLedger
from fleetctl.accounting.run_facts import AttemptFacts, InterruptionFacts, RecordFacts, RunFacts, SaveFacts
from fleetctl.accounting.timeline import timeline

T0 = 1_790_000_000
AS_OF = (T0 + 1_000_000) * 1000


def ms(second: float | None) -> int | None:
    return None if second is None else round((T0 + second) * 1000)


def at(second: float) -> int:
    return round((T0 + second) * 1000)


def record(
    submitted: float | None, eligible: float | None, started: float | None, ended: float | None, **more: Any
) -> RecordFacts:
    values: dict[str, Any] = {
        "state": "COMPLETED",
        "gpus": 16,
        "nodes": 2,
        "account": "lab",
        "partition": "gpu",
        **more,
    }
    for name in ("alive", "purged"):
        values[f"{name}_ms"] = ms(values.pop(name, None))
    values["suspended_ms"] = values.pop("suspended", 0) * 1000
    values.setdefault("record", f"{submitted}-{started}-{values.get('het_offset')}")
    return RecordFacts(
        submitted_ms=ms(submitted), eligible_ms=ms(eligible), started_ms=ms(started), ended_ms=ms(ended), **values
    )


def attempt(
    number: str,
    started: float,
    ended: float | None,
    ending: str = "",
    first: tuple[int, float] | None = None,
    last: tuple[int, float] | None = None,
    resume: int | None = None,
    **more: Any,
) -> AttemptFacts:
    """`first` and `last`: a training step and when it had been done."""
    major, minor = map(int, number.split("."))
    return AttemptFacts(
        number=(major, minor),
        started_ms=at(started),
        ended_ms=ms(ended),
        ending=ending,
        first_step=first and first[0],
        first_step_ms=first and ms(first[1]),
        last_step=last and last[0],
        last_step_ms=last and ms(last[1]),
        resume_step=resume,
        **{"nodes": 2, **more},
    )


def save(
    number: str, step: int, began: float | None, blocked: float, total: float | None = None, committed: bool = True
) -> SaveFacts:
    major, minor = map(int, number.split("."))
    took = blocked if total is None else total
    return SaveFacts(
        (major, minor),
        step,
        step,
        committed,
        None if began is None else ms(began + took),
        round(blocked * 1000),
        round(took * 1000),
    )


def interruption(number: str, second: float, cause: str, *, by_person: bool = False) -> InterruptionFacts:
    major, minor = map(int, number.split("."))
    return InterruptionFacts((major, minor), at(second), cause, by_person)


def run(**parts: Any) -> RunFacts:
    values = {"finished": None, "nodes": 2, "checkpoints": "own", "created_ms": at(0), **parts}
    return RunFacts(run_id="r-1", task=-1, name="train", user="ada", cluster="c", **values)


def seconds(ledger: WallLedger | GpuLedger) -> dict[str, float]:
    """What is not 0."""
    return {spent.value: ms / 1000 for spent, ms in ledger.ms.items() if ms}


def wall(facts: RunFacts, as_of: int = AS_OF) -> dict[str, float]:
    return seconds(wall_ledger(facts, as_of))


def costs(facts: RunFacts) -> list[tuple[str, str, float | None, float | None, float | None]]:
    """Attempt, cause, D, R, W."""
    found = []
    for one in interruption_costs(facts, timeline(facts, AS_OF)):
        drw = [None if part is None else part / 1000 for part in (one.detection_ms, one.restart_ms, one.lost_ms)]
        found.append((f"{one.number[0]}.{one.number[1]}", one.cause, drw[0], drw[1], drw[2]))
    return found
