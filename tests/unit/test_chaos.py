"""Chaos itself: what a seed plays never changes, what was played is not played again, and a wrong end is seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetctl.rundir.model import EventKind, RunKind, RunRecord
from fleetctl.rundir.store import Store
from tests.chaos import promises, results
from tests.chaos.__main__ import main
from tests.chaos.beside import OWN
from tests.chaos.faults import DEEDS
from tests.chaos.play import Result
from tests.chaos.scenario import Fault, Moment, Scenario, scenario_of
from tests.chaos.stage import Stage
from tests.faults.training import Training
from tests.unit.test_docs import NOW

DIGEST = "ab" * 32
RAN = Result(7, False, (Fault.RANK_KILLED, Fault.NODE_KILLED), (), "completed", "", ("1.0", "1.1"), 31.0, (), ())


def test_a_seed_plays_the_same_for_ever() -> None:
    assert scenario_of(11) == scenario_of(11)
    told = [(one.fault, one.moment) for one in scenario_of(4).planned]
    assert told == [
        (Fault.RANK_FROZEN, Moment.TRAINING),
        (Fault.BATCH_HOST_KILLED, Moment.RECOVERING),
        (Fault.RANK_KILLED, Moment.TRAINING),
    ]


@pytest.mark.parametrize("daemon", [False, True])
def test_every_fault_is_played_by_some_seed_and_can_be_done(daemon: bool) -> None:
    planned = [one for seed in range(600) for one in scenario_of(seed, daemon=daemon).planned]
    played = {one.fault for one in planned}
    with_daemon = {Fault.NAN_ONCE, Fault.NAN_ALWAYS, Fault.HANG, *OWN}
    assert played == set(Fault) if daemon else played == set(Fault) - with_daemon
    assert set(DEEDS) | OWN == set(Fault)
    assert {one.moment for one in planned} == set(Moment)


def test_what_was_played_is_not_played_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results"
    results.append(path, RAN)
    with path.open("a") as file:
        file.write('{"seed": 8, "torn')
    assert results.read(path) == [RAN]
    assert main(["--seeds", "7..7", "--results", str(path), "--table"]) == 0
    assert "| rank killed | 1 | 1 | 0 | 0 | 0 | 0 |" in capsys.readouterr().out


def test_a_table_counts_each_scenario_once_and_each_fault_that_was_done() -> None:
    failed = Result(7, False, RAN.applied, (), "failed", "", ("1.0",), 9.0, ("it ended failed",), ())
    other = Result(9, True, (Fault.RANK_KILLED, Fault.RANK_KILLED), (), "held", "why", ("1.0",), 9.0, (), ())
    rows = results.table(results.newest([failed, RAN, other])).splitlines()
    assert rows[2] == "| rank killed | 3 | 1 | 1 | 0 | 0 | 0 |"
    assert rows[-1] == "| **all** | 4 | 1 | 1 | 0 | 0 | 0 |"
    assert "BROKEN: it ended failed" in results.line(failed)


# A run that breaks promises is found out


class Quiet:
    """A site on which nothing is changed."""

    def nodes(self) -> dict[str, tuple[str, str]]:
        return {"node1": ("idle", ""), "node2": ("idle", "")}

    def job(self, job_id: str) -> dict[str, str]:
        return {}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A run of two attempts that came through: the second resumed from what the first had saved."""
    store = Store(tmp_path / "runs")
    store.ensure()
    record = RunRecord("r", "r", "me", NOW, RunKind.PLAIN, "d", "/s", "/w", 2, 1, "c", "0")
    assert store.reserve("r")
    run = store.fill(record, "name: r\n", {"name": "r"})
    scenario = Scenario(seed=1, daemon=False, nodes=2, tasks_per_node=2, spares=0, planned=())
    training = Training(SimpleNamespace(runs=store.root), tmp_path, SimpleNamespace())  # type: ignore[arg-type]
    training.run_id, training.job_id = "r", "1"
    made = Stage(Quiet(), training, scenario, tmp_path, tmp_path)  # type: ignore[arg-type]
    log = run.event_log("job")
    log.append(NOW, EventKind.INTENT, submission=1)
    name = "step-000000020@r@1.0"
    for attempt, stands, path, step in (("1.0", [], None, None), ("1.1", [name], f"/c/{name}", 20)):
        write(run.path / "attempts" / attempt / "owner.json", {"schema": 1})
        write(run.path / "attempts" / attempt / "claim.json", {"schema": 1, "stands": stands})
        write(run.path / "attempts" / attempt / "resume.json", {"path": path, "training_step": step})
    saved = {"training_step": 20, "name": name, "state": "committed", "total_s": 0.1}
    write(run.path / "attempts" / "1.0" / "saves.jsonl", saved)
    write(run.path / "attempts" / "1.1" / "load.json", {"state": "loaded", "training_step": 20})
    (run.path / "attempts" / "1.1" / "output.log").write_text(
        f"training step   40  loss 1\nparameters sha256 {DIGEST}\n"
    )
    (tmp_path / "placed.1.1").write_text(
        "".join(f"{rank} node{1 + rank // 2} {promises.ALL_GPUS}\n" for rank in range(4))
    )
    return made


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value) + "\n")


