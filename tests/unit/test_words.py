"""What the recovery daemon says to a run's next start: how it is written, who may say it, and what the start does."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.errors import JobSideError, RunDirError
from fleetctl.launch.memory import Folder, known
from fleetctl.launch.model import Order, Step, identity
from fleetctl.launch.run import launch
from fleetctl.launch.words import said_to, user_of
from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.history import BY_DAEMON, Heeded
from fleetctl.rundir.model import EventKind
from fleetctl.rundir.store import EventLog, RunDir, Store
from fleetctl.rundir.timeline import timeline
from fleetctl.rundir.words import FOLDER, MOST_BYTES, WORD, Word, for_next, heeded, name_of, word_in, word_out
from tests.unit.test_launch import JOB, NOW, order, world
from tests.unit.test_rundir import make_run

SAID = Word("r-aaaaaa", None, NOW, "the daemon", "loss is not a number since step 70", attempts=0, wishes=0)
ROLL_BACK = msgspec.structs.replace(SAID, at_most_step=60, suspects=("step-00000070",))
HOLD = msgspec.structs.replace(SAID, hold=True, why="the same failure on three nodes")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    store = Store(tmp_path / "runs")
    store.ensure()
    made = make_run(store, "r-aaaaaa")
    made.submission_dir(1).mkdir()
    made.event_log("login").append(NOW, EventKind.INTENT, submission=1)
    return made


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "words"
    folder.mkdir(mode=0o755)
    return folder


def say(run: RunDir, word: Word) -> None:
    (run.path / WORD).write_text(json.dumps(word_out(word)))


def say_there(site: Path, word: Word) -> Path:
    me = user_of(os.geteuid())
    path = site / name_of(me, word.run_id, word.task)
    path.write_text(json.dumps(word_out(msgspec.structs.replace(word, user=word.user or me))))
    path.chmod(0o644)
    return path


def start(run: RunDir, told: list[str] | None = None, **environ: str) -> str:
    """A start that ends before its first step; why."""
    here = world(told=True)
    say_it = (lambda text: None) if told is None else told.append
    here = msgspec.structs.replace(here, environ={**here.environ, **environ}, say=say_it)
    with pytest.raises(JobSideError) as error:
        launch(order(run), identity(JOB), here)
    return error.value.message


def person_asks(run: RunDir, **data: Any) -> None:
    count = len([event for event in run.events() if event.kind is EventKind.ATTEMPT_STARTED])
    facts = {"by": "user me", "why": "w", "attempts": count, "from_step": None, "exclude": "", "holds": 9, **data}
    run.event_log("requeue").append(datetime.now(UTC), EventKind.REQUEUE, submission=1, task=None, **facts)


def attempt_starts(run: RunDir, name: str) -> None:
    run.event_log("job").append(
        NOW, EventKind.ATTEMPT_STARTED, submission=1, task=None, attempt=name, job_id="7", host="n1"
    )


def test_a_word_comes_back_as_it_was_said() -> None:
    for word in (SAID, ROLL_BACK, HOLD, msgspec.structs.replace(SAID, task=3)):
        assert word_in(json.loads(json.dumps(word_out(word)))) == word
    assert word_in({**word_out(SAID), "more": "of a newer fleetctl"}) == SAID


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"at_most_step": -1},
        {"at_most_step": "60"},
        {"at": "2026-01-01T00:00:00"},
        {"attempts": None},
        {"suspects": ["../../etc"]},
        {"suspects": ["a"] * 1001},
        {"suspects": "step-1"},
        {"hold": "no"},
        {"run_id": 4},
    ],
)
def test_a_damaged_word_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        word_in({**word_out(SAID), **change})


def test_what_a_word_says_is_one_line() -> None:
    said = word_in({**word_out(SAID), "why": "a\n\x1b[31mb" + "x" * 5000, "by": "d\r"})
    assert said.why.startswith("a??[31mb")
    assert len(said.why) == 1000
    assert said.by == "d?"


def test_a_hold_starts_nothing_until_a_person_asks(run: RunDir) -> None:
    say(run, HOLD)
    assert "held: the daemon: the same failure on three nodes" in start(run)
    history = run.history()
    assert history.held == {None: "the daemon: the same failure on three nodes"}
    assert None in history.not_started
    assert not list((run.path / "attempts").iterdir())
    assert "held" in start(run), "and again"
    assert [event.kind for event in run.events()].count(EventKind.HELD) == 1
    person_asks(run)
    assert "told to end" in start(run)
    assert run.history().held == {}


def test_a_requeue_of_the_daemon_lifts_no_hold(run: RunDir) -> None:
    say(run, HOLD)
    start(run)
    person_asks(run, by=BY_DAEMON)
    assert "held" in start(run)


def test_a_hold_is_for_the_next_attempt_alone(run: RunDir) -> None:
    say(run, HOLD)
    attempt_starts(run, "1.0")
    assert "told to end" in start(run)
    assert not for_next(HOLD, run.history(), None)
    assert heeded(HOLD, run.history(), None)


def test_a_start_that_sees_an_older_record_heeds_the_hold_too(run: RunDir) -> None:
    say(run, msgspec.structs.replace(HOLD, attempts=2))
    assert "held" in start(run)


def test_a_step_and_suspects_are_written_down_and_kept_to(run: RunDir) -> None:
    say(run, ROLL_BACK)
    assert "told to end" in start(run)
    history = run.history()
    assert history.heeded == {None: Heeded(60, frozenset({"step-00000070"}))}
    texts = [moment.text for moment in timeline(run.events())]
    assert any("from training step 60 at most; not from step-00000070: loss is not a number" in text for text in texts)
    attempt_starts(run, "1.0")
    assert run.history().heeded == {None: Heeded(None, frozenset({"step-00000070"}))}, "the step was for that one alone"
    assert said_to(run.path, run.history(), None, {}).words == (), "nothing is written down twice"
    person_asks(run)
    assert run.history().heeded == {}


def test_the_checkpoints_are_chosen_as_the_word_says(run: RunDir, tmp_path: Path) -> None:
    say(run, ROLL_BACK)
    start(run)
    folder, attempts = Folder(tmp_path, "own", latest=True), Attempts(run.attempts_dir(None))

    def at_most() -> int | None:
        return known(attempts, (1, 0), run.history(), None, folder, LocalStorage()).at_most_step

    assert at_most() == 60
    found = known(attempts, (1, 0), run.history(), None, folder, LocalStorage())
    assert found.suspects == frozenset({"step-00000070"})


@pytest.mark.parametrize(("wished", "expected"), [(50, 50), (80, 60), (None, 60)])
def test_of_a_persons_step_and_the_daemons_the_lower_one_counts(
    run: RunDir, tmp_path: Path, wished: int | None, expected: int
) -> None:
    person_asks(run, from_step=wished)
    say(run, msgspec.structs.replace(ROLL_BACK, wishes=1))
    start(run)
    folder, attempts = Folder(tmp_path, "own", latest=True), Attempts(run.attempts_dir(None))
    assert known(attempts, (1, 0), run.history(), None, folder, LocalStorage()).at_most_step == expected


def test_a_later_wish_of_a_person_lifts_the_word(run: RunDir) -> None:
    say(run, ROLL_BACK)
    person_asks(run)
    start(run)
    assert run.history().heeded == {}


def test_a_word_to_another_run_or_element_is_none_to_this_one(run: RunDir) -> None:
    for other in (msgspec.structs.replace(HOLD, run_id="b-bbbbbb"), msgspec.structs.replace(HOLD, task=1)):
        say(run, other)
        assert "told to end" in start(run)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 1}', "[" * 200_000, "x" * (MOST_BYTES + 1)])
def test_what_may_be_a_hold_and_cannot_be_read_starts_nothing(run: RunDir, text: str) -> None:
    (run.path / WORD).write_text(text)
    assert WORD in start(run)
    assert run.history().held == {}, "it is not known whether it is"
    (run.path / WORD).unlink()
    assert "told to end" in start(run)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/passwd", path)])
def test_a_word_that_is_no_file_starts_nothing_and_is_not_waited_for(run: RunDir, make: Any) -> None:
    make(run.path / WORD)
    assert WORD in start(run)


def test_a_damaged_word_that_holds_nothing_is_told_and_ignored(run: RunDir) -> None:
    (run.path / WORD).write_text(json.dumps({**word_out(SAID), "suspects": 4}))
    told: list[str] = []
    assert "told to end" in start(run, told)
    assert any("word.json is damaged" in text for text in told)


def test_the_sites_daemon_says_it_in_a_folder_of_its_own(run: RunDir, site: Path) -> None:
    say_there(site, HOLD)
    assert "held: the daemon" in start(run, None, **{FOLDER: str(site)})
    assert "held" in start(run), "its own record says so from now on"


def test_an_element_of_a_sweep_has_a_word_of_its_own(run: RunDir, site: Path) -> None:
    say_there(site, msgspec.structs.replace(HOLD, task=4))
    element = {**JOB, "SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "4"}
    with pytest.raises(JobSideError, match="held"):
        launch(
            Order(str(run.path), 1, None, (), (Step("train", 0, ("true",)),)),
            identity(element),
            msgspec.structs.replace(world(), environ={**element, FOLDER: str(site)}),
        )
    assert list(run.history().held) == [4]


@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "words"),
    [(0o777, 0o644, "written by others"), (0o775, 0o644, "written by others"), (0o755, 0o666, "written by others")],
)
def test_what_others_could_have_written_is_no_word_of_the_site(
    run: RunDir, site: Path, folder_mode: int, file_mode: int, words: str
) -> None:
    say_there(site, HOLD).chmod(file_mode)
    site.chmod(folder_mode)
    told: list[str] = []
    assert "told to end" in start(run, told, **{FOLDER: str(site)})
    assert any(words in text for text in told)


@pytest.mark.parametrize(
    ("folder_uid", "file_uid", "euid", "counts"),
    [
        (0, 0, 1000, True),
        (900, 900, 1000, True),
        (900, 0, 1000, True),
        (0, 0, 0, True),
        (0, 900, 1000, False),
        (900, 1000, 1000, False),
        (1000, 1000, 1000, False),
        (1000, 0, 1000, False),
    ],
)
def test_only_root_or_the_service_account_speaks_for_the_site(
    run: RunDir, site: Path, monkeypatch: pytest.MonkeyPatch, folder_uid: int, file_uid: int, euid: int, counts: bool
) -> None:
    path = site / name_of(user_of(euid), HOLD.run_id, None)
    say_there(site, msgspec.structs.replace(HOLD, user=user_of(euid))).rename(path)
    real, real_fd = os.stat, os.fstat

    def owned(found: os.stat_result, uid: int) -> os.stat_result:
        return os.stat_result([*found[:4], uid, *found[5:10]])

    def stat(target: Any, **more: Any) -> os.stat_result:
        found = real(target, **more)
        return owned(found, file_uid if target == path.name else euid) if target in (path.name, run.path) else found

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "fstat", lambda handle: owned(real_fd(handle), folder_uid))
    said = said_to(run.path, run.history(), None, {FOLDER: str(site)})
    assert bool(said.words) is counts
    assert bool(said.passed_over) is not counts


@pytest.mark.parametrize("name", ["words", "/nowhere/at/all"])
def test_a_folder_of_words_that_is_not_there_starts_nothing(run: RunDir, name: str) -> None:
    """What is not mounted holds nobody's words, and may hold this run."""
    assert "not known whether the daemon holds this run: FLEETCTL_WORDS" in start(run, None, **{FOLDER: name})
    assert run.history().held == {}


