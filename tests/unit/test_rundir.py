"""The run directory: exclusive claims, and readers that survive what a crash leaves."""

from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleetctl.errors import RunDirError, RunUnknown
from fleetctl.rundir import files
from fleetctl.rundir.history import finished_well
from fleetctl.rundir.model import Attempt, EventKind, Progress, RunKind, RunRecord, SubmissionState
from fleetctl.rundir.store import RunDir, Store, new_run_id
from tests.unit.clocks import StillClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def record(run_id: str, **fields: object) -> RunRecord:
    values: dict[str, object] = {
        "run_id": run_id,
        "name": "r",
        "user": "me",
        "created_at": NOW,
        "kind": RunKind.PLAIN,
        "spec_digest": "d",
        "spec_source": "/s/train.yaml",
        "workdir": "/w",
        "nodes": 2,
        "tasks": 1,
        "cluster": "c",
        "fleetctl_version": "0",
    }
    return RunRecord(**{**values, **fields})  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "runs")
    made.ensure()
    return made


def make_run(store: Store, run_id: str) -> RunDir:
    assert store.reserve(run_id)
    return store.fill(record(run_id), "name: r\n", {"name": "r"})


@pytest.fixture
def run(store: Store) -> RunDir:
    made = make_run(store, "r-aaaaaa")
    made.submission_dir(1).mkdir()
    return made


def test_a_record_comes_back_as_it_was(run: RunDir) -> None:
    assert run.record() == record("r-aaaaaa")


def test_a_claim_has_exactly_one_winner(run: RunDir) -> None:
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda job: run.claim(1, str(job), "c", "h", NOW), range(64)))
    assert won.count(True) == 1
    claim = run.read_claim(1)
    assert claim is not None
    assert claim.job_id == str(won.index(True))
    assert os.listdir(run.submission_dir(1)) == ["claim.json"], "no staged file stays behind"


def test_a_void_claim_keeps_every_job_out(run: RunDir) -> None:
    run.event_log("a").append(NOW, EventKind.INTENT, submission=1)
    assert run.claim(1, None, None, "h", NOW)
    assert not run.claim(1, "7", "c", "h", NOW)
    assert run.history().state is SubmissionState.VOIDED


def test_a_claim_by_a_job_beats_a_lost_answer(run: RunDir) -> None:
    log = run.event_log("a")
    log.append(NOW, EventKind.INTENT, submission=1)
    log.append(NOW, EventKind.UNKNOWN, submission=1, text="time-out")
    assert run.history().state is SubmissionState.UNKNOWN
    run.claim(1, "7", "c", "h", NOW)
    assert (run.history().state, run.history().job_id) == (SubmissionState.SUBMITTED, "7")


def test_a_torn_last_line_and_an_unknown_kind_are_passed_over(run: RunDir) -> None:
    log = run.event_log("a")
    log.append(NOW, EventKind.INTENT, submission=1)
    with open(log.path, "a") as file:
        file.write(json.dumps({"schema": 9, "time": NOW.isoformat(), "kind": "from_the_future"}) + "\n")
        file.write('{"schema": 1, "time": "2026-01-01T00:00:00+00:00", "kind": "submi')
    assert run.history().state is SubmissionState.UNKNOWN


def test_events_of_two_writers_add_up(run: RunDir) -> None:
    run.event_log("login").append(NOW, EventKind.INTENT, submission=1)
    job = run.event_log("job-7")
    facts = {"submission": 1, "attempt": "1.0", "task": None, "job_id": "7"}
    job.append(NOW, EventKind.ATTEMPT_STARTED, **facts, host="node1")
    assert finished_well(run.history()) is None
    job.append(NOW, EventKind.ATTEMPT_ENDED, **facts, exit_code=0, terminated=False)
    assert finished_well(run.history()) is True
    assert len(list((run.path / "events").iterdir())) == 2


def test_a_newer_schema_is_named_and_not_misread(run: RunDir) -> None:
    raw = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**raw, "schema": 99}))
    with pytest.raises(RunDirError, match="schema 99"):
        run.record()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 1}'])
