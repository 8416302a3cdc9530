"""The causes of interruptions, ranked again with what Slurm and the nodes have told since.

A run directory is often read before Slurm's record of the attempt's end is there, or before the node's findings are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from sqlalchemy import Column, ColumnElement, Connection, Row, Table, and_, exists, func, literal, or_, select

from fleetctl.accounting import bulk
from fleetctl.accounting.allocations import AGAIN_MS, CLOCKS_MS, Allocation
from fleetctl.accounting.causes import ENDED_WELL, Cause
from fleetctl.accounting.ingest_ends import COLUMNS, causes_text
from fleetctl.accounting.model import NodeEvent
from fleetctl.accounting.node_lists import hosts_of
from fleetctl.accounting.ranks import NEAR_MS, Found, Said, Told, rank
from fleetctl.accounting.read_allocations import Held, Host, allocations, hosts_of_records
from fleetctl.accounting.tables import (
    actions,
    attempts,
    clusters,
    interruptions,
    job_records,
    node_events,
    node_findings,
    run_jobs,
    runs,
)
from fleetctl.rundir.model import EventKind, attempt_name

FRESH_S = 3 * 86400  # a node's spool keeps about a day; what comes later than this is not waited for

_HOUR_MS = 3_600_000
_MOST_PAIRS = 500_000  # ends times nodes of one run in one look: the newest ends of more than that
_KEY = ("run_id", "task", "major", "minor")
_SAYS_NOTHING = (*ENDED_WELL, Cause.GOING_ON, Cause.UNKNOWN)
_Named = tuple[str, int, str]


class _End(Struct, frozen=True):
    """One end to be explained, where its attempt ran, and what Slurm says where that ended with it."""

    row: Row[Any]
    at_ms: int
    held: tuple[Allocation, ...]
    said: tuple[Said, ...]


class _Words(Struct, frozen=True):
    """What the events of a run say of the ends of its attempts."""

    of_attempt: Mapping[_Named, Sequence[tuple[str, str]]]  # run, task and "attempt 1.0" -> kinds and what they say
    cancelled_by: Mapping[str, str]  # run -> who


def rank_interruptions(connection: Connection, now_s: int, run_ids: Collection[str] | None = None) -> None:
    """Rank the causes of these runs' interruptions; None: of all that may have become clearer since.

    An attempt that tells no end although Slurm's record of it has ended gets its interruption here.
    """
    ends = _ends(connection, now_s, run_ids)
    if not ends:
        return
    ids = sorted({end.run_id for end in ends})
    held, words = allocations(connection, ids), _words(connection, ids)
    found = (_end(end, held, None if run_ids is not None else now_s) for end in ends)
    todo = [end for end in found if end is not None]
    on = _hosts(connection, todo)
    failed, went = (_near(connection, todo, on, table) for table in (node_findings, node_events))
    rows = []
    for one, hosts in zip(todo, on, strict=True):
        told = _told(one.row, one.at_ms, words)
        findings = [Found(*what) for host in hosts for what in failed.get(host, ())]
        events = [NodeEvent(*what) for host in hosts for what in went.get(host, ())]
        causes = causes_text(rank(told, one.said, findings, events))
        if causes != one.row.causes:
            by_person = one.row.held if one.row.by_person is None else one.row.by_person
            rows.append((*(one.row[:4]), one.at_ms, told.ending, causes, by_person))
    bulk.upsert(connection, interruptions, COLUMNS, rows, _KEY)


def _ends(connection: Connection, now_s: int, run_ids: Collection[str] | None) -> Sequence[Row[Any]]:
    """Attempts that ended and had not finished, and (`at_ms` None) the newest ones of their tasks that tell no end.

    `run_ids` None: those that ended lately, and those of which a record of Slurm says more than is known.
    """
    one, end, later = attempts.c, interruptions.c, attempts.alias().c
    follows = and_(later.run_id == one.run_id, later.task == one.task)
    within = and_(later.major == one.major, later.minor > one.minor)
    goes_on_within = exists().where(follows, within)
    query = (
        select(*(one[name] for name in _KEY), one.job_id, one.nodes, one.node_count, one.started_ms, one.ended_ms)
        .add_columns(one.ending, one.failure, one.exit_status, one.terminated, end.at_ms, end.causes, end.by_person)
        .add_columns(runs.c.held, goes_on_within.label("goes_on_within"))
        .add_columns(exists().where(follows, or_(later.major > one.major, within)).label("goes_on"))
        .select_from(attempts.join(runs, runs.c.run_id == one.run_id))
        .outerjoin(interruptions, and_(*(end[name] == one[name] for name in _KEY)))
        .order_by(*(one[name] for name in _KEY))
    )
    untold = and_(end.at_ms.is_(None), one.ended_ms.is_(None), one.done == 0)
    if run_ids is not None:
        return connection.execute(query.where(one.run_id.in_(run_ids), or_(end.at_ms.is_not(None), untold))).all()
    fresh = end.at_ms.between((now_s - FRESH_S) * 1000, (now_s + FRESH_S) * 1000)
    cause = job_records.c.cause
    clearer = _is_told(cause.not_in(_SAYS_NOTHING), _is_new())
    over = and_(untold, _is_told(cause.not_in([*ENDED_WELL, Cause.GOING_ON])))
    return connection.execute(query.where(or_(fresh, and_(~goes_on_within, or_(clearer, over))))).all()


def _is_new() -> ColumnElement[bool]:
    """A cause that is not among those that are known. In JSON no text of a user has quotes of its own."""
    causes = interruptions.c.causes
    named = literal('"cause": "') + job_records.c.cause + literal('"')
    return func.replace(causes, named, "") == causes


def _is_told(*what: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether there is such a record, as the allocations of the attempt are found, but for the nearest of several."""
    one, record, job, cluster = attempts.c, job_records.c, run_jobs.c, clusters.c
    return exists().where(
        job.run_id == one.run_id,
        cluster.name == job.cluster,
        record.cluster_id == cluster.id,
        record.job_id == job.job_id,
        record.user == job.user,
        record.submitted_s >= job.since_s,
        func.coalesce(record.array_index, -1) == one.task,
        record.started_s * 1000 <= func.coalesce(one.ended_ms, one.started_ms) + CLOCKS_MS,
        (record.ended_s + 1) * 1000 >= one.started_ms - AGAIN_MS,
        *what,
    )


