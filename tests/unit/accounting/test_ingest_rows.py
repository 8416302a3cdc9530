"""What a run directory comes to as rows: attempts, saves, interruptions, and how the run stands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fleetctl.accounting import ingest_ends, ingest_rows
from fleetctl.accounting.ingest_read import look, opened, read
from fleetctl.accounting.ingest_rows import CLOCKS_S, RunRows, run_rows
from fleetctl.rundir.model import EventKind, RunKind
from fleetctl.rundir.store import Store
from tests.unit.accounting.run_folders import NOW_MS, NOW_S, Folder

HELD = {"why": "3 times the same failure"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def rows_of(folder: Folder) -> RunRows:
    with opened(str(folder.path)) as here:
        seen = look(here)
        return run_rows(read(here, seen, str(folder.path)), "me", seen.digest)


def table(folder: Folder, name: str) -> list[dict[str, Any]]:
    columns = ingest_ends.COLUMNS if name == "interruptions" else getattr(ingest_rows, name.upper())
    return [dict(zip(columns, row, strict=True)) for row in getattr(rows_of(folder), name)]


def run_of(folder: Folder) -> tuple[int | None, int]:
    (run,) = table(folder, "runs")
    return run["finished"], run["held"]


def ends(folder: Folder) -> list[tuple[str, int, str, list[str], int]]:
    return [
        (
            f"{row['major']}.{row['minor']}",
            row["at_ms"] - NOW_MS,
            row["ending"],
            [one["cause"] for one in json.loads(row["causes"])],
            row["by_person"],
        )
        for row in table(folder, "interruptions")
    ]


def test_a_run_says_what_it_is(store: Store) -> None:
    (run,) = table(Folder(store, cluster="lab").submitted(), "runs")
    digest = run.pop("digest")
    assert -(1 << 63) <= digest < 1 << 63
    assert run == {
        "run_id": "r-1",
        "cluster": "lab",
        "name": "train",
        "user": "me",
        "kind": "plain",
        "nodes": 2,
        "tasks": 1,
        "spec_digest": "d",
        "created_ms": NOW_MS,
        "cancelled_ms": None,
        "finished": None,
        "held": 0,
        "checkpoints": "fleetctl",
    }


@pytest.mark.parametrize(
    ("spec", "known"), [('{"name": "x"}', ""), ('{"checkpoint": null}', ""), ("{", None), ('{"checkpoint":{}}', None)]
)
def test_the_format_of_its_checkpoints_is_that_of_its_spec(store: Store, spec: str, known: str | None) -> None:
    folder = Folder(store)
    (folder.path / "spec.json").write_text(spec)
    assert table(folder, "runs")[0]["checkpoints"] == known


def test_an_attempt_has_its_progress_and_its_saves(store: Store) -> None:
    folder = Folder(store).submitted().started("1.0", 10, resume_step=5)
    folder.told("1.0", 90, 20, first_step=6, first_time="2026-11-01T00:00:40+00:00")
    folder.saved("1.0", 60, 10).saved("1.0", 80, 15, state="failed", bytes=0).ended("1.0", 100, "finished")
    (attempt,) = table(folder, "attempts")
    assert attempt == {
        "run_id": "r-1",
        "task": -1,
        "major": 1,
        "minor": 0,
        "job_id": "7",
        "host": "n1",
        "nodes": "n[1-2]",
        "node_count": 2,
        "started_ms": NOW_MS + 10_000,
        "ended_ms": NOW_MS + 100_000,
        "exit_status": 0,
        "ending": "finished",
        "failure": "",
        "terminated": 0,
        "resume_step": 5,
        "first_step": 6,
        "first_step_ms": NOW_MS + 40_000,
        "last_step": 20,
        "last_step_ms": NOW_MS + 90_000,
        "done": 0,
    }
    saves = [
        (row["sequence"], row["training_step"], row["committed"], row["saved_ms"], row["blocked_ms"], row["total_ms"])
        for row in table(folder, "checkpoints")
    ]
    assert saves == [(0, 10, 1, NOW_MS + 60_000, 500, 2500), (1, 15, 0, NOW_MS + 80_000, 500, 2500)]


def test_what_an_older_fleetctl_did_not_write_is_not_known(store: Store) -> None:
    folder = Folder(store).submitted().started("1.0", 10, nodes="").told("1.0", 90, 20)
    path = folder.run.attempt_dir("1.0", None) / "saves.jsonl"
    path.write_text('{"training_step": 7, "name": "s", "state": "committed", "total_s": 1, "flag": null}\n{"torn')
    (attempt,) = table(folder, "attempts")
    assert (attempt["node_count"], attempt["first_step"], attempt["first_step_ms"]) == (None, None, None)
    (save,) = table(folder, "checkpoints")
    assert (save["saved_ms"], save["blocked_ms"], save["total_ms"], save["bytes"]) == (None, None, 1000, None)


def test_progress_that_another_attempt_wrote_is_none(store: Store) -> None:
    folder = Folder(store).submitted().started("2.0", 10).told("2.0", 90, 20, attempt="1.0")
    assert table(folder, "attempts")[0]["last_step"] is None


def test_a_job_id_says_nothing_of_what_was_before_its_submission(store: Store) -> None:
    folder = Folder(store).submitted("7").submitted("9", submission=2, seconds=5000)
    assert [(row["job_id"], row["since_s"] - NOW_S) for row in table(folder, "run_jobs")] == [
        (7, -CLOCKS_S),
        (9, 5000 - CLOCKS_S),
    ]


def test_a_job_that_claimed_the_submission_is_the_runs_even_if_sbatch_gave_no_answer(store: Store) -> None:
    folder = Folder(store)
    folder.event(0, EventKind.INTENT).event(1, EventKind.UNKNOWN, text="timed out")
    (folder.run.submission_dir(1)).mkdir()
    assert folder.run.claim(1, "12", "elsewhere", "n1", folder.run.record().created_at)
    assert [(row["cluster"], row["job_id"]) for row in table(folder, "run_jobs")] == [("elsewhere", 12)]


def test_every_attempt_that_did_not_finish_is_an_interruption(store: Store) -> None:
    folder = Folder(store).submitted().started("1.0", 10).ended("1.0", 100, "failed", 1)
    folder.started("1.1", 110).event(190, EventKind.NODE_LOST, attempt="1.1", node="n2", evidence="silent")
    folder.ended("1.1", 200, "node_lost", 137)
    folder.started("1.2", 210).event(290, EventKind.HUNG, attempt="1.2", node="n2", phase="step")
    folder.ended("1.2", 300, "hung", 137)
    folder.started("2.0", 400)  # died with its node
    folder.started("3.0", 700).event(790, EventKind.SAVE_ASKED, attempt="3.0", id="x", why="time limit")
    folder.ended("3.0", 800, "saved", 143).started("4.0", 1000).ended("4.0", 1100, "finished")
    assert ends(folder) == [
        ("1.0", 100_000, "failed", ["program"], 0),
        ("1.1", 200_000, "node_lost", ["node"], 0),
        ("1.2", 300_000, "hung", ["hang"], 0),
        ("2.0", 700_000, "", ["unknown"], 0),
        ("3.0", 800_000, "saved", ["time_limit"], 0),
    ]
    assert run_of(folder) == (1, 0)


def test_an_attempt_that_tells_no_end_is_none_while_it_may_run(store: Store) -> None:
    folder = Folder(store).submitted().started("1.0", 10)
    assert ends(folder) == []
    folder.event(500, EventKind.OBSERVED_END, state="node_fail", attempts=1)
    assert ends(folder) == [("1.0", 500_000, "", ["unknown"], 0)]
    assert run_of(folder) == (0, 0)


def test_a_run_that_a_person_asked_back_is_not_over_though_slurm_saw_its_end(store: Store) -> None:
    folder = Folder(store).submitted().started("1.0", 10).event(500, EventKind.OBSERVED_END, state="failed", attempts=1)
    folder.event(600, EventKind.REQUEUE, by="user ada", why="x", attempts=1, holds=0, from_step=None, exclude="")
    assert run_of(folder) == (None, 0)
    assert ends(folder)[0][4] == 1


def test_a_run_that_was_held_needed_a_person_then_and_before_it_came_back(store: Store) -> None:
    folder = Folder(store).submitted().started("1.0", 10).ended("1.0", 100, "failed", 1)
    folder.event(101, EventKind.HELD, attempts=1, **HELD)
    assert run_of(folder) == (None, 1)
    assert ends(folder) == [("1.0", 100_000, "failed", ["program"], 1)]
    folder.event(5000, EventKind.REQUEUE, by="user ada", why="asked", attempts=1, holds=1, from_step=None, exclude="")
    assert run_of(folder) == (None, 0)
    folder.started("2.0", 5200).ended("2.0", 5300, "failed", 1)
    folder.event(5301, EventKind.REQUEUE, by="job", why="failed", attempts=2, holds=0, from_step=None, exclude="")
    assert [(end[0], end[4]) for end in ends(folder)] == [("1.0", 1), ("2.0", 0)]
    assert run_of(folder) == (None, 0)


@pytest.mark.parametrize(("seconds", "by_person"), [(50, 0), (500, 1)])
def test_a_requeue_by_a_person_counts_where_the_attempt_was_over(store: Store, seconds: int, by_person: int) -> None:
    folder = Folder(store).submitted().started("1.0", 10)
    folder.event(seconds, EventKind.REQUEUE, by="user ada", why="x", attempts=1, holds=0, from_step=None, exclude="")
    folder.ended("1.0", 100, "told", 143)
    assert ends(folder)[0][4] == by_person


def test_a_cancelled_run_is_over_and_not_held(store: Store) -> None:
    folder = Folder(store).submitted().started("1.0", 10).event(90, EventKind.CANCEL, by="ada")
    folder.ended("1.0", 100, "told", 143).event(101, EventKind.HELD, attempts=1, **HELD)
    (run,) = table(folder, "runs")
    assert (run["cancelled_ms"], run["finished"], run["held"]) == (NOW_MS + 90_000, 0, 0)
    assert ends(folder)[0][3] == ["cancelled_by_user"]


@pytest.mark.parametrize(
    ("ending", "finished"),
    [("failed", 0), ("stopped_early", 0), ("saved", None), ("told", None), ("node_lost", None), ("hung", None)],
)
def test_an_end_is_final_only_where_nothing_follows_it(store: Store, ending: str, finished: int | None) -> None:
    status = 0 if ending == "stopped_early" else 1
    assert run_of(Folder(store).submitted().started("1.0", 10).ended("1.0", 100, ending, status)) == (finished, 0)


def test_of_more_names_of_nodes_than_a_run_has_it_is_not_known_how_many(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_rows, "_MOST_HOSTS", 5)
    folder = Folder(store).submitted()
    for number, nodes in enumerate(("n[1-4]", "n[1-4]", "n[1-3]", "n[1-2]"), 1):
        folder.started(f"{number}.0", 10 * number, nodes=nodes)
    assert [row["node_count"] for row in table(folder, "attempts")] == [4, 4, 3, None]


def test_each_element_of_a_sweep_has_its_own_attempts(store: Store) -> None:
    folder = Folder(store, kind=RunKind.SWEEP, tasks=2).submitted()
    for task in (0, 1):
        folder.started("1.0", 10 + task, task).told("1.0", 20, 5 + task, task)
    folder.ended("1.0", 100, "failed", 1, task=1)
    assert [(row["task"], row["last_step"], row["job_id"]) for row in table(folder, "attempts")] == [
        (0, 5, "7_0"),
        (1, 6, "7_1"),
    ]
    assert [(row["task"], row["major"]) for row in table(folder, "interruptions")] == [(1, 1)]
    assert run_of(folder) == (None, 0), "the other one goes on"
    assert [row["job_id"] for row in table(folder, "run_jobs")] == [7]


def test_what_was_done_is_kept_in_order_with_who_and_why(store: Store) -> None:
    folder = Folder(store).submitted().started("1.0", 10)
    folder.event(50, EventKind.NODE_LOST, attempt="1.0", node="n2", evidence="silent for 20 s")
    folder.event(55, EventKind.HUNG, attempt="1.0", node="", phase="save")
    folder.event(60, EventKind.REQUEUE, by="user ada", why="asked", attempts=1)
    told = [(row["sequence"], row["kind"], row["by"], row["why"]) for row in table(folder, "actions")]
    assert told == [
        (0, "intent", "", "fleetctl:x/1"),
        (1, "node_lost", "attempt 1.0", "n2: silent for 20 s"),
        (2, "hung", "attempt 1.0", ": save"),
        (3, "requeue", "user ada", "asked"),
    ]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ({"nodes": "two"}, "no whole number"),
        ({"nodes": 1 << 63}, "no whole number"),
        ({"tasks": 1e400}, "no whole number"),
        ({"name": ["x"]}, "no text"),
        ({"created_at": "2026-11-01T00:00:00"}, "no time zone"),
    ],
)
def test_a_record_that_no_fleetctl_writes_is_refused(store: Store, raw: dict[str, Any], why: str) -> None:
    folder = Folder(store)
    path = folder.path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **raw}))
    with pytest.raises(ValueError, match=why):
        rows_of(folder)


@pytest.mark.parametrize(
    "started",
    [
        {"attempt": "first"},
        {"attempt": "1.99999999999999999999"},
        {"attempt": "1.0", "task": "x"},
        {"attempt": "1.0", "task": -4},
        {"attempt": "1.0", "resume_step": 1 << 70},
    ],
)
def test_an_attempt_that_no_fleetctl_writes_is_refused(store: Store, started: dict[str, Any]) -> None:
    folder = Folder(store)
    folder.event(1, EventKind.ATTEMPT_STARTED, **{"job_id": "7", "host": "n1", **started})
    with pytest.raises(ValueError, match=r"is no |invalid literal"):
        rows_of(folder)


def test_texts_of_every_byte_and_numbers_that_are_none_do_no_harm(store: Store) -> None:
    strange = "".join(map(chr, range(0x100))) + "\ud800\U0001f600"
    folder = Folder(store, name=strange).submitted().started("1.0", 10, nodes=strange, host=strange)
    folder.ended("1.0", 20, "failed", 1, failure=strange).saved("1.0", 15, 1, flag=strange)
    folder.saved("1.0", 15, 1 << 63).saved("1.0", 15, 2, total_s=float("nan"), blocked_s=1e308, bytes=1 << 63)
    folder.event(30, EventKind.HELD, attempts=1, why=strange * 100)
    (run,) = table(folder, "runs")
    assert "\x00" not in run["name"]
    assert run["name"].startswith("\\x00\\x01")
    names = ("runs", "attempts", "interruptions", "actions")
    texts = [str(value) for name in names for row in table(folder, name) for value in row.values()]
    assert not re.search("[\x00-\x08\ud800-\udfff]", "".join(texts))
    assert max(map(len, texts)) < 20_000
    told = ("training_step", "total_ms", "blocked_ms", "bytes")
    saves = [tuple(row[name] for name in told) for row in table(folder, "checkpoints")]
    assert saves == [(1, 2500, 500, 100), (2, None, None, None)]
