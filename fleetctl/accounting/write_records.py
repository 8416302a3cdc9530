"""Rows of sacct into `job_records` and `record_nodes`: only what is new or has changed is read and written.

Whether a row has changed is told by the digest of its text, so that an unchanged one costs a hash and a look-up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple, replace
from sqlalchemy import Connection, func, select

from fleetctl.accounting import bulk
from fleetctl.accounting.causes import TOLD_BY_STEPS
from fleetctl.accounting.framing import digest_of
from fleetctl.accounting.model import Record
from fleetctl.accounting.node_lists import hosts_of
from fleetctl.accounting.quarantine import Unread, digest_of_raw, keep, kept, kept_keys, raw_row, release, release_keys
from fleetctl.accounting.rows import parse_record, record_key
from fleetctl.accounting.tables import job_records, nodes, record_nodes
from fleetctl.slurm.books import Rows

SOURCE = "sacct"  # in `quarantine`
NO_ROW = "no row of so many columns"
_BATCH = 5_000  # rows; more is no quicker, and takes memory
_COLUMNS = ("id", "cluster_id", *Record.__struct_fields__, "digest", "alive_s", "steps_s", "purged_s")
_PIECE = re.compile("([1-9][0-9]{0,19})\x1f")  # a piece of a reply that begins as a row does, with its DBIndex
_Row = tuple[str, ...]


class Counts(Struct, frozen=True):
    """Records that were new, had changed or had not, and what was put into quarantine and did not lie there before."""

    new: int = 0
    changed: int = 0
    unchanged: int = 0
    quarantined: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(
            self.new + other.new,
            self.changed + other.changed,
            self.unchanged + other.unchanged,
            self.quarantined + other.quarantined,
        )


class Written(Struct, frozen=True):
    """What came of some rows. `keys` are the records that they name.

    `unframed`: pieces of the reply that are no row, and that were never seen before.
    """

    counts: Counts
    unframed: int
    keys: frozenset[str]


class _Before(Struct, frozen=True):
    """What is kept of a record that is there already."""

    id: int
    raw_id: int
    submitted_s: int | None
    node_list: str
    alive_s: int | None
    steps_s: int | None


class _Read(Struct, frozen=True):
    """One row that was read. `before` None: it is new."""

    row: _Row
    record: Record
    digest: int
    before: _Before | None


class _Batch(Struct, frozen=True):
    """What became of some rows. `others`: keys under which another job than before is shown."""

    read: list[_Read]
    unchanged: int
    unread: list[Unread]
    others: frozenset[str]


def write_records(
    connection: Connection, cluster_id: int, rows: Rows, now_s: int, cluster: str, *, gpus_known: bool
) -> Written:
    """Everything that these rows tell, in the caller's transaction.

    A row that cannot be read goes into quarantine, and what was known of its record stays.
    :param gpus_known: Slurm tracks GPUs here (Books.tracks_gpus): where none is shown, none was held.
    """
    aside, aside_keys = kept(connection, cluster, SOURCE), kept_keys(connection, cluster, SOURCE)
    pieces = [Unread(piece, NO_ROW, _piece_key(piece)) for piece in rows.unframed]
    keys: set[str] = set()
    counts = Counts()
    unread: list[Unread] = []
    for start in range(0, len(rows.rows), _BATCH):
        found = _keyed(rows.columns, rows.rows[start : start + _BATCH], unread)
        batch = _read(connection, cluster_id, rows.columns, found, gpus_known)
        unread += batch.unread
        keys.update(found.keys() - batch.others)
        if aside:
            read_now = {digest_of_raw(raw_row(one.row, rows.columns)) for one in batch.read}
            release(connection, cluster, SOURCE, aside & read_now)
            still = {piece.key for piece in (*batch.unread, *pieces)}
            release_keys(connection, cluster, SOURCE, aside_keys & (found.keys() - still))
        new = _write(connection, cluster_id, batch.read)
        counts = counts.plus(Counts(new, len(batch.read) - new, batch.unchanged))
    unframed = keep(connection, cluster, SOURCE, pieces, now_s)
    quarantined = keep(connection, cluster, SOURCE, unread, now_s) + unframed
    return Written(counts.plus(Counts(quarantined=quarantined)), unframed, frozenset(keys))


def _piece_key(piece: str) -> str | None:
    match = _PIECE.match(piece)
    return match[1] if match else None


def _keyed(columns: _Row, rows: Iterable[_Row], unread: list[Unread]) -> dict[str, tuple[_Row, int]]:
    """Record -> its row and the row's digest; of several rows of one record the last."""
    found = {}
    for row in rows:
        try:
            found[record_key(columns, row)] = row, digest_of(row)
        except ValueError as error:
            unread.append(Unread(raw_row(row, columns), str(error)))
    return found


