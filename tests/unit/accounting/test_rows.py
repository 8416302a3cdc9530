"""Rows of sacct as records and steps: every field, what is unknown, and what is no row of Slurm."""

from __future__ import annotations

import pytest

from fleetctl.accounting.rows import parse_record, parse_step, record_key
from fleetctl.slurm.sacct_fields import RECORD_FIELDS, STEP_FIELDS
from tests.contract.books import RECORD, record, record_row, step, step_row


def test_every_field_is_read() -> None:
    found = record(
        JobName="a\nb|\udcff",
        Suspended="1-00:00:05",
        DerivedExitCode="1:0",
        AdminComment="looked at",
        FailedNode="gpu02",
        Restarts="3",
    )
    assert (found.record, found.raw_id, found.job_id, found.array_index, found.het_offset) == (
        "4711",
        123,
        123,
        None,
        None,
    )
    assert (found.name, found.user, found.account, found.partition, found.qos) == (
        *("a\nb|\\xff", "alice", "physics", "dgx", "normal"),
    )
    assert (found.state, found.state_by, found.exit_status, found.exit_signal) == ("COMPLETED", None, 0, 0)
    assert (found.derived_status, found.derived_signal, found.cause) == (1, 0, "masked_failure")
    assert (found.submitted_s, found.eligible_s, found.started_s, found.ended_s) == (
        *(1796014982, 1796014983, 1796014984, 1796014994),
    )
    assert (found.suspended_s, found.limit_s) == (86_405, 86_400)
    assert (found.nodes, found.cpus, found.memory_mib, found.billing) == (2, 16, 131_072, 16)
    assert (found.gpus, found.gpu_models, found.node_list) == (8, "h100=8", "gpu[01-02]")
    assert (found.failed_node, found.restarts, found.reason) == ("gpu02", 3, "")
    assert (found.comment, found.admin_comment, found.pending_tasks) == ("fleetctl:run-1", "looked at", "")


def test_columns_that_an_older_slurm_has_not_are_unknown() -> None:
    found = record()
    assert (found.failed_node, found.restarts) == ("", None)


def test_the_order_of_the_columns_does_not_matter() -> None:
    columns = tuple(reversed(RECORD_FIELDS))
    assert parse_record(columns, tuple(reversed(record_row()))) == record()


@pytest.mark.parametrize(
    ("job", "parts"),
    [
        ("123", (123, None, None, "")),
        ("123_4", (123, 4, None, "")),
        ("123_[5-10%3]", (123, None, None, "5-10%3")),
        ("123_[1,3-5", (123, None, None, "1,3-5")),  # cut by SLURM_BITSTR_LEN
        ("123+1", (123, None, 1, "")),
        ("4227858433", (4_227_858_433, None, None, "")),  # of a federation
    ],
)
def test_a_job_id_says_which_element_or_component(job: str, parts: tuple[object, ...]) -> None:
    found = record(JobID=job, JobIDRaw="4227858433")
    assert (found.job_id, found.array_index, found.het_offset, found.pending_tasks) == parts
    assert found.raw_id == 4_227_858_433


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"DBIndex": "4711"}, "4711"),
        ({"DBIndex": "13512601122111488000"}, "13512601122111488000"),  # more than 63 bits
        ({"DBIndex": "4711", "SLUID": "s3QHM8NDAQS300"}, "4711"),
        ({"DBIndex": "", "SLUID": "s3QHM8NDAQS300"}, "4307280363081468928"),  # both printed by 25.11.8
        ({"DBIndex": "0", "SLUID": "s3QHM8NDBBAT00"}, "4307280363101972480"),
        ({"DBIndex": "", "SLUID": ""}, "123@1796014982"),
        ({"DBIndex": ""}, "123@1796014982"),
    ],
)
def test_a_record_is_known_by_its_dbindex_which_sluid_is_too(changes: dict[str, str], key: str) -> None:
    fields = {**RECORD, **changes}
    columns = (*RECORD_FIELDS[:-1], *(["SLUID"] if "SLUID" in changes else []), "JobIDRaw")
    row = tuple(fields[name] for name in columns)
    assert record_key(columns, row) == key
    assert parse_record(columns, row).record == key


