"""What one pass sees: Slurm's jobs first, then the folders of the runs, so that no record is older than its job's row.

A source that fails is None in the snapshot, never empty, and says why. Whatever the size of the fleet, a pass asks
Slurm at most four things: the starts of jobs (two queries), the nodes, and what is asked seldom, or accounting.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from msgspec.structs import replace

from fleetctl.errors import FleetctlError
from fleetctl.recovery.kept import Seen
from fleetctl.recovery.model import Finding, RunSeen, Snapshot
from fleetctl.recovery.mounts import Question
from fleetctl.recovery.read_wire import AskFindings, Failed, ToldFindings
from fleetctl.recovery.seldom import CONTROLLER, MAINTENANCE, ask_seldom, with_gpus
from fleetctl.recovery.sources import Sources
from fleetctl.recovery.watch_runs import watch
from fleetctl.slurm.model import Node
from fleetctl.submission.decide_nodes import hosts
from fleetctl.submission.decide_requeue import Phase, phase

JOBS, NODES, FINDINGS, RUNS = "jobs", "nodes", "findings", "runs"
_ALL_FINDINGS = timedelta(hours=1)  # clocks of file servers differ: so often every node's word is read again
_SLACK = timedelta(minutes=5)
_KEEP_FINDINGS = timedelta(days=7)
_GONE = frozenset({"DOWN"})
_ALL = "all findings"  # in Seen.asked_at

Value = TypeVar("Value")


def observe(sources: Sources, before: Seen, at: datetime) -> tuple[Snapshot, Seen]:
    """One pass. Never raises for what Slurm, a file system or a user brings about.

    `before` is what the pass before returned, Seen() in the first one.
    """
    failed: dict[str, str] = {}
    user = sources.user if sources.root is not None else None
    jobs = _heard(lambda: sources.slurm.starts(user=user), JOBS, failed)
    nodes = _heard(sources.slurm.nodes, NODES, failed)
    watched, seen = watch(sources, replace(before, calls=3), jobs, at)
    if watched.trouble:
        failed[RUNS] = watched.trouble
    seen = ask_seldom(sources, seen, watched.runs or (), at, away=jobs is None or nodes is None)
    failed |= {name: seen.troubles[name] for name in (MAINTENANCE, CONTROLLER) if name in seen.troubles}
    findings, seen = _findings(sources, seen, at, failed)
    seen = _proved(sources, seen, watched.runs or (), nodes)
    snapshot = Snapshot(
        at=at,
        cluster=sources.cluster,
        runs=None if watched.runs is None else with_gpus(watched.runs, seen),
        nodes=nodes,
        findings=findings,
        maintenance=seen.maintenance,
        switches=sources.switches,
        controller_since=seen.controller_since,
        proved_dead=seen.dead,
        failed=failed,
    )
    return snapshot, seen


def _heard(ask: Callable[[], Value], source: str, failed: dict[str, str]) -> Value | None:
    try:
        return ask()
    except FleetctlError as error:
        failed[source] = error.message
        return None


def _findings(
    sources: Sources, seen: Seen, at: datetime, failed: dict[str, str]
) -> tuple[tuple[Finding, ...] | None, Seen]:
    """What the checks of nodes last found; None: nobody knows. Without a shared folder there is nobody to ask."""
    if sources.shared is None:
        return None, seen
    read_at = seen.asked_at.get(FINDINGS)
    if read_at is None or not read_at <= at < read_at + sources.limits.findings:
        seen = _read_findings(sources, seen, sources.shared, at)
    if FINDINGS in seen.troubles or seen.findings is None:
        failed[FINDINGS] = seen.troubles.get(FINDINGS, "not read yet")
        return None, seen
    oldest, newest = at - _KEEP_FINDINGS, at + sources.limits.future
    return tuple(one for ones in seen.findings.values() for one in ones if oldest <= one.at <= newest), seen


def _read_findings(sources: Sources, seen: Seen, shared: str, at: datetime) -> Seen:
    """Only what has changed since, but for once an hour."""
    all_at, read_at = seen.asked_at.get(_ALL), seen.asked_at.get(FINDINGS)
    whole = all_at is None or read_at is None or not all_at <= at < all_at + _ALL_FINDINGS or seen.findings is None
    since_ns = 0 if whole or read_at is None else int((read_at - _SLACK).timestamp() * 1e9)
    ask = AskFindings(os.fsencode(shared), since_ns)
    ((*parts, last),) = sources.readers.ask([Question(ask, ask.path + b"/-")])
    asked_at = {**seen.asked_at, FINDINGS: at, **({_ALL: at} if whole else {})}
    if isinstance(last, Failed):
        troubles: Mapping[str, str] = {**seen.troubles, FINDINGS: f"{shared}: {last.why}"}
        return replace(seen, asked_at=asked_at, findings=None, troubles=troubles)
    found = {} if whole or seen.findings is None else dict(seen.findings)
    for part in (*parts, last):
        found |= dict(part.nodes) if isinstance(part, ToldFindings) else {}
    troubles = {name: why for name, why in seen.troubles.items() if name != FINDINGS}
    kept = {node: ones for node, ones in found.items() if ones}
    return replace(seen, asked_at=asked_at, findings=kept, troubles=troubles)


def _proved(sources: Sources, seen: Seen, runs: Iterable[RunSeen], nodes: Sequence[Node] | None) -> Seen:
    """With the nodes of watched runs that the site's fence command proves dead. It is asked again for each one that has
    been heard since."""
    if nodes is None:  # one may have come back meanwhile
        return replace(seen, dead=frozenset())
    silent = {node.name for node in nodes if "NOT_RESPONDING" in node.flags or node.base_state in _GONE}
    dead = seen.dead & silent
    asked = sorted((silent - dead) & _nodes_of(runs)) if silent - dead else []
    return replace(seen, dead=dead | sources.prove_dead(asked) if asked else dead)


def _nodes_of(runs: Iterable[RunSeen]) -> frozenset[str]:
    """The nodes that watched runs hold, by Slurm's word alone: a fence may switch off what is another's by now."""
    rows = [job for run in runs for job in run.jobs or () if phase(job.state) is not Phase.ENDED]
    lists = {job.node_list for job in rows}
    found: set[str] = set()
    for text in lists:
        try:
            found |= hosts(text)
        except ValueError:
            continue
    return frozenset(found)
