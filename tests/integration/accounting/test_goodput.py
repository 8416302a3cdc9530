"""`fleetctl account goodput` as its user calls it, on both databases."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from fleetctl.accounting.database import database_url, open_database
from fleetctl.accounting.ledger import DEFINITIONS
from fleetctl.accounting.spans import Spent
from tests.support import Cli
from tests.unit.accounting.run_rows import (
    T0,
    put_attempt,
    put_cluster,
    put_crashed,
    put_job,
    put_record,
    put_run,
)

WHOLE = ("--since", "2026-09-01", "--until", "2026-11-01")  # T0 is 2026-09-21T14:13:20Z


@pytest.fixture
def cli(database: str, tmp_path: Path) -> Cli:
    """The crashed run, a sweep that tells nothing, and a run whose GPUs Slurm does not say."""
    engine = open_database(database_url({}, database))
    with engine.begin() as connection:
        put_cluster(connection, 1, "c")
        put_crashed(connection)
        put_run(connection, "sweep-b2", kind="sweep", tasks=2, user="bob", checkpoints=None)
        put_job(connection, "sweep-b2", 20, user="bob")
        for task in (0, 1):
            put_record(
                connection, 20 + task, 20, (0, 0, 10, 110), array_index=task, user="bob", account="other", gpus=8
            )
            put_attempt(connection, "sweep-b2", "1.0", 20, 100, task=task)
        put_run(connection, "dark-c3", finished=0)
        put_job(connection, "dark-c3", 30)
        put_record(connection, 30, 30, (0, 0, 0, 50), gpus=None, account="dark")
    engine.dispose()
    return Cli({"HOME": str(tmp_path), "TZ": "UTC", "FLEETCTL_DATABASE": database}, tmp_path / "runs")


def asked(cli: Cli, *args: str) -> Any:
    done = cli("account", "goodput", *args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_second_of_a_run_has_one_class(cli: Cli) -> None:
    said = asked(cli, *WHOLE)
    assert "ettr: productive time over wall time" in said["definition"]
    assert "spare: GPUs held and not used by the training" in said["definition"]
    assert said["clusters"] == ["c"]
    rows = {row["run_id"]: row for row in said["rows"]}
    row = rows["train-a1"]
    spent = {
        key: row[key] for key in row if key.endswith("_s") and not key.startswith(("gpu_", "wall", "unsaved", "silent"))
    }
    assert sum(spent.values()) == row["wall_s"] == 2400
    assert {key: value for key, value in spent.items() if value} == {
        "queue_s": 179,
        "startup_s": 200,
        "productive_s": 1440,
        "stall_s": 40,
        "lost_s": 290,
        "hang_s": 90,
        "requeue_s": 121,
        "teardown_s": 40,
    }
    assert row["ettr"] == 1440 / 2400
    assert (row["gpu_seconds"], row["gpu_hours"]) == (16 * 2100, 9.333333)
    assert row["gpu_productive_s"] == 16 * 1440
    assert row["partitions"] == ["big", "gpu"]
    assert row["interruptions"] == [
        {
            "task": None,
            "attempt": "1.0",
            "at": "2026-09-21T14:31:30Z",
            "cause": "gpu",
            "by_person": False,
            "detection_s": 90,
            "restart_s": 310,
            "lost_s": 290,
            "detection_gpu_seconds": 16 * 90,
            "lost_gpu_seconds": 16 * 290,
        }
    ]


def test_what_nobody_knows_is_null_and_never_zero(cli: Cli) -> None:
    rows = {row["run_id"]: row for row in asked(cli, *WHOLE)["rows"]}
    sweep, dark = rows["sweep-b2"], rows["dark-c3"]
    assert (sweep["tasks"], sweep["ettr"], sweep["gpu_productive"], sweep["untold_s"]) == (2, None, None, 160)
    hidden = ("productive", "lost", "stall", "hang")
    assert [sweep[f"{key}_s"] for key in hidden] == [sweep[f"gpu_{key}_s"] for key in hidden] == [None] * 4
    assert (sweep["startup_s"], sweep["lost_share"], sweep["queue_s"]) == (20, None, 20)
    assert (sweep["wall_s"], sweep["gpu_seconds"], sweep["provisional"]) == (220, 2 * 8 * 100, True)
    assert (dark["gpu_seconds"], dark["gpu_startup_s"], dark["unknown_gpu_records"]) == (None, None, 1)
    line = next(line for line in cli("account", "goodput", *WHOLE).stdout.splitlines() if line.startswith("dark-c3"))
    assert line.split("\t")[-3:] == ["-", "untold 100.0%", "0"]


def test_one_run_is_told_in_full(cli: Cli) -> None:
    done = cli("account", "goodput", "train-a1")
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [
        "lost",
        "0.08",
        "12.1%",
        "1.29",
        "13.8%",
        DEFINITIONS[Spent.LOST],
    ] in lines
    assert ["queue", "0.05", "7.5%", "", "", DEFINITIONS[Spent.QUEUE]] in lines
    assert ["sum", "0.67", "", "9.33", "", ""] in lines
    assert ["1.0", "2026-09-21 14:31:30", "gpu", "1m30s", "5m10s", "4m50s", "1.29", "no"] in lines
    assert "60.0% of wall time" in done.stdout
    assert "ettr: productive time over wall time" in done.stderr


def test_a_window_cuts_a_named_run_too(cli: Cli) -> None:
    cut = ("--since", "2026-09-21T14:20:00Z", "--until", "2026-09-21T14:30:00Z")
    (row,) = asked(cli, "train-a1", *cut)["rows"]
    assert (row["wall_s"], row["productive_s"], row["lost_s"]) == (600, 300 - 10, 1000 - 710)
    assert row["interrupted"] == 0
    whole = asked(cli, "7")["rows"][0]
    assert whole["wall_s"] == 2400


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("user", {"ada": (2, 16 * 2100), "bob": (1, 1600)}),
        ("account", {"lab": (1, 16 * 2100), "other": (1, 1600), "dark": (1, None)}),
        ("partition", {"gpu": (3, 16 * 1000 + 1600), "big": (1, 16 * 1100)}),
    ],
)
def test_sums_are_of_records(cli: Cli, by: str, expected: dict[str, tuple[int, int | None]]) -> None:
    rows = asked(cli, *WHOLE, "--by", by)["rows"]
    assert {row[by]: (row["runs"], row["gpu_seconds"]) for row in rows} == expected
    for row in rows:
        if row[by] in ("bob", "other"):
            assert (row["gpu_productive_s"], row["gpu_untold_s"]) == (None, 2 * 8 * 80)
            continue
        parts = [row[key] for key in row if key.startswith("gpu_") and key.endswith("_s")]
        assert row["gpu_seconds"] == (None if None in parts else sum(parts))


def test_shares_are_told_to_six_decimals_in_each_form(cli: Cli) -> None:
    done = cli("account", "goodput", *WHOLE, "--csv")
    row = next(row for row in csv.DictReader(io.StringIO(done.stdout)) if row["run_id"] == "train-a1")
    assert (row["lost_share"], row["gpu_productive"]) == ("0.120833", "0.685714")


def test_a_table_names_what_took_most_of_the_rest(cli: Cli) -> None:
    lines = cli("account", "goodput", *WHOLE).stdout.splitlines()
    assert lines[0].split("\t") == ["RUN", "USER", "ETTR", "HOURS", "GPU HOURS", "REST MOSTLY", "STOPS"]
    assert "train-a1\tada\t60.0%\t0.67\t9.33\tlost 12.1%\t1" in lines
    lines = cli("account", "goodput", *WHOLE, "--by", "account").stdout.splitlines()
    assert "dark\t1\t-\t-\tuntold 100.0%\t1" not in lines
    assert "dark\t1\t-\t-\t-\t1" in lines


def test_a_run_that_goes_on_says_how_long_it_was_silent(cli: Cli, database: str) -> None:
    engine = open_database(database_url({}, database))
    with engine.begin() as connection:
        put_run(connection, "hung-d4")
        put_job(connection, "hung-d4", 40)
        put_record(connection, 40, 40, (0, 0, 10, None), state="RUNNING", alive_s=T0 + 216_000)
        step = {"first_step": 1, "first_step_ms": (T0 + 100) * 1000, "last_step": 90}
        put_attempt(connection, "hung-d4", "1.0", 12, None, last_step_ms=(T0 + 3600) * 1000, **step)
        put_run(connection, "unseen-e5")
        put_job(connection, "unseen-e5", 50)
        put_record(connection, 50, 50, (0, 0, 10, None), state="RUNNING")
    engine.dispose()
    assert "last step   told 2d11h before it was last seen alive" in cli("account", "goodput", "hung-d4").stdout
    (row,) = asked(cli, "hung-d4")["rows"]
    assert row["silent_s"] == 212_400
    (row,) = asked(cli, "unseen-e5")["rows"]
    assert (row["gpu_seconds"], row["gpu_startup_s"], row["unknown_gpu_records"]) == (None, None, 1)


def test_a_run_of_another_cluster_is_not_told_under_this_ones_name(cli: Cli, database: str) -> None:
    engine = open_database(database_url({}, database))
    with engine.begin() as connection:
        put_cluster(connection, 2, "d")
    engine.dispose()
    done = cli("account", "goodput", "train-a1", "--cluster", "d")
    assert (done.returncode, done.stdout) == (2, "")
    assert "run train-a1 is of cluster c" in done.stderr


def test_interruptions_are_added_up_by_cause(cli: Cli) -> None:
    rows = {row["cause"]: row for row in asked(cli, *WHOLE, "--by", "cause")["rows"]}
    assert set(rows) == {"gpu"}
    assert (rows["gpu"]["interruptions"], rows["gpu"]["by_person"]) == (1, 0)
    assert [rows["gpu"][key] for key in ("detection_s", "restart_s", "lost_s")] == [90, 310, 290]
    assert rows["gpu"]["lost_gpu_seconds"] == 16 * 290


def test_csv_has_the_rows_alone(cli: Cli) -> None:
    done = cli("account", "goodput", *WHOLE, "--csv")
    rows = {row["run_id"]: row for row in csv.DictReader(io.StringIO(done.stdout))}
    assert (rows["train-a1"]["wall_s"], rows["sweep-b2"]["ettr"]) == ("2400", "")
    assert "data as of" in done.stderr


def test_a_run_that_is_not_there_is_said_so(cli: Cli) -> None:
    done = cli("account", "goodput", "nothing")
    assert done.returncode == 12
    assert "no run 'nothing' in the database" in done.stderr


def test_without_a_run_in_the_window_there_are_no_rows(cli: Cli) -> None:
    assert asked(cli, "--since", "2026-01-01", "--until", "2026-02-01")["rows"] == []
    assert T0 == 1_790_000_000
