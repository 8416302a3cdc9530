"""What one pass sees: sources that fail are unknown, and only what Slurm and a run's own record agree on is a run's."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from fleetctl.errors import CannotTell, SlurmUnreachable
from fleetctl.recovery.evidence import gather_evidence
from fleetctl.recovery.kept import Seen
from fleetctl.recovery.model import RunSeen, Snapshot
from fleetctl.recovery.observe import observe
from fleetctl.recovery.sources import Sources
from fleetctl.rundir.model import EventKind, RunKind
from fleetctl.slurm.model import JobId, JobRecord, JobState, Reservation
from tests.watched_runs import AT, BEGAN, Here, SaidSlurm, a_job, a_node, a_run, beat, ended, sources, started

ME = pwd.getpwuid(os.geteuid()).pw_name
AWAY = SlurmUnreachable("Slurm does not answer: Connection refused")


class Scene:
    """An owner's root with one run that runs, and passes over it, 30 s apart."""

    def __init__(self, root: Path) -> None:
        self.root, self.slurm, self.here, self.seen, self.at = root, SaidSlurm(), Here(), Seen(), AT
        self.run = a_run(root, "r-1", ME)
        started(self.run)
        beat(self.run)
        self.slurm.jobs_said = [a_job(self.run, ME)]
        self.sources: Sources = sources(self.slurm, self.here, root, ME)

    def look(self, after_s: float = 30.0) -> Snapshot:
        self.slurm.calls.clear()
        self.here.asked.clear()
        self.at += timedelta(seconds=after_s)
        snapshot, self.seen = observe(self.sources, self.seen, self.at)
        return snapshot

    def one(self, after_s: float = 30.0) -> RunSeen:
        (run,) = self.look(after_s).runs or ()
        return run

    def evidence(self, wanted: Mapping[str, str], after_s: float = 30.0) -> Snapshot:
        snapshot = self.look(after_s)
        snapshot, self.seen = gather_evidence(self.sources, self.seen, snapshot, wanted)
        return snapshot


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "runs")


def test_a_run_is_seen_with_its_record_its_pulse_and_its_job(scene: Scene) -> None:
    snapshot = scene.look()
    assert snapshot.failed == {}
    assert [node.name for node in snapshot.nodes or ()] == ["n1", "n2"]
    assert snapshot.maintenance == ()
    assert snapshot.controller_since == datetime.fromtimestamp(1796000000, UTC)
    (run,) = snapshot.runs or ()
    assert (run.key, run.run_id, run.task, run.user, run.trouble) == ("r-1", "r-1", None, ME, "")
    assert run.facts is not None
    assert run.facts.past is not None
    assert run.pulse is not None
    assert ([job.raw_id for job in run.jobs or ()], run.restarts) == ([7], 0)


def test_a_pass_asks_slurm_at_most_four_things_and_the_first_one_more(scene: Scene) -> None:
    scene.look()
    assert (sorted(scene.slurm.calls), scene.seen.calls) == (["config", "nodes", "reservations", "starts"], 5)
    asked = []
    for _ in range(8):
        scene.look()
        asked.append(tuple(call for call in scene.slurm.calls if call not in ("starts", "nodes")))
        assert scene.seen.calls == 3 + len(asked[-1]) <= 4
    assert asked[1:5] == [("config",), ("reservations",)] * 2 or asked[1:5] == [("reservations",), ("config",)] * 2


def test_slurm_that_is_away_is_unknown_and_not_empty(scene: Scene) -> None:
    scene.look()
    scene.slurm.jobs_said = scene.slurm.nodes_said = AWAY
    snapshot = scene.look()
    assert set(snapshot.failed) == {"jobs", "nodes"}
    assert snapshot.nodes is None
    assert snapshot.controller_since is None, "it may have begun anew"
    (run,) = snapshot.runs or ()
    assert (run.jobs, run.restarts) == (None, None)
    assert run.facts is not None
    assert scene.slurm.calls == ["starts", "nodes"], "it is not asked more while it is away"
    scene.slurm.jobs_said, scene.slurm.nodes_said = [a_job(scene.run, ME)], [a_node("n1")]
    assert scene.look(1).controller_since is not None


