"""`fleetctl account cost` and `price`, on both databases."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.accounting_rows import DAY_S, HOUR_S, T0, Rows, writing
from tests.support import Cli

_NOVEMBER = ("--since", "2026-11-01", "--until", "2026-12-01", "--utc")


@pytest.fixture
def cli(tmp_path: Path, database: str) -> Cli:
    with writing(database) as rows:
        _fill(rows)
    return Cli({**os.environ, "FLEETCTL_DATABASE": database, "TZ": "UTC"}, tmp_path / "runs")


def _fill(rows: Rows) -> None:
    ten_days: dict[str, Any] = {"started_s": T0 + 5 * DAY_S, "ended_s": T0 + 15 * DAY_S}
    rows.record(1, gpus=8, gpu_models="a100=2,h100=6", **ten_days)
    rows.record(2, user="bob", gpus=7, gpu_models="a100_3g.20gb=7", partition="slices")
    rows.record(3, user="eve", gpus=4, gpu_models="b200=4")
    rows.record(4, user="cpu", gpus=0, gpu_models="")
    rows.record(5, user="untold", gpus=None, gpu_models="")


def _set(cli: Cli, *args: str) -> str:
    said = cli("account", "price", "set", *args)
    assert said.returncode == 0, said.stderr
    return said.stderr


def test_a_month_with_a_price_change_is_right_to_the_cent(cli: Cli) -> None:
    """By hand, for ada: h100 6 x 120 h x 2.45 + 6 x 120 h x 2.99 = 3916.80; a100 2 x 240 h x 1.115 = 535.20.

    bob: seven 3/7 slices for an hour at 1.115 = 3.345, half to even 3.34; together 4455.345.
    """
    _set(cli, "2.45", "--model", "h100", "--from", "2026-01-01", "--currency", "EUR")
    _set(cli, "2.99", "--model", "h100", "--from", "2026-11-11", "--currency", "EUR")
    _set(cli, "1.115", "--model", "a100", "--from", "2026-01-01", "--currency", "EUR")

    found = cli.json("account", "cost", *_NOVEMBER, "--by", "user")

    rows = {row["user"]: row for row in found["rows"]}
    assert rows["ada"] == {
        "user": "ada",
        "gpu_seconds": 8 * 240 * HOUR_S,
        "gpu_hours": 1920,
        "amount": 4452,
        "currency": "EUR",
        "unpriced_gpu_seconds": 0,
        "unpriced_gpu_hours": 0,
        "records_without_gpu_data": 0,
        "records_without_end": 0,
    }
    assert rows["bob"]["amount"] == 3.34
    assert (rows["eve"]["amount"], rows["eve"]["currency"], rows["eve"]["unpriced_gpu_seconds"]) == (
        None,
        None,
        4 * HOUR_S,
    )
    assert (rows["cpu"]["amount"], rows["cpu"]["gpu_seconds"]) == (0, 0)
    assert (rows["untold"]["amount"], rows["untold"]["gpu_seconds"]) == (None, None)
    assert (found["total"]["amount"], found["total"]["unpriced_gpu_hours"]) == (4455.34, 4)  # 4455.345
    assert rows["untold"]["records_without_gpu_data"] == found["total"]["records_without_gpu_data"] == 1
    assert found["notes"] == [
        "4.00 GPU-hours have no price: `fleetctl account price set`",
        "in no amount: records of which nobody knows the GPUs or the end, 1",
    ]

    table = cli("account", "cost", *_NOVEMBER, "--by", "user").stdout.splitlines()
    assert table[1].split("\t") == ["ada", "1920.00", "4452.00", "EUR", "0.00", "0", "0"]
    assert not any(line.startswith("total") for line in table)


def test_costs_by_model_day_and_partition_add_up(cli: Cli) -> None:
    _set(cli, "2", "--from", "2026-01-01")
    _set(cli, "3", "--from", "2026-11-11T12:00", "--partition", "gpu")
    totals = {
        by: cli.json("account", "cost", *_NOVEMBER, "--by", by)["total"]["amount"]
        for by in ("account", "model", "day", "partition", "month", "run", "cluster")
    }
    # 8 GPUs: 132 h at 2, 108 h at 3; 3 whole GPUs in slices and 4 others for an hour at 2
    assert set(totals.values()) == {8 * 132 * 2 + 8 * 108 * 3 + (3 + 4) * 2}, totals


def test_without_any_price_nothing_costs_nothing(cli: Cli) -> None:
    found = cli.json("account", "cost", *_NOVEMBER, "--by", "user")
    assert [row["amount"] for row in found["rows"] if row["gpu_seconds"]] == [None, None, None]
    assert (found["total"]["amount"], found["total"]["currency"]) == (None, None)


def test_an_answer_has_one_currency(cli: Cli) -> None:
    _set(cli, "1", "--from", "2026-01-01", "--currency", "EUR")
    _set(cli, "2", "--from", "2026-01-01", "--model", "b200", "--currency", "USD")

    said = cli("account", "cost", *_NOVEMBER)
    assert (said.returncode, said.stdout) == (2, "")
    assert "prices in EUR and USD apply" in said.stderr
    found = cli.json("account", "cost", *_NOVEMBER, "--currency", "USD")
    assert (found["total"]["amount"], found["total"]["currency"]) == (8, "USD")


def test_prices_are_listed_replaced_and_removed(cli: Cli) -> None:
    assert "it begins in the past" in _set(cli, "2.450", "--model", "h100", "--from", "2026-01-01", "--note", "=list")
    assert "past" not in _set(cli, "3", "--model", "h100", "--from", "2100-01-01")
    assert "in the place of 2.45 USD" in _set(cli, "2.5", "--model", "h100", "--from", "2026-01-01", "--note", "=list")

    found = cli.json("account", "price", "ls")["rows"]
    scope = {"cluster": None, "partition": None, "model": "h100", "currency": "USD"}
    until = "2100-01-01T00:00:00Z"
    assert found == [
        {"from": "2026-01-01T00:00:00Z", "until": until, **scope, "per_gpu_hour": "2.5", "note": "=list"},
        {"from": until, "until": None, **scope, "per_gpu_hour": "3", "note": None},
    ]
    assert "'=list" in cli("account", "price", "ls", "--csv").stdout

    assert cli("account", "price", "rm", "--model", "h100", "--from", "2026-01-02").returncode == 2
    assert cli("account", "price", "rm", "--model", "h100", "--from", "2026-01-01").returncode == 0
    assert [row["per_gpu_hour"] for row in cli.json("account", "price", "ls")["rows"]] == ["3"]


@pytest.mark.parametrize(
    "args",
    [
        ("--from", "2026-01-01", "--", "-1"),
        ("nan", "--from", "2026-01-01"),
        ("1e400", "--from", "2026-01-01"),
        ("1", "--from", "2026-01-01", "--currency", "euro"),
        ("1", "--from", "someday"),
        ("1",),
    ],
)
def test_nonsense_is_refused_and_nothing_is_set(cli: Cli, args: tuple[str, ...]) -> None:
    said = cli("account", "price", "set", *args)
    assert said.returncode == 2, said.stderr
    assert cli.json("account", "price", "ls")["rows"] == []


def test_a_price_may_be_set_before_the_first_sync(cli: Cli, tmp_path: Path) -> None:
    fresh = ("--database", str(tmp_path / "fresh.db"))
    assert cli("account", "price", "set", "1", "--from", "2026-01-01", *fresh).returncode == 0
    assert len(cli.json("account", "price", "ls", *fresh)["rows"]) == 1
