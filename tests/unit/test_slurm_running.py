"""Allocations, steps and endpoints, read from what 22.05.8 printed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fleetctl.errors import CannotTell, JobUnknown
from fleetctl.slurm import running
from fleetctl.slurm.allocation import Allocation, Step
from fleetctl.slurm.model import BaseState, JobId, StateFlag

MARK = "\x1fc0ffee00\x1f"
TRES = "cpu=2,mem=2G,node=2,billing=2,gres/gpu=16"
SHOWN = (
    "JobId=7 JobName=train UserId=u(1) GroupId=u(1) MCS_label=N/A Account=a QOS=normal WCKey=w JobState=RUNNING "
    "Reason=None NodeList=n[1-2] CoreSpec=* JOB_GRES=gpu:16   Nodes=n[1-2] GRES=gpu:8(IDX:0-7) MinCPUsNode=1 "
    "Features=(null) Command=/x WorkDir=/ Comment=c\n"
)


def row(**changes: str) -> list[str]:
    names = ["raw", "array", "task", "leader", "offset", "state", "restarts", "nodes", "host", "tres"]
    names += ["start", "end", "preempt", "name", "wckey", "last"]
    values = ["7", "7", "N/A", "N/A", "N/A", "RUNNING", "1", "n[1-2]", "n1", TRES, "1796031685", "1796031883", "N/A"]
    values += ["train", "w", "7"]
    return list({**dict(zip(names, values, strict=True)), **changes}.values())


def found(wanted: JobId, *rows: list[str]) -> list[str]:
    return running.find_allocation("".join(MARK.join(each) + "\n" for each in rows), MARK, wanted)


def read(shown: str = SHOWN, **changes: str) -> Allocation:
    return running.parse_allocation(row(**changes), shown)


def test_a_row_becomes_an_allocation() -> None:
    held = read(preempt="1796031843")
    assert (held.raw_id, held.restarts, held.node_list, held.batch_host, held.gpus) == (7, 1, "n[1-2]", "n1", 16)
    assert held.alloc_tres == TRES
    assert held.preempt_time == datetime(2026, 11, 30, 9, 44, 3, tzinfo=UTC)
    assert held.end_time == datetime(2026, 11, 30, 9, 44, 43, tzinfo=UTC)


def test_a_pending_job_holds_nothing_although_slurm_shows_what_it_asked_for() -> None:
    held = read(state="PENDING", nodes="", host="n/a", start="N/A", end="NONE")
    assert (held.state.base, held.node_list, held.batch_host, held.alloc_tres) == (BaseState.PENDING, "", "", "")
    assert (held.gpus, held.start_time, held.end_time) == (None, None, None)


def test_a_job_that_came_back_without_its_gpus_has_none_whatever_its_tres_say() -> None:
    held = read(SHOWN.replace("JOB_GRES=gpu:16", "JOB_GRES=(null)"))
    assert (held.gpus, held.alloc_tres) == (0, TRES)


def test_a_flag_hides_the_base_state() -> None:
    assert read(state="COMPLETING").state.flags == {StateFlag.COMPLETING}


FORGED = "x UserId=0 JobState=RUNNING JOB_GRES=gpu:99 MinCPUsNode=1"


@pytest.mark.parametrize("name", [FORGED, f"\n{FORGED} ", f"a JobName=train {FORGED}", " JOB_GRES=gpu:99 "])
def test_a_name_cannot_forge_gpus(name: str) -> None:
    assert read(SHOWN.replace("JobName=train", f"JobName={name}"), name=name).gpus == 16


def test_neither_can_a_wckey_nor_what_comes_later() -> None:
    assert read(SHOWN.replace("WCKey=w", f"WCKey={FORGED}"), wckey=FORGED).gpus == 16
    none = SHOWN.replace(" JOB_GRES=gpu:16", "").replace("Comment=c", f"Comment={FORGED}")
    assert read(none.replace("Features=(null)", "Network=x JOB_GRES=gpu:99")).gpus is None


@pytest.mark.parametrize("shown", ["", SHOWN.replace("JobName=train", "JobName=other JobName=train "), "JobId=7\n"])
def test_a_job_that_changed_between_the_queries_cannot_be_told(shown: str) -> None:
    assert read(shown).gpus is None


def test_the_row_of_that_very_id_is_found() -> None:
    last = row(raw="16", array="16", task="2")
    first = row(raw="17", array="16", task="0")
    rest = row(raw="16", array="16", task="3-5%2")
    assert found(JobId(16, array_index=0), last, first) is not None
    assert found(JobId(16, array_index=0), last, first)[0] == "17"
    assert found(JobId(16), last, first)[2] == "2"
    assert found(JobId(17), last, first)[2] == "0"
    assert found(JobId(16, array_index=4), first, rest)[2] == "3-5%2"
    with pytest.raises(JobUnknown):
        found(JobId(16, array_index=7), first, rest)
    components = [row(raw="5", leader="5", offset="0"), row(raw="6", leader="5", offset="1")]
    assert found(JobId(5, het_offset=1), *components)[0] == "6"
    assert found(JobId(5), *components)[4] == "0"
    with pytest.raises(JobUnknown):
        found(JobId(5, het_offset=2), *components)


@pytest.mark.parametrize(
    ("changes", "single"),
    [
        ({}, "7"),
        ({"raw": "16", "array": "16", "task": "2"}, "16_2"),
        ({"raw": "16", "array": "16", "task": "3-5%2"}, "16"),
        ({"raw": "6", "leader": "5", "offset": "1"}, "5+1"),
    ],
)
def test_scontrol_is_asked_for_one_row(changes: dict[str, str], single: str) -> None:
    assert running.single_id(row(**changes)) == single


def test_steps_are_named_by_their_raw_job_number() -> None:
    rows = [
        ["18", "16_1.0", "a\n12.9", "n[1-2]", "2", "RUNNING", "18"],
        ["18", "16_1.batch", "batch", "n1", "1", "RUNNING", "18"],
        ["6", "5+1.0", "x", "n2", "1", "COMPLETING", "6"],
    ]
    steps = running.parse_steps("".join(MARK.join(each) + "\n" for each in rows), MARK)
    assert steps[0] == Step("18.0", "a\n12.9", "n[1-2]", 2, "RUNNING")
    assert [step.id for step in steps] == ["18.0", "18.batch", "6.0"]
    with pytest.raises(CannotTell):
        running.parse_steps(MARK.join(["18", "16_1", "x", "n1", "1", "RUNNING", "18"]), MARK)


def test_endpoints_come_in_the_order_asked_and_only_those() -> None:
    text = "".join(
        MARK.join([name, "10.0.0.1", port, name]) + "\n" for name, port in [("n1", "1"), ("n1", "1"), ("n2", "2")]
    )
    assert list(running.parse_endpoints(text, MARK, ["n2", "n1", "n2", "n3"]).items()) == [
        ("n2", ("10.0.0.1", 2)),
        ("n1", ("10.0.0.1", 1)),
    ]
    with pytest.raises(CannotTell):
        running.parse_endpoints(MARK.join(["n1", "a", "", "n1"]), MARK, ["n1"])


@pytest.mark.parametrize("text", ["12.3", "12_4.0", "5+1.0"])
def test_a_numbered_step_may_be_killed(text: str) -> None:
    assert running.check_step_id(text) == text


@pytest.mark.parametrize(
    "text", ["12", "12.", "12.batch", "12.3 13", "12.3,4", "-u.0", "12.3\n", "12_[1-3].0", "1.2.3"]
)
def test_what_could_mean_more_may_not(text: str) -> None:
    with pytest.raises(ValueError, match="numbered step"):
        running.check_step_id(text)