@pytest.mark.parametrize("source", ["reservations", "config"])
def test_what_is_asked_seldom_is_unknown_as_soon_as_it_fails(scene: Scene, source: str) -> None:
    scene.look()
    scene.slurm.reservations_said = CannotTell("no") if source == "reservations" else ()
    scene.slurm.config_said = {"BOOT_TIME": "soon"} if source == "config" else {"BOOT_TIME": "1"}
    for _ in range(4):
        snapshot = scene.look()
    unknown = snapshot.maintenance if source == "reservations" else snapshot.controller_since
    assert unknown is None
    assert set(snapshot.failed) == {"maintenance" if source == "reservations" else "controller"}


def test_only_maintenance_with_nodes_and_times_is_maintenance(scene: Scene) -> None:
    day = timedelta(days=1)
    scene.slurm.reservations_said = [
        Reservation("m", "n[1-2]", AT, AT + day, frozenset({"MAINT", "SPEC_NODES"})),
        Reservation("u", "n3", AT, AT + day, frozenset({"SPEC_NODES"})),
    ]
    (found,) = scene.look().maintenance or ()
    assert (found.name, sorted(found.nodes), found.starts_at, found.ends_at) == ("m", ["n1", "n2"], AT, AT + day)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"user": "mallory", "comment": "fleetctl:r-1/1"}, "another user's job with the comment"),
        ({"id": "8", "raw": 8, "comment": "fleetctl:r-1/1"}, "another job with the comment and the script"),
        ({"command": "/x/other.sh", "comment": "fleetctl:r-2/1"}, "the id, used again by another job"),
        ({"command": "/else/r-1/submissions/1/script.sh"}, "the script of a copy of the folder"),
    ],
)
def test_a_job_that_only_looks_like_the_runs_is_not_its_job(scene: Scene, changes: dict[str, str], why: str) -> None:
    user = changes.pop("user", ME)
    scene.slurm.jobs_said = [a_job(scene.run, user, **changes)]  # type: ignore[arg-type]
    assert scene.one().jobs == (), why


def test_a_job_with_the_runs_id_and_comment_is_its_job_by_whatever_path_it_was_submitted(scene: Scene) -> None:
    scene.slurm.jobs_said = [a_job(None, ME, comment="fleetctl:r-1/1", command="/link/r-1/submissions/1/script.sh")]
    assert [job.raw_id for job in scene.one().jobs or ()] == [7]


def test_a_folder_that_cannot_be_read_is_unknown_and_the_others_are_seen(scene: Scene, tmp_path: Path) -> None:
    other = a_run(tmp_path / "runs", "r-2", ME)
    scene.slurm.jobs_said = [a_job(scene.run, ME), a_job(other, ME, id="9", raw=9)]
    scene.look()
    scene.here.fails = lambda path: "its mount does not answer" if path.endswith(b"r-1") else ""
    runs = {run.key: run for run in scene.look().runs or ()}
    assert (runs["r-1"].facts, runs["r-1"].pulse, runs["r-1"].trouble) == (None, None, "its mount does not answer")
    assert [job.raw_id for job in runs["r-1"].jobs or ()] == [7], "Slurm was heard all the same"
    assert runs["r-2"].facts is not None
    scene.here.fails = lambda path: ""
    assert {run.trouble for run in scene.look().runs or ()} == {""}


def test_a_root_that_does_not_answer_leaves_what_is_known_and_says_so(scene: Scene) -> None:
    scene.here.fails = lambda path: "it does not answer"
    snapshot = scene.look()
    assert snapshot.runs is None, "nothing was ever known"
    assert "it does not answer" in snapshot.failed["runs"]
    scene.here.fails = lambda path: ""
    scene.look()
    scene.here.fails = lambda path: "it does not answer"
    snapshot = scene.look()
    assert [(run.key, run.facts) for run in snapshot.runs or ()] == [("r-1", None)]
    assert set(snapshot.failed) == {"runs"}


def test_a_root_without_runs_is_empty_and_known(tmp_path: Path) -> None:
    snapshot, _ = observe(sources(SaidSlurm(), Here(), tmp_path / "nothing", ME), Seen(), AT)
    assert (snapshot.runs, snapshot.failed) == ((), {})


def test_a_run_directory_that_vanished_is_unknown_while_it_has_a_job_and_forgotten_then(scene: Scene) -> None:
    scene.look()
    scene.run.path.rename(scene.root / ".gone")
    assert (scene.one().facts, scene.one().trouble) == (None, "No such file or directory")
    scene.slurm.jobs_said = []
    scene.look()
    assert scene.look().runs == ()


