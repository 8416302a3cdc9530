"""The accounting tables as they were first. Frozen: later revisions change them, this file never changes."""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    and_,
    func,
    literal_column,
)
from sqlalchemy import PrimaryKeyConstraint as PrimaryKey
from sqlalchemy import UniqueConstraint as Unique

revision = "0001"
down_revision = None

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _id() -> Column[int]:
    return Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False)


def _number(name: str, *, null: bool = True) -> Column[int]:
    return Column(name, BigInteger, nullable=null)


def _text(name: str, *, null: bool = False) -> Column[str]:
    return Column(name, Text, nullable=null)


def _numbers(*names: str, null: bool = True) -> list[Column[int]]:
    return [_number(name, null=null) for name in names]


def _texts(*names: str) -> list[Column[str]]:
    return [_text(name) for name in names]


def _of(table: str) -> Column[int]:
    return Column(f"{table[:-1]}_id", BigInteger, ForeignKey(f"{table}.id"), nullable=False)


clusters = Table("clusters", metadata, _id(), _text("name"), Unique("name"))

nodes = Table("nodes", metadata, _id(), _of("clusters"), _text("name"), Unique("cluster_id", "name"))


job_records = Table(
    "job_records",
    metadata,
    _id(),
    _of("clusters"),
    _text("record"),
    *_numbers("raw_id", "job_id", null=False),
    *_numbers("array_index", "het_offset"),
    *_texts("pending_tasks", "name", "user", "account", "partition", "qos", "state"),
    *_numbers(
        "state_by",
        "exit_status",
        "exit_signal",
        "derived_status",
        "derived_signal",
        "submitted_s",
        "eligible_s",
        "started_s",
        "ended_s",
    ),
    *_numbers("suspended_s", "limit_s", "nodes", "cpus", "memory_mib", "gpus"),
    _text("gpu_models"),
    _number("billing"),
    *_texts("node_list", "failed_node"),
    _number("restarts"),
    *_texts("reason", "comment", "admin_comment", "cause"),
    _number("digest", null=False),
    _number("alive_s"),
    _number("steps_s"),
    _number("purged_s"),
    Unique("cluster_id", "record"),
)


Index(
    "ix_job_records_usage",
    job_records.c.cluster_id,
    job_records.c.account,
    job_records.c.ended_s,
    job_records.c.started_s,
    job_records.c.gpus,
    job_records.c.gpu_models,
    job_records.c.user,
    job_records.c.partition,
)
Index("ix_job_records_ended", job_records.c.cluster_id, job_records.c.ended_s, job_records.c.started_s)


_LOWER = func.lower(job_records.c.gpu_models)
SLICED = func.replace(_LOWER, literal_column("'g.'"), literal_column("''")) != _LOWER
Index(
    "ix_job_records_sliced",
    job_records.c.cluster_id,
    job_records.c.ended_s,
    sqlite_where=SLICED,
    postgresql_where=SLICED,
)
Index("ix_job_records_job", job_records.c.cluster_id, job_records.c.job_id)

_STEPS_WANTED = and_(job_records.c.steps_s.is_(None), job_records.c.ended_s.is_not(None))
Index("ix_job_records_steps", job_records.c.cluster_id, sqlite_where=_STEPS_WANTED, postgresql_where=_STEPS_WANTED)

record_nodes = Table(
    "record_nodes",
    metadata,
    Column("record_id", BigInteger, nullable=False),
    Column("node_id", BigInteger, nullable=False),
    PrimaryKey("record_id", "node_id"),
    sqlite_with_rowid=False,
)

steps = Table(
    "steps",
    metadata,
    Column("record_id", BigInteger, nullable=False),
    *_texts("step", "name", "state"),
    *_numbers("exit_status", "exit_signal", "started_s", "ended_s"),
    _text("node_list"),
    _number("tasks"),
    PrimaryKey("record_id", "step"),
    sqlite_with_rowid=False,
)


runs = Table(
    "runs",
    metadata,
    *_texts("run_id", "cluster", "name", "user", "kind"),
    _number("nodes", null=False),
    _number("tasks", null=False),
    _text("spec_digest"),
    _number("created_ms", null=False),
    _number("cancelled_ms"),
    _number("finished"),
    _number("held", null=False),
    _text("checkpoints", null=True),
    _number("digest", null=False),
    PrimaryKey("run_id"),
)

