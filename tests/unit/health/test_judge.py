"""Healthy nodes of every kind, and what peers drain by mistake: nothing here may keep a job away."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleetctl.health.learn import learn
from fleetctl.health.model import Answer, Care, Mark, Nvml, Outcome, Phase, Process, Read, Readings
from fleetctl.health.readings import EVERY_PHASE, LINK, MORE
from fleetctl.health.rules import Rules
from fleetctl.health.wanted import PortWanted, Profile
from tests.unit.health import nodes
from tests.unit.health.nodes import KINDS, closing, code, failures, healthy, judged

MIG_AWAY = {"remap_pending": code(3), "remap_failure": code(3), "ecc_uncorrected_volatile": code(3)}


def _all_gpus(readings: Readings, change: Callable[[Readings, int], Readings]) -> Readings:
    for index in range(len(readings.nvml.gpus) if readings.nvml else 0):
        readings = change(readings, index)
    return readings


def _every(readings: Readings, **reads: object) -> Readings:
    return _all_gpus(readings, lambda node, index: nodes.with_reads(node, index, **reads))


def _mig(readings: Readings) -> Readings:
    node = _every(readings, mig_mode=1, memory_used_bytes=9 << 30, **MIG_AWAY)
    return _all_gpus(node, lambda one, index: nodes.with_gpu(one, index, processes=None))


def _links(readings: Readings, numbers: range, **values: object) -> Readings:
    return _all_gpus(readings, lambda node, index: nodes.with_links(node, index, numbers, **values))


def _more_links(readings: Readings, number: int) -> Readings:
    """NVML's loop goes on to links that the GPU does not have."""
    assert readings.nvml is not None
    have = readings.nvml.gpus[0].links
    more = tuple({"state": code(number), "replays": code(number)} for _ in have)
    return _all_gpus(readings, lambda node, index: nodes.with_gpu(node, index, links=have + more))


def _alone(readings: Readings) -> Readings:
    assert readings.nvml is not None
    node = _links(nodes.with_nvml(readings, gpus=readings.nvml.gpus[:1], peers=()), range(18), state=0)
    return nodes.with_host(node, nvidia_devices=1)


