"""How a run is, as the process that leads it says: one small file, the only one that is read of a healthy run. Pure.

RUN/pulse.json, of an element of a sweep RUN/tasks/I/pulse.json; replaced whole by the head, every few seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from math import isfinite
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from fleetctl.rundir.model import SCHEMA_VERSION
from fleetctl.rundir.parse import moment_in, whole_in

PULSE = "pulse.json"
PREPARES, WAITS = "prepare", "wait"  # phases of a head whose steps do not run: before a start, and for nodes
MOST_LOSSES = 32
_MOST_SILENT = 16  # ranks: a hang of thousands is told by its first ones
_MOST_NODES = 256
_MOST_TEXT = 256  # characters of a name


class Silent(Struct, frozen=True):
    """A rank that has not been heard for longer than its phase explains."""

    rank: int
    node: str
    phase: str  # a name of launch.liveness.Phase
    silent_s: float
    limit_s: float


class Pulse(Struct, frozen=True):
    """A head's word. `events` counts the events that it wrote: where that has changed, the folder has news.

    `phase` is that of the training, a name of launch.liveness.Phase, or PREPARES or WAITS.
    `losses` are the newest told, oldest first, at most 32: (training step, loss); None: told, and not a finite number.
    `ranks` None: nobody knows how many there are. `silent` are ranks that are suspected of hanging, since
    `suspected_at`; `hung` says that the head has found the attempt hung and ends it.
    """

    attempt: str
    job_id: str
    restart_count: int
    host: str
    at: datetime
    events: int
    phase: str
    training_step: int | None = None
    progress_at: datetime | None = None
    checkpoint_step: int | None = None  # the newest that stands
    losses: tuple[tuple[int, float | None], ...] = ()
    ranks: int | None = None
    heard: int = 0  # of them, that have been heard in this attempt
    silent: tuple[Silent, ...] = ()
    suspected_at: datetime | None = None
    hung: bool = False
    lost_nodes: tuple[str, ...] = ()
    over: bool = False  # this head has ended, and says so with its last pulse


def pulse_out(pulse: Pulse) -> dict[str, Any]:
    """What pulse.json holds."""
    times = {name: value.isoformat() for name, value in asdict(pulse).items() if isinstance(value, datetime)}
    silent = [asdict(one) for one in pulse.silent[:_MOST_SILENT]]
    losses = [list(one) for one in pulse.losses[-MOST_LOSSES:]]
    lists = {"silent": silent, "losses": losses, "lost_nodes": list(pulse.lost_nodes[:_MOST_NODES])}
    return {"schema": SCHEMA_VERSION, **asdict(pulse), **times, **lists}


def pulse_in(raw: object) -> Pulse | None:
    """What pulse.json says; None: it is no pulse. The run's user may write anything there: values are bounded and of
    their type, and one that is not what its head wrote counts as not told."""
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA_VERSION:
        return None
    at, restarts, events = moment_in(raw, "at"), whole_in(raw, "restart_count"), whole_in(raw, "events")
    attempt, job_id = _text(raw, "attempt"), _text(raw, "job_id")
    if at is None or restarts is None or events is None or not attempt or not job_id:
        return None
    lost = _items(raw.get("lost_nodes"), _MOST_NODES)
    return Pulse(
        attempt=attempt,
        job_id=job_id,
        restart_count=restarts,
        host=_text(raw, "host"),
        at=at,
        events=events,
        phase=_text(raw, "phase"),
        training_step=whole_in(raw, "training_step"),
        progress_at=moment_in(raw, "progress_at"),
        checkpoint_step=whole_in(raw, "checkpoint_step"),
        losses=tuple(_losses(raw.get("losses"))),
        ranks=whole_in(raw, "ranks"),
        heard=whole_in(raw, "heard") or 0,
        silent=tuple(_silent(raw.get("silent"))),
        suspected_at=moment_in(raw, "suspected_at"),
        hung=raw.get("hung") is True,
        lost_nodes=tuple(name[:_MOST_TEXT] for name in lost if isinstance(name, str)),
        over=raw.get("over") is True,
    )


def _text(raw: Mapping[str, Any], name: str) -> str:
    value = raw.get(name)
    return value[:_MOST_TEXT] if isinstance(value, str) else ""


def _items(value: object, most: int) -> list[Any]:
    return value[:most] if isinstance(value, list) else []


def _losses(value: object) -> Iterable[tuple[int, float | None]]:
    for one in _items(value, MOST_LOSSES):
        if isinstance(one, list) and len(one) == 2 and (step := whole_in({"step": one[0]}, "step")) is not None:
            yield step, _finite(one[1])


def _silent(value: object) -> Iterable[Silent]:
    for one in _items(value, _MOST_SILENT):
        if not isinstance(one, dict):
            continue
        rank, silent_s, limit_s = whole_in(one, "rank"), _finite(one.get("silent_s")), _finite(one.get("limit_s"))
        if rank is not None and silent_s is not None and limit_s is not None:
            yield Silent(rank, _text(one, "node"), _text(one, "phase"), silent_s, limit_s)


def _finite(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")
    except OverflowError:
        return None
    return number if isfinite(number) else None
