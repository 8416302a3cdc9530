"""What real Slurms printed, read: 22.05.8 (tests/recorded/record.py makes it) and 25.11.8."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.accounting import rows
from fleetctl.accounting.model import Record
from fleetctl.slurm.books import Rows
from fleetctl.slurm.framing import frame

RECORDED = Path(__file__).parents[2] / "recorded"
MARK = "\x1f22050000\x1f"  # of tests/recorded/record.py


def framed(name: str) -> Rows:
    return frame((RECORDED / "22.05" / f"{name}.txt").read_text(), MARK)


def old() -> tuple[Record, ...]:
    found = framed("sacct_D_X")
    assert not found.unframed
    return tuple(rows.parse_record(found.columns, row) for row in found.rows)


def new() -> tuple[Record, ...]:
    """Recorded with a mark that no name there has, and JobName last."""
    heads, *lines = (RECORDED / "25.11" / "sacct_D_X.txt").read_text().splitlines()
    columns = tuple(heads.split("\x1f"))
    return tuple(rows.parse_record(columns, tuple(line.split("\x1f"))) for line in lines)


OLD, NEW = old(), new()


def of(records: tuple[Record, ...], job_id: int) -> list[Record]:
    found = [record for record in records if record.job_id == job_id]
    return sorted(found, key=lambda record: (record.array_index or 0, record.het_offset or 0, record.submitted_s or 0))


@pytest.mark.parametrize(("records", "count"), [(OLD, 33), (NEW, 30)], ids=["22.05", "25.11"])
def test_every_recorded_row_is_one_record_of_its_own(records: tuple[Record, ...], count: int) -> None:
    assert len(records) == len({record.record for record in records}) == count


@pytest.mark.parametrize("records", [OLD, NEW], ids=["22.05", "25.11"])
def test_the_key_of_a_recorded_row_is_that_of_its_record(records: tuple[Record, ...]) -> None:
    if records is OLD:
        found = framed("sacct_D_X")
        keys = [rows.record_key(found.columns, row) for row in found.rows]
        assert keys == [record.record for record in OLD]
    assert all(record.record.isdecimal() for record in records)


def test_a_requeued_job_of_22_05_has_a_record_for_each_attempt() -> None:
    first, second = of(OLD, 6)
    assert (first.state, first.started_s, first.ended_s, first.gpus) == ("REQUEUED", 1796066883, 1796066884, 4)
    assert (second.state, second.started_s, second.ended_s, second.gpus) == ("COMPLETED", 1796066890, 1796066894, 4)
    assert (second.submitted_s, second.eligible_s) == (1796066884, 1796066890)


def test_a_preempted_job_of_22_05() -> None:
    first, second = of(OLD, 8)
    assert (first.state, second.state, first.gpus, first.nodes) == ("PREEMPTED", "COMPLETED", 16, 2)
    assert (first.cpus, first.memory_mib, first.billing, first.node_list) == (2, 2048, 2, "node[2-3]")


def test_a_lost_node_of_22_05_has_no_exit_code_that_would_tell_it() -> None:
    first, second = of(OLD, 9)
    assert (first.state, first.exit_status, first.exit_signal, first.failed_node) == ("NODE_FAIL", 0, 0, "")
    assert (second.state, second.state_by, second.gpus, second.node_list) == ("CANCELLED", 0, 0, "")
    assert second.restarts is None, "this sacct has no such column"


def test_a_resized_job_of_22_05_holds_each_second_once() -> None:
    """Slurm repeats the Start of the whole job in the record of what is left of it."""
    before, after = of(OLD, 10)
    assert (before.state, before.gpus, after.state, after.gpus) == ("RESIZING", 4, "COMPLETED", 2)
    assert before.ended_s == after.started_s == after.submitted_s == 1796066884
    assert after.ended_s == 1796066889


def test_a_job_that_a_clock_set_back_lets_start_before_its_submission_keeps_its_time() -> None:
    """It ended before its own Submit, too: that is no rest of a resized job."""
    found = framed("sacct_D_X")
    row = dict(zip(found.columns, next(row for row in found.rows if row[0] == "29"), strict=True))
    row |= {"Submit": "1796066984", "Eligible": "1796066984"}
    record = rows.parse_record(found.columns, tuple(row.values()))
    assert (record.started_s, record.ended_s) == (1796066883, 1796066889)


def test_the_time_of_a_suspension_is_beside_that_of_the_job() -> None:
    (record,) = of(OLD, 11)
    assert (record.started_s, record.ended_s, record.suspended_s) == (1796066883, 1796066887, 3)


def test_what_22_05_prints_of_a_high_exit_status_and_of_a_step_that_died() -> None:
    (killed,) = of(OLD, 14)
    assert (killed.state, killed.exit_status, killed.exit_signal) == ("FAILED", 9, 0)
    (masked,) = of(OLD, 15)
    assert (masked.state, masked.exit_status, masked.derived_signal) == ("COMPLETED", 0, 11)


def test_names_are_kept_whatever_is_in_them() -> None:
    names = {record.name for record in OLD}
    assert {"a|b\\x1fc", "two\nlines", "prüfung", "=cmd|' /C calc'!A0"} <= names


def test_a_hetjob_and_an_array_of_22_05_have_ids_that_people_type() -> None:
    assert [(one.raw_id, one.het_offset, one.gpus) for one in of(OLD, 25)] == [(25, 0, 1), (26, 1, 2)]
    elements = [(one.raw_id, one.array_index, one.state) for one in of(OLD, 7)]
    requeued = [(21, 1, "REQUEUED"), (21, 1, "COMPLETED")]
    assert elements == [(20, 0, "COMPLETED"), *requeued, (22, 2, "COMPLETED"), (7, 3, "COMPLETED")]


def test_steps_of_22_05_are_found_under_their_record() -> None:
    found = framed("sacct_steps")
    at = found.columns.index("JobIDRaw")
    steps = [rows.parse_step(found.columns, row) for row in found.rows if "." in row[at]]
    (masked,) = of(OLD, 15)
    ends = {step.step: (step.state, step.exit_signal) for step in steps if step.record == masked.record}
    assert ends == {"batch": ("COMPLETED", 0), "0": ("CANCELLED", 11)}
    assert {step.record for step in steps} <= {record.record for record in OLD}


def test_records_of_25_11_carry_the_number_of_their_sluid_and_typed_gpus() -> None:
    never, ended = of(NEW, 1)[0], of(NEW, 2)[0]
    assert (never.started_s, never.ended_s, never.gpus, never.node_list) == (None, 1796014963, 0, "")
    assert (ended.record, ended.gpus, ended.gpu_models, ended.state_by) == ("4307280363101972480", 16, "h100=16", 0)
    columns, sluid = ("JobIDRaw", "Submit", "SLUID"), ("2", "1796014976", "s3QHM8NDBBAT00")
    assert rows.record_key(columns, sluid) == ended.record


def test_an_array_of_25_11_that_was_cancelled_keeps_what_never_started() -> None:
    (rest,) = [record for record in of(NEW, 5) if record.pending_tasks]
    assert (rest.raw_id, rest.array_index, rest.pending_tasks, rest.started_s) == (5, None, "16-499", None)


def test_25_11_prints_the_whole_exit_status_and_counts_restarts() -> None:
    assert [(one.exit_status, one.exit_signal) for one in of(NEW, 26)] == [(137, 0)]
    assert [(one.state, one.restarts) for one in of(NEW, 3)] == [("REQUEUED", 0), ("CANCELLED", 1)]
    assert {one.ended_s for one in of(NEW, 22)} == {None}
