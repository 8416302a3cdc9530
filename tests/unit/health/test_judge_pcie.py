"""PCIe: GPUs, bridges, cards, errors."""

from __future__ import annotations

from typing import Any

import pytest

from fleetctl.health.learn import learn
from fleetctl.health.model import Care, Outcome, Phase, Process, Readings
from fleetctl.health.wanted import Profile
from tests.unit.health import nodes
from tests.unit.health.nodes import closing, failures, healthy, judged

GPU = "GPU 3 (0000:33:00.0)"
WELL_KNOWN = Profile("p", pcie_generation=5, pcie_width=16)


@pytest.mark.parametrize("phase", [Phase.PROLOG, Phase.PERIODIC])
@pytest.mark.parametrize("width", [1, 4, 8])
def test_a_gpu_with_too_few_lanes_closes_where_the_profile_knows_better(width: int, phase: Phase) -> None:
    node = nodes.with_device(healthy(), nodes.pci(3), width=width)
    finding = nodes.one(judged(node, phase=phase), "pcie_width")
    assert (finding.care, finding.value, finding.expected) == (Care.DRAIN, width, 16)
    assert finding.words == f"{GPU} runs at PCIe x{width}, x16 is expected"
    assert nodes.one(judged(node, Profile("")), "pcie_width").care is Care.WATCH


def test_a_slot_of_eight_lanes_is_no_fault_without_a_profile() -> None:
    node = nodes.with_device(healthy("l40s"), nodes.pci(3), width=8)
    node = nodes.with_device(node, node.devices[3].bridges[0].address if node.devices else "", max_width=8)
    assert failures(judged(node)) == []


def test_lanes_come_from_nvml_where_sysfs_is_silent() -> None:
    node = nodes.with_reads(healthy()._replace(devices=None), 3, pcie_width=8)
    assert nodes.one(judged(node), "pcie_width").value == 8
    found = nodes.of(judged(nodes.in_prolog(node), phase=Phase.PROLOG), "pcie_width")
    assert {finding.outcome for finding in found} == {Outcome.CANNOT_TELL}


@pytest.mark.parametrize("width", [None, 0])
def test_lanes_that_are_nonsense_do_not_pass(width: int | None) -> None:
    node = nodes.with_reads(nodes.with_device(healthy(), nodes.pci(3), width=width), 3, pcie_width=0)
    assert nodes.one(judged(node), "pcie_width").outcome is Outcome.CANNOT_TELL


def test_an_idle_gpu_may_lower_its_generation() -> None:
    node = nodes.with_device(healthy(), nodes.pci(3), speed_gts=2.5)
    finding = nodes.of(judged(node, WELL_KNOWN), "pcie_generation")[3]
    assert (finding.outcome, finding.value) == (Outcome.PASS, 1)
    assert "may be idle" in finding.words


@pytest.mark.parametrize(
    ("state", "reasons", "processes", "busy"),
    [(0, 0, (Process(1, None),), True), (8, 0, (Process(1, None),), False), (0, 1, (Process(1, None),), False),
     (0, 0, (), False)],
)  # fmt: skip
def test_a_busy_gpu_may_not(state: int, reasons: int, processes: tuple[Process, ...], busy: bool) -> None:
    node = nodes.with_device(healthy(), nodes.pci(3), speed_gts=2.5)
    node = nodes.with_gpu(node, 3, processes=processes)
    found = judged(nodes.with_reads(node, 3, performance_state=state, clock_reasons=reasons), WELL_KNOWN)
    assert bool(failures(found)) == busy
    if busy:
        assert nodes.one(found, "pcie_generation").care is Care.WATCH


def test_a_gpu_that_cannot_run_faster_closes_where_the_profile_knows_better() -> None:
    node = nodes.with_reads(healthy(), 3, pcie_max_generation=3)
    finding = nodes.one(judged(node, WELL_KNOWN), "pcie_generation")
    assert (finding.care, finding.value, finding.expected) == (Care.DRAIN, 3, 5)
    assert closing(judged(node)) == []


def test_a_generation_that_was_not_read_does_not_pass() -> None:
    node = nodes.with_reads(healthy()._replace(devices=()), 3, pcie_generation=nodes.code(17), pcie_max_generation=None)
    assert nodes.one(judged(node), "pcie_generation").outcome is Outcome.CANNOT_TELL


@pytest.mark.parametrize(
    ("seconds", "rise", "told"), [(60, 31, False), (60, 32, True), (5, 31, False), (600, 310, False), (600, 311, True)]
)
def test_replays_are_told_beyond_dcgms_rate(seconds: float, rise: int, told: bool) -> None:
    """31 a minute: 1.92 for each of 16 lanes of generation 5."""
    after, before = nodes.later(healthy(), seconds)
    found = judged(nodes.with_reads(after, 3, pcie_replays=rise), WELL_KNOWN, before=before)
    assert bool(failures(found)) == told
    assert closing(found) == []


