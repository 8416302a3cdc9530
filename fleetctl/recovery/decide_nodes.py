"""Which nodes runs are kept off, and which are taken from everybody. Pure.

A node is drained after a pattern over different runs, never after one event; somebody else's word on a node stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from msgspec import Struct

from fleetctl.errors import UsageError
from fleetctl.health.decide import PREFIX
from fleetctl.recovery.budget import advice_of, cause_of, is_free
from fleetctl.recovery.ground import DRAINED, Case, Ground, is_down, is_excused, names, open_incidents, since_person
from fleetctl.recovery.model import Action, Advice, Deed, Interruption, Outcome
from fleetctl.recovery.order import note_of
from fleetctl.recovery.policy import INFRASTRUCTURE, UNEXPLAINED, Mode
from fleetctl.slurm.model import Node
from fleetctl.submission.decide_nodes import Need, check_exclusion

BAD_CONSTRAINTS = "BadConstraints"  # it can never start so (squeue.1, JOB REASON CODES)
# slurmctld's own word for a node that it lost is nobody's (as in health.tell)
_NOBODYS = frozenset({"", "Not responding"})
_ELSEWHERE = frozenset({Advice.ELSEWHERE, Advice.DRAIN})
_MOST_SAID = 5


class Fleet(Struct, frozen=True):
    """What the interruptions of all runs say of nodes. `lemons`: node -> the interruptions that blame it, a pattern;
    `holes`: nodes on which jobs of several runs ended soon after their start."""

    lemons: dict[str, tuple[Interruption, ...]]
    holes: frozenset[str]
    silent: frozenset[str] = frozenset()  # runs whose heads fell silent together


def fleet(on: Ground, silent: frozenset[str] = frozenset()) -> Fleet:
    policy, at = on.policy, on.snapshot.at
    blamed: dict[str, list[Interruption]] = {}
    quick: dict[str, set[str]] = {}
    for key in sorted(on.interruptions):
        for one in on.interruptions[key]:
            if is_free(one) or is_excused(on, one):
                continue
            for node in blamed_nodes(one) if at - one.at <= timedelta(seconds=policy.pattern_s) else ():
                blamed.setdefault(node, []).append(one)
            if _is_quick(one, on):
                for node in one.nodes:
                    quick.setdefault(node, set()).add(_whose(one, on))
    lemons = {node: tuple(ones) for node, ones in sorted(blamed.items()) if _is_pattern(ones, on)}
    holes = {node for node, whose in quick.items() if len(whose) >= policy.black_hole_runs}
    return Fleet(lemons, frozenset(holes) if len(holes) <= _most_holes(on) else frozenset(), silent)


def blamed_nodes(one: Interruption, advice: Advice | None = None) -> frozenset[str]:
    """The nodes that the likeliest cause names, where it asks for others; `advice` is what it asks for by now."""
    first = cause_of(one)
    if (advice or first.advice) not in _ELSEWHERE:
        return frozenset()
    return frozenset(cause.node for cause in one.causes if cause.cause is first.cause and cause.node)


def suspects(case: Case, on: Ground, known: Fleet) -> frozenset[str]:
    """Nodes that this run is to be kept off, and is not yet kept off, as far as enough others are left."""
    at, limit = on.snapshot.at, timedelta(seconds=on.policy.exclusion_s)
    mine = since_person(case, on.interruptions.get(case.key, ()))
    recent = [one for one in reversed(mine) if at - one.at <= limit]
    now = [advice_of(case, on, one) if one is mine[-1] else None for one in recent]
    blamed = [node for one, advice in zip(recent, now, strict=True) for node in sorted(blamed_nodes(one, advice))]
    wanted = dict.fromkeys([*blamed, *sorted(known.lemons), *sorted(known.holes)])
    incident = {node for one in open_incidents(on.memory) for node in one.nodes}
    stand = frozenset(node for job in case.jobs for node in names(job.excluded_nodes))
    chosen: frozenset[str] = frozenset()
    for node in wanted:
        if node in on.nodes and node not in stand | incident and enough_left(case, on, chosen | {node}):
            chosen |= {node}
    return chosen


def enough_left(case: Case, on: Ground, more: frozenset[str], less: frozenset[str] = frozenset()) -> bool:
    """Whether the run can start somewhere with these nodes excluded too."""
    needs = [
        Need(
            nodes=job.node_count or case.facts.nodes,
            partitions=frozenset(filter(None, job.partition.split(","))),
            excluded=(frozenset(names(job.excluded_nodes)) | more) - less,
        )
        for job in case.jobs
    ] or [Need(case.facts.nodes, frozenset(), more)]
    if more <= on.nodes.keys() and _is_plenty(needs, on):
        return True
    try:
        check_exclusion(more, needs, tuple(on.nodes.values()))
    except UsageError:
        return False
    return True


def _is_plenty(needs: Sequence[Need], on: Ground) -> bool:
    """Whether there are so many nodes that none needs to be counted by name."""
    excluded, wanted = sum(len(need.excluded) for need in needs), sum(need.nodes for need in needs)
    there = [max((on.usable.get(name, 0) for name in need.partitions), default=on.usable.get("", 0)) for need in needs]
    return min(there) - excluded >= wanted


def ours(case: Case, on: Ground) -> frozenset[str]:
    """Nodes that the run's job stays off because of us alone, as it was noted when they were excluded."""
    stand = {node for job in case.jobs for node in names(job.excluded_nodes)}
    return frozenset(names(on.memory.notes.get(note_of(case.key), ""))) & stand


