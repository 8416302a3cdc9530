"""What a framework saved is remembered while its training runs, so that an empty folder never means a new start."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import pytest

from fleetctl.checkpoint.here import Here
from fleetctl.launch import witness as module
from fleetctl.launch.resume import choose, newest_step
from fleetctl.launch.witness import Witness
from tests.formats.huggingface import write_trainer
from tests.unit.test_launch_retain import _WAIT_S, Training


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "newest_step", functools.partial(newest_step, open_eyes=Here))


def turn(training: Training, witness: Witness) -> None:
    """A minute later; waits for the look."""
    training.clock.sleep(61.0)
    witness.tend()
    if witness._thread is not None:
        witness._thread.join(_WAIT_S)


def seen(training: Training) -> object:
    path = training.attempts.path((1, 0)) / "seen.json"
    return json.loads(path.read_text())["name"] if path.exists() else None


def test_what_was_seen_whole_holds_a_run_whose_folder_is_empty(tmp_path: Path) -> None:
    training = Training(tmp_path, format="huggingface", keep=None)
    training.start((1, 0))
    witness = Witness(training.lead, (1, 0), resumed=False)
    witness.tend()
    assert witness._thread is None, "a minute has not passed"
    turn(training, witness)
    assert seen(training) is None
    folder = write_trainer(training.directory, 100)
    turn(training, witness)
    assert seen(training) == folder.name
    thread = witness._thread
    turn(training, witness)
    assert witness._thread is thread, "once is enough"
    shutil.rmtree(folder)  # or not mounted on this node
    order, history = training.lead.order.checkpoint, training.run.history()
    assert training.attempts.claim((2, 0))
    found = choose(order, training.attempts, (2, 0), history, training.lead.job, training.clock, open_eyes=Here)
    assert found.hold is not None


@pytest.mark.parametrize(("form", "resumed"), [("own", False), ("huggingface", True)])
def test_nothing_is_looked_for_that_is_known(form: str, resumed: bool, tmp_path: Path) -> None:
    training = Training(tmp_path, format=form)
    training.start((1, 0))
    witness = Witness(training.lead, (1, 0), resumed=resumed)
    write_trainer(training.directory, 100)
    turn(training, witness)
    assert (witness._thread, seen(training)) == (None, None)
