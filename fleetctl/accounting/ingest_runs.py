"""Run directories into the database: each that has changed is replaced whole, in one transaction.

Users write these directories. One that cannot be read, or that says it is another user's than its folder's owner, is
put aside with the reason, what was known of it stays, and the others go on.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple
from sqlalchemy import Connection, delete, select
from sqlalchemy.exc import DataError, IntegrityError

from fleetctl.accounting import bulk, ingest_ends, ingest_rows
from fleetctl.accounting.framing import text_of
from fleetctl.accounting.ingest_causes import rank_interruptions
from fleetctl.accounting.ingest_read import look, opened, read
from fleetctl.accounting.ingest_rows import RunRows, run_rows
from fleetctl.accounting.quarantine import Unread, digest_of_raw, keep, release
from fleetctl.accounting.tables import actions, attempts, checkpoints, interruptions, quarantine, run_jobs, runs
from fleetctl.errors import FleetctlError
from fleetctl.health.store import Foreign
from fleetctl.rundir.store import RunDir, Store

SOURCE = "run"  # in `quarantine`
_TABLES = (
    (runs, ingest_rows.RUNS, attrgetter("runs")),
    (run_jobs, ingest_rows.RUN_JOBS, attrgetter("run_jobs")),
    (attempts, ingest_rows.ATTEMPTS, attrgetter("attempts")),
    (checkpoints, ingest_rows.CHECKPOINTS, attrgetter("checkpoints")),
    (interruptions, ingest_ends.COLUMNS, attrgetter("interruptions")),
    (actions, ingest_rows.ACTIONS, attrgetter("actions")),
)
_BATCH_RUNS, _BATCH_ROWS = 100, 5_000

Note = Callable[[str], object]
NameOf = Callable[[int], str]


class Ingested(Struct, frozen=True):
    """What came of the run directories. `quarantined` counts those that cannot be read now."""

    changed: int
    unchanged: int
    quarantined: int


class _Known(Struct, frozen=True):
    digest: int
    user: str


def name_of(uid: int) -> str:
    """The user's name. :raises Foreign: the system has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise Foreign(f"its folder belongs to uid {uid}, which has no name here") from None


def ingest_runs(
    connection: Connection, store: Store, note: Note, *, cluster: str, now_s: int, owner_name: NameOf = name_of
) -> Ingested:
    """Every run directory of the store; `connection` has no transaction open. Once done, nothing is written again.

    :param cluster: under which what cannot be read is put aside.
    :raises RunDirError: the store itself cannot be listed.
    """
    found = sorted(store.runs(), key=lambda run: run.run_id)
    with connection.begin():
        known = _known(connection)
    unread: list[Unread] = []
    changed = 0
    paths = {run.run_id: str(run.path) for run in found}
    for fresh in _batches(_changed(found, known, unread, owner_name, note)):
        refused = _write(connection, fresh, now_s)
        changed += len(fresh) - len(refused)
        for run_id, why in refused.items():
            unread.append(Unread(paths[run_id], why))
            note(f"run {run_id} is not counted: {why}")
    with connection.begin():
        _put_aside(connection, store, cluster, unread, now_s)
        rank_interruptions(connection, now_s)
    return Ingested(changed, len(found) - changed - len(unread), len(unread))


def _changed(
    found: Sequence[RunDir], known: Mapping[str, _Known], unread: list[Unread], owner_name: NameOf, note: Note
) -> Iterator[tuple[str, RunRows]]:
    """The rows of each run that is not as it was; those that cannot be read are added to `unread`."""
    for run in found:
        try:
            rows = _fresh(run, known.get(run.run_id), owner_name)
        except Exception as error:  # noqa: BLE001 - whatever a user put there, the others go on
            unread.append(Unread(str(run.path), why := _why(error)))
            note(f"run {run.run_id} is not counted: {why}")
            continue
        if rows is not None:
            yield run.run_id, rows


