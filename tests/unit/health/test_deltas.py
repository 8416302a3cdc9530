"""Counters from look to look."""

from __future__ import annotations

import pytest

from fleetctl.health.deltas import CEILINGS, changes, counters_of, too_fast
from fleetctl.health.infiniband import COUNTERS
from fleetctl.health.model import Answer, Baseline, Change, Move, Nvml, Readings
from tests.unit.health import nodes
from tests.unit.health.nodes import healthy

KEY = "port/mlx5_0/1/link_downed"
PORT = "port/mlx5_0/1/"


def _counting(value: int, name: str = "link_downed") -> Readings:
    return nodes.with_port(healthy(), 0, counters={name: value})


def _change(before: int | None, now: int, name: str = "link_downed") -> Change:
    counters = {} if before is None else {PORT + name: before}
    return changes(Baseline("boot-1", 999_400.0, counters), _counting(now, name))[PORT + name]


@pytest.mark.parametrize(
    ("before", "now", "move", "by"),
    [
        (None, 7, Move.FIRST, 0),
        (7, 7, Move.SAME, 0),
        (7, 9, Move.ROSE, 2),
        (9, 7, Move.BACKWARDS, 0),
        (255, 255, Move.CEILING, 0),
        (250, 255, Move.CEILING, 5),
        (None, 255, Move.CEILING, 0),
        (255, 256, Move.ROSE, 1),
        (255, 0, Move.BACKWARDS, 0),
    ],
)
def test_a_counter_moves_in_one_of_five_ways(before: int | None, now: int, move: Move, by: int) -> None:
    change = _change(before, now)
    assert (change.move, change.now, change.by) == (move, now, by)
    assert change.over_s == (0.0 if move is Move.FIRST else 600.0)


@pytest.mark.parametrize(("name", "ceiling"), list(CEILINGS.items()))
def test_each_counter_stops_at_its_own_ceiling(name: str, ceiling: int) -> None:
    assert _change(ceiling - 1, ceiling, name).move is Move.CEILING
    assert _change(ceiling - 1, ceiling + 1, name).move is Move.ROSE


def test_the_port_counters_that_are_read_have_a_known_ceiling() -> None:
    assert set(COUNTERS) <= set(CEILINGS)


def test_wide_counters_have_no_ceiling() -> None:
    assert _change(254, 255, "rnr_nak_retry_err").move is Move.ROSE


@pytest.mark.parametrize(("baseline", "now"), [("boot-0", "boot-1"), ("", ""), ("boot-1", ""), ("", "boot-1")])
def test_counters_of_another_or_unknown_boot_do_not_count(baseline: str, now: str) -> None:
    node = _counting(3)._replace(boot_id=now)
    assert changes(Baseline(baseline, 0.0, {KEY: 9}), node)[KEY] == Change(Move.FIRST, 3)


@pytest.mark.parametrize(
    ("at", "over_s"), [(999_400.0, 600.0), (1_000_000.0, 0.0), (1_000_500.0, 3600.0), (900_000.0, 3600.0)]
)
def test_the_span_is_never_longer_than_the_boot_nor_negative(at: float, over_s: float) -> None:
    assert changes(Baseline("boot-1", at, {KEY: 0}), _counting(3))[KEY].over_s == over_s


def _aged(energy: int | None, replays: int) -> Readings:
    node = nodes.with_reads(healthy(), 3, energy_mj=energy, pcie_replays=replays)
    return nodes.with_links(node, 3, [7], recoveries=replays)


@pytest.mark.parametrize(("energy", "move"), [(10, Move.FIRST), (123456, Move.ROSE), (123457, Move.ROSE)])
def test_a_gpu_that_was_reset_between_two_looks_begins_anew(energy: int, move: Move) -> None:
    moved = changes(nodes.baseline_of(_aged(123456, 1)), _aged(energy, 3))
    assert moved["gpu/GPU-3/pcie_replays"].move is move
    assert moved["gpu/GPU-3/link/7/recoveries"].move is move
    assert moved["gpu/GPU-2/pcie_replays"].move is Move.SAME
    assert moved[KEY].move is Move.SAME


@pytest.mark.parametrize(("before", "now"), [(None, 10), (123456, None)])
def test_energy_that_was_not_read_is_no_sign_of_a_reset(before: int | None, now: int | None) -> None:
    moved = changes(nodes.baseline_of(_aged(before, 1)), _aged(now, 3))
    assert moved["gpu/GPU-3/pcie_replays"].move is Move.ROSE


def test_every_kind_of_counter_has_a_stable_key() -> None:
    counters = counters_of(healthy())
    for key in (
        "gpu/GPU-3/pcie_replays",
        "gpu/GPU-3/energy_mj",
        "gpu/GPU-3/ecc_uncorrected_volatile",
        "gpu/GPU-3/link/17/replays",
        "pci/0000:33:00.0/fatal",
        "pci/0000:18:00.0/correctable",
        "node/edac_corrected",
        KEY,
    ):
        assert key in counters
    assert not [key for key in counters if key.endswith("state")]


def test_a_gpu_without_a_uuid_is_known_by_its_place() -> None:
    assert "gpu/0000:33:00.0/pcie_replays" in counters_of(nodes.with_gpu(healthy(), 3, uuid=None))


@pytest.mark.parametrize("value", [None, -1, True, 1.5, "7", 1 << 70, nodes.code(3)], ids=str)
def test_what_is_no_count_is_no_counter(value: object) -> None:
    node = nodes.with_reads(healthy(), 3, pcie_replays=value)
    assert "gpu/GPU-3/pcie_replays" not in counters_of(node)


def test_a_node_that_tells_nothing_has_no_counters() -> None:
    node = Readings("n1", "boot-1", 0.0, 0.0)
    assert counters_of(node) == {}
    assert changes(nodes.baseline_of(healthy()), node) == {}
    assert counters_of(node._replace(nvml=Nvml(Answer.HUNG))) == {}


@pytest.mark.parametrize(
    ("by", "over_s", "most", "per_s", "fast"),
    [
        (120, 1.0, 120, 3600.0, False),
        (121, 1.0, 120, 3600.0, True),
        (240, 7200.0, 120, 3600.0, False),
        (600, 1.0, 10, 1.0, False),
        (601, 1.0, 10, 1.0, True),
        (1201, 120.0, 10, 1.0, True),
        (0, 0.0, 0, 60.0, False),
        (1, 0.0, 0, 60.0, True),
    ],
)
def test_a_rate_is_judged_over_a_whole_span_of_its_own(
    by: int, over_s: float, most: float, per_s: float, fast: bool
) -> None:
    assert too_fast(Change(Move.ROSE, by, by, over_s), most, per_s) == fast
