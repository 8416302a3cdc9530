"""Why a node is drained, as a tired operator reads it: the part, the fault, and what to do about it."""

from __future__ import annotations

import pytest

from fleetctl.health.checks import CHECKS
from fleetctl.health.decide import MOST_REASON, decide, reason_of
from fleetctl.health.learn import learn
from fleetctl.health.model import Answer, Care, Finding, Nvml, Outcome, Phase, Readings
from tests.unit.health import nodes
from tests.unit.health.looks import fail
from tests.unit.health.nodes import healthy, judged

GPU = "GPU 3 (0000:33:00.0)"


def _every(**reads: int) -> Readings:
    node = healthy("b200")
    for index in range(8):
        node = nodes.with_reads(node, index, **reads)
    return node


def _no_links(node: Readings) -> Readings:
    for index in range(8):
        node = nodes.with_links(node, index, range(18), state=0)
    return node


def _narrow() -> Readings:
    node = healthy()
    for index in range(8):
        node = nodes.with_device(node, nodes.pci(index), width=8)
    return node


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (nodes.with_links(healthy(), 3, [7], state=0), f"NVLink 7 of {GPU} is down [nvlink_state: reset the GPU]"),
        (nodes.with_port(healthy(), 2, width=2, rate_gbps=200.0),
         "port mlx5_2/1 runs at width 2X, 4X is expected [port_width: check cable and port]"),
        (nodes.with_reads(healthy(), 3, remap_pending=1),
         f"a row of the memory of {GPU} waits to be remapped: reset the GPU [row_remap_pending]"),
        (nodes.with_reads(healthy(), 3, recovery_action=7),
         f"the driver says of {GPU}: reboot the whole system [recovery_action]"),
        (nodes.with_gpu(healthy(), 3, code=15, pci=None, minor=None, reads={}, links=()),
         f"{GPU} is counted and cannot be reached: GPU is lost (NVML 15) [gpu_lost: reboot the node]"),
        (healthy()._replace(nvml=Nvml(Answer.FAILED, 18)),
         "NVML and the driver are of different versions (NVML 18): reload the driver or reboot the node [nvml]"),
        (healthy()._replace(nvml=Nvml(Answer.FAILED, 999)),
         "NVML cannot be used: unknown error (NVML 999); reboot the node [nvml]"),
        (_no_links(healthy("b200")), "all 18 NVLinks of all 8 GPUs are down [nvlink_state: reset the GPUs]"),
        (_every(fabric_state=2), "the NVLink fabric of all 8 GPUs is in progress: is the fabric manager running? "
                                 "[fabric: restart the fabric manager, reset the GPUs]"),
        (_narrow(), "each of all 8 GPUs runs at PCIe x8, x16 is expected [pcie_width: reboot, then reseat the GPUs]"),
    ],
    ids=lambda one: "" if isinstance(one, Readings) else one,
)  # fmt: skip
def test_a_reason_names_part_fault_and_remedy(node: Readings, reason: str) -> None:
    name = "b200" if "18 NVLinks" in reason or "fabric" in reason else "h100-sxm"
    assert decide(judged(node, learn(healthy(name)))).reason == f"fleetctl: {reason}"


def test_what_all_gpus_suffer_is_said_once_beside_what_else_is_wrong() -> None:
    node = nodes.with_reads(_no_links(healthy("b200")), 3, remap_pending=1)
    assert "of all 8 GPUs" in decide(judged(node)).reason
    assert decide(judged(node)).reason.endswith("] (+1 more)")


def test_what_some_gpus_suffer_names_the_first_of_them() -> None:
    node = nodes.with_links(nodes.with_links(healthy(), 3, [7], state=0), 5, [7], state=0)
    assert decide(judged(node)).reason == f"fleetctl: NVLink 7 of {GPU} is down [nvlink_state: reset the GPU] (+1 more)"
    two = decide(judged(node, phase=Phase.PROLOG, gpus=(3, 5))).reason
    assert two.startswith(f"fleetctl: NVLink 7 of {GPU} is down"), "two of a job are not all of the node"


def test_gpus_with_different_faults_are_not_all_alike() -> None:
    node = nodes.with_links(_no_links(healthy("b200")), 7, range(1, 18), state=1)
    reason = decide(judged(node)).reason
    assert reason.startswith("fleetctl: all 18 NVLinks of GPU 0 (0000:1b:00.0) are down")
    assert reason.endswith("(+7 more)")


@pytest.mark.parametrize("care", [Care.RESET, Care.REBOOT, Care.DRAIN, Care.HUMAN])
@pytest.mark.parametrize("check", list(CHECKS))
def test_a_reason_keeps_its_check_and_is_short_whatever_the_words(check: str, care: Care) -> None:
    finding = Finding(check, Outcome.FAIL, "node", "node", "w" * 500, care=care)
    reason = reason_of([finding, fail()], 8)
    assert len(reason) <= MOST_REASON
    assert f"[{check}" in reason
    assert reason.endswith("] (+1 more)")


@pytest.mark.parametrize("check", [name for name, one in CHECKS.items() if one.care is Care.DRAIN])
def test_each_check_that_drains_says_what_to_do_in_its_words_or_after_them(check: str) -> None:
    assert CHECKS[check].remedy or check in ("nvml", "recovery_action", "files")


def test_a_remedy_of_a_gpu_is_not_given_for_a_port() -> None:
    finding = Finding("port_width", Outcome.FAIL, "port mlx5_0/1", "port/mlx5_0/1", "narrow", care=Care.RESET)
    assert "[port_width: check cable and port]" in decide([finding]).reason