def outlived(case: Case, on: Ground) -> frozenset[str]:
    """Exclusions of ours that have had their time, or with which the job cannot start at all."""
    mine = ours(case, on)
    if any(job.reason == BAD_CONSTRAINTS for job in case.jobs) and enough_left(case, on, frozenset(), mine):
        return mine
    young = {
        node
        for entry in on.done.get(case.key, ())
        if entry.outcome is Outcome.DONE and on.age_s(entry) <= on.policy.exclusion_s
        for node in entry.action.nodes
    }
    return mine - young


def drains(on: Ground, known: Fleet) -> tuple[Action, ...]:
    """Drain lemons where we may, else tell of them; nodes with a word on them already are left alone."""
    found = []
    for node, ones in known.lemons.items():
        there = on.nodes.get(node)
        if there is None or there.flags & DRAINED or is_down(on, node):
            continue
        deed = Deed.DRAIN if on.policy.may_drain else Deed.TELL
        runs = sorted({one.key for one in ones})
        shown = ", ".join(runs[:_MOST_SAID]) + (" ..." if len(runs) > _MOST_SAID else "")
        found.append(
            Action(
                deed,
                key="",
                start="",
                why=f"{node} is blamed for {len(ones)} interruptions of {len(runs)} runs ({shown})",
                rule="lemon",
                evidence=tuple(cause_of(one).evidence for one in ones[-_MOST_SAID:]),
                nodes=(node,),
            )
        )
    return tuple(found)


def set_downs(on: Ground, cases: Iterable[Case]) -> tuple[Action, ...]:
    """Dead nodes that Slurm does not call DOWN yet: its own requeue waits for that."""
    of_node: dict[str, list[Case]] = {}
    for case in cases:
        for node in case.look.unresponsive:
            if node in on.snapshot.proved_dead:
                of_node.setdefault(node, []).append(case)
    return tuple(
        Action(
            Deed.SET_DOWN,
            key="",
            start=f"{node}: {', '.join(case.start for case in held)}",
            why=f"{node} is proved dead, and Slurm goes on with {_shown(held)} once it calls it DOWN",
            rule="proved_dead",
            nodes=(node,),
        )
        for node, held in sorted(of_node.items())
        if on.policy.may_drain
    )


def _shown(cases: Sequence[Case]) -> str:
    return ", ".join(case.key for case in cases[:_MOST_SAID]) + (" ..." if len(cases) > _MOST_SAID else "")


def why_no_drain(on: Ground, node: str, emitted: Sequence[Action]) -> str:
    """Why this node is not drained by us; "": it may be."""
    there = on.nodes.get(node)
    if there is None:
        return f"Slurm does not list {node}"
    if is_foreign(there):
        return f"somebody else has a word on {node}: {there.reason}"
    if there.flags & DRAINED or is_down(on, node):
        return f"{node} is closed already"
    if on.snapshot.findings is None:
        return "the findings of the node checks are not known"
    if any(node in one.nodes for one in open_incidents(on.memory)):
        return f"{node} belongs to an incident"
    return _why_over_cap(on, emitted)


def _why_over_cap(on: Ground, emitted: Sequence[Action]) -> str:
    now = sum(action.deed is Deed.DRAIN for action in emitted)
    recent = [entry for entry in on.done.get("", ()) if entry.action.deed is Deed.DRAIN and on.age_s(entry) < 3600]
    counted = sum(entry.outcome in on.policy.standing for entry in recent) + now
    if counted >= on.policy.drains_per_hour:
        return f"{counted} nodes were drained within the last hour, the most that are"
    most = max(1, int(on.policy.drain_share * len(on.nodes)))
    closed = sum(_is_ours(node) for node in on.nodes.values()) + now
    return f"{closed} nodes are drained by us, the most of {len(on.nodes)} that may be" if closed >= most else ""


def is_foreign(node: Node) -> bool:
    return node.reason not in _NOBODYS and not node.reason.startswith(PREFIX)


def _is_ours(node: Node) -> bool:
    return bool(node.flags & DRAINED) and node.reason.startswith(PREFIX)


def why_not_down(on: Ground, node: str) -> str:
    """Why this node is not set DOWN by us; "": it may be."""
    there = on.nodes.get(node)
    if there is None:
        return f"Slurm does not list {node}"
    if node not in on.snapshot.proved_dead:
        return f"the death of {node} is not proved"
    if "NOT_RESPONDING" not in there.flags or is_down(on, node):
        return f"Slurm reaches {node}, or calls it DOWN already"
    if is_foreign(there):
        return f"somebody else has a word on {node}: {there.reason}"
    return ""


def _is_pattern(ones: list[Interruption], on: Ground) -> bool:
    policy = on.policy
    return len(ones) >= policy.pattern_interruptions and len({_whose(one, on) for one in ones}) >= policy.pattern_runs


def _whose(one: Interruption, on: Ground) -> str:
    """What makes two interruptions independent. For the whole cluster these are users: one alone writes all of his
    runs' records, and could blame whatever node he likes."""
    run = one.key.partition("/")[0]
    return one.user or run if on.policy.mode is Mode.OPERATOR else run


def _is_quick(one: Interruption, on: Ground) -> bool:
    """An end soon after the start that the node could explain, and the program does not."""
    first, age_s = cause_of(one), (on.snapshot.at - one.at).total_seconds()
    if first.advice is Advice.STOP or first.cause not in INFRASTRUCTURE | UNEXPLAINED:
        return False
    return age_s <= on.policy.black_hole_s and one.ran_s is not None and one.ran_s <= on.policy.quick_s


def _most_holes(on: Ground) -> int:
    """Where jobs fail soon on many nodes, it is not the nodes."""
    return max(1, len(on.nodes) // 4)