VARIANTS: dict[str, tuple[str, Callable[[Readings], Readings]]] = {
    "NVLinks 18 to 35 are no valid question": ("b200", lambda n: _more_links(n, 2)),
    "NVLinks 12 to 17 are not supported": ("a100-sxm", lambda n: _more_links(n, 3)),
    "H100 PCIe without bridges": ("h100-pcie", lambda n: _links(n, range(18), state=0)),
    "A100 PCIe with three bridges": ("a100-pcie", lambda n: _links(n, range(12), state=1)),
    "fabric not supported": ("h100-sxm", lambda n: _every(n, fabric_state=0)),
    "fabric summary not told": ("b200", lambda n: _every(n, fabric_summary=0, fabric_mask=0)),
    "idle at PCIe generation 1": (
        "l40s",
        lambda n: _all_gpus(n, lambda one, i: nodes.with_device(one, nodes.pci(i), speed_gts=2.5)),
    ),
    "PCIe says nothing": (
        "h200",
        lambda n: _all_gpus(n, lambda one, i: nodes.with_device(one, nodes.pci(i), speed_gts=None, width=None)),
    ),
    "memory that the driver reserves": ("b200", lambda n: _every(n, memory_used_bytes=900 << 20)),
    "memory in use by a job": ("h200", lambda n: _every(n, memory_used_bytes=80 << 30)),
    "a process of a job": ("h200", lambda n: nodes.with_gpu(n, 0, processes=(Process(4711, None),))),
    "MIG on": ("h100-sxm", _mig),
    "aggregate errors from last year": ("a100-sxm", lambda n: _every(n, ecc_uncorrected_aggregate=99)),
    "uncorrected errors that were contained": ("h100-sxm", lambda n: _every(n, ecc_uncorrected_volatile=2)),
    "rows remapped long ago": ("a100-sxm", lambda n: _every(n, remap_uncorrected=8, remap_corrected=3)),
    "millions of corrected errors": ("h100-sxm", lambda n: _every(n, ecc_corrected_volatile=30_000_000)),
    "no error correction by wish": ("l40s", lambda n: _every(n, ecc_mode=0, ecc_pending=0)),
    "an old driver": (
        "h100-sxm",
        lambda n: _every(n, recovery_action=code(2), fabric_state=code(13), temperature_margin_c=code(13)),
    ),
    "hot and slowed down": ("h100-sxm", lambda n: _every(n, clock_reasons=0x48, temperature_margin_c=-2)),
    "persistence mode off": ("h100-sxm", lambda n: _every(n, persistence=0)),
    "not root": ("h100-sxm", lambda n: _every(n, ecc_mode=code(4), remap_pending=code(4), power_mw=code(4))),
    "one GPU of a board, given to a virtual machine": ("h100-sxm", _alone),
    "GPUs given to virtual machines": ("h100-sxm", lambda n: nodes.with_host(n, nvidia_devices=16)),
    "no P2P by confidential computing": (
        "h100-sxm",
        lambda n: nodes.with_nvml(
            n, peers=tuple(peer._replace(status=Read(5)) for peer in n.nvml.peers) if n.nvml else ()
        ),
    ),
    "a cable that is not there": ("h100-sxm", lambda n: nodes.with_port(n, 3, state="DOWN", phys_state="Disabled")),
    "a port that waits for its subnet manager": ("h100-sxm", lambda n: nodes.with_port(n, 3, state="INIT")),
    "a port of two lanes by wish": ("h100-sxm", lambda n: nodes.with_port(n, 3, width=2, rate_gbps=200.0)),
    "counters at their ceiling": (
        "h100-sxm",
        lambda n: nodes.with_port(n, 0, counters={"link_downed": 255, "symbol_error": 65535}),
    ),
    "no counters": ("h100-sxm", lambda n: nodes.with_port(n, 0, counters={}, unreadable=("link_downed",))),
    "a full /dev/shm": ("h100-sxm", lambda n: nodes.with_host(n, shm_free_bytes=1)),
    "a clock that is not synchronised": ("h100-sxm", lambda n: nodes.with_host(n, clock_synchronised=False)),
    "no network": ("h100-sxm", lambda n: n._replace(ports=())),
    "a node without GPUs and NVML": (
        "h100-sxm",
        lambda n: nodes.with_host(n._replace(nvml=Nvml(Answer.FAILED, 12), devices=()), nvidia_devices=0),
    ),
    "a node without GPUs whose driver is not loaded": (
        "h100-sxm",
        lambda n: nodes.with_host(n._replace(nvml=Nvml(Answer.FAILED, 9), devices=()), nvidia_devices=0),
    ),
    "an error of our own in a reader": ("h100-sxm", lambda n: n._replace(ports=None, failed={"ports": Answer.FAILED})),
    "our reader of NVML died": ("h100-sxm", lambda n: n._replace(nvml=Nvml(Answer.CRASHED, detail="signal 9"))),
}


@pytest.mark.parametrize("phase", list(Phase), ids=lambda phase: phase.value)
@pytest.mark.parametrize("name", list(KINDS))
def test_a_healthy_node_fails_nothing(name: str, phase: Phase) -> None:
    node = healthy(name) if phase is not Phase.PROLOG else nodes.in_prolog(healthy(name))
    found = judged(node, phase=phase)
    assert failures(found) == []
    assert [finding for finding in found if finding.care > Care.IGNORE] == []
    assert len([finding for finding in found if finding.outcome is Outcome.PASS]) > 20


@pytest.mark.parametrize("name", list(KINDS))
def test_a_healthy_node_passes_its_own_profile_and_a_second_look(name: str) -> None:
    node, before = nodes.later(healthy(name))
    found = judged(node, learn(healthy(name)), before=before)
    assert failures(found) == []
    told = {finding.check for finding in found if finding.outcome is Outcome.PASS}
    assert {"port_counters", "nic_pcie", "pcie_replays", "host_memory", "port_width", "edac"} <= told
    assert ("nvlink_errors" in told) == (KINDS[name].links > 0)


