"""GPU time without a training step: what the ledger of a run tells, what energy tells, and what nobody tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine

from fleetctl.accounting import tables
from fleetctl.accounting.idle import Held, Idle, Kind, Use, idle_of, split
from fleetctl.accounting.model import Window
from fleetctl.accounting.read_idle import count_without_gpus, read_held
from fleetctl.accounting.spans import Spent
from tests.accounting_rows import DAY_S, HOUR_S, T0, Rows

_HOUR_MS = 3_600_000
_LOW, _HIGH = Use(_HOUR_MS, 60 * _HOUR_MS), Use(_HOUR_MS, 500 * _HOUR_MS)  # 60 W and 500 W


def _held(**values: Any) -> Held:
    """Two GPUs for an hour."""
    return Held(**{"key": ("ada",), "gpus": 2, "held_ms": _HOUR_MS, **values})


def _ms(one: Held, idle_watts: float | None = 100.0) -> dict[Kind, int]:
    """What is not 0."""
    found = split(one, idle_watts)
    assert sum(found.values()) == one.gpus * one.held_ms
    return {kind: gpu_ms for kind, gpu_ms in found.items() if gpu_ms}


@pytest.mark.parametrize(
    ("spent", "kind"),
    [
        (Spent.STARTUP, Kind.STARTUP),
        (Spent.HANG, Kind.HANG),
        (Spent.TEARDOWN, Kind.TEARDOWN),
        (Spent.SUSPENDED, Kind.SUSPENDED),
        (Spent.SPARE, Kind.SPARE),
        (Spent.PRODUCTIVE, Kind.BUSY),
        (Spent.STALL, Kind.BUSY),
        (Spent.LOST, Kind.BUSY),
    ],
)
def test_the_ledger_of_a_run_tells_what_it_did(spent: Spent, kind: Kind) -> None:
    one = _held(spent={spent: 2 * _HOUR_MS - 7, Spent.UNTOLD: 7}, uses=(_LOW, _LOW))

    assert _ms(one) == {kind: 2 * _HOUR_MS - 7, Kind.UNKNOWN: 7}


def test_what_a_ledger_does_not_tell_the_energy_may() -> None:
    one = _held(spent={Spent.UNTOLD: 2 * _HOUR_MS}, uses=(_LOW, _HIGH))

    assert _ms(one) == {Kind.LOW_POWER: _HOUR_MS, Kind.BUSY: _HOUR_MS}
    assert _ms(one, None) == {Kind.UNKNOWN: 2 * _HOUR_MS}


def test_what_a_ledger_leaves_out_is_unknown() -> None:
    assert _ms(_held(spent={Spent.HANG: 5})) == {Kind.HANG: 5, Kind.UNKNOWN: 2 * _HOUR_MS - 5}


def test_energy_decides_nothing_unless_somebody_says_how_little_is_idle() -> None:
    one = _held(uses=(_LOW, _HIGH))

    assert _ms(one, None) == {Kind.UNKNOWN: 2 * _HOUR_MS}
    assert _ms(one, 60.0) == {Kind.BUSY: 2 * _HOUR_MS}, "not below it"
    assert _ms(one, 61.0) == {Kind.LOW_POWER: _HOUR_MS, Kind.BUSY: _HOUR_MS}


@pytest.mark.parametrize(
    "uses", [(), (Use(None, 5), Use(5, None)), (Use(0, 5),), (Use(0, 0),), (Use(-5, 5),), (Use(None, None),)]
)
def test_gpus_that_were_not_measured_are_unknown_and_not_idle(uses: tuple[Use, ...]) -> None:
    assert _ms(_held(uses=uses)) == {Kind.UNKNOWN: 2 * _HOUR_MS}


def test_a_gpu_that_took_nothing_at_all_was_measured() -> None:
    assert _ms(_held(uses=(Use(5, 0), _HIGH))) == {Kind.LOW_POWER: _HOUR_MS, Kind.BUSY: _HOUR_MS}


def test_more_measured_gpus_than_were_held_do_not_make_more_time() -> None:
    assert _ms(_held(uses=(_LOW, _LOW, _LOW))) == {Kind.LOW_POWER: 2 * _HOUR_MS}


def test_suspended_time_is_idle_whatever_the_energy_says() -> None:
    assert _ms(_held(suspended_ms=1_000, uses=(_HIGH,))) == {
        Kind.SUSPENDED: 2_000,
        Kind.BUSY: _HOUR_MS - 1_000,
        Kind.UNKNOWN: _HOUR_MS - 1_000,
    }


def test_rows_add_up_and_the_most_idle_comes_first() -> None:
    records = [
        _held(key=("a",), uses=(_HIGH, _HIGH)),
        _held(key=("b",), uses=(_LOW,)),
        _held(key=("b",), uses=(_LOW, _HIGH)),
        _held(key=("c",)),
    ]

    b, a, c = idle_of(records, 100.0)

    assert (b.key, b.records, b.held_ms, b.idle_ms, b.known_ms) == (("b",), 2, 4 * _HOUR_MS, 2 * _HOUR_MS, 3 * _HOUR_MS)
    assert (a.key, a.idle_ms) == (("a",), 0)
    assert (c.key, c.idle_ms, c.watts) == (("c",), None, None), "nothing is known: not 0"
    assert [b.watts, a.watts] == pytest.approx([620 / 3, 500.0])


@pytest.fixture
def rows() -> Iterator[Rows]:
    engine = create_engine("sqlite://")
    tables.metadata.create_all(engine)
    with engine.begin() as connection:
        yield Rows(connection)
    engine.dispose()


def _read(rows: Rows, *by: str) -> list[Held]:
    names = {rows.cluster_id: rows.cluster}
    return list(read_held(rows.connection, Window(T0, T0 + DAY_S), by, names, {rows.cluster: T0 + DAY_S}))


def _idle(rows: Rows, *by: str) -> dict[tuple[str | None, ...], Idle]:
    return {one.key: one for one in idle_of(_read(rows, *by), 100.0)}


def _use(rows: Rows, job: str, gpu: int, at_s: int, watts: int, used_s: int = 100) -> None:
    energy_mj = watts * used_s * 1000
    values = {"gpu": f"0000:{gpu}", "used_ms": used_s * 1000, "energy_mj": energy_mj}
    rows.put(tables.gpu_use, node="n1", at_ms=at_s * 1000, job_id=job, **values)


def _requeue(rows: Rows) -> None:
    again = T0 + HOUR_S + 121
    rows.record(7, job_id=5, array_index=2, gpus=1, state="REQUEUED")
    rows.record(7, job_id=5, array_index=2, gpus=1, submitted_s=T0 + HOUR_S, started_s=again, ended_s=again + 600)


def test_each_record_of_a_requeued_job_has_what_its_own_epilog_measured(rows: Rows) -> None:
    _requeue(rows)
    _use(rows, "7", 0, T0 + HOUR_S + 725, 40)
    _use(rows, "7", 0, T0 + HOUR_S + 4, 500)
    _use(rows, "8", 0, T0 + HOUR_S + 5, 1)

    assert [[use.watts for use in one.uses] for one in _read(rows, "job")] == [[500.0], [40.0]]
    assert [one.key for one in _read(rows, "job")] == [("5_2",), ("5_2",)]


def test_what_was_measured_before_a_record_began_is_not_its_own(rows: Rows) -> None:
    _requeue(rows)
    _use(rows, "7", 0, T0 + HOUR_S + 4, 500)

    assert [len(one.uses) for one in _read(rows, "job")] == [1, 0]


def test_measurements_find_their_records_whatever_the_ids_are_like(rows: Rows) -> None:
    """Ids are texts in what epilogs write, and numbers in Slurm's records."""
    at_s = T0 + HOUR_S + 4
    other = rows.add_cluster("other")
    for raw in (2, 10, 9, 100):
        rows.record(raw, gpus=1)
    for job, watts in (("100", 100), ("9", 9), ("10", 10), ("010", 1), ("x", 2), ("", 3), ("9" * 30, 4), ("-5", 5)):
        _use(rows, job, 0, at_s, watts)
    rows.put(
        tables.gpu_use, cluster_id=other, node="n1", at_ms=at_s * 1000, job_id="2", gpu="0", used_ms=9, energy_mj=9
    )

    found = {one.key: [use.watts for use in one.uses] for one in _read(rows, "job")}

    assert found == {("2",): [], ("9",): [9.0], ("10",): [10.0], ("100",): [100.0]}


