"""What of the database says whether held GPUs did something: ledgers of runs, and what epilogs measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from sqlalchemy import Row, func, select

from fleetctl.accounting.idle import Held, Use
from fleetctl.accounting.ledger_gpu import gpus_by
from fleetctl.accounting.model import Window
from fleetctl.accounting.read_exposure import held_s, holding
from fleetctl.accounting.read_runs import read_runs
from fleetctl.accounting.spans import Spent
from fleetctl.accounting.tables import gpu_use, job_records
from fleetctl.accounting.timeline import timeline

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_LATE_MS = 3_600_000  # an epilog ends long before; another job of that id has not begun (slurm.conf.5, MaxJobId)
_ROWS = 10_000  # that are fetched at once
_NUMBER = re.compile("0|[1-9][0-9]{0,17}", re.ASCII)
_record = job_records.c


class _Run(Struct, frozen=True):
    """The run of a record, and its ledger within the window in GPU-milliseconds."""

    name: str
    spent: Mapping[Spent, int]


class _Measured(Struct, frozen=True):
    """All that was measured of one job (a cluster's id and a raw job id), by time."""

    job: tuple[int, int]
    uses: Sequence[Row[Any]]


def read_held(
    connection: Connection, window: Window, by: Sequence[str], clusters: Mapping[int, str], as_of_s: Mapping[str, int]
) -> Iterator[Held]:
    """Every record that held GPUs within the window, with what is known of them; `clusters` are id -> name."""
    runs = _runs(connection, window, list(clusters.values()), as_of_s)
    columns = ("id", "cluster_id", "record", "raw_id", "job_id", "array_index", "user", "account", "partition")
    query = (
        select(*(_record[name] for name in (*columns, "started_s", "ended_s", "suspended_s", "gpus")))
        .add_columns(held_s(window).label("held_s"))
        .where(holding(window, list(clusters)), _record.gpus > 0)
        .order_by(_record.cluster_id, _record.raw_id, _record.id)
    )
    rows = connection.execution_options(yield_per=_ROWS).execute(query)
    for row, uses in _beside(rows, _measured(connection, window, list(clusters))):
        run = runs.get((clusters[row.cluster_id], row.record))
        whole = row.ended_s is not None and row.held_s == row.ended_s - row.started_s
        yield Held(
            key=tuple(_key(name, row, run, clusters) for name in by),
            gpus=row.gpus,
            held_ms=row.held_s * 1000,
            suspended_ms=(row.suspended_s or 0) * 1000 if whole else 0,  # it is not told when
            uses=uses,
            spent=None if run is None else run.spent,
        )


def count_without_gpus(connection: Connection, window: Window, cluster_ids: Sequence[int]) -> int:
    """Records within the window of which Slurm does not say what they held."""
    query = select(func.count()).where(holding(window, cluster_ids), _record.gpus.is_(None))
    return int(connection.execute(query).scalar_one())


def _key(name: str, row: Row[Any], run: _Run | None, clusters: Mapping[int, str]) -> str | None:
    if name == "job":
        return str(row.job_id) if row.array_index is None else f"{row.job_id}_{row.array_index}"
    if name == "run":
        return None if run is None else run.name
    if name == "cluster":
        return clusters[row.cluster_id]
    return str(row._mapping[name])


def _runs(
    connection: Connection, window: Window, names: Sequence[str], as_of_s: Mapping[str, int]
) -> Mapping[tuple[str, str], _Run]:
    """By cluster and record."""
    found: dict[tuple[str, str], _Run] = {}
    for facts in read_runs(connection, (), window, names):
        line = timeline(facts, as_of_s[facts.cluster] * 1000)
        name = facts.run_id if facts.task < 0 else f"{facts.run_id}/{facts.task}"
        for record, ledger in gpus_by(facts, line, window, lambda one: one.record).items():
            found[facts.cluster, record] = _Run(name, ledger.ms)
    return found


def _measured(connection: Connection, window: Window, cluster_ids: Sequence[int]) -> Iterator[_Measured]:
    """What epilogs measured that ran at the end of one of the records, or soon after it: by cluster and raw job id.

    Sorted here and not joined: no index leads from a job to what was measured.
    """
    use = gpu_use.c
    last_s = connection.execute(select(func.max(_record.ended_s)).where(holding(window, cluster_ids))).scalar()
    if last_s is None:
        return
    near = use.at_ms.between(window.since_s * 1000, last_s * 1000 + _LATE_MS)
    query = (
        select(*(use[name] for name in ("cluster_id", "job_id", "at_ms", "node", "gpu", "used_ms", "energy_mj")))
        .where(use.cluster_id.in_(cluster_ids), near)
        .order_by(use.cluster_id, func.length(use.job_id), use.job_id, use.at_ms)  # the order of whole numbers
    )
    rows = connection.execution_options(yield_per=_ROWS).execute(query)
    for (cluster, job), uses in groupby(rows, key=attrgetter("cluster_id", "job_id")):
        if _NUMBER.fullmatch(job):
            yield _Measured((cluster, int(job)), list(uses))


def _beside(rows: Iterable[Row[Any]], measured: Iterator[_Measured]) -> Iterator[tuple[Row[Any], tuple[Use, ...]]]:
    """Each record with its own. Both come by cluster and raw job id."""
    one = next(measured, None)
    for row in rows:
        job = (row.cluster_id, row.raw_id)
        while one is not None and one.job < job:
            one = next(measured, None)
        yield row, () if one is None or one.job != job else _uses(row, one.uses)


def _uses(row: Row[Any], measured: Sequence[Row[Any]]) -> tuple[Use, ...]:
    """Those of this record: a requeued job has an epilog after each of its records, so the first one of a GPU after
    its start is its own. `measured` come by time."""
    if row.ended_s is None:
        return ()
    mine: dict[tuple[str, str], Use] = {}
    for one in measured:
        if row.started_s * 1000 <= one.at_ms <= row.ended_s * 1000 + _LATE_MS:
            mine.setdefault((one.node, one.gpu), Use(one.used_ms, one.energy_mj))
    return tuple(mine[gpu] for gpu in sorted(mine))
