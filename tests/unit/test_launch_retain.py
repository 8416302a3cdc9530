"""The retention of one attempt: what it looks at, what it never removes, and that it ends with its attempt."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from fleetctl.checkpoint import remove as remove_module
from fleetctl.checkpoint.here import Here
from fleetctl.checkpoint.trash import delete
from fleetctl.launch import attempt as attempt_module
from fleetctl.launch import retain as module
from fleetctl.launch.attempt import Running, Start
from fleetctl.launch.lead import Lead, World
from fleetctl.launch.model import CheckpointOrder, Order, Step, identity
from fleetctl.launch.pulse import Pulses
from fleetctl.launch.resume import Resume
from fleetctl.launch.retain import Retainer
from fleetctl.launch.watching import NodeWatch
from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.model import AttemptNumber, EventKind, attempt_name
from fleetctl.rundir.store import Store
from tests.checkpoints import write_checkpoint
from tests.formats.huggingface import write_trainer
from tests.unit.clocks import START, StillClock
from tests.unit.test_rundir import make_run

if TYPE_CHECKING:
    from fleetctl.slurm.port import Slurm

RUN = "r-aaaaaa"
_WAIT_S = 30.0  # for a thread, on a crowded machine


class Training:
    """A run whose head is at some attempt, and its folder of checkpoints."""

    def __init__(self, folder: Path, **order: Any) -> None:
        store = Store(folder / "runs")
        store.ensure()
        self.run = make_run(store, RUN)
        self.run.submission_dir(1).mkdir()
        self.run.event_log("login").append(START, EventKind.INTENT, submission=1)
        self.attempts = Attempts(self.run.attempts_dir(None))
        self.directory = folder / "ckpt"
        self.directory.mkdir()
        self.clock, self.said = StillClock(), list[str]()
        checkpoint = CheckpointOrder(str(self.directory), **{"format": "own", "load": "latest", "keep": 2, **order})
        slurm = cast("Slurm", object())  # nothing here asks it
        world = World(self.clock, {}, (), slurm, lambda: None, lambda: False, lambda: 0, self.said.append)
        whole = Order(str(self.run.path), 1, None, (), (Step("train", 0, ("true",)),), checkpoint=checkpoint)
        log = self.run.event_log("job-7")
        job = identity({"SLURM_JOB_ID": "7"})
        self.lead = Lead(self.run, whole, job, log, self.attempts, ({},), world, None)

    def start(self, number: AttemptNumber, *stands: str, took: str = "", passed_over: tuple[str, ...] = ()) -> Retainer:
        """What the start of an attempt writes down; its retention."""
        assert self.attempts.claim(number)
        self.attempts.write_stands(number, stands, self.clock.now(), "7")
        path = str(self.directory / took) if took else None
        self.attempts.write(number, "resume.json", {"path": path, "passed_over": list(passed_over)})
        return Retainer(self.lead, number)

    def turn(self, retainer: Retainer, *, after_s: float = 0.0) -> None:
        """One look and, if something may go, its removal."""
        self.clock.slept_s += after_s
        for _ in range(2):
            retainer.tend()
            self.join(retainer)

    def join(self, retainer: Retainer) -> None:
        assert retainer._thread is not None
        retainer._thread.join(_WAIT_S)
        assert not retainer._thread.is_alive()

    @property
    def steps(self) -> list[int]:
        return sorted(int(path.name[5:14]) for path in self.directory.glob("step-*"))

    @property
    def written_down(self) -> list[list[str]]:
        return [event.data["names"] for event in self.run.events() if event.kind is EventKind.RETENTION]


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In this process; each entry is one that was looked into."""
    found = list[str]()

    class Eyes(Here):
        def examine(self, directory: Path, entry: Any, *args: Any, **more: Any) -> Any:
            found.append(entry.name)
            return super().examine(directory, entry, *args, **more)

    monkeypatch.setattr(module, "Apart", Eyes)
    return found


def own(training: Training, *steps: int, attempt: str = "1.0") -> tuple[str, ...]:
    return tuple(write_checkpoint(training.directory, step, run_id=RUN, attempt=attempt).name for step in steps)


def test_what_is_too_much_goes_and_is_written_down(tmp_path: Path) -> None:
    training = Training(tmp_path)
    retainer = training.start((1, 0))
    gone, *_ = own(training, 10, 20, 30)
    training.turn(retainer, after_s=10)
    assert (training.steps, training.written_down, training.said) == ([20, 30], [[gone]], [])


def test_what_the_start_passed_over_takes_no_place_beside_what_was_saved_since(tmp_path: Path) -> None:
    """300 and 200 were passed over, as with a flipped bit and `verify: content`; 2.0 goes on from 100."""
    training = Training(tmp_path, keep=3)
    training.start((1, 0))
    names = own(training, 80, 90, 100, 200, 300)
    passed_over = tuple(f"{name}: corrupt: shard-00000.bin has another content" for name in names[3:])
    retainer = training.start((2, 0), *names, took=names[2], passed_over=passed_over)
    own(training, 110, attempt="2.0")
    training.turn(retainer, after_s=10)
    assert training.steps == [90, 100, 110, 200, 300]
    own(training, 120, 130, 140, attempt="2.0")
    training.turn(retainer, after_s=100)
    assert training.steps == [100, 120, 130, 140, 200, 300]


