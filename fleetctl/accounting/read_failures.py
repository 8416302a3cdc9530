"""What of the database says what interrupted jobs, and how long GPUs were held: records, runs, and node checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from sqlalchemy import Column, Row, and_, func, or_, select

from fleetctl.accounting import bulk
from fleetctl.accounting.causes import ENDED_WELL, HARDWARE, Cause, Ranked
from fleetctl.accounting.failures import Merged, Place, Tried, merge
from fleetctl.accounting.model import NodeEvent, Window
from fleetctl.accounting.ranks import NEAR_MS, Found, Said, Told, rank
from fleetctl.accounting.read_allocations import Held, allocations, hosts_of_records
from fleetctl.accounting.tables import (
    attempts,
    interruptions,
    job_records,
    node_events,
    node_findings,
    runs,
)

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.sql.elements import ColumnElement

_FINISHED = "finished"  # rundir.model.Ending
_FAIL = "fail"  # health.model.Outcome
_BEFORE_S = 86_400  # attempts that ended so long before the window are no last ones of a record that ends in it
_record = job_records.c


class Known(Struct, frozen=True):
    """What interrupted jobs. `without_gpus` records ended otherwise than well, and what they held is not known."""

    merged: Merged
    without_gpus: int


class _Checks(Struct, frozen=True):
    """What was found on nodes around the window, by cluster and node."""

    findings: Mapping[tuple[int, str], list[Found]]
    events: Mapping[tuple[int, str], list[NodeEvent]]


def read_interruptions(connection: Connection, window: Window, clusters: Mapping[int, str]) -> Known:
    """What interrupted jobs of these clusters (id -> name) that held GPUs within the window."""
    tried = _tried(connection, window, clusters)
    ended = _ended_badly(window, clusters)
    rows = {row.id: row for row in connection.execute(select(job_records).where(ended, _record.gpus > 0))}
    of_runs = {record for one in tried for record in one.records}
    rows |= {row.id: row for row in _held_gpus(connection, _record.id, sorted(of_runs - rows.keys()))}
    hetjobs = {(row.cluster_id, row.job_id) for row in rows.values() if row.het_offset is not None}
    rows |= {row.id: row for row in _records_of(connection, hetjobs, clusters)}
    places = _places(connection, list(rows.values()), of_runs, window, clusters)
    untold = connection.execute(select(func.count()).where(ended, _record.gpus.is_(None))).scalar_one()
    return Known(merge(places, tried, window), untold)


def _ended_badly(window: Window, clusters: Collection[int]) -> ColumnElement[bool]:
    return (
        _record.cluster_id.in_(list(clusters))
        & (_record.ended_s >= window.since_s)
        & (_record.ended_s < window.until_s)
        & _record.started_s.is_not(None)
        & _record.cause.not_in([*ENDED_WELL, Cause.GOING_ON])
    )


def _records_of(connection: Connection, jobs: Iterable[tuple[int, int]], clusters: Collection[int]) -> list[Row[Any]]:
    """All records of these jobs that held GPUs."""
    found: list[Row[Any]] = []
    by_cluster: dict[int, list[int]] = {key: [] for key in clusters}
    for cluster, job in jobs:
        by_cluster[cluster].append(job)
    for cluster, ids in by_cluster.items():
        found += _held_gpus(connection, _record.job_id, ids, _record.cluster_id == cluster)
    return found


def _held_gpus(
    connection: Connection, key: Column[int], values: Sequence[int], where: ColumnElement[bool] | None = None
) -> list[Row[Any]]:
    held = (_record.gpus > 0) & _record.started_s.is_not(None)
    return bulk.known(connection, job_records, key, values, list(_record), held if where is None else held & where)


def _tried(connection: Connection, window: Window, clusters: Mapping[int, str]) -> list[Tried]:
    """All attempts of the runs that had one around the window, each with what interrupted it."""
    around = (attempts.c.started_ms < window.until_s * 1000) & or_(
        attempts.c.ended_ms.is_(None), attempts.c.ended_ms >= (window.since_s - _BEFORE_S) * 1000
    )
    of_runs = attempts.c.run_id.in_(select(attempts.c.run_id).where(around))
    keys = ("run_id", "task", "major", "minor")
    same = [interruptions.c[key] == attempts.c[key] for key in keys]
    query = (
        select(*(attempts.c[key] for key in keys), attempts.c.job_id, attempts.c.started_ms)
        .add_columns(
            attempts.c.ended_ms,
            attempts.c.ending,
            interruptions.c.at_ms,
            interruptions.c.causes,
            interruptions.c.by_person,
        )
        .select_from(attempts.join(runs, runs.c.run_id == attempts.c.run_id).outerjoin(interruptions, and_(*same)))
        .where(of_runs, runs.c.cluster.in_(list(clusters.values())))
        .order_by(*(attempts.c[key] for key in keys))
    )
    rows = connection.execute(query).all()
    held = allocations(connection, sorted({row.run_id for row in rows}))
    return [_tried_one(row, held) for row in rows]


def _tried_one(row: Row[Any], held: Held) -> Tried:
    ran_in = held.of(row.run_id, row.job_id, row.task, row.started_ms, row.ended_ms)
    return Tried(
        run=row.run_id,
        task=row.task,
        number=(row.major, row.minor),
        records=tuple(record for one in ran_in for record in one.records),
        finished=row.ending == _FINISHED,
        at_ms=row.at_ms,
        ranked=() if row.causes is None else causes_of(row.causes),
        by_person=bool(row.by_person),
    )


def causes_of(text: str) -> tuple[Ranked, ...]:
    """The causes in the column `interruptions.causes`; a cause of a newer fleetctl is UNKNOWN."""
    import msgspec

    found = msgspec.json.decode(text, type=list[dict[str, str]])
    return tuple(Ranked(_cause(one.get("cause", "")), one.get("evidence", ""), one.get("node", "")) for one in found)


def _cause(word: str) -> Cause:
    try:
        return Cause(word) if word else Cause.UNKNOWN
    except ValueError:
        return Cause.UNKNOWN


def _places(
    connection: Connection,
    rows: Sequence[Row[Any]],
    of_runs: Collection[int],
    window: Window,
    clusters: Mapping[int, str],
) -> list[Place]:
    checks = _checks(connection, window, clusters)
    checked = bool(checks.findings or checks.events)
    concerned = [row.id for row in rows if checked or row.id in of_runs or _cause(row.cause) in HARDWARE]
    hosts = hosts_of_records(connection, concerned)
    on = {record: sorted(node for _, node in found) for record, found in hosts.items()}
    return [
        Place(
            record=row.id,
            job=(clusters[row.cluster_id], row.job_id, row.array_index),
            submitted_s=row.submitted_s,
            started_s=row.started_s,
            ended_s=row.ended_s,
            user=row.user,
            account=row.account,
            partition=row.partition,
            part=row.het_offset,
            resized=_cause(row.cause) is Cause.RESIZED,
            nodes=frozenset(on.get(row.id, ())),
            ranked=_ranked(row, on.get(row.id, ()), checks),
        )
        for row in rows
    ]


def _ranked(row: Row[Any], on: Sequence[str], checks: _Checks) -> tuple[Ranked, ...]:
    """Why this record ended, by Slurm and by the checks of its nodes; empty where it did not, or ended well."""
    if row.ended_s is None or _cause(row.cause) in ENDED_WELL:
        return ()
    said = Said(row.cause, row.state, row.state_by, row.exit_status, row.exit_signal, row.failed_node)
    findings = [one for node in on for one in checks.findings.get((row.cluster_id, node), ())]
    events = [one for node in on for one in checks.events.get((row.cluster_id, node), ())]
    ranked = rank(Told(row.ended_s * 1000, ""), (said,), findings, events)
    if ranked[0].cause is Cause.NODE and not ranked[0].node and len(on) == 1:
        return (Ranked(Cause.NODE, ranked[0].evidence, on[0]), *ranked[1:])
    return ranked


def _checks(connection: Connection, window: Window, clusters: Collection[int]) -> _Checks:
    low_ms, high_ms = window.since_s * 1000 - NEAR_MS, window.until_s * 1000 + NEAR_MS
    found = node_findings.c
    query = select(found.cluster_id, found.node, found.at_ms, found.check_id, found.care, found.words).where(
        found.cluster_id.in_(list(clusters)), found.outcome == _FAIL, found.at_ms.between(low_ms, high_ms)
    )
    findings: dict[tuple[int, str], list[Found]] = {}
    for cluster, node, at_ms, check, care, words in connection.execute(query):
        findings.setdefault((cluster, node), []).append(Found(node, at_ms, check, care, words))
    event = node_events.c
    listed = select(event.cluster_id, event.node, event.started_s, event.ended_s, event.state, event.reason, event.user)
    listed = listed.where(
        event.cluster_id.in_(list(clusters)), event.started_s.between(low_ms // 1000, high_ms // 1000)
    )
    events: dict[tuple[int, str], list[NodeEvent]] = {}
    for cluster, *values in connection.execute(listed):
        events.setdefault((cluster, values[0]), []).append(NodeEvent(*values))
    return _Checks(findings, events)
