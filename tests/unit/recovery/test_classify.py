"""Why an attempt ended: Slurm's word before the record's, that before findings and losses, those before the log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from fleetctl.recovery.classify import classify, fingerprint, normal
from fleetctl.recovery.findings import class_of
from fleetctl.recovery.model import Advice, CauseClass, Evidence, Facts, Finding, RunSeen, Suspected
from fleetctl.recovery.patterns import Patterns
from fleetctl.recovery.read_patterns import load_patterns
from fleetctl.rundir.history import History
from fleetctl.rundir.model import WITHOUT_GPUS, Attempt, Ending, RunKind, RunRecord, SubmissionState
from fleetctl.rundir.pulse import Pulse, Silent
from fleetctl.slurm.model import JobId, JobRecord, JobState
from fleetctl.submission.decide_requeue import Past
from tests.watched_runs import a_job

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
RECORD = RunRecord("r-aaaaaa", "r", "me", NOW, RunKind.PLAIN, "d", "/s", "/w", 2, 1, "c", "0")
ATTEMPT = Attempt(
    "1.0",
    "7",
    "n1",
    NOW - timedelta(hours=1),
    ended_at=NOW,
    exit_code=1,
    ending=Ending.FAILED,
    failure="step train: Exited with exit code 1",
    nodes="n[1-2]",
)
PATTERNS = load_patterns()
CUDA_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
NCCL = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1173, OpType=ALLREDUCE) ran for 6 s"
SEGV = "srun: error: n2: task 1: Segmentation fault (core dumped)"
XID = "n2 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus."


def history(*attempts: Attempt, **changes: Any) -> History:
    made = History(RECORD, 1, SubmissionState.SUBMITTED, "7", "c", NOW, "", (), None, None, {}, attempts)
    return replace(made, **changes)


def seen(told: History | None = None, **changes: Any) -> RunSeen:
    facts = Facts(told or history(ATTEMPT), 3, may_restart=True, own_format=True, nodes=2, gpus=16)
    return replace(RunSeen("r-aaaaaa", "r-aaaaaa", None, "me", "/r", facts, None, ()), **changes)


def record(state: str, **changes: Any) -> JobRecord:
    made = JobRecord(
        id=JobId(7),
        raw_id=7,
        pending_tasks="",
        name="r",
        user="me",
        state=JobState.parse(state),
        exit_code=(0, 0),
        derived_exit_code=None,
        submit_time=NOW - timedelta(hours=2),
        start_time=NOW - timedelta(hours=1, minutes=1),
        end_time=NOW + timedelta(seconds=2),
        elapsed_s=3600,
        partition="main",
        account="",
        node_list="n[1-2]",
        comment="",
        db_index=None,
    )
    return replace(made, **changes)


def evidence(*lines: str | bytes, **changes: Any) -> Evidence:
    log = b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines)
    return replace(Evidence("1.0", (record("FAILED"),), log, log_is_whole=True), **changes)


def ranked(
    found: Evidence, attempt: Attempt = ATTEMPT, run: RunSeen | None = None, patterns: Patterns = PATTERNS
) -> tuple[Suspected, ...]:
    causes, name = classify(run or seen(), attempt, found, patterns)
    assert causes, "there is always one"
    assert name.startswith(f"{causes[0].cause.value}: ")
    return causes


def first(found: Evidence, attempt: Attempt = ATTEMPT, run: RunSeen | None = None) -> tuple[CauseClass, Advice, str]:
    cause = ranked(found, attempt, run)[0]
    return cause.cause, cause.advice, cause.node


def finding(check: str, care: str, node: str = "n2", minutes: float = -2) -> Finding:
    return Finding(node, NOW + timedelta(minutes=minutes), check, care, f"{check} is not well")


TOLD = replace(ATTEMPT, ending=Ending.TOLD, terminated=True, exit_code=143, failure=None)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("CANCELLED by 1000", (CauseClass.CANCELLED, Advice.NEVER, "")),
        ("CANCELLED by 0", (CauseClass.CANCELLED, Advice.NEVER, "")),
        ("PREEMPTED", (CauseClass.PREEMPTED, Advice.SLURM, "")),
        ("REQUEUED", (CauseClass.REQUEUED, Advice.SLURM, "")),
        ("TIMEOUT", (CauseClass.TIME_LIMIT, Advice.STOP, "")),
        ("OUT_OF_MEMORY", (CauseClass.HOST_MEMORY, Advice.STOP, "")),
        ("BOOT_FAIL", (CauseClass.PROLOG, Advice.ELSEWHERE, "")),
        ("NODE_FAIL", (CauseClass.NODE, Advice.ELSEWHERE, "")),
        ("FAILED", (CauseClass.UNKNOWN, Advice.SLURM, "")),
        ("COMPLETED", (CauseClass.UNKNOWN, Advice.SLURM, "")),
    ],
)
def test_slurms_word_comes_first(state: str, expected: tuple[CauseClass, Advice, str]) -> None:
    found = evidence(CUDA_OOM, "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01 ***")
    assert first(replace(found, records=(record(state),)), TOLD) == expected


@pytest.mark.parametrize("state", ["REQUEUED", "PREEMPTED", "TIMEOUT"])
def test_what_the_head_saw_before_explains_what_slurm_did_after(state: str) -> None:
    assert first(evidence(CUDA_OOM, records=(record(state),)))[0] is CauseClass.GPU_MEMORY


def test_a_cancel_is_never_explained_away() -> None:
    assert first(evidence(CUDA_OOM, records=(record("CANCELLED by 1000"),)))[1] is Advice.NEVER
    asked = seen(history(ATTEMPT, cancelled_at=NOW))
    assert first(evidence(CUDA_OOM, records=None), run=asked)[1] is Advice.NEVER


def test_a_job_that_its_own_head_gave_back_was_not_cancelled_by_anybody() -> None:
    run = seen(history(ATTEMPT, given_back=frozenset({None})))
    assert first(evidence(CUDA_OOM, records=(record("CANCELLED by 1000"),)), run=run)[0] is CauseClass.GPU_MEMORY


def test_a_word_about_a_later_attempt_says_nothing_of_this_one() -> None:
    later = replace(ATTEMPT, name="1.1", started_at=NOW + timedelta(seconds=1), ended_at=None, ending=None)
    node_fail = record("NODE_FAIL", end_time=NOW + timedelta(hours=3))
    run = seen(history(ATTEMPT, later))
    assert first(evidence(CUDA_OOM, records=(node_fail,)), run=run)[0] is CauseClass.GPU_MEMORY
    earlier = record("NODE_FAIL", start_time=NOW - timedelta(hours=9), end_time=NOW - timedelta(hours=2))
    assert first(evidence(CUDA_OOM, records=(earlier,)))[0] is CauseClass.GPU_MEMORY
    goes_on = record("RUNNING", end_time=None)
    assert first(evidence(CUDA_OOM, records=(goes_on,)))[0] is CauseClass.GPU_MEMORY


def test_lost_nodes_are_named_whatever_the_ranks_said_then() -> None:
    found = evidence(NCCL, records=(record("NODE_FAIL", end_time=NOW + timedelta(minutes=6)),), failed_nodes=("n2",))
    assert first(found) == (CauseClass.NODE, Advice.ELSEWHERE, "n2")
    assert first(evidence(NCCL, failed_nodes=("n2",))) == (CauseClass.NODE, Advice.ELSEWHERE, "n2")
    lost = replace(ATTEMPT, ending=Ending.NODE_LOST, failure=None)
    assert first(evidence(records=None), lost)[0] is CauseClass.NODE


def test_progress_since_its_start_lets_a_time_limit_and_a_leak_go_on() -> None:
    lived = replace(ATTEMPT, resume_step=100, progress_step=200)
    stuck = replace(ATTEMPT, resume_step=100, progress_step=100)
    told = {"ending": Ending.TOLD, "failure": None}
    timeout, oom = evidence(records=(record("TIMEOUT"),)), evidence(records=(record("OUT_OF_MEMORY"),))
    assert first(timeout, replace(lived, **told))[1] is Advice.SAME
    assert first(timeout, replace(stuck, **told))[1] is Advice.STOP
    assert [first(oom, one)[1] for one in (lived, stuck)] == [Advice.SAME, Advice.STOP]
    killed = evidence("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.")
    assert [first(killed, one)[1] for one in (lived, stuck)] == [Advice.SAME, Advice.STOP]


def test_the_earliest_line_that_follows_from_nothing_is_the_cause() -> None:
    causes = ranked(evidence(NCCL, "BrokenPipeError: [Errno 32] Broken pipe", CUDA_OOM, SEGV))
    assert [(one.cause, one.advice) for one in causes[:2]] == [
        (CauseClass.GPU_MEMORY, Advice.STOP),
        (CauseClass.PROGRAM, Advice.ELSEWHERE),
    ]
    assert {one.advice for one in causes[-2:]} == {Advice.EARLIER}
    assert causes[0].evidence == f"log: {CUDA_OOM}"


def test_a_collective_that_timed_out_alone_is_a_hang() -> None:
    cause = ranked(evidence(NCCL, "srun: error: n2: task 1: Aborted (core dumped)".replace(" (core dumped)", "")))[0]
    assert (cause.cause, cause.advice, cause.again) == (CauseClass.HANG, Advice.ELSEWHERE, Advice.STOP)
    assert cause.node == "n2", "srun names the task that ended first"


def test_a_crash_on_several_nodes_is_no_nodes_fault() -> None:
    assert first(evidence(SEGV))[2] == "n2"
    assert first(evidence(SEGV, SEGV.replace("n2: task 1", "n1: task 0"))) == (CauseClass.PROGRAM, Advice.ELSEWHERE, "")
    assert first(evidence(SEGV, "srun: error: n1: task 0: Terminated"))[2] == "n2"


def test_the_same_text_from_all_ranks_is_one_cause() -> None:
    causes = ranked(evidence(*(f"[rank{rank}]: {CUDA_OOM}" for rank in range(2000))))
    assert [one.cause for one in causes].count(CauseClass.GPU_MEMORY) == 1


def test_advice_and_lines_of_progress_are_no_causes() -> None:
    lines = ["For debugging consider passing CUDA_LAUNCH_BLOCKING=1", "step 7 loss: 2.0"]
    assert first(evidence(*lines))[0] is CauseClass.UNKNOWN


def test_what_the_training_went_on_after_is_no_cause() -> None:
    warned = ["OSError: [Errno 113] No route to host", *(f"step {step} loss: 2.0" for step in range(5))]
    assert first(evidence(*warned, CUDA_OOM))[0] is CauseClass.GPU_MEMORY
    assert first(evidence(*warned))[0] is CauseClass.UNKNOWN


def test_a_drain_needs_the_nodes_own_checks() -> None:
    assert first(evidence(XID)) == (CauseClass.GPU, Advice.ELSEWHERE, "n2")
    agreed = ranked(evidence(XID, findings=(finding("xid", "human"),)))
    assert [(one.cause, one.advice, one.node) for one in agreed[:2]] == [(CauseClass.GPU, Advice.DRAIN, "n2")] * 2
    assert agreed[0].evidence.startswith("check xid")


def test_an_xid_of_the_program_is_its_own_fault_and_others_beside_it_are_not() -> None:
    own = XID.replace(": 79,", ": 31,")
    assert first(evidence(own)) == (CauseClass.PROGRAM, Advice.ELSEWHERE, "n2")
    assert [one.cause for one in ranked(evidence(own, XID))[:2]] == [CauseClass.PROGRAM, CauseClass.GPU]


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({}, True),
        ({"care": "watch"}, False),
        ({"care": "DRAIN"}, True),
        ({"node": "n9"}, False),
        ({"minutes": -11}, False),
        ({"minutes": 4}, True),
        ({"minutes": 6}, False),
    ],
)
def test_a_finding_counts_on_a_node_of_the_attempt_near_its_end(change: dict[str, Any], counts: bool) -> None:
    found = evidence(CUDA_OOM, findings=(finding(**{"check": "gpu_lost", "care": "reboot", **change}),))
    assert (first(found)[0] is CauseClass.GPU) is counts


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        ("nvlink_errors", CauseClass.GPU),
        ("port_state", CauseClass.NETWORK),
        ("file_systems", CauseClass.HOST),
        ("edac", CauseClass.HOST),
        ("of a newer fleetctl", CauseClass.HOST),
    ],
)
def test_a_check_tells_where_the_fault_is(check: str, expected: CauseClass) -> None:
    assert class_of(check) is expected


MISSING = "ModuleNotFoundError: No module named 'flash_attn'"
ONE = "srun: error: n2: task 1: Exited with exit code 1"


def test_a_wrong_configuration_that_one_node_alone_has_is_that_nodes() -> None:
    one = evidence(MISSING, ONE, "srun: error: n1: task 0: Terminated")
    assert first(one) == (CauseClass.CONFIGURATION, Advice.ELSEWHERE, "n2")
    assert ranked(one)[0].again is Advice.STOP
    both = evidence(MISSING, MISSING, ONE, "srun: error: n1: task 0: Terminated")
    assert first(both)[1] is Advice.STOP, "more lines than that node has tasks"
    assert first(evidence(MISSING, ONE, ONE.replace("n2", "n1")))[1] is Advice.STOP
    assert first(evidence(MISSING, ONE), replace(ATTEMPT, nodes="n2"))[1] is Advice.STOP


def test_what_is_wrong_at_the_start_may_pass_after_an_hour() -> None:
    quick = replace(ATTEMPT, started_at=NOW - timedelta(minutes=2))
    run = evidence("KeyError: 'x'", records=None)
    assert first(run, quick)[:2] == (CauseClass.CONFIGURATION, Advice.STOP)
    assert first(run)[:2] == (CauseClass.PROGRAM, Advice.SAME)
    refused = evidence("ConnectionRefusedError: [Errno 111] Connection refused", CUDA_OOM, records=None)
    assert first(refused, quick)[0] is CauseClass.RENDEZVOUS
    assert first(refused)[0] is CauseClass.GPU_MEMORY


def test_a_bus_error_is_the_nodes_where_leavings_fill_its_shared_memory() -> None:
    bus = "RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error. Please try to raise your limit."
    assert first(evidence(bus))[1] is Advice.STOP
    assert first(evidence(bus, findings=(finding("shm", "watch"),)))[1:] == (Advice.ELSEWHERE, "n2")
    plain = replace(ATTEMPT, exit_code=135)
    assert first(evidence(), plain)[1] is Advice.STOP
    assert first(evidence(findings=(finding("shm", "watch"),)), plain)[1] is Advice.ELSEWHERE


def test_torchruns_first_observed_failure_names_the_node() -> None:
    lines = ["Root Cause (first observed failure):", "[0]:", "  time      : 2026-01-01_11:59:01", "  host      : n2"]
    hardware = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    assert first(evidence(hardware, *lines, "srun: error: n1: task 0: Exited with exit code 1"))[2] == "n2"


def test_an_exception_that_no_pattern_knows_is_the_programs() -> None:
    early = ["Traceback (most recent call last):", "  x", "mylib.Retry: it was tried again", *["x" * 99] * 1000]
    late = ["[rank1]: Traceback (most recent call last):", "[rank1]:   x", "[rank1]: mylib.Odd: 7 apples"]
    causes = ranked(evidence(*early, *late, *late, NCCL))
    assert causes[0].evidence == "log: mylib.Odd: 7 apples"
    assert (causes[0].cause, causes[0].advice, causes[0].again) == (CauseClass.PROGRAM, Advice.SAME, Advice.ELSEWHERE)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"exit_code": 137}, (CauseClass.UNKNOWN, Advice.SAME)),
        ({"exit_code": 139}, (CauseClass.PROGRAM, Advice.ELSEWHERE)),
        ({"exit_code": 132}, (CauseClass.PROGRAM, Advice.STOP)),
        ({"exit_code": 127}, (CauseClass.CONFIGURATION, Advice.STOP)),
        ({"exit_code": 1}, (CauseClass.UNKNOWN, Advice.SAME)),
        ({"exit_code": 0, "ending": Ending.STOPPED_EARLY}, (CauseClass.PROGRAM, Advice.SAME)),
        ({"exit_code": None, "ending": None, "ended_at": None}, (CauseClass.HEAD, Advice.SAME)),
        ({"exit_code": 0, "ending": Ending.SAVED}, (CauseClass.REQUEUED, Advice.SLURM)),
        ({"exit_code": 0, "ending": Ending.FENCED}, (CauseClass.REQUEUED, Advice.SLURM)),
    ],
)
def test_without_anything_else_the_end_itself_has_to_do(
    changes: dict[str, Any], expected: tuple[CauseClass, Advice]
) -> None:
    nothing = Evidence("1.0", None, None)
    assert first(nothing, replace(ATTEMPT, **changes))[:2] == expected


def test_a_failure_that_the_script_hid_is_read_from_its_steps() -> None:
    gone = replace(ATTEMPT, exit_code=None, ending=None)
    masked = evidence(records=(record("COMPLETED", exit_code=(0, 0), derived_exit_code=(0, 11)),))
    assert first(masked, gone)[:2] == (CauseClass.PROGRAM, Advice.ELSEWHERE)


PULSE = Pulse("1.0", "7", 0, "n1", NOW, 3, "step")
NANS = ((60, 2.0), (61, 2.1), (62, None), (63, None), (64, None))


def test_losses_that_are_no_numbers_ask_for_an_older_checkpoint() -> None:
    run = seen(pulse=replace(PULSE, losses=NANS))
    cause = ranked(evidence(CUDA_OOM), run=run)[0]
    assert (cause.cause, cause.advice, cause.again) == (CauseClass.NAN, Advice.OLDER, Advice.STOP)
    assert "62" in cause.evidence
    for other in (replace(PULSE, losses=NANS[:4]), replace(PULSE, attempt="0.9", losses=NANS)):
        assert first(evidence(CUDA_OOM), run=seen(pulse=other))[0] is CauseClass.GPU_MEMORY


def test_a_hang_is_the_silent_ranks_nodes() -> None:
    hung = replace(ATTEMPT, ending=Ending.HUNG, failure="hang in step")
    run = seen(pulse=replace(PULSE, hung=True, silent=(Silent(3, "n2", "step", 600.0, 300.0),)))
    causes, name = classify(run, hung, evidence(NCCL), PATTERNS)
    assert (causes[0].cause, causes[0].advice, causes[0].node) == (CauseClass.HANG, Advice.ELSEWHERE, "n2")
    assert name == "hang: hang in step"
    assert first(evidence(NCCL), hung) == (CauseClass.HANG, Advice.SAME, ""), "all ranks alike: no node is blamed"


OPEN = replace(ATTEMPT, ended_at=None, exit_code=None, ending=None, failure=None)


def of_job(state: str, reason: str, restarts: int) -> RunSeen:
    there = seen(history(OPEN), jobs=(a_job(None, "me", state, reason=reason),), restarts=restarts)
    assert there.facts is not None
    return replace(there, facts=replace(there.facts, past=Past(0, False, None)))


def test_a_launch_that_failed_before_the_attempt_began_is_a_prologs() -> None:
    before = record("LAUNCH_FAILED", end_time=OPEN.started_at - timedelta(seconds=30))
    assert first(evidence(records=(before,)), OPEN)[0] is CauseClass.PROLOG
    held = of_job("PENDING", "launch failed requeued held", restarts=1)
    assert classify(held, OPEN, evidence(), PATTERNS)[0][0].cause is CauseClass.PROLOG


def test_a_killed_head_is_no_prologs_failure_although_slurm_says_that_the_launch_failed() -> None:
    killed = of_job("FAILED", "JobLaunchFailure", restarts=0)
    for found in (evidence(records=(record("FAILED", exit_code=(0, 9)),)), evidence(records=())):
        (cause, *_), name = classify(killed, OPEN, found, PATTERNS)
        assert (cause.cause, cause.advice, cause.node) == (CauseClass.HEAD, Advice.SAME, "n1")
        assert "n1" not in name
    assert first(evidence(records=(record("LAUNCH_FAILED"),)), OPEN)[0] is CauseClass.HEAD


def test_what_a_head_saw_counts_before_a_launch_that_failed() -> None:
    assert first(evidence(records=(record("LAUNCH_FAILED"),)))[0] is CauseClass.UNKNOWN


def test_the_same_failure_has_the_same_name_on_other_nodes_ranks_and_days() -> None:
    one = evidence("[rank3]: 2026-01-01 11:59:58,123 n1 pid 4711 RuntimeError: CUDA error: out of memory at 0x7f12ab")
    other = evidence("[rank15]: 2026-02-03 01:02:03 n2 pid 99 RuntimeError: CUDA error: out of memory at 0xdeadbeef")
    names = {classify(seen(), ATTEMPT, found, PATTERNS)[1] for found in (one, other)}
    assert len(names) == 1
    assert "n1" not in names.pop()
    another = evidence("RuntimeError: CUDA error: an illegal memory access was encountered")
    assert classify(seen(), ATTEMPT, another, PATTERNS)[1] not in names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No module named 'flash_attn'", "No module named 'flash_attn'"),
        ("gpu-a failed", "NODE failed"),
        ("gpu-a.example.org failed", "NODE failed"),
        ("port 29500 at 10:00:01", "port # at #"),
        ("[rank12]: oops", "oops"),
        ("12: oops", "oops"),
        ("cannot open /data/users/me/run-7/x/config.yaml", "cannot open PATH/config.yaml"),
        ("cannot open '/tmp/tmpab12cd'", "cannot open 'PATH'"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id #"),
        ("object at 0x7F00", "object at #"),
        ("a   lot\tof  room", "a lot of room"),
    ],
)
def test_a_name_has_nothing_that_changes(text: str, expected: str) -> None:
    assert normal(text, frozenset({"gpu-a", "gpu-a.example.org"})) == expected


def test_a_name_is_short_and_has_no_run_id() -> None:
    cause = Suspected(CauseClass.PROGRAM, Advice.SAME, "log: r-aaaaaa went wrong " + "y" * 1000)
    name = fingerprint(cause, (), ("r-aaaaaa",))
    assert name.startswith("program: went wrong")
    assert len(name) == 200


def test_any_bytes_are_a_log() -> None:
    for log in (bytes(range(256)) * 50, b"\0" * 9999, b"\n" * 9999, b"\xff\xfe" * 99, b""):
        assert ranked(evidence(log, CUDA_OOM.encode() + b"\xff\x00"))[0].cause is CauseClass.GPU_MEMORY
        assert ranked(Evidence("1.0", None, log))[0].cause is CauseClass.UNKNOWN
    text = ranked(evidence(b"MemoryError: \x1b[31m\x07\xff bell"))[0].evidence
    assert text.isprintable()


def test_node_names_that_are_no_host_list_are_no_error() -> None:
    assert first(evidence(XID), replace(ATTEMPT, nodes="n[1-"))[0] is CauseClass.GPU


def test_a_start_without_gpus_is_slurms_matter_and_no_failure_of_the_run() -> None:
    log = "srun: error: Unable to create step for job 7: Invalid generic resource (gres) specification"
    lost = replace(ATTEMPT, failure=WITHOUT_GPUS)
    assert first(evidence(log), lost)[:2] == (CauseClass.REQUEUED, Advice.SLURM)
    without_record = evidence(log, records=(record("RUNNING", end_time=None),))
    assert first(without_record, lost)[:2] == (CauseClass.REQUEUED, Advice.SLURM)
