"""Many failures at once are one incident: everything pauses until it is quiet again, or a person says so. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from fleetctl.recovery.budget import cause_of, is_free
from fleetctl.recovery.ground import Ground, open_incidents
from fleetctl.recovery.model import Action, CauseClass, Deed, Incident, Interruption
from fleetctl.recovery.policy import Mode
from fleetctl.slurm.model import Node

CLASS, SWITCH = "class", "switch"
_MOST_SAID = 5


def incidents(on: Ground) -> tuple[Incident, ...]:
    """Those that begin now, grow, or end now."""
    standing = {(one.kind, one.subject): one for one in open_incidents(on.memory)}
    found = {(one.kind, one.subject): one for one in (*_of_classes(on), *_of_switches(on))}
    changed = []
    for name in sorted(standing.keys() | found.keys()):
        before, now = standing.get(name), found.get(name)
        if before is None and now is not None:
            if not _was_ended_since(on, now):
                changed.append(now)
        elif before is not None:
            after = _grown(before, now) if now is not None else _after(before, on)
            changed += [after] if after != before else []
    return tuple(changed)


def pause(one: Incident) -> Action:
    """The one thing that a person is told of an incident."""
    what = f"{len(one.keys)} runs failed in one way ({one.subject})" if one.kind == CLASS else _of_switch(one)
    shown = (*one.keys, *one.nodes)[:_MOST_SAID]
    return Action(
        Deed.PAUSE,
        key="",
        start=f"{one.kind}:{one.subject}/{one.since.isoformat()}",
        why=f"{what}: nothing is done until that is over, or a person resumes",
        rule=f"incident_{one.kind}",
        evidence=shown,
    )


def _of_switch(one: Incident) -> str:
    return f"{len(one.nodes)} nodes of {one.subject} went at once"


def _of_classes(on: Ground) -> list[Incident]:
    since = on.snapshot.at - timedelta(seconds=on.policy.burst_s)
    by_class: dict[CauseClass, list[Interruption]] = {}
    for ones in on.interruptions.values():
        for one in ones:
            if one.at > since and not is_free(one):
                by_class.setdefault(cause_of(one).cause, []).append(one)
    found = []
    for cause, recent in by_class.items():
        runs = {one.key.partition("/")[0] for one in recent}
        if len(runs) >= _burst(on) and _of_enough_users(recent, on):
            keys = tuple(sorted({one.key for one in recent}))
            found.append(Incident(CLASS, cause.value, max(one.at for one in recent), None, keys))
    return found


def _burst(on: Ground) -> float:
    return max(on.policy.burst_runs, on.policy.burst_share * len(on.snapshot.runs or ()))


def _of_enough_users(ones: list[Interruption], on: Ground) -> bool:
    """One user's failures do not stop everybody's recovery."""
    return on.policy.mode is Mode.OWNER or len({one.user for one in ones}) > 1


def _of_switches(on: Ground) -> list[Incident]:
    whole: dict[str, int] = {}
    lost: dict[str, list[str]] = {}
    for node, switch in on.snapshot.switches.items():
        if node in on.nodes:
            whole[switch] = whole.get(switch, 0) + 1
            if _is_lost(on.nodes[node], on):
                lost.setdefault(switch, []).append(node)
    return [
        Incident(SWITCH, switch, on.snapshot.at, None, nodes=tuple(sorted(nodes)))
        for switch, nodes in lost.items()
        if len(nodes) >= max(on.policy.switch_nodes, on.policy.switch_share * whole[switch])
    ]


def _is_lost(node: Node, on: Ground) -> bool:
    """Not reached just now; or found down for that a short while ago."""
    if "NOT_RESPONDING" not in node.flags:
        return False
    return node.reason_time is None or on.snapshot.at - node.reason_time <= timedelta(seconds=on.policy.burst_s)


def _was_ended_since(on: Ground, now: Incident) -> bool:
    """What a person, or quiet, has ended does not begin anew with what was in it."""
    ended = [i for i in on.memory.incidents if (i.kind, i.subject) == (now.kind, now.subject) and i.until is not None]
    return any(
        set(now.keys) <= set(one.keys) and set(now.nodes) <= set(one.nodes) and _recent(one.until, on) for one in ended
    )


def _recent(until: datetime | None, on: Ground) -> bool:
    return until is not None and on.snapshot.at - until <= timedelta(seconds=on.policy.burst_s + on.policy.quiet_s)


def _grown(before: Incident, now: Incident) -> Incident:
    keys = tuple(sorted({*before.keys, *now.keys}))
    return Incident(before.kind, before.subject, before.since, None, keys, tuple(sorted({*before.nodes, *now.nodes})))


def _after(before: Incident, on: Ground) -> Incident:
    """It is over when nothing of its kind has come for a while."""
    same = [
        one.at
        for ones in on.interruptions.values()
        for one in ones
        if before.kind == CLASS and cause_of(one).cause.value == before.subject
    ]
    newest = max(before.since, *same) if same else before.since
    if before.kind == SWITCH and on.snapshot.nodes is None:
        return before  # nobody says that they are back
    quiet = on.snapshot.at - newest >= timedelta(seconds=on.policy.quiet_s)
    if not quiet:
        return before
    return Incident(before.kind, before.subject, before.since, on.snapshot.at, before.keys, before.nodes)