def test_a_plain_file_or_a_link_for_the_folder_of_words_starts_nothing(run: RunDir, site: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(site)
    for name in ("file", "link"):
        assert "not known whether" in start(run, None, **{FOLDER: str(tmp_path / name)})


def test_the_sites_word_to_another_users_run_of_that_id_holds_nobody(run: RunDir, site: Path) -> None:
    """Two users may have runs of one id, and one may make his so."""
    path = say_there(site, msgspec.structs.replace(HOLD, user="mallory"))
    told: list[str] = []
    assert "told to end" in start(run, told, **{FOLDER: str(site)})
    assert any("mallory" in text for text in told)
    path.rename(site / name_of("mallory", HOLD.run_id, None))
    assert "told to end" in start(run, None, **{FOLDER: str(site)})


def test_a_link_in_the_sites_folder_is_no_word(run: RunDir, site: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text(json.dumps(word_out(HOLD)))
    (site / name_of(user_of(os.geteuid()), HOLD.run_id, None)).symlink_to(tmp_path / "mine")
    told: list[str] = []
    assert "told to end" in start(run, told, **{FOLDER: str(site)})
    assert told


def test_a_word_that_cannot_be_written_down_starts_nothing(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    say(run, ROLL_BACK)
    real = EventLog.append

    def append(self: EventLog, now: datetime, kind: EventKind, **facts: Any) -> None:
        if kind is EventKind.WORD:
            raise RunDirError("disk full")
        real(self, now, kind, **facts)

    monkeypatch.setattr(EventLog, "append", append)
    with pytest.raises(RunDirError):
        launch(order(run), identity(JOB), world())
    assert not list((run.path / "attempts").iterdir())
