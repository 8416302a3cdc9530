"""What `fleetctl requeue` may do with a run: every state of its job, and every word of its record."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from fleetctl.errors import CannotTell, FleetctlError, UsageError
from fleetctl.rundir.history import BY_DAEMON, BY_JOB, History, Wish
from fleetctl.rundir.model import Attempt, Ending, Event, EventKind, RunKind, RunRecord, SubmissionState
from fleetctl.slurm.model import BaseState, Job, JobId, JobState, Node, StateFlag
from fleetctl.submission.decide_nodes import Need, check_exclusion, unresponsive
from fleetctl.submission.decide_requeue import Deed, Look, NotYet, Past, Wanted, decide, past_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RECORD = RunRecord("r-1", "r", "me", NOW, RunKind.PLAIN, "d", "/s/train.yaml", "/w", 2, 1, "c", "0")
SWEEP = msgspec.structs.replace(RECORD, kind=RunKind.SWEEP, tasks=3)
FAILED = Attempt("1.0", "7", "n1", NOW, ended_at=NOW, exit_code=3, ending=Ending.FAILED)
RUNS = Attempt("1.0", "7", "n1", NOW)
WELL = msgspec.structs.replace(FAILED, exit_code=0, ending=Ending.FINISHED)
TOLD = msgspec.structs.replace(FAILED, exit_code=0, ending=Ending.TOLD, terminated=True)
SUBMITTED, REFUSED, VOIDED = SubmissionState.SUBMITTED, SubmissionState.REFUSED, SubmissionState.VOIDED


def history(*attempts: Attempt, **changes: Any) -> History:
    made = History(RECORD, 1, SUBMITTED, "7", "c", NOW, "", (), None, None, {}, attempts)
    return msgspec.structs.replace(made, **changes)


def job(state: str | JobState, *, excluded: str = "", number: str = "7") -> Job:
    return Job(
        id=JobId.parse(number),
        raw_id=7,
        pending_tasks="",
        name="r",
        user="me",
        state=JobState.parse(state) if isinstance(state, str) else state,
        reason="",
        comment="",
        partition="main",
        account="",
        node_list="",
        node_count=None,
        submit_time=None,
        start_time=None,
        end_time=None,
        time_limit_s=None,
        command="",
        work_dir="",
        dependency="",
        excluded_nodes=excluded,
        priority=None,
        gres_per_node="",
    )


def look(told: History, *states: str | Job, **changes: Any) -> Look:
    jobs = tuple(state if isinstance(state, Job) else job(state) for state in states)
    made = Look(told, Past(0, False), jobs, 0, True)
    return msgspec.structs.replace(made, **changes)


PLAIN = Wanted()


def outcome(seen: Look, wanted: Wanted = PLAIN) -> object:
    """The deed, or the class of what stands against it."""
    try:
        found = decide(seen, wanted)
    except FleetctlError as error:
        return type(error)
    return NotYet if isinstance(found, NotYet) else found


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("RUNNING", Deed.REQUEUE),
        ("SUSPENDED", Deed.REQUEUE),
        ("CONFIGURING", Deed.REQUEUE),
        ("PENDING", Deed.WISH),
        ("REQUEUE_HOLD", Deed.WISH),
        ("SPECIAL_EXIT", Deed.WISH),
        ("COMPLETING", NotYet),
        ("STAGE_OUT", NotYet),
        ("FAILED", Deed.REQUEUE_ENDED),
        ("TIMEOUT", Deed.REQUEUE_ENDED),
        ("NODE_FAIL", Deed.REQUEUE_ENDED),
        ("OUT_OF_MEMORY", Deed.REQUEUE_ENDED),
        ("PREEMPTED", Deed.SUBMIT),
        ("BOOT_FAIL", Deed.SUBMIT),
        ("DEADLINE", Deed.SUBMIT),
        ("CANCELLED", UsageError),
        ("COMPLETED", UsageError),
        ("SOMETHING_NEW", CannotTell),
    ],
)
def test_each_state_of_a_job_has_its_road(state: str, expected: object) -> None:
    assert outcome(look(history(FAILED), state)) is expected


def test_every_state_and_flag_has_a_phase_and_a_flag_beside_an_end_is_no_end() -> None:
    for base in BaseState:
        for flag in StateFlag:
            seen = look(history(FAILED), job(JobState(base, frozenset({flag}))))
            found = outcome(seen)
            if base not in (BaseState.PENDING, BaseState.RUNNING, BaseState.SUSPENDED):
                assert found in (NotYet, UsageError), (base, flag)


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "COMPLETING", "FAILED", "CANCELLED"])
def test_a_cancelled_run_never_comes_back_whatever_slurm_says(state: str) -> None:
    for told in (history(FAILED, cancelled_at=NOW), history(FAILED, observed_end="cancelled")):
        assert outcome(look(told, state)) is UsageError
        assert outcome(look(told)) is UsageError
        assert outcome(look(msgspec.structs.replace(told, given_back=frozenset({None})), state)) is UsageError
        assert outcome(look(msgspec.structs.replace(told, state=REFUSED, submission=2), state)) is UsageError


def test_a_job_that_its_own_head_gave_back_is_submitted_again_and_never_requeued() -> None:
    given_back = history(FAILED, given_back=frozenset({None}))
    assert outcome(look(given_back, "CANCELLED")) is Deed.SUBMIT
    assert outcome(look(given_back, "COMPLETING")) is NotYet
    assert outcome(look(given_back)) is Deed.SUBMIT
    assert outcome(look(history(WELL, given_back=frozenset({None})), "CANCELLED")) is UsageError


@pytest.mark.parametrize(
    ("told", "may_restart", "expected"),
    [
        (history(FAILED, held={None: "why"}), True, Deed.SUBMIT),
        (history(FAILED, observed_end="failed"), True, Deed.SUBMIT),
        (history(RUNS, observed_end="node_fail"), True, Deed.SUBMIT),
        (history(RUNS, observed_end="timeout"), True, Deed.SUBMIT),
        (history(FAILED), False, Deed.SUBMIT),
        (history(FAILED), True, CannotTell),  # it may have been requeued, and cancelled while it waited
        (history(TOLD), True, CannotTell),  # it was told to end: by a cancel?
        (history(TOLD), False, CannotTell),
        (history(RUNS), False, CannotTell),
        (history(), False, CannotTell),
        (history(FAILED, not_started={None: "told to end"}), True, CannotTell),
        (history(WELL), True, UsageError),
        (history(FAILED, observed_end="completed"), True, UsageError),
    ],
)
def test_a_forgotten_job_is_submitted_again_only_by_a_proof(told: History, may_restart: bool, expected: object) -> None:
    assert outcome(look(told, may_restart=may_restart)) is expected
    if expected is Deed.SUBMIT and not told.held:
        asked = look(told, may_restart=may_restart, past=Past(0, True))
        assert outcome(asked) is CannotTell, "somebody asked for it since, and nobody knows what came of that"


def test_what_slurm_does_not_show_is_not_gone() -> None:
    assert outcome(look(history(FAILED, held={None: "why"}), jobs=None)) is CannotTell


def test_a_submission_that_came_to_nothing_is_tried_again_but_not_the_first() -> None:
    for state in (REFUSED, VOIDED):
        assert outcome(look(history(FAILED, state=state, submission=2, job_id=None), jobs=None)) is Deed.SUBMIT
        assert outcome(look(history(state=state, job_id=None), jobs=None)) is UsageError
    assert outcome(look(history(state=SubmissionState.NONE, submission=0, job_id=None), jobs=None)) is UsageError


def test_a_run_that_slurm_may_not_requeue_runs_on_or_is_submitted_again() -> None:
    assert outcome(look(history(RUNS), "RUNNING", may_restart=False)) is UsageError
    assert outcome(look(history(FAILED), "FAILED", may_restart=False)) is Deed.SUBMIT
    assert outcome(look(history(FAILED), "CANCELLED", may_restart=False)) is UsageError


def test_an_unresponsive_node_is_waited_for_while_the_job_lives() -> None:
    assert outcome(look(history(RUNS), "RUNNING", unresponsive=("n2",))) is NotYet
    assert outcome(look(history(RUNS), "PENDING", unresponsive=("n2",))) is Deed.WISH


@pytest.mark.parametrize(
    ("state", "restarts", "expected"),
    [
        ("RUNNING", 0, Deed.REQUEUE),  # the attempt that the wish was about: the client died before the deed
        ("RUNNING", 1, Deed.NOTHING),
        ("CONFIGURING", 1, Deed.NOTHING),
        ("COMPLETING", 0, NotYet),
        ("COMPLETING", 1, Deed.NOTHING),
        ("PENDING", 1, Deed.NOTHING),
    ],
)
def test_the_same_wish_is_done_once(state: str, restarts: int, expected: object) -> None:
    past = Past(0, True, Wish(5, "n1", "user me"))
    seen = look(history(RUNS), job(state, excluded="n[1-2]"), past=past, restarts=restarts)
    assert outcome(seen, Wanted(None, 5, frozenset({"n1"}))) is expected
    more = {"RUNNING": Deed.REQUEUE, "CONFIGURING": Deed.REQUEUE}.get(state, Deed.WISH)
    if expected is Deed.NOTHING:
        assert outcome(seen, Wanted(None, 4, frozenset({"n1"}))) is more
        assert outcome(seen, Wanted(None, 5, frozenset({"n3"}))) is more
        assert outcome(msgspec.structs.replace(seen, past=Past(0, False)), Wanted(None, 5)) is more


def test_a_job_that_was_requeued_and_ended_before_an_attempt_does_not_come_back_by_itself() -> None:
    seen = look(history(FAILED, not_started={None: "no env_file"}), "COMPLETING", restarts=1)
    assert outcome(seen) is NotYet


def test_components_of_a_hetjob_are_one_job() -> None:
    both = [job("RUNNING", number="7+0"), job("RUNNING", number="7+1")]
    assert outcome(look(history(RUNS), *both)) is Deed.REQUEUE
    assert outcome(look(history(RUNS), both[0], job("FAILED", number="7+1"))) is NotYet
    ended = [job("FAILED", number="7+0"), job("CANCELLED", number="7+1")]
    assert outcome(look(history(FAILED), *ended)) is UsageError
    ended[1] = job("COMPLETED", number="7+1")
    assert outcome(look(history(FAILED), *ended)) is Deed.SUBMIT


def test_a_sweep_needs_its_element_and_one_element_cannot_be_submitted() -> None:
    told = history(msgspec.structs.replace(FAILED, task=1), record=SWEEP, held={1: "why"})
    assert outcome(look(told, "FAILED")) is UsageError
    assert outcome(look(told, "FAILED"), Wanted(3)) is UsageError
    assert outcome(look(told, "FAILED"), Wanted(1)) is Deed.REQUEUE_ENDED
    assert outcome(look(told), Wanted(1)) is UsageError
    assert outcome(look(history(FAILED), "FAILED"), Wanted(0)) is UsageError


def event(kind: EventKind, second: int = 0, **data: Any) -> Event:
    return Event(NOW + timedelta(seconds=second), kind, {"task": None, **data})


def test_the_past_is_that_of_the_newest_attempt_of_this_job_and_task() -> None:
    events = (
        event(EventKind.ATTEMPT_STARTED, job_id="6", restart_count=4),
        event(EventKind.ATTEMPT_STARTED, job_id="7", restart_count=2),
        event(EventKind.ATTEMPT_STARTED, job_id="7_1", restart_count=9, task=1),
        event(EventKind.REQUEUE, 1, by=BY_JOB, attempts=0),
        event(EventKind.REQUEUE, 2, by="user me", attempts=1, task=1),
    )
    assert past_of(events, history(FAILED), "7", None) == Past(2, False)
    wish = event(EventKind.REQUEUE, 3, by="user me", attempts=1, from_step=5, exclude="n1")
    assert past_of((*events, wish), history(FAILED), "7", None) == Past(2, True, Wish(5, "n1", "user me"))
    newer = event(EventKind.REQUEUE, 4, by="user you", attempts=1, from_step=None, exclude="")
    assert past_of((wish, newer), history(FAILED), "7", None).wish == Wish(None, "", "user you")
    assert past_of((wish,), history(FAILED, RUNS), "7", None) == Past(0, False), "an attempt has followed it"
    own = event(EventKind.REQUEUE, by=BY_JOB, attempts=1)
    assert past_of((own,), history(FAILED), "7", None) == Past(0, True)


DAEMON = Wanted(by=BY_DAEMON, why="the head is silent")


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "FAILED", "COMPLETING"])
def test_the_daemon_ends_no_hold(state: str) -> None:
    seen = look(history(FAILED, held={None: "the same failure again"}), state, restarts=1)
    assert outcome(seen, DAEMON) is UsageError
    assert outcome(seen) is not UsageError


@pytest.mark.parametrize(
    ("state", "restarts", "expected"),
    [
        ("RUNNING", 0, Deed.REQUEUE),
        ("RUNNING", 1, Deed.NOTHING),
        ("CONFIGURING", 1, Deed.NOTHING),
        ("PENDING", 1, Deed.NOTHING),
        ("COMPLETING", 1, Deed.NOTHING),
        ("COMPLETING", 0, NotYet),
        ("FAILED", 0, Deed.REQUEUE_ENDED),
        ("CANCELLED", 0, UsageError),
        ("COMPLETED", 0, UsageError),
    ],
)
def test_what_the_daemon_asks_for_is_about_the_start_before(state: str, restarts: int, expected: object) -> None:
    seen = look(history(RUNS), state, past=Past(0, True), restarts=restarts)
    assert outcome(seen, DAEMON) is expected


def test_the_daemon_sets_its_exclusions_while_the_job_waits() -> None:
    off = msgspec.structs.replace(DAEMON, exclude=frozenset({"n1"}))
    assert outcome(look(history(RUNS), "PENDING", restarts=1), off) is Deed.WISH
    assert outcome(look(history(RUNS), job("PENDING", excluded="n[1-3]"), restarts=1), off) is Deed.NOTHING
    assert outcome(look(history(RUNS), "RUNNING", restarts=1), off) is Deed.NOTHING, "it is not taken back for them"


def test_a_requeue_of_the_daemon_is_no_persons_wish() -> None:
    own = event(EventKind.REQUEUE, 5, by=BY_DAEMON, attempts=1, from_step=None, exclude="")
    wish = event(EventKind.REQUEUE, 3, by="user me", attempts=1, from_step=5, exclude="n1")
    assert past_of((own,), history(FAILED), "7", None) == Past(0, True)
    assert past_of((wish, own), history(FAILED), "7", None).wish == Wish(5, "n1", "user me")


def node(name: str, state: str = "IDLE", *flags: str, partitions: tuple[str, ...] = ("main",)) -> Node:
    return Node(name, state, frozenset(flags), "", "", None, 8, 0, "", 64, 1024, partitions)


def test_only_the_jobs_own_nodes_that_are_not_down_are_unresponsive() -> None:
    nodes = [
        node("n1", "MIXED"),
        node("n2", "ALLOCATED", "NOT_RESPONDING"),
        node("n3", "DOWN", "NOT_RESPONDING"),
        node("n4", "IDLE", "NOT_RESPONDING"),
        node("n5", "UNKNOWN", "NOT_RESPONDING", "DRAIN"),
    ]
    assert unresponsive(nodes, ["n1", "n2", "n3", "n5"]) == ("n2", "n5")


def test_exclusions_leave_enough_usable_nodes_of_the_partition() -> None:
    nodes = [node("n1"), node("n2", "ALLOCATED"), node("n3", "IDLE", "DRAIN"), node("n4", "DOWN"), node("n5")]
    nodes.append(node("o1", partitions=("other",)))

    def check(*excluded: str, needed: int = 2, partitions: tuple[str, ...] = ("main",)) -> None:
        names = frozenset(excluded)
        check_exclusion(names, [Need(needed, frozenset(partitions), names)], nodes)

    check("n1")
    check("n1", "n2", partitions=("main", "other"))
    check("n1", "n2", partitions=())
    for excluded, needed in ((("n1", "n2"), 2), (("n3",), 4)):
        with pytest.raises(UsageError, match=rf"\d usable nodes of partition main .* needs {needed}"):
            check(*excluded, needed=needed)
    with pytest.raises(UsageError, match="no node n9"):
        check("n9", needed=1)
    halves = [Need(2, frozenset({"main"}), frozenset({"n1"})), Need(2, frozenset({"main", "other"}), frozenset({"n1"}))]
    with pytest.raises(UsageError, match=r"3 usable nodes .* needs 4"):
        check_exclusion(frozenset({"n1"}), halves, nodes)