@pytest.mark.parametrize(
    ("state", "word", "by"),
    [
        *(("RUNNING", "RUNNING", None), ("CANCELLED by 0", "CANCELLED", 0), ("CANCELLED by 1000", "CANCELLED", 1000)),
        *(("CANCELLED", "CANCELLED", None), ("?", "?", None), ("A_NEW_WORD", "A_NEW_WORD", None), ("", "", None)),
        *(("CANCELLED by root", "CANCELLED", None), ("RESV_DEL_HOLD", "RESV_DEL_HOLD", None)),
    ],
)
def test_a_state_is_one_word_known_to_us_or_not(state: str, word: str, by: int | None) -> None:
    found = record(State=state)
    assert (found.state, found.state_by) == (word, by)
    assert step(State=state).state == word


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"State": "RUNNING"}, ""),
        ({"State": "CANCELLED by 1000"}, "cancelled_by_user"),
        ({"State": "CANCELLED by 0"}, "cancelled_by_admin"),
        ({"State": "NODE_FAIL", "ExitCode": "1:0"}, "node"),
        ({"State": "OUT_OF_MEMORY", "ExitCode": "0:125"}, "out_of_memory"),
        ({"State": "FAILED", "ExitCode": "0:11"}, "crash"),
    ],
)
def test_a_record_carries_the_cause_that_slurm_alone_tells(changes: dict[str, str], cause: str) -> None:
    assert record(**changes).cause == cause


@pytest.mark.parametrize("text", ["Unknown", "None", "0", ""])
def test_a_time_that_is_none_is_unknown(text: str) -> None:
    found = record(Submit=text, Eligible=text, Start=text, End=text)
    assert (found.submitted_s, found.eligible_s, found.started_s, found.ended_s) == (None, None, None, None)


@pytest.mark.parametrize("start", ["None", "Unknown", "1796014994"])  # 22.05.8 prints the End of some as their Start
def test_a_job_that_never_had_a_node_did_not_start_and_held_nothing(start: str) -> None:
    found = record(Start=start, State="CANCELLED by 1000", AllocTRES="", NodeList="None assigned")
    assert (found.started_s, found.ended_s) == (None, 1796014994)
    assert (found.gpus, found.gpu_models, found.nodes, found.billing) == (0, "", None, None)


@pytest.mark.parametrize(
    ("changes", "started_s"),
    [
        ({"State": "RUNNING", "End": "Unknown"}, 1796014984),
        ({"State": "FAILED"}, 1796014984),
        ({"State": "FAILED", "End": "1796014984"}, None),  # launched nothing
        ({"State": "CANCELLED by 0"}, None),
        ({"State": "PENDING", "End": "Unknown"}, None),
    ],
    ids=str,
)
def test_without_nodes_and_tres_only_what_was_cancelled_or_took_no_time_did_not_start(
    changes: dict[str, str], started_s: int | None
) -> None:
    found = record(AllocTRES="", NodeList="None assigned", **changes)
    assert (found.started_s, found.gpus) == (started_s, 0 if started_s is None else None)


@pytest.mark.parametrize(
    ("changes", "started_s"),
    [
        ({}, 1796014989),
        ({"SLUID": "s3QHM8NDAQS300"}, 1796014989),  # before 26.05 nothing tells it from a clock that was set back
        ({"SLUID": "s3QHM8NDAQS300", "OriginalSLUID": ""}, 1796014989),
        ({"SLUID": "s3QHM8NDAQS300", "OriginalSLUID": "s0000000000000"}, 1796014989),
        ({"SLUID": "s3QHM8NDAQS300", "OriginalSLUID": "s3QHM8NDBBAT00"}, 1796014989),
        ({"SLUID": "s3QHM8NDAQS300", "OriginalSLUID": "s3QHM8NDAQS300"}, 1796014984),
    ],
    ids=str,
)
def test_the_rest_of_a_resized_job_begins_when_its_size_changed_and_no_other_record_does(
    changes: dict[str, str], started_s: int
) -> None:
    assert record(Submit="1796014989", **changes).started_s == started_s