def test_a_pulse_from_the_future_says_nothing(scene: Scene) -> None:
    beat(scene.run, at=AT + timedelta(hours=1))
    run = scene.one()
    assert (run.pulse, "future" in run.trouble, run.facts is None) == (None, True, False)
    beat(scene.run, at=AT + timedelta(seconds=90))
    assert scene.one(1).pulse is not None, "clocks may differ by a little"


def test_a_run_that_is_well_is_asked_for_its_pulse_alone(scene: Scene) -> None:
    scene.look()
    beat(scene.run, at=scene.at + timedelta(seconds=20))
    scene.look()
    beat(scene.run, at=scene.at + timedelta(seconds=20))
    scene.look()
    assert [getattr(ask, "thorough", None) for ask in scene.here.asked] == [None, False]
    scene.slurm.jobs_said = [a_job(scene.run, ME, "PENDING", restarts=1)]
    scene.look()
    assert [getattr(ask, "thorough", None) for ask in scene.here.asked] == [None, True], "its job has changed"


def test_only_of_a_training_whose_head_is_silent_the_signs_are_asked_for(scene: Scene) -> None:
    scene.look()
    scene.look(90)
    beat(scene.run, at=scene.at)
    assert scene.one(5).moved_at is None, "it wrote nothing yet"
    assert [getattr(ask, "signs", None) for ask in scene.here.asked] == [None, True]
    assert scene.one(5).is_full is None, "it is heard again"
    log = scene.run.attempt_dir("1.0", None) / "output.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("x")
    os.utime(log, (70, 70))
    scene.look(90)
    silent = scene.one()
    assert (silent.moved_at, silent.is_full) == (datetime.fromtimestamp(70, UTC), False)


def test_a_clock_that_steps_back_makes_the_next_look_thorough(scene: Scene) -> None:
    scene.look()
    scene.look(-7200)
    assert [getattr(ask, "thorough", None) for ask in scene.here.asked] == [None, True]
    assert scene.seen.calls == 4


def test_a_run_that_is_over_is_not_read_again_until_it_has_a_job(scene: Scene) -> None:
    ended(scene.run, code=0, ending="finished")
    scene.slurm.jobs_said = [a_job(scene.run, ME, "COMPLETED")]
    assert [run.key for run in scene.look().runs or ()] == []
    scene.slurm.jobs_said = []
    assert scene.look().runs == ()
    assert len(scene.here.asked) == 1, "only the root was listed"
    scene.slurm.jobs_said = [a_job(scene.run, ME, "PENDING", restarts=1)]
    assert scene.one().key == "r-1"


@pytest.mark.parametrize(
    ("state", "age", "seen"),
    [
        ("FAILED", timedelta(0), True),
        ("", timedelta(0), True),
        ("", timedelta(days=8), False),
        ("CANCELLED", timedelta(0), True),
    ],
)
def test_a_run_that_failed_is_watched_for_a_week(scene: Scene, state: str, age: timedelta, *, seen: bool) -> None:
    ended(scene.run)
    scene.slurm.jobs_said = [a_job(scene.run, ME, state)] if state else []
    scene.at += age
    assert bool(scene.look().runs) is seen


def test_a_cancelled_run_without_a_job_is_over(scene: Scene) -> None:
    scene.run.event_log("cancel").append(AT, EventKind.CANCEL, by="me")
    scene.slurm.jobs_said = []
    assert scene.look().runs == ()


def test_runs_of_another_cluster_are_not_watched(scene: Scene) -> None:
    a_run(scene.root, "r-2", ME, cluster="d")
    assert [run.key for run in scene.look().runs or ()] == ["r-1"]


def test_folders_that_are_no_runs_are_no_trouble(scene: Scene) -> None:
    (scene.root / "notes").mkdir()
    (scene.root / "file").write_text("x")
    assert [run.key for run in scene.look().runs or ()] == ["r-1"]


