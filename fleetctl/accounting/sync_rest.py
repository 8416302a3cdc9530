"""What a sync reads besides Slurm's records: events of nodes, what the nodes published, and run directories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from sqlalchemy import Engine

from fleetctl.accounting import plan
from fleetctl.accounting.ingest_events import ingest_events
from fleetctl.accounting.ingest_nodes import ingest_nodes
from fleetctl.accounting.ingest_runs import Ingested, ingest_runs
from fleetctl.accounting.quarantine import count
from fleetctl.accounting.sync import Synced
from fleetctl.accounting.sync_missing import ask_for_runs
from fleetctl.accounting.write_records import Counts
from fleetctl.errors import CannotTell, RunDirError, SlurmError
from fleetctl.rundir.store import Store
from fleetctl.slurm.books import Books

Note = Callable[[str], None]
Answer = TypeVar("Answer")


class Rest(Struct, frozen=True):
    """How many stretches of nodes, verdicts of nodes and run directories were new or had changed, and records of held
    jobs. None: that could not be read now, or there was nowhere to read it."""

    events: int | None
    verdicts: int | None
    runs: int | None
    counts: Counts
    in_quarantine: int  # all that lies there, of every source


def read_rest(engine: Engine, books: Books, synced: Synced, store: Store, nodes: Path | None, note: Note) -> Rest:
    """In this order, since a run's interruptions are explained by what the others told.

    :param nodes: the folder where nodes publish; None: there is none.
    """
    cluster, now_s = synced.cluster, synced.began_s

    def events() -> int:
        with engine.connect() as connection:
            return ingest_events(connection, cluster.id, books, now_s)

    def verdicts() -> int:
        assert nodes is not None
        with engine.begin() as connection:
            return ingest_nodes(connection, cluster.name, str(nodes), note, now_s=now_s)

    def runs() -> Ingested:
        with engine.connect() as connection:
            return ingest_runs(connection, store, note, cluster=cluster.name, now_s=now_s)

    def jobs() -> Counts:
        oldest_s = now_s - plan.POLICY.weekly_reach_s  # of some there is none for ever: others are asked for no longer
        return ask_for_runs(
            engine,
            books,
            cluster,
            now_s,
            oldest_s,
            gpus_known=synced.gpus_known,
            unknown=lambda why: note(f"not known what became of jobs of runs without a record: {why}"),
        )

    event_count = _told(events, "events of nodes were not read", note)
    verdict_count = _told(verdicts, "what nodes published was not read", note) if nodes else None
    ingested = _told(runs, "run directories were not read", note)
    counts = jobs()
    with engine.begin() as connection:
        aside = count(connection, cluster.name)
    return Rest(event_count, verdict_count, ingested.changed if ingested else None, counts, aside)


def _told(question: Callable[[], Answer], unknown: str, note: Note) -> Answer | None:
    try:
        return question()
    except (CannotTell, RunDirError, SlurmError) as error:
        note(f"{unknown}: {error.message}")
        return None