def test_a_damaged_record_is_named(run: RunDir, text: str) -> None:
    (run.path / "run.json").write_text(text)
    with pytest.raises(RunDirError, match=r"run\.json is"):
        run.record()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        '{"training_step": "many"}',
        '{"loss": null}',
        '{"loss": NaN}',
        '{"loss": 1%s}' % ("0" * 999),
        "[" * 99_999,
    ],
    ids=range(8),
)
def test_damaged_progress_is_no_progress(run: RunDir, text: str) -> None:
    attempt = Attempt("1.0", "7", "node1", NOW)
    run.attempt_dir("1.0", None).mkdir()
    (run.attempt_dir("1.0", None) / "progress.json").write_text(text)
    progress = run.progress(attempt.name, attempt.task)
    assert progress is None or (progress.training_step, progress.loss) == (None, None)


def test_progress_says_when_it_began_and_where_it_is(run: RunDir) -> None:
    run.attempt_dir("1.0", None).mkdir()
    raw = {
        "training_step": 9,
        "time": NOW.isoformat(),
        "first_step": 1,
        "first_time": NOW.isoformat(),
        "attempt": "1.0",
    }
    (run.attempt_dir("1.0", None) / "progress.json").write_text(json.dumps(raw))
    assert run.progress("1.0", None) == Progress(9, None, None, False, NOW, 1, NOW, "1.0")


@pytest.mark.parametrize("time", [NOW.replace(tzinfo=None).isoformat(), "yesterday", 7, None])
def test_times_that_say_no_zone_or_nothing_are_not_known(run: RunDir, time: object) -> None:
    run.attempt_dir("1.0", None).mkdir()
    raw = {"training_step": True, "time": time, "first_step": 1e400, "first_time": time, "attempt": 3}
    (run.attempt_dir("1.0", None) / "progress.json").write_text(json.dumps(raw))
    assert run.progress("1.0", None) == Progress(None, None, None)


def test_a_run_is_found_by_id_start_and_job_id(store: Store, run: RunDir) -> None:
    make_run(store, "r-aaaabb")
    log = run.event_log("a")
    log.append(NOW, EventKind.INTENT, submission=1)
    log.append(NOW, EventKind.SUBMITTED, submission=1, job_id="4711")
    assert store.find("r-aaaaaa").run_id == "r-aaaaaa"
    assert store.find("r-aaaab").run_id == "r-aaaabb"
    assert store.find("4711").run_id == "r-aaaaaa"
    with pytest.raises(RunUnknown, match="can be 2 runs"):
        store.find("r-aaaa")
    with pytest.raises(RunUnknown, match="no run"):
        store.find("../r-aaaaaa")


def test_ids_are_safe_and_differ() -> None:
    ids = {new_run_id("my run/../x%j\n") for _ in range(100)}
    assert len(ids) == 100
    assert all(set(one) <= set("abcdefghijklmnopqrstuvwxyz0123456789-._") for one in ids)
    assert new_run_id("...").startswith("run-")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOLCK])
def test_what_the_system_refuses_is_one_line_with_a_remedy(code: int) -> None:
    with pytest.raises(RunDirError) as caught, files.explained(Path("/x"), "write"):
        raise OSError(code, os.strerror(code))
    assert caught.value.message == f"cannot write /x: {os.strerror(code)}"
    assert caught.value.remedy


def test_an_id_that_is_taken_is_never_touched(store: Store, run: RunDir) -> None:
    assert not store.reserve("r-aaaaaa")
    assert run.record() == record("r-aaaaaa")


def test_cancel_takes_no_part_of_an_id(store: Store, run: RunDir) -> None:
    assert store.find("r-aaaaaa", whole=True).run_id == "r-aaaaaa"
    for wanted in ("", "r-aaaa", "r"):
        with pytest.raises(RunUnknown):
            store.find(wanted, whole=True)
    with pytest.raises(RunUnknown):
        store.find("")


def test_a_job_id_comes_before_the_start_of_a_run_id(store: Store, run: RunDir) -> None:
    make_run(store, "47-aaaaaa")
    log = run.event_log("a")
    log.append(NOW, EventKind.INTENT, submission=1)
    log.append(NOW, EventKind.SUBMITTED, submission=1, job_id="47")
    assert store.find("47").run_id == "r-aaaaaa"
    assert store.find("47-").run_id == "47-aaaaaa"