def test_measurements_of_several_clusters_are_kept_apart(rows: Rows) -> None:
    at_ms, other = (T0 + HOUR_S + 4) * 1000, rows.add_cluster("other")
    names = {rows.cluster_id: rows.cluster, other: "other"}
    for cluster_id in names:
        for raw in (7, 8):
            rows.record(raw, gpus=1, cluster_id=cluster_id)
            values = {"gpu": "0", "used_ms": 1, "energy_mj": 10 * cluster_id + raw}
            rows.put(tables.gpu_use, cluster_id=cluster_id, node="n1", at_ms=at_ms, job_id=str(raw), **values)

    found = read_held(rows.connection, Window(T0, T0 + DAY_S), ("cluster",), names, dict.fromkeys(names.values(), T0))

    watts = {(names[cluster_id], 10.0 * cluster_id + raw) for cluster_id in names for raw in (7, 8)}
    assert {(one.key[0], use.watts) for one in found for use in one.uses} == watts


def test_an_epilog_after_the_window_tells_of_a_record_that_lies_partly_in_it(rows: Rows) -> None:
    rows.record(7, gpus=1, started_s=T0 + DAY_S - 60, ended_s=T0 + 2 * DAY_S)
    _use(rows, "7", 0, T0 + 2 * DAY_S + 4, 40)

    assert [[use.watts for use in one.uses] for one in _read(rows, "job")] == [[40.0]]


