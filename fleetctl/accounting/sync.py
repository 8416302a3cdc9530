"""Reads what is new in Slurm's accounting into the database: all of it, once, whatever happens in between.

Each window of time (see plan) is one transaction, of its records, their nodes, what could not be read, and the
watermark. So a sync that ends in the middle leaves a whole state, and the next one goes on from there. The caller
holds database.one_sync.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, Engine, func, select

from fleetctl.accounting import plan
from fleetctl.accounting.plan import POLICY, Pass, Policy, Step, SyncState
from fleetctl.accounting.sync_missing import ask_for_missing, confirm
from fleetctl.accounting.sync_state import Cluster, Phase, Progress, cluster_of, holds_gpus, load_state, save_state
from fleetctl.accounting.sync_steps import read_steps
from fleetctl.accounting.tables import job_records
from fleetctl.accounting.write_records import Counts, write_records
from fleetctl.clock import Clock
from fleetctl.errors import CannotTell, SlurmError, SlurmRefused
from fleetctl.slurm.books import Books, Rows

Note = Callable[[str], None]
OnProgress = Callable[[Progress], None]
Answer = TypeVar("Answer")
_MOST_LOOKS, _BETWEEN_LOOKS_S = 5, 2.0  # slurmctld hands records on within a second where slurmdbd keeps up


class Synced(Struct, frozen=True):
    """What one sync did. `counts` is of all replies together."""

    cluster: Cluster
    began_s: int
    windows: int
    counts: Counts
    steps: int
    purged: int
    state: SyncState
    is_first: bool  # nothing had been vouched for before
    gpus_known: bool
    sees_all: bool | None  # this time; that of `state` is of all that is vouched for


class _Told(Struct, frozen=True):
    """What the controller says as a sync begins; None where it does not."""

    waiting: int | None
    alive: frozenset[int] | None
    sees_all: bool | None
    tracks_gpus: bool | None

    @property
    def gpus_known(self) -> bool:
        return self.tracks_gpus is True


class _Here(Struct, frozen=True):
    """What every part of one sync is given."""

    engine: Engine
    books: Books
    cluster: Cluster
    now_s: int
    told: _Told
    policy: Policy
    progress: OnProgress
    note: Note


class _Windows(Struct, frozen=True):
    """What came of the windows so far. `shown`: the records in the one that reached until now."""

    going: Pass
    state: SyncState
    count: int = 0
    counts: Counts = Counts()
    shown: frozenset[str] = frozenset()


def sync(
    engine: Engine,
    books: Books,
    clock: Clock,
    *,
    since_s: int | None,
    user: str,
    note: Note,
    progress: OnProgress,
    all_steps: bool = False,
    policy: Policy = POLICY,
) -> Synced:
    """One sync of the cluster that `books` speaks for.

    :param since_s: how far back; None: as far as before, and the first time the last 35 days.
    :param user: who Slurm takes us for: it may show only their own jobs.
    :raises SlurmError, CannotTell: the records could not be read; what came before stands.
    """
    now_s = int(clock.now().timestamp())  # before the first question: what happens later is the next sync's
    name = books.cluster()
    with engine.begin() as connection:
        cluster = cluster_of(connection, name)
        state = load_state(connection, cluster.id)
    told = _ask_first(books, clock, user, note)
    if told.tracks_gpus is None:  # as before: a row that is read without it is not read again until it changes
        with engine.connect() as connection:
            told = replace(told, tracks_gpus=holds_gpus(connection, cluster.id) or None)
    here = _Here(engine, books, cluster, now_s, told, policy, progress, note)
    read = _read_windows(here, _Windows(plan.begin(state, now_s, told.waiting, since_s, policy, told.sees_all), state))
    counts, purged = _ask_for_missing(here, read, user=None if told.sees_all else user)
    unread = _unknown("not all steps were read; the next sync asks again", note)
    steps = read_steps(engine, books, cluster, now_s, every=all_steps, progress=progress, unknown=unread)
    known = replace(plan.whole_after(read.state, read.going, policy), waiting=told.waiting)
    with engine.begin() as connection:
        save_state(connection, cluster.id, known)
    total = read.counts.plus(counts)
    is_first, sees_all = state.to_s is None, told.sees_all
    return Synced(cluster, now_s, read.count, total, steps, purged, known, is_first, told.gpus_known, sees_all)


def _ask_first(books: Books, clock: Clock, user: str, note: Note) -> _Told:
    told = _Told(
        _asked(
            lambda: _waiting(books, clock),
            "not known whether records wait in slurmctld; this time will be read again",
            note,
        ),
        _asked(books.alive, "not known which jobs run; open ones count as up to the sync before", note),
        _asked(lambda: books.sees_all(user), "not known whose jobs Slurm shows", note),
        _asked(books.tracks_gpus, "not known whether Slurm counts GPUs", note),
    )
    if told.waiting:
        note(f"{told.waiting} records have not reached slurmdbd yet; this time will be read again")
    if told.sees_all is False:
        note(f"Slurm shows only the jobs of {user} (PrivateData): have an operator of Slurm run this")
    if told.tracks_gpus is False:
        note("this cluster's AccountingStorageTRES has no gres/gpu: GPUs are not known")
        note("have an administrator of Slurm add gres/gpu to it in slurm.conf: jobs from then on tell theirs")
    return told


def _waiting(books: Books, clock: Clock) -> int:
    """The fewest of a few moments: at a busy site some record is always on its way, and one moment at which none was is
    enough for all that had happened until then."""
    waiting = books.waiting()
    for _ in range(_MOST_LOOKS - 1):
        if waiting == 0:
            break
        clock.sleep(_BETWEEN_LOOKS_S)
        waiting = min(waiting, books.waiting())
    return waiting


def _asked(question: Callable[[], Answer], unknown: str, note: Note) -> Answer | None:
    """None, and a line for the person, where Slurm does not say."""
    try:
        return question()
    except (CannotTell, SlurmError) as error:
        note(f"{unknown}: {error.message}")
        return None


def _unknown(what: str, note: Note) -> Callable[[str], None]:
    return lambda why: note(f"{what}: {why}")


def _read_windows(here: _Here, read: _Windows) -> _Windows:
    total_s = max(read.going.left_s, 1)
    while (step := plan.next_window(read.going)) is not None:
        try:
            rows = here.books.records(step.since_s, step.until_s)
        except SlurmRefused as error:
            narrower = plan.narrower(read.going, step, here.policy) if plan.is_too_much(error.text) else None
            if narrower is None:
                raise
            read = replace(read, going=narrower)
            continue
        read = _write_window(here, read, step, rows)
        here.progress(Progress(Phase.RECORDS, total_s - read.going.left_s, total_s, len(rows.rows)))
    return read


def _write_window(here: _Here, read: _Windows, step: Step, rows: Rows) -> _Windows:
    """One transaction."""
    going, state = read.going, read.state
    with here.engine.begin() as connection:
        gpus_known = here.told.gpus_known
        written = write_records(connection, here.cluster.id, rows, here.now_s, here.cluster.name, gpus_known=gpus_known)
        if written.unframed:
            # A reply that was damaged on its way is whole the next time; what stays unreadable holds back only once
            going = replace(going, held=True)
        if step.until_s is None:
            confirm(connection, here.cluster.id, here.told.alive or frozenset(), here.now_s)
        state = plan.known_after(state, going, step)
        if state != read.state:
            save_state(connection, here.cluster.id, state)
        closed = len(rows.rows)
        if closed > here.policy.many_rows:
            closed -= _open_count(connection, here.cluster.id)
    if written.unframed:
        here.note(
            f"{written.unframed} pieces of sacct's reply are no rows; they are in quarantine, and will be read again"
        )
    return _Windows(
        plan.after(going, step, closed, here.policy),
        state,
        read.count + 1,
        read.counts.plus(written.counts),
        written.keys if step.until_s is None else read.shown,
    )


def _open_count(connection: Connection, cluster_id: int) -> int:
    record = job_records.c
    query = select(func.count()).where(record.cluster_id == cluster_id, record.ended_s.is_(None))
    return connection.scalar(query) or 0


def _ask_for_missing(here: _Here, read: _Windows, *, user: str | None) -> tuple[Counts, int]:
    return ask_for_missing(
        here.engine,
        here.books,
        here.cluster,
        read.shown,
        here.now_s,
        user=user,
        gpus_known=here.told.gpus_known,
        progress=here.progress,
        unknown=_unknown("not known what became of open records that Slurm no longer lists", here.note),
    )