@pytest.mark.parametrize("line", ["[1]", "null", "{}", '{"kind": "intent"}', "[" * 99_999], ids=range(5))
def test_a_damaged_event_is_an_error_of_this_run_alone(run: RunDir, line: str) -> None:
    (run.path / "events" / "x.jsonl").write_text(line + "\n")
    with pytest.raises(RunDirError, match="is damaged"):
        run.history()


@pytest.mark.parametrize("line", ["", " ", "{", '{"schema": 1, "kind": "voided"#', "\0\0", "\udcff"], ids=range(6))
def test_a_line_that_is_no_json_never_happened(run: RunDir, line: str) -> None:
    log = run.event_log("a")
    log.append(NOW, EventKind.INTENT, submission=1)
    with open(log.path, "a", errors="surrogateescape") as file:
        file.write(line + "\n")
    log.append(NOW, EventKind.SUBMITTED, submission=1, job_id="7")
    assert (run.history().state, len(run.events())) == (SubmissionState.SUBMITTED, 2)


def test_progress_that_cannot_be_read_is_not_known(run: RunDir) -> None:
    run.attempt_dir("1.0", None).mkdir()
    unreadable(run.attempt_dir("1.0", None) / "progress.json")
    assert run.progress("1.0", None) is None


def unreadable(path: Path) -> None:
    """Reading it is an OSError, for root too: ELOOP."""
    path.symlink_to(path)


def test_a_fifo_is_never_waited_for(run: RunDir) -> None:
    run.attempt_dir("1.0", None).mkdir()
    os.mkfifo(run.attempt_dir("1.0", None) / "progress.json")
    assert run.progress("1.0", None) is None
    os.mkfifo(run.path / "events" / "x.jsonl")
    with pytest.raises(RunDirError, match="no regular file"):
        run.history()


def started(run: RunDir, name: str, at: datetime, exit_code: int | None) -> None:
    facts = {"submission": 1, "attempt": name, "task": None, "job_id": "7"}
    log = run.event_log("job-7")
    log.append(at, EventKind.ATTEMPT_STARTED, **facts, host="n")
    if exit_code is not None:
        log.append(at, EventKind.ATTEMPT_ENDED, **facts, exit_code=exit_code, terminated=False)


def test_attempts_are_in_the_order_of_their_numbers_whatever_the_clocks_say(run: RunDir) -> None:
    started(run, "2.0", NOW.replace(year=2024), 1)
    started(run, "10.0", NOW.replace(year=2023), None)
    started(run, "1.0", NOW, 0)
    assert [attempt.name for attempt in run.history().attempts] == ["1.0", "2.0", "10.0"]
    assert finished_well(run.history()) is None


def test_an_end_that_slurm_told_before_the_newest_attempt_tells_nothing(run: RunDir) -> None:
    log = run.event_log("seen")
    log.append(NOW, EventKind.INTENT, submission=1)
    started(run, "1.0", NOW, 1)
    log.append(NOW, EventKind.OBSERVED_END, submission=1, state="failed", attempts=1)
    assert run.history().observed_end == "failed"
    log.append(NOW.replace(year=2027), EventKind.OBSERVED_END, submission=1, state="cancelled", attempts=1)
    assert run.history().observed_end == "cancelled", "the last word"
    started(run, "2.0", NOW, None)
    assert run.history().observed_end is None


def test_a_start_that_failed_is_superseded_by_an_attempt(run: RunDir) -> None:
    log = run.event_log("job-7")
    log.append(NOW, EventKind.INTENT, submission=1)
    log.append(NOW, EventKind.NOT_STARTED, submission=1, task=None, attempts=0, why="no secrets")
    assert run.history().not_started == {None: "no secrets"}
    assert finished_well(run.history()) is False
    started(run, "1.0", NOW, 0)
    assert run.history().not_started == {}
    assert finished_well(run.history()) is True


def test_a_torn_index_line_hides_no_run(store: Store) -> None:
    clock = StillClock()
    with store.locked_index("d", clock, print) as index:
        index.add("r-aaaaaa")
        with open(index.path, "a") as file:
            file.write("r-aaa")
        index.add("r-bbbbbb")
        assert index.run_ids() == ("r-aaaaaa", "r-aaa", "r-bbbbbb")