run_jobs = Table(
    "run_jobs",
    metadata,
    *_texts("run_id", "cluster"),
    _number("job_id", null=False),
    _text("user"),
    _number("since_s", null=False),
    PrimaryKey("run_id", "cluster", "job_id"),
)
Index("ix_run_jobs_job", run_jobs.c.cluster, run_jobs.c.job_id)

attempts = Table(
    "attempts",
    metadata,
    _text("run_id"),
    *_numbers("task", "major", "minor", null=False),
    *_texts("job_id", "host"),
    _text("nodes"),
    _number("node_count"),
    _number("started_ms", null=False),
    *_numbers("ended_ms", "exit_status"),
    _text("ending"),
    _text("failure"),
    _number("terminated", null=False),
    *_numbers("resume_step", "first_step"),
    _number("first_step_ms"),
    *_numbers("last_step", "last_step_ms"),
    _number("done", null=False),
    PrimaryKey("run_id", "task", "major", "minor"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    _text("run_id"),
    *_numbers("task", "major", "minor", null=False),
    _number("sequence", null=False),
    _number("training_step", null=False),
    _text("name"),
    _number("committed", null=False),
    _number("saved_ms"),
    _number("blocked_ms"),
    *_numbers("total_ms", "bytes"),
    PrimaryKey("run_id", "task", "major", "minor", "sequence"),
)

interruptions = Table(
    "interruptions",
    metadata,
    _text("run_id"),
    _number("task", null=False),
    _number("major", null=False),
    *_numbers("minor", "at_ms", null=False),
    _text("ending"),
    _text("causes"),
    _number("by_person", null=False),
    PrimaryKey("run_id", "task", "major", "minor"),
)

actions = Table(
    "actions",
    metadata,
    _text("run_id"),
    *_numbers("sequence", "at_ms", "task", null=False),
    _text("kind"),
    *_texts("by", "why"),
    PrimaryKey("run_id", "sequence"),
)


node_events = Table(
    "node_events",
    metadata,
    _of("clusters"),
    _text("node"),
    _number("started_s", null=False),
    _number("ended_s"),
    *_texts("state", "reason", "user"),
    PrimaryKey("cluster_id", "node", "started_s", "state"),
)

node_verdicts = Table(
    "node_verdicts",
    metadata,
    _of("clusters"),
    _text("node"),
    _number("at_ms", null=False),
    *_texts("phase", "decision", "reason", "job_id", "boot_id"),
    _number("passed", null=False),
    PrimaryKey("cluster_id", "node", "at_ms", "phase", "job_id"),
)

node_findings = Table(
    "node_findings",
    metadata,
    _of("clusters"),
    _text("node"),
    _number("at_ms", null=False),
    *_texts("phase", "job_id"),
    _number("sequence", null=False),
    *_texts("check_id", "outcome", "care", "subject", "part", "words"),
    _number("code"),
    PrimaryKey("cluster_id", "node", "at_ms", "phase", "job_id", "sequence"),
)

gpu_use = Table(
    "gpu_use",
    metadata,
    _of("clusters"),
    _text("node"),
    _number("at_ms", null=False),
    _text("job_id"),
    _text("gpu"),
    _text("uuid"),
    _number("used_ms"),
    _number("energy_mj"),
    _number("memory_bytes"),
    PrimaryKey("cluster_id", "node", "at_ms", "job_id", "gpu"),
)


prices = Table(
    "prices",
    metadata,
    _id(),
    _text("cluster"),
    *_texts("partition", "gpu_model"),
    _number("since_s", null=False),
    _text("currency"),
    _text("per_gpu_hour"),
    _text("note"),
    Unique("cluster", "partition", "gpu_model", "since_s"),
)

sync_state = Table(
    "sync_state",
    metadata,
    Column("cluster_id", BigInteger, ForeignKey("clusters.id"), primary_key=True, autoincrement=False),
    _number("from_s"),
    _number("to_s"),
    _number("synced_s"),
    *_numbers("nightly_s", "weekly_s"),
    _number("waiting"),
    _number("sees_all"),
    _number("events_s"),
)

quarantine = Table(
    "quarantine",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    _text("cluster"),
    _text("source"),
    _text("key", null=True),
    _number("at_s", null=False),
    _text("why"),
    _text("digest"),
    Column("raw", LargeBinary, nullable=False),
    Unique("cluster", "source", "digest"),
)


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)


def downgrade() -> None:
    metadata.drop_all(op.get_bind(), checkfirst=False)
