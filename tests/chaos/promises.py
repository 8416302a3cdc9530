"""What must hold whatever broke: each check returns the promises that a run broke, in words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.model import AttemptNumber, Ending, EventKind, attempt_name, attempt_number
from fleetctl.rundir.store import RunDir
from tests.chaos.scenario import Fault
from tests.chaos.stage import Stage

_CANCELS = frozenset({Fault.CANCELLED, Fault.SCANCELLED})
# Fault -> what the reason must say when the run is held for it
_DOOMED = {
    Fault.CRASH_LOOP: r"status 1|without a newer checkpoint|chaos",
    Fault.CONFIGURATION: r"status 1|twice within ten minutes|no_such_module|ModuleNotFoundError|configuration",
    Fault.NAN_ALWAYS: r"(?i)nan|finite|no numbers",
}
# With these a run may be held for what it says, instead of coming through
_MAY_HOLD = {
    Fault.BLACK_HOLE: r"status 1|without a newer checkpoint|black hole",
    # Its only checkpoint is damaged: where one was, it must not begin from scratch
    Fault.CHECKPOINT_TORN: r"can be resumed from|without a newer checkpoint",
    Fault.CHECKPOINT_FLIPPED: r"can be resumed from|without a newer checkpoint",
    Fault.DISK_FULL: r"status 1|without a newer checkpoint|(?i:no space|disk)",
}
# The batch script is gone, or Slurm ends it on a node that it had given up, and it may be too early for a successor:
# nobody but the daemon brings the run back
_HEADLESS = frozenset({Fault.HEAD_KILLED, Fault.HEAD_FROZEN, Fault.BATCH_HOST_FROZEN, Fault.BATCH_HOST_KILLED})
_BRAKE = r"without a newer checkpoint"  # launch.decide.brake
ALL_GPUS = "0,1,2,3,4,5,6,7"


def broken(stage: Stage, state: str, reason: str, undisturbed: str) -> list[str]:
    """All that this run, which has ended as `state`, broke."""
    return [
        *stage.broken,
        *_wrong_end(stage, state, reason),
        *_parameters(stage, state, undisturbed),
        *_resumes(stage),
        *_writers(stage),
        *_loads(stage),
        *_gpus(stage, state),
        *_foreign(stage),
    ]


def is_doubtful(stage: Stage, state: str) -> bool:
    """Whether it is held, and no single fault explains that: worth a look."""
    return state == "held" and not {*stage.applied} & {*_DOOMED, *_MAY_HOLD}


def _wrong_end(stage: Stage, state: str, reason: str) -> Iterator[str]:
    applied = frozenset(stage.applied)
    allowed = _allowed(stage, applied)
    if state not in allowed:
        yield f"it ended {state} ({reason}), not {' or '.join(sorted(allowed))}"
    if state == "held":
        doomed = [words for fault, words in {**_DOOMED, **_MAY_HOLD}.items() if fault in applied]
        if not any(re.search(words, reason) for words in doomed or [_BRAKE]):
            yield f"it is held, and the reason is another one: {reason}"


def _allowed(stage: Stage, applied: frozenset[Fault]) -> frozenset[str]:
    if applied & _CANCELS:
        finished = any(event.data.get("ending") == Ending.FINISHED for event in _events(stage, EventKind.ATTEMPT_ENDED))
        # Slurm takes no notice of an scancel of a job that has failed and is cleaned up after
        ended = {"failed", "completed"} if Fault.SCANCELLED in applied and applied & _HEADLESS else set()
        return frozenset({"cancelled", *ended, *(("completed",) if finished else ())})
    if applied & frozenset(_DOOMED):
        return frozenset({"held"})
    allowed = {"completed"}
    if applied & frozenset(_MAY_HOLD) or (len(stage.applied) > 1 and _braked(stage)):
        allowed.add("held")
    if applied & _HEADLESS and not stage.scenario.daemon:
        allowed |= {"failed", "orphan"}
    return frozenset(allowed)


def _braked(stage: Stage) -> bool:
    """Whether two failures in a row had no newer checkpoint between them."""
    ended = _events(stage, EventKind.ATTEMPT_ENDED)
    steps = [event.data.get("progress_step") or 0 for event in ended if event.data.get("failure")]
    return any(later <= earlier for earlier, later in pairwise(steps))


def _parameters(stage: Stage, state: str, undisturbed: str) -> Iterator[str]:
    if state != "completed":
        return
    found = re.findall(r"parameters sha256 ([0-9a-f]{64})", _log(stage, _last(stage)))
    if found != [undisturbed]:
        yield f"its parameters are not those of the undisturbed run: {found}"


def _resumes(stage: Stage) -> Iterator[str]:
    """Each attempt went on after what it was told to resume from; from scratch only where nothing valid stood."""
    attempts = stage.training.attempts
    for number, attempt in enumerate(attempts):
        folder = stage.training.run_dir / "attempts" / attempt
        if not (folder / "resume.json").exists():
            continue
        told = stage.training.resumed_at(attempt)
        saved = [step for before in attempts[:number] for step in stage.training.saved(before)]
        if told and told not in saved:
            yield f"{attempt} resumed from training step {told}, which nobody had saved: {saved}"
        if not told and saved and not stage.damaged and (folder / "output.log").exists():
            yield f"{attempt} began from scratch, although {saved} stood"
        steps = [int(step) for step in re.findall(r"^training step +(\d+)", _log(stage, attempt), re.M)]
        if told and steps and min(steps) <= told:
            yield f"{attempt} was told to resume from {told} and did step {min(steps)}"


def _writers(stage: Stage) -> Iterator[str]:
    """What an older attempt committed after a newer one's claim counts for nobody: see rundir.model.Claim."""
    store = Attempts(stage.training.run_dir / "attempts")
    before: tuple[AttemptNumber, frozenset[str]] | None = None
    for number in store.numbers():
        if (claimed := store.claimed(number)) is None:
            continue
        for name in sorted(claimed.stands - before[1] if before else ()):
            author = attempt_number(name.rpartition("@")[2])
            if before and author is not None and author < before[0]:
                yield f"{attempt_name(number)} counts {name}, committed after {attempt_name(before[0])} had begun"
        before = (number, claimed.stands)


