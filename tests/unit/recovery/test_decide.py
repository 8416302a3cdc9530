"""What recovery does about one run: every phase of its job, and what must be known first."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from fleetctl.recovery.decide import wanted
from fleetctl.recovery.model import Advice, CauseClass, Deed, Evidence, Interruption, Outcome, RunSeen, Suspected
from fleetctl.recovery.policy import Mode, Policy
from fleetctl.rundir.model import Attempt, Ending, SubmissionState
from fleetctl.slurm.model import Job, Node
from fleetctl.submission.decide_requeue import Past
from tests.recovery_seen import (
    GPU,
    NOW,
    OWNER,
    STOP,
    ago,
    attempt,
    decided,
    deeds,
    done,
    failed,
    fleet,
    history,
    job,
    known,
    memory,
    node,
    pulse,
    rule,
    run,
    snapshot,
    waiting,
    with_facts,
)

LOAD = Suspected(CauseClass.CHECKPOINT_LOAD, Advice.OLDER, "log: cannot be loaded")
NAN = tuple((step, None) for step in (300, 310, 320))
NUMBERS = ((280, 1.0), (290, 1.0))


def test_a_healthy_run_is_left_alone() -> None:
    found = decided(snapshot(run()))
    assert (deeds(found), rule(found)) == ([], "healthy")
    assert not found.interruptions
    assert not found.notes


# What ended


def test_an_end_is_looked_into_before_anything_is_decided_and_not_for_ever() -> None:
    seen = run(history(failed()), job("FAILED"))
    assert wanted(snapshot(seen), memory(), OWNER) == {"r-1": "1.0"}
    first = decided(snapshot(seen))
    assert (deeds(first), rule(first), first.interruptions) == ([], "evidence", ())
    later = replace(snapshot(seen), at=NOW + timedelta(seconds=61))
    second = decided(later, memory(notes=first.notes))
    assert [one.attempt for one in second.interruptions] == ["1.0"]
    assert second.notes == {"evidence/r-1": ""}


def test_an_end_is_remembered_once_with_what_was_found() -> None:
    evidence = Evidence("1.0", (), b"")
    seen = run(history(failed()), job("FAILED"), evidence=evidence)
    found = decided(snapshot(seen))
    one = found.interruptions[0]
    assert (one.key, one.attempt, one.start, one.nodes, one.progress_step) == ("r-1", "1.0", "c/7/0", ("n1", "n2"), 200)
    assert deeds(found) == [Deed.REQUEUE_ENDED]
    assert decided(snapshot(seen), memory(one)).interruptions == ()


def test_the_end_of_an_attempt_belongs_to_the_start_that_it_was_in() -> None:
    seen = run(history(failed()), waiting(), evidence=Evidence("1.0", (), b""))
    assert decided(snapshot(seen)).interruptions[0].start == "c/7/0"


def test_a_head_that_died_without_a_word_left_an_attempt_that_is_over_once_its_job_is() -> None:
    for there in (job("FAILED"), waiting(), job("NODE_FAIL")):
        found = decided(snapshot(run(history(attempt()), there, evidence=Evidence("1.0", (), b""))))
        assert found.interruptions[0].progress_step == 200  # as its last pulse told
    assert decided(snapshot(run(history(attempt()), evidence=Evidence("1.0", (), b"")))).interruptions == ()


@pytest.mark.parametrize("ending", [Ending.FINISHED, Ending.SAVED, Ending.FENCED])
def test_a_planned_end_is_no_interruption(ending: Ending) -> None:
    ended = failed(exit_code=0, ending=ending, failure=None)
    seen = run(history(ended), waiting(), evidence=Evidence("1.0", (), b""))
    assert decided(snapshot(seen)).interruptions == ()


def test_an_end_that_was_seen_is_remembered_though_the_next_attempt_began_before_anything_was_found_out() -> None:
    noted = decided(snapshot(run(history(attempt()), waiting()))).notes
    assert set(noted) == {"evidence/r-1"}
    told = history(attempt(), attempt("2.0", started_at=ago(-2)))
    seen = with_facts(run(told, restarts=1, pulse=pulse(attempt="2.0", restart_count=1)), past=Past(1, False, None))
    now = replace(snapshot(seen), at=NOW + timedelta(seconds=5))
    assert wanted(now, memory(notes=noted), OWNER) == {"r-1": "1.0"}
    assert decided(now, memory(notes=noted)).interruptions == ()
    gathered = replace(now, runs=(replace(seen, evidence=Evidence("1.0", (), b"")),))
    found = decided(gathered, memory(notes=noted))
    one = found.interruptions[0]
    assert (one.attempt, one.start, one.at, one.progress_step) == ("1.0", "c/7/0", NOW, 200)
    assert (found.notes, rule(found)) == ({"evidence/r-1": ""}, "healthy")
    assert decided(gathered, memory(one)).interruptions == ()


def test_where_the_next_attempt_has_ended_too_the_one_before_it_is_waited_for_no_longer() -> None:
    noted = decided(snapshot(run(history(failed()), waiting()))).notes
    told = history(failed(), failed("2.0", ended_at=NOW))
    seen = with_facts(run(told, waiting(), restarts=2), past=Past(1, False, None))
    found = decided(snapshot(seen), memory(notes=noted))
    assert [(one.attempt, one.start) for one in found.interruptions] == [("1.0", "c/7/0")]
    assert found.notes["evidence/r-1"].startswith("2.0 ")
    found = decided(snapshot(replace(seen, evidence=Evidence("2.0", (), b""))), memory(notes=noted))
    assert [(one.attempt, one.start) for one in found.interruptions] == [("1.0", "c/7/0"), ("2.0", "c/7/1")]


def test_a_clock_that_is_ahead_makes_no_end_in_the_future() -> None:
    seen = run(history(failed(ended_at=NOW + timedelta(hours=5))), job("FAILED"), evidence=Evidence("1.0", (), b""))
    assert decided(snapshot(seen)).interruptions[0].at == NOW


def test_what_ended_long_ago_is_for_a_person() -> None:
    long_ago = failed(started_at=ago(400_000), ended_at=ago(300_000))
    found = decided(snapshot(run(history(long_ago), job("FAILED"), evidence=Evidence("1.0", (), b""))))
    assert (deeds(found), rule(found), found.interruptions) == ([], "too_old", ())


# Over, or none of our business


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (run(history(failed(), cancelled_at=NOW), job("FAILED")), "cancelled"),
        (run(history(failed(), observed_end="cancelled"), job("FAILED")), "cancelled"),
        (run(history(failed()), job("CANCELLED")), "cancelled"),
        (run(history(failed(exit_code=0, ending=Ending.FINISHED)), job("COMPLETED")), "finished"),
        (run(history(failed(), held={None: "enough"}), job("FAILED")), "held"),
        (with_facts(run(history(failed()), job("FAILED")), opted_out=True), "opted_out"),
        (run(history(failed()), job("COMPLETING")), "completing"),
        (run(history(failed()), job("SOMETHING_NEW")), "strange"),
        (with_facts(run(history(failed()), job("FAILED")), may_restart=False), "no_restarts"),
        (run(history(), job("SUSPENDED")), "suspended"),
        (run(history(failed()), waiting(reason="JobHeldUser")), "held_in_slurm"),
        (run(history(failed()), waiting(reason="JobHeldAdmin")), "held_in_slurm"),
        (run(history(failed(ending=Ending.SAVED)), waiting()), "goes_on"),
        (run(history(failed(), state=SubmissionState.UNKNOWN), job("FAILED")), "submission"),
    ],
)
def test_nothing_is_done_to_it(seen: RunSeen, expected: str) -> None:
    found = decided(snapshot(seen), memory(known()))
    assert (deeds(found), rule(found)) == ([], expected)


@pytest.mark.parametrize(
    "changes", [{"facts": None, "trouble": "gone"}, {"jobs": None}, {"restarts": None}], ids=["facts", "jobs", "starts"]
)
def test_what_was_not_seen_is_not_acted_on(changes: dict[str, Any]) -> None:
    seen = replace(run(history(failed()), job("FAILED")), **changes)
    found = decided(snapshot(seen), memory(known()))
    assert (deeds(found), rule(found)) == ([], "unseen")


def test_parts_of_a_hetjob_in_different_states_are_not_finished_with() -> None:
    found = decided(snapshot(run(history(failed()), job("FAILED"), job("RUNNING"))), memory(known()))
    assert deeds(found) == []


# A job that has ended


def test_an_ended_job_comes_back_once_without_the_node_that_is_blamed() -> None:
    seen = snapshot(run(history(failed()), job("FAILED")))
    found = decided(seen, memory(known(GPU)))
    assert [(one.deed, one.start, one.nodes) for one in found.actions] == [(Deed.REQUEUE_ENDED, "c/7/0", ("n1",))]
    assert GPU.evidence in found.actions[0].evidence
    again = decided(seen, memory(known(GPU), entries=(done(Deed.REQUEUE_ENDED, nodes=("n1",)),)))
    assert (deeds(again), rule(again)) == ([], "comes_back")


@pytest.mark.parametrize("state", ["FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"])
def test_each_end_that_slurm_can_take_back_is_requeued(state: str) -> None:
    seen = with_facts(run(history(failed()), job(state)), chain=True)
    assert deeds(decided(snapshot(seen), memory(known()))) == [Deed.REQUEUE_ENDED]


def test_what_slurm_cannot_take_back_is_submitted_again_by_its_owner_alone() -> None:
    seen, remembered = snapshot(run(history(failed()), job("PREEMPTED"))), memory(known())
    assert deeds(decided(seen, remembered)) == [Deed.RESUBMIT]
    assert deeds(decided(seen, remembered, replace(OWNER, mode=Mode.OPERATOR))) == [Deed.TELL]


def test_a_job_that_slurm_forgot_comes_back_only_where_its_end_is_proved() -> None:
    gone = run(history(failed()), restarts=None, jobs=())
    found = decided(snapshot(gone), memory(known()))
    assert (deeds(found), rule(found)) == ([Deed.TELL], "no_road")
    proved = run(history(failed(), observed_end="failed"), restarts=None, jobs=())
    assert deeds(decided(snapshot(proved), memory(known()))) == [Deed.RESUBMIT]


def test_without_the_whole_record_nothing_is_proved() -> None:
    gone = with_facts(run(history(failed(), observed_end="failed"), restarts=None, jobs=()), past=None)
    assert deeds(decided(snapshot(gone), memory(known()))) == [Deed.TELL]


def test_some_time_passes_before_it_starts_again() -> None:
    seen = snapshot(run(history(failed()), job("FAILED")))
    assert rule(decided(seen, memory(known(at=ago(5))))) == "retry"


def test_a_job_that_never_began_is_told_once() -> None:
    seen = snapshot(run(history(failed(), not_started={None: "no env file"}), job("FAILED")))
    found = decided(seen)
    assert [(one.deed, one.why) for one in found.actions] == [(Deed.TELL, "no env file")]
    told = replace(done(Deed.TELL), action=found.actions[0])
    assert deeds(decided(seen, memory(entries=(told,)))) == []


LIMIT = Suspected(CauseClass.TIME_LIMIT, Advice.SAME, "slurm: TIMEOUT")


@pytest.mark.parametrize(
    ("chain", "progress", "expected"),
    [(False, 200, []), (True, 200, [Deed.REQUEUE_ENDED]), (True, 100, [Deed.TELL]), (True, None, [Deed.TELL])],
)
def test_a_time_limit_is_its_users_word_unless_the_run_is_a_chain(
    chain: bool, progress: int | None, expected: list[Deed]
) -> None:
    seen = with_facts(run(history(failed()), job("TIMEOUT")), chain=chain)
    assert deeds(decided(snapshot(seen), memory(known(LIMIT, progress_step=progress)))) == expected


# A job that waits


def test_a_waiting_job_is_kept_off_the_suspect_then_started_now() -> None:
    seen, remembered = snapshot(run(history(failed()), waiting())), memory(known(GPU))
    first = decided(seen, remembered)
    assert [(one.deed, one.start, one.nodes) for one in first.actions] == [(Deed.EXCLUDE, "c/7/1", ("n1",))]
    assert first.look_again_s <= 1
    kept_off = snapshot(run(history(failed()), waiting(excluded_nodes="n1")))
    assert deeds(decided(kept_off, remembered)) == [Deed.START_NOW]


def test_exclusions_of_others_stay_theirs() -> None:
    seen = snapshot(run(history(failed()), waiting(excluded_nodes="n1,n5")))
    assert deeds(decided(seen, memory(known(GPU)))) == [Deed.START_NOW]


def test_our_exclusions_are_taken_back_after_their_time_and_others_are_not() -> None:
    seen = snapshot(run(history(failed()), waiting(excluded_nodes="n[1-3]", reason="Resources")))
    old = done(Deed.EXCLUDE, age_s=90_000, nodes=("n1", "n2"))
    young = done(Deed.EXCLUDE, age_s=600, nodes=("n2",))
    found = decided(seen, memory(known(), entries=(old, young), notes={"excluded/r-1": "n[1-2]"}))
    assert [(one.deed, one.nodes) for one in found.actions] == [(Deed.EXCLUDE, ("n2",))]


def test_a_job_that_can_start_nowhere_because_of_us_gets_its_nodes_back() -> None:
    seen = snapshot(run(history(failed()), waiting(excluded_nodes="n[1-7]", reason="BadConstraints")))
    ours = done(Deed.EXCLUDE, age_s=60, nodes=("n1", "n2"))
    found = decided(seen, memory(known(), entries=(ours,), notes={"excluded/r-1": "n[1-2]"}))
    assert [(one.deed, one.nodes) for one in found.actions] == [(Deed.EXCLUDE, ())]


def test_nodes_are_never_all_excluded() -> None:
    few = (node("n1"), node("n2"))
    seen = snapshot(run(history(failed()), waiting()), nodes=few)
    assert Deed.EXCLUDE not in deeds(decided(seen, memory(known(GPU))))


@pytest.mark.parametrize(
    ("nodes", "changes", "own_format", "starts"),
    [
        (fleet(), {}, False, True),
        (fleet(node("n2", "DOWN", "NOT_RESPONDING")), {}, True, True),  # only Checkpointer writes
        (fleet(node("n2", "DOWN", "NOT_RESPONDING")), {}, False, False),
        (fleet(node("n2", "DOWN", "NOT_RESPONDING")), {"proved_dead": frozenset(["n2"])}, False, True),
        (fleet(node("n2", "IDLE", "NOT_RESPONDING")), {}, True, False),
        (fleet()[2:], {}, True, False),  # Slurm does not list them
    ],
)
def test_start_now_needs_old_nodes_that_are_done_with_the_run(
    nodes: tuple[Node, ...], changes: dict[str, Any], own_format: bool, starts: bool
) -> None:
    seen = with_facts(run(history(failed()), waiting()), own_format=own_format)
    there = replace(snapshot(seen), nodes=nodes, **changes)
    assert (Deed.START_NOW in deeds(decided(there, memory(known())))) is starts


@pytest.mark.parametrize(
    "there",
    [
        waiting(reason="Resources"),
        waiting(start_time=NOW + timedelta(hours=3)),  # its user's own --begin
        waiting(start_time=None),
        job("COMPLETING"),
    ],
)
def test_start_now_is_only_for_slurms_own_wait(there: Job) -> None:
    assert Deed.START_NOW not in deeds(decided(snapshot(run(history(failed()), there)), memory(known())))


@pytest.mark.parametrize("cause", [CauseClass.PREEMPTED, CauseClass.REQUEUED, CauseClass.MAINTENANCE])
def test_what_somebody_wanted_is_left_to_slurm(cause: CauseClass) -> None:
    ended = known(Suspected(cause, Advice.SLURM, "slurm: it was asked for"))
    assert deeds(decided(snapshot(run(history(failed()), waiting())), memory(ended))) == []


def test_a_launch_that_failed_is_told_and_not_released() -> None:
    seen = snapshot(run(history(failed()), waiting(reason="launch failed requeued held")))
    assert deeds(decided(seen, memory(known()))) == [Deed.TELL]


# Stop, hold, older


@pytest.mark.parametrize("there", [job("FAILED"), waiting()])
def test_what_would_end_the_same_way_is_held_at_once_and_told(there: Job) -> None:
    seen = snapshot(run(history(failed()), there))
    found = decided(seen, memory(known(STOP)))
    assert (deeds(found), rule(found)) == ([Deed.HOLD], "stop")
    held = replace(done(Deed.HOLD), action=found.actions[0])
    assert deeds(decided(seen, memory(known(STOP), entries=(held,)))) == [Deed.TELL]


def test_a_cause_that_must_not_come_back_does_not() -> None:
    ended = known(Suspected(CauseClass.CANCELLED, Advice.NEVER, "slurm: CANCELLED by 0"))
    assert deeds(decided(snapshot(run(history(failed()), job("FAILED"))), memory(ended))) == []


def test_a_checkpoint_that_cannot_be_loaded_makes_an_older_one_be_taken_before_it_comes_back() -> None:
    seen = snapshot(run(history(failed()), job("FAILED")))
    first = decided(seen, memory(known(LOAD)))
    assert [(one.deed, one.at_most_step) for one in first.actions] == [(Deed.ROLL_BACK, 99)]
    rolled = done(Deed.ROLL_BACK, age_s=10, at_most_step=99)
    assert deeds(decided(seen, memory(known(LOAD), entries=(rolled,)))) == [Deed.REQUEUE_ENDED]
    later = snapshot(run(history(failed()), waiting()))  # by whoever: the same end is not answered twice
    assert Deed.ROLL_BACK not in deeds(decided(later, memory(known(LOAD), entries=(rolled,))))


def test_older_checkpoints_are_tried_twice_without_progress_then_it_is_held() -> None:
    ends = [known(LOAD, attempt=f"{n}.0", start=f"c/7/{n - 1}", at=ago(1000 - 100 * n)) for n in (1, 2, 3)]
    rolled = tuple(done(Deed.ROLL_BACK, age_s=950 - 100 * n, start=f"c/7/{n - 1}", at_most_step=9) for n in (1, 2))
    told = history(failed("1.0"), failed("2.0"), failed("3.0"))
    seen = with_facts(run(told, job("FAILED"), restarts=2), max_failures=9, past=Past(2, False, None))
    found = decided(snapshot(seen), memory(*ends, entries=rolled))
    assert (deeds(found), rule(found)) == ([Deed.HOLD], "older_in_vain")
    forward = [*ends[:2], replace(ends[2], progress_step=900)]
    assert rule(decided(snapshot(seen), memory(*forward, entries=rolled))) == "older"


def test_there_is_nothing_older_than_the_beginning() -> None:
    told = history(failed(resume_step=0, progress_step=None))
    found = decided(snapshot(run(told, job("FAILED"))), memory(known(LOAD, progress_step=None)))
    assert (deeds(found), rule(found)) == ([Deed.HOLD], "nothing_older")


# A job that runs


MOVED_AT = ago(500)


def silent(**changes: Any) -> RunSeen:
    """Nor does its training move any more."""
    return run(**{"pulse": pulse(at=ago(400)), "moved_at": MOVED_AT, "is_full": False, **changes})


def since(seconds: float, told: str = "c/7/0@1.0@2026-01-01T11:53:20+00:00@5") -> dict[str, str]:
    return {"silent/r-1": f"{told} {ago(seconds).isoformat()}", **still(seconds)}


def still(seconds: float, how: str = "first", at: datetime = MOVED_AT) -> dict[str, str]:
    return {"moved/r-1": f"c/7/0@{at.isoformat()} {ago(seconds).isoformat()} {how}"}


def test_a_silent_head_is_suspected_then_its_job_requeued_while_slurm_reaches_all_nodes() -> None:
    first = decided(snapshot(silent()))
    assert (deeds(first), rule(first)) == ([], "silent")
    assert first.notes == since(0)
    assert deeds(decided(snapshot(silent()), memory(notes=since(800)))) == []
    assert deeds(decided(snapshot(silent()), memory(notes=since(901)))) == [Deed.REQUEUE]


def test_heads_that_fall_silent_together_are_told_and_not_requeued() -> None:
    seen = [replace(silent(), key=f"r-{number}") for number in range(3)]
    notes = {f"{name[:-1]}{number}": text for name, text in since(901).items() for number in range(3)}
    assert deeds(decided(snapshot(*seen), memory(notes=notes))) == [Deed.TELL] * 3
    at = ago(2000)
    apart = {**notes, "silent/r-2": f"c/7/0@1.0@{at.isoformat()}@5 {ago(901).isoformat()}"}
    one_after_the_other = [seen[1], replace(seen[2], pulse=pulse(at=at))]
    assert deeds(decided(snapshot(*one_after_the_other), memory(notes=apart))) == [Deed.REQUEUE] * 2
    others = [replace(run(), key=f"r-{number}") for number in (5, 6, 7)]
    assert deeds(decided(snapshot(*seen, *others), memory(notes=notes))) == [Deed.REQUEUE] * 3


@pytest.mark.parametrize(
    ("changes", "rule_of"),
    [
        ({"moved_at": None}, "silent_unknown"),
        ({"is_full": None}, "silent_unknown"),
        ({"is_full": True}, "disk_full"),
        ({"is_full": True, "moved_at": None}, "disk_full"),
        ({"moved_at": ago(2)}, "silent_goes_on"),
        ({"moved_at": ago(90_000)}, "silent_goes_on"),  # it changed: whatever clock says so
    ],
)
def test_a_silent_head_whose_training_may_go_on_is_told_once_and_never_requeued(
    changes: dict[str, Any], rule_of: str
) -> None:
    for hung in (False, True):
        seen = silent(**{"pulse": pulse(at=ago(400), hung=hung), **changes})
        found = decided(snapshot(seen), memory(notes=since(50_000)))
        assert (deeds(found), rule(found)) == ([Deed.TELL], rule_of)
        told = done(Deed.TELL, rule=rule_of)
        again = decided(snapshot(seen), memory(entries=(told,), notes={**since(50_000), **found.notes}))
        assert (deeds(again), rule(again)) == ([], rule_of)


def test_a_training_that_stands_still_later_than_its_head_is_requeued_then() -> None:
    for how in ("first", "goes_on"):
        notes = {**since(5_000), **still(899, how)}
        assert Deed.REQUEUE not in deeds(decided(snapshot(silent()), memory(notes=notes)))
        notes = {**since(5_000), **still(901, how)}
        assert deeds(decided(snapshot(silent()), memory(notes=notes))) == [Deed.REQUEUE]
    assert rule(decided(snapshot(silent()), memory(notes={**since(901), **still(870)}))) == "silent"


def test_what_is_known_of_a_silent_training_is_forgotten_once_its_head_speaks_or_its_job_begins_again() -> None:
    assert decided(snapshot(run()), memory(notes=since(901))).notes == {"silent/r-1": "", "moved/r-1": ""}
    other = {**since(901), "moved/r-1": f"c/7/3@{ago(9_000).isoformat()} {ago(901).isoformat()} goes_on"}
    assert decided(snapshot(silent()), memory(notes=other)).notes == still(0)


def test_a_head_that_spoke_since_is_suspected_anew() -> None:
    found = decided(snapshot(silent()), memory(notes=since(5000, "c/7/0@1.0@2026-01-01T11:00:00+00:00@5")))
    assert (deeds(found), rule(found)) == ([], "silent")
    assert deeds(decided(snapshot(run()), memory(notes=since(5000)))) == []


@pytest.mark.parametrize("at", [ago(-7200), ago(7200)])
def test_a_head_with_a_wrong_clock_that_goes_on_speaking_is_not_silent(at: datetime) -> None:
    notes: dict[str, str] = {}
    for beat in range(40):
        seen = run(pulse=pulse(at=at + timedelta(seconds=60 * beat)))
        found = decided(replace(snapshot(seen), at=NOW + timedelta(seconds=60 * beat)), memory(notes=notes))
        notes = {**notes, **found.notes}
        assert deeds(found) == []


def test_no_job_is_requeued_while_a_node_is_not_reached_and_not_down() -> None:
    nodes = fleet(node("n2", "IDLE", "NOT_RESPONDING"))
    found = decided(snapshot(silent(), nodes=nodes), memory(notes=since(5000)))
    assert deeds(found) == []
    assert "not done" not in found.verdicts[-1].why
    assert found.look_again_s <= 2


@pytest.mark.parametrize("node_list", ["n[1-2]", "n2"])
def test_an_orphan_is_requeued_once_its_heads_host_is_down(node_list: str) -> None:
    nodes = fleet(node("n1", "DOWN", "NOT_RESPONDING", reason="Not responding"))
    seen = run(None, job(node_list=node_list), pulse=pulse(at=ago(300)))
    found = decided(snapshot(seen, nodes=nodes))
    assert (deeds(found), rule(found)) == ([Deed.REQUEUE], "orphan")
    nodes = fleet(node("n1", "IDLE", "NOT_RESPONDING"))
    seen = run(pulse=pulse(at=ago(300)))
    assert deeds(decided(snapshot(seen, nodes=nodes))) == []


@pytest.mark.parametrize("attempts", [(attempt(),), ()], ids=["began", "never began"])
def test_a_batch_host_that_died_before_its_head_spoke_leaves_an_orphan_too(attempts: tuple[Attempt, ...]) -> None:
    """Without agents nobody takes over (chaos, seed 115): the job would hold its nodes until its time limit."""
    left = job(node_list="n2", batch_host="n1")
    seen = run(history(attempts=attempts), left, pulse=None)
    told = memory(notes=since(100, "c/7/0"))
    found = decided(snapshot(seen, nodes=fleet(node("n1", "DOWN", "NOT_RESPONDING", reason="Not responding"))), told)
    assert (deeds(found), rule(found)) == ([Deed.REQUEUE], "orphan")
    assert rule(decided(snapshot(seen), told)) == "orphan", "it has booted since, without the job"
    both = replace(seen, jobs=(replace(left, node_list="n[1-2]"),))
    assert deeds(decided(snapshot(both, nodes=fleet(node("n1", "IDLE", "NOT_RESPONDING"))), told)) == []
    assert deeds(decided(snapshot(both), told)) == []


def test_a_head_that_took_over_makes_no_orphan() -> None:
    nodes = fleet(node("n1", "DOWN", "NOT_RESPONDING", reason="Not responding"))
    seen = run(None, job(node_list="n2"), pulse=pulse(host="n2"))
    assert deeds(decided(snapshot(seen, nodes=nodes))) == []


def test_launch_restarts_inside_its_allocation_and_the_daemon_watches() -> None:
    seen = run(history(failed()), evidence=Evidence("1.0", (), b""))
    found = decided(snapshot(seen))
    assert (deeds(found), rule(found)) == ([], "restarts_inside")
    assert len(found.interruptions) == 1


def test_a_head_that_only_waits_for_a_node_to_be_down_restarts_nothing() -> None:
    waits = pulse(phase="wait", lost_nodes=("n2",))
    seen = run(history(failed()), pulse=waits, evidence=Evidence("1.0", (), b""))
    found = decided(snapshot(seen, nodes=fleet(node("n2", "IDLE", "NOT_RESPONDING"))))
    assert (deeds(found), rule(found)) == ([], "waits_for_nodes")
    why = next(verdict.why for verdict in found.verdicts if verdict.key == "r-1")
    assert "n2 DOWN" in why
    assert "restarts it" not in why
    found = decided(snapshot(seen, nodes=fleet(node("n2", "DOWN"))))
    assert "n2" not in found.verdicts[-1].why, "it is DOWN: the head hears it soon"


def test_an_old_launch_that_tells_no_pulse_is_no_hang() -> None:
    found = decided(snapshot(run(pulse=None)), memory(notes=since(90_000, "c/7/0")))
    assert (deeds(found), rule(found)) == ([], "no_pulse")


def test_a_pulse_of_an_earlier_start_says_nothing() -> None:
    told = history(failed(), attempt("2.0"))
    seen = with_facts(run(told, pulse=pulse(at=ago(9000)), restarts=1), past=Past(1, False, None))
    notes = {"silent/r-1": f"c/7/1@1.0@{ago(9000).isoformat()}@5 {ago(5000).isoformat()}"}
    assert deeds(decided(snapshot(seen), memory(known(), notes=notes))) == []


def test_a_job_whose_launch_never_speaks_is_told() -> None:
    seen = run(pulse=None, restarts=1)
    found = decided(snapshot(seen), memory(notes=since(901, "c/7/1")))
    assert (deeds(found), rule(found)) == ([Deed.TELL], "never_spoke")


def test_losses_that_are_no_numbers_lead_back_before_them_and_then_to_a_requeue() -> None:
    seen = snapshot(run(pulse=pulse(losses=NUMBERS + NAN)))
    first = decided(seen)
    assert [(one.deed, one.at_most_step) for one in first.actions] == [(Deed.ROLL_BACK, 290)]
    rolled = done(Deed.ROLL_BACK, at_most_step=290)
    assert deeds(decided(seen, memory(entries=(rolled,)))) == [Deed.REQUEUE]


def test_roll_backs_count_also_where_the_end_of_their_start_was_never_seen_and_not_before_a_persons_wish() -> None:
    told = history(failed("1.0"), failed("2.0"), attempt("3.0"))
    seen = run(told, restarts=2, pulse=pulse(attempt="3.0", restart_count=2, losses=NUMBERS + NAN))
    seen = with_facts(seen, past=Past(2, False, None))
    tried = [done(Deed.ROLL_BACK, start=f"c/7/{n}", at_most_step=290 - n, age_s=9_000 - n) for n in (0, 1)]
    assert [(a.deed, a.at_most_step) for a in decided(snapshot(seen), memory(entries=(tried[0],))).actions] == [
        (Deed.ROLL_BACK, 99)  # older than what the newest attempt began from
    ]
    found = decided(snapshot(seen), memory(entries=tuple(tried)))
    assert (deeds(found), rule(found)) == ([Deed.HOLD], "older_in_vain")
    asked = with_facts(seen, history=replace(told, asked={None: 2}))
    assert deeds(decided(snapshot(asked), memory(entries=tuple(tried)))) == [Deed.ROLL_BACK]


def test_a_single_loss_that_is_no_number_is_a_loss_scalers_matter() -> None:
    assert deeds(decided(snapshot(run(pulse=pulse(losses=(*NUMBERS, (300, None))))))) == []


def test_where_no_loss_since_the_resume_is_a_number_the_checkpoint_itself_is_bad() -> None:
    found = decided(snapshot(run(pulse=pulse(losses=NAN))))
    assert [(one.deed, one.at_most_step) for one in found.actions] == [(Deed.ROLL_BACK, 99)]
    full = tuple((step, None) for step in range(1000, 1032))  # older ones are not told any more
    found = decided(snapshot(run(pulse=pulse(losses=full))))
    assert [(one.deed, one.at_most_step) for one in found.actions] == [(Deed.ROLL_BACK, 100)]


def test_a_job_that_came_back_without_its_gpus_is_requeued_once_then_held() -> None:
    told = history(failed(), attempt("2.0"))
    seen = with_facts(
        run(told, restarts=1, gpus=0, pulse=pulse(attempt="2.0", restart_count=1)), past=Past(1, False, None)
    )
    found = decided(snapshot(seen))
    assert (deeds(found), rule(found)) == ([Deed.REQUEUE], "without_gpus")
    before = done(Deed.REQUEUE, rule="without_gpus")
    assert deeds(decided(snapshot(seen), memory(entries=(before,)))) == [Deed.HOLD]
    shrunk = replace(seen, jobs=(job(node_list="n2", node_count=1),), gpus=8)
    assert deeds(decided(snapshot(shrunk))) == []


def test_a_head_that_cannot_end_its_hung_attempt_is_helped() -> None:
    hung = pulse(hung=True, suspected_at=ago(300))
    assert deeds(decided(snapshot(run(pulse=hung)))) == []
    assert deeds(decided(snapshot(run(pulse=replace(hung, suspected_at=ago(901)))))) == [Deed.REQUEUE]


# What was tried before


def test_nothing_is_done_while_it_is_not_known_what_came_of_the_last_deed() -> None:
    seen = snapshot(run(history(failed()), job("FAILED")))
    found = decided(seen, memory(known(), entries=(done(Deed.ROLL_BACK, Outcome.OPEN, age_s=30),)))
    assert (deeds(found), rule(found)) == ([], "unsettled")
    stuck = memory(known(), entries=(done(Deed.ROLL_BACK, Outcome.OPEN, age_s=700),))
    assert deeds(decided(seen, stuck)) == [Deed.TELL]


def test_what_did_not_happen_is_tried_later_and_later_and_told() -> None:
    seen = snapshot(run(history(failed()), job("FAILED")))
    just_now = done(Deed.REQUEUE_ENDED, Outcome.CHANGED, age_s=3)
    assert deeds(decided(seen, memory(known(), entries=(just_now,)))) == []
    assert deeds(decided(seen, memory(known(), entries=(replace(just_now, at=ago(60)),)))) == [Deed.REQUEUE_ENDED]
    often = tuple(done(Deed.REQUEUE_ENDED, Outcome.FAILED, age_s=4000 + n) for n in range(4))
    assert deeds(decided(seen, memory(known(), entries=often))) == [Deed.TELL]
    told = done(Deed.TELL, rule="come_back_in_vain")
    assert deeds(decided(seen, memory(known(), entries=(*often, told)))) == [Deed.REQUEUE_ENDED]


def test_what_slurm_refuses_is_not_asked_for_again_but_told() -> None:
    seen = snapshot(run(history(failed()), job("FAILED")))
    refused = done(Deed.REQUEUE_ENDED, Outcome.REFUSED)
    assert deeds(decided(seen, memory(known(), entries=(refused,)))) == [Deed.TELL]


def test_a_daemon_that_only_observes_says_everything_once() -> None:
    seen, policy = snapshot(run(history(failed()), job("FAILED"))), Policy()
    observed = done(Deed.REQUEUE_ENDED, Outcome.OBSERVED)
    assert deeds(decided(seen, memory(known()), policy)) == [Deed.REQUEUE_ENDED]
    assert deeds(decided(seen, memory(known(), entries=(observed,)), policy)) == []
    assert deeds(decided(seen, memory(known(), entries=(observed,)))) == [Deed.REQUEUE_ENDED]  # and now it acts


def test_our_own_resubmission_that_died_half_way_is_finished_and_nobody_elses() -> None:
    told = history(failed(), state=SubmissionState.UNKNOWN, submission=2)
    seen = snapshot(run(told, restarts=None, jobs=None))
    assert deeds(decided(seen)) == []
    mine = done(Deed.RESUBMIT, Outcome.FAILED, age_s=3000)
    assert deeds(decided(seen, memory(entries=(mine,)))) == [Deed.RESUBMIT]
    assert deeds(decided(seen, memory(entries=(mine,)), replace(OWNER, mode=Mode.OPERATOR))) == []


# Advice that was taken in vain


ILLEGAL = Suspected(CauseClass.PROGRAM, Advice.ELSEWHERE, "log: illegal access", "n1", again=Advice.STOP)


def twice(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[Interruption, ...]:
    return (
        known(ILLEGAL, nodes=first, at=ago(300)),
        known(ILLEGAL, attempt="2.0", start="c/7/1", nodes=second, at=ago(200)),
    )


def test_the_same_failure_elsewhere_is_the_programs() -> None:
    told = history(failed("1.0"), failed("2.0"))
    seen = snapshot(with_facts(run(told, job("FAILED"), restarts=1), past=Past(1, False, None)))
    elsewhere = memory(*twice(("n1", "n2"), ("n3", "n4")))
    assert deeds(decided(seen, elsewhere)) == [Deed.HOLD]
    same_node = memory(*twice(("n1", "n2"), ("n1", "n4")))
    assert deeds(decided(seen, same_node)) == [Deed.REQUEUE_ENDED]


def test_attempts_of_an_older_job_are_over() -> None:
    old = Attempt("1.0", "6", "n1", ago(5000), resume_step=0, nodes="n[1-2]")
    seen = run(history(old), waiting(reason="Priority"), pulse=None, evidence=Evidence("1.0", (), b""))
    assert len(decided(snapshot(seen)).interruptions) == 1


def test_a_time_limit_is_slurms_word_whatever_else_is_found() -> None:
    for seen in (
        run(history(failed()), job("TIMEOUT")),
        run(history(failed()), job("DEADLINE")),
        run(history(failed(), observed_end="timeout"), restarts=None, jobs=()),
    ):
        assert deeds(decided(snapshot(seen), memory(known()))) == []


TOLD_TO_END = Suspected(CauseClass.UNKNOWN, Advice.SLURM, "record: Slurm told the job to end")


def test_what_slurm_did_without_a_reason_costs_nothing_and_is_left_to_it() -> None:
    ends = [known(TOLD_TO_END, attempt=f"{n}.0", start=f"c/7/{n - 1}", ran_s=60.0) for n in (1, 2, 3)]
    told = history(failed("1.0"), failed("2.0"), failed("3.0"))
    seen = with_facts(run(told, waiting(), restarts=3), past=Past(2, False, None))
    assert deeds(decided(snapshot(seen), memory(*ends))) == []


def test_our_own_requeue_may_start_now() -> None:
    seen = snapshot(run(history(failed()), waiting()))
    ended = known(Suspected(CauseClass.REQUEUED, Advice.SLURM, "Slurm: REQUEUED"))
    assert deeds(decided(seen, memory(ended))) == []
    assert deeds(decided(seen, memory(ended, entries=(done(Deed.REQUEUE, age_s=30),)))) == [Deed.START_NOW]


HEAD = Suspected(CauseClass.HEAD, Advice.SAME, "record: the head is gone", "n1", again=Advice.ELSEWHERE)


def test_a_head_that_died_blames_its_host_only_the_second_time() -> None:
    first = known(HEAD)
    assert [one.nodes for one in decided(snapshot(run(history(failed()), job("FAILED"))), memory(first)).actions] == [
        ()
    ]
    told = history(failed(), failed("2.0"))
    seen = with_facts(run(told, job("FAILED"), restarts=1), past=Past(1, False, None))
    before = replace(first, nodes=("n3", "n4"), causes=(replace(HEAD, node="n3"),), at=ago(4000))
    second = known(HEAD, attempt="2.0", start="c/7/1")
    assert [one.nodes for one in decided(snapshot(seen), memory(before, second)).actions] == [("n1",)]


# Losses after a resume


def losses(first: int, last: int, loss: float = 2.0) -> tuple[tuple[int, float | None], ...]:
    return tuple((step, loss + step % 3 / 100) for step in range(first, last, 10))


def resumed(after: float, count: int = 3, *, asked: bool = True, **changes: Any) -> RunSeen:
    """Resumed from training step 200, with losses around this one since."""
    told = losses(210, 210 + 10 * count, after)
    newest = attempt("1.1", resume_step=200, started_at=ago(60), **changes)
    return with_facts(run(history(failed(), newest), pulse=pulse(attempt="1.1", losses=told)), canary=asked)


def kept() -> dict[str, str]:
    first = run(pulse=pulse(losses=losses(50, 350)))
    return dict(decided(snapshot(first)).notes)


def test_losses_are_kept_for_the_attempt_after_and_not_written_down_with_each_step() -> None:
    notes = kept()
    assert list(notes) == ["losses/r-1"]
    for last, news in ((480, False), (520, True)):
        more = run(pulse=pulse(losses=losses(210, last)))
        found = decided(snapshot(more), memory(notes=notes)).notes
        assert bool(found) is news
        assert len(found.get("losses/r-1", "")) < 2_000
    for number in range(60):
        more = run(pulse=pulse(losses=losses(300 * number, 300 * number + 300)))
        notes = {**notes, **decided(snapshot(more), memory(notes=notes)).notes}
    held = json.loads(notes["losses/r-1"].partition(" ")[2])
    assert len(held) <= 64
    assert held[0][0] < 9_000 < held[-1][0], "ever fewer of the older ones"
    assert decided(snapshot(run(history(cancelled_at=ago(1)))), memory(notes=notes)).notes == {"losses/r-1": ""}


def test_losses_that_are_worse_after_a_resume_roll_back_where_that_was_asked_for() -> None:
    known_losses = memory(notes=kept())
    assert rule(decided(snapshot(resumed(9.0, 2)), known_losses)) == "healthy", "two losses tell nothing"
    assert rule(decided(snapshot(resumed(2.0)), known_losses)) == "healthy"
    found = decided(snapshot(resumed(9.0)), known_losses)
    assert [(one.deed, one.at_most_step) for one in found.actions] == [(Deed.ROLL_BACK, 199)]
    assert "losses/r-1" not in found.notes, "those before are still needed"
    rolled = memory(entries=(done(Deed.ROLL_BACK, at_most_step=199),), notes=kept())
    found = decided(snapshot(resumed(9.0)), rolled)
    assert (deeds(found), rule(found)) == ([Deed.REQUEUE], "canary")


def test_the_third_older_checkpoint_is_not_tried_for_losses_either() -> None:
    ends = [known(attempt=f"{n}.0", start=f"c/7/{n}") for n in (1, 2)]
    entries = tuple(done(Deed.ROLL_BACK, at_most_step=900, start=f"c/7/{n}") for n in (1, 2))
    found = decided(snapshot(resumed(9.0)), memory(*ends, entries=entries, notes=kept()))
    assert (deeds(found), rule(found)) == ([Deed.HOLD], "older_in_vain")


def test_losses_that_are_worse_are_told_once_where_nobody_asked_for_more() -> None:
    found = decided(snapshot(resumed(9.0, asked=False)), memory(notes=kept()))
    assert (deeds(found), rule(found)) == ([Deed.TELL], "canary")
    told = done(Deed.TELL, rule="canary")
    again = decided(snapshot(resumed(9.0, asked=False)), memory(entries=(told,), notes=kept()))
    assert (deeds(again), rule(again)) == ([], "canary")


@pytest.mark.parametrize(
    "notes", [{}, {"losses/r-1": "1.0 []"}, {"losses/r-1": "1.0 [[300,2.0],[310,2.0],[320,2.0],[330,2.0]]"}]
)
def test_without_losses_from_before_the_resume_nothing_is_said_of_those_after_it(notes: dict[str, str]) -> None:
    assert rule(decided(snapshot(resumed(9.0)), memory(notes=notes))) == "healthy"


def test_a_loss_that_jumps_and_stays_so_is_told_once() -> None:
    for count, expected in ((2, []), (3, [Deed.TELL])):
        seen = run(pulse=pulse(losses=(*losses(10, 200), *losses(200, 200 + 10 * count, 30.0))))
        assert deeds(decided(snapshot(seen))) == expected
        told = memory(entries=(done(Deed.TELL, rule="loss_jump"),))
        assert deeds(decided(snapshot(seen), told)) == []
