"""What our records say that accounts held, for a comparison with sreport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from sqlalchemy import Select, case, func, select

from fleetctl.accounting.model import Window
from fleetctl.accounting.read_exposure import held_s, holding
from fleetctl.accounting.reconcile import Ours
from fleetctl.accounting.tables import job_records

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_record = job_records.c


def read_ours(connection: Connection, window: Window, cluster_id: int) -> tuple[Ours, ...]:
    """By account: those that held GPUs, or whose records do not say, within the window."""
    held = held_s(window)
    closed = (
        select(
            _record.account,
            func.sum(held * _record.gpus).label("held"),
            func.sum(case((_record.gpus.is_(None), 1), else_=0)).label("unknown"),
        )
        .where(holding(window, [cluster_id]))
        .group_by(_record.account)
    )
    found = {
        account: Ours(account, int(seconds or 0), 0, int(unknown))
        for account, seconds, unknown in connection.execute(closed)
        if seconds or unknown
    }
    for account, seconds in connection.execute(_short(window, cluster_id)):
        before = found.get(account, Ours(account, 0))
        found[account] = replace(before, open_short_s=int(seconds))
    return tuple(found.values())


def _short(window: Window, cluster_id: int) -> Select[Any]:
    """What open records may have held after they were last seen alive, and before Slurm had forgotten them."""
    seen = func.coalesce(_record.alive_s, _record.started_s)
    start = case((seen > window.since_s, seen), else_=window.since_s)
    end = case((_record.purged_s < window.until_s, _record.purged_s), else_=window.until_s)
    return (
        select(_record.account, func.sum((end - start) * _record.gpus))
        .where(
            _record.cluster_id == cluster_id,
            _record.ended_s.is_(None),
            _record.started_s.is_not(None),
            _record.gpus > 0,
            start < end,
        )
        .group_by(_record.account)
    )