def test_bridges_beyond_the_slot_of_a_gpu_are_held_to_the_learned_width() -> None:
    good = healthy()
    node = good._replace(devices=tuple(d for d in good.devices or () if d.kind == "gpu"))
    bridge = (node.devices or ())[3].bridges[1].address
    found = judged(nodes.with_device(node, bridge, width=8), learn(node))
    assert closing(found) == ["pcie_upstream"]
    assert nodes.one(found, "pcie_upstream").words == f"PCIe bridge {bridge} above {GPU} runs at x8, x16 is expected"
    found = judged(nodes.with_device(node, bridge, width=None), learn(node))
    assert nodes.one(found, "pcie_upstream").outcome is Outcome.CANNOT_TELL
    assert {f.outcome for f in nodes.of(judged(node, learn(node)), "pcie_upstream")} == {Outcome.PASS}
    slot = (node.devices or ())[3].bridges[0].address
    idle = nodes.with_device(nodes.with_device(node, slot, speed_gts=2.5), bridge, speed_gts=2.5)
    assert failures(judged(idle, learn(node))) == []
    assert slot not in learn(node).nic_links


CARD = "0000:18:00.0"


@pytest.mark.parametrize(
    ("address", "change", "now"),
    [(CARD, {"width": 8}, "32 GT/s x8"), (CARD, {"speed_gts": 16.0}, "16 GT/s x16"),
     ("0000:03:02.0", {"speed_gts": 8.0}, "8 GT/s x16")],
)  # fmt: skip
def test_a_card_or_a_bridge_above_it_is_held_to_what_was_learned(
    address: str, change: dict[str, Any], now: str
) -> None:
    found = judged(nodes.with_device(healthy(), address, **change), learn(healthy()), Phase.PROLOG, (0,))
    finding = nodes.one(found, "nic_pcie")
    assert finding.words == f"PCIe device {address} runs at {now}, 32 GT/s x16 is expected"
    assert (finding.care, finding.part) == (Care.DRAIN, f"pci/{address}")
    assert nodes.of(judged(nodes.with_device(healthy(), address, **change)), "nic_pcie") == []


def test_a_card_that_does_not_tell_or_is_not_there_is_told() -> None:
    profile = learn(healthy())
    node = nodes.with_device(healthy(), CARD, width=None)
    assert nodes.one(judged(node, profile), "nic_pcie").outcome is Outcome.CANNOT_TELL
    gone = healthy()._replace(devices=tuple(d for d in healthy().devices or () if d.link.address != CARD))
    finding = nodes.one(judged(gone, profile), "nic_pcie")
    assert (finding.outcome, finding.care) == (Outcome.CANNOT_TELL, Care.WATCH)
    assert f"{CARD} of the profile is not there" in finding.words


def test_the_profile_of_another_kind_of_node_is_one_finding() -> None:
    node = healthy()._replace(devices=tuple(d for d in healthy().devices or () if d.kind == "gpu"))
    finding = nodes.one(judged(node, learn(healthy())), "nic_pcie")
    assert (finding.care, finding.part) == (Care.WATCH, "node")
    assert finding.words.startswith("PCIe device 0000:18:00.0 and 7 more of the profile are not there: was it")


def test_devices_that_were_not_read_do_not_pass() -> None:
    node = nodes.with_host(healthy()._replace(devices=None), nvidia_devices=None)
    found = judged(node, learn(healthy()))
    for check, care in (("nic_pcie", Care.WATCH), ("pcie_aer", Care.IGNORE)):
        finding = nodes.one(found, check)
        assert (finding.outcome, finding.care) == (Outcome.CANNOT_TELL, care)
    assert {f.outcome for f in nodes.of(found, "pcie_upstream")} == {Outcome.CANNOT_TELL}
    assert nodes.of(judged(node), "nic_pcie") == nodes.of(judged(node), "pcie_upstream") == []


def _errors(node: Readings, **errors: int) -> Readings:
    devices = tuple(d._replace(errors=errors) if d.link.address == CARD else d for d in node.devices or ())
    return node._replace(devices=devices)


@pytest.mark.parametrize(
    ("errors", "words"),
    [({"fatal": 1}, "1 fatal PCIe errors"), ({"nonfatal": 2}, "2 nonfatal PCIe errors"), ({"correctable": 310}, None),
     ({"correctable": 311}, "311 correctable PCIe errors"), ({"odd": 1}, "1 odd PCIe errors")],
)  # fmt: skip
def test_pcie_errors_since_the_last_look_are_told(errors: dict[str, int], words: str | None) -> None:
    before = _errors(healthy(), **dict.fromkeys(errors, 0))
    after, baseline = nodes.later(before)
    found = judged(_errors(after, **errors), before=baseline)
    assert closing(found) == []
    assert failures(found) == ([] if words is None else [f"nic at {CARD} had {words} since the last look"])
