"""What a start takes, over attempts, of what frameworks write: no name tells whose it is, or whether it is whole."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetctl.checkpoint import mounts
from fleetctl.checkpoint.here import Here
from fleetctl.checkpoint.model import Checked, Survey, Validity
from fleetctl.errors import CannotTell, RunDirError
from fleetctl.launch import head
from fleetctl.launch import resume as module
from fleetctl.launch.head import Head
from fleetctl.launch.memory import fences_writers
from fleetctl.launch.model import CheckpointOrder, JobIdentity
from fleetctl.launch.resume import Resume, choose, newest_step
from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.model import AttemptNumber, EventKind
from fleetctl.rundir.store import Store
from fleetctl.train import layout
from tests.checkpoints import write_checkpoint
from tests.formats.dcp import shards_of, write_dcp
from tests.formats.deepspeed import write_zero
from tests.formats.huggingface import write_trainer
from tests.formats.megatron import write_dist
from tests.unit.clocks import StillClock
from tests.unit.test_rundir import make_run

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = JobIdentity("7", "7", None, None, "n1", 0)
RUN = "r-aaaaaa"


class Run:
    """One run and its folder of checkpoints."""

    def __init__(self, folder: Path, **order: Any) -> None:
        store = Store(folder / "runs")
        store.ensure()
        self.run = make_run(store, RUN)
        self.run.submission_dir(1).mkdir()
        self.run.event_log("login").append(NOW, EventKind.INTENT, submission=1)
        self.directory = folder / "ckpt"
        self.directory.mkdir()
        self.attempts = Attempts(self.run.attempts_dir(None))
        self.clock = StillClock()
        self.order = CheckpointOrder(str(self.directory), **{"format": "huggingface", "load": "latest", **order})

    def start(self, major: int, minor: int = 0) -> Resume:
        number = (major, minor)
        assert self.attempts.claim(number)
        return choose(self.order, self.attempts, number, self.run.history(), JOB, self.clock, open_eyes=Here)

    def said(self, major: int, minor: int = 0, name: str = "claim.json") -> dict[str, Any]:
        return dict(json.loads((self.attempts.path((major, minor)) / name).read_text()))

    def newest(self, *number: int) -> int | None:
        return newest_step(self.order, self.attempts, (number[0], number[1]), self.run.history(), None, open_eyes=Here)

    def attempt_ended(self, name: str) -> None:
        facts = {"submission": 1, "attempt": name, "task": None, "job_id": "7"}
        log = self.run.event_log("job-7")
        log.append(NOW, EventKind.ATTEMPT_STARTED, host="n1", nodes="n1", **facts)
        log.append(NOW, EventKind.ATTEMPT_ENDED, exit_code=1, ending="failed", **facts)

    def wish(self, from_step: int) -> None:
        """As `fleetctl requeue --from` after the first attempt."""
        facts = {"from_step": from_step, "by": "user me", "attempts": 1, "holds": 0}
        self.run.event_log("login").append(NOW, EventKind.REQUEUE, submission=1, task=None, **facts)

    def has_saved(self, number: AttemptNumber, name: str) -> None:
        """As Checkpointer tells it."""
        line = {"training_step": 1, "name": name, "state": "committed", "total_s": 1.0}
        (self.attempts.path(number) / "saves.jsonl").write_text(json.dumps(line) + "\n")


def tear(folder: Path) -> Path:
    """As a save that was killed leaves it: what is written last is not there."""
    (folder / "trainer_state.json").unlink()
    (folder / "scheduler.pt").unlink()
    return folder


def newer(folder: Path) -> Path:
    """Written later than all that these tests write."""
    for path in folder.iterdir():
        os.utime(path, (4e9, 4e9))
    return folder


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path)


def cut(folder: Path) -> Path:
    os.truncate(folder / "optimizer.pt", 30)
    return folder


def test_the_newest_valid_one_is_taken_and_each_newer_one_says_why_not(tmp_path: Path) -> None:
    run = Run(tmp_path)
    write_trainer(run.directory, 100)
    cut(write_trainer(run.directory, 200))
    tear(write_trainer(run.directory, 300))
    found = run.start(1)
    assert (found.path, found.training_step) == (f"{run.directory}/checkpoint-100", 100)
    assert [line.partition(": ")[0] for line in found.passed_over] == ["checkpoint-300", "checkpoint-200"]
    assert found.passed_over[0] == "checkpoint-300: incomplete: scheduler.pt is missing (and 1 more)"
    assert found.passed_over[1].startswith("checkpoint-200: corrupt: optimizer.pt")
    said = run.said(1, name="resume.json")
    assert (said["format"], said["level"], said["training_step"]) == ("huggingface", "structure", 100)
    assert run.said(1)["stands"] == ["checkpoint-300", "checkpoint-200", "checkpoint-100"]
    assert "aside" not in run.said(1)


def test_a_start_waits_for_late_files_only_where_files_come_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that was killed in a save leaves a torn newest one: a restart takes seconds all the same."""
    run = Run(tmp_path)
    write_trainer(run.directory, 100)
    tear(write_trainer(run.directory, 200))
    assert run.start(1).training_step == 100
    assert run.clock.slept_s == 0
    (tmp_path / "mountinfo").write_text("1 0 8:1 / / rw - nfs4 server:/ rw\n")
    monkeypatch.setattr(mounts, "_MOUNTS", tmp_path / "mountinfo")
    assert run.start(1, 1).training_step == 100
    assert run.clock.slept_s == pytest.approx(module._VISIBLE_WITHIN_S, abs=1)