def test_what_killed_an_attempt_takes_no_place(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.start((1, 0))
    names = own(training, 80, 90, 300)
    training.start((2, 0), *names, took=names[2])
    said = {"path": str(training.directory / names[2]), "state": "failed"}
    (training.attempts.path((2, 0)) / "load.json").write_text(json.dumps(said))
    for number in ((1, 0), (2, 0)):
        facts = {"submission": 1, "attempt": attempt_name(number), "task": None, "job_id": "7"}
        training.lead.log.append(START, EventKind.ATTEMPT_STARTED, **facts, host="n1")
        ended = {"exit_code": 1, "terminated": False, "ending": "failed"}
        training.lead.log.append(START + timedelta(hours=1), EventKind.ATTEMPT_ENDED, **facts, **ended)
    retainer = training.start((3, 0), *names, took=names[1])
    training.turn(retainer, after_s=10)
    assert training.steps == [80, 90, 300]
    own(training, 100, 110, attempt="3.0")
    training.turn(retainer, after_s=100)
    assert training.steps == [90, 100, 110, 300]


def held(training: Training, retainer: Retainer, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A removal that has renamed its first, and is as slow as terabytes to delete it; returns how to let it go on."""
    begun, goes_on = threading.Event(), threading.Event()

    def slow(name: str, folder: int) -> None:
        begun.set()
        assert goes_on.wait(_WAIT_S)
        delete(name, folder)

    monkeypatch.setattr(remove_module, "delete", slow)
    training.clock.slept_s += 10
    retainer.tend()
    training.join(retainer)
    retainer.tend()
    assert begun.wait(_WAIT_S)

    def go_on() -> None:
        goes_on.set()
        training.join(retainer)

    return go_on


def test_nothing_goes_once_the_attempt_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path)
    retainer = training.start((1, 0))
    own(training, 10, 20, 30, 40, 50)
    go_on = held(training, retainer, monkeypatch)
    retainer.stop()  # at once: it waits for no deletion
    go_on()
    assert training.steps == [20, 30, 40, 50]


def test_nothing_goes_once_a_newer_attempt_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path)
    retainer = training.start((1, 0))
    own(training, 10, 20, 30, 40, 50)
    go_on = held(training, retainer, monkeypatch)
    assert training.attempts.claim((1, 1))
    go_on()
    assert training.steps == [20, 30, 40, 50]


def test_the_end_of_an_attempt_waits_for_the_rename_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path)
    retainer = training.start((1, 0))
    own(training, 10, 20, 30, 40)
    renaming, goes_on, real = threading.Event(), threading.Event(), os.rename

    def slow(*args: Any, **more: Any) -> None:
        renaming.set()
        assert goes_on.wait(_WAIT_S)
        real(*args, **more)

    training.clock.slept_s += 10
    retainer.tend()
    training.join(retainer)
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", slow)
        retainer.tend()
        assert renaming.wait(_WAIT_S)
        stopping = threading.Thread(target=retainer.stop)
        stopping.start()
        stopping.join(0.1)
        assert stopping.is_alive()
        goes_on.set()
        stopping.join(_WAIT_S)
        assert not stopping.is_alive()
        training.join(retainer)
    assert training.steps == [20, 30, 40], "one went, and the stop came before the next"


def test_the_end_of_an_attempt_ends_its_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path)
    training.start((1, 0))
    monkeypatch.setattr(attempt_module, "read_horizon", lambda _: None)
    watch, pulses = NodeWatch(training.lead, (), (1, 0)), Pulses(training.lead)
    running = Running(training.lead, Start((1, 0), (), "", Resume(), None), watch, pulses)
    running.wait()  # its steps have ended: there are none
    pulses.close()
    with running._retainer._permit() as may_go:
        assert not may_go


def test_the_same_names_are_not_looked_into_each_minute(tmp_path: Path, looks: list[str]) -> None:
    training = Training(tmp_path, keep_every_s=1)
    retainer = training.start((1, 0))
    for step in (10, 20, 30, 40):
        write_checkpoint(training.directory, step, run_id=RUN, saved_at=f"2026-01-01T00:00:{step}+00:00")
    for name in ("logs", "train.log"):
        (training.directory / name).touch()
    training.turn(retainer, after_s=10)
    assert (len(looks), training.steps) == (4, [10, 20, 30, 40])
    (training.directory / "slurm-8.out").touch()
    training.turn(retainer, after_s=70)
    assert len(looks) == 4, "no other checkpoints"
    own(training, 50)
    training.turn(retainer, after_s=70)
    assert len(looks) == 9
    training.turn(retainer, after_s=module._AGAIN_S + 70)
    assert len(looks) == 14, "what was being written may be settled"


def test_few_names_are_not_looked_into(tmp_path: Path, looks: list[str]) -> None:
    training = Training(tmp_path)
    retainer = training.start((1, 0))
    own(training, 10, 20)
    for name in ("logs", ".keep", "a", "b"):
        (training.directory / name).mkdir()
    training.turn(retainer, after_s=10)
    assert looks == []


def test_a_framework_may_call_its_checkpoints_anything(tmp_path: Path, looks: list[str]) -> None:
    training = Training(tmp_path, format="huggingface")
    retainer = training.start((1, 0))
    for step, name in ((10, "first"), (20, "second"), (30, "third")):
        write_trainer(training.directory, step).rename(training.directory / name)
    training.turn(retainer, after_s=10)
    assert sorted(looks) == ["first", "second", "third"]