def _end(row: Row[Any], held: Held, now_s: int | None) -> _End | None:
    """None: it has not ended, or (where `now_s` is given) it ended long ago and Slurm says nothing new of it."""
    where = held.of(row.run_id, row.job_id, row.task, row.started_ms, row.ended_ms)
    ended = () if row.goes_on_within else where
    said = tuple(held.said[one.records[-1]] for one in ended)
    at_ms = _ended_ms(ended, said) if row.at_ms is None else row.at_ms
    if at_ms is None:
        return None
    is_old = now_s is not None and row.at_ms is not None and abs(at_ms - now_s * 1000) > FRESH_S * 1000
    return None if is_old and not _says_more(said, row.causes) else _End(row, at_ms, where, said)


def _ended_ms(ended: Iterable[Allocation], said: Iterable[Said]) -> int | None:
    """When Slurm says that an attempt ended that tells no end; None: it goes on, or ended well."""
    pairs = zip(ended, said, strict=True)
    ends = [one.ended_s for one, of in pairs if of.cause not in ENDED_WELL and one.ended_s is not None]
    return max(ends) * 1000 if ends else None


def _says_more(said: Iterable[Said], causes: str) -> bool:
    """Whether Slurm names a cause that is not among those that are known."""
    known = {one["cause"] for one in json.loads(causes)}
    return any(one.cause not in known and one.cause not in _SAYS_NOTHING for one in said)


