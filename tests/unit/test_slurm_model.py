"""Ids and states."""

from __future__ import annotations

import pytest

from fleetctl.slurm.model import BaseState, JobId, JobState, StateFlag, has_task


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("123", JobId(123)),
        ("123_4", JobId(123, array_index=4)),
        ("123_0", JobId(123, array_index=0)),
        ("123+1", JobId(123, het_offset=1)),
        ("123;nautilus", JobId(123, cluster="nautilus")),
        ("123_4;c", JobId(123, array_index=4, cluster="c")),
        ("123_[0-9%2]", JobId(123)),
        ("123_[1,3-5]", JobId(123)),
        ("123_[0-8:2]", JobId(123)),
    ],
)
def test_an_id_is_read(text: str, expected: JobId) -> None:
    assert JobId.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-1",
        "12a",
        " 12",
        "12 ",
        "12_",
        "12+",
        "12_a",
        "12+1_2",
        "12_[",
        "nautilus",
        "12;",
        "12.0",
        "12.batch",
        "4294967296",
        "1_4294967296",
        "١٢",
        "12\n",
    ],
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a Slurm job id"):
        JobId.parse(text)


@pytest.mark.parametrize("text", ["123", "123_4", "123+1"])
def test_an_id_prints_as_slurm_writes_it(text: str) -> None:
    assert str(JobId.parse(text)) == text


def test_the_cluster_is_kept_apart() -> None:
    assert str(JobId.parse("123;c")) == "123"


def test_ids_are_ordered() -> None:
    ids = [JobId(2), JobId(10), JobId(2, array_index=10), JobId(2, array_index=9), JobId(2, het_offset=0)]
    assert [str(each) for each in sorted(ids)] == ["2", "2+0", "2_9", "2_10", "10"]


@pytest.mark.parametrize(
    ("tasks", "index", "is_in"),
    [
        *[("0-9%2", index, True) for index in (0, 5, 9)],
        ("0-9%2", 10, False),
        ("1,3-5", 2, False),
        ("1,3-5", 4, True),
        ("0-8:2", 3, False),
        ("0-8:2", 8, True),
        ("", 0, False),
        ("1,3-5,...", 7, False),
    ],
)
def test_pending_tasks(tasks: str, index: int, is_in: bool) -> None:
    assert has_task(tasks, index) is is_in


@pytest.mark.parametrize(
    ("text", "base", "flags", "unknown"),
    [
        ("PENDING", BaseState.PENDING, set(), ()),
        ("COMPLETING", None, {StateFlag.COMPLETING}, ()),
        ("CANCELLED by 0", BaseState.CANCELLED, set(), ()),
        ("COMPLETED+COMPLETING", BaseState.COMPLETED, {StateFlag.COMPLETING}, ()),
        ("CANCELLED+", BaseState.CANCELLED, set(), ("",)),  # a column that sacct cut
        ("REQUEUED", None, {StateFlag.REQUEUED}, ()),
        ("EXPEDITING", None, {StateFlag.EXPEDITING}, ()),
        ("HIBERNATING", None, set(), ("HIBERNATING",)),
        ("completed", None, set(), ("completed",)),
        ("", None, set(), ("",)),
    ],
)
def test_a_state_is_read(text: str, base: BaseState | None, flags: set[StateFlag], unknown: tuple[str, ...]) -> None:
    assert JobState.parse(text) == JobState(base, frozenset(flags), unknown)


@pytest.mark.parametrize("base", list(BaseState))
def test_a_base_state_alone_is_terminal_or_not(base: BaseState) -> None:
    assert JobState.of([base]).is_terminal is (base not in {"PENDING", "RUNNING", "SUSPENDED"})


@pytest.mark.parametrize("flag", list(StateFlag))
def test_a_flag_that_goes_on_makes_a_state_not_terminal(flag: StateFlag) -> None:
    describes = flag in {"LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED", "UPDATE_DB"}
    assert JobState.of(["FAILED", flag]).is_terminal is describes
    assert not JobState.of([flag]).is_terminal


@pytest.mark.parametrize("words", [["COMPLETED", "NEW_WORD"], ["NEW_WORD"], [], ["COMPLETED", "FAILED"]])
def test_what_we_do_not_know_is_never_an_end(words: list[str]) -> None:
    assert not JobState.of(words).is_terminal
