"""Rows of sacct into the database: once, wholly, and without ghosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy import Engine, Table, select

from fleetctl.accounting import bulk, tables
from fleetctl.accounting.database import open_database
from fleetctl.accounting.write_records import Counts, Written, write_records
from fleetctl.slurm.books import Rows
from tests.accounting_books import COLUMNS, NOW_S, job, line
from tests.accounting_dump import dump

SUBMIT = NOW_S - 7200


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = open_database("sqlite://", create=True)
    with engine.begin() as connection:
        bulk.insert(connection, tables.clusters, ("id", "name"), [(7, "stub")])
    yield engine
    engine.dispose()


def _write(
    engine: Engine,
    *rows: Mapping[str, str],
    unframed: Sequence[str] = (),
    now_s: int = NOW_S,
    gpus_known: bool = True,
) -> Written:
    with engine.begin() as connection:
        found = Rows(COLUMNS, tuple(line(row) for row in rows), tuple(unframed))
        return write_records(connection, 7, found, now_s, "stub", gpus_known=gpus_known)


def _rows(engine: Engine, table: Table) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(select(table)).mappings()]


def _record(engine: Engine) -> dict[str, Any]:
    (found,) = _rows(engine, tables.job_records)
    return found


def _nodes(engine: Engine) -> list[tuple[str, str]]:
    record, node, of = tables.job_records.c, tables.nodes.c, tables.record_nodes.c
    query = select(record.record, node.name).where(of.record_id == record.id, of.node_id == node.id)
    with engine.connect() as connection:
        return sorted((record, name) for record, name in connection.execute(query))


def test_a_new_record_is_written_with_its_nodes_and_its_cause(engine: Engine) -> None:
    row = job(5, SUBMIT, NOW_S, State="FAILED", ExitCode="0:125")
    written = _write(engine, row)
    assert written == Written(Counts(new=1), 0, frozenset({row["DBIndex"]}))
    record = _record(engine)
    assert (record["record"], record["cluster_id"], record["raw_id"]) == (row["DBIndex"], 7, 5)
    assert (record["gpus"], record["gpu_models"], record["cause"]) == (8, "h100=8", "out_of_memory")
    assert _nodes(engine) == [(row["DBIndex"], "n1"), (row["DBIndex"], "n2")]


@pytest.mark.parametrize(
    ("state", "cause"), [("CANCELLED by 1000", "cancelled_by_user"), ("CANCELLED by 0", "cancelled_by_admin")]
)
def test_who_cancelled_a_record_is_told_by_the_uid_of_its_owner(engine: Engine, state: str, cause: str) -> None:
    _write(engine, job(5, SUBMIT, NOW_S, State=state, UID="1000"))
    assert _record(engine)["cause"] == cause


@pytest.mark.parametrize(
    ("changes", "gpus", "models"),
    [
        ({"AllocTRES": "billing=8,cpu=16,mem=1024M,node=2"}, None, ""),  # held something, and nobody counts GPUs
        ({"AllocTRES": "cpu=16,gres/gpu:h100=8,gres/gpu=8,node=2"}, 8, "h100=8"),
        ({"AllocTRES": "", "NodeList": "None assigned", "State": "CANCELLED by 0"}, 0, ""),
    ],
    ids=str,
)
def test_where_slurm_does_not_track_gpus_a_record_without_any_may_have_held_some(
    engine: Engine, changes: dict[str, str], gpus: int | None, models: str
) -> None:
    _write(engine, job(5, SUBMIT, NOW_S, **changes), gpus_known=False)
    assert (_record(engine)["gpus"], _record(engine)["gpu_models"]) == (gpus, models)


def test_where_slurm_tracks_gpus_a_record_without_any_held_none(engine: Engine) -> None:
    _write(engine, job(5, SUBMIT, NOW_S, AllocTRES="billing=8,cpu=16,mem=1024M,node=2"))
    assert _record(engine)["gpus"] == 0


def test_a_dbindex_that_slurm_gave_to_another_job_does_not_overwrite_the_first(engine: Engine) -> None:
    """A slurmdbd that was set up anew counts from 1 again."""
    first, second = job(5, SUBMIT, NOW_S, DBIndex="1"), job(900, SUBMIT + 5, None, DBIndex="1", User="bea")
    _write(engine, first)
    assert _write(engine, second) == Written(Counts(quarantined=1), 0, frozenset())
    assert (_record(engine)["user"], _record(engine)["raw_id"]) == ("ann", 5)
    (kept,) = _rows(engine, tables.quarantine)
    assert (kept["why"], kept["key"]) == ("DBIndex 1 belongs to another job here", "1")
    closed = {**second, "State": "COMPLETED", "End": str(NOW_S)}
    assert _write(engine, closed).counts == Counts(quarantined=1)
    assert len(_rows(engine, tables.quarantine)) == 1, "the newest row of a record is enough"
    assert _write(engine, closed).counts == Counts()


@pytest.mark.parametrize(
    "changes",
    [
        {"JobIDRaw": "20", "JobID": "5_0"},  # seen on 22.05.8: the first task of an array takes over its DBIndex
        {"Submit": str(SUBMIT + 9)},
        {"Submit": "Unknown"},
        {"Submit": "Unknown", "JobIDRaw": "6"},
    ],
    ids=str,
)
def test_a_record_of_which_only_its_number_or_only_its_submission_changes_is_the_same(
    engine: Engine, changes: dict[str, str]
) -> None:
    row = job(5, SUBMIT, NOW_S, DBIndex="1")
    _write(engine, row)
    assert _write(engine, {**row, **changes}).counts == Counts(changed=1)
    assert _write(engine, {**row, **changes, "JobIDRaw": "8"}).counts == Counts(changed=1)


def test_the_same_rows_again_write_nothing(engine: Engine) -> None:
    rows = [job(number, SUBMIT, NOW_S if number % 2 else None) for number in range(1, 40)]
    _write(engine, *rows)
    before = dump(engine)
    with engine.begin() as connection:
        changes = connection.connection.driver_connection.total_changes  # type: ignore[union-attr]
        written = write_records(
            connection, 7, Rows(COLUMNS, tuple(map(line, rows))), NOW_S + 60, "stub", gpus_known=True
        )
        assert connection.connection.driver_connection.total_changes == changes  # type: ignore[union-attr]
    assert written.counts == Counts(unchanged=39)
    assert dump(engine) == before


def test_a_closed_record_that_was_edited_is_written_whole(engine: Engine) -> None:
    _write(engine, job(5, SUBMIT, NOW_S))
    row = job(5, SUBMIT, NOW_S, Comment="bad run", DerivedExitCode="7:0", User="bea", NodeList="n[2-3]", Account="x")
    assert _write(engine, row).counts == Counts(changed=1)
    record = _record(engine)
    assert (record["comment"], record["derived_status"], record["cause"]) == ("bad run", 7, "masked_failure")
    assert (record["user"], record["account"]) == ("bea", "x")
    assert [name for _, name in _nodes(engine)] == ["n2", "n3"]


def test_an_array_record_that_becomes_its_last_task_leaves_no_ghost(engine: Engine) -> None:
    rest = job(70, SUBMIT, None, JobID="70_[1-10%3]", State="PENDING", Start="Unknown", NodeList="None assigned")
    _write(engine, rest)
    assert (_record(engine)["pending_tasks"], _record(engine)["array_index"]) == ("1-10%3", None)
    task = job(70, SUBMIT, NOW_S, JobID="70_10")
    _write(engine, job(71, SUBMIT, NOW_S, JobID="70_9"), task)
    found = {row["record"]: row for row in _rows(engine, tables.job_records)}
    assert len(found) == 2
    assert found[task["DBIndex"]]["array_index"] == 10
    assert found[task["DBIndex"]]["pending_tasks"] == ""


def test_a_job_id_that_was_given_out_again_is_another_record(engine: Engine) -> None:
    old, new = job(5, SUBMIT - 90_001, SUBMIT - 80_000), job(5, SUBMIT, NOW_S, User="bea")
    assert _write(engine, old, new).counts == Counts(new=2)
    assert {row["user"] for row in _rows(engine, tables.job_records)} == {"ann", "bea"}


@pytest.mark.parametrize("index", [str(2**63), "13512601122111488000", str(2**64 - 1)])
def test_an_identity_beyond_63_bits_is_kept_and_found_again(engine: Engine, index: str) -> None:
    row = job(4_227_858_433, SUBMIT, None, DBIndex=index)
    _write(engine, row)
    assert _write(engine, {**row, "State": "COMPLETED", "End": str(NOW_S)}).counts == Counts(changed=1)
    assert (_record(engine)["record"], _record(engine)["raw_id"]) == (index, 4_227_858_433)


def test_a_row_that_cannot_be_read_is_put_aside_once_and_the_others_are_written(engine: Engine) -> None:
    poison = job(6, SUBMIT, NOW_S, Start="2026-11-30T12:00:00", JobName="b\udcffd")
    assert _write(engine, job(5, SUBMIT, NOW_S), poison, job(7, SUBMIT, NOW_S)).counts == Counts(new=2, quarantined=1)
    assert _write(engine, job(5, SUBMIT, NOW_S), poison, now_s=NOW_S + 60).counts == Counts(unchanged=1)
    (kept,) = _rows(engine, tables.quarantine)
    assert (kept["cluster"], kept["source"], kept["at_s"]) == ("stub", "sacct", NOW_S)
    columns, _, row = kept["raw"].partition(b"\n")
    assert columns.decode().split("\x1f") == list(COLUMNS)
    assert row.split(b"\x1f")[COLUMNS.index("JobName")] == b"b\xffd"
    assert kept["key"] == poison["DBIndex"]
    assert "\n" not in kept["why"]


def test_what_was_known_stays_while_its_row_cannot_be_read(engine: Engine) -> None:
    _write(engine, job(5, SUBMIT, None))
    _write(engine, job(5, SUBMIT, NOW_S, ExitCode="none:0"))
    assert _record(engine)["state"] == "RUNNING"


@pytest.mark.parametrize("reader", ["parse_record", "record_key"])
def test_what_can_be_read_after_all_leaves_the_quarantine(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    def refuse(columns: object, row: object) -> None:
        raise ValueError("an older fleetctl")

    with monkeypatch.context() as older:
        older.setattr(f"fleetctl.accounting.write_records.{reader}", refuse)
        assert _write(engine, job(5, SUBMIT, NOW_S)).counts.quarantined == 1
    assert _write(engine, job(5, SUBMIT, NOW_S)).counts == Counts(new=1)
    assert _rows(engine, tables.quarantine) == []


@pytest.mark.parametrize("is_known", [True, False])
def test_a_row_that_cannot_be_read_is_forgotten_once_another_of_its_record_was(engine: Engine, is_known: bool) -> None:
    good, other = job(5, SUBMIT, NOW_S), job(6, SUBMIT, NOW_S, ExitCode="none:0")
    if is_known:
        _write(engine, good)
    _write(engine, {**good, "ExitCode": "none:0"}, other)
    assert len(_rows(engine, tables.quarantine)) == 2
    assert _write(engine, good, other).counts == Counts(unchanged=int(is_known), new=int(not is_known))
    assert [row["key"] for row in _rows(engine, tables.quarantine)] == [other["DBIndex"]]


def test_a_damaged_piece_is_forgotten_once_the_record_that_it_begins_with_was_read(engine: Engine) -> None:
    good = job(5, SUBMIT, NOW_S)
    piece = f"{good['DBIndex']}\x1f0123abcd\x1f5\x1f0123abcd\x1fann"
    _write(engine, unframed=[piece])
    assert _write(engine, good, unframed=[piece]).unframed == 0
    assert len(_rows(engine, tables.quarantine)) == 1, "it still comes"
    _write(engine, good)
    assert _rows(engine, tables.quarantine) == []


def test_a_piece_that_is_no_row_is_put_aside_once_whatever_the_mark_of_the_call(engine: Engine) -> None:
    assert _write(engine, unframed=["a\x1f0123abcd\x1fb"]) == Written(Counts(quarantined=1), 1, frozenset())
    assert _write(engine, unframed=["a\x1fffff0000\x1fb"]) == Written(Counts(), 0, frozenset())
    assert _rows(engine, tables.quarantine)[0]["raw"] == b"a\x1fb"


@pytest.mark.parametrize("text", ["None assigned", "", "n[1-99999999]", "n[3-"])
def test_a_node_list_that_is_none_has_no_nodes(engine: Engine, text: str) -> None:
    assert _write(engine, job(5, SUBMIT, NOW_S, NodeList=text)).counts == Counts(new=1)
    assert _nodes(engine) == []


def test_of_two_rows_of_one_record_the_last_counts(engine: Engine) -> None:
    assert _write(engine, job(5, SUBMIT, None), job(5, SUBMIT, NOW_S)).counts == Counts(new=1)
    assert _record(engine)["state"] == "COMPLETED"


def test_batches_take_their_rows_from_each_other(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetctl.accounting.write_records._BATCH", 3)
    rows = [job(number % 5, SUBMIT, NOW_S, Comment=str(number)) for number in range(1, 12)]
    assert _write(engine, *rows).counts.new == 5
    assert len(_rows(engine, tables.job_records)) == 5
    assert len(_nodes(engine)) == 10


def test_steps_are_wanted_of_what_ran_and_did_not_end_well(engine: Engine) -> None:
    rows = {
        "open": job(1, SUBMIT, None),
        "well": job(2, SUBMIT, NOW_S),
        "failed": job(3, SUBMIT, NOW_S, State="FAILED", ExitCode="1:0"),
        "masked": job(4, SUBMIT, NOW_S, DerivedExitCode="0:9"),
        "never ran": job(5, SUBMIT, NOW_S, State="CANCELLED by 0", Start="None"),
    }
    _write(engine, *rows.values())
    steps_s = {row["record"]: row["steps_s"] for row in _rows(engine, tables.job_records)}
    found = {name: steps_s[row["DBIndex"]] for name, row in rows.items()}
    assert found == {"open": None, "well": 0, "failed": None, "masked": None, "never ran": 0}


def test_two_clusters_have_records_of_the_same_identity(engine: Engine) -> None:
    row = Rows(COLUMNS, (line(job(5, SUBMIT, NOW_S)),))
    with engine.begin() as connection:
        bulk.insert(connection, tables.clusters, ("id", "name"), [(8, "other")])
        for key, name in ((7, "stub"), (8, "other")):
            assert write_records(connection, key, row, NOW_S, name, gpus_known=True).counts == Counts(new=1)
    assert len(_rows(engine, tables.nodes)) == 4