def _hosts(connection: Connection, ends: Sequence[_End]) -> list[frozenset[Host]]:
    """Of each end the nodes that its attempt used. Which ones it had, only Slurm knows: an attempt's own list is what a
    user wrote, and names no others."""
    had = hosts_of_records(connection, sorted({key for end in ends for one in end.held for key in one.records}))
    found: list[frozenset[Host]] = [frozenset()] * len(ends)
    pairs: Counter[str] = Counter()
    for at, end in sorted(enumerate(ends), key=lambda one: (-one[1].at_ms, one[0])):
        near = [one for one in end.held if _is_within(one, end.at_ms)]
        hosts = frozenset(host for one in near for key in one.records for host in had.get(key, ()))
        pairs[end.row.run_id] += len(hosts)
        if pairs[end.row.run_id] <= _MOST_PAIRS:
            used = frozenset(hosts_of(end.row.nodes) if 0 < (end.row.node_count or 0) <= len(hosts) else ())
            found[at] = frozenset(host for host in hosts if host[1] in used) if used else hosts
    return found


def _is_within(one: Allocation, at_ms: int) -> bool:
    """When it ended a user wrote, too."""
    is_after = one.ended_s is not None and at_ms > one.ended_s * 1000 + CLOCKS_MS
    return one.started_s * 1000 - CLOCKS_MS <= at_ms and not is_after


def _words(connection: Connection, run_ids: Sequence[str]) -> _Words:
    of_attempt: dict[_Named, list[tuple[str, str]]] = {}
    cancelled_by: dict[str, str] = {}
    row = actions.c
    kinds = (EventKind.NODE_LOST.value, EventKind.HUNG.value, EventKind.SAVE_ASKED.value, EventKind.CANCEL.value)
    asked = (row.run_id, row.sequence, row.task, row.kind, row.by, row.why)
    rows = bulk.known(connection, actions, row.run_id, run_ids, asked, row.kind.in_(kinds))
    for run_id, _, task, kind, by, why in sorted(map(tuple, rows)):
        if kind == EventKind.CANCEL:
            cancelled_by.setdefault(run_id, by or "its owner")
        else:
            of_attempt.setdefault((run_id, task, by), []).append((kind, why))
    return _Words(of_attempt, cancelled_by)


def _told(end: Row[Any], at_ms: int, words: _Words) -> Told:
    by = f"attempt {attempt_name((end.major, end.minor))}"
    said = words.of_attempt.get((end.run_id, end.task, by), ())
    lost = (why.partition(": ") for kind, why in said if kind == EventKind.NODE_LOST)
    saves = [why for kind, why in said if kind == EventKind.SAVE_ASKED]
    hung = [why.partition(": ")[0] for kind, why in said if kind == EventKind.HUNG]
    return Told(
        at_ms,
        end.ending or ("told" if end.terminated else ""),
        end.failure,
        end.exit_status,
        tuple((node, evidence) for node, _, evidence in lost),
        saves[-1] if saves else "",
        "" if end.goes_on else words.cancelled_by.get(end.run_id, ""),
        hung[-1] if hung else "",
    )


def _near(
    connection: Connection, ends: Sequence[_End], on: Sequence[frozenset[Host]], table: Table
) -> Mapping[Host, Sequence[tuple[Any, ...]]]:
    """What `table` tells of the ends' nodes, near each end and maybe some more: asked for whole hours, since runs by
    the thousand end on the same nodes."""
    row = table.c
    columns: tuple[Column[Any], ...]
    if table is node_findings:
        columns = (row.node, row.at_ms, row.check_id, row.care, row.words)
        time, unit, more = row.at_ms, 1, [row.outcome == "fail"]
    else:
        columns = (row.node, row.started_s, row.ended_s, row.state, row.reason, row.user)
        time, unit, more = row.started_s, 1000, []
    wanted: dict[tuple[int, int], set[str]] = {}
    for end, hosts in zip(ends, on, strict=True):
        hours = range((end.at_ms - NEAR_MS) // _HOUR_MS, (end.at_ms + NEAR_MS) // _HOUR_MS + 1)
        for cluster_id, name in hosts:
            for hour in hours:
                wanted.setdefault((cluster_id, hour), set()).add(name)
    found: dict[Host, list[tuple[Any, ...]]] = {}
    for (cluster_id, hour), names in sorted(wanted.items()):
        within = and_(time >= hour * _HOUR_MS // unit, time < (hour + 1) * _HOUR_MS // unit)
        where = and_(row.cluster_id == cluster_id, within, *more)
        for what in bulk.known(connection, table, row.node, sorted(names), columns, where):
            found.setdefault((cluster_id, what.node), []).append(tuple(what))
    return found
