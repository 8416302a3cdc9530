"""How the attempts of a run ended that did not finish, by the run's own record. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from fleetctl.accounting.causes import Ranked
from fleetctl.accounting.framing import text_of
from fleetctl.accounting.ingest_values import Row, ms_of, task_of
from fleetctl.accounting.ranks import Told, rank
from fleetctl.rundir.history import NOT_PERSONS, History, ended_well
from fleetctl.rundir.model import Attempt, AttemptNumber, Ending, Event, EventKind

Key = tuple[int | None, AttemptNumber]
COLUMNS = ("run_id", "task", "major", "minor", "at_ms", "ending", "causes", "by_person")


def interruptions_of(
    run_id: str, history: History, attempts: Mapping[Key, Attempt], events: Sequence[Event]
) -> Iterator[Row]:
    """One for each attempt that ended and had not finished. Whether the newest one that tells no end still runs, only
    Slurm knows."""
    of_attempt, after = _grouped(events, _named), _grouped(events, after_of)
    seen = [ms_of(event.time) for event in events if event.kind is EventKind.OBSERVED_END]
    cancels = [str(event.data.get("by") or "its owner") for event in events if event.kind is EventKind.CANCEL]
    counts: Counter[int | None] = Counter()
    for key, following in pairwise([*attempts, None]):
        assert key is not None
        attempt, (task, number) = attempts[key], key
        counts[task] += 1
        over = seen[-1] if history.observed_end is not None else None
        if following is not None and following[0] == task:
            over = ms_of(attempts[following].started_at)
            cancels_it = ""
        else:
            cancels_it = cancels[0] if cancels else ""
        at_ms = over if attempt.ended_at is None else ms_of(attempt.ended_at)
        if at_ms is None or attempt.ending is Ending.FINISHED or ended_well(attempt):
            continue
        told = _told(attempt, at_ms, of_attempt.get((task, attempt.name), ()), cancels_it)
        by_person = any(_is_by_person(event, attempt) for event in after.get((task, counts[task]), ()))
        yield run_id, task_of(task), *number, at_ms, told.ending, causes_text(rank(told, (), (), ())), int(by_person)


def _told(attempt: Attempt, at_ms: int, events: Iterable[Event], cancelled_by: str) -> Told:
    """What the run's own events say of this end."""
    saves = [str(event.data.get("why")) for event in events if event.kind is EventKind.SAVE_ASKED]
    lost = ((str(e.data["node"]), str(e.data["evidence"])) for e in events if e.kind is EventKind.NODE_LOST)
    hung = [str(event.data.get("node") or "") for event in events if event.kind is EventKind.HUNG]
    return Told(
        at_ms,
        attempt.ending.value if attempt.ending is not None else "told" if attempt.terminated else "",
        str(attempt.failure or ""),
        attempt.exit_code,
        tuple(lost),
        saves[-1] if saves else "",
        cancelled_by,
        hung[-1] if hung else "",
    )


def _is_by_person(event: Event, attempt: Attempt) -> bool:
    """Whether only a person brought the run back after this attempt, or can: it was held then, or it was over when
    somebody asked for a requeue."""
    if event.kind is EventKind.REQUEUE and event.data.get("by") not in NOT_PERSONS:
        return attempt.ended_at is None or attempt.ended_at <= event.time
    return event.kind is EventKind.HELD


def _grouped(events: Iterable[Event], key: Callable[[Event], Hashable]) -> dict[Hashable, list[Event]]:
    found: dict[Hashable, list[Event]] = {}
    for event in events:
        found.setdefault(key(event), []).append(event)
    return found


def _named(event: Event) -> tuple[int | None, str]:
    """Of which task and attempt it tells."""
    return _task_of(event), str(event.data.get("attempt"))


def after_of(event: Event) -> tuple[int | None, int | None]:
    """Of which task, and after how many attempts."""
    count = event.data.get("attempts")
    return _task_of(event), count if isinstance(count, int) else None


def _task_of(event: Event) -> int | None:
    task = event.data.get("task")
    return task if isinstance(task, int) else None


def causes_text(ranked: Iterable[Ranked]) -> str:
    """What `interruptions.causes` holds."""
    named = [{"cause": one.cause.value, "evidence": text_of(one.evidence), "node": text_of(one.node)} for one in ranked]
    return json.dumps(named, ensure_ascii=False)
