"""The tables of the accounting database. Alembic owns the schema (db/versions); a test holds the two together.

Times are whole seconds since the epoch (`_s`) or milliseconds (`_ms`). Ids of our own are given out by the one sync
that runs at a time. What a sync knows about itself (sync_state, quarantine, `digest`, `alive_s`, `steps_s`, `purged_s`)
is no fact about jobs, and no export shows it. Nor is what the recovery daemon remembers (daemon_*), which no sync reads
or writes.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    and_,
    func,
    literal_column,
)
from sqlalchemy import PrimaryKeyConstraint as PrimaryKey
from sqlalchemy import UniqueConstraint as Unique

from fleetctl.accounting.columns import number, numbers, row_id, text, texts
from fleetctl.accounting.daemon_tables import daemon_tables

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _of(table: str) -> Column[int]:
    return Column(f"{table[:-1]}_id", BigInteger, ForeignKey(f"{table}.id"), nullable=False)


clusters = Table("clusters", metadata, row_id(), text("name"), Unique("name"))

nodes = Table("nodes", metadata, row_id(), _of("clusters"), text("name"), Unique("cluster_id", "name"))

# Slurm's records

job_records = Table(
    "job_records",
    metadata,
    row_id(),
    _of("clusters"),
    text("record"),
    *numbers("raw_id", "job_id", null=False),
    *numbers("array_index", "het_offset"),
    *texts("pending_tasks", "name", "user", "account", "partition", "qos", "state"),
    *numbers(
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
    *numbers("suspended_s", "limit_s", "nodes", "cpus", "memory_mib", "gpus"),
    text("gpu_models"),
    number("billing"),
    *texts("node_list", "failed_node"),
    number("restarts"),
    *texts("reason", "comment", "admin_comment", "cause"),
    number("digest", null=False),  # of the row as sacct printed it: an unchanged one is not read again
    number("alive_s"),  # open records: when the controller last confirmed it; usage is counted up to then
    number("steps_s"),  # when its steps were asked for; 0: they have nothing to tell; null: not asked yet
    number("purged_s"),  # when Slurm was first seen to have forgotten it
    Unique("cluster_id", "record"),
)
# A month's usage reads this index alone. Accounts first: for each one the rows of the window are added up as they lie,
# which takes SQLite a quarter of what sorting them by their account takes.
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
# GPUs that are slices of one, such as a100_3g.20gb: mostly none, and sums over all GPUs need them apart. No LIKE: the
# drivers disagree about its percent signs.
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
# The few whose steps a sync still has to ask for: without it, each sync would read all records
_STEPS_WANTED = and_(job_records.c.steps_s.is_(None), job_records.c.ended_s.is_not(None))
Index("ix_job_records_steps", job_records.c.cluster_id, sqlite_where=_STEPS_WANTED, postgresql_where=_STEPS_WANTED)

record_nodes = Table(
    "record_nodes",
    metadata,
    Column("record_id", BigInteger, nullable=False),  # of job_records; no foreign key: a third of a sync's time
    Column("node_id", BigInteger, nullable=False),
    PrimaryKey("record_id", "node_id"),
    sqlite_with_rowid=False,
)

steps = Table(
    "steps",
    metadata,
    Column("record_id", BigInteger, nullable=False),
    *texts("step", "name", "state"),
    *numbers("exit_status", "exit_signal", "started_s", "ended_s"),
    text("node_list"),
    number("tasks"),
    PrimaryKey("record_id", "step"),
    sqlite_with_rowid=False,
)

# What run directories say. `task` is -1 where the run is no sweep.

runs = Table(
    "runs",
    metadata,
    *texts("run_id", "cluster", "name", "user", "kind"),
    number("nodes", null=False),  # that the training uses, without spares
    number("tasks", null=False),
    text("spec_digest"),
    number("created_ms", null=False),
    number("cancelled_ms"),
    number("finished"),  # 1: every task ended well; 0: it is over and did not; null: not known yet
    number("held", null=False),  # 1: it waits for a person
    text("checkpoints", null=True),  # `checkpoint.format` of its spec; "": it has none; null: not known
    number("digest", null=False),  # of all that was read: an unchanged folder is not written again
    PrimaryKey("run_id"),
)

run_jobs = Table(
    "run_jobs",
    metadata,
    *texts("run_id", "cluster"),
    number("job_id", null=False),  # base id
    text("user"),
    number("since_s", null=False),  # job ids are given out again: only records submitted since are the run's
    PrimaryKey("run_id", "cluster", "job_id"),
)
Index("ix_run_jobs_job", run_jobs.c.cluster, run_jobs.c.job_id)

attempts = Table(
    "attempts",
    metadata,
    text("run_id"),
    *numbers("task", "major", "minor", null=False),
    *texts("job_id", "host"),
    text("nodes"),  # that the training uses, as written
    number("node_count"),
    number("started_ms", null=False),
    *numbers("ended_ms", "exit_status"),
    text("ending"),  # "" while it goes on, or where nobody could write it down
    text("failure"),
    number("terminated", null=False),
    *numbers("resume_step", "first_step"),
    number("first_step_ms"),  # when the first training step of this attempt had been done
    *numbers("last_step", "last_step_ms"),
    number("done", null=False),
    PrimaryKey("run_id", "task", "major", "minor"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    text("run_id"),
    *numbers("task", "major", "minor", null=False),
    number("sequence", null=False),  # line of saves.jsonl
    number("training_step", null=False),
    text("name"),
    number("committed", null=False),
    number("saved_ms"),
    number("blocked_ms"),  # what the training waited
    *numbers("total_ms", "bytes"),
    PrimaryKey("run_id", "task", "major", "minor", "sequence"),
)

interruptions = Table(
    "interruptions",
    metadata,
    text("run_id"),
    number("task", null=False),
    number("major", null=False),  # the attempt that it ended
    *numbers("minor", "at_ms", null=False),
    text("ending"),
    text("causes"),  # JSON: ranked, the likeliest first: [{"cause", "evidence", "node"}]
    number("by_person", null=False),  # 1: only a person brought the run back, or can
    PrimaryKey("run_id", "task", "major", "minor"),
)

actions = Table(
    "actions",
    metadata,
    text("run_id"),
    *numbers("sequence", "at_ms", "task", null=False),
    text("kind"),  # rundir.model.EventKind
    *texts("by", "why"),
    PrimaryKey("run_id", "sequence"),
)

# What is known about nodes

node_events = Table(
    "node_events",
    metadata,
    _of("clusters"),
    text("node"),
    number("started_s", null=False),
    number("ended_s"),
    *texts("state", "reason", "user"),
    PrimaryKey("cluster_id", "node", "started_s", "state"),
)

node_verdicts = Table(
    "node_verdicts",
    metadata,
    _of("clusters"),
    text("node"),
    number("at_ms", null=False),
    *texts("phase", "decision", "reason", "job_id", "boot_id"),
    number("passed", null=False),
    PrimaryKey("cluster_id", "node", "at_ms", "phase", "job_id"),
)

node_findings = Table(
    "node_findings",
    metadata,
    _of("clusters"),
    text("node"),
    number("at_ms", null=False),
    *texts("phase", "job_id"),
    number("sequence", null=False),
    *texts("check_id", "outcome", "care", "subject", "part", "words"),
    number("code"),
    PrimaryKey("cluster_id", "node", "at_ms", "phase", "job_id", "sequence"),
)

gpu_use = Table(
    "gpu_use",
    metadata,
    _of("clusters"),
    text("node"),
    number("at_ms", null=False),  # of the epilog
    text("job_id"),
    text("gpu"),  # PCI address
    text("uuid"),
    number("used_ms"),  # since the prolog
    number("energy_mj"),  # millijoules
    number("memory_bytes"),
    PrimaryKey("cluster_id", "node", "at_ms", "job_id", "gpu"),
)

# Prices, and what the sync knows about itself

prices = Table(
    "prices",
    metadata,
    row_id(),
    text("cluster"),  # "" in these three: any
    *texts("partition", "gpu_model"),
    number("since_s", null=False),
    text("currency"),
    text("per_gpu_hour"),  # a decimal number, exact
    text("note"),
    Unique("cluster", "partition", "gpu_model", "since_s"),
)

sync_state = Table(
    "sync_state",
    metadata,
    Column("cluster_id", BigInteger, ForeignKey("clusters.id"), primary_key=True, autoincrement=False),
    number("from_s"),  # everything that Slurm had between these two was read
    number("to_s"),
    number("synced_s"),  # when the last sync that worked began: the age of the data
    *numbers("nightly_s", "weekly_s"),
    number("waiting"),  # records that slurmctld had not handed to slurmdbd yet; null: not known
    number("sees_all"),  # of that stretch, 1: the records of all users; 0: of some only the caller's; null: not known
    number("events_s"),  # node events were read up to here
)

quarantine = Table(
    "quarantine",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    text("cluster"),
    text("source"),  # sacct, steps, run, node
    text("key", null=True),  # the record that it is a row of, as in job_records; null: not known
    number("at_s", null=False),
    text("why"),
    text("digest"),  # of `raw`: the same row is kept once
    Column("raw", LargeBinary, nullable=False),
    Unique("cluster", "source", "digest"),
)

daemon_actions, daemon_interruptions, daemon_state, daemon_lease = daemon_tables(metadata)
