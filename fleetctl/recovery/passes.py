"""One pass of the daemon, in one sentence and as JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from fleetctl.recovery.model import Decision, Done, Incident, Interruption, Outcome, Snapshot

_MOST_SAID = 4  # actions, or runs, in a sentence; `daemon status` has all
_MOST_KEPT = 200  # verdicts: it is written every few seconds
_JOBS = "jobs"  # the source without which nothing is known of any run


class Passed(Struct, frozen=True):
    """What one pass saw, decided and did. `snapshot` and `decision` None: it did not come so far, and `trouble` says
    why. `standing_by` says why nothing was done to the world; "": whatever was decided was done."""

    at: datetime
    cluster: str
    scope: str
    took_s: float
    acts: bool
    snapshot: Snapshot | None = None
    decision: Decision | None = None
    done: tuple[Done, ...] = ()
    standing_by: str = ""
    trouble: str = ""

    @property
    def is_blind(self) -> bool:
        """Nothing follows from it: the database, or Slurm's jobs, were not there to be read."""
        return self.snapshot is None or self.decision is None or is_blind(self.snapshot)


def is_blind(snapshot: Snapshot) -> bool:
    """Whether Slurm told nothing of jobs."""
    return snapshot.runs is None or _JOBS in snapshot.failed


def sentence(one: Passed) -> str:
    """The one line that a pass leaves in the log."""
    if one.snapshot is None or one.decision is None:
        return f"this pass saw nothing: {one.trouble or 'it was ended'}"
    parts = [f"{_seen(one.snapshot)} in {one.took_s:.1f} s"]
    parts += [f"no {source}: {why}" for source, why in sorted(one.snapshot.failed.items())]
    if one.decision.interruptions:
        parts.append("; ".join(map(_interrupted, one.decision.interruptions[:_MOST_SAID])))
    parts += [f"incident: {_incident(incident)}" for incident in one.decision.incidents]
    if one.done:
        parts.append("; ".join(map(did, one.done[:_MOST_SAID])) + _more(len(one.done)))
    else:
        parts.append(_going_on(one.decision) or "nothing to do")
    if one.standing_by:
        parts.append(one.standing_by)
    if one.trouble:
        parts.append(one.trouble)
    return "; ".join(parts)


def _seen(snapshot: Snapshot) -> str:
    if snapshot.runs is None:
        return "no runs seen"
    unread = sum(run.facts is None for run in snapshot.runs)
    said = f"{len(snapshot.runs)} run{'s' * (len(snapshot.runs) != 1)}"
    return said + (f" ({unread} not readable)" if unread else "")


def _going_on(decision: Decision) -> str:
    """What is waited for, of the first runs with which something goes on."""
    found = [f"{verdict.key or 'the fleet'}: {verdict.why}" for verdict in decision.verdicts if not verdict.is_quiet]
    return "; ".join(found[:_MOST_SAID]) + _more(len(found))


def _more(count: int) -> str:
    return f"; and {count - _MOST_SAID} more" if count > _MOST_SAID else ""


def _interrupted(one: Interruption) -> str:
    causes = one.causes[0].evidence if one.causes else "for no known cause"
    kind = one.causes[0].cause.value if one.causes else "unknown"
    return f"{one.key} was interrupted ({kind}: {causes})"


def _incident(one: Incident) -> str:
    return f"{one.kind} {one.subject}, {len(one.keys)} runs, {len(one.nodes)} nodes"


def did(one: Done) -> str:
    """One entry of the journal in words: `held r-1 (done): why`."""
    about = one.action.key or ", ".join(one.action.nodes) or "the fleet"
    word = one.action.deed.value.replace("_", " ")
    nodes = f" {', '.join(one.action.nodes)}" if one.action.key and one.action.nodes else ""
    outcome = "would be done" if one.outcome is Outcome.OBSERVED else one.outcome.value
    detail = f" ({one.detail})" if one.detail and one.outcome is not Outcome.DONE else ""
    return f"{word}{nodes} for {about} {outcome}{detail}: {one.action.why}"


