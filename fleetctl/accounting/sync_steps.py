"""The steps of records that ended otherwise than well: asked for by job id, never from a window of time, which would
leave out those that ended before it began."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import astuple
from sqlalchemy import Connection, Engine, or_, select, update

from fleetctl.accounting import bulk, quarantine
from fleetctl.accounting.causes import Cause, with_steps
from fleetctl.accounting.model import StepRecord
from fleetctl.accounting.rows import parse_step
from fleetctl.accounting.sync_batches import in_batches
from fleetctl.accounting.sync_state import Cluster, Phase, Progress
from fleetctl.accounting.tables import job_records, steps
from fleetctl.accounting.write_records import NO_ROW
from fleetctl.slurm.books import Books, Rows

_SOURCE = "steps"  # in `quarantine`
_LATE_S = 600  # rows of steps may trail their record's by a minute (gc3pie#524), and slurmdbd may lag
_COLUMNS = ("record_id", *StepRecord.__struct_fields__[1:])


class _Wanted(Struct, frozen=True):
    id: int
    record: str
    raw_id: int
    submitted_s: int
    ended_s: int
    cause: str


def read_steps(
    engine: Engine,
    books: Books,
    cluster: Cluster,
    now_s: int,
    *,
    every: bool,
    progress: Callable[[Progress], None],
    unknown: Callable[[str], None],
) -> int:
    """Reads the steps of all ended records that are still to be asked for, and returns how many steps there were.

    :param every: of those whose cause is known without, too.
    :param unknown: told of how many records Slurm gave no answer; the next call asks again.
    """
    with engine.connect() as connection:
        wanted = _wanted(connection, cluster.id, every=every)

    def ask(batch: Sequence[_Wanted]) -> Rows:
        return books.steps([one.raw_id for one in batch], min(one.submitted_s for one in batch))

    count, done = 0, 0
    for batch, rows in in_batches(wanted, ask, unknown):
        with engine.begin() as connection:
            count += _write(connection, cluster, batch, rows, now_s)
        done += len(batch)
        progress(Progress(Phase.STEPS, done, len(wanted), len(rows.rows)))
    return count


def _wanted(connection: Connection, cluster_id: int, *, every: bool) -> Sequence[_Wanted]:
    """In the order of their submission: what is asked for in one call then lies close together."""
    record = job_records.c
    query = select(record.id, record.record, record.raw_id, record.submitted_s, record.ended_s, record.cause)
    query = query.where(record.cluster_id == cluster_id, record.ended_s.is_not(None))
    if every:
        query = query.where(or_(record.steps_s.is_(None), record.steps_s == 0), record.started_s.is_not(None))
    else:
        query = query.where(record.steps_s.is_(None))
    rows = connection.execute(query.order_by(record.submitted_s, record.id))
    return [_Wanted(row.id, row.record, row.raw_id, row.submitted_s or 0, row.ended_s, row.cause) for row in rows]


def _write(connection: Connection, cluster: Cluster, batch: Sequence[_Wanted], rows: Rows, now_s: int) -> int:
    ids = {one.record: one.id for one in batch}
    found: dict[tuple[int, str], StepRecord] = {}
    unread = [quarantine.Unread(piece, NO_ROW) for piece in rows.unframed]
    for row in rows.rows:
        try:
            step = parse_step(rows.columns, row)
        except ValueError as error:
            unread.append(quarantine.Unread(quarantine.raw_row(row), str(error)))
            continue
        if step.record in ids:
            found[ids[step.record], step.step] = step
    bulk.delete_where(connection, steps.c.record_id, sorted({record_id for record_id, _ in found}))
    bulk.insert(connection, steps, _COLUMNS, [(key[0], *astuple(step)[1:]) for key, step in found.items()])
    quarantine.keep(connection, cluster.name, _SOURCE, unread, now_s)
    whole = _whole(found)
    asked = [one.id for one in batch if one.id in whole or one.ended_s <= now_s - _LATE_S]
    connection.execute(update(job_records).where(job_records.c.id.in_(asked)).values(steps_s=now_s))
    _refine(connection, batch)
    return len(found)


def _whole(found: Mapping[tuple[int, str], StepRecord]) -> set[int]:
    """Records of which all steps that were told have ended, and a program's is among them: extern is Slurm's own, and
    tells nothing of what ran."""
    going_on = {record_id for (record_id, _), step in found.items() if step.ended_s is None}
    return {record_id for record_id, step in found if step != "extern"} - going_on


def _refine(connection: Connection, batch: Sequence[_Wanted]) -> None:
    """The causes of these records by all of their steps that are known: Slurm may have purged what it told before."""
    columns = (steps.c.record_id, steps.c.state, steps.c.exit_status, steps.c.exit_signal)
    exits: dict[int, list[tuple[str, int | None, int | None]]] = {}
    for row in bulk.known(connection, steps, steps.c.record_id, [one.id for one in batch], columns):
        exits.setdefault(row.record_id, []).append((row.state, row.exit_status, row.exit_signal))
    better: dict[Cause, list[int]] = {}
    for one in batch:
        cause = with_steps(Cause(one.cause), exits.get(one.id, ()))
        if cause != one.cause:
            better.setdefault(cause, []).append(one.id)
    for cause, ids in better.items():
        connection.execute(update(job_records).where(job_records.c.id.in_(ids)).values(cause=cause.value))
