"""A month in which the price changes, through the whole command line, beside a sum that was made by hand."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.databases import FreshDatabase, fresh_database, postgres
from tests.stub_sacct import StubSlurm, make_rows
from tests.support import Cli

__all__ = ["fresh_database", "postgres"]

#                account  GPUs  start                  end                    within October at which price
_JOBS = (
    ("astro", 8, "2026-09-30T20:00:00", "2026-10-01T04:00:00"),  # 4 h x 8 = 32 h at 2.10 = 67.20
    ("bio", 4, "2026-10-16T11:20:00", "2026-10-16T13:05:00"),  # 40 min x 4 at 2.10 = 5.60; 65 min x 4 at 1.95 = 8.45
    ("astro", 1, "2026-10-20T00:00:00", "2026-10-20T00:00:07"),  # 7 s at 1.95 = 0.003791 6...
    ("bio", 3, "2026-10-31T23:59:59", "2026-11-02T00:00:00"),  # 1 s x 3 at 1.95 = 0.001625
    ("chem", 2, "2026-10-16T12:00:00", "2026-10-16T12:00:00"),  # nothing
    ("chem", 2, "2026-11-01T00:00:00", "2026-11-01T01:00:00"),  # November's
)
# astro 67.203791..., bio 14.051625; together 81.255416...: two rows that are each rounded down, and a sum rounded up
_BY_HAND = {"astro": 67.20, "bio": 14.05, "chem": 0}
_TOTAL = 81.26


def seconds(text: str) -> str:
    return str(int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()))


def rows() -> list[dict[str, str]]:
    found = make_rows(len(_JOBS), 7, span_s=0, first_id=100)
    for number, (row, (account, gpus, start, end)) in enumerate(zip(found, _JOBS, strict=True)):
        tres = f"billing={gpus},cpu=1,gres/gpu:h100={gpus},gres/gpu={gpus},mem=1024M,node=1"
        times = {"Submit": seconds(start), "Eligible": seconds(start), "Start": seconds(start), "End": seconds(end)}
        ids = {"JobID": str(100 + number), "JobIDRaw": str(100 + number), "State": "COMPLETED"}
        row.update(times | ids | {"Account": account, "AllocTRES": tres})
    return found


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_month_with_a_price_change_is_right_to_the_cent(
    tmp_path: Path, fresh_database: FreshDatabase, kind: str
) -> None:
    stub = StubSlurm(tmp_path / "stub")
    stub.write(rows())
    cli = Cli({**stub.environ(os.environ), "TZ": "Europe/Berlin"}, tmp_path / "runs")
    url = fresh_database(kind)

    assert cli("account", "sync", "--since", "2026-09", FLEETCTL_DATABASE=url).returncode == 0
    for price, since in (("2.10", "2026-09-01T00:00Z"), ("1.95", "2026-10-16T12:00Z")):
        done = cli("account", "price", "set", price, "--from", since, "--currency", "EUR", FLEETCTL_DATABASE=url)
        assert done.returncode == 0, done.stderr
    asked = ("account", "cost", "--by", "account", "--since", "2026-10", "--until", "2026-11", "--utc")
    told = cli.json(*asked, FLEETCTL_DATABASE=url)
    assert {row["account"]: row["amount"] for row in told["rows"]} == _BY_HAND
    assert {row["account"]: row["gpu_seconds"] for row in told["rows"]} == {"astro": 115_207, "bio": 25_203, "chem": 0}
    assert (told["total"]["amount"], told["total"]["currency"]) == (_TOTAL, "EUR")
    printed = cli(*asked, "--csv", FLEETCTL_DATABASE=url).stdout
    assert ",67.2,EUR," in printed
    assert ",14.05,EUR," in printed