def of(stage: Stage, attempt: str, name: str) -> Path:
    return stage.training.run_dir / "attempts" / attempt / name


def test_a_run_that_came_through_broke_nothing(stage: Stage) -> None:
    assert promises.broken(stage, "completed", "", DIGEST) == []


def cancelled(stage: Stage) -> None:
    stage.applied.append(Fault.CANCELLED)


def other_parameters(stage: Stage) -> None:
    of(stage, "1.1", "output.log").write_text(f"parameters sha256 {'cd' * 32}\n")


def from_scratch(stage: Stage) -> None:
    write(of(stage, "1.1", "resume.json"), {"path": None, "training_step": None})


def from_nowhere(stage: Stage) -> None:
    write(of(stage, "1.1", "resume.json"), {"path": "/c/step-000000030@r@1.0", "training_step": 30})


def a_step_twice(stage: Stage) -> None:
    of(stage, "1.1", "output.log").write_text(f"training step   20  loss 1\nparameters sha256 {DIGEST}\n")


def a_second_writer(stage: Stage) -> None:
    write(of(stage, "1.2", "owner.json"), {"schema": 1})
    write(of(stage, "1.2", "claim.json"), {"schema": 1, "stands": ["step-000000020@r@1.0", "step-000000060@r@1.0"]})


def from_a_damaged_one(stage: Stage) -> None:
    stage.damaged["step-000000020@r@1.0"] = "1.0"


def without_gpus(stage: Stage) -> None:
    (stage.folder / "placed.1.1").write_text("0 node1 0,1,2,3,4,5,6,7\n1 node1 \n2 node2 \n3 node2 \n")


def undrained(stage: Stage) -> None:
    stage.drained["node2"] = "admin: a fan"


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (cancelled, "it ended completed (), not cancelled"),
        (other_parameters, "not those of the undisturbed run"),
        (from_scratch, "1.1 began from scratch, although [20] stood"),
        (from_nowhere, "1.1 resumed from training step 30, which nobody had saved"),
        (a_step_twice, "was told to resume from 20 and did step 20"),
        (a_second_writer, "1.2 counts step-000000060@r@1.0, committed after 1.1 had begun"),
        (from_a_damaged_one, "1.1 trains from step-000000020@r@1.0, which was damaged in 1.0"),
        (without_gpus, "the GPUs of the last start are wrong"),
        (undrained, "an admin drained node2 ('admin: a fan'), and it is idle now, ''"),
    ],
)
def test_a_broken_promise_is_found(stage: Stage, harm: Callable[[Stage], None], said: str) -> None:
    harm(stage)
    assert any(said in words for words in promises.broken(stage, "completed", "", DIGEST))


def test_a_hold_needs_the_right_reason(stage: Stage) -> None:
    stage.applied.append(Fault.CRASH_LOOP)
    assert promises.broken(stage, "held", "status 1 of task 0, 3 times without a newer checkpoint", DIGEST) == []
    assert any("the reason is another one" in words for words in promises.broken(stage, "held", "no nodes", DIGEST))
    stage.applied.clear()
    assert any("it ended held" in words for words in promises.broken(stage, "held", "status 1", DIGEST))
