"""Replies that no healthy sacct gives, from a stub on PATH: an error each, and never fewer rows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import insert, select

from fleetctl.accounting.database import database_url, open_database
from fleetctl.accounting.rows import parse_record, record_key
from fleetctl.accounting.tables import clusters, job_records
from fleetctl.clock import SystemClock
from fleetctl.errors import CannotTell, FleetctlError, SlurmRefused, SlurmUnreachable
from fleetctl.slurm.commands import Limits
from fleetctl.slurm.connect import connect_books
from fleetctl.slurm.text_books import TextBooks
from tests.stub_sacct import FIELDS, NEWER, Mode, StubSlurm, make_rows, sluid

FROM_S = 1_793_000_000


@pytest.fixture
def stub(tmp_path: Path) -> StubSlurm:
    made = StubSlurm(tmp_path / "stub")
    made.write(make_rows(50, seed=1))
    return made


def books(stub: StubSlurm, limits: Limits = Limits()) -> TextBooks:
    return TextBooks(stub.environ(os.environ), limits)


def test_a_healthy_reply_is_all_rows(stub: StubSlurm) -> None:
    found = books(stub).records(FROM_S, FROM_S + 10**8)
    read = [parse_record(found.columns, row) for row in found.rows]
    assert len({one.record for one in read}) == 50
    assert {one.restarts for one in read} == {0}  # a column of 24.11
    assert [record_key(found.columns, row) for row in found.rows] == [one.record for one in read]


@pytest.mark.parametrize(
    ("mode", "argument", "error"),
    [
        (Mode.FAIL, "", SlurmUnreachable),
        (Mode.FAIL, "slurmdb_jobs_get: Too wide of a date range in query", SlurmRefused),
        (Mode.TOO_WIDE, "86400", SlurmRefused),
        (Mode.HEADER_ONLY, "", SlurmUnreachable),  # status 0, as before 23.11.4
        (Mode.STDERR, "", SlurmRefused),
        (Mode.NO_HEADER, "", CannotTell),
        (Mode.CUT, "", CannotTell),
    ],
)
def test_a_reply_that_is_not_whole_is_an_error(
    stub: StubSlurm, mode: Mode, argument: str, error: type[FleetctlError]
) -> None:
    stub.misbehave(mode, argument)
    with pytest.raises(error) as caught:
        books(stub).records(FROM_S, FROM_S + 10**8)
    assert caught.type is error
    assert "\n" not in caught.value.message
    stub.behave()
    assert len(books(stub).records(FROM_S, FROM_S + 10**8).rows) == 50


def test_a_sacct_that_hangs_is_ended_and_not_started_again(stub: StubSlurm) -> None:
    asked = books(stub, Limits(accounting_s=1))
    stub.misbehave(Mode.HANG)
    with pytest.raises(SlurmUnreachable, match="did not end within 1 s"):
        asked.records(FROM_S, None)


def test_a_slurmdbd_that_was_away_for_a_moment_is_asked_once_more(stub: StubSlurm) -> None:
    lines: list[str] = []
    asked = connect_books(stub.environ(os.environ), SystemClock(), lines.append)
    stub.misbehave(Mode.FAIL, times=1)
    assert len(asked.records(FROM_S, FROM_S + 10**8).rows) == 50
    assert [line.partition(" -> ")[2].partition(" ")[0] for line in lines] == ["SlurmUnreachable:", "50"]


def test_sacct_is_asked_as_the_rules_of_syncing_say(stub: StubSlurm) -> None:
    asked = books(stub)
    stub.forget_calls()
    asked.records(5, FROM_S)
    asked.records(FROM_S, None)
    asked.records_of((7, 3), FROM_S)
    asked.steps((7,), FROM_S)
    helped, *calls = stub.calls()
    assert helped == ["--helpformat"]  # once
    for call in calls:
        assert {"--allusers", "--duplicates", "--noconvert", "--parsable2", "--local"} <= set(call)
        assert not [word for word in call if word.startswith(("--state=", "-s", "--noheader", "-n"))]
    assert "--starttime=uts1000000" in calls[0]  # less is an invalid time to sacct
    assert f"--endtime=uts{FROM_S}" in calls[0]
    assert not [word for word in calls[1] if word.startswith("--endtime")]
    assert "--jobs=3,7" in calls[2]
    assert [("--allocations" in call) for call in calls] == [True, True, True, False]


def test_an_old_sacct_is_not_asked_for_new_columns(stub: StubSlurm) -> None:
    stub.offer([name for name in FIELDS if name not in NEWER])
    stub.write(make_rows(5, seed=1))
    found = books(stub).records(FROM_S, FROM_S + 10**8)
    assert not NEWER & set(found.columns)
    assert {parse_record(found.columns, row).restarts for row in found.rows} == {None}


def test_a_column_that_sacct_leaves_out_is_no_answer(stub: StubSlurm, tmp_path: Path) -> None:
    program = stub.folder / "bin" / "sacct"
    program.write_text(program.read_text().replace('"$@"', '"$@" --format=DBIndex,JobID,JobIDRaw'))
    with pytest.raises(CannotTell, match="was asked for"):
        books(stub).records(FROM_S, None)


def test_a_job_id_of_squeue_and_a_length_of_sdiag_must_be_numbers(stub: StubSlurm) -> None:
    stub.answer("squeue", said="7\n4227858433\n")
    stub.answer("sdiag", said="Agent queue size:     0\nDBD Agent queue size: 25430\n")
    assert books(stub).alive() == {7, 4_227_858_433}
    assert books(stub).waiting() == 25_430
    stub.answer("squeue", said="squeue\n")
    stub.answer("sdiag", said="")
    for ask in (books(stub).alive, books(stub).waiting):
        with pytest.raises(CannotTell):
            ask()


@pytest.mark.parametrize(
    ("configuration", "level", "sees"),
    [
        ("SlurmDBD configuration:\nPrivateData = none\n", "None", True),
        ("SlurmDBD configuration:\nPrivateData = jobs\n", "None", False),
        ("SlurmDBD configuration:\nPrivateData = jobs\n", "", False),
        ("SlurmDBD configuration:\nPrivateData = jobs\n", "Operator", True),
        ("SlurmDBD configuration:\nPrivateData = jobs\n", "Administrator", True),
        ("SlurmUserId = alice(12)\nSlurmDBD configuration:\nPrivateData = jobs\n", "None", True),
        ("PrivateData = none\n", "Administrator", None),  # slurm.conf's, which says nothing here
    ],
)
def test_who_sees_all_records(stub: StubSlurm, configuration: str, level: str, sees: bool | None) -> None:
    stub.answer("sacctmgr", "show", "configuration", said=configuration)
    stub.answer("sacctmgr", "show", "user", said=f"{level}\n")
    assert books(stub).sees_all("alice") is sees


@pytest.mark.parametrize(
    ("slurm_conf", "slurmdbd", "level", "shown"),
    [
        ("none", "none", "None", True),
        ("accounts,usage", "none", "None", True),
        ("accounts,jobs", "none", "None", False),
        ("jobs", "none", "Operator", True),
        ("jobs", "jobs", "None", True),  # the records of others are hidden as well
        ("jobs", "none", "", False),
    ],
)
def test_running_jobs_are_told_unless_they_are_hidden_and_their_records_are_not(
    stub: StubSlurm, monkeypatch: pytest.MonkeyPatch, slurm_conf: str, slurmdbd: str, level: str, shown: bool
) -> None:
    monkeypatch.setattr("fleetctl.slurm.text_books._own_name", lambda: "alice")
    stub.answer("scontrol", "show", "config", said=f"PrivateData = {slurm_conf}\nSLURM_VERSION = 25.11.8\n")
    configuration = f"SlurmUserId = slurm(64030)\nSlurmDBD configuration:\nPrivateData = {slurmdbd}\n"
    stub.answer("sacctmgr", "show", "configuration", said=configuration)
    stub.answer("sacctmgr", "show", "user", said=f"{level}\n")
    stub.answer("squeue", said="7\n")
    if shown:
        assert books(stub).alive() == {7}
        return
    with pytest.raises(CannotTell, match="only your own jobs"):
        books(stub).alive()


def test_slurms_own_configuration_tells_whether_gpus_are_tracked(stub: StubSlurm) -> None:
    assert books(stub).tracks_gpus() is True
    stub.answer("scontrol", "show", "config", said="AccountingStorageTRES = cpu,mem,node\nSLURM_VERSION = 25.11.8\n")
    assert books(stub).tracks_gpus() is False
    stub.answer("scontrol", "show", "config", said="SLURM_VERSION = 25.11.8\n")
    lines: list[str] = []
    assert connect_books(stub.environ(os.environ), SystemClock(), lines.append).tracks_gpus() is None
    assert "tracks_gpus -> None" in lines[0]


def test_where_slurmdbd_does_not_say_who_sees_all_records_is_not_known(stub: StubSlurm) -> None:
    stub.answer("sacctmgr", "show", "configuration", error="Access/permission denied\n", status=1)
    assert books(stub).sees_all("alice") is None


def test_an_identity_of_64_bits_is_stored_and_read_back(stub: StubSlurm, database: str) -> None:
    """A SLUID above 2**63, a number of a federation, and one number given out twice after the numbers wrapped."""
    big = (3000 << 52) + 12345
    rows = make_rows(3, seed=1)
    rows[0] |= {"DBIndex": str(big), "SLUID": sluid(big), "JobID": "4227858433", "JobIDRaw": "4227858433"}
    rows[1] |= {"DBIndex": str(2**64 - 1), "SLUID": sluid(2**64 - 1), "JobID": "7", "JobIDRaw": "7"}
    rows[2] |= {"DBIndex": "", "SLUID": "", "JobID": "7", "JobIDRaw": "7"}
    stub.write(rows)
    found = books(stub).records(FROM_S, FROM_S + 10**8)
    read = [parse_record(found.columns, row) for row in found.rows]
    engine = open_database(database_url({}, database))
    with engine.begin() as connection:
        connection.execute(insert(clusters).values(id=1, name="stub"))
        for number, one in enumerate(read):
            values = {key: getattr(one, key) for key in one.__struct_fields__}
            connection.execute(insert(job_records).values(id=number, cluster_id=1, digest=-(2**63), **values))
        kept = connection.execute(select(job_records.c.record, job_records.c.raw_id, job_records.c.digest)).all()
    engine.dispose()
    assert {(key, raw) for key, raw, _ in kept} == {
        (str(big), 4_227_858_433),
        (str(2**64 - 1), 7),
        (f"7@{rows[2]['Submit']}", 7),
    }
    assert {digest for _, _, digest in kept} == {-(2**63)}
