"""The accounting database from Python. It only reads.

    from datetime import UTC, datetime
    from fleetctl.accounting.api import open_reader

    with open_reader("/var/lib/fleetctl/accounting.db") as reader:
        for row in reader.usage(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC), by=("user",)):
            print(row.keys[0], row.gpu_seconds)

Windows begin with `since` and end before `until`, aware datetimes. Times in answers end in `_s` and `_ms`: seconds and
milliseconds since the epoch. None is unknown, never zero. Every method raises DatabaseError where the database cannot
be read, and ValueError for what it does not understand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from typing import TypeVar

from sqlalchemy import Connection, Engine

from fleetctl.accounting.database import database_url, explained, open_database
from fleetctl.accounting.failures import Interruption
from fleetctl.accounting.goodput import Goodput, goodput
from fleetctl.accounting.model import Window
from fleetctl.accounting.money import Costs
from fleetctl.accounting.read_failures import read_interruptions
from fleetctl.accounting.read_jobs import Job, read_jobs
from fleetctl.accounting.read_runs import find_runs
from fleetctl.accounting.read_state import State, read_state
from fleetctl.accounting.read_usage import read_costs, read_usage
from fleetctl.accounting.usage import By, Usage, by_key
from fleetctl.errors import RunUnknown, UsageError

Answer = TypeVar("Answer")


@contextmanager
def open_reader(url: str, *, on_network_disk: bool = False) -> Iterator[Reader]:
    """A Reader of the database at `url`: the path of an SQLite file, or `postgresql://...`.

    :param on_network_disk: read SQLite on a network file system nevertheless.
    :raises DatabaseError: it is missing, or its schema is not that of this fleetctl.
    """
    engine = open_database(database_url({}, url), force_network=on_network_disk, read_only=True)
    try:
        yield Reader(engine)
    finally:
        engine.dispose()


class Reader:
    """What `fleetctl account` answers, as values. Each answer is of one moment of the database.

    `clusters` names those that count; empty: all.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def clusters(self) -> tuple[State, ...]:
        """The clusters, how old their data is, and what is missing."""
        return self._ask(read_state)

    def jobs(
        self,
        since: datetime,
        until: datetime,
        *,
        clusters: Sequence[str] = (),
        user: str | None = None,
        state: str | None = None,
        run_id: str | None = None,
        limit: int | None = None,
    ) -> tuple[Job, ...]:
        """Records that touch the window, open ones first, then those that ended last. As `account jobs`."""
        window = _window(since, until)

        def read(connection: Connection) -> tuple[Job, ...]:
            ids = _ids(connection, clusters)
            return tuple(read_jobs(connection, window, ids, user=user, state=state, run_id=run_id, limit=limit))

        return self._ask(read)

    def usage(
        self,
        since: datetime,
        until: datetime,
        *,
        by: Sequence[str] = ("account",),
        clusters: Sequence[str] = (),
        zone: tzinfo = UTC,
        billing: bool = False,
    ) -> tuple[Usage, ...]:
        """GPU-seconds held, the largest first. As `account usage`: `by` has the same words, `zone` is that of days."""
        window, keys = _window(since, until), [By(word) for word in by]

        def read(connection: Connection) -> tuple[Usage, ...]:
            ids = _ids(connection, clusters)
            return by_key(read_usage(connection, window, keys, ids, zone, billing=billing), keys)

        return self._ask(read)

    def cost(
        self,
        since: datetime,
        until: datetime,
        *,
        by: Sequence[str] = ("account",),
        clusters: Sequence[str] = (),
        zone: tzinfo = UTC,
        currency: str | None = None,
    ) -> Costs:
        """What the GPUs held cost, as exact fractions, not rounded. As `account cost`.

        ValueError also where prices of several currencies apply, and none is asked for.
        """
        window, keys = _window(since, until), [By(word) for word in by]
        return self._ask(
            lambda connection: read_costs(connection, window, keys, _ids(connection, clusters), zone, currency)
        )

    def goodput(
        self, since: datetime, until: datetime, *, run_ids: Sequence[str] = (), clusters: Sequence[str] = ()
    ) -> tuple[Goodput, ...]:
        """Both ledgers of each run with time in the window, as far as they lie in it. As `account goodput`."""
        window = _window(since, until)

        def read(connection: Connection) -> tuple[Goodput, ...]:
            try:
                found = find_runs(connection, run_ids, window, clusters)
            except (RunUnknown, UsageError) as error:
                raise ValueError(str(error)) from None
            return goodput(found.runs, found.as_of_ms, window)

        return self._ask(read)

    def failures(self, since: datetime, until: datetime, *, clusters: Sequence[str] = ()) -> tuple[Interruption, ...]:
        """What interrupted jobs that held GPUs, the earliest first. As `account failures`."""
        window = _window(since, until)

        def read(connection: Connection) -> tuple[Interruption, ...]:
            wanted = set(_ids(connection, clusters))
            names = {state.cluster_id: state.cluster for state in read_state(connection) if state.cluster_id in wanted}
            return read_interruptions(connection, window, names).merged.interruptions

        return self._ask(read)

    def _ask(self, read: Callable[[Connection], Answer]) -> Answer:
        with explained(self._engine), self._engine.connect() as connection:
            return read(connection)


def _window(since: datetime, until: datetime) -> Window:
    if since.tzinfo is None or until.tzinfo is None:
        raise ValueError("since and until are aware datetimes: tzinfo=UTC, or a ZoneInfo")
    window = Window(int(since.timestamp()), int(until.timestamp()))
    if window.until_s <= window.since_s:
        raise ValueError("until is after since")
    return window


def _ids(connection: Connection, clusters: Sequence[str]) -> tuple[int, ...]:
    states = read_state(connection)
    if missing := set(clusters) - {state.cluster for state in states}:
        raise ValueError(f"no cluster {min(missing)} in this database")
    return tuple(state.cluster_id for state in states if not clusters or state.cluster in clusters)