def test_what_another_job_of_the_same_id_measured_later_is_not_ours(rows: Rows) -> None:
    rows.record(7, gpus=1)
    _use(rows, "7", 0, T0 + 5 * HOUR_S, 40)

    assert [one.uses for one in _read(rows, "job")] == [()]


def test_suspended_time_counts_where_the_whole_record_is_in_the_window(rows: Rows) -> None:
    rows.record(1, suspended_s=60)
    rows.record(2, suspended_s=60, started_s=T0 - 5)

    assert [(one.held_ms, one.suspended_ms) for one in _read(rows, "user")] == [
        (_HOUR_MS, 60_000),
        (_HOUR_MS, 0),
    ]


def test_records_without_gpu_data_are_counted_apart_and_those_without_gpus_not_at_all(rows: Rows) -> None:
    rows.record(1, gpus=None)
    rows.record(2, gpus=0)

    assert _read(rows, "user") == []
    assert count_without_gpus(rows.connection, Window(T0, T0 + DAY_S), [rows.cluster_id]) == 1


def test_a_run_tells_of_its_own_records(rows: Rows) -> None:
    """Ten minutes until the first step, half an hour of steps, and then twenty minutes of nothing until it failed."""
    at_ms = T0 * 1000
    rows.record(1, record="1", gpus=8)
    rows.record(2, record="2", gpus=1)
    rows.put(
        tables.runs, run_id="r", user="ada", kind="plain", nodes=1, checkpoints="dcp", created_ms=at_ms, finished=0
    )
    rows.put(tables.run_jobs, run_id="r", job_id=1, user="ada", since_s=T0 - 60)
    key = {"run_id": "r", "task": -1, "major": 1, "minor": 0}
    steps = {"first_step": 1, "first_step_ms": at_ms + 600_000, "last_step": 100, "last_step_ms": at_ms + 2_400_000}
    ended = {"ended_ms": at_ms + _HOUR_MS, "ending": "failed", "failure": "step train: signal 9", "exit_status": 137}
    rows.put(tables.attempts, **key, job_id="1", node_count=1, started_ms=at_ms, **steps, **ended)
    rows.put(tables.interruptions, **key, at_ms=at_ms + _HOUR_MS, ending="failed", causes="[]")
    saved = {"training_step": 100, "committed": 1, "saved_ms": at_ms + 2_400_000, "blocked_ms": 0, "total_ms": 0}
    rows.put(tables.checkpoints, **key, sequence=0, **saved)

    found = _idle(rows, "run")

    assert {kind: gpu_ms for kind, gpu_ms in found["r",].ms.items() if gpu_ms} == {
        Kind.STARTUP: 8 * 600_000,
        Kind.HANG: 8 * 1_200_000,
        Kind.BUSY: 8 * 1_800_000,
    }
    assert found["r",].held_ms == 8 * _HOUR_MS
    assert found[None,].ms[Kind.UNKNOWN] == _HOUR_MS
