"""What of the database the ledgers of runs are made of. The number of queries is the same however many runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from sqlalchemy import and_, exists, or_, select

from fleetctl.accounting.model import Window
from fleetctl.accounting.read_state import read_state
from fleetctl.accounting.run_facts import AttemptFacts, InterruptionFacts, RecordFacts, RunFacts, SaveFacts
from fleetctl.accounting.tables import attempts, checkpoints, clusters, interruptions, job_records, run_jobs, runs
from fleetctl.errors import RunUnknown, UsageError
from fleetctl.rundir.model import RunKind

if TYPE_CHECKING:
    from sqlalchemy import Row, Select
    from sqlalchemy.engine import Connection

NO_TASK = -1  # of what belongs to no element of a sweep
_NAMED = 5  # runs that an error names at most


class Found(Struct, frozen=True):
    """Runs, and up to when the records of their clusters are known; 0: no sync of it has ended."""

    runs: tuple[RunFacts, ...]
    as_of_ms: Mapping[str, int]


def find_run(connection: Connection, wanted: str) -> str:
    """The id of the run with this id or job id; else of the only one whose id starts so.

    :raises RunUnknown: none, or several.
    """
    number = int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) <= 18 else None
    for is_meant in (
        runs.c.run_id == wanted,
        runs.c.run_id.in_(select(run_jobs.c.run_id).where(run_jobs.c.job_id == number)) if number is not None else None,
        runs.c.run_id.startswith(wanted, autoescape=True) if wanted else None,
    ):
        found: Sequence[str] = ()
        if is_meant is not None:
            found = connection.scalars(
                select(runs.c.run_id).where(is_meant).order_by(runs.c.run_id).limit(_NAMED)
            ).all()
        if len(found) > 1:
            raise RunUnknown(f"{wanted} can be several runs: {', '.join(found)}", remedy="give the whole id")
        if found:
            return found[0]
    raise RunUnknown(f"no run {wanted!r} in the database", remedy="`fleetctl account sync` reads the run directories")


def find_runs(
    connection: Connection, names: Sequence[str], window: Window | None, cluster_names: Sequence[str]
) -> Found:
    """These runs (as `find_run` knows them), or if none is named all with time within the window, on these clusters
    (empty: all that there are).

    :raises RunUnknown: a name is none.
    :raises UsageError: a cluster is not in the database, or a run is of none of the given ones.
    """
    states = {state.cluster: state for state in read_state(connection)}
    if missing := set(cluster_names) - set(states):
        raise UsageError(f"no cluster {min(missing)} in this database", remedy=f"it has {', '.join(states) or 'none'}")
    run_ids = tuple(dict.fromkeys(find_run(connection, name) for name in names))
    found = read_runs(connection, run_ids, window, cluster_names or tuple(states))
    for facts in found if cluster_names else ():
        if facts.cluster not in cluster_names:
            raise UsageError(f"run {facts.run_id} is of cluster {facts.cluster}", remedy="leave out --cluster")
    synced_s = {name: state.synced_s or 0 for name, state in states.items()}
    return Found(found, {facts.cluster: synced_s.get(facts.cluster, 0) * 1000 for facts in found})


def read_runs(
    connection: Connection, run_ids: Sequence[str], window: Window | None, cluster_names: Sequence[str]
) -> tuple[RunFacts, ...]:
    """The facts of these runs, or if none is given of all on these clusters with time within the window; of a sweep one
    for each element. By creation of the run and element."""
    chosen = _chosen(run_ids, window, cluster_names)
    rows = connection.execute(select(runs).where(runs.c.run_id.in_(chosen)).order_by(runs.c.created_ms, runs.c.run_id))
    records = _by_run(connection.execute(_records(chosen)))
    tried, saved, ended = (
        _by_run(connection.execute(select(table).where(table.c.run_id.in_(chosen)).order_by(*table.primary_key)))
        for table in (attempts, checkpoints, interruptions)
    )
    return tuple(
        facts
        for row in rows.all()
        for facts in _run(row, *(of.get(row.run_id, []) for of in (records, tried, saved, ended)))
    )


def _chosen(run_ids: Sequence[str], window: Window | None, cluster_names: Sequence[str]) -> Select[tuple[str]]:
    if run_ids:
        return select(runs.c.run_id).where(runs.c.run_id.in_(run_ids))
    wanted = runs.c.cluster.in_(cluster_names)
    if window is None:
        return select(runs.c.run_id).where(wanted)
    lasted = or_(job_records.c.ended_s.is_(None), job_records.c.ended_s > window.since_s)
    tried = or_(attempts.c.ended_ms.is_(None), attempts.c.ended_ms > window.since_s * 1000)
    return select(runs.c.run_id).where(
        wanted,
        runs.c.created_ms < window.until_s * 1000,
        or_(
            runs.c.run_id.in_(select(run_jobs.c.run_id).select_from(_joined()).where(lasted)),
            runs.c.run_id.in_(select(attempts.c.run_id).where(tried)),
        ),
    )


def _joined() -> Any:
    """Every record of every run's jobs."""
    is_same = and_(
        job_records.c.cluster_id == clusters.c.id,
        job_records.c.job_id == run_jobs.c.job_id,
        job_records.c.user == run_jobs.c.user,
        job_records.c.submitted_s >= run_jobs.c.since_s,
    )
    return run_jobs.join(clusters, clusters.c.name == run_jobs.c.cluster).join(job_records, is_same)