def test_the_elements_of_a_sweep_are_seen_apart_and_those_that_ended_well_not(tmp_path: Path) -> None:
    slurm, here = SaidSlurm(), Here()
    run = a_run(tmp_path / "runs", "s-1", ME, kind=RunKind.SWEEP, tasks=4)
    for task in (0, 1):
        started(run, "1.0", f"7_{task}", task=task)
        beat(run, task=task, job_id=f"7_{task}")
    ended(run, code=0, ending="finished", task=0)
    slurm.jobs_said = [
        a_job(run, ME, "COMPLETED", id="7_0", raw=8),
        a_job(run, ME, "RUNNING", id="7_1", raw=9, restarts=2),
        a_job(run, ME, "PENDING", id="7_[2-3]", raw=7, pending_tasks="2-3"),
    ]
    snapshot, seen = observe(sources(slurm, here, tmp_path / "runs", ME), Seen(), AT)
    (one,) = snapshot.runs or ()
    assert (one.key, one.task, one.restarts, [job.raw_id for job in one.jobs or ()]) == ("s-1/1", 1, 2, [9])
    assert one.pulse is not None
    assert one.pulse.job_id == "7_1"
    assert one.facts is not None
    assert one.facts.past is not None
    slurm.jobs_said = [slurm.jobs_said[0]]
    started(run, "1.0", "7_2", task=2)
    snapshot, _ = observe(sources(slurm, here, tmp_path / "runs", ME), seen, AT)
    assert [run.key for run in snapshot.runs or ()] == ["s-1/1", "s-1/2"]


class TestOperator:
    """A daemon for all users finds runs by their jobs, whose words are hints."""

    def look(self, slurm: SaidSlurm, seen: Seen | None = None, **fields: object) -> tuple[dict[str, RunSeen], Seen]:
        snapshot, now = observe(sources(slurm, Here(), None, "svc", **fields), seen or Seen(), AT)
        return {run.key: run for run in snapshot.runs or ()}, now

    def test_a_run_is_found_by_its_jobs_script(self, scene: Scene) -> None:
        runs, _ = self.look(scene.slurm)
        assert (runs["r-1"].user, runs["r-1"].path) == (ME, str(scene.run.path))
        assert runs["r-1"].facts is not None

    def test_a_run_is_watched_on_when_slurm_has_forgotten_its_job(self, scene: Scene) -> None:
        _, seen = self.look(scene.slurm)
        scene.slurm.jobs_said = []
        runs, seen = self.look(scene.slurm, seen)
        assert runs["r-1"].jobs == ()
        runs, _ = self.look(scene.slurm, seen, hears_all=False)
        assert runs["r-1"].jobs is None, "Slurm may hide it"

    def test_without_slurm_nothing_is_known_of_any_run(self, scene: Scene) -> None:
        scene.slurm.jobs_said = AWAY
        snapshot, _ = observe(sources(scene.slurm, Here(), None, "svc"), Seen(), AT)
        assert snapshot.runs is None

    def test_a_folder_that_is_not_the_job_users_gives_no_run(self, scene: Scene) -> None:
        scene.slurm.jobs_said = [a_job(scene.run, "mallory")]
        runs, _ = self.look(scene.slurm)
        assert runs == {}, "only a job of its owner says where a run lies"

    def test_a_folder_that_says_to_be_another_users_is_unknown(self, scene: Scene, tmp_path: Path) -> None:
        forged = a_run(tmp_path / "forged", "r-9", "victim")
        scene.slurm.jobs_said = [a_job(forged, "victim", id="9", raw=9)]
        runs, _ = self.look(scene.slurm)
        assert runs["r-9"].facts is None
        assert "victim" in runs["r-9"].trouble

    def test_a_copy_of_a_folder_does_not_take_a_runs_name(self, scene: Scene, tmp_path: Path) -> None:
        copy = a_run(tmp_path / "a-copy", "r-1", ME)
        copies = [a_job(copy, ME, id="9", raw=9)]
        scene.slurm.jobs_said = [*copies, a_job(scene.run, ME)]
        runs, seen = self.look(scene.slurm)
        assert runs["r-1"].path == str(scene.run.path)
        scene.slurm.jobs_said = copies
        runs, _ = self.look(scene.slurm, seen)
        assert runs["r-1"].path == str(scene.run.path), "who was known first stays"

    @pytest.mark.parametrize(
        "command", ["relative/r-1/submissions/1/script.sh", "/r-1/script.sh", "", "/a/../script.sh"]
    )
    def test_other_scripts_are_nobodys_runs(self, scene: Scene, command: str) -> None:
        scene.slurm.jobs_said = [a_job(None, ME, command=command)]
        runs, _ = self.look(scene.slurm)
        assert runs == {}


