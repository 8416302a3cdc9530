"""What is kept from one pass to the next, so that the next one is cheap. Pure.

A daemon that begins has nothing of it, and reads everything once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from fleetctl.recovery.model import Finding, Reservation
from fleetctl.recovery.read_wire import RunRead


class Limits(Struct, frozen=True):
    """How old what is seen may be, and how much is looked into at once."""

    seldom: timedelta = timedelta(seconds=60)  # reservations, and when slurmctld began
    retry: timedelta = timedelta(seconds=15)  # of what failed
    findings: timedelta = timedelta(seconds=60)
    thorough: timedelta = timedelta(hours=1)  # each event file of a run is looked at as often, whatever its head says
    settling: timedelta = timedelta(minutes=10)  # after news: others may go on writing to files that are there already
    fresh: timedelta = timedelta(seconds=60)  # a head writes its pulse every 5 s
    future: timedelta = timedelta(minutes=2)  # how far clocks of hosts may be apart
    look_back: timedelta = timedelta(days=7)  # a run without a job and without a sign since is over
    evidence_runs: int = 8  # that are looked into in one pass
    log_first_bytes: int = 1 << 20
    log_last_bytes: int = 4 << 20


class Known(Struct, frozen=True):
    """A run as it was read. `rows` are its rows in Slurm then, as far as they can change; `looked_at` is when each of
    its event files was looked at, `changed_at` when there was news. `is_watched` False: it is over, or not ours."""

    run_id: str
    state: str = ""
    digest: str = ""
    uid: int = -1
    read: RunRead | None = None
    real: bytes = b""
    rows: tuple[tuple[int, str, int | None], ...] = ()
    looked_at: datetime | None = None
    changed_at: datetime | None = None
    is_fresh: bool = False
    is_watched: bool = True


class Seen(Struct, frozen=True):
    """What is kept. `runs` is by folder, `folders` says which folder is that of a run's id, `gpus` is by raw job id and
    restarts, `asked_at` says when each thing was asked for that is asked for seldom. `calls` counts what Slurm was
    asked in the newest pass; `owes_records`: accounting could not be asked in it any more."""

    runs: Mapping[str, Known] = {}
    folders: Mapping[str, str] = {}
    findings: Mapping[str, tuple[Finding, ...]] | None = None
    maintenance: tuple[Reservation, ...] | None = None
    controller_since: datetime | None = None
    gpus: Mapping[tuple[int, int], int | None] = {}
    dead: frozenset[str] = frozenset()
    asked_at: Mapping[str, datetime] = {}
    troubles: Mapping[str, str] = {}  # of what is asked for seldom, until it answers
    calls: int = 0
    owes_records: bool = False
