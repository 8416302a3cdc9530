"""`fleetctl daemon status`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from fleetctl.cli.account_options import Place as DatabasePlace
from fleetctl.cli.account_options import opened
from fleetctl.cli.context import app
from fleetctl.cli.daemon_options import Which, place_of, which_options
from fleetctl.cli.output import json_option, print_fields, print_json

if TYPE_CHECKING:
    from fleetctl.recovery.model import Memory

_SHOWN = 8  # of each kind: one screen
_BLIND_EXIT_CODE = 3
_LATE_S = 5 * 60.0  # recall.LATE


@click.command("status")
@which_options
@json_option
def command(which: Which, place: DatabasePlace, as_json: bool) -> int:
    """What the last pass saw, decided and did, on one screen.

    It reads the database alone. Exit code 3: the last pass was blind, is older than five minutes, or there is none.

    \b
    Example:
      fleetctl daemon status
      fleetctl daemon status --operator --json
    """
    from fleetctl.recovery import recall
    from fleetctl.recovery.lease import who_leads

    now = app().clock.now()
    with opened(place) as engine:
        meant = recall.heard(engine, place_of(engine, which), now)
        found, leader = recall.last_pass(engine, meant), who_leads(engine, meant)
        memory = recall.memory(engine, meant, now)
    at, told = found if found is not None else (None, dict[str, Any]())
    age_s = None if at is None else max(0.0, (now - at).total_seconds())
    answer = {
        "cluster": meant.cluster,
        "scope": meant.scope,
        "leader": leader or None,
        "age_s": None if age_s is None else round(age_s, 1),
        "paused": memory.paused_by or None,
        "paused_runs": dict(memory.paused_runs),
        "last_pass": told or None,
    }
    if as_json:
        print_json(answer)
    else:
        print_fields(_fields(answer, told, memory, at))
    is_well = age_s is not None and age_s < _LATE_S and not told.get("blind", True)
    return 0 if is_well else _BLIND_EXIT_CODE


def _fields(
    answer: Mapping[str, Any], told: Mapping[str, Any], memory: Memory, at: datetime | None
) -> list[tuple[str, str]]:
    fields = [
        ("daemon", f"{answer['scope']} on {answer['cluster']}"),
        ("leader", answer["leader"] or "nobody: no daemon runs now"),
    ]
    if memory.paused_by:
        fields.append(("paused", memory.paused_by))
    fields += [("paused run", f"{key}: {why}") for key, why in sorted(memory.paused_runs.items())[:_SHOWN]]
    if at is None:
        return [*fields, ("last pass", "none yet")]
    fields.append(("last pass", f"{at.astimezone():%Y-%m-%d %H:%M:%S}, {_age(answer['age_s'])} ago: {_took(told)}"))
    if answer["age_s"] >= _LATE_S:
        fields.append(("late", "nobody has looked since: `fleetctl daemon run`, or its unit, must run"))
    fields.append(("acts", _acts(told, memory, answer["leader"])))
    if told.get("trouble"):
        fields.append(("trouble", str(told["trouble"])))
    fields += [("not seen", f"{source}: {why}") for source, why in sorted(told.get("failed_sources", {}).items())]
    unread = told.get("unreadable_runs") or {}
    fields += [("not read", f"{key}: {why}") for key, why in sorted(unread.items())[:_SHOWN]]
    fields += _listed("incident", [_incident(one) for one in memory.incidents if one.until is None])
    fields += _listed("action", [action_words(one) for one in told.get("actions", ())])
    rules = sorted((told.get("rules") or {}).items())
    fields += [("by rule", ", ".join(f"{rule}: {_counted(number, 'run')}" for rule, number in rules))] if rules else []
    verdicts = [one for one in told.get("verdicts", ()) if not one.get("quiet")]
    return fields + _listed("run", [f"{one['run_id'] or 'the fleet'}: {one['why']}" for one in verdicts])


def _acts(told: Mapping[str, Any], memory: Memory, leader: str | None) -> str:
    if told.get("standing_by"):
        return f"no: {told['standing_by']}"
    if not told.get("acts"):
        return "no: it only observes (`fleetctl daemon run --act` acts)"
    return "no: paused, until `fleetctl daemon resume`" if memory.paused_by else "yes" if leader else "not now"


def _age(age_s: float) -> str:
    if age_s < 2 * 60:
        return f"{age_s:.0f} s"
    return f"{age_s / 60:.0f} min" if age_s < 2 * 3600 else f"{age_s / 3600:.0f} h"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _took(told: Mapping[str, Any]) -> str:
    runs = "no runs seen" if told.get("runs") is None else _counted(told["runs"], "run")
    nodes = "" if told.get("nodes") is None else f", {_counted(told['nodes'], 'node')}"
    return f"{runs}{nodes} in {told.get('took_s', 0.0):.1f} s"


def _incident(one: Any) -> str:
    return f"{one.kind} {one.subject} since {one.since.astimezone():%H:%M}: {_counted(len(one.keys), 'run')}"


def action_words(one: Mapping[str, Any]) -> str:
    """One action of a pass, as JSON has it, in words."""
    about = one.get("run_id") or ", ".join(one.get("nodes", ())) or "the fleet"
    detail = f" ({one['detail']})" if one.get("detail") else ""
    return f"{one['deed'].replace('_', ' ')} {about}: {one['outcome']}{detail}: {one['why']}"


def _listed(name: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    shown = [(name if number == 0 else "", line) for number, line in enumerate(lines[:_SHOWN])]
    return shown + ([("", f"({len(lines) - _SHOWN} more: --json has them)")] if len(lines) > _SHOWN else [])
