"""`fleetctl daemon explain`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from fleetctl.cli.account_options import Place as DatabasePlace
from fleetctl.cli.account_options import opened
from fleetctl.cli.context import app
from fleetctl.cli.daemon_options import Which, key_of, place_of, which_options
from fleetctl.cli.output import json_option, one_line, print_json
from fleetctl.cli.runs import complete_run

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from fleetctl.recovery.lease import Place
    from fleetctl.recovery.model import Done, Incident, Verdict
    from fleetctl.recovery.recall import Recovered


ADVICE = {  # fleetctl.recovery.model.Advice, in words
    "same": "start it again",
    "elsewhere": "start it again, on other nodes",
    "drain": "start it again, and let nobody use that node",
    "older": "start it again from an older checkpoint",
    "stop": "do not start it again before its user has mended it",
    "slurm": "leave it to Slurm",
    "never": "do not bring it back",
    "earlier": "look at what came before it",
}


@click.command("explain")
@click.argument("run", metavar="[RUN]", required=False, shell_complete=complete_run)
@which_options
@json_option
def command(run: str | None, which: Which, place: DatabasePlace, as_json: bool) -> int:
    """What was seen of one run, what was decided and why, what was done, and what came of it.

    RUN is a run's id, with /INDEX for an element of a sweep; without one, what was done about nodes and all runs
    together. It reads the database alone.

    \b
    Example:
      fleetctl daemon explain RUN
      fleetctl daemon explain SWEEP/3 --json
    """
    from fleetctl.recovery.recall import heard

    here = app()
    key = key_of(here, run, which) if run else ""
    with opened(place) as engine:
        now = here.clock.now()
        told = told_of(engine, heard(engine, place_of(engine, which), now), key, now)
    if as_json:
        print_json(told_json(key, told))
    else:
        for line in sentences(key, told):
            click.echo(one_line(line))
    return 0


class Told:
    """What the journal has of one run."""

    def __init__(
        self,
        verdict: tuple[datetime, Verdict] | None,
        interruptions: tuple[Recovered, ...],
        done: tuple[Done, ...],
        paused: str,
        incidents: tuple[Incident, ...],
        way: str,
    ) -> None:
        self.verdict, self.interruptions, self.done = verdict, interruptions, done
        self.paused, self.incidents = paused, incidents
        self.way = way  # what `daemon resume` is given to end the pause


def told_of(engine: Engine, place: Place, key: str, now: datetime) -> Told:
    from fleetctl.recovery import recall

    memory = recall.memory(engine, place, now)
    return Told(
        verdict=recall.verdict_of(engine, place, key),
        interruptions=recall.interruptions_of(engine, place, key),
        done=recall.done_of(engine, place, key),
        paused=memory.paused_runs.get(key) or memory.paused_by,
        incidents=tuple(one for one in memory.incidents if one.until is None and (not key or key in one.keys)),
        way=f" {key}" if key in memory.paused_runs else "",
    )


def sentences(key: str, told: Told) -> list[str]:
    """The reasoning, the oldest first, the verdict that stands last."""
    if told.verdict is None and not (told.interruptions or told.done or told.incidents):
        if not key:
            return ["Nothing was decided about nodes, or about all runs together."]
        return [f"The daemon knows nothing of {key}: it has not seen it, or has forgotten it."]
    moments: list[tuple[datetime, list[str]]] = []
    for one in told.interruptions:
        moments.append((one.interruption.at, _interrupted(one)))
        if one.at is not None:
            moments.append((one.at, [_recovered(one)]))
    moments += [(done.at, _did(done)) for done in told.done]
    lines = list[str]()
    for at, said in sorted(moments, key=lambda moment: moment[0]):
        lines += [f"{_time(at)}  {said[0]}", *(f"                     {more}" for more in said[1:])]
    if told.paused:
        lines.append(f"Paused by {told.paused}: nothing is done until `fleetctl daemon resume{told.way}`.")
    lines += [
        f"An incident ({one.kind} {one.subject}, {_runs(len(one.keys))}): nothing is done until it ends."
        for one in told.incidents
    ]
    if told.verdict is not None:
        at, verdict = told.verdict
        lines.append(f"Since {_time(at)}: {verdict.why} [{verdict.rule}]")
    return lines


def _runs(number: int) -> str:
    return f"{number} run{'' if number == 1 else 's'}"


def _time(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}"


def _interrupted(one: Recovered) -> list[str]:
    found = one.interruption
    step = "no checkpoint" if found.progress_step is None else f"checkpoint at training step {found.progress_step}"
    ran = "" if found.ran_s is None else f" after {found.ran_s:.0f} s"
    lines = [f"Attempt {found.attempt} ended{ran} on {', '.join(found.nodes) or 'nodes unknown'}; {step}."]
    for number, cause in enumerate(found.causes):
        word = "Likeliest cause" if number == 0 else "Or"
        node = f" on {cause.node}" if cause.node else ""
        name, advice = cause.cause.value.replace("_", " "), ADVICE[cause.advice.value]
        lines.append(f"{word}: {name}{node}, by {cause.evidence}. Advice: {advice}.")
    return lines if found.causes else [*lines, "No cause is known."]


def _recovered(one: Recovered) -> str:
    if one.cost is None:
        return f"Attempt {one.interruption.attempt}'s successor has passed its checkpoint: recovered."
    parts = (
        ("found after", one.cost.detection_s),
        ("restarted in", one.cost.restart_s),
        ("lost work", one.cost.lost_s),
    )
    said = ", ".join(f"{name} {'unknown' if value is None else f'{value:.0f} s'}" for name, value in parts)
    return f"The run has passed the checkpoint it resumed from: recovered ({said})."


def _did(done: Done) -> list[str]:
    action = done.action
    nodes = f" {', '.join(action.nodes)}" if action.nodes else ""
    step = "" if action.at_most_step is None else f" to training step {action.at_most_step}"
    outcome = {"observed": "would be done (only observing)", "open": "begun; its outcome is not known yet"}
    said = outcome.get(done.outcome.value, done.outcome.value)
    lines = [f"Decided: {action.deed.value.replace('_', ' ')}{nodes}{step}, since {action.why} [{action.rule}]."]
    lines += [f"Evidence: {text}" for text in action.evidence]
    return [*lines, f"Outcome: {said}{f': {done.detail}' if done.detail else ''}."]


def told_json(key: str, told: Told) -> dict[str, Any]:
    import msgspec

    from fleetctl.recovery.passes import done_json, incident_json, interruption_json

    return {
        "run_id": key or None,
        "paused": told.paused or None,
        "verdict": None
        if told.verdict is None
        else {"since": told.verdict[0].isoformat(), "rule": told.verdict[1].rule, "why": told.verdict[1].why},
        "interruptions": [
            {
                **interruption_json(one.interruption),
                "recovered_at": one.at.isoformat() if one.at else None,
                "cost": msgspec.to_builtins(one.cost) if one.cost else None,
            }
            for one in told.interruptions
        ],
        "actions": [done_json(one) for one in told.done],
        "incidents": [incident_json(one) for one in told.incidents],
    }