def _records(chosen: Select[tuple[str]]) -> Select[Any]:
    """Slurm gives out job ids again: a record is that of the run which had the id last before it was submitted."""
    later = run_jobs.alias()
    is_taken = exists().where(
        later.c.cluster == run_jobs.c.cluster,
        later.c.job_id == run_jobs.c.job_id,
        later.c.user == run_jobs.c.user,
        later.c.since_s > run_jobs.c.since_s,
        later.c.since_s <= job_records.c.submitted_s,
    )
    return (
        select(run_jobs.c.run_id, job_records)
        .select_from(_joined())
        .where(run_jobs.c.run_id.in_(chosen), ~is_taken)
        .order_by(run_jobs.c.run_id, job_records.c.id)
    )


def _by_run(rows: Iterable[Row[Any]]) -> dict[str, list[Row[Any]]]:
    return {run_id: list(of) for run_id, of in groupby(rows, key=lambda row: row.run_id)}


def _run(
    row: Row[Any],
    records: Sequence[Row[Any]],
    tried: Sequence[Row[Any]],
    saved: Sequence[Row[Any]],
    ended: Sequence[Row[Any]],
) -> Iterator[RunFacts]:
    parts = [_by_task(of) for of in (tried, saved, ended)]
    of_task = _records_by_task(row, records, set(parts[0]))
    for task in sorted({*of_task, *parts[0]}) or (NO_TASK,):
        mine = of_task.get(task, [])
        begun, saves, interrupted = (of.get(task, []) for of in parts)
        finished = None if row.finished is None else bool(row.finished)
        if finished is False and any(one.ended_s is None and one.purged_s is None for one in mine):
            finished = None  # it failed, and Slurm has it again
        yield RunFacts(
            run_id=row.run_id,
            task=task,
            name=row.name,
            user=row.user,
            cluster=row.cluster,
            created_ms=row.created_ms,
            finished=finished,
            nodes=row.nodes,
            checkpoints=row.checkpoints,
            records=tuple(map(_record, mine)),
            attempts=tuple(map(_attempt, begun)),
            saves=tuple(map(_save, saves)),
            interruptions=tuple(map(_interruption, interrupted)),
        )


def _by_task(rows: Iterable[Row[Any]]) -> dict[int, list[Row[Any]]]:
    return {task: list(of) for task, of in groupby(rows, key=lambda row: row.task)}


def _records_by_task(row: Row[Any], records: Sequence[Row[Any]], known: set[int]) -> dict[int, list[Row[Any]]]:
    """Of a sweep the elements that have not started share one record, which holds nothing."""
    if row.kind != RunKind.SWEEP:
        return {NO_TASK: list(records)} if records else {}
    found: dict[int, list[Row[Any]]] = {}
    shared = []
    for record in records:
        if record.array_index is None and record.started_s is None:
            shared.append(record)
        else:
            found.setdefault(NO_TASK if record.array_index is None else record.array_index, []).append(record)
    for record in shared:
        has_own = {task for task, of in found.items() if any(one.job_id == record.job_id for one in of)}
        for task in (known | set(range(row.tasks))) - has_own:
            found.setdefault(task, []).append(record)
    return found


def _record(row: Row[Any]) -> RecordFacts:
    times: Mapping[str, int | None] = {
        f"{name}_ms": None if (at_s := row._mapping[f"{name}_s"]) is None else at_s * 1000
        for name in ("submitted", "eligible", "started", "ended", "alive", "purged")
    }
    return RecordFacts(
        record=row.record,
        state=row.state,
        account=row.account,
        partition=row.partition,
        suspended_ms=(row.suspended_s or 0) * 1000,
        nodes=row.nodes,
        gpus=row.gpus,
        het_offset=row.het_offset,
        **times,
    )


def _attempt(row: Row[Any]) -> AttemptFacts:
    return AttemptFacts(
        number=(row.major, row.minor),
        started_ms=row.started_ms,
        ended_ms=row.ended_ms,
        ending=row.ending,
        nodes=row.node_count,
        resume_step=row.resume_step,
        first_step=row.first_step,
        first_step_ms=row.first_step_ms,
        last_step=row.last_step,
        last_step_ms=row.last_step_ms,
        done=bool(row.done),
    )


def _save(row: Row[Any]) -> SaveFacts:
    return SaveFacts(
        number=(row.major, row.minor),
        sequence=row.sequence,
        training_step=row.training_step,
        committed=bool(row.committed),
        saved_ms=row.saved_ms,
        blocked_ms=row.blocked_ms,
        total_ms=row.total_ms,
    )


def _interruption(row: Row[Any]) -> InterruptionFacts:
    """The likeliest cause stands first."""
    ranked = json.loads(row.causes or "[]")
    cause = str(ranked[0].get("cause", "")) if ranked else ""
    return InterruptionFacts((row.major, row.minor), row.at_ms, cause, bool(row.by_person))
