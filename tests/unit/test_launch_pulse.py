"""The head's word about its run: what stands in pulse.json, and what never disturbs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from fleetctl.launch import pulse as module
from fleetctl.launch.lead import Lead, World
from fleetctl.launch.model import JobIdentity, Order, Step
from fleetctl.launch.pulse import Pulses, Seen
from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.model import AttemptNumber, EventKind, attempt_name
from fleetctl.rundir.pulse import PREPARES, PULSE, Pulse, Silent, pulse_in, pulse_out
from fleetctl.rundir.store import Store
from tests.support import wait_until
from tests.unit.clocks import START, StillClock
from tests.unit.test_rundir import make_run

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FULL = Pulse(
    attempt="1.0",
    job_id="7",
    restart_count=2,
    host="n1",
    at=NOW,
    events=3,
    phase="step",
    training_step=12,
    progress_at=NOW,
    checkpoint_step=10,
    losses=((11, None), (12, 0.5)),
    ranks=8,
    heard=7,
    silent=(Silent(3, "n2", "step", 400.5, 300.0),),
    suspected_at=NOW,
    hung=True,
    lost_nodes=("n3",),
    over=True,
)


def test_a_pulse_is_read_as_it_was_written() -> None:
    bare = Pulse("1.0", "7", 0, "n1", NOW, 0, PREPARES)
    for pulse in (FULL, bare):
        assert pulse_in(json.loads(json.dumps(pulse_out(pulse), allow_nan=False))) == pulse


@pytest.mark.parametrize("raw", [None, [], "x", 5, {}, {"schema": 2}, {"schema": 1, "attempt": "1.0"}])
def test_what_is_no_pulse_is_none(raw: object) -> None:
    assert pulse_in(raw) is None


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": 5},
        {"attempt": ""},
        {"job_id": None},
        {"at": "yesterday"},
        {"at": "2026-01-01T00:00:00"},
        {"restart_count": 1.5},
        {"restart_count": True},
        {"events": "many"},
        {"schema": "1"},
    ],
)
def test_a_pulse_without_its_key_values_is_none(change: dict[str, Any]) -> None:
    assert pulse_in(pulse_out(FULL) | change) is None


def test_hostile_values_are_bounded_and_typed() -> None:
    raw = pulse_out(FULL) | {
        "host": "h" * 10_000,
        "training_step": 1 << 99,
        "ranks": "8",
        "heard": None,
        "losses": [[1, float("nan")], [2, "x"], ["3", 1], [4], 5, *([6, 1.0] for _ in range(999))],
        "silent": [{}, 5, {"rank": 1, "silent_s": float("inf"), "limit_s": 1}, *[pulse_out(FULL)["silent"][0]] * 99],
        "lost_nodes": ["n" * 9999, 5, None, *["x"] * 9999],
        "hung": "yes",
        "over": 1,
        "suspected_at": 7,
    }
    found = pulse_in(raw)
    assert found is not None
    assert (len(found.host), found.training_step, found.ranks, found.heard) == (256, None, None, 0)
    assert found.losses[:3] == ((1, None), (2, None), (6, 1.0))
    assert (len(found.losses), len(found.silent), len(found.lost_nodes)) == (29, 13, 254)
    assert (found.hung, found.over, found.suspected_at) == (False, False, None)


class Writer:
    """A head that tells how its run is, every few milliseconds."""

    def __init__(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        store.ensure()
        self.run = make_run(store, "r-aaaaaa")
        self.path = self.run.path / PULSE
        self.log = self.run.event_log("job-7")
        order = Order(str(self.run.path), 1, None, (), (Step("train", 0, ("true",)),))
        world = World(
            StillClock(), {}, (), cast("Any", None), lambda: None, lambda: False, lambda: 0, lambda text: None
        )
        job = JobIdentity("7", "7", None, "c", "n1", 1)
        attempts = Attempts(self.run.attempts_dir(None))
        self.lead = Lead(self.run, order, job, self.log, attempts, ({},), world, None)
        self.made: list[Pulses] = []

    def begin(self, number: AttemptNumber, step: int | None = None) -> Pulses:
        self.lead.attempts.claim(number)
        self.made.append(Pulses(self.lead, every_s=0.01))
        self.made[-1].begin(number, step)
        return self.made[-1]

    def read(self) -> Pulse | None:
        return pulse_in(json.loads(self.path.read_text())) if self.path.exists() else None

    def until(self, **wanted: object) -> Pulse:
        def has() -> bool:
            found = self.read()
            return found is not None and all(getattr(found, name) == value for name, value in wanted.items())

        wait_until(has, f"a pulse with {wanted}, not {self.read()}", 10)
        found = self.read()
        assert found is not None
        return found

    def tell_progress(self, number: AttemptNumber, **values: object) -> None:
        path = self.run.attempt_dir(attempt_name(number), None) / "progress.json"
        path.write_text(json.dumps({"schema": 1, "attempt": attempt_name(number), **values}))


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path)
    yield made
    for pulses in made.made:
        pulses.close()


def test_a_head_tells_before_its_first_step_and_says_when_it_ends(writer: Writer) -> None:
    pulses = writer.begin((1, 0), 40)
    found = writer.until(attempt="1.0")
    assert (found.job_id, found.restart_count, found.host, found.at) == ("7", 1, "n1", START)
    assert (found.phase, found.training_step, found.checkpoint_step, found.ranks) == (PREPARES, None, 40, None)
    assert not found.over
    pulses.close()
    assert writer.until(over=True).attempt == "1.0"


def test_what_the_head_and_rank_0_know_is_told(writer: Writer) -> None:
    pulses = writer.begin((1, 0))
    silent = (Silent(3, "n2", "step", 400.0, 300.0),)
    pulses.tell(Seen("step", 50, 8, 7, silent, NOW, hung=True))
    pulses.lose("n5")
    pulses.lose("n4")
    writer.tell_progress((1, 0), training_step=51, loss=0.25, time=NOW.isoformat())
    found = writer.until(training_step=51, hung=True)
    assert (found.phase, found.ranks, found.heard, found.silent, found.suspected_at) == ("step", 8, 7, silent, NOW)
    assert (found.progress_at, found.losses, found.lost_nodes) == (NOW, ((51, 0.25),), ("n4", "n5"))
    assert pulses.progress is not None
    assert pulses.progress.training_step == 51


def test_a_loss_that_is_no_number_is_told_and_none_is_not(writer: Writer) -> None:
    writer.begin((1, 0))
    writer.tell_progress((1, 0), training_step=1, loss=None)
    writer.until(training_step=1)
    writer.tell_progress((1, 0), training_step=2, loss=None, loss_text="nan")
    assert writer.until(training_step=2).losses == ((2, None),)


def test_only_so_many_losses_are_kept(writer: Writer) -> None:
    writer.begin((1, 0))
    for step in range(1, 41):
        writer.tell_progress((1, 0), training_step=step, loss=float(step))
        writer.until(training_step=step)
    assert writer.until(training_step=40).losses == tuple((step, float(step)) for step in range(9, 41))


def test_the_next_attempt_knows_nothing_of_the_one_before(writer: Writer) -> None:
    pulses = writer.begin((1, 0))
    writer.tell_progress((1, 0), training_step=9, loss=0.5)
    pulses.tell(Seen("step", 9, 2, 2, hung=True))
    writer.until(training_step=9, hung=True)
    writer.lead.attempts.claim((1, 1))
    pulses.begin((1, 1), 5)
    found = writer.until(attempt="1.1")
    assert (found.phase, found.training_step, found.losses, found.hung) == (PREPARES, None, (), False)
    assert found.checkpoint_step == 5


def test_a_stray_rank_of_an_older_attempt_tells_nothing(writer: Writer) -> None:
    writer.begin((1, 1))
    path = writer.run.attempt_dir("1.1", None) / "progress.json"
    path.write_text(json.dumps({"schema": 1, "attempt": "1.0", "training_step": 99}))
    writer.log.append(NOW, EventKind.CLAIMED)
    assert writer.until(events=1).training_step is None


def test_events_are_counted(writer: Writer) -> None:
    writer.begin((1, 0))
    writer.until(events=0)
    for number in (1, 2):
        writer.log.append(NOW, EventKind.CLAIMED, submission=1)
        writer.until(events=number)


def test_the_newest_checkpoint_is_told(writer: Writer) -> None:
    writer.lead.attempts.claim((1, 0))
    lines = [{"training_step": step, "name": f"c{step}", "state": state, "total_s": 1.0} for step, state in SAVES]
    (writer.run.attempt_dir("1.0", None) / "saves.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    writer.begin((1, 0), 5)
    assert writer.until(attempt="1.0").checkpoint_step == 20


SAVES = ((10, "committed"), (20, "committed"), (30, "failed"))


def test_a_head_that_was_superseded_is_silent(writer: Writer) -> None:
    old = writer.begin((1, 0))
    writer.until(attempt="1.0")
    writer.begin((2, 0))
    writer.until(attempt="2.0")
    wait_until(lambda: not old._thread.is_alive(), "the older head is silent", 10)
    old.close()
    assert writer.until(attempt="2.0").over is False


def test_who_stands_by_says_no_last_word(writer: Writer) -> None:
    pulses = writer.begin((1, 0))
    writer.until(attempt="1.0")
    pulses.hush()
    pulses.close()
    found = writer.read()
    assert found is not None
    assert not found.over


def test_a_full_disk_disturbs_nothing(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()
    real = module._replace

    def full(*_: object) -> None:
        failed.set()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_replace", full)
    pulses = writer.begin((1, 0))
    assert failed.wait(10)
    monkeypatch.setattr(module, "_replace", real)
    writer.until(attempt="1.0")
    pulses.close()
    assert [path.name for path in writer.run.path.iterdir() if path.name.startswith(".pulse")] == []


def test_a_folder_that_hangs_delays_the_end_by_seconds_only(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        hangs.set()
        goes_on.wait(30)

    monkeypatch.setattr(module, "_replace", hang)
    monkeypatch.setattr(module, "_CLOSE_S", 0.05)
    pulses = writer.begin((1, 0))
    assert hangs.wait(10)
    began = time.monotonic()
    pulses.close()
    assert time.monotonic() - began < 5
    goes_on.set()


def test_an_element_of_a_sweep_has_its_own(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    job = JobIdentity("7", "7_3", 3, "c", "n1", 0)
    lead = Lead(
        *(writer.run, writer.lead.order, job, writer.log, Attempts(writer.run.attempts_dir(3))),
        *(({},), writer.lead.world, None),
    )
    lead.attempts.claim((1, 0))
    pulses = Pulses(lead, every_s=0.01)
    pulses.begin((1, 0))
    pulses.close()
    found = pulse_in(json.loads((writer.run.path / "tasks" / "3" / PULSE).read_text()))
    assert found is not None
    assert (found.job_id, found.over) == ("7_3", True)