def test_the_gpus_of_a_job_that_came_back_are_asked_for_once(scene: Scene) -> None:
    scene.look()
    scene.slurm.jobs_said = [a_job(scene.run, ME, restarts=1)]
    assert scene.one(5).gpus == 16
    assert scene.slurm.calls == ["starts", "nodes", "gpus 7"]
    assert scene.one(5).gpus == 16
    assert scene.slurm.calls == ["starts", "nodes"]
    scene.slurm.gpus_said = 0
    scene.slurm.jobs_said = [a_job(scene.run, ME, restarts=2)]
    assert scene.one(5).gpus == 0
    scene.slurm.gpus_said = AWAY
    scene.slurm.jobs_said = [a_job(scene.run, ME, restarts=3)]
    assert scene.one(5).gpus is None
    scene.slurm.gpus_said = 16
    assert scene.one(5).gpus == 16


def test_a_node_is_proved_dead_once_and_until_it_is_heard_again(scene: Scene) -> None:
    asked: list[tuple[str, ...]] = []

    def prove(nodes: object) -> frozenset[str]:
        asked.append(tuple(nodes))  # type: ignore[arg-type]
        return frozenset({"n2"})

    scene.sources = sources(scene.slurm, scene.here, scene.root, ME, prove_dead=prove)
    scene.slurm.nodes_said = [a_node("n1"), a_node("n2", "MIXED", "NOT_RESPONDING"), a_node("n9", "DOWN")]
    assert scene.look().proved_dead == {"n2"}
    assert scene.look().proved_dead == {"n2"}
    assert asked == [("n2",)], "n9 is no node of a watched run"
    scene.slurm.nodes_said = [a_node("n1"), a_node("n2")]
    assert scene.look().proved_dead == frozenset()


RECORD = JobRecord(
    *(JobId(7), 7, "", "r", ME, JobState.parse("FAILED"), (1, 0), (1, 0), BEGAN, BEGAN, AT, 3600),
    *("p", "", "n[1-2]", "", 1),
)


def test_the_evidence_of_an_end_is_its_records_its_log_and_its_nodes(scene: Scene) -> None:
    log = scene.run.path / "attempts" / "1.0" / "output.log"
    log.parent.mkdir()
    log.write_bytes(b"boom\xff\n")
    ended(scene.run)
    scene.run.event_log("l").append(AT, EventKind.NODE_LOST, attempt="1.0", task=None, node="n2", evidence="x")
    scene.slurm.history_said = [RECORD, replace(RECORD, user="mallory")]
    scene.slurm.jobs_said = [a_job(scene.run, ME, "FAILED")]
    scene.slurm.nodes_said = [a_node("n1", "DOWN"), a_node("n2"), a_node("n3", "DOWN")]
    scene.look()
    (run,) = scene.evidence({"r-1": "1.0"}, 5).runs or ()
    assert run.evidence is not None
    assert run.evidence.records == (RECORD,)
    assert (run.evidence.attempt, run.evidence.log, run.evidence.log_is_whole) == ("1.0", b"boom\xff\n", True)
    assert run.evidence.failed_nodes == ("n1", "n2")


def test_accounting_waits_for_the_next_pass_when_slurm_was_asked_four_times(scene: Scene) -> None:
    ended(scene.run)
    scene.slurm.jobs_said = [a_job(scene.run, ME, "FAILED")]
    scene.slurm.history_said = [RECORD]
    scene.look()
    for _ in range(6):
        (run,) = scene.evidence({"r-1": "1.0"}).runs or ()
        assert scene.seen.calls <= 4
        if run.evidence is None:
            assert scene.seen.owes_records
            (run,) = scene.evidence({"r-1": "1.0"}, 5).runs or ()
            assert scene.seen.calls == 4
        assert run.evidence is not None


def test_accounting_that_is_away_is_unknown(scene: Scene) -> None:
    ended(scene.run)
    scene.slurm.jobs_said = [a_job(scene.run, ME, "FAILED")]
    scene.slurm.history_said = AWAY
    snapshot = scene.evidence({"r-1": "1.0"})
    (run,) = snapshot.runs or ()
    assert run.evidence is not None
    assert run.evidence.records is None
    assert set(snapshot.failed) == {"accounting"}


