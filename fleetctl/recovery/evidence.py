"""What is looked into when an attempt has ended: accounting's records, what it printed, its nodes. Some runs a pass."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from msgspec.structs import replace

from fleetctl.errors import FleetctlError
from fleetctl.recovery.kept import Seen
from fleetctl.recovery.model import Evidence, RunSeen, Snapshot
from fleetctl.recovery.mounts import Question
from fleetctl.recovery.read_wire import AskLog, Told, ToldLog
from fleetctl.recovery.seldom import MOST_CALLS
from fleetctl.recovery.sources import Sources
from fleetctl.rundir.model import Attempt
from fleetctl.slurm.model import JobId, JobRecord
from fleetctl.submission.decide_nodes import hosts
from fleetctl.submission.decide_requeue import Phase, phase

RECORDS = "accounting"
_BEFORE = timedelta(hours=1)  # an attempt began: clocks differ, and its job began before
_RECORD_COMES = timedelta(seconds=20)  # slurmctld sends an end at once, and slurmdbd stores it within seconds
_LOST = frozenset({"DOWN", "FUTURE", "ERROR"})


def gather_evidence(
    sources: Sources, seen: Seen, snapshot: Snapshot, wanted: Mapping[str, str]
) -> tuple[Snapshot, Seen]:
    """The snapshot, with the evidence of the attempts in `wanted` (the run's key -> the attempt's name) that can be had
    now. What is left out comes in a later pass: so many at once, and accounting only while Slurm was not asked four
    times in this one.
    """
    cases = [(run, attempt) for run in snapshot.runs or () if (attempt := _attempt(run, wanted)) is not None]
    cases = cases[: sources.limits.evidence_runs]
    if not cases:
        return snapshot, replace(seen, owes_records=False)
    if seen.calls == MOST_CALLS:  # more only in the first pass, which asks for everything
        return snapshot, replace(seen, owes_records=True)
    records, trouble = _records(sources, cases)
    logs = sources.readers.ask([_question(sources, seen, run, attempt) for run, attempt in cases])
    found: dict[str, Evidence] = {}
    for (run, attempt), told in zip(cases, logs, strict=True):
        mine = None if records is None else _of_run(records, run, attempt)
        if mine is None or _is_whole(mine, run, attempt, snapshot):
            found[run.key] = _evidence(run, attempt, mine, told, snapshot, seen)
    runs = tuple(replace(run, evidence=found.get(run.key)) if run.key in found else run for run in snapshot.runs or ())
    failed = {**snapshot.failed, **({RECORDS: trouble} if trouble else {})}
    return replace(snapshot, runs=runs, failed=failed), replace(seen, owes_records=False, calls=seen.calls + 1)


def _attempt(run: RunSeen, wanted: Mapping[str, str]) -> Attempt | None:
    name = wanted.get(run.key)
    if name is None or run.facts is None:
        return None
    found = [one for one in run.facts.history.attempts if one.task == run.task and one.name == name]
    return found[-1] if found else None


def _records(sources: Sources, cases: Sequence[tuple[RunSeen, Attempt]]) -> tuple[tuple[JobRecord, ...] | None, str]:
    """What accounting knows of their jobs; None: it was not heard, and why."""
    ids = [job_id for _, attempt in cases if (job_id := _job_id(attempt)) is not None]
    since = min(attempt.started_at for _, attempt in cases) - _BEFORE
    if not ids:
        return (), ""
    try:
        return sources.slurm.history(since=since, ids=ids), ""
    except FleetctlError as error:
        return None, error.message


def _job_id(attempt: Attempt) -> JobId | None:
    try:
        return JobId.parse(attempt.job_id)
    except ValueError:  # its user's words
        return None


def _of_run(records: Iterable[JobRecord], run: RunSeen, attempt: Attempt) -> tuple[JobRecord, ...]:
    """Those of the attempt's job, its element and its user, the oldest first."""
    wanted = _job_id(attempt)
    mine = [
        one
        for one in records
        if wanted is not None
        and (one.id.base, one.id.array_index) == (wanted.base, wanted.array_index)
        and one.user in ("", run.user)
    ]
    return tuple(sorted(mine, key=lambda one: (one.submit_time is None, one.submit_time, one.id)))


def _is_whole(records: Sequence[JobRecord], run: RunSeen, attempt: Attempt, snapshot: Snapshot) -> bool:
    """Whether the end of the attempt's start can be in the records by now."""
    if all(phase(job.state) is Phase.LIVES for job in run.jobs or ()) and run.jobs:
        return True  # its job goes on
    if attempt.ended_at is None or snapshot.at - attempt.ended_at > _RECORD_COMES:
        return True
    began = attempt.started_at - _BEFORE
    return any(one.end_time is not None and one.end_time >= began and one.state.is_terminal for one in records)


def _question(sources: Sources, seen: Seen, run: RunSeen, attempt: Attempt) -> Question:
    limits, path = sources.limits, os.fsencode(run.path)
    known = seen.runs.get(run.path)
    ask = AskLog(path, run.user, run.task, attempt.name, limits.log_first_bytes, limits.log_last_bytes)
    return Question(ask, known.real if known is not None and known.real else path)


def _evidence(
    run: RunSeen,
    attempt: Attempt,
    records: tuple[JobRecord, ...] | None,
    told: Sequence[Told],
    snapshot: Snapshot,
    seen: Seen,
) -> Evidence:
    log = told[-1] if told and isinstance(told[-1], ToldLog) else None
    nodes = _names(attempt.nodes)
    return Evidence(
        attempt=attempt.name,
        records=records,
        log=None if log is None else log.data,
        log_is_whole=log is not None and log.is_whole,
        failed_nodes=tuple(sorted(_failed_nodes(run, attempt, snapshot, seen, nodes))),
        findings=tuple(one for one in snapshot.findings or () if one.node in nodes),
    )


def _failed_nodes(
    run: RunSeen, attempt: Attempt, snapshot: Snapshot, seen: Seen, nodes: frozenset[str]
) -> frozenset[str]:
    """Of the attempt's nodes, those that its head lost, and those that Slurm does not reach."""
    known = seen.runs.get(run.path)
    told = (
        set()
        if known is None or known.read is None
        else {node for task, name, node in known.read.lost if (task, name) == (run.task, attempt.name)}
    )
    if run.pulse is not None and run.pulse.attempt == attempt.name:
        told |= set(run.pulse.lost_nodes)
    silent = {
        node.name
        for node in snapshot.nodes or ()
        if node.name in nodes and ("NOT_RESPONDING" in node.flags or node.base_state in _LOST)
    }
    return frozenset(told & nodes if nodes else told) | silent


def _names(text: str) -> frozenset[str]:
    try:
        return hosts(text)
    except ValueError:  # its user's words
        return frozenset()
