"""How `fleetctl node` prints what nodes said: as a table, as fields, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import click

from fleetctl.cli.ckpt_print import age_of
from fleetctl.cli.output import print_fields, print_json, print_table
from fleetctl.health.model import Decision, Finding, Outcome, Phase, Verdict

if TYPE_CHECKING:
    from fleetctl.health.spool import NodeSaid

_WHOLE = (Phase.PERIODIC, Phase.BOOT, Phase.HAND)  # the others look at one job's GPUs
_DRAINS = (Decision.DRAIN, Decision.NO_BUDGET)
_SHOWN_DRAINS = 10


class State(StrEnum):
    """How a node stands, the worst first. Only `ok` is fine."""

    DRAINED = "drained"  # it asked for a drain
    NO_BUDGET = "no_budget"  # it would have, but enough nodes of the fleet are drained
    UNKNOWN = "unknown"  # nothing that can be read, or of a time to come
    STALE = "stale"  # it said nothing for too long
    BUG = "bug"  # fleetctl itself failed there
    NOTED = "noted"  # findings, none of which keeps jobs away
    OK = "ok"


_STATE_OF = {
    Decision.CLEAN: State.OK,
    Decision.NOTED: State.NOTED,
    Decision.DRAIN: State.DRAINED,
    Decision.NO_BUDGET: State.NO_BUDGET,
    Decision.BUG: State.BUG,
}


def state_of(verdict: Verdict | None, now: datetime, stale_s: float) -> State:
    """A drain stays one however old it is; anything else that is old is stale."""
    moment = moment_of(verdict)
    if verdict is None or moment is None or (now - moment).total_seconds() < -stale_s:
        return State.UNKNOWN
    if verdict.decision not in _DRAINS and (now - moment).total_seconds() > stale_s:
        return State.STALE
    return _STATE_OF[verdict.decision]


def moment_of(verdict: Verdict | None) -> datetime | None:
    """When it was said, by the node's own clock; None where that is no time."""
    try:
        return None if verdict is None else datetime.fromtimestamp(verdict.at, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def print_nodes(found: Sequence[NodeSaid], now: datetime, stale_s: float, *, as_json: bool) -> None:
    order = list(State)
    rows = [(state_of(said.latest, now, stale_s), said) for said in found]
    rows.sort(key=lambda row: (order.index(row[0]), row[1].node))
    if as_json:
        print_json([_node(said.node, state, said.latest, now, said.trouble) for state, said in rows])
        return
    columns = ("NODE", "STATE", "AGE", "LOOKED AT", "WHY")
    print_table(columns, [_row(state, said, now) for state, said in rows], folds=("WHY",))


def print_node(node: str, verdicts: Sequence[Verdict], now: datetime, stale_s: float, *, as_json: bool) -> None:
    """The last word, the last one about the whole node where that is another, and the newest drains."""
    last = verdicts[-1]
    whole = next((one for one in reversed(verdicts) if one.phase in _WHOLE), None)
    drains = [one for one in reversed(verdicts) if one.decision in _DRAINS][:_SHOWN_DRAINS]
    state = state_of(last, now, stale_s)
    if as_json:
        shown = _node(node, state, last, now, "")
        shown["whole"] = None if whole is None else _node(node, state_of(whole, now, stale_s), whole, now, "")
        shown["drains"] = [_said(one) for one in drains]
        print_json(shown)
        return
    print_fields(_fields(node, state, last, now))
    print_fields([("", finding_line(one)) for one in last.findings])
    if whole is not None and whole is not last:
        click.echo()
        print_fields([("whole node", f"{state_of(whole, now, stale_s).value}, {_age(whole, now)} ago"), *_why(whole)])
    if drains:
        click.echo("\ndrains:")
        print_table(("AT", "PHASE", "REASON"), [(_at(one), one.phase.value, one.reason) for one in drains])


def print_history(verdicts: Sequence[Verdict], now: datetime, *, as_json: bool) -> None:
    if as_json:
        print_json([_said(one) for one in verdicts])
        return
    rows = [(_at(one), one.phase.value, one.job_id or "-", one.decision.value, _first_words(one)) for one in verdicts]
    print_table(("AT", "PHASE", "JOB", "DECISION", "WHY"), rows, folds=("WHY",))


def finding_value(finding: Finding) -> dict[str, Any]:
    """The keys of a finding; docs/json.md describes them."""
    return {**finding._asdict(), "care": finding.care.name.lower()}


def _node(node: str, state: State, verdict: Verdict | None, now: datetime, trouble: str) -> dict[str, Any]:
    moment = moment_of(verdict)
    return {
        "node": node,
        "state": state.value,
        "age_s": moment and (now - moment).total_seconds(),
        "covers": None if verdict is None else _covers(verdict),
        "trouble": trouble or None,
        **(_said(verdict) if verdict is not None else dict.fromkeys(_SAID)),
    }


_SAID = ("at", "phase", "job_id", "decision", "reason", "passed", "took_s", "boot_id", "usage", "findings")


def _said(verdict: Verdict) -> dict[str, Any]:
    moment = moment_of(verdict)
    values = verdict._asdict() | {
        "at": moment and moment.isoformat(),
        "reason": verdict.reason or None,
        "findings": [finding_value(one) for one in verdict.findings],
    }
    return {key: values[key] for key in _SAID}


def _covers(verdict: Verdict) -> str:
    return "node" if verdict.phase in _WHOLE else "job"


def _row(state: State, said: NodeSaid, now: datetime) -> tuple[str, ...]:
    if said.latest is None:
        return (said.node, state.value, "", "", said.trouble)
    return (said.node, state.value, _age(said.latest, now), _looked_at(said.latest), _first_words(said.latest))


def _looked_at(verdict: Verdict) -> str:
    part = f" {verdict.job_id}" if verdict.job_id else ""
    return "node" if verdict.phase in _WHOLE else f"GPUs of job{part}"


def _first_words(verdict: Verdict) -> str:
    if verdict.reason:
        return verdict.reason
    worst = sorted(verdict.findings, key=lambda one: -one.care)
    more = f" (+{len(worst) - 1} more)" if len(worst) > 1 else ""
    return finding_line(worst[0]) + more if worst else ""


def _fields(node: str, state: State, verdict: Verdict, now: datetime) -> list[tuple[str, str]]:
    fields = [
        ("node", node),
        ("state", state.value),
        ("said", f"{_at(verdict)} ({_age(verdict, now)} ago)"),
        ("phase", f"{verdict.phase.value}, {_looked_at(verdict)}"),
        ("decision", verdict.decision.value),
        *_why(verdict),
        ("passed", f"{verdict.passed} checks in {verdict.took_s:.1f} s"),
    ]
    return [*fields, ("not passed", str(len(verdict.findings)))]


def _why(verdict: Verdict) -> list[tuple[str, str]]:
    return [("reason", verdict.reason)] if verdict.reason else []


def finding_line(finding: Finding) -> str:
    """A finding in one line for a person."""
    mark = "cannot tell: " if finding.outcome is Outcome.CANNOT_TELL else ""
    named = "" if finding.subject in ("", "node") or finding.subject in finding.words else f"{finding.subject}: "
    return f"{finding.care.name.lower()}: {mark}{named}{finding.words} [{finding.check}]"


def _at(verdict: Verdict) -> str:
    moment = moment_of(verdict)
    return "?" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%SZ")


def _age(verdict: Verdict, now: datetime) -> str:
    return age_of(moment_of(verdict), now) or "?"