def _loads(stage: Stage) -> Iterator[str]:
    """No attempt trains from a checkpoint that was damaged before it began."""
    for name, since in stage.damaged.items():
        for attempt in stage.training.attempts:
            folder = stage.training.run_dir / "attempts" / attempt
            if attempt_number(attempt) <= attempt_number(since) or not (folder / "resume.json").exists():  # type: ignore[operator]
                continue
            told = str(_json(folder / "resume.json").get("path"))
            load = _json(folder / "load.json") if (folder / "load.json").exists() else {}
            if told.endswith(name) and load.get("state") == "loaded":
                yield f"{attempt} trains from {name}, which was damaged in {since}"


def _gpus(stage: Stage, state: str) -> Iterator[str]:
    """The last start has all its GPUs, on as many nodes as were asked for."""
    if state != "completed":
        return
    placed = stage.training.placed(_last(stage))
    wrong = {node: devices for node, devices in placed.items() if {*devices} != {ALL_GPUS}}
    if wrong or len(placed) != stage.scenario.nodes:
        yield f"the GPUs of the last start are wrong: {placed}"


def _foreign(stage: Stage) -> Iterator[str]:
    """What an admin did stands."""
    nodes = stage.site.nodes()
    for name, reason in stage.drained.items():
        state, found = nodes.get(name, ("", ""))
        if found != reason or "drain" not in state:
            yield f"an admin drained {name} ({reason!r}), and it is {state} now, {found!r}"
    if stage.priority and (job := stage.site.job(stage.job_id)) and job.get("Priority") not in (stage.priority, "0"):
        yield f"an admin gave the job the priority {stage.priority}, and it has {job.get('Priority')} now"


def _last(stage: Stage) -> str:
    """The last attempt that started steps."""
    attempts = stage.training.attempts
    return next((one for one in reversed(attempts) if _log(stage, one)), attempts[-1])


def _log(stage: Stage, attempt: str) -> str:
    log = stage.training.run_dir / "attempts" / attempt / "output.log"
    return log.read_text(errors="replace") if log.exists() else ""


def _events(stage: Stage, kind: EventKind) -> list[Any]:
    return [event for event in RunDir(stage.training.run_dir).events() if event.kind is kind]


def _json(path: Any) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