def test_what_accounting_cannot_have_yet_is_waited_for(scene: Scene) -> None:
    scene.run.event_log("e").append(
        scene.at + timedelta(seconds=25),
        EventKind.ATTEMPT_ENDED,
        attempt="1.0",
        exit_code=1,
        ending="failed",
        task=None,
    )
    scene.slurm.jobs_said = [a_job(scene.run, ME, "FAILED")]
    (run,) = scene.evidence({"r-1": "1.0"}).runs or ()
    assert run.evidence is None
    (run,) = scene.evidence({"r-1": "1.0"}, 5).runs or ()
    assert run.evidence is None
    (run,) = scene.evidence({"r-1": "1.0"}, 15).runs or ()
    assert run.evidence is not None


class TestWhatOneUserCannotDoToOthers:
    @pytest.mark.parametrize("time", ["2026-11-30T11:00:00", "0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00"])
    def test_a_time_that_cannot_be_costs_that_run_alone(self, scene: Scene, time: str) -> None:
        other = a_run(scene.root, "r-2", ME)
        line = {"time": time, "kind": "cancel", "submission": 1}
        (other.path / "events" / "x.jsonl").write_text(json.dumps(line) + "\n")
        runs = {run.key: run for run in scene.look().runs or ()}
        assert runs["r-1"].facts is not None
        assert (runs["r-2"].facts, runs["r-2"].trouble[:29]) == (None, "it names a time that cannot be"[:29])

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    def test_a_strangers_events_are_not_believed(self, scene: Scene) -> None:
        (scene.run.path / "events" / "x.jsonl").write_text("")
        os.chown(scene.run.path / "events" / "x.jsonl", 12345, -1)
        assert scene.one().facts is None

    def test_jobs_that_come_back_all_the_time_do_not_hide_maintenance(self, scene: Scene) -> None:
        scene.look()
        calls: list[str] = []
        for restarts in range(1, 40):
            scene.slurm.jobs_said = [a_job(scene.run, ME, restarts=restarts)]
            scene.look()
            calls += scene.slurm.calls
        assert calls.count("reservations") >= 5
        assert calls.count("config") >= 5


def test_a_root_that_is_away_is_not_empty_and_its_runs_are_seen_when_it_is_back(scene: Scene) -> None:
    assert scene.one().facts is not None
    away = scene.root.with_name("away")
    scene.root.rename(away)
    snapshot = scene.look()
    assert all(run.facts is None for run in snapshot.runs or ())
    assert "runs" in snapshot.failed
    scene.slurm.jobs_said = []
    scene.look()
    away.rename(scene.root)
    assert scene.one().facts is not None


def test_a_root_that_was_not_made_yet_has_no_runs(tmp_path: Path) -> None:
    slurm = SaidSlurm()
    snapshot, _ = observe(sources(slurm, Here(), tmp_path / "none", ME), Seen(), AT)
    assert (snapshot.runs, snapshot.failed) == ((), {})


def test_maintenance_of_which_nothing_was_heard_for_long_is_not_known(scene: Scene) -> None:
    assert scene.look().maintenance == ()
    said, scene.slurm.jobs_said = scene.slurm.jobs_said, AWAY
    for _ in range(12):
        snapshot = scene.look()
    assert (snapshot.maintenance, "maintenance" in snapshot.failed) == (None, True)
    scene.slurm.jobs_said = said
    scene.look()
    assert scene.look().maintenance == ()


def test_the_fence_is_asked_about_nodes_that_slurm_says_are_the_runs_alone(tmp_path: Path) -> None:
    """A job that has ended holds none, whatever its record says: somebody else may use them by now."""
    asked: list[list[str]] = []

    def prove(nodes: Sequence[str]) -> frozenset[str]:
        asked.append(list(nodes))
        return frozenset()

    slurm, root = SaidSlurm(), tmp_path / "runs"
    run = a_run(root, "r-1", ME)
    started(run)
    slurm.nodes_said = (a_node("n1"), a_node("n2", "MIXED", "NOT_RESPONDING"))
    there = sources(slurm, Here(), root, ME, prove_dead=prove)
    slurm.jobs_said = [a_job(run, ME, "NODE_FAIL")]
    observe(there, Seen(), AT)
    assert asked == []
    slurm.jobs_said = [a_job(run, ME)]
    observe(there, Seen(), AT)
    assert asked == [["n2"]]
