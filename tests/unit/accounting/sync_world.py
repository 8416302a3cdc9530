"""A database, a cluster and a clock in memory, for tests of a sync."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, Table, select

from fleetctl.accounting import tables
from fleetctl.accounting.plan import POLICY, Policy
from fleetctl.accounting.sync import Synced, sync
from tests.accounting_books import Clock, FakeBooks


class World:
    """One database, one cluster and one clock."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.clock = engine, Clock()
        self.books = FakeBooks(self.clock)
        self.notes: list[str] = []
        self.replies: list[int] = []  # rows in each

    def sync(self, *, later_s: int = 0, since_s: int | None = None, policy: Policy = POLICY, **more: Any) -> Synced:
        self.clock.now_s += later_s
        return sync(
            self.engine,
            self.books,
            self.clock,
            since_s=since_s,
            user="ann",
            note=self.notes.append,
            progress=lambda progress: self.replies.append(progress.rows),
            policy=policy,
            **more,
        )

    def rows(self, table: Table) -> list[dict[str, Any]]:
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(select(table)).mappings()]

    def record(self, raw_id: int) -> dict[str, Any]:
        (found,) = (row for row in self.rows(tables.job_records) if row["raw_id"] == raw_id)
        return found

    def raw_ids(self) -> list[int]:
        return sorted(row["raw_id"] for row in self.rows(tables.job_records))

    def state(self) -> dict[str, Any]:
        (found,) = self.rows(tables.sync_state)
        return found

    def asked(self, method: str) -> list[tuple[object, ...]]:
        return [call for call in self.books.calls if call[0] == method]
