"""The books of a real Slurm in which everything happened that happens to jobs, against a sum of our own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from fleetctl.accounting.database import open_database
from fleetctl.clock import SystemClock
from fleetctl.errors import SlurmUnreachable
from fleetctl.sandbox import cluster
from tests.accounting_dump import dump
from tests.databases import FreshDatabase, fresh_database, postgres
from tests.faults.accounting_scene import CONFIG, NAMES, Scene
from tests.integration.conftest import short_dir
from tests.support import BIN, wait_until

__all__ = ["fresh_database", "postgres"]
WINDOW = ("--since", "1d", "--utc")
pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    """Played to its end."""
    directory, folder = short_dir(), short_dir()
    try:
        played = Scene(folder, cluster.up(CONFIG, directory, SystemClock()))
        played.play()
        yield played
    finally:
        cluster.down(directory, SystemClock())
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def books(scene: Scene, fresh_database: FreshDatabase) -> str:
    """The database after one sync of the whole scene."""
    url = fresh_database("sqlite")
    synced(scene, url)
    return url


def synced(scene: Scene, url: str) -> dict[str, Any]:
    answer: dict[str, Any] = scene.cli.json("account", "sync", FLEETCTL_DATABASE=url)
    return answer


def ask(scene: Scene, url: str, *words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = scene.cli.json("account", *words, FLEETCTL_DATABASE=url)["rows"]
    return rows


def facts(url: str) -> bytes:
    engine = open_database(url, read_only=True)
    try:
        return dump(engine)
    finally:
        engine.dispose()


class Held(NamedTuple):
    """One row of sacct, read without any of our code."""

    job_id: str
    raw_id: str
    state: str
    account: str
    partition: str
    gpus: int
    seconds: int
    suspended_s: int


def slurms_word(scene: Scene) -> list[Held]:
    """(ElapsedRaw + Suspended) x GPUs of each record that held something.

    In the record of what is left of a resized job Slurm repeats the Start of the whole job (seen on 22.05.8), so that
    its Elapsed counts the time before the resize again; by its Submit, that record is as old as the new size.
    """
    columns = "JobID,JobIDRaw,State,Account,Partition,AllocTRES,Submit,Start,ElapsedRaw,Suspended"
    held = []
    for row in scene.sacct(columns, "-X"):
        job_id, raw_id, state, account, partition, tres, submit, start, elapsed, suspended = row
        gpus = re.findall(r"gres/gpu=(\d+)", tres)
        again = max(0, int(submit) - int(start)) if start.isdigit() else 0
        seconds = int(elapsed) + clock_time(suspended) - again
        count = int(gpus[0]) if gpus else 0
        held.append(Held(job_id, raw_id, state, account, partition, count, seconds, clock_time(suspended)))
    return held


def clock_time(text: str) -> int:
    hours, minutes, seconds = text.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def test_the_scene_has_every_fate(scene: Scene) -> None:
    """Else the sums below would prove little."""
    rows = slurms_word(scene)
    assert {row.state.split()[0] for row in rows} >= {
        *("COMPLETED", "FAILED", "CANCELLED", "REQUEUED", "PREEMPTED", "NODE_FAIL", "RESIZING"),
    }
    assert any(row.job_id.endswith("+1") for row in rows)
    assert len([row for row in rows if row.job_id == f"{scene.ids['array']}_1"]) == 2
    (suspended,) = [row for row in rows if row.raw_id == scene.ids["suspended"]]
    assert suspended.suspended_s >= 2
    first, second = [row for row in rows if row.raw_id == scene.ids["resized"]]
    assert (first.gpus, second.gpus) == (4, 2)


@pytest.mark.parametrize("by", ["account", "partition"])
def test_gpu_seconds_are_the_sum_over_every_attempt_that_slurm_has(scene: Scene, books: str, by: str) -> None:
    expected: dict[str, int] = {}
    for row in slurms_word(scene):
        key = row.account if by == "account" else row.partition
        expected[key] = expected.get(key, 0) + row.gpus * row.seconds
    found = ask(scene, books, "usage", "--by", by, *WINDOW)
    assert {row[by]: row["gpu_seconds"] for row in found if row["gpu_seconds"]} == {
        key: seconds for key, seconds in expected.items() if seconds
    }


def test_every_attempt_is_a_record_with_its_state_and_its_gpus(scene: Scene, books: str) -> None:
    found = ask(scene, books, "jobs", "--limit", "0", *WINDOW)
    ours = sorted((row["job"], row["state"], row["gpu_seconds"] or 0) for row in found)
    theirs = sorted((row.job_id, row.state.split()[0], row.gpus * row.seconds) for row in slurms_word(scene))
    assert ours == theirs


def test_what_people_name_their_jobs_comes_through(scene: Scene, books: str) -> None:
    """Bytes that are no text are lost in slurmdbd already; of the rest nothing is, and no name moves a column."""
    found = {row["job"]: row["name"] for row in ask(scene, books, "jobs", "--limit", "0", *WINDOW)}
    names = [found[scene.ids[f"name {number}"]] for number in range(len(NAMES))]
    assert names[1:3] == [NAMES[1], NAMES[2]]
    assert names[0].startswith("a|b")
    assert names[4] == NAMES[4]


@pytest.mark.parametrize("what", ["killed rank", "preempted", "lost node", "given up"])
def test_both_ledgers_of_a_run_sum_exactly_to_what_slurm_says(scene: Scene, books: str, what: str) -> None:
    training = scene.trainings[what]
    (run,) = ask(scene, books, "goodput", training.run_id)
    rows = [row for row in slurms_word(scene) if row.raw_id == training.job_id]
    assert run["gpu_seconds"] == sum(row.gpus * row.seconds for row in rows) > 0
    gpu = {key: value for key, value in run.items() if key.startswith("gpu_") and key.endswith("_s")}
    assert round(sum(gpu.values()) * 1000) == run["gpu_seconds"] * 1000
    wall = (*("queue", "startup", "productive", "stall", "lost", "hang", "requeue", "teardown", "suspended", "untold"),)
    assert round(sum(run[f"{name}_s"] for name in wall) * 1000) == round(run["wall_s"] * 1000)
    assert run["productive_s"] > 0
    assert run["ettr"] == pytest.approx(run["productive_s"] / run["wall_s"])
    assert not run["provisional"]


def test_a_killed_rank_is_named_and_costs_what_was_done_again(scene: Scene, books: str) -> None:
    (run,) = ask(scene, books, "goodput", scene.trainings["killed rank"].run_id)
    (interruption,) = run["interruptions"]
    assert interruption["attempt"] == "1.0"
    assert interruption["cause"] in ("killed", "terminated"), "srun ends the other rank, and may tell of that one"
    assert interruption["lost_s"] == run["lost_s"] > 0
    assert interruption["restart_s"] > 0


def test_a_lost_node_is_named_and_costs_the_wait_for_slurm(scene: Scene, books: str) -> None:
    (run,) = ask(scene, books, "goodput", scene.trainings["lost node"].run_id)
    (interruption,) = run["interruptions"]
    assert (interruption["attempt"], interruption["cause"]) == ("1.0", "node")
    assert run["lost_s"] == interruption["lost_s"] > 0
    assert run["teardown_s"] + run["hang_s"] > 5, "SlurmdTimeout"
    assert run["requeue_s"] > 0


def test_a_preempted_run_waits_to_come_back(scene: Scene, books: str) -> None:
    (run,) = ask(scene, books, "goodput", scene.trainings["preempted"].run_id)
    assert [one["cause"] for one in run["interruptions"]] == ["preempted"]
    assert run["requeue_s"] > 0


def test_a_second_sync_finds_nothing_new_and_changes_nothing(scene: Scene, books: str) -> None:
    before = facts(books)
    again = synced(scene, books)
    assert (again["new"], again["changed"]) == (0, 0)
    assert facts(books) == before


def test_postgres_holds_the_same_books(scene: Scene, books: str, fresh_database: FreshDatabase) -> None:
    url = fresh_database("postgres")
    synced(scene, url)
    assert facts(url) == facts(books)


def test_a_whole_command_that_is_killed_leaves_books_that_the_next_one_completes(
    scene: Scene, books: str, fresh_database: FreshDatabase
) -> None:
    url = fresh_database("sqlite")
    environ = {**scene.cli.environ, "FLEETCTL_DATABASE": url}
    for seconds in (0.6, 0.8, 1.0, 1.3):
        with subprocess.Popen(
            [str(BIN / "fleetctl"), "account", "sync"],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as child:
            try:
                child.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
    synced(scene, url)
    assert facts(url) == facts(books)


def test_records_that_come_late_are_all_there_and_no_sync_vouches_for_them_before(
    scene: Scene, books: str, fresh_database: FreshDatabase
) -> None:
    """slurmdbd is dead while jobs start and end; slurmctld sends what it kept when it is back."""
    url = fresh_database("sqlite")
    before = synced(scene, url)
    scene.sandbox.dbd.kill()
    late = [scene.sbatch(f"late {number}", "-w", "node3", "--gpus-per-node=1") for number in range(3)]
    wait_until(lambda: {*map(scene.state, late)} == {"COMPLETED"}, "the late jobs' end")
    failed = scene.cli("account", "sync", FLEETCTL_DATABASE=url)
    assert failed.returncode == SlurmUnreachable.exit_code, failed.stderr
    assert len(failed.stderr.strip().splitlines()) <= 3, failed.stderr
    scene.sandbox.dbd.start()
    between = synced(scene, url)  # whatever slurmctld has sent by now
    scene.await_quiet()
    after = synced(scene, url)
    assert after["waiting"] == 0
    assert before["to"] <= between["to"] <= after["to"]
    ours = {row["job"]: row["gpu_seconds"] for row in ask(scene, url, "jobs", "--limit", "0", *WINDOW)}
    theirs = {row.job_id: row.gpus * row.seconds for row in slurms_word(scene) if row.job_id in late}
    assert set(theirs) == set(late)
    assert {job_id: ours[job_id] for job_id in late} == theirs
    whole = fresh_database("sqlite")
    synced(scene, whole)
    assert facts(url) == facts(whole)
