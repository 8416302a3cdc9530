"""The job side's decisions: its command line, its identity, its exit status, and its claim."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from fleetctl.errors import JobSideError, UsageError
from fleetctl.launch.environment import run_environment
from fleetctl.launch.lead import World
from fleetctl.launch.model import CheckpointOrder, Order, Step, exit_status, identity, parse_order, step_nodes
from fleetctl.launch.run import launch
from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.model import EventKind
from fleetctl.rundir.store import RunDir, Store
from fleetctl.spec.env_file import parse_env_file, read_env_file
from tests.unit.clocks import StillClock
from tests.unit.test_rundir import make_run

if TYPE_CHECKING:
    from fleetctl.slurm.port import Slurm

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "c", "SLURMD_NODENAME": "node1"}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    store = Store(tmp_path)
    store.ensure()
    made = make_run(store, "r-aaaaaa")
    made.submission_dir(1).mkdir()
    made.event_log("login").append(NOW, EventKind.INTENT, submission=1)
    return made


def order(run: RunDir, *needs: str) -> Order:
    return Order(str(run.path), 1, None, needs, (Step("train", 0, ("true",)),))


def world(*, told: bool = False) -> World:
    slurm = cast("Slurm", object())  # nothing here gets as far as asking it
    return World(StillClock(), JOB, (), slurm, lambda: None, lambda: told, lambda: 0, lambda text: None)


def test_a_users_words_are_never_options() -> None:
    words = [
        "--run-dir",
        "/r",
        "--submission",
        "2",
        "--step",
        "a",
        "1",
        "3",
        "srun",
        "--step",
        "--needs",
        "--step",
        "b",
        "0",
        "1",
        "x",
    ]
    parsed = parse_order(words)
    assert parsed.steps == (Step("a", 1, ("srun", "--step", "--needs")), Step("b", 0, ("x",)))
    assert (parsed.run_dir, parsed.submission, parsed.env_file, parsed.needs) == ("/r", 2, None, ())
    assert (parsed.nodes, parsed.spares, parsed.max_failures, parsed.chain, parsed.checkpoint) == (
        0,
        0,
        None,
        False,
        None,
    )


def test_what_the_spec_allows_is_read() -> None:
    words = ["--run-dir", "/r", "--submission", "1", "--nodes", "4", "--spares", "1", "--max-failures", "3", "--chain"]
    words += ["--checkpoint-dir", "/c", "--checkpoint-format", "own", "--checkpoint-load", "none"]
    words += ["--checkpoint-interval-s", "60", "--step", "a", "0", "1", "x"]
    parsed = parse_order([*words, "--take-over", "1.0"])
    assert (parsed.nodes, parsed.spares, parsed.max_failures, parsed.chain) == (4, 1, 3, True)
    assert parsed.checkpoint == CheckpointOrder("/c", "own", "none", interval_s=60)
    assert parsed.take_over == "1.0"


def test_how_a_start_looks_and_tells_is_read() -> None:
    words = ["--run-dir", "/r", "--submission", "1", "--checkpoint-dir", "/c", "--checkpoint-format", "megatron"]
    words += ["--checkpoint-load", "none", "--step", "a", "0", "1", "x"]
    more = ["--checkpoint-verify", "content", "--checkpoint-tell", "pointer", "--checkpoint-ranks", "16"]
    plain, full = parse_order(words).checkpoint, parse_order([*more, *words]).checkpoint
    assert plain == CheckpointOrder("/c", "megatron", "none"), "as an older fleetctl wrote it"
    assert full == CheckpointOrder("/c", "megatron", "none", verify="content", tell="pointer", ranks=16)
    for option in ("--checkpoint-verify", "--checkpoint-tell", "--checkpoint-ranks"):
        with pytest.raises(JobSideError):
            parse_order([option, "some", *words])


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--run-dir", "/r", "--submission", "1"],
        ["--run-dir", "/r", "--submission", "1", "--step", "a", "0", "3", "x"],
        ["--run-dir", "/r", "--submission", "one", "--step", "a", "0", "1", "x"],
        ["--run-dir", "/r", "--submission", "1", "--step", "a", "1", "x"],
        ["--run-dir", "/r", "--submission", "1", "--new-option", "x"],
    ],
)
def test_a_script_of_another_fleetctl_is_refused(words: list[str]) -> None:
    with pytest.raises(JobSideError):
        parse_order(words)


def test_an_array_element_belongs_to_its_array() -> None:
    element = identity({**JOB, "SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "4"})
    assert (element.owner, element.job_id, element.task) == ("7", "7_4", 4)
    assert identity(JOB).task is None
    with pytest.raises(JobSideError):
        identity({})


def test_a_hetjobs_step_knows_its_own_nodes() -> None:
    environ = {"SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NODELIST_HET_GROUP_1": "n[5-6]"}
    assert step_nodes(environ, 0) == "n1"
    assert step_nodes(environ, 1) == "n[5-6]"


def test_exit_status_is_the_shells() -> None:
    assert exit_status([0, 0]) == 0
    assert exit_status([0, 3]) == 3
    assert exit_status([-9, 0]) == 137


def test_a_second_job_of_one_submission_ends_itself(run: RunDir) -> None:
    run.claim(1, "6", "c", "node9", NOW)
    with pytest.raises(JobSideError, match=r"duplicate.*job 6 owns it"):
        launch(order(run), identity(JOB), world())
    assert not list((run.path / "attempts").iterdir()), "nothing was started"


def test_a_voided_submission_starts_nothing(run: RunDir) -> None:
    run.claim(1, None, None, "login", NOW)
    with pytest.raises(JobSideError, match="given up"):
        launch(order(run), identity(JOB), world())


def test_the_same_id_on_another_cluster_is_another_job(run: RunDir) -> None:
    run.claim(1, "7", "elsewhere", "node9", NOW)
    with pytest.raises(JobSideError, match="duplicate"):
        launch(order(run), identity(JOB), world())


def test_what_we_need_must_have_finished_well(run: RunDir, tmp_path: Path) -> None:
    first = make_run(Store(tmp_path), "first-aaaaaa")
    with pytest.raises(JobSideError, match="did not finish well"):
        launch(order(run, str(first.path)), identity(JOB), world())
    assert run.history().not_started == {None: "run first-aaaaaa, which this one depends on, did not finish well"}


def test_a_cancelled_run_does_not_start_again(run: RunDir) -> None:
    run.event_log("login").append(NOW, EventKind.CANCEL, submission=1, by="me")
    with pytest.raises(JobSideError, match="was cancelled"):
        launch(order(run), identity(JOB), world())
    assert not list((run.path / "attempts").iterdir()), "nothing was started"


def test_a_job_that_is_told_to_end_before_its_first_step_starts_none(run: RunDir) -> None:
    with pytest.raises(JobSideError, match="told to end"):
        launch(order(run), identity(JOB), world(told=True))
    assert not list((run.path / "attempts").iterdir())


def test_attempts_are_numbered_without_gaps_past_what_others_left_there(tmp_path: Path) -> None:
    (tmp_path / "attempts" / ".snapshot").mkdir(parents=True)
    (tmp_path / "attempts" / "notes").mkdir()
    assert [Attempts(tmp_path / "attempts").claim_next() for _ in range(11)][-1] == (11, 0)


def test_the_training_finds_fleetctl_train_and_keeps_its_own_path(run: RunDir) -> None:
    found = run_environment({"PYTHONPATH": "/mine"}, run, "1.0", identity(JOB))
    assert found["PYTHONPATH"] == f"{run.path}/python:/mine"
    assert found["FLEETCTL_PROGRESS_FILE"] == f"{run.path}/attempts/1.0/progress.json"


def test_an_env_file_is_read_and_never_executed() -> None:
    raw = b"# secrets\nA=1\nexport B=\"two words\"\n\nC='$(id)'\nD=a=b\r\n"
    assert parse_env_file(raw, "f") == {"A": "1", "B": "two words", "C": "$(id)", "D": "a=b"}
    with pytest.raises(UsageError, match=r"f:2: expected KEY=VALUE$"):
        parse_env_file(b"A=1\nhunter2\n", "f")


def test_an_env_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_text("A=1\n")
    path.chmod(0o640)
    with pytest.raises(UsageError, match="can be read by others"):
        read_env_file(path)
    path.chmod(0o600)
    assert read_env_file(path) == {"A": "1"}
    with pytest.raises(UsageError, match="not a regular file"):
        read_env_file(tmp_path)


def test_a_held_run_starts_nothing_until_a_person_says_so(run: RunDir) -> None:
    log = run.event_log("job")
    log.append(NOW, EventKind.HELD, submission=1, task=None, attempts=0, why="three times")
    with pytest.raises(JobSideError, match="is held: three times"):
        launch(order(run), identity(JOB), world())
    log.append(NOW, EventKind.REQUEUE, submission=1, by="user me", attempts=0, holds=1)
    assert run.history().held == {}


def test_the_job_of_an_older_submission_ends_itself(run: RunDir) -> None:
    run.event_log("login").append(NOW, EventKind.INTENT, submission=2)
    with pytest.raises(JobSideError, match="was submitted again"):
        launch(order(run), identity(JOB), world())


def test_a_hold_after_a_wish_counts_again_and_wishes_are_of_one_element(run: RunDir) -> None:
    log = run.event_log("job")
    log.append(NOW, EventKind.HELD, submission=1, task=None, attempts=0, why="first")
    log.append(NOW, EventKind.REQUEUE, submission=1, task=None, by="user me", attempts=0, holds=1)
    assert run.history().held == {}
    log.append(NOW, EventKind.HELD, submission=1, task=None, attempts=0, why="again")
    assert run.history().held == {None: "again"}
    for task in (3, 5):
        log.append(NOW, EventKind.HELD, submission=1, task=task, attempts=0, why="same")
    log.append(NOW, EventKind.REQUEUE, submission=1, task=3, by="user me", attempts=0, holds=1)
    assert run.history().held == {None: "again", 5: "same"}
