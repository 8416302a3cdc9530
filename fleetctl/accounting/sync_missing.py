"""Asks for records by their job ids that no window of time shows.

Those are open ones of ours that ended before the window began and were told late, or that were purged or went back to
being held; and jobs of runs that were held since their submission, which have no time at which they became eligible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from sqlalchemy import Connection, Engine, exists, select, update

from fleetctl.accounting.rows import record_key
from fleetctl.accounting.sync_batches import in_batches
from fleetctl.accounting.sync_state import Cluster, Phase, Progress
from fleetctl.accounting.tables import job_records, run_jobs
from fleetctl.accounting.write_records import Counts, write_records
from fleetctl.slurm.books import Books, Rows

_A_STATEMENT = 10_000  # parameters: SQLite takes 32,766


class _Open(Struct, frozen=True):
    id: int
    record: str
    raw_id: int
    submitted_s: int


def ask_for_missing(
    engine: Engine,
    books: Books,
    cluster: Cluster,
    shown: frozenset[str],
    now_s: int,
    *,
    user: str | None,
    gpus_known: bool,
    progress: Callable[[Progress], None],
    unknown: Callable[[str], None],
) -> tuple[Counts, int]:
    """Asks for the open records that were not `shown` in a window until now; those that Slurm does not know are marked.

    :param user: only this user's, where Slurm shows us no others; None: all.
    :param unknown: told of how many Slurm gave no answer.
    :return: what came of the answers, and how many are gone.
    """
    with engine.connect() as connection:
        missing = [one for one in _open_records(connection, cluster.id, user) if one.record not in shown]

    def ask(batch: Sequence[_Open]) -> Rows:
        return books.records_of([one.raw_id for one in batch], min(one.submitted_s for one in batch))

    counts, purged, done = Counts(), 0, 0
    for batch, rows in in_batches(missing, ask, unknown):
        rows = _only(rows, {one.record for one in batch})
        with engine.begin() as connection:
            written = write_records(connection, cluster.id, rows, now_s, cluster.name, gpus_known=gpus_known)
            gone = [one.id for one in batch if one.record not in written.keys] if not rows.unframed else []
            connection.execute(update(job_records).where(job_records.c.id.in_(gone)).values(purged_s=now_s))
        counts, purged, done = counts.plus(written.counts), purged + len(gone), done + len(batch)
        progress(Progress(Phase.MISSING, done, len(missing), len(rows.rows)))
    return counts, purged


def ask_for_runs(
    engine: Engine,
    books: Books,
    cluster: Cluster,
    now_s: int,
    oldest_s: int,
    *,
    gpus_known: bool,
    unknown: Callable[[str], None],
) -> Counts:
    """Asks for the jobs of runs, submitted since `oldest_s`, of which there is no record."""
    record, job = job_records.c, run_jobs.c
    ours = (record.cluster_id == cluster.id, record.job_id == job.job_id, record.submitted_s >= job.since_s)
    query = select(job.job_id, job.since_s).where(job.cluster == cluster.name, job.since_s >= oldest_s)
    with engine.connect() as connection:
        rows = connection.execute(query.where(~exists().where(*ours)).order_by(job.since_s))
        wanted = [(row.job_id, row.since_s) for row in rows]

    def ask(batch: Sequence[tuple[int, int]]) -> Rows:
        return books.records_of([job_id for job_id, _ in batch], min(since_s for _, since_s in batch))

    counts = Counts()
    for _, found in in_batches(wanted, ask, unknown):
        with engine.begin() as connection:
            written = write_records(connection, cluster.id, found, now_s, cluster.name, gpus_known=gpus_known)
        counts = counts.plus(written.counts)
    return counts


def confirm(connection: Connection, cluster_id: int, alive: frozenset[int], now_s: int) -> None:
    """Open records whose job the controller had at `now_s`. Of several of one raw id only the newest can be meant.

    Not those that start only later: by the controller's clock, or since the sync began. What is confirmed for the
    future was so by a clock that was ahead.
    """
    record = job_records.c
    ahead = (record.cluster_id == cluster_id, record.ended_s.is_(None), record.alive_s > now_s)
    connection.execute(update(job_records).where(*ahead).values(alive_s=now_s))
    newest: dict[int, _Open] = {}
    for one in _open_records(connection, cluster_id, None):
        if one.raw_id in alive and (one.raw_id not in newest or one.submitted_s >= newest[one.raw_id].submitted_s):
            newest[one.raw_id] = one
    ids = [one.id for one in newest.values()]
    for start in range(0, len(ids), _A_STATEMENT):
        some = record.id.in_(ids[start : start + _A_STATEMENT])
        stale = record.alive_s.is_distinct_from(now_s)
        connection.execute(update(job_records).where(some, stale, record.started_s <= now_s).values(alive_s=now_s))


def _open_records(connection: Connection, cluster_id: int, user: str | None) -> Sequence[_Open]:
    """Those that Slurm has not forgotten."""
    record = job_records.c
    query = select(record.id, record.record, record.raw_id, record.submitted_s)
    query = query.where(record.cluster_id == cluster_id, record.ended_s.is_(None), record.purged_s.is_(None))
    if user is not None:
        query = query.where(record.user == user)
    return [_Open(row.id, row.record, row.raw_id, row.submitted_s or 0) for row in connection.execute(query)]


def _only(rows: Rows, records: set[str]) -> Rows:
    """Without other records of the same jobs: which of them are in the database must not depend on what was asked."""

    def wanted(row: tuple[str, ...]) -> bool:
        try:
            return record_key(rows.columns, row) in records
        except ValueError:
            return True  # for the quarantine

    return Rows(rows.columns, tuple(row for row in rows.rows if wanted(row)), rows.unframed)