@pytest.mark.parametrize("phase", [Phase.PROLOG, Phase.PERIODIC], ids=lambda phase: phase.value)
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_what_others_drain_by_mistake_keeps_no_job_away(variant: str, phase: Phase) -> None:
    name, change = VARIANTS[variant]
    node = change(healthy(name))
    assert node != healthy(name)
    gpus = None if phase is Phase.PERIODIC else (0,)
    assert closing(judged(node, nodes.built_in(healthy(name)), phase, () if "without GPUs" in variant else gpus)) == []


@pytest.mark.parametrize("number", [2, 3, 4, 6, 13])
@pytest.mark.parametrize("key", sorted(healthy().nvml.gpus[0].reads if (healthy().nvml) else ()))  # type: ignore[union-attr]
def test_a_value_that_a_gpu_does_not_have_keeps_no_job_away(key: str, number: int) -> None:
    node = nodes.with_reads(healthy(), 3, **{key: code(number)})
    assert closing(judged(node)) == []


BROKEN = [9, 14, 15, 16, 18]
ODD = [10, 999]
NEEDED = [
    *("ecc_mode", "ecc_uncorrected_volatile", "fabric_mask", "fabric_state", "fabric_status", "fabric_summary"),
    *("link_count", "pcie_max_generation", "pcie_width", "recovery_action", "remap_failure", "remap_pending"),
    *("remap_uncorrected", "retired_pages", "retired_pending", "sram_threshold"),
]  # what the checks judge that may close a node


@pytest.mark.parametrize("key", sorted({**EVERY_PHASE, **MORE}))
@pytest.mark.parametrize("number", ODD)
def test_an_odd_answer_closes_only_where_a_closing_check_asked_and_is_asked_for_again(key: str, number: int) -> None:
    found = judged(nodes.with_reads(healthy(), 3, **{key: code(number)}))
    if key in ("name", "serial"):
        assert nodes.of(found, "gpu_lost")[3].outcome is Outcome.PASS
        return
    finding = nodes.one(found, "gpu_lost")
    needed = key in NEEDED
    assert finding.care is (Care.DRAIN if needed else Care.WATCH)
    assert finding.mark is (Mark.TRANSIENT if needed else Mark.NONE)
    assert closing(found) == (["gpu_lost"] if needed else [])


@pytest.mark.parametrize("key", sorted(LINK))
def test_an_odd_answer_of_a_link_closes_only_where_a_closing_check_asked(key: str) -> None:
    found = judged(nodes.with_links(healthy(), 3, [7], **{key: code(999)}))
    needed = key in ("state", "recoveries", "recovery_failed", "crc_errors")
    assert nodes.one(found, "gpu_lost").mark is (Mark.TRANSIENT if needed else Mark.NONE)
    assert closing(found) == (["gpu_lost"] if needed else [])


def test_an_odd_answer_hides_no_broken_one() -> None:
    node = nodes.with_reads(healthy(), 3, temperature_c=code(10), power_mw=code(10), remap_pending=code(16))
    finding = nodes.one(judged(node), "gpu_lost")
    assert (finding.care, finding.code, finding.mark) == (Care.RESET, 16, Mark.NONE)


@pytest.mark.parametrize(
    ("number", "key"),
    [(n, k) for n in BROKEN for k in ("ecc_mode", "remap_pending", "clock_reasons", "fabric_state", "power_mw")]
    + [(n, k) for n in ODD for k in ("ecc_mode", "remap_pending", "fabric_state")],
)
def test_a_gpu_that_answers_with_a_broken_code_is_closed_once(key: str, number: int) -> None:
    found = judged(nodes.with_reads(healthy(), 3, **{key: code(number)}))
    assert closing(found) == ["gpu_lost"]
    finding = nodes.one(found, "gpu_lost")
    assert finding.part == "gpu/0000:33:00.0"
    assert finding.code == number
    assert f"(NVML {number})" in finding.words
    assert key.replace("_", " ") in finding.words
    assert (finding.mark is Mark.LOST_GPU) == (number == 15)


