"""What the recovery daemon did and knows, in the same database. No sync reads or writes it.

`scope` is whose runs a daemon looks after: "user NAME", or "operator".
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Table
from sqlalchemy import PrimaryKeyConstraint as PrimaryKey

from fleetctl.accounting.columns import number, numbers, text, texts


def daemon_tables(metadata: MetaData) -> tuple[Table, Table, Table, Table]:
    """Actions, interruptions, state and lease."""
    return _actions(metadata), _interruptions(metadata), _state(metadata), _lease(metadata)


def _actions(metadata: MetaData) -> Table:
    return Table(
        "daemon_actions",
        metadata,
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
        *texts("cluster", "scope"),
        text("identity"),  # a digest of what makes two actions the same one: it may be longer than an index takes
        number("token", null=False),  # of the lease under which it was begun
        number("at_ms", null=False),
        number("ended_ms"),
        *texts("deed", "run_key", "start", "rule", "why", "outcome", "detail"),
        text("action"),  # all of it, as JSON
        Index("ix_daemon_actions_at", "cluster", "scope", "at_ms"),
        Index("ix_daemon_actions_identity", "cluster", "scope", "identity"),
    )


def _interruptions(metadata: MetaData) -> Table:
    return Table(
        "daemon_interruptions",
        metadata,
        *texts("cluster", "scope", "run_key", "attempt", "start"),
        number("at_ms", null=False),
        *texts("cause", "fingerprint"),
        text("interruption"),  # all of it, as JSON
        # once the run made progress again: until it was found, until it went on, and the work that was done twice
        *numbers("recovered_ms", "detection_ms", "restart_ms", "lost_ms"),
        PrimaryKey("cluster", "scope", "run_key", "attempt", "start"),
        Index("ix_daemon_interruptions_at", "cluster", "scope", "at_ms"),
    )


def _state(metadata: MetaData) -> Table:
    return Table(
        "daemon_state",
        metadata,
        *texts("cluster", "scope"),
        text("kind"),  # note, incident, pause, verdict, pass
        text("name"),  # of a note; of a run, or "" for all of them; of an incident
        number("at_ms", null=False),
        text("value"),
        PrimaryKey("cluster", "scope", "kind", "name"),
    )


def _lease(metadata: MetaData) -> Table:
    return Table(
        "daemon_lease",
        metadata,
        *texts("cluster", "scope"),
        text("holder"),  # "": nobody
        number("token", null=False),  # rises whenever another one takes it
        text("epoch"),  # whose clock `expires_ms` is of: "" the server's, else a boot of the host of an SQLite file
        number("expires_ms", null=False),
        PrimaryKey("cluster", "scope"),
    )
