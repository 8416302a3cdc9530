"""The records of a window, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, Select, and_, func, or_, select

from fleetctl.accounting.model import Window
from fleetctl.accounting.read_usage import run_of
from fleetctl.accounting.tables import clusters, job_records, run_jobs

_PAGE = 5_000  # rows in memory at a time
_RECORD = job_records.c
_OWN = (
    *("record", "name", "user", "account", "partition", "qos", "state", "cause", "exit_status", "exit_signal"),
    *("derived_status", "derived_signal", "submitted_s", "eligible_s", "started_s", "ended_s", "alive_s", "purged_s"),
    *("suspended_s", "limit_s", "nodes", "gpus", "gpu_models", "billing", "node_list", "failed_node", "restarts"),
    *("reason", "raw_id", "job_id", "array_index", "het_offset", "pending_tasks"),
)


class Job(Struct, frozen=True):
    """One record as a person sees it. None: not known, or not yet. The times are seconds since the epoch.

    `held_s` is from its start to its end, or for an open one to when it was last seen alive, whatever the window.
    """

    cluster: str
    run_id: str | None
    record: str
    name: str
    user: str
    account: str
    partition: str
    qos: str
    state: str
    cause: str
    exit_status: int | None
    exit_signal: int | None
    derived_status: int | None
    derived_signal: int | None
    submitted_s: int | None
    eligible_s: int | None
    started_s: int | None
    ended_s: int | None
    alive_s: int | None
    purged_s: int | None  # when Slurm was first seen to have forgotten it; an open one then is over, nobody knows how
    suspended_s: int | None
    limit_s: int | None
    nodes: int | None
    gpus: int | None
    gpu_models: str
    billing: int | None
    node_list: str
    failed_node: str
    restarts: int | None
    reason: str
    raw_id: int
    job_id: int
    array_index: int | None
    het_offset: int | None
    pending_tasks: str

    @property
    def job(self) -> str:
        """As Slurm's commands take it: 123, 123_4, 123+1, 123_[5-10]."""
        if self.array_index is not None:
            return f"{self.job_id}_{self.array_index}"
        if self.het_offset is not None:
            return f"{self.job_id}+{self.het_offset}"
        return f"{self.job_id}_[{self.pending_tasks}]" if self.pending_tasks else str(self.job_id)

    @property
    def held_s(self) -> int | None:
        """None where it never started, or nobody saw it running."""
        end = self.alive_s if self.ended_s is None else self.ended_s
        return None if end is None or self.started_s is None else max(end - self.started_s, 0)

    @property
    def gpu_seconds(self) -> int | None:
        held_s = self.held_s
        return None if held_s is None or self.gpus is None else held_s * self.gpus


def read_jobs(
    connection: Connection,
    window: Window,
    cluster_ids: Sequence[int],
    *,
    user: str | None = None,
    state: str | None = None,
    run_id: str | None = None,
    limit: int | None = None,
) -> Iterator[Job]:
    """Records that went on within the window or waited in it: open ones first, then by their end, the newest first.

    Not open ones that Slurm had forgotten before the window.
    They come page by page while the transaction lasts; any number takes the same memory.

    :param limit: at most so many; None: all.
    """
    wanted = [
        _RECORD.cluster_id.in_(cluster_ids),
        func.coalesce(_RECORD.started_s, _RECORD.submitted_s) < window.until_s,
    ]
    wanted += [column == asked for column, asked in ((_RECORD.user, user), (_RECORD.state, state)) if asked is not None]
    if run_id is not None:
        ids = select(run_jobs.c.job_id).where(run_jobs.c.run_id == run_id)
        wanted += [_RECORD.job_id.in_(ids), run_of() == run_id]
    left = limit
    remembered = or_(_RECORD.purged_s.is_(None), _RECORD.purged_s > window.since_s)
    for when, order in (
        (and_(_RECORD.ended_s.is_(None), remembered), (_RECORD.submitted_s.desc(), _RECORD.id.desc())),
        (_RECORD.ended_s > window.since_s, (_RECORD.ended_s.desc(), _RECORD.id.desc())),
    ):
        for job in _page_by_page(connection, _select().where(when, *wanted).order_by(*order).limit(left)):
            left = None if left is None else left - 1
            yield job


def _select() -> Select[Any]:
    own: list[ColumnElement[Any]] = [_RECORD[name] for name in _OWN]
    joined = job_records.join(clusters, clusters.c.id == _RECORD.cluster_id)
    return select(clusters.c.name, run_of(), *own).select_from(joined)


def _page_by_page(connection: Connection, statement: Select[Any]) -> Iterator[Job]:
    for row in connection.execute(statement.execution_options(yield_per=_PAGE)):
        yield Job(*row)