def test_the_name_of_a_gpu_is_judged_by_nobody() -> None:
    assert closing(judged(nodes.with_reads(healthy(), 3, name=code(999), serial=code(999)))) == []


def test_the_prolog_asks_nothing_of_what_it_does_not_read() -> None:
    found = judged(nodes.in_prolog(healthy()), phase=Phase.PROLOG)
    assert not {finding.check for finding in found} & {"power", "persistence", "retired_pages", "retired_pending"}
    assert not [finding for finding in found if any(key in finding.words for key in MORE)]


def test_only_the_gpus_of_the_job_are_judged() -> None:
    node = nodes.with_reads(healthy(), 3, remap_failure=1)
    assert closing(judged(node, phase=Phase.PROLOG, gpus=(0, 1))) == []
    assert closing(judged(node, phase=Phase.PROLOG, gpus=(0, 3))) == ["row_remap_failure"]
    assert closing(judged(node, phase=Phase.PROLOG)) == ["row_remap_failure"]
    assert closing(judged(node)) == ["row_remap_failure"]


def test_gpus_are_asked_for_by_minor_and_not_by_index() -> None:
    node = nodes.with_gpu(nodes.with_gpu(healthy(), 3, minor=5), 5, minor=3)
    node = nodes.with_reads(node, 3, remap_failure=1)
    assert closing(judged(node, phase=Phase.PROLOG, gpus=(3,))) == []
    assert closing(judged(node, phase=Phase.PROLOG, gpus=(5,))) == ["row_remap_failure"]


def test_parts_of_the_whole_node_close_it_for_every_job() -> None:
    profile = Profile("p", ports=(PortWanted("mlx5_0", 1),), host_memory_bytes=4096 * nodes.GIB)
    node = nodes.with_port(healthy(), 0, state="DOWN", phys_state="Disabled")
    found = judged(node, profile, Phase.PROLOG, ())
    assert sorted(closing(found)) == ["host_memory", "port_state"]
    assert not [finding for finding in found if finding.part.startswith("gpu/")]


def test_a_site_makes_a_check_milder_or_harder_in_one_phase_or_all() -> None:
    node = nodes.with_reads(healthy(), 3, remap_failure=1, persistence=0)
    rules = Rules(care={"row_remap_failure@periodic": Care.WATCH, "persistence": Care.DRAIN})
    assert closing(judged(node, rules=rules)) == ["persistence"]
    assert closing(judged(node, phase=Phase.BOOT, rules=rules)) == ["persistence", "row_remap_failure"]


def test_a_site_cannot_close_nodes_for_what_is_not_there() -> None:
    node = nodes.with_reads(healthy(), 3, ecc_mode=code(3), clock_reasons=code(4))
    rules = Rules(care={"ecc_mode": Care.HUMAN, "clock_reasons": Care.HUMAN})
    assert closing(judged(node, rules=rules)) == []


def test_a_site_can_open_nodes_for_a_gpu_that_does_not_answer() -> None:
    node = nodes.with_reads(healthy(), 3, ecc_mode=code(999))
    assert closing(judged(node, rules=Rules(care={"gpu_lost": Care.WATCH}))) == []


@pytest.mark.parametrize(
    ("limit", "value", "reads"),
    [
        ("rows_remapped", 4.0, {"remap_uncorrected": 5}),
        ("ecc_corrected", 4.0, {"ecc_corrected_volatile": 5}),
        ("sram_uncorrected", 2.0, {"sram_uncorrected": 3}),
        ("temperature_margin_c", 30.0, {"temperature_margin_c": 20}),
    ],
)
def test_a_sites_limit_stands_for_the_default(limit: str, value: float, reads: dict[str, int]) -> None:
    node = nodes.with_reads(healthy(), 3, **reads)
    assert failures(judged(node)) == []
    assert len(failures(judged(node, rules=Rules(limits={limit: value})))) == 1