def test_a_flipped_bit_is_found_where_the_spec_asks_for_the_content(tmp_path: Path) -> None:
    run = Run(tmp_path, format="torch_dcp", verify="content")
    for step in (100, 200):
        write_dcp(run.directory / str(step), shards_of(tensors=1, floats=50))
    shard = run.directory / "200" / "__1_0.distcp"
    raw, at = bytearray(shard.read_bytes()), shard.stat().st_mtime
    raw[raw.find(b"\x00\x00\x80\x3f") if b"\x00\x00\x80\x3f" in raw else len(raw) // 2] ^= 1
    shard.write_bytes(raw)
    os.utime(shard, (at, at))
    found = run.start(1)
    assert found.training_step == 100
    assert found.passed_over[0].startswith("200: corrupt: __1_0.distcp")
    assert run.said(1, name="resume.json")["level"] == "content"
    run.order = CheckpointOrder(str(run.directory), "torch_dcp", "latest")
    assert run.start(1, 1).training_step == 200, "the structure is right"


# `load: none`


def test_what_was_there_before_the_run_is_never_taken(tmp_path: Path) -> None:
    run = Run(tmp_path, load="none")
    write_trainer(run.directory, 500)
    assert run.start(1).path is None
    write_trainer(run.directory, 100)  # of this run, and older by its number
    found = run.start(1, 1)
    assert found.training_step == 100
    assert found.passed_over == (
        "checkpoint-500: unknown: set aside: it was there before this run, or a person went back to an older step",
    )
    assert list(run.said(1, 1)["aside"]) == ["checkpoint-500"], "later claims say it again"
    shutil.rmtree(run.directory / "checkpoint-100")
    held = run.start(2)
    assert held.hold is not None
    assert run.start(2, 1).path is None, "the old one is still none of ours"


def test_what_was_there_before_and_was_written_over_since_counts(tmp_path: Path) -> None:
    run = Run(tmp_path, load="none")
    write_trainer(run.directory, 500)
    assert run.start(1).path is None
    shutil.rmtree(run.directory / "checkpoint-500")
    newer(write_trainer(run.directory, 500))
    assert run.start(1, 1).training_step == 500
    assert "aside" not in run.said(1, 1)
    assert run.start(1, 2).training_step == 500


def put_a_note_into(folder: Path) -> None:
    (folder / "README").write_text("of an older training")


def take_a_file_from(folder: Path) -> None:
    (folder / "optimizer.pt").unlink()


@pytest.mark.parametrize("touch", [put_a_note_into, take_a_file_from])
def test_what_is_put_beside_or_taken_away_makes_nothing_of_the_run(tmp_path: Path, touch: Any) -> None:
    run = Run(tmp_path, load="none")
    folder = write_trainer(run.directory, 500)
    assert run.start(1).path is None
    touch(folder)
    found = run.start(1, 1)
    assert (found.path, found.hold) == (None, None)


def test_what_cannot_be_recognised_at_first_is_set_aside_too(tmp_path: Path) -> None:
    run = Run(tmp_path, load="none", format="auto")
    (run.directory / "best").mkdir()
    write_checkpoint(run.directory, 10, run_id="another")
    assert run.start(1).path is None
    assert list(run.said(1)["aside"]) == ["best"]


def test_our_own_format_needs_none_of_it(tmp_path: Path) -> None:
    run = Run(tmp_path, load="none", format="own")
    write_trainer(run.directory, 500)
    write_checkpoint(run.directory, 10, run_id="another")
    assert run.start(1).path is None
    assert "aside" not in run.said(1)


def test_what_cannot_be_set_aside_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetctl.checkpoint.aside._MOST_NAMES", 1)
    run = Run(tmp_path, load="none")
    write_trainer(run.directory, 500)
    write_trainer(run.directory, 600)
    hold = run.start(1).hold
    assert hold is not None
    assert "more than 1 folders" in hold
    assert not (run.attempts.path((1, 0)) / "claim.json").exists(), "nothing was claimed"


# Scratch or hold


def test_a_first_save_that_was_never_finished_is_no_reason_to_hold(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.start(1) == Resume()
    tear(write_trainer(run.directory, 100))
    for minor in (1, 2):
        found = run.start(1, minor)
        assert (found.path, found.hold) == (None, None)
        assert found.passed_over[0].startswith("checkpoint-100: incomplete: ")


@pytest.mark.parametrize("spoil", [tear, cut, shutil.rmtree])
def test_where_an_attempt_resumed_from_it_a_damaged_one_holds(tmp_path: Path, spoil: Any) -> None:
    run = Run(tmp_path)
    folder = write_trainer(run.directory, 100)
    assert run.start(1).training_step == 100
    spoil(folder)
    assert run.start(1, 1).hold is not None


def test_a_damaged_one_holds_for_as_long_as_it_lies_there(tmp_path: Path) -> None:
    run = Run(tmp_path)
    folder = write_trainer(run.directory, 100)
    assert run.start(1).training_step == 100
    tear(folder)
    assert all(run.start(major).hold is not None for major in (2, 3, 4))


def test_a_hold_stays_one_when_all_is_gone(tmp_path: Path) -> None:
    run = Run(tmp_path)
    write_trainer(run.directory, 100)
    assert run.start(1).training_step == 100
    empty(run.directory)
    for major in (2, 3, 4):
        hold = run.start(major).hold
        assert hold is not None
        assert hold.endswith("put a valid one back, or submit a new run")
    write_trainer(run.directory, 100)
    assert run.start(5).training_step == 100


@pytest.mark.parametrize("form", ["own", "auto"])
def test_our_own_one_that_is_put_back_after_a_hold_counts(tmp_path: Path, form: str) -> None:
    run = Run(tmp_path, format=form)
    assert run.start(1).hold is None
    folder = write_checkpoint(run.directory, 100, run_id=RUN)
    run.has_saved((1, 0), folder.name)
    assert run.start(2).training_step == 100
    folder.rename(tmp_path / "away")
    write_trainer(run.directory, 500)
    assert all(run.start(major).hold is not None for major in (3, 4, 5)), "an export is no substitute"
    (tmp_path / "away").rename(folder)
    assert run.start(6).training_step == 100


def test_a_damaged_one_that_is_gone_holds_for_ever(tmp_path: Path) -> None:
    """It may have been whole when nobody looked."""
    run = Run(tmp_path)
    assert run.start(1).path is None
    cut(write_trainer(run.directory, 100))
    assert run.start(2).hold is not None
    empty(run.directory)
    assert all(run.start(major).hold is not None for major in (3, 4))


@pytest.mark.parametrize("load", ["latest", "none"])
@pytest.mark.parametrize("lose", [empty, shutil.rmtree, lambda folder: tear(folder / "checkpoint-200")])
def test_what_an_attempt_had_at_its_end_is_never_forgotten(tmp_path: Path, load: str, lose: Any) -> None:
    run = Run(tmp_path, load=load)
    assert run.start(1).path is None
    write_trainer(run.directory, 200)
    assert run.newest(1, 0) == 200
    assert run.said(1, name="seen.json") == {"schema": 1, "name": "checkpoint-200", "training_step": 200}
    lose(run.directory)
    assert all(run.start(major).hold is not None for major in (2, 3))


def test_an_attempt_that_had_none_has_seen_none(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start(1)
    tear(write_trainer(run.directory, 200))
    assert run.newest(1, 0) is None
    empty(run.directory)
    assert run.start(2).hold is None


def test_a_missing_folder_is_made_only_for_a_start_from_scratch(tmp_path: Path) -> None:
    """What is made on a mount point hides for ever that nothing is mounted."""
    run = Run(tmp_path)
    run.directory.rmdir()
    assert run.start(1).hold is None
    assert run.directory.is_dir()
    write_trainer(run.directory, 100)
    assert run.start(2).training_step == 100
    shutil.rmtree(run.directory)
    assert run.start(3).hold is not None
    assert not run.directory.exists()


class Hung(Here):
    """Eyes whose storage does not answer."""

    answers = False

    def survey(self, directory: Path, wanted: str) -> Survey:
        raise CannotTell("its storage does not answer")


class HungLater(Here):
    """One that lists the folder, and hangs when it reads a checkpoint."""

    answers = True

    def examine(self, *args: Any, **kwargs: Any) -> Checked:
        self.answers = False
        return Checked(None, "checkpoint-100", Validity.UNKNOWN, None, "its storage does not answer")


@pytest.mark.parametrize("eyes", [Hung, HungLater])
def test_a_storage_that_does_not_answer_is_for_the_caller_to_ask_again(tmp_path: Path, eyes: Any) -> None:
    run = Run(tmp_path)
    write_trainer(run.directory, 100)
    assert run.attempts.claim((1, 0))
    history = run.run.history()
    with pytest.raises(CannotTell, match="does not answer"):
        choose(run.order, run.attempts, (1, 0), history, JOB, run.clock, open_eyes=eyes)
    assert run.clock.slept_s == 0, "these eyes see nothing more, however long one waits"
    found = choose(run.order, run.attempts, (1, 0), history, JOB, run.clock, open_eyes=Here)
    assert found.training_step == 100


# `requeue --from`


def test_what_a_person_went_back_from_stays_rejected(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start(1)
    for step in (100, 200, 300):
        write_trainer(run.directory, step)
    run.attempt_ended("1.0")
    run.wish(from_step=100)
    assert run.start(2).training_step == 100
    assert sorted(run.said(2)["aside"]) == ["checkpoint-200", "checkpoint-300"]
    run.attempt_ended("2.0")
    assert run.start(2, 1).training_step == 100
    run.attempt_ended("2.1")
    newer(write_over(run.directory, 200))
    assert run.start(2, 2).training_step == 200
    assert list(run.said(2, 2)["aside"]) == ["checkpoint-300"], "and later claims say it again"


def write_over(directory: Path, step: int) -> Path:
    shutil.rmtree(directory / f"checkpoint-{step}")
    return write_trainer(directory, step)


def test_one_that_is_not_to_be_recognised_any_more_holds(tmp_path: Path) -> None:
    run = Run(tmp_path, format="auto")
    write_dcp(run.directory / "mine")
    assert run.start(1).path == f"{run.directory}/mine"
    shutil.rmtree(run.directory / "mine")
    (run.directory / "mine").mkdir()
    assert run.start(1, 1).hold is not None


def test_a_save_that_was_never_finished_may_be_cleared_away(tmp_path: Path) -> None:
    """Frameworks do so when they start, as Orbax does."""
    run = Run(tmp_path)
    assert run.start(1).path is None
    folder = tear(write_trainer(run.directory, 100))
    assert run.start(1, 1).void == ("checkpoint-100",)
    shutil.rmtree(folder)
    found = run.start(1, 2)
    assert (found.path, found.hold) == (None, None)
    write_trainer(run.directory, 100)
    assert run.start(1, 3).training_step == 100
    shutil.rmtree(run.directory / "checkpoint-100")
    assert run.start(1, 4).hold is not None, "that one was whole"


def test_one_that_was_damaged_and_is_not_to_be_recognised_any_more_holds(tmp_path: Path) -> None:
    run = Run(tmp_path, format="auto")
    write_dcp(run.directory / "mine")
    os.truncate(run.directory / "mine" / "__0_0.distcp", 10)
    assert run.start(1).hold is not None
    shutil.rmtree(run.directory / "mine")
    (run.directory / "mine").mkdir()
    assert run.start(2).hold is not None


def test_how_it_resumed_that_cannot_be_read_is_not_guessed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    tear(write_trainer(run.directory, 100))
    assert run.start(1).path is None
    path = run.attempts.path((1, 0)) / "resume.json"
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(RunDirError, match=r"resume\.json"):
        run.start(1, 1)


# `auto`


def test_beside_our_own_checkpoints_nothing_else_is_one(tmp_path: Path) -> None:
    run = Run(tmp_path, format="auto")
    write_checkpoint(run.directory, 10, run_id=RUN, attempt="1.0")
    write_trainer(run.directory, 500)
    found = run.start(1)
    assert found.path == str(run.directory / layout.committed_name(10, RUN, "1.0"))
    assert run.said(1)["stands"] == [layout.committed_name(10, RUN, "1.0")]
    shutil.rmtree(found.path)
    assert run.start(2).hold is not None, "and when they are gone, it is no substitute"


@pytest.mark.parametrize(
    ("form", "saved", "fenced"),
    [("own", False, True), ("auto", True, True), ("auto", False, False), ("huggingface", True, False)],
)
def test_only_our_own_writers_are_fenced(tmp_path: Path, form: str, saved: bool, fenced: bool) -> None:
    run = Run(tmp_path, format=form)
    run.start(1)
    if saved:
        run.has_saved((1, 0), layout.committed_name(10, RUN, "1.0"))
    assert fences_writers(run.attempts, form) is fenced


# How far it has come


def test_progress_is_the_newest_valid_one(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.start(1)
    assert run.newest(1, 0) is None
    write_trainer(run.directory, 100)
    tear(write_trainer(run.directory, 200))
    assert run.newest(1, 0) == 100


def test_what_an_older_training_left_is_no_progress_of_this_one(tmp_path: Path) -> None:
    run = Run(tmp_path, load="none")
    write_trainer(run.directory, 500)
    run.start(1)
    assert run.newest(1, 0) is None


# Telling


def test_the_command_gets_the_words_of_its_framework(tmp_path: Path) -> None:
    run = Run(tmp_path, tell="arguments")
    assert run.start(1).arguments == ()
    write_trainer(run.directory, 100)
    found = run.start(1, 1)
    assert found.arguments == ("--resume_from_checkpoint", f"{run.directory}/checkpoint-100")
    assert run.said(1, 1, "resume.json")["arguments"] == list(found.arguments)


@pytest.fixture
def pointing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of a framework that has a pointer; of what format the checkpoints are does not matter here."""
    monkeypatch.setattr("fleetctl.launch.tell._POINTERS", {"huggingface": "latest"})
    return Run(tmp_path, tell="pointer")


def test_the_pointer_says_what_was_chosen_before_anything_starts(pointing: Run) -> None:
    write_trainer(pointing.directory, 100)
    tear(write_trainer(pointing.directory, 200))
    (pointing.directory / "latest").write_text("checkpoint-200")
    found = pointing.start(1)
    assert (pointing.directory / "latest").read_text() == "checkpoint-100"
    assert (pointing.directory / "latest.before-fleetctl-1.0").read_text() == "checkpoint-200"
    said = pointing.said(1, name="resume.json")["pointer"]
    assert said == {
        "name": "latest", "text": "checkpoint-100", "before": "checkpoint-200", "kept": "latest.before-fleetctl-1.0",
    }  # fmt: skip
    assert found.pointer is not None


def test_a_pointer_to_a_save_that_was_never_finished_goes_away_with_a_start_from_scratch(pointing: Run) -> None:
    tear(write_trainer(pointing.directory, 200))
    (pointing.directory / "latest").write_text("checkpoint-200")
    assert pointing.start(1).hold is None
    assert not (pointing.directory / "latest").exists()


def test_a_pointer_that_cannot_be_set_holds(pointing: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write_trainer(pointing.directory, 100)

    def refuse(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "set_pointer", refuse)
    hold = pointing.start(1).hold
    assert hold is not None
    assert "would load another checkpoint: No space left" in hold
    assert pointing.said(1, name="resume.json")["hold"] == hold
    (pointing.directory / "latest").symlink_to("elsewhere")
    hold = pointing.start(1, 1).hold
    assert hold is not None
    assert "it is a link" in hold


def test_a_run_that_is_held_leaves_the_pointer_alone(pointing: Run) -> None:
    folder = write_trainer(pointing.directory, 100)
    pointing.start(1)
    cut(folder)
    (pointing.directory / "latest").write_text("checkpoint-999")
    assert pointing.start(1, 1).hold is not None
    assert (pointing.directory / "latest").read_text() == "checkpoint-999"


def test_a_head_that_is_no_longer_the_newest_leaves_the_pointer_alone(pointing: Run) -> None:
    write_trainer(pointing.directory, 100)
    (pointing.directory / "latest").write_text("checkpoint-999")
    assert pointing.attempts.claim((1, 1))
    found = pointing.start(1)
    assert (found.training_step, found.pointer) == (100, None)
    assert (pointing.directory / "latest").read_text() == "checkpoint-999"


def test_deepspeeds_and_megatrons_own_pointers(tmp_path: Path) -> None:
    for form, tracker, first in (
        ("deepspeed", "latest", "global_step100"),
        ("megatron", "latest_checkpointed_iteration.txt", "100"),
    ):
        (tmp_path / form).mkdir()
        run = Run(tmp_path / form, format=form, tell="pointer")
        for step in (100, 200):
            folder = write_zero(run.directory, step) if form == "deepspeed" else write_dist(run.directory, step)
        shard = max(folder.glob("*.pt"))
        os.truncate(shard, 30)
        (run.directory / tracker).write_text("200" if form == "megatron" else "global_step200")
        assert run.start(1).training_step == 100
        assert (run.directory / tracker).read_text() == first


# The head's patience


def leader(run: Run, *, told: bool = False) -> Any:
    """A head, of which only how it chooses is tried."""
    said: list[str] = []
    world = SimpleNamespace(clock=run.clock, told_to_end=lambda: told, say=said.append)
    order = SimpleNamespace(checkpoint=run.order)
    lead: Any = SimpleNamespace(order=order, attempts=run.attempts, job=JOB, world=world)

    def poll(within_s: float) -> tuple[()]:
        run.clock.sleep(within_s)
        return ()

    watch: Any = SimpleNamespace(poll=poll)
    return Head(lead, watch, ())


def refusing(monkeypatch: pytest.MonkeyPatch, times: float, found: Resume) -> None:
    """A storage that does not answer so often."""
    tried = itertools.count()

    def choose(*args: object) -> Resume:
        if next(tried) < times:
            raise CannotTell("its storage does not answer")
        return found

    monkeypatch.setattr(head, "choose", choose)


def test_a_file_server_that_fails_over_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    refusing(monkeypatch, 24, Resume("/ckpt/a", 1))
    assert leader(run)._choose((2, 0), run.run.history()) == Resume("/ckpt/a", 1)
    assert 120 <= run.clock.slept_s < 180


def test_a_file_server_that_stays_away_holds_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    refusing(monkeypatch, math.inf, Resume())
    assert leader(run)._choose((2, 0), run.run.history()).hold == "its storage does not answer"
    assert run.clock.slept_s >= 600


def test_a_job_that_is_told_to_end_waits_for_no_file_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    refusing(monkeypatch, math.inf, Resume())
    with pytest.raises(CannotTell, match="does not answer"):
        leader(run, told=True)._choose((2, 0), run.run.history())
    assert run.clock.slept_s == 0
