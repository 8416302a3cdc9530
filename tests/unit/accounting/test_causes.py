"""Why records ended, by Slurm's word alone."""

from __future__ import annotations

from typing import Any

import pytest

from fleetctl.accounting.causes import Cause, slurm_cause, with_steps

ME, OTHER = 1000, 1001


@pytest.mark.parametrize(
    ("state", "known", "cause"),
    [
        ("COMPLETED", {"status": 0}, Cause.COMPLETED),
        ("COMPLETED", {"status": 0, "derived_status": 1}, Cause.MASKED_FAILURE),
        ("COMPLETED", {"status": 0, "derived_signal": 9}, Cause.MASKED_FAILURE),
        ("FAILED", {"status": 1}, Cause.PROGRAM),
        ("FAILED", {"status": 1, "failed_node": "n3"}, Cause.NODE),
        ("FAILED", {"status": 2, "failed_node": "n3"}, Cause.PROGRAM),
        ("FAILED", {"status": 0, "signal": 11}, Cause.CRASH),
        ("FAILED", {"status": 0, "signal": 125}, Cause.OUT_OF_MEMORY),
        ("FAILED", {"status": 0, "signal": 15}, Cause.TERMINATED),
        ("FAILED", {"status": 0, "signal": 9}, Cause.KILLED),
        ("FAILED", {"status": 9}, Cause.PROGRAM_OR_SIGNAL),  # 137 before 25.11
        ("FAILED", {"status": 11}, Cause.PROGRAM_OR_SIGNAL),
        ("FAILED", {"status": 137}, Cause.KILLED),  # from 25.11
        ("FAILED", {"status": 139}, Cause.CRASH),
        ("FAILED", {"status": 143}, Cause.TERMINATED),
        ("FAILED", {"status": 255}, Cause.PROGRAM),
        ("FAILED", {"status": 0}, Cause.UNKNOWN),  # a runaway job that was closed by hand
        ("FAILED", {"status": 0, "reason": "NodeDown"}, Cause.NODE),
        ("FAILED", {"status": 1, "reason": "JobLaunchFailure"}, Cause.LAUNCH),
        ("FAILED", {}, Cause.UNKNOWN),
        ("SPECIAL_EXIT", {"status": 3}, Cause.PROGRAM),
        ("NODE_FAIL", {"status": 1}, Cause.NODE),
        ("NODE_FAIL", {"status": 0, "reason": "launch failed requeued held"}, Cause.LAUNCH),
        ("BOOT_FAIL", {}, Cause.LAUNCH),
        ("OUT_OF_MEMORY", {"status": 0, "signal": 125}, Cause.OUT_OF_MEMORY),
        ("TIMEOUT", {"status": 0}, Cause.TIME_LIMIT),
        ("DEADLINE", {}, Cause.DEADLINE),
        ("PREEMPTED", {}, Cause.PREEMPTED),
        ("REQUEUED", {"status": 0}, Cause.REQUEUED),
        ("RESIZING", {}, Cause.RESIZED),
        ("REVOKED", {}, Cause.REVOKED),
        ("CANCELLED", {}, Cause.CANCELLED),
        ("CANCELLED", {"state_by": ME, "owner": ME}, Cause.CANCELLED_BY_USER),
        ("CANCELLED by 1000", {"state_by": ME, "owner": ME}, Cause.CANCELLED_BY_USER),
        ("CANCELLED", {"state_by": 0, "owner": 0}, Cause.CANCELLED_BY_USER),
        ("CANCELLED", {"state_by": 0, "owner": ME}, Cause.CANCELLED_BY_ADMIN),
        ("CANCELLED", {"state_by": 0}, Cause.CANCELLED_BY_ADMIN),
        ("CANCELLED", {"state_by": OTHER, "owner": ME}, Cause.CANCELLED_BY_ADMIN),
        ("CANCELLED", {"state_by": ME}, Cause.CANCELLED),
        ("CANCELLED", {"status": 0, "signal": 11}, Cause.CRASH),  # a step that nobody cancelled
        ("CANCELLED", {"status": 0, "signal": 125}, Cause.OUT_OF_MEMORY),
        ("CANCELLED", {"status": 0, "signal": 9}, Cause.CANCELLED),
        ("CANCELLED", {"state_by": ME, "owner": ME, "signal": 11}, Cause.CANCELLED_BY_USER),
        ("RUNNING", {}, Cause.GOING_ON),
        ("PENDING", {"reason": "launch failed requeued held"}, Cause.GOING_ON),
        ("COMPLETING", {"status": 1}, Cause.GOING_ON),
        ("SOMETHING_NEW", {"status": 1}, Cause.UNKNOWN),
        ("", {}, Cause.UNKNOWN),
        ("?", {}, Cause.UNKNOWN),
    ],
)
def test_slurms_word_and_exit_code_give_a_cause(state: str, known: dict[str, Any], cause: Cause) -> None:
    assert slurm_cause(state, **known) is cause


@pytest.mark.parametrize(
    ("cause", "exits", "refined"),
    [
        (Cause.PROGRAM, [("FAILED", 1, 0), ("CANCELLED", 0, 11)], Cause.CRASH),
        (Cause.PROGRAM_OR_SIGNAL, [("FAILED", 9, 0), ("FAILED", 0, 6)], Cause.CRASH),
        (Cause.PROGRAM, [("CANCELLED", 0, 11), ("OUT_OF_MEMORY", 0, 125)], Cause.OUT_OF_MEMORY),
        (Cause.PROGRAM, [("FAILED", 0, 125)], Cause.OUT_OF_MEMORY),
        (Cause.PROGRAM, [("FAILED", 2, 0), ("CANCELLED", 0, 15), ("WARPED", None, None)], Cause.PROGRAM),
        (Cause.PROGRAM, [], Cause.PROGRAM),
        (Cause.MASKED_FAILURE, [("FAILED", 0, 11)], Cause.MASKED_FAILURE),
        (Cause.TIME_LIMIT, [("CANCELLED", 0, 11)], Cause.TIME_LIMIT),
    ],
)
def test_steps_say_what_a_script_that_went_on_hides(
    cause: Cause, exits: list[tuple[str, int | None, int | None]], refined: Cause
) -> None:
    assert with_steps(cause, exits) is refined
