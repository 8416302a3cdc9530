"""Rows of runs in a database, for the tests that read them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Table

from fleetctl.accounting import tables

T0 = 1_790_000_000
_NUMBERS: dict[str, int | None] = {
    "id": None,
    "terminated": 0,
    "done": 0,
    "committed": 1,
    "held": 0,
    "by_person": 0,
    "digest": 0,
    "nodes": 2,
}


def put(connection: Connection, table: Table, **values: Any) -> None:
    """One row; what is not given is "" or 0 where it may not be null."""
    row: dict[str, Any] = {column.name: _NUMBERS.get(column.name, 0) for column in table.columns if not column.nullable}
    row |= {column.name: "" for column in table.columns if not column.nullable and column.type.python_type is str}
    connection.execute(table.insert().values({**row, **values}))


def put_cluster(connection: Connection, key: int, name: str, synced: int | None = 1_000_000) -> None:
    put(connection, tables.clusters, id=key, name=name)
    if synced is not None:
        put(connection, tables.sync_state, cluster_id=key, from_s=0, to_s=T0 + synced, synced_s=T0 + synced, sees_all=1)


def put_run(connection: Connection, run_id: str, **values: Any) -> None:
    """Created at T0 by ada on cluster c."""
    made = {"cluster": "c", "name": "train", "user": "ada", "kind": "plain", "tasks": 1, "checkpoints": "own"}
    put(connection, tables.runs, run_id=run_id, created_ms=T0 * 1000, **{**made, **values})


def put_job(connection: Connection, run_id: str, job_id: int, *, since: int = 0, **values: Any) -> None:
    put(
        connection,
        tables.run_jobs,
        run_id=run_id,
        job_id=job_id,
        since_s=T0 + since,
        **{"cluster": "c", "user": "ada", **values},
    )


def put_record(
    connection: Connection,
    key: int,
    job_id: int,
    times: tuple[int | None, int | None, int | None, int | None],
    **values: Any,
) -> None:
    """`times`: submitted, eligible, started and ended, seconds after T0."""
    names = ("submitted_s", "eligible_s", "started_s", "ended_s")
    made = {name: None if at is None else T0 + at for name, at in zip(names, times, strict=True)}
    fixed = {"cluster_id": 1, "user": "ada", "account": "lab", "partition": "gpu", "state": "COMPLETED", "gpus": 16}
    put(
        connection,
        tables.job_records,
        id=key,
        record=str(key),
        raw_id=job_id,
        job_id=job_id,
        **{**fixed, **made, **values},
    )


def put_attempt(
    connection: Connection, run_id: str, number: str, started: int, ended: int | None, **values: Any
) -> None:
    major, minor = map(int, number.split("."))
    put(
        connection,
        tables.attempts,
        run_id=run_id,
        major=major,
        minor=minor,
        started_ms=(T0 + started) * 1000,
        ended_ms=None if ended is None else (T0 + ended) * 1000,
        **{"task": -1, "node_count": 2, **values},
    )


def put_save(
    connection: Connection, run_id: str, number: str, step: int, began: int, blocked: int, **values: Any
) -> None:
    major, minor = map(int, number.split("."))
    put(
        connection,
        tables.checkpoints,
        run_id=run_id,
        major=major,
        minor=minor,
        sequence=step,
        training_step=step,
        saved_ms=(T0 + began + blocked) * 1000,
        blocked_ms=blocked * 1000,
        total_ms=blocked * 1000,
        **{"task": -1, **values},
    )


def put_crashed(connection: Connection, run_id: str = "train-a1") -> None:
    """The crash and requeue of tests/unit/accounting/test_ledger.py."""
    put_run(connection, run_id, finished=1)
    put_job(connection, run_id, 7)
    put_record(connection, 1, 7, (0, 0, 100, 1100), state="REQUEUED")
    put_record(connection, 2, 7, (1100, 1221, 1300, 2400), partition="big")
    step = {"first_step": 1, "first_step_ms": (T0 + 200) * 1000, "last_step": 90, "last_step_ms": (T0 + 1000) * 1000}
    put_attempt(connection, run_id, "1.0", 110, 1090, ending="failed", **step)
    step = {"first_step": 61, "first_step_ms": (T0 + 1400) * 1000, "last_step": 150, "last_step_ms": (T0 + 2370) * 1000}
    put_attempt(connection, run_id, "2.0", 1310, 2380, ending="finished", resume_step=60, done=1, **step)
    put_save(connection, run_id, "1.0", 30, 490, 10)
    put_save(connection, run_id, "1.0", 60, 700, 10)
    put_save(connection, run_id, "2.0", 120, 2000, 20)
    put(
        connection,
        tables.interruptions,
        **{"run_id": run_id, "task": -1, "major": 1, "minor": 0, "at_ms": (T0 + 1090) * 1000, "ending": "failed"},
        causes='[{"cause": "gpu", "evidence": "Xid 79", "node": "n1"}, {"cause": "crash"}]',
    )
