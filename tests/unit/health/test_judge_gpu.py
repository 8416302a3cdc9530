"""How a GPU runs."""

from __future__ import annotations

import pynvml  # type: ignore[import-untyped]
import pytest

from fleetctl.health.judge_gpu import ACTIONS
from fleetctl.health.model import Care, Outcome, Phase
from tests.unit.health import nodes
from tests.unit.health.nodes import closing, code, healthy, judged


@pytest.mark.parametrize(
    ("action", "care", "words"),
    [
        (1, Care.RESET, "reset the GPU"),
        (2, Care.REBOOT, "reboot the node"),
        (3, Care.RESET, "end the jobs that use it through its peers"),
        (4, Care.RESET, "end its jobs"),
        (5, Care.DRAIN, "restart the IMEX domain"),
        (6, Care.RESET, "reset its PCIe bus, or reboot the node"),
        (7, Care.REBOOT, "reboot the whole system"),
        (8, Care.DRAIN, "recovery action 8, which fleetctl does not know"),
        (77, Care.DRAIN, "recovery action 77, which fleetctl does not know"),
    ],
)
def test_what_the_driver_asks_for_is_what_the_finding_asks_for(action: int, care: Care, words: str) -> None:
    found = judged(nodes.with_reads(healthy(), 3, recovery_action=action))
    finding = nodes.one(found, "recovery_action")
    assert finding.care is care
    assert finding.words.startswith(f"the driver says of GPU 3 (0000:33:00.0): {words}")
    assert closing(found) == (["recovery_action"] if care >= Care.RESET else [])


def test_every_action_that_pynvml_names_is_known() -> None:
    named = {value for name, value in vars(pynvml).items() if name.startswith("NVML_GPU_RECOVERY_ACTION_")}
    assert named == {0, *ACTIONS}


@pytest.mark.parametrize("reasons", [0, 1, 2, 4, 0x10, 0x100, 0x117])
def test_clocks_that_idle_or_are_set_are_sound(reasons: int) -> None:
    assert nodes.failures(judged(nodes.with_reads(healthy(), 3, clock_reasons=reasons))) == []


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (8, "hardware slowdown"),
        (0x20, "software thermal slowdown"),
        (0x40, "hardware thermal slowdown"),
        (0x80, "power brake"),
        (0x49, "hardware slowdown, hardware thermal slowdown"),
    ],
)
def test_clocks_that_the_hardware_lowers_are_told(reasons: int, words: str) -> None:
    found = judged(nodes.with_reads(healthy(), 3, clock_reasons=reasons))
    assert nodes.one(found, "clock_reasons").words == f"GPU 3 (0000:33:00.0) runs slower: {words}"
    assert closing(found) == []


@pytest.mark.parametrize(
    ("reads", "outcome"),
    [
        ({"temperature_margin_c": 1, "temperature_c": 95}, Outcome.PASS),
        ({"temperature_margin_c": 0}, Outcome.FAIL),
        ({"temperature_margin_c": -5}, Outcome.FAIL),
        ({"temperature_margin_c": code(3), "temperature_c": 90}, Outcome.PASS),
        ({"temperature_margin_c": code(3), "temperature_c": 91}, Outcome.FAIL),
        ({"temperature_margin_c": code(3), "temperature_c": code(3)}, Outcome.CANNOT_TELL),
        ({"temperature_margin_c": code(3), "temperature_c": None}, Outcome.CANNOT_TELL),
    ],
)
def test_temperature_is_judged_by_its_margin_where_there_is_one(reads: dict[str, object], outcome: Outcome) -> None:
    found = nodes.of(judged(nodes.with_reads(healthy(), 3, **reads)), "temperature")
    finding = next(finding for finding in found if finding.part == "gpu/0000:33:00.0")
    assert finding.outcome is outcome
    assert finding.care <= Care.WATCH


def test_power_is_told_beside_its_limit() -> None:
    finding = nodes.of(judged(healthy()), "power")[0]
    assert (finding.value, finding.expected, finding.unit) == (70, 700, "W")
    assert nodes.one(judged(nodes.with_reads(healthy(), 3, power_mw=code(17))), "power").care is Care.WATCH


@pytest.mark.parametrize("mode", [0, 1])
def test_whether_a_gpu_is_cut_up_is_told_and_no_fault(mode: int) -> None:
    finding = nodes.of(judged(nodes.with_reads(healthy(), 0, mig_mode=mode)), "mig")[0]
    assert (finding.outcome, finding.value) == (Outcome.PASS, mode)


def test_persistence_mode_that_is_off_is_told() -> None:
    assert nodes.one(judged(nodes.with_reads(healthy(), 3, persistence=0)), "persistence").care is Care.WATCH


def test_processes_that_were_not_read_are_not_none() -> None:
    found = judged(nodes.with_gpu(healthy(), 3, processes=None), phase=Phase.PROLOG)
    assert nodes.one(found, "processes").outcome is Outcome.CANNOT_TELL


@pytest.mark.parametrize(("mig", "care"), [(0, Care.WATCH), (1, Care.IGNORE)])
def test_no_permission_is_normal_only_with_mig(mig: int, care: Care) -> None:
    node = nodes.with_reads(healthy(), 3, clock_reasons=code(4), mig_mode=mig)
    assert nodes.one(judged(node), "clock_reasons").care is care
