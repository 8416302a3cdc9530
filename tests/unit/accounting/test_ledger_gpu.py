"""The ledger of held GPU time, against sums made by hand. Times are seconds, GPU time is GPU-seconds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fleetctl.accounting.goodput import goodput
from fleetctl.accounting.ledger_gpu import gpu_costs, gpu_ledger, gpu_of, gpus_by
from fleetctl.accounting.model import Window
from fleetctl.accounting.spans import Spent
from fleetctl.accounting.timeline import timeline
from tests.unit.accounting.runs_told import AS_OF, T0, attempt, record, run, save, seconds
from tests.unit.accounting.test_ledger import CRASHED


def test_every_gpu_second_that_a_requeued_run_held_has_a_class() -> None:
    facts = run(**CRASHED)
    ledger = gpu_ledger(facts, AS_OF)
    assert ledger.held_ms == 16 * (1000 + 1100) * 1000
    assert seconds(ledger) == {
        "startup": 16 * 200,
        "productive": 16 * (490 + 950),
        "stall": 16 * 40,
        "lost": 16 * 290,
        "hang": 16 * 90,
        "teardown": 16 * 40,
    }
    assert ledger.productive == (490 + 950) / 2100
    cost = gpu_costs(facts, timeline(facts, AS_OF))[1, 0]
    assert (cost.detection_ms, cost.lost_ms) == (16 * 90_000, 16 * 290_000)


def test_the_gpus_of_spare_nodes_and_of_a_dead_one_are_spare() -> None:
    """Two of three nodes train; after the loss two of the three, until Slurm takes the dead one away."""
    facts = run(
        records=(
            record(0, 0, 0, 700, state="RESIZING", nodes=3, gpus=24),
            record(0, 0, 700, 1000, nodes=2, gpus=16),
        ),
        attempts=(
            attempt("1.0", 0, 520, "node_lost", (1, 50), (40, 500)),
            attempt("1.1", 530, 1000, "finished", (31, 560), (70, 1000), resume=30),
        ),
        saves=(save("1.0", 30, 400, 0),),
        finished=True,
    )
    ledger = gpu_ledger(facts, AS_OF)
    assert ledger.held_ms == (24 * 700 + 16 * 300) * 1000
    assert seconds(ledger) == {
        "startup": 16 * (50 + 40),
        "productive": 16 * (350 + 440),
        "lost": 16 * 100,
        "hang": 16 * 20,
        "spare": 8 * 700,
    }


def test_each_component_of_a_hetjob_holds_its_own_gpus_for_its_own_time() -> None:
    facts = run(
        records=(
            record(0, 0, 0, 1000, het_offset=0, gpus=8, nodes=1),
            record(0, 0, 0, 1200, het_offset=1, gpus=2, nodes=4),
        ),
        attempts=(attempt("1.0", 0, 1000, "finished", (1, 100), (90, 900), nodes=1),),
        nodes=5,
        finished=True,
    )
    assert seconds(gpu_ledger(facts, AS_OF)) == {
        "startup": 10 * 100,
        "productive": 10 * 800,
        "teardown": 8 * 100 + 2 * 300,
    }


def test_a_record_of_unknown_gpus_is_counted_apart_and_not_as_none() -> None:
    facts = run(records=(record(0, 0, 0, 1000, gpus=None), record(1000, 1000, 1000, 1100, gpus=0)))
    ledger = gpu_ledger(facts, AS_OF)
    assert (ledger.held_ms, ledger.unknown_records, ledger.productive) == (0, 1, None)


@pytest.mark.parametrize("alive", [None, 5])
def test_what_a_record_holds_that_nobody_has_seen_alive_is_not_known(alive: int | None) -> None:
    unseen = record(0, 0, 10, None, state="RUNNING", alive=alive, purged=500)
    ledger = gpu_ledger(run(records=(unseen,)), AS_OF)
    assert (ledger.held_ms, ledger.unknown_records, ledger.known_ms(Spent.STARTUP)) == (0, 1, None)
    none_held = gpu_ledger(run(records=(record(0, 0, 10, None, state="RUNNING", alive=alive, gpus=0),)), AS_OF)
    assert none_held.unknown_records == 0


@pytest.mark.parametrize(
    ("window", "unknown"),
    [(Window(T0 + 400, T0 + 450), 1), (Window(T0, T0 + 10), 0), (Window(T0 + 500, T0 + 600), 0)],
)
def test_it_may_have_held_something_from_its_start_until_slurm_forgot_it(window: Window, unknown: int) -> None:
    facts = run(records=(record(0, 0, 10, None, state="RUNNING", purged=500),))
    assert gpu_ledger(facts, AS_OF, window).unknown_records == unknown
    assert sum(one.gpus.unknown_records for one in goodput((facts,), {"c": AS_OF}, window)) == unknown


def test_records_are_told_apart_by_their_partition() -> None:
    facts = run(
        records=(record(0, 0, 0, 100, partition="a"), record(100, 100, 100, 300, partition="b", gpus=8)),
        finished=False,
    )
    line = timeline(facts, AS_OF)
    parts = gpus_by(facts, line, None, lambda one: one.partition)
    assert {name: ledger.held_ms for name, ledger in parts.items()} == {"a": 1_600_000, "b": 1_600_000}
    late = gpus_by(facts, line, Window(T0 + 100, T0 + 200), lambda one: one.partition)
    assert {name: ledger.held_ms for name, ledger in late.items()} == {"b": 800_000}


def test_without_any_record_in_the_window_nothing_was_held() -> None:
    facts = replace(run(**CRASHED))
    ledger = gpu_of(facts, timeline(facts, AS_OF), Window(T0 + 9000, T0 + 9100))
    assert (ledger.held_ms, ledger.unknown_records, ledger.productive) == (0, 0, None)


def test_gpus_that_do_not_divide_by_the_nodes_are_still_all_counted() -> None:
    facts = run(records=(record(0, 0, 0, 1000, gpus=7, nodes=3),), nodes=2, finished=False)
    assert seconds(gpu_ledger(facts, AS_OF)) == {"untold": 5 * 1000, "spare": 2 * 1000}


def test_nodes_that_an_attempt_goes_on_without_are_spare() -> None:
    """Three nodes were asked for; after a loss the training goes on with two, and the record still has three."""
    facts = run(
        records=(record(0, 0, 0, 1000, nodes=3, gpus=24),),
        attempts=(
            attempt("1.0", 0, 500, "node_lost", (1, 100), (40, 500), nodes=3),
            attempt("1.1", 500, 1000, "finished", (41, 600), (80, 1000), resume=40, nodes=2),
        ),
        saves=(save("1.0", 40, 500, 0),),
        nodes=3,
        finished=True,
    )
    assert seconds(gpu_ledger(facts, AS_OF)) == {
        "startup": 24 * 100 + 16 * 100,
        "productive": 24 * 400 + 16 * 400,
        "spare": 8 * 500,
    }
