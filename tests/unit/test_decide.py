"""When a lost submission counts as found, absent, or still open."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fleetctl.rundir.history import History
from fleetctl.rundir.model import RunKind, RunRecord, SubmissionState
from fleetctl.slurm.model import Job, JobId, JobState
from fleetctl.submission.decide import Absent, Found, Policy, StillUnknown, judge

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = Policy(message_timeout_s=10, sbatch_limit_s=150)
SCRIPT = "/runs/r-abc/submissions/1/script.sh"
RECORD = RunRecord("r-abc", "r", "me", NOW, RunKind.PLAIN, "d", "s", "/w", 1, 1, "c", "0")


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def history(*absent_at: float) -> History:
    return History(
        RECORD, 1, SubmissionState.UNKNOWN, None, "c", NOW, "", tuple(at(one) for one in absent_at), None, None, {}, ()
    )


def job(
    number: int,
    *,
    comment: str = "fleetctl:r-abc/1",
    command: str = SCRIPT,
    user: str = "me",
    name: str = "r",
) -> Job:
    return Job(
        id=JobId(number),
        raw_id=number,
        pending_tasks="",
        name=name,
        user=user,
        state=JobState.parse("PENDING"),
        reason="",
        comment=comment,
        partition="",
        account="",
        node_list="",
        node_count=None,
        submit_time=None,
        start_time=None,
        end_time=None,
        time_limit_s=None,
        command=command,
        work_dir="",
        dependency="",
        excluded_nodes="",
        priority=None,
        gres_per_node="",
    )


def test_the_job_with_our_comment_and_script_is_ours() -> None:
    assert judge(history(), [job(6, comment="other"), job(7)], at(1), SCRIPT, False, POLICY) == Found("7")


def test_a_comment_copied_from_our_run_does_not_make_a_job_ours() -> None:
    copied = job(9, command="/home/me/other.sh", name="other")
    assert judge(history(), [copied, job(7)], at(1), SCRIPT, True, POLICY) == Found("7")
    assert judge(history(5), [copied], at(161), SCRIPT, True, POLICY) == Absent()


def test_another_users_copy_is_not_ours() -> None:
    assert judge(history(5), [job(9, user="mallory")], at(161), SCRIPT, True, POLICY) == Absent()


def test_a_site_that_copies_scripts_leaves_it_open() -> None:
    verdict = judge(history(5), [job(9, command="/var/spool/wrapped.sh")], at(161), SCRIPT, True, POLICY)
    assert isinstance(verdict, StillUnknown)
    assert not verdict.absent
    assert "job 9" in verdict.why


def test_two_jobs_of_one_script_leave_it_to_the_claim() -> None:
    verdict = judge(history(), [job(7), job(8)], at(1), SCRIPT, True, POLICY)
    assert isinstance(verdict, StillUnknown)
    assert "7, 8" in verdict.why


def test_the_elements_of_one_array_are_one_job() -> None:
    elements = [job(7), job(7)]
    assert judge(history(), elements, at(1), SCRIPT, True, POLICY) == Found("7")


def test_one_lookup_is_never_enough() -> None:
    verdict = judge(history(), [], at(10_000), SCRIPT, True, POLICY)
    assert isinstance(verdict, StillUnknown)
    assert verdict.absent
    assert verdict.until == at(10_010)


def test_two_lookups_count_only_after_sbatchs_own_limit_and_the_time_that_its_last_message_may_take() -> None:
    verdict = judge(history(5), [], at(159), SCRIPT, True, POLICY)
    assert isinstance(verdict, StillUnknown)
    assert verdict.until == at(160)
    assert judge(history(5), [], at(160), SCRIPT, True, POLICY) == Absent()


def test_two_lookups_must_be_a_message_timeout_apart() -> None:
    assert isinstance(judge(history(155), [], at(164), SCRIPT, True, POLICY), StillUnknown)
    assert judge(history(155), [], at(165), SCRIPT, True, POLICY) == Absent()


def test_where_comments_are_not_proved_absence_is_never_said() -> None:
    verdict = judge(history(5), [], at(10_000), SCRIPT, False, POLICY)
    assert isinstance(verdict, StillUnknown)
    assert not verdict.absent
    assert verdict.until is None


def test_another_run_of_ours_in_the_same_reply_proves_that_comments_are_shown() -> None:
    other = job(3, comment="fleetctl:other/1", command="/runs/other/submissions/1/script.sh")
    assert judge(history(5), [other], at(161), SCRIPT, False, POLICY) == Absent()
