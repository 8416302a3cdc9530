"""How often an attempt saves under `interval: auto`: by what its run has measured, else by what is assumed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import chain, islice, pairwise
from typing import Any

from fleetctl.errors import RunDirError
from fleetctl.launch.decide import QUICK
from fleetctl.launch.lead import Lead
from fleetctl.reliability.estimate import Observed, Plan, make_plan
from fleetctl.reliability.interval import HOUR_S
from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.history import History
from fleetctl.rundir.model import SCHEMA_VERSION, Attempt, AttemptNumber, Ending, Save, attempt_number
from fleetctl.rundir.view import RunState
from fleetctl.train.schedule import FIRST_SAVE_S

_ATTEMPTS = 3  # the newest whose saves count: what older ones saved may have been another size
_SAVES = 20
_DAY_S = 86_400.0  # a training writes what it likes into saves.jsonl: a save that took longer is no save
_DEAD_NODE = frozenset({Ending.NODE_LOST, Ending.FENCED})  # fenced: its host was given up


def pace(lead: Lead, number: AttemptNumber, history: History) -> Plan | None:
    """How often attempt `number` saves, written into its folder; None where the spec says it, or nothing.

    Never raises: an attempt that does not know it as well as it could still starts.
    """
    order = lead.order.checkpoint
    if order is None or order.interval_s != "auto":
        return None
    seen = Observed()
    with contextlib.suppress(RunDirError):
        seen = observe(lead.attempts, history, lead.job.task)
    plan = make_plan(seen, max(history.record.nodes, 1))
    try:
        lead.attempts.write(number, "interval.json", {"schema": SCHEMA_VERSION, **keys_of(plan)})
    except RunDirError as error:
        lead.world.say(f"fleetctl: {error.message}")
    return plan


def said(plan: Plan) -> str:
    """The plan in one line of the log."""
    why = f"a save costs {plan.cost}, a failure comes every {plan.mtbf}"
    own = f"Checkpointer begins after {FIRST_SAVE_S:.0f} s at most and then goes by what its own saves cost"
    return f"fleetctl: it saves every {plan.auto_s:.0f} s: {why}; {own}"


def keys_of(plan: Plan) -> dict[str, Any]:
    """What interval.json and `fleetctl ckpt interval --json` say; docs/json.md describes it."""
    found: dict[str, Any] = {
        "interval_s": round(plan.auto_s, 3),
        "young_interval_s": round(plan.young_s, 3),
        "daly_interval_s": round(plan.daly_s, 3),
        "overhead": round(plan.overhead(plan.auto_s), 6),
        "save_share": round(plan.save_share(plan.auto_s), 6),
        "restart_share": round(plan.restart_share, 6),
        "effective": round(plan.effective(plan.auto_s), 6),
        "hourly_overhead": round(plan.overhead(HOUR_S), 6),
    }
    for name, quantity in (("cost", plan.cost), ("mtbf", plan.mtbf), ("restart", plan.restart)):
        found[f"{name}_s"] = round(quantity.seconds, 6)
        found[f"{name}_source"] = quantity.source.value
        found[f"{name}_why"] = quantity.why or None
    return {**found, "assumptions": list(plan.assumptions)}


def observe(attempts: Attempts, history: History, task: int | None, now: datetime | None = None) -> Observed:
    """What the run has measured. Without `now` a new attempt is about to begin: the newest one has ended, whether or
    not anybody wrote that down.

    :raises RunDirError: the attempts cannot be read.
    """
    mine = [attempt for attempt in history.attempts if attempt.task == task]
    running = None
    if now is not None and mine and mine[-1].ended_at is None and history.observed_end != RunState.NODE_FAIL:
        running = mine[-1]
    until = now if history.observed_end is None and history.cancelled_at is None else None
    saves = _saves(attempts)
    return Observed(
        costs_s=tuple(cost_s for save in saves if (cost_s := save.blocked_s) is not None),
        totals_s=tuple(save.total_s for save in saves),
        restarts_s=_restarts(attempts, mine),
        failures=sum(attempt is not running and is_failure(attempt) for attempt in mine),
        exposure_s=sum(_ran(mine, until), timedelta()).total_seconds(),
        nodes=max(history.record.nodes, 1),
    )


def is_failure(attempt: Attempt) -> bool:
    """Whether it counts into the failure rate: what ended it cost work and may come again at any time.

    A program that fails in its first minutes is as a rule wrong itself, and has lost little. One whose end nobody wrote
    down died with its node. The time limit, a preemption and a person are no failures.
    """
    if attempt.ended_at is None or attempt.ending in _DEAD_NODE:
        return True
    return attempt.ending is Ending.FAILED and attempt.ended_at - attempt.started_at >= QUICK


def _ran(mine: list[Attempt], until: datetime | None) -> Iterator[timedelta]:
    """How long each attempt ran. Of one that died with its head that is known only if another took over at once, and
    else left out: M is then a little too short, and the run saves a little too often."""
    for attempt, following in pairwise([*mine, None]):
        assert attempt is not None, "only the last one is"
        end = attempt.ended_at
        if end is None and following is not None and _major(attempt) == _major(following):
            end = following.started_at
        if end is None and following is None:
            end = until
        if end is not None:
            yield max(end - attempt.started_at, timedelta())


def _major(attempt: Attempt) -> str:
    return attempt.name.partition(".")[0]


def _saves(attempts: Attempts) -> list[Save]:
    """The newest ones that were written and measured."""
    told = (list(filter(_is_measured, attempts.saves(number))) for number in reversed(attempts.numbers()))
    newest = list(islice(filter(None, told), _ATTEMPTS))  # one that has just been claimed has saved nothing
    return list(chain.from_iterable(reversed(newest)))[-_SAVES:]


def _is_measured(save: Save) -> bool:
    return save.committed and 0.0 < (save.blocked_s or 0.0) <= save.total_s <= _DAY_S


def _restarts(attempts: Attempts, mine: list[Attempt]) -> tuple[float, ...]:
    """From each failure to the end of the next attempt's load. Only inside one allocation: what a job waits in the
    queue says nothing of the training."""
    found = []
    for failed, following in pairwise(mine):
        number = attempt_number(following.name)
        if failed.ended_at is None or not is_failure(failed) or _major(failed) != _major(following) or number is None:
            continue
        loaded = [moment for raw in attempts.loads(number) if (moment := _loaded_at(raw)) is not None]
        found += [(moment - failed.ended_at).total_seconds() for moment in loaded if moment > failed.ended_at]
    return tuple(found)


def _loaded_at(raw: object) -> datetime | None:
    """When the load ended well; None for what is no such word."""
    if not isinstance(raw, Mapping) or raw.get("state") != "loaded":
        return None
    with contextlib.suppress(ValueError, TypeError):
        moment = datetime.fromisoformat(raw["time"])
        return moment if moment.tzinfo is not None else None
    return None
