"""What the recovery daemon did and knows. Frozen: later revisions change it, this file never changes."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Table, Text
from sqlalchemy import PrimaryKeyConstraint as PrimaryKey

revision = "0002"
down_revision = "0001"

metadata = MetaData(naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"})


def _number(name: str, *, null: bool = True) -> Column[int]:
    return Column(name, BigInteger, nullable=null)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _numbers(*names: str) -> list[Column[int]]:
    return [_number(name) for name in names]


def _texts(*names: str) -> list[Column[str]]:
    return [_text(name) for name in names]


daemon_actions = Table(
    "daemon_actions",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    *_texts("cluster", "scope", "identity"),
    _number("token", null=False),
    _number("at_ms", null=False),
    _number("ended_ms"),
    *_texts("deed", "run_key", "start", "rule", "why", "outcome", "detail", "action"),
    Index("ix_daemon_actions_at", "cluster", "scope", "at_ms"),
    Index("ix_daemon_actions_identity", "cluster", "scope", "identity"),
)

daemon_interruptions = Table(
    "daemon_interruptions",
    metadata,
    *_texts("cluster", "scope", "run_key", "attempt", "start"),
    _number("at_ms", null=False),
    *_texts("cause", "fingerprint", "interruption"),
    *_numbers("recovered_ms", "detection_ms", "restart_ms", "lost_ms"),
    PrimaryKey("cluster", "scope", "run_key", "attempt", "start"),
    Index("ix_daemon_interruptions_at", "cluster", "scope", "at_ms"),
)

daemon_state = Table(
    "daemon_state",
    metadata,
    *_texts("cluster", "scope", "kind", "name"),
    _number("at_ms", null=False),
    _text("value"),
    PrimaryKey("cluster", "scope", "kind", "name"),
)

daemon_lease = Table(
    "daemon_lease",
    metadata,
    *_texts("cluster", "scope", "holder"),
    _number("token", null=False),
    _text("epoch"),
    _number("expires_ms", null=False),
    PrimaryKey("cluster", "scope"),
)


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)


def downgrade() -> None:
    metadata.drop_all(op.get_bind(), checkfirst=False)
