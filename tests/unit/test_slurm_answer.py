"""What an ended sbatch proves: every text that is known to come, and what must not be believed."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleetctl.errors import CannotTell, JobUnknown, SlurmRefused, SlurmUnreachable
from fleetctl.slurm.model import Accepted, JobId, NotSent, Refused, Unknown
from fleetctl.slurm.parse import (
    classify_submit,
    command_error,
    parse_config,
    parse_pending_tasks,
    parse_reservations,
    parse_sbatch_id,
)
from fleetctl.slurm.wording import COMMUNICATION, CONNECT_FAILURE, REFUSALS

RECORDED = Path(__file__).parents[1] / "recorded" / "25.11"
BANNER = """
-----------------------------------------------------------------
          Welcome to the Stampede3 Supercomputer
-----------------------------------------------------------------
--> Verifying valid submit host (login4)...OK
--> Checking available allocation, at  0.00% allocated...OK
"""


@pytest.mark.parametrize(
    ("stdout", "expected"),
    [
        ("Submitted batch job 123\n", JobId(123)),
        ("Submitted batch job 3969755 on cluster nautilus\n", JobId(3969755, cluster="nautilus")),
        ("123\n", JobId(123)),
        ("123;nautilus\n", JobId(123, cluster="nautilus")),
        (BANNER + "Submitted batch job 519605\n", JobId(519605)),
        (BANNER + "519605\n", JobId(519605)),
        ("Submitted batch job 123\nThank you for flying with us\n", JobId(123)),
        ("7\nSubmitted batch job 123\n8\n", JobId(123)),
        ("Submitted batch job 1\nSubmitted batch job 2\n", JobId(2)),
        ("Submitted batch job 123\r\n", JobId(123)),
        ("Submitted batch job 0\n", None),
        ("", None),
        (BANNER, None),
        ("Submitted batch job\n", None),
        ("Submitted batch job 12x\n", None),
        ("Would submit: Submitted batch job 123\n", None),
        ("job 123 queued\n", None),
        ("99999999999\n", None),
        ("Submitted batch job 4294967296\n", None),
        ("1.5\n", None),
    ],
)
def test_the_id_is_found_among_noise_or_not_at_all(stdout: str, expected: JobId | None) -> None:
    assert parse_sbatch_id(stdout) == expected


@pytest.mark.parametrize("status", [0, 1, 124, 137, 255, -9])
def test_an_id_on_stdout_wins_over_any_status_and_any_stderr(status: int) -> None:
    stderr = "sbatch: error: Batch job submission failed: Invalid partition name specified\n"
    assert classify_submit(status, "Submitted batch job 7\n", stderr) == Accepted(JobId(7))


def failed(text: str) -> str:
    return f"sbatch: error: Batch job submission failed: {text}\n"


@pytest.mark.parametrize("text", sorted(REFUSALS))
def test_the_controllers_no_is_a_refusal(text: str) -> None:
    assert classify_submit(1, "", failed(text)) == Refused(1, f"Batch job submission failed: {text}")


@pytest.mark.parametrize("text", [words for words in COMMUNICATION if words not in CONNECT_FAILURE])
def test_a_communication_error_leaves_it_unknown(text: str) -> None:
    assert isinstance(classify_submit(1, "", failed(text)), Unknown)
    assert isinstance(classify_submit(255, "", f"sbatch: fatal: {text}\n"), Unknown)


@pytest.mark.parametrize("what", ["send", "receive", "shutdown"])
def test_a_lost_controller_leaves_it_unknown(what: str) -> None:
    answer = classify_submit(1, "", failed(f"Unable to contact slurm controller ({what} failure)"))
    assert isinstance(answer, Unknown)


def test_a_connection_that_never_was_means_that_nothing_was_sent() -> None:
    assert isinstance(classify_submit(1, "", failed(CONNECT_FAILURE)), NotSent)


@pytest.mark.parametrize(
    "before",
    [
        failed("Socket timed out on send/recv operation"),
        "sbatch: error: slurm_receive_msg: Zero Bytes were transmitted or received\n",
        "sbatch: error: Slurm controller not responding, sleeping and retrying.\n",
    ],
)
def test_an_earlier_try_that_was_sent_leaves_it_unknown(before: str) -> None:
    for last in (failed(CONNECT_FAILURE), failed("Invalid partition name specified")):
        assert isinstance(classify_submit(1, "", before + last), Unknown)


def test_a_retry_that_was_answered_does_not_hide_the_refusal() -> None:
    before = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"
    assert isinstance(classify_submit(1, "", before + failed("Invalid qos specification")), Refused)


# Run on 22.05.8; the statuses are its own.
LOCAL = [
    (255, "sbatch: unrecognized option '--foo'\nTry \"sbatch --help\" for more information\n"),
    (255, "sbatch: option requires an argument -- 'q'\nTry \"sbatch --help\" for more information\n"),
    (255, "sbatch: option '--requeue' doesn't allow an argument\n"),
    (255, "sbatch: error: Invalid --time specification\n"),
    (255, "Invalid time specification (pos=0): foo\nsbatch: error: Invalid --begin specification\n"),
    (255, "sbatch: error: Invalid directive found in batch script: extra\n"),
    (1, 'sbatch: fatal: q.sh: line 2: Unmatched `"` in [--comment="x]\n'),
    (1, "sbatch: error: Unable to open file nosuch.sh\n"),
    (1, "sbatch: error: Batch script is empty!\n"),
    (1, "sbatch: error: Batch script contains DOS line breaks (\\r\\n)\nsbatch: error: instead of expected ...\n"),
    (1, "sbatch: error: This does not look like a batch script.  The first\nsbatch: error: line must start with #!\n"),
    (1, "sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.\n"),
    (1, "sbatch: error: Invalid generic resource (gres) specification\n"),
    (1, "sbatch: error: Failed to validate job spec. --gpus-per-task used without either --gpus or -n/--ntasks ...\n"),
    (1, "sbatch: fatal: Unable to process configuration file\n"),
    (1, "sbatch: error: you need a project code\nsbatch: error: cli_filter plugin terminated with error\n"),
]


@pytest.mark.parametrize(("status", "stderr"), LOCAL)
def test_what_sbatch_refuses_by_itself_is_a_refusal(status: int, stderr: str) -> None:
    answer = classify_submit(status, "", stderr)
    assert isinstance(answer, Refused)
    assert answer.code == status
    assert "\n" not in answer.text


@pytest.mark.parametrize(("status", "stderr"), LOCAL)
def test_a_killed_sbatch_leaves_it_unknown_whatever_it_said(status: int, stderr: str) -> None:
    for killed in (-9, -15, 124, 137, 143, 130):
        assert isinstance(classify_submit(killed, "", stderr), Unknown)


@pytest.mark.parametrize("killed", [-9, 124, 137, 143])
def test_a_killed_sbatch_leaves_it_unknown_even_after_a_refusal(killed: int) -> None:
    assert isinstance(classify_submit(killed, "", failed("Invalid partition name specified")), Unknown)
    assert isinstance(classify_submit(killed, "", failed(CONNECT_FAILURE)), Unknown)


@pytest.mark.parametrize(
    ("status", "stderr"),
    [
        (0, ""),
        (0, failed("Invalid partition name specified")),
        (1, failed(CONNECT_FAILURE) + failed("Invalid partition name specified")),
        (0, "sbatch: Job 23 to start at 2026-11-30T07:23:53 using 1 processors on nodes n2 in partition gpu\n"),
        (1, ""),
        (1, 'Traceback (most recent call last):\n  File "/usr/local/bin/sbatch", line 3\n'),
        (255, "Connection closed by remote host.\n"),
        (255, "kex_exchange_identification: Connection reset by peer\n"),
        (255, ""),
        (2, "sbatch: error: Invalid --time specification\n"),
        (1, "sbatch: error: something new\n"),
        (1, failed("a text of a Slurm that we do not know")),
        (1, failed("Unspecified error")),
        (1, failed("Resource temporarily unavailable")),
        (1, failed("")),
        (1, "sbatch: error: Script said: Batch job was fine\n"),
    ],
)
def test_what_is_not_recognised_is_unknown(status: int, stderr: str) -> None:
    assert isinstance(classify_submit(status, "", stderr), Unknown)


def test_the_sites_own_words_are_kept_on_one_line() -> None:
    stderr = (
        "sbatch: error: \x1b[31m*** Use -A PROJECT\x1b[0m\nsbatch: error: \nsbatch: error: see https://site/\tprojects\n"
        + failed("Unspecified error")
    )
    answer = classify_submit(1, "", stderr)
    assert isinstance(answer, Refused)
    assert "*** Use -A PROJECT" in answer.text
    assert "see https://site/ projects" in answer.text
    assert answer.text.isprintable()


def test_a_repeated_line_is_kept_once() -> None:
    stderr = "sbatch: error: no project\n" * 3 + failed("Unspecified error")
    assert classify_submit(1, "", stderr) == Refused(1, "no project; Batch job submission failed: Unspecified error")


def test_sbatch_that_could_not_be_started_is_a_refusal() -> None:
    stderr = "timeout: failed to run command 'sbatch': No such file or directory\n"
    assert isinstance(classify_submit(127, "", stderr), Refused)
    assert isinstance(classify_submit(127, "", "wrapper: line 3: realbatch: command not found\n"), Unknown)


def test_the_recorded_refusal_of_25_11() -> None:
    recorded = (RECORDED / "sbatch_bad_partition.txt").read_text()
    stderr, _, status = recorded.strip().rpartition("rc=")
    expected = "invalid partition specified: nope; Batch job submission failed: Invalid partition name specified"
    assert classify_submit(int(status), "", stderr) == Refused(1, expected)


def test_every_text_is_in_one_class_only() -> None:
    for refusal, words in itertools.product(REFUSALS, COMMUNICATION):
        assert words.lower() not in refusal.lower()


@pytest.mark.parametrize(
    ("status", "stdout", "stderr", "error"),
    [
        (1, "", "slurm_load_jobs error: Invalid job id specified\n", JobUnknown),
        (1, "", "Invalid job id specified for job 999999\n", JobUnknown),
        (0, "", "scancel: error: Kill job error on job id 9: Invalid job id specified\n", JobUnknown),
        (0, "", "scancel: error: Kill job error on job id 9: Job/step already completing or completed\n", JobUnknown),
        (1, "", f"slurm_load_partitions: {CONNECT_FAILURE}\n", SlurmUnreachable),
        (1, "", "slurm_load_jobs error: Socket timed out on send/recv operation\n", SlurmUnreachable),
        (1, "Slurmctld(primary) at vm is DOWN\n", "", SlurmUnreachable),
        (1, "", "squeue: fatal: Could not establish a configuration source\n", SlurmUnreachable),
        (-9, "", "", SlurmUnreachable),
        (1, "", "Slurm accounting storage is disabled\n", SlurmRefused),
        (60, "", "scancel: error: Kill job error on job id 4+1: Operation not permitted\n", SlurmRefused),
        (1, "", "", SlurmRefused),
    ],
)
def test_a_failed_command_says_what_the_caller_can_do(
    status: int, stdout: str, stderr: str, error: type[Exception]
) -> None:
    assert type(command_error(status, stdout, stderr)) is error


def test_the_recorded_unknown_jobs_of_25_11() -> None:
    for name in ("squeue_unknown_job.txt", "scontrol_requeue_unknown.txt"):
        assert isinstance(command_error(1, "", (RECORDED / name).read_text()), JobUnknown)


def test_the_recorded_configuration_of_25_11() -> None:
    config = parse_config((RECORDED / "scontrol_show_config.txt").read_text())
    assert config["SLURM_VERSION"] == "25.11.8-0pre1"
    assert config["AuthInfo"] == ""
    assert config["AccountingStoreFlags"] == "job_comment,job_env,job_script"
    assert config["SchedulerParameters"] == "bf_interval=2,sched_interval=2,nohold_on_prolog_fail"
    assert config["SlurmctldHost[0]"] == "vm(localhost)"


def test_a_reply_that_is_no_configuration_is_not_an_empty_one() -> None:
    for text in ("", "Slurmctld(primary) at vm is UP\n", "slurm_load_ctl_conf error: ...\n"):
        with pytest.raises(CannotTell):
            parse_config(text)


@pytest.mark.parametrize(("text", "tasks"), [("1_[0-9%2]", "0-9%2"), ("1_3", ""), ("1", ""), ("1_[1,3]", "1,3")])
def test_the_pending_rest_of_an_array(text: str, tasks: str) -> None:
    assert parse_pending_tasks(text) == tasks


RESERVATION = (
    "ReservationName=maint 1 StartTime=1796086181 EndTime=1796089781 Duration=01:00:00 Nodes=node[1-2] NodeCnt=2 "
    "CoreCnt=128 Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES TRES=cpu=128 Users=root "
    "Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null) MaxStartDelay=(null){}\n"
)


@pytest.mark.parametrize("comment", ["", " Comment=Nodes=node9 Flags=NONE", " Comment=two\nlines"])
def test_a_reservation_is_read_whatever_its_comment_says(comment: str) -> None:
    first, second = parse_reservations(RESERVATION.format(comment) + RESERVATION.format(""))
    assert (first.name, first.node_list) == ("maint 1", "node[1-2]")
    assert first.flags == {"MAINT", "IGNORE_JOBS", "SPEC_NODES"}
    assert first == second
    assert first.starts_at == datetime(2026, 12, 1, 0, 49, 41, tzinfo=UTC)


def test_no_reservations_are_none_and_what_cannot_be_read_is_an_error() -> None:
    assert parse_reservations("No reservations in the system\n") == ()
    assert parse_reservations(RESERVATION.format("").replace("node[1-2]", "(null)"))[0].node_list == ""
    for text in ("", "scontrol: a word", RESERVATION.format("").replace("1796086181", "2026-12-01T00:49:41")):
        with pytest.raises(CannotTell, match="cannot be read"):
            parse_reservations(text)
