"""Rows of squeue, sacct and sinfo: framed by a mark, never dropped."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleetctl.errors import CannotTell
from fleetctl.slurm import rows
from fleetctl.slurm.model import JobId, JobState

RECORDED = Path(__file__).parents[1] / "recorded" / "25.11"
MARK = "\x1fc0ffee00\x1f"
JOB = (
    *("7", "train", "alice", "RUNNING", "None", "fleetctl:r-1", "gpu", "acc", "n[1-2]", "2", "1796021153"),
    *(
        "1796021154",
        "1796107554",
        "1-00:00:00",
        "/home/a/x.sh",
        "/home/a",
        "(null)",
        "n3",
        "100",
        "gres:gpu:8",
        "n1",
        "",
        "7",
    ),
)


def job_row(**changes: str) -> str:
    names = [
        "id",
        "name",
        "user",
        "state",
        "reason",
        "comment",
        "partition",
        "account",
        "nodes",
        "count",
        "submit",
        "start",
        "end",
        "limit",
    ]
    names += ["command", "workdir", "dependency", "excluded", "priority", "gres", "host", "wckey", "raw"]
    return MARK.join({**dict(zip(names, JOB, strict=True)), **changes}.values()) + "\n"


def test_a_row_becomes_a_job() -> None:
    (job,) = rows.parse_squeue(job_row(), MARK)
    assert job.id == JobId(7)
    assert job.state == JobState.parse("RUNNING")
    assert (job.reason, job.dependency, job.excluded_nodes) == ("", "", "n3")
    assert job.submit_time == datetime(2026, 11, 30, 6, 45, 53, tzinfo=UTC)
    assert job.end_time == datetime(2026, 12, 1, 6, 45, 54, tzinfo=UTC)
    assert (job.time_limit_s, job.node_count, job.priority, job.raw_id) == (86_400, 2, 100, 7)
    assert (job.batch_host, job.restarts) == ("n1", None)


def test_restarts_are_those_of_the_row_that_they_are_joined_to() -> None:
    asked = rows.parse_restarts(MARK.join(("7", "2", "1796021153", "7")) + "\n", MARK)
    (job,) = rows.parse_squeue(job_row(), MARK)
    (moved,) = rows.parse_squeue(job_row(submit="1796021154"), MARK)  # a requeue rewrites the submit time
    assert rows.with_restarts(job, asked).restarts == 2
    assert rows.with_restarts(moved, asked).restarts is None


def test_a_job_that_waits_has_no_batch_host() -> None:
    assert rows.parse_squeue(job_row(host="n/a"), MARK)[0].batch_host == ""


@pytest.mark.parametrize("comment", ["a\nb", "a\x1fb", "\n\n", "x\n7" + "\x1f" * 20 + "\n", "(null) ", "None", "\t|^;"])
def test_a_comment_may_hold_newlines_and_separators(comment: str) -> None:
    found = rows.parse_squeue(job_row(comment=comment, name=comment) + job_row(id="8", raw="8"), MARK)
    assert [str(job.id) for job in found] == ["7", "8"]
    assert found[0].comment == comment
    assert found[0].name == comment


@pytest.mark.parametrize("word", ["N/A", "Unknown", "None", "NONE", "0", "", "INVALID"])
def test_a_time_that_slurm_does_not_have(word: str) -> None:
    (job,) = rows.parse_squeue(job_row(end=word, limit="UNLIMITED"), MARK)  # NONE: squeue, without a time limit
    assert (job.end_time, job.time_limit_s) == (None, None)


def test_no_comment_is_an_empty_one() -> None:
    assert rows.parse_squeue(job_row(comment="(null)"), MARK)[0].comment == ""


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("1:30", 90),
        ("10:00", 600),
        ("1:00:00", 3600),
        ("2-03:04:05", 183845),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("infinite", None),
        ("n/a", None),
        ("Partition_Limit", None),
        ("", None),
        ("-1:00", None),
        ("5", None),
    ],
)
def test_a_time_limit(limit: str, seconds: int | None) -> None:
    assert rows.parse_time_limit(limit) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "one line\n",
        job_row()[:-40],
        job_row() + "squeue: a word after the rows\n",
        job_row().rstrip("\n") + job_row(),
        job_row() + MARK,
        job_row(id="7.batch"),
        job_row(raw="x"),
        job_row(submit="2026-11-30T06:45:53"),  # an old squeue that does not know SLURM_TIME_FORMAT=%s
        job_row(submit="99999999999999999999"),
    ],
)
def test_what_cannot_be_framed_is_an_error_and_never_fewer_rows(text: str) -> None:
    with pytest.raises(CannotTell, match="cannot be read"):
        rows.parse_squeue(text, MARK)


def test_an_empty_reply_has_no_rows() -> None:
    assert rows.parse_squeue("", MARK) == ()
    assert rows.parse_squeue("\n", MARK) == ()


@pytest.mark.parametrize(
    ("wanted", "rows_of"),
    [
        ("23", ["23_[2-9%2]", "23_0", "23_1"]),
        ("23_0", ["23_0"]),
        ("23_5", ["23_[2-9%2]"]),
        ("30", ["23_1"]),
        ("24", ["24+0", "24+1"]),
        ("24+1", ["24+1"]),
        ("25", ["24+1"]),
        ("24+7", []),
        ("23_10", []),
        ("9", []),
    ],
)
def test_which_rows_an_id_means(wanted: str, rows_of: list[str]) -> None:
    raw = {"23_[2-9%2]": "23", "23_0": "29", "23_1": "30", "24+0": "24", "24+1": "25"}
    found = rows.parse_squeue("".join(job_row(id=shown, raw=number) for shown, number in raw.items()), MARK)
    matching = [job for job in found if job.is_part_of(JobId.parse(wanted))]
    assert [f"{job.id}_[{job.pending_tasks}]" if job.pending_tasks else str(job.id) for job in matching] == rows_of


def test_the_recorded_rows_of_25_11_are_framed() -> None:
    text = (RECORDED / "squeue.txt").read_text()
    found = list(rows.split_rows(text, "\x1f", 11))
    assert [row[0] for row in found] == ["23_[2-9%2]", "27", "23_0", "24+1", "23_1", "22", "24+0"]
    assert found[1][6] == "job requeued in held state"
    assert found[-1][10] == "fleetctl:run-c"


def test_the_recorded_accounting_of_25_11() -> None:
    text = (RECORDED / "sacct_D_X.txt").read_text()
    heads, *recorded = rows.split_rows(text, "\x1f", 24)
    assert len(recorded) == len(text.splitlines()) - 1
    table = [dict(zip(heads, row, strict=True)) for row in recorded]
    lines = [MARK.join(row[name] for name in rows.SACCT_FIELDS) + "\n" for row in table]
    records = rows.parse_sacct("".join(lines), MARK)
    assert len(records) == len(recorded)
    third = records[2]
    assert (third.id, third.state, third.comment) == (JobId(3), JobState.parse("REQUEUED"), "fleetctl:run-1")
    assert records[0].state.base == "CANCELLED"
    assert records[0].start_time is None
    assert records[1].node_list == "gpu[01-02]"
    assert records[1].elapsed_s == 3
    assert {record.exit_code for record in records} >= {(0, 0)}
    assert any(record.id.het_offset == 1 for record in records)
    assert any(record.id.array_index == 0 for record in records)


def node_row(*fields: str) -> str:
    return MARK.join(fields) + "\n"


def test_nodes_have_one_row_per_partition() -> None:
    shared = ("idle+drain", "gpu:h100:8(S:0-1)", "gpu:h100:3(IDX:0-1,4)", "16", "2000", "a\nb", "root", "1796021201")
    text = node_row("n1", *shared, "gpu", "n1") + node_row("n1", *shared, "debug", "n1")
    text += node_row("n2", "down*", "(null)", "", "8", "1K", "none", "Unknown", "Unknown", "gpu", "n2")
    first, second = rows.parse_sinfo_nodes(text, MARK)
    assert (first.name, first.base_state, first.flags, first.partitions) == (
        "n1",
        "IDLE",
        frozenset({"DRAIN"}),
        ("gpu", "debug"),
    )
    assert (first.gpus, first.gpus_used, first.reason, first.reason_user) == (8, 3, "a\nb", "root")
    assert first.reason_time == datetime(2026, 11, 30, 6, 46, 41, tzinfo=UTC)
    assert (second.base_state, second.gpus, second.reason, second.reason_time) == ("DOWN", 0, "", None)
    assert second.memory_mib == 1024


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:h100:8", 8),
        ("gpu:8", 8),
        ("gpu:h100:4(S:0),gpu:a100:2(S:1),nvme:9", 6),
        ("gpu:h100:0(IDX:N/A)", 0),
        ("(null)", 0),
        ("", 0),
        ("gpu", 1),
        ("gpu:tesla", 0),
        ("shard:gpu:4", 0),
        ("gpu:h100:3(IDX:0,2-3)", 3),
    ],
)
def test_gpus_are_counted(gres: str, gpus: int) -> None:
    assert rows.count_gpus(gres) == gpus


def test_partitions_with_several_rows_are_one() -> None:
    text = node_row("gpu", "gpu*", "up", "7-00:00:00", "1:00:00", "2")
    text += node_row("gpu", "gpu*", "up", "7-00:00:00", "1:00:00", "1")
    text += node_row("down", "down", "down", "infinite", "n/a", "1")
    gpu, down = rows.parse_sinfo_partitions(text, MARK)
    assert (gpu.name, gpu.is_default, gpu.state, gpu.max_time_s, gpu.default_time_s) == (
        "gpu",
        True,
        "UP",
        604_800,
        3600,
    )
    assert gpu.node_count == 3
    assert (down.is_default, down.state, down.max_time_s, down.default_time_s) == (False, "DOWN", None, None)