def _read(
    connection: Connection, cluster_id: int, columns: _Row, found: Mapping[str, tuple[_Row, int]], gpus_known: bool
) -> _Batch:
    """The new and changed ones, read. What comes back after it was purged has changed."""
    record = job_records.c
    asked = (record.record, record.id, record.digest, record.purged_s)
    same = record.cluster_id == cluster_id
    there = {row[0]: row for row in bulk.known(connection, job_records, record.record, list(found), asked, same)}
    old = {key for key, row in there.items() if row.digest == found[key][1] and row.purged_s is None}
    before = _before(connection, [row.id for key, row in there.items() if key not in old])
    read, unread, others = [], [], set()
    for key, (row, digest) in found.items():
        if key in old:
            continue
        try:
            known = before[there[key].id] if key in there else None
            one = parse_record(columns, row)
            if known is not None and _is_another(known, one):
                others.add(key)
                raise ValueError(f"DBIndex {key} belongs to another job here")
            if not gpus_known and one.started_s is not None and one.gpus == 0:
                one = replace(one, gpus=None, gpu_models="")
            read.append(_Read(row, one, digest, known))
        except ValueError as error:
            unread.append(Unread(raw_row(row, columns), str(error), key))
    return _Batch(read, len(old), unread, frozenset(others))


def _is_another(known: _Before, one: Record) -> bool:
    """Whether slurmdbd began to count again at 1, as one that was set up anew does before 24.11 (from then on a DBIndex
    holds the time). A record keeps its Submit even where the first task of an array takes it over under an id of its
    own (seen on 22.05.8), and a job that is requeued or resized gets another record."""
    told = known.submitted_s is not None and one.submitted_s is not None
    return told and known.raw_id != one.raw_id and known.submitted_s != one.submitted_s


def _before(connection: Connection, ids: Sequence[int]) -> dict[int, _Before]:
    record = job_records.c
    asked = (record.id, record.raw_id, record.submitted_s, record.node_list, record.alive_s, record.steps_s)
    rows = bulk.known(connection, job_records, record.id, ids, asked)
    return {
        row.id: _Before(row.id, row.raw_id, row.submitted_s, row.node_list, row.alive_s, row.steps_s) for row in rows
    }


def _write(connection: Connection, cluster_id: int, read: Sequence[_Read]) -> int:
    """Returns how many are new."""
    if not read:
        return 0
    next_id = (connection.scalar(select(func.max(job_records.c.id))) or 0) + 1
    new, changed = [], []
    node_lists: dict[int, str] = {}  # of records that have another than before
    for one in read:
        before = one.before
        if before is None:
            new.append(_row(next_id, cluster_id, one))
            node_lists[next_id] = one.record.node_list
            next_id += 1
            continue
        changed.append(_row(before.id, cluster_id, one))
        if before.node_list != one.record.node_list:
            node_lists[before.id] = one.record.node_list
    bulk.insert(connection, job_records, _COLUMNS, new)
    bulk.upsert(connection, job_records, _COLUMNS, changed, ("id",))
    bulk.delete_where(connection, record_nodes.c.record_id, [row[0] for row in changed if row[0] in node_lists])
    _write_nodes(connection, cluster_id, node_lists)
    return len(new)


def _row(record_id: int, cluster_id: int, one: _Read) -> tuple[Any, ...]:
    record, before = one.record, one.before
    is_open = record.ended_s is None
    alive_s = before.alive_s if before and is_open else None
    if not is_open and record.cause in TOLD_BY_STEPS and record.started_s is not None:
        steps_s = None  # asked again: they say more about its cause than this row does
    else:
        steps_s = before.steps_s if before and before.steps_s else None if is_open else 0
    return (record_id, cluster_id, *astuple(record), one.digest, alive_s, steps_s, None)


def _write_nodes(connection: Connection, cluster_id: int, node_lists: Mapping[int, str]) -> None:
    """The nodes of these records, of which none has any so far."""
    hosts = {text: hosts_of(text) for text in set(node_lists.values())}
    ids = _node_ids(connection, cluster_id, {name for names in hosts.values() for name in names})
    ids_of = {text: [ids[name] for name in names] for text, names in hosts.items()}
    rows = [(record_id, node_id) for record_id, text in node_lists.items() for node_id in ids_of[text]]
    bulk.insert(connection, record_nodes, ("record_id", "node_id"), rows)


def _node_ids(connection: Connection, cluster_id: int, names: set[str]) -> dict[str, int]:
    """By name. Those that are not known yet are written."""
    if not names:
        return {}
    query = select(nodes.c.name, nodes.c.id).where(nodes.c.cluster_id == cluster_id)
    ids: dict[str, int] = {row.name: row.id for row in connection.execute(query)}
    if missing := sorted(names - ids.keys()):
        first = (connection.scalar(select(func.max(nodes.c.id))) or 0) + 1
        fresh = {name: first + place for place, name in enumerate(missing)}
        named = [(key, cluster_id, name) for name, key in fresh.items()]
        bulk.insert(connection, nodes, ("id", "cluster_id", "name"), named)
        ids |= fresh
    return ids