def as_json(one: Passed) -> dict[str, Any]:
    """Stable keys; docs/json.md describes them. The journal keeps the same for `daemon status`."""
    snapshot, decision = one.snapshot, one.decision
    rules = Counter(verdict.rule for verdict in decision.verdicts if verdict.key) if decision else Counter()
    return {
        "time": one.at.isoformat(),
        "cluster": one.cluster,
        "scope": one.scope,
        "acts": one.acts,
        "standing_by": one.standing_by or None,
        "trouble": one.trouble or None,
        "blind": one.is_blind,
        "took_s": round(one.took_s, 3),
        "runs": None if snapshot is None or snapshot.runs is None else len(snapshot.runs),
        "unreadable_runs": None if snapshot is None else unreadable(snapshot),
        "nodes": None if snapshot is None or snapshot.nodes is None else len(snapshot.nodes),
        "failed_sources": dict(snapshot.failed) if snapshot else {},
        "rules": dict(sorted(rules.items())),
        "verdicts": [
            {"run_id": verdict.key or None, "rule": verdict.rule, "why": verdict.why, "quiet": verdict.is_quiet}
            for verdict in (decision.verdicts if decision else ())
        ],
        "interruptions": [interruption_json(each) for each in (decision.interruptions if decision else ())],
        "incidents": [incident_json(each) for each in (decision.incidents if decision else ())],
        "actions": [done_json(each) for each in one.done],
        "next_look_s": decision.look_again_s if decision else None,
    }


def kept(told: Mapping[str, Any]) -> dict[str, Any]:
    """What the journal keeps of a pass: the verdicts with which something goes on, some of them. It has each run's own
    beside."""
    busy = [verdict for verdict in told["verdicts"] if not verdict["quiet"]]
    return {**told, "verdicts": busy[:_MOST_KEPT]}


def unreadable(snapshot: Snapshot) -> dict[str, str]:
    """Runs whose folder could not be read, and why; at most a screenful."""
    found = {run.key: run.trouble for run in snapshot.runs or () if run.facts is None}
    return dict(sorted(found.items())[:20])


def done_json(one: Done) -> dict[str, Any]:
    """An entry of the journal."""
    return {
        "time": one.at.isoformat(),
        "deed": one.action.deed.value,
        "run_id": one.action.key or None,
        "start": one.action.start or None,
        "nodes": list(one.action.nodes),
        "from_step": one.action.at_most_step,
        "suspects": list(one.action.suspects),
        "rule": one.action.rule,
        "why": one.action.why,
        "evidence": list(one.action.evidence),
        "outcome": one.outcome.value,
        "detail": one.detail or None,
        "ended_at": one.ended_at.isoformat() if one.ended_at else None,
    }


def interruption_json(one: Interruption) -> dict[str, Any]:
    return {
        "time": one.at.isoformat(),
        "run_id": one.key,
        "attempt": one.attempt,
        "start": one.start,
        "nodes": list(one.nodes),
        "checkpoint_step": one.progress_step,
        "ran_s": one.ran_s,
        "fingerprint": one.fingerprint,
        "causes": [
            {
                "cause": each.cause.value,
                "advice": each.advice.value,
                "node": each.node or None,
                "evidence": each.evidence,
            }
            for each in one.causes
        ],
    }


def incident_json(one: Incident) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "subject": one.subject,
        "since": one.since.isoformat(),
        "until": one.until.isoformat() if one.until else None,
        "runs": list(one.keys),
        "nodes": list(one.nodes),
    }


def counted(one: Passed) -> Mapping[str, float]:
    """Runs by the rule that decided about them, for the metrics."""
    verdicts = one.decision.verdicts if one.decision else ()
    return {rule: float(count) for rule, count in Counter(v.rule for v in verdicts if v.key).items()}