def _batches(runs: Iterable[tuple[str, RunRows]]) -> Iterator[dict[str, RunRows]]:
    """Some runs at a time: a transaction for each one takes several times as long."""
    batch: dict[str, RunRows] = {}
    size = 0
    for run_id, rows in runs:
        batch[run_id] = rows
        size += sum(map(len, astuple(rows)))
        if size >= _BATCH_ROWS or len(batch) == _BATCH_RUNS:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch


def _known(connection: Connection) -> Mapping[str, _Known]:
    rows = connection.execute(select(runs.c.run_id, runs.c.digest, runs.c.user))
    return {run_id: _Known(digest, user) for run_id, digest, user in rows}


def _fresh(run: RunDir, known: _Known | None, owner_name: NameOf) -> RunRows | None:
    """The rows of a run; None: it is as it was.

    :raises Exception: it is not what fleetctl wrote, or not whose it says.
    """
    with opened(str(run.path)) as here:
        seen = look(here)
        if known is not None and known.digest == seen.digest:
            return None
        told = read(here, seen, str(run.path))
    owner = owner_name(seen.uid)
    if told.record.user != owner:
        raise Foreign(f"it says that it is {told.record.user!r}'s, and its folder belongs to {owner}")
    if told.record.run_id != run.run_id:
        raise Foreign(f"it says that it is run {told.record.run_id!r}")
    if known is not None and known.user != text_of(owner):
        raise Foreign(f"a run of this id is known as {known.user}'s")
    return run_rows(told, text_of(owner), seen.digest)


def _write(connection: Connection, fresh: Mapping[str, RunRows], now_s: int) -> Mapping[str, str]:
    """Runs that the database did not take, with the reason: each in a transaction of its own once all together failed.

    :raises Exception: what is no fault of the rows, such as a full disk.
    """
    try:
        with connection.begin():
            _replace(connection, fresh)
            rank_interruptions(connection, now_s, fresh.keys())
    except _refusals(connection) as error:
        if len(fresh) == 1:
            return dict.fromkeys(fresh, _why(getattr(error, "orig", error)))
        return {
            one: why for run_id, rows in fresh.items() for one, why in _write(connection, {run_id: rows}, now_s).items()
        }
    return {}


def _refusals(connection: Connection) -> tuple[type[Exception], ...]:
    """What a database or its driver raises for rows that it does not take; COPY's errors are the driver's own."""
    driver: Any = connection.dialect.dbapi
    return IntegrityError, DataError, driver.IntegrityError, driver.DataError, ValueError, TypeError, OverflowError


def _replace(connection: Connection, fresh: Mapping[str, RunRows]) -> None:
    """Whole runs, in the caller's transaction."""
    for table, columns, rows_of in _TABLES:
        connection.execute(delete(table).where(table.c.run_id.in_(fresh)))
        bulk.insert(connection, table, columns, [row for rows in fresh.values() for row in rows_of(rows)])


def _put_aside(connection: Connection, store: Store, cluster: str, unread: list[Unread], now_s: int) -> None:
    """Keeps what cannot be read now, and forgets what can, or is gone from this store."""
    keep(connection, cluster, SOURCE, unread, now_s)
    mine = select(quarantine.c.digest, quarantine.c.raw).where(
        quarantine.c.cluster == cluster, quarantine.c.source == SOURCE
    )
    root = os.fsencode(f"{store.root}/")
    here = {digest for digest, raw in connection.execute(mine) if bytes(raw).startswith(root)}
    release(connection, cluster, SOURCE, here - {digest_of_raw(one.raw) for one in unread})


def _why(error: Exception) -> str:
    """One line."""
    if isinstance(error, FleetctlError):
        words = error.message
    elif isinstance(error, OSError):
        words = error.strerror or str(error)
    elif isinstance(error, Foreign):
        words = str(error)
    else:
        words = f"not what fleetctl writes ({type(error).__name__}: {error})"
    return text_of(" ".join(words.split())[:300])
