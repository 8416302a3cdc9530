"""The allocations of runs and their nodes, out of the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from sqlalchemy import Connection, and_, exists, select

from fleetctl.accounting import bulk
from fleetctl.accounting.allocations import Allocation, Record, allocation_of, joined
from fleetctl.accounting.causes import Cause
from fleetctl.accounting.ranks import Said
from fleetctl.accounting.tables import clusters, job_records, nodes, record_nodes, run_jobs
from fleetctl.slurm.model import JobId

Host = tuple[int, str]  # cluster's id, node

_MOST_NAMED = 500  # runs in one statement: of more, all are read


class Held(Struct, frozen=True):
    """Of each run its allocations by job and array index, and by id of a record what Slurm says of its end."""

    of_run: Mapping[str, Mapping[tuple[int, int | None], Sequence[Allocation]]]
    said: Mapping[int, Said]

    def of(self, run_id: str, job_id: str, task: int, started_ms: int, ended_ms: int | None) -> tuple[Allocation, ...]:
        """Where this attempt ran, as `attempts` has it: one for each part of a hetjob, none where Slurm does not
        tell."""
        try:
            base = JobId.parse(job_id).base
        except ValueError:
            return ()
        held = self.of_run.get(run_id, {}).get((base, task if task >= 0 else None), ())
        return allocation_of(held, started_ms, ended_ms)


def allocations(connection: Connection, run_ids: Sequence[str]) -> Held:
    """Those of these runs: of the run's owner, submitted since the run was, and before another run had the job's id."""
    record, job, later = job_records.c, run_jobs.c, run_jobs.alias().c
    is_taken = exists().where(
        later.cluster == job.cluster,
        later.job_id == job.job_id,
        later.user == job.user,
        later.since_s > job.since_s,
        later.since_s <= record.submitted_s,
    )
    query = (
        select(job.run_id, clusters.c.name, record.job_id, record.array_index, record.id, record.het_offset)
        .add_columns(record.started_s, record.ended_s, *(record[name] for name in Said.__struct_fields__))
        .select_from(run_jobs)
        .join(clusters, clusters.c.name == job.cluster)
        .join(job_records, and_(record.cluster_id == clusters.c.id, record.job_id == job.job_id))
        .where(record.user == job.user, record.submitted_s >= job.since_s, record.started_s.is_not(None), ~is_taken)
    )
    if len(run_ids) <= _MOST_NAMED:
        query = query.where(job.run_id.in_(run_ids))
    wanted = frozenset(run_ids)
    records: dict[str, list[Record]] = {}
    said: dict[int, Said] = {}
    for run_id, cluster, base, index, key, part, started_s, ended_s, *words in connection.execute(query):
        if run_id in wanted:
            said[key] = Said(*words)
            one = Record(key, (cluster, base, index), part, started_s, ended_s, said[key].cause == Cause.RESIZED)
            records.setdefault(run_id, []).append(one)
    return Held({run_id: _by_job(of) for run_id, of in records.items()}, said)


def _by_job(records: Sequence[Record]) -> Mapping[tuple[int, int | None], Sequence[Allocation]]:
    """An attempt does not say on which cluster of a federation it ran."""
    found: dict[tuple[int, int | None], list[Allocation]] = {}
    for (_, base, index), held in sorted(joined(records).items(), key=lambda one: one[0][0]):
        found.setdefault((base, index), []).extend(held)
    return found


def hosts_of_records(connection: Connection, record_ids: Sequence[int]) -> Mapping[int, frozenset[Host]]:
    """The nodes of each of these records, as Slurm tells them."""
    pair = (record_nodes.c.record_id, record_nodes.c.node_id)
    pairs = bulk.known(connection, record_nodes, record_nodes.c.record_id, record_ids, pair)
    named = (nodes.c.id, nodes.c.cluster_id, nodes.c.name)
    ids = sorted({row.node_id for row in pairs})
    names = {row.id: (row.cluster_id, row.name) for row in bulk.known(connection, nodes, nodes.c.id, ids, named)}
    found: dict[int, set[Host]] = {}
    for row in pairs:
        found.setdefault(row.record_id, set()).add(names[row.node_id])
    return {record_id: frozenset(hosts) for record_id, hosts in found.items()}
