"""`interval: auto`: from the spec to the training, by what the run has measured."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from fleetctl.errors import JobSideError
from fleetctl.launch.environment import checkpoint_environment
from fleetctl.launch.interval import is_failure, keys_of, observe, pace, said
from fleetctl.launch.lead import Lead, World
from fleetctl.launch.model import CheckpointOrder, Order, Step, identity, parse_order
from fleetctl.launch.resume import Resume
from fleetctl.reliability.estimate import Observed
from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.model import Attempt, Ending, EventKind, Save, attempt_number
from fleetctl.rundir.store import RunDir, Store
from fleetctl.spec.model import Auto, Checkpoint, Spec
from fleetctl.train.checkpointer import Checkpointer
from fleetctl.units import Duration
from tests.unit.checkpoint_site import Site
from tests.unit.clocks import StillClock
from tests.unit.test_render import script
from tests.unit.test_rundir import make_run

if TYPE_CHECKING:
    from fleetctl.slurm.port import Slurm

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
AUTO = CheckpointOrder("/c", "own", "latest", interval_s="auto")


class Told:
    """A run directory, filled as heads and trainings fill it."""

    def __init__(self, folder: Path) -> None:
        store = Store(folder)
        store.ensure()
        self.run: RunDir = make_run(store, "r-aaaaaa")
        self.log = self.run.event_log("job-7")
        self.attempts = Attempts(self.run.attempts_dir(None))
        self.log.append(START, EventKind.INTENT, submission=1)

    def attempt(
        self, name: str, at: timedelta, ran: timedelta | None, ending: Ending | None = None, **end: Any
    ) -> None:
        """One that began `at`; without `ran` nobody wrote its end down."""
        facts: dict[str, Any] = {"submission": 1, "attempt": name, "task": None, "job_id": "7"}
        number = attempt_number(name)
        assert number is not None
        assert self.attempts.claim(number)
        self.log.append(START + at, EventKind.ATTEMPT_STARTED, **facts, host="n1")
        if ran is not None and ending is not None:
            end = {"exit_code": 1, "terminated": False, **end}
            self.log.append(START + at + ran, EventKind.ATTEMPT_ENDED, **facts, **end, ending=ending.value)

    def save(self, name: str, **values: Any) -> None:
        line = {"training_step": 1, "name": "s", "state": "committed", "blocked_s": 2.0, "total_s": 9.0, "flag": None}
        with (self.run.attempt_dir(name, None) / "saves.jsonl").open("a") as file:
            file.write(json.dumps({**line, **values}) + "\n")

    def loaded(self, name: str, at: timedelta, **values: Any) -> None:
        line = {"state": "loaded", "time": (START + at).isoformat(), **values}
        (self.run.attempt_dir(name, None) / "load.json").write_text(json.dumps(line))

    def seen(self, now: timedelta | None = None) -> Observed:
        return observe(self.attempts, self.run.history(), None, None if now is None else START + now)

    def lead(self, order: CheckpointOrder | None, said: list[str]) -> Lead:
        slurm = cast("Slurm", object())  # nothing here asks it
        world = World(StillClock(), {}, (), slurm, lambda: None, lambda: False, lambda: 0, said.append)
        whole = Order(str(self.run.path), 1, None, (), (Step("train", 0, ("true",)),), checkpoint=order)
        return Lead(self.run, whole, identity({"SLURM_JOB_ID": "7"}), self.log, self.attempts, ({},), world, None)


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


# What the script says


def test_auto_is_an_option_of_its_own() -> None:
    words = ["--run-dir", "/r", "--submission", "1", "--checkpoint-dir", "/c", "--checkpoint-format", "own"]
    words += ["--checkpoint-load", "latest", "--step", "a", "0", "1", "x"]
    order = parse_order(["--checkpoint-interval", "auto", *words])
    assert order.checkpoint is not None
    assert order.checkpoint.interval_s == "auto"
    with pytest.raises(JobSideError, match="often"):
        parse_order(["--checkpoint-interval", "often", *words])


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        (Auto.AUTO, "--checkpoint-interval auto"),
        (Duration(1800), "--checkpoint-interval-s 1800"),
        (None, ""),
    ],
    ids=str,
)
def test_the_script_says_what_the_spec_says(interval: Duration | Auto | None, words: str) -> None:
    text = script(Spec(name="n", command="true", checkpoint=Checkpoint(dir="c", interval=interval)))
    assert re.findall(r"--checkpoint-interval\S* \S+", text) == ([words] if words else [])


# What counts as measured


def test_saves_are_measured_by_what_the_training_waited(told: Told) -> None:
    told.attempt("1.0", 0 * HOUR, HOUR, Ending.NODE_LOST)
    told.save("1.0", blocked_s=3.0, total_s=30.0)
    told.attempt("1.1", 2 * HOUR, None)
    told.save("1.1", blocked_s=1.0, total_s=10.0)
    assert told.seen().costs_s == (3.0, 1.0)
    assert told.seen().totals_s == (30.0, 10.0)


@pytest.mark.parametrize(
    "line",
    [
        {"state": "failed"},
        {"blocked_s": 0.0},  # it stood already, and only answered a request
        {"blocked_s": None},
        {"blocked_s": float("nan")},
        {"blocked_s": -1.0},
        {"blocked_s": 10.0},  # more than the save took
        {"blocked_s": 1e300, "total_s": 1e300},
        {"blocked_s": "much"},
        {"total_s": float("inf")},
    ],
    ids=str,
)
def test_what_is_no_measured_save_is_left_out(told: Told, line: dict[str, Any]) -> None:
    told.attempt("1.0", 0 * HOUR, None)
    told.save("1.0", **line)
    assert told.seen().costs_s == ()
    assert told.seen().totals_s == ()


@pytest.mark.parametrize(("each", "expected"), [(15, (3.0,) * 5 + (4.0,) * 15), (1, (2.0, 3.0, 4.0))])
def test_only_the_newest_saves_count(told: Told, each: int, expected: tuple[float, ...]) -> None:
    """20 of them, and of 3 attempts at most."""
    for number in range(1, 5):
        told.attempt(f"{number}.0", number * HOUR, HOUR / 2, Ending.SAVED)
        for _ in range(each):
            told.save(f"{number}.0", blocked_s=float(number))
    assert told.attempts.claim((5, 0)), "the one that begins"
    assert told.seen().costs_s == expected


def attempt(ending: Ending | None, ran: timedelta | None) -> Attempt:
    return Attempt("1.0", "7", "n1", START, ended_at=None if ran is None else START + ran, ending=ending)


@pytest.mark.parametrize(
    ("ending", "ran", "counts"),
    [
        (Ending.NODE_LOST, timedelta(seconds=5), True),
        (Ending.FENCED, HOUR, True),
        (Ending.FAILED, HOUR, True),
        pytest.param(Ending.FAILED, timedelta(minutes=9), False, id="a program that fails at once is wrong itself"),
        (Ending.STOPPED_EARLY, HOUR, False),
        (Ending.SAVED, HOUR, False),
        pytest.param(Ending.TOLD, HOUR, False, id="a preemption, the time limit or a person"),
        (Ending.FINISHED, HOUR, False),
        pytest.param(None, None, True, id="it died with its node"),
    ],
)
def test_what_is_a_failure(ending: Ending | None, ran: timedelta | None, counts: bool) -> None:
    assert is_failure(attempt(ending, ran)) is counts


def test_running_time_adds_up(told: Told) -> None:
    told.attempt("1.0", 0 * HOUR, 2 * HOUR, Ending.NODE_LOST)
    told.attempt("1.1", 2 * HOUR, None)  # its head died, and another took over in the same job
    told.attempt("1.2", 5 * HOUR, None)  # and then the job came back after a time in the queue: nobody knows
    told.attempt("2.0", 20 * HOUR, HOUR, Ending.SAVED)
    assert told.seen() == Observed((), (), (), failures=3, exposure_s=6 * 3600.0, nodes=told.seen().nodes)


def test_the_attempt_that_runs_now_has_not_failed(told: Told) -> None:
    told.attempt("1.0", 0 * HOUR, None)
    assert (told.seen(3 * HOUR).failures, told.seen(3 * HOUR).exposure_s) == (0, 3 * 3600.0)
    assert (told.seen().failures, told.seen().exposure_s) == (1, 0.0), "a new attempt begins, so this one is dead"


@pytest.mark.parametrize(("state", "failures"), [("node_fail", 1), ("cancelled", 0), ("timeout", 0)])
def test_an_end_that_only_slurm_knows(told: Told, state: str, failures: int) -> None:
    told.attempt("1.0", 0 * HOUR, None)
    told.log.append(START + HOUR, EventKind.OBSERVED_END, submission=1, state=state, attempts=1)
    assert (told.seen(9 * HOUR).failures, told.seen(9 * HOUR).exposure_s) == (failures, 0.0)


def test_a_restart_lasts_until_the_load_is_done(told: Told) -> None:
    told.attempt("1.0", 0 * HOUR, HOUR, Ending.NODE_LOST)
    told.attempt("1.1", HOUR, HOUR, Ending.FAILED)
    told.loaded("1.1", HOUR + timedelta(seconds=40))
    told.attempt("1.2", 2 * HOUR, HOUR, Ending.NODE_LOST)
    told.loaded("1.2", 2 * HOUR + timedelta(seconds=60))
    told.attempt("2.0", 9 * HOUR, HOUR, Ending.SAVED)  # out of the queue
    told.loaded("2.0", 9 * HOUR)
    told.attempt("2.1", 10 * HOUR, None)  # after no failure
    told.loaded("2.1", 11 * HOUR)
    assert told.seen().restarts_s == (40.0, 60.0)


@pytest.mark.parametrize(
    "values", [{"state": "failed"}, {"time": "soon"}, {"time": 5}, {"time": "2026-01-01T01:00:40"}], ids=str
)
def test_what_is_no_load_is_left_out(told: Told, values: dict[str, Any]) -> None:
    told.attempt("1.0", 0 * HOUR, HOUR, Ending.NODE_LOST)
    told.attempt("1.1", HOUR, None)
    told.loaded("1.1", 2 * HOUR, **values)
    assert told.seen().restarts_s == ()


# What an attempt is told


def test_an_attempt_is_told_its_interval_and_why(told: Told) -> None:
    told.attempt("1.0", 0 * HOUR, HOUR, Ending.NODE_LOST)
    told.save("1.0", blocked_s=5.0)
    assert told.attempts.claim((1, 1))
    plan = pace(told.lead(AUTO, []), (1, 1), told.run.history())
    assert plan is not None
    assert (plan.cost.seconds, plan.total_s) == (5.0, 9.0)
    written = json.loads((told.attempts.path((1, 1)) / "interval.json").read_text())
    assert written == {"schema": 1, **keys_of(plan)}
    assert said(plan).startswith(f"fleetctl: it saves every {plan.auto_s:.0f} s: ")
    assert "measured: the median of 1 save" in said(plan)
    found = checkpoint_environment(AUTO, Resume(), None, plan)
    assert found["FLEETCTL_CHECKPOINT_INTERVAL_S"] == str(round(plan.auto_s))
    assert found["FLEETCTL_CHECKPOINT_MTBF_S"] == str(round(plan.mtbf.seconds))


def test_an_interval_in_the_spec_is_left_alone(told: Told) -> None:
    fixed = CheckpointOrder("/c", "own", "latest", interval_s=60)
    assert pace(told.lead(fixed, []), (1, 0), told.run.history()) is None
    assert pace(told.lead(None, []), (1, 0), told.run.history()) is None
    found = checkpoint_environment(fixed, Resume(), None, None)
    assert found["FLEETCTL_CHECKPOINT_INTERVAL_S"] == "60"
    assert "FLEETCTL_CHECKPOINT_MTBF_S" not in found
    none = CheckpointOrder("/c", "own", "latest")
    assert list(checkpoint_environment(none, Resume(), None, None)) == ["FLEETCTL_CHECKPOINT_DIR"]


def test_a_plan_that_cannot_be_measured_or_written_stops_nothing(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    lead = told.lead(AUTO, lines)
    told.attempts.folder.rmdir()
    told.attempts.folder.write_text("no folder")
    plan = pace(lead, (1, 0), told.run.history())
    assert plan is not None
    assert (plan.cost.source, plan.mtbf.source) == ("assumed", "assumed")
    assert len(lines) == 1
    assert "interval.json" in lines[0]


# What the training makes of it


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def open_auto(site: Site, mtbf_s: str, **more: Any) -> Checkpointer:
    env = {"FLEETCTL_CHECKPOINT_INTERVAL_S": "5000", "FLEETCTL_CHECKPOINT_MTBF_S": mtbf_s}
    return site.open(env=env, **more)


def due_after(site: Site, checkpoints: Checkpointer, step: int) -> float:
    """The seconds until a save is due, to 1 s."""
    began_s = site.time.now_s
    while not checkpoints.due(step):
        site.time.sleep(1.0)
        assert site.time.now_s < began_s + 100_000
    return site.time.now_s - began_s


def test_a_training_saves_soon_and_then_by_what_its_saves_cost(site: Site) -> None:
    waits = iter([20.0, 2.0, 2.0, 8.0])
    site.disk.before_write = lambda path: site.time.sleep(next(waits) if path.endswith(".bin") else 0.0)
    with open_auto(site, "90000") as checkpoints:
        assert due_after(site, checkpoints, 1) == 600.0, "nothing is measured yet"
        checkpoints.save(1, {"x": b"x"}, wait=True)
        assert due_after(site, checkpoints, 2) == pytest.approx(1897.4 - 20, abs=1.1), "sqrt(2 * 20 * 90000)"
        checkpoints.save(2, {"x": b"x"}, wait=True)
        assert due_after(site, checkpoints, 3) == pytest.approx(600.0 - 2, abs=1.1), "the first one took longer"
        checkpoints.save(3, {"x": b"x"}, wait=True)
        assert due_after(site, checkpoints, 4) == pytest.approx(600.0 - 2, abs=1.1)
    measured = Attempts(site.attempt().parent).saves((2, 0))
    assert [save.blocked_s for save in measured] == [20.0, 2.0, 2.0]
    assert all(isinstance(save, Save) and save.blocked_s == save.total_s for save in measured)


def test_a_failed_save_and_one_that_stood_already_measure_nothing(site: Site) -> None:
    with open_auto(site, "90000") as checkpoints:
        site.time.sleep(600.0)
        site.disk.before_write = lambda path: (_ for _ in ()).throw(OSError("no"))
        checkpoints.save(1, {"x": b"x"}, wait=True)
        site.disk.before_write = lambda path: site.time.sleep(9.0 if path.endswith(".bin") else 0.0)
        checkpoints.save(1, {"x": b"x"}, wait=True)
        site.ask("now")
        assert due_after(site, checkpoints, 1) <= 1.0
        checkpoints.save(1, {"x": b"x"}, wait=True)
        assert site.saves()[-1]["flag"] == "now"
        assert due_after(site, checkpoints, 2) == pytest.approx(1272.8, abs=1.1), "sqrt(2 * 9 * 90000)"


def test_the_training_own_interval_counts_more(site: Site) -> None:
    with open_auto(site, "90000", interval_s=5.0) as checkpoints:
        assert due_after(site, checkpoints, 1) == 5.0
        site.disk.before_write = lambda path: site.time.sleep(10.0)
        checkpoints.save(1, {"x": b"x"}, wait=True)
        site.time.sleep(5.0)
        assert checkpoints.due(2)


@pytest.mark.parametrize("mtbf_s", ["", "nan", "inf", "0", "-5", "often"])
def test_a_time_between_failures_that_is_none_leaves_the_interval_alone(site: Site, mtbf_s: str) -> None:
    with open_auto(site, mtbf_s) as checkpoints:
        assert due_after(site, checkpoints, 1) == 5000.0