def test_what_a_started_job_held_is_unknown_where_slurm_does_not_say() -> None:
    found = record(AllocTRES="")
    assert (found.gpus, found.gpu_models, found.nodes, found.cpus) == (None, "", None, None)
    assert record(AllocTRES="billing=1,cpu=1,mem=1G,node=1").gpus == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("00:00:00", 0), ("01:02:03", 3723), ("1-02:03:04", 93_784), ("45-01:00:00", 3_891_600), ("12:34.567", 754)),
        *(("1-02:03:04.567", 93_784), ("00:01", 1), ("INVALID", None), ("", None), ("100:00:00", 360_000)),
    ],
)
def test_a_suspended_time_is_read_and_a_word_is_none(text: str, seconds: int | None) -> None:
    assert record(Suspended=text).suspended_s == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1440", 86_400), ("0", 0), ("UNLIMITED", None), ("Partition_Limit", None), ("", None), ("INVALID", None)],
)
def test_a_limit_is_in_minutes_or_a_word(text: str, seconds: int | None) -> None:
    assert record(TimelimitRaw=text).limit_s == seconds


@pytest.mark.parametrize(
    "changes",
    [
        *({"JobID": text} for text in ("", "0x1", "123_", "123.batch", "12345678901", "4294967296", "train")),
        *({"JobIDRaw": text} for text in ("", "123.batch", "-1", "4294967296")),
        *({"DBIndex": text} for text in ("RUNNING", "-1", "123456789012345678901")),
        *({"ExitCode": text} for text in ("1", "1:", "x:0", "-1:0", "12345678901:0")),
        *({"Start": text} for text in ("2025-11-02T01:30:00", "1e9", "-5", "123456789012", "\u0661\u0662", "\uff11")),
        {"JobID": "\u0661\u0662"},
        *({"Suspended": text} for text in ("1:2:3:4", "-1", "99")),
        {"TimelimitRaw": "9" * 19},
        {"DBIndex": "", "Submit": "Unknown"},
        {"DBIndex": "", "SLUID": "s3QHM8NDAQS30"},
        {"DBIndex": "", "SLUID": "sZZZZZZZZZZZZZ"},
        {"Restarts": "many"},
    ],
    ids=str,
)
def test_a_row_that_slurm_does_not_write_is_named_in_one_line(changes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
        record(**changes)
    assert str(caught.value).isprintable()


def test_a_row_of_another_width_is_none() -> None:
    for row in (record_row()[:-1], (*record_row(), "")):
        with pytest.raises(ValueError, match="fields instead of"):
            parse_record(RECORD_FIELDS, row)
    with pytest.raises(ValueError, match="no column"):
        parse_record(("DBIndex", "JobIDRaw"), ("1", "1"))


@pytest.mark.parametrize("raw", ["123.batch", "123.extern", "123.interactive", "123.0", "123.0+1", "123.TBD"])
def test_a_step_is_read_under_its_record(raw: str) -> None:
    found = step(JobIDRaw=raw)
    assert (found.record, found.step, found.name) == ("4711", raw.partition(".")[2], "train")
    assert (found.started_s, found.ended_s, found.tasks, found.node_list) == (1796014984, 1796014994, 16, "gpu[01-02]")


def test_what_is_no_step_is_named() -> None:
    for changes in ({"JobIDRaw": "123"}, {"JobIDRaw": "123."}, {"JobIDRaw": "x.0"}, {"DBIndex": ""}, {"NTasks": "x"}):
        with pytest.raises(ValueError, match=r"\A.+\Z"):
            step(**changes)
    assert step(NTasks="").tasks is None
    columns = (*STEP_FIELDS[:-1], "SLUID", "JobIDRaw")
    assert parse_step(columns, (*step_row(DBIndex="")[:-1], "s3QHM8NDAQS300", "123.0")).record == "4307280363081468928"
