"""What a run's state is, from its own record and from Slurm's word."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from fleetctl.rundir.history import finished_well
from fleetctl.rundir.model import Attempt, Progress, RunKind, SubmissionState
from fleetctl.rundir.view import RunState, jobs_of, queue_of, view
from fleetctl.slurm.model import Job, JobId, JobState
from tests.unit.test_decide import RECORD, history, job

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUBMITTED = replace(history(), state=SubmissionState.SUBMITTED, job_id="7")
SWEEP = replace(SUBMITTED, record=replace(RECORD, kind=RunKind.SWEEP, tasks=4))


def attempt(exit_code: int | None, *, name: str = "1.0", task: int | None = None) -> Attempt:
    return Attempt(name, "7", "node1", NOW, task, NOW if exit_code is not None else None, exit_code)


def in_state(word: str, **fields: object) -> Job:
    return replace(job(7), state=JobState.parse(word), **fields)


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("PENDING", RunState.PENDING),
        ("RUNNING", RunState.RUNNING),
        ("SUSPENDED", RunState.RUNNING),
        ("CONFIGURING", RunState.PENDING),
        ("REQUEUED", RunState.PENDING),
        ("SPECIAL_EXIT", RunState.PENDING),
        ("RESIZING", RunState.RUNNING),
        ("STAGE_OUT", RunState.COMPLETING),
        ("COMPLETING", RunState.COMPLETING),
        ("COMPLETED", RunState.COMPLETED),
        ("FAILED", RunState.FAILED),
        ("OUT_OF_MEMORY", RunState.FAILED),
        ("CANCELLED", RunState.CANCELLED),
        ("TIMEOUT", RunState.TIMEOUT),
        ("NODE_FAIL", RunState.NODE_FAIL),
        ("PREEMPTED", RunState.PREEMPTED),
        ("SOMETHING_NEW", RunState.UNKNOWN),
    ],
)
def test_slurms_word_is_translated(word: str, state: RunState) -> None:
    assert view(SUBMITTED, None, [in_state(word)]).state is state


def test_silence_of_slurm_is_unknown_and_never_gone() -> None:
    assert view(SUBMITTED, None, None).state is RunState.UNKNOWN
    assert view(SWEEP, None, None).tasks_by_state == {"unknown": 4}


def test_only_what_cannot_be_undone_is_an_end_while_slurm_is_silent() -> None:
    assert view(replace(SUBMITTED, attempts=(attempt(0),)), None, None).state is RunState.COMPLETED
    assert view(replace(SUBMITTED, observed_end="failed"), None, None).state is RunState.FAILED
    assert view(replace(SUBMITTED, attempts=(attempt(1),)), None, None).state is RunState.UNKNOWN, "maybe requeued"
    assert view(replace(SUBMITTED, cancelled_at=NOW), None, None).state is RunState.UNKNOWN, "a wish is no end"


def test_a_training_that_saved_when_it_was_told_to_end_has_not_finished() -> None:
    told = replace(attempt(0), terminated=True)
    assert view(replace(SUBMITTED, attempts=(told,)), None, None).state is RunState.UNKNOWN
    assert view(replace(SUBMITTED, attempts=(told,)), None, []).state is RunState.LOST
    assert view(replace(SUBMITTED, attempts=(told,), cancelled_at=NOW), None, []).state is RunState.CANCELLED
    assert view(replace(SUBMITTED, attempts=(told,), observed_end="timeout"), None, []).state is RunState.TIMEOUT
    assert finished_well(replace(SUBMITTED, attempts=(told,))) is None


def test_slurms_word_about_the_whole_beats_a_status_and_a_status_beats_a_wish() -> None:
    assert (
        view(replace(SUBMITTED, attempts=(attempt(0),), observed_end="node_fail"), None, []).state is RunState.NODE_FAIL
    )
    assert view(replace(SUBMITTED, attempts=(attempt(3),), cancelled_at=NOW), None, []).state is RunState.FAILED
    ends = (attempt(0, task=0), attempt(3, task=1))
    seen = view(replace(SWEEP, attempts=ends, observed_end="node_fail"), None, [])
    assert seen.tasks_by_state == {"completed": 1, "failed": 1, "node_fail": 2}


def test_a_sweep_that_may_have_no_job_counts_no_elements() -> None:
    seen = view(replace(SWEEP, state=SubmissionState.UNKNOWN, job_id=None), None, [])
    assert (seen.state, seen.tasks_by_state) == (RunState.SUBMISSION_UNKNOWN, None)


def test_a_forgotten_job_is_lost_unless_the_record_tells() -> None:
    assert view(SUBMITTED, None, []).state is RunState.LOST
    assert view(replace(SUBMITTED, attempts=(attempt(None),)), None, []).state is RunState.LOST
    assert view(replace(SUBMITTED, attempts=(attempt(0),)), None, []).state is RunState.COMPLETED
    assert view(replace(SUBMITTED, attempts=(attempt(1),)), None, []).state is RunState.FAILED
    assert view(replace(SUBMITTED, cancelled_at=NOW), None, []).state is RunState.CANCELLED
    assert view(replace(SUBMITTED, observed_end="timeout"), None, []).state is RunState.TIMEOUT
    assert view(replace(SUBMITTED, observed_end="of the future"), None, []).state is RunState.LOST
    assert view(replace(SUBMITTED, not_started={None: "no secrets"}), None, []).reason == "no secrets"


def test_a_requeued_job_is_pending_although_an_attempt_has_failed() -> None:
    assert view(replace(SUBMITTED, attempts=(attempt(1),)), None, [in_state("PENDING")]).state is RunState.PENDING


def test_open_and_refused_submissions() -> None:
    assert view(history(), None, []).state is RunState.SUBMISSION_UNKNOWN
    assert view(replace(history(), state=SubmissionState.REFUSED), None, []).state is RunState.NOT_SUBMITTED
    assert not view(history(), None, []).state.is_finished
    assert view(replace(history(), state=SubmissionState.VOIDED), None, []).state.is_finished


def test_a_sweep_is_counted_by_element() -> None:
    jobs = [
        in_state("RUNNING", id=JobId(7, 1), node_list="node2"),
        in_state("PENDING", id=JobId(7), pending_tasks="2-3%1", reason="Resources"),
    ]
    seen = view(replace(SWEEP, attempts=(attempt(0, task=0), attempt(None, task=1))), None, jobs)
    assert seen.tasks_by_state == {"completed": 1, "running": 1, "pending": 2}
    assert seen.state is RunState.RUNNING
    assert seen.reason == "Resources"


def test_a_sweep_with_one_failure_has_failed() -> None:
    ends = (attempt(0, task=0), attempt(0, task=1), attempt(3, task=2), attempt(0, task=3))
    assert view(replace(SWEEP, attempts=ends), None, []).state is RunState.FAILED
    assert finished_well(replace(SWEEP, attempts=ends)) is False


def test_a_job_id_that_now_belongs_to_another_job_is_not_ours() -> None:
    def mine(*jobs: Job) -> list[Job] | None:
        return jobs_of(SUBMITTED, "/runs/r-abc", queue_of("c", "me", jobs))

    edited = job(7, comment="edited by its user", command="/runs/r-abc/submissions/1/script.sh")
    assert mine(job(7, comment="", command="/home/other/run.sh")) == []
    assert mine(edited) == [edited]
    assert mine(job(7, comment="fleetctl:r-abcd/1", command="x")) == []


def test_another_cluster_and_somebody_elses_hidden_jobs_tell_nothing() -> None:
    assert jobs_of(SUBMITTED, "/runs/r-abc", queue_of("elsewhere", "me", [])) is None
    assert jobs_of(SUBMITTED, "/runs/r-abc", queue_of("c", "you", [])) is None
    assert jobs_of(SUBMITTED, "/runs/r-abc", queue_of("c", "me", [])) == []


def test_progress_is_shown() -> None:
    seen = view(SUBMITTED, Progress(120, 300, 0.5), [in_state("RUNNING")])
    assert (seen.training_step, seen.target_step, seen.loss) == (120, 300, 0.5)


def test_a_job_that_its_own_head_gave_back_ended_as_the_record_says() -> None:
    given = replace(SUBMITTED, attempts=(attempt(0),), given_back=frozenset({None}))
    for word in ("CANCELLED", "COMPLETING"):
        assert view(given, None, [in_state(word)]).state is RunState.COMPLETED
        assert (
            view(replace(given, held={None: "why"}, attempts=()), None, [in_state("CANCELLED")]).state is RunState.HELD
        )
    assert view(given, None, [in_state("RUNNING")]).state is RunState.RUNNING
    assert view(replace(given, cancelled_at=NOW), None, [in_state("CANCELLED")]).state is RunState.CANCELLED
