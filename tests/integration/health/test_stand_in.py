"""The stand-in NVML, seen through the real nvidia-ml-py: what every test of the health checks stands on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nvml.asking import ask
from tests.nvml.platforms import PLATFORMS
from tests.nvml.scenario import Code, healthy

GPU_3 = "n.nvmlInit(); gpu = handle(3)\n"

STRUCTS = {
    "pci_info": ("nvmlPciInfo_t", 68),
    "memory": ("c_nvmlMemory_t", 24),
    "memory_v2": ("c_nvmlMemory_v2_t", 40),
    "field_value": ("c_nvmlFieldValue_t", 40),
    "process_info": ("c_nvmlProcessInfo_v3_t", 24),
    "event_data": ("c_nvmlEventData_t", 32),
    "sram_status": ("c_nvmlEccSramErrorStatus_v1_t", 104),
    "fabric": ("c_nvmlGpuFabricInfo_t", 28),
    "fabric_v2": ("c_nvmlGpuFabricInfo_v2_t", 36),
    "fabric_v3": ("c_nvmlGpuFabricInfo_v3_t", 40),
    "margin": ("c_nvmlMarginTemperature_v1_t", 8),
    "temperature": ("c_nvmlTemperature_v1_t", 12),
    "link_info": ("c_nvmlNvLinkInfo_v1_t", 8),
    "link_info_v2": ("c_nvmlNvLinkInfo_v2_t", 1612),
    "utilization": ("c_nvmlUtilization_t", 8),
}

VERSIONED = {
    "n.nvmlDeviceGetSramEccErrorStatus": "n.c_nvmlEccSramErrorStatus_v1_t",
    "n.nvmlDeviceGetGpuFabricInfoV": "n.c_nvmlGpuFabricInfo_v3_t",
    "n.nvmlDeviceGetNvLinkInfo": "n.c_nvmlNvLinkInfo_v2_t",
}


def test_structs_are_as_large_as_those_of_nvidia_ml_py(tmp_path: Path) -> None:
    sizes = ask(
        healthy("h100-sxm").write_nvml(tmp_path),
        f"size = ctypes.CDLL(sys.argv[1]).stand_in_size\n"
        f"say({{k: [size(k.encode()), ctypes.sizeof(getattr(n, c))] for k, (c, _) in {STRUCTS!r}.items()}})",
    )
    assert sizes == {kind: [size, size] for kind, (_, size) in STRUCTS.items()}


@pytest.mark.parametrize(("call", "kind"), VERSIONED.items())
def test_an_unknown_version_of_a_struct_is_refused(tmp_path: Path, call: str, kind: str) -> None:
    told = ask(
        healthy("h100-sxm").write_nvml(tmp_path),
        f"{GPU_3}good = {kind}(); bad = {kind}(); bad.version += 1 << 24\n"
        f"say([answer({call}, gpu, ctypes.byref(good)), answer({call}, gpu, ctypes.byref(bad))])",
    )
    assert told == [0, "code 25"]


def test_the_version_of_memory_and_of_margin_is_looked_at(tmp_path: Path) -> None:
    told = ask(
        healthy("h100-sxm").write_nvml(tmp_path),
        f"{GPU_3}n.nvmlMarginTemperature_v1 += 1\nsay([answer(n.nvmlDeviceGetMemoryInfo, gpu, n.nvmlMemory_v2 + 1), "
        "answer(n.nvmlDeviceGetMarginTemperature, gpu)])",
    )
    assert told == ["code 25", "code 25"]


def test_the_older_fabric_structs_tell_the_same(tmp_path: Path) -> None:
    node = healthy("b200")
    node.gpu(3).fabric_status, node.gpu(3).fabric_clique = 23, 7
    told = ask(
        node.write_nvml(tmp_path),
        f"{GPU_3}old = n.c_nvmlGpuFabricInfo_t()\n"
        "middle, new = n.c_nvmlGpuFabricInfo_v2_t(), n.c_nvmlGpuFabricInfo_v3_t()\n"
        "n.nvmlDeviceGetGpuFabricInfo(gpu, ctypes.byref(old))\n"
        "for info in (middle, new): n.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(info))\n"
        "say([[i.state, i.status, i.cliqueId] for i in (old, middle, new)]"
        " + [middle.healthMask, new.healthMask, new.healthSummary])",
    )
    assert told == [[3, 23, 7]] * 3 + [0x1AA, 0x1AA, 1]


def test_a_driver_of_the_second_fabric_struct_refuses_the_third(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    node.gpu(3).fabric_version = 2
    told = ask(
        node.write_nvml(tmp_path),
        f"{GPU_3}say([answer(n.nvmlDeviceGetGpuFabricInfoV, gpu, ctypes.byref(k()))"
        " for k in (n.c_nvmlGpuFabricInfo_v2_t, n.c_nvmlGpuFabricInfo_v3_t)])",
    )
    assert told == [0, "code 25"]


def test_nothing_is_answered_before_init_or_after_the_last_shutdown(tmp_path: Path) -> None:
    told = ask(
        healthy("h100-sxm").write_nvml(tmp_path),
        "n._LoadNvmlLibrary(); said = [answer(n.nvmlDeviceGetCount)]\n"
        "n.nvmlInit(); n.nvmlInit(); gpu = handle(0)\n"
        "n.nvmlShutdown(); said.append(answer(n.nvmlDeviceGetCount))\n"
        "n.nvmlShutdown(); say([*said, answer(n.nvmlDeviceGetCount), answer(n.nvmlDeviceGetName, gpu)])",
    )
    assert told == ["code 1", 8, "code 1", "code 1"]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_each_platform_is_told_as_it_is(tmp_path: Path, platform: str) -> None:
    kind = PLATFORMS[platform]
    told = ask(
        healthy(platform).write_nvml(tmp_path),
        "n.nvmlInit(); said = {'count': n.nvmlDeviceGetCount(), 'driver': n.nvmlSystemGetDriverVersion()}\n"
        "gpu = handle(1); pci = n.nvmlDeviceGetPciInfo(gpu)\n"
        "said.update(name=n.nvmlDeviceGetName(gpu), id=pci.pciDeviceId, pci=pci.busId,\n"
        "  minor=n.nvmlDeviceGetMinorNumber(gpu),\n"
        "  links=[answer(n.nvmlDeviceGetNvLinkState, gpu, link) for link in range(37)],\n"
        "  width=n.nvmlDeviceGetCurrPcieLinkWidth(gpu), generation=n.nvmlDeviceGetMaxPcieLinkGeneration(gpu),\n"
        "  memory=n.nvmlDeviceGetMemoryInfo(gpu, n.nvmlMemory_v2).total >> 20)\n"
        "say(said)",
    )
    up, down = [1] * kind.links_up, [0] * (kind.links - kind.links_up)
    past = [f"code {kind.link_end}"] * (36 - kind.links)
    assert told == {
        "count": len(kind.gpus),
        "driver": kind.driver,
        "name": kind.product,
        "id": kind.device_id,
        "pci": f"0000{kind.gpus[1]}".upper(),
        "minor": 1,
        "links": [*up, *down, *past, "code 2"],
        "width": 16,
        "generation": kind.generation,
        "memory": kind.memory_mib,
    }


def test_calls_and_fields_tell_the_same(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    gpu = node.gpu(3)
    gpu.links[7].state, gpu.links[7].replays, gpu.links[7].recoveries, gpu.links[7].crc_errors = 0, 3, 4, 5
    gpu.remap_corrected, gpu.remap_uncorrected, gpu.remap_pending, gpu.remap_failure = 1, 2, 0, 1
    gpu.ecc_corrected_volatile, gpu.ecc_uncorrected_aggregate, gpu.sram_uncorrected = 11, 9, 7
    gpu.pcie_replays, gpu.energy_mj, gpu.power_mw = 21, 1 << 40, 310_000
    told = ask(
        node.write_nvml(tmp_path),
        f"{GPU_3}E, T = n.nvmlDeviceGetMemoryErrorCounter, n.nvmlDeviceGetTotalEccErrors\n"
        "say([[n.nvmlDeviceGetNvLinkState(gpu, 7), field(gpu, (165, 7)), field(gpu, (165, 6))],\n"
        " [n.nvmlDeviceGetNvLinkErrorCounter(gpu, 7, which) for which in (0, 1, 2)],\n"
        " [field(gpu, (id, 7)) for id in (161, 162, 163)], [field(gpu, id) for id in (109, 115, 97, 52, 59, 38)],\n"
        " n.nvmlDeviceGetRemappedRows(gpu), [field(gpu, id) for id in (142, 143, 144, 145)],\n"
        " [T(gpu, 0, 0), field(gpu, 3), T(gpu, 1, 1), field(gpu, 6)],\n"
        " [E(gpu, 1, 1, 2), E(gpu, 1, 1, 7), E(gpu, 0, 0, 2), E(gpu, 0, 0, 0)],\n"
        " [n.nvmlDeviceGetPcieReplayCounter(gpu), field(gpu, 94)],\n"
        " [n.nvmlDeviceGetTotalEnergyConsumption(gpu), field(gpu, 83)],\n"
        " [n.nvmlDeviceGetPowerUsage(gpu), field(gpu, 186)],\n"
        " [field(gpu, 91), field(gpu, 230), field(gpu, 1), field(gpu, 147)]])",
    )
    assert told == [
        *([0, 0, 1], [3, 4, 5], [3, 4, 5], [3, 4, 5, 3, 4, 5]),
        *([1, 2, 0, 1], [1, 2, 0, 1], [11, 11, 9, 9], [2, 7, 11, 0]),
        *([21, 21], [1 << 40, 1 << 40], [310_000, 310_000], [18, 0, 1, 18]),
    ]


def test_blackwell_has_its_own_link_errors(tmp_path: Path) -> None:
    node = healthy("b200")
    link = node.gpu(3).links[7]
    link.receive_errors, link.integrity_errors, link.recovery_failed, link.recovery_events = 1, 2, 3, 4
    told = ask(
        node.write_nvml(tmp_path),
        f"{GPU_3}say([[field(gpu, (id, 7)) for id in (208, 211, 214, 215, 161)],"
        " answer(n.nvmlDeviceGetNvLinkErrorCounter, gpu, 7, 0)])",
    )
    assert told == [[1, 2, 3, 4, "code 3"], "code 3"]


def test_sram_errors_are_told_by_kind_with_the_threshold(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    node.gpu(3).sram_uncorrected, node.gpu(3).sram_threshold = 7, 1
    told = ask(
        node.write_nvml(tmp_path),
        f"{GPU_3}status = n.c_nvmlEccSramErrorStatus_v1_t()\n"
        "n.nvmlDeviceGetSramEccErrorStatus(gpu, ctypes.byref(status))\n"
        "say([status.aggregateUncParity, status.aggregateUncSecDed, status.volatileCor, status.bThresholdExceeded])",
    )
    assert told == [2, 5, 0, 1]


def test_one_bad_field_comes_in_a_good_answer(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    node.gpu(3).fields = {230: Code(2), (165, 7): Code(999), 94: 5}
    told = ask(
        node.write_nvml(tmp_path),
        f"{GPU_3}values = n.nvmlDeviceGetFieldValues(gpu, [230, (165, 6), (165, 7), 94, 400, 82])\n"
        "say([[v.nvmlReturn for v in values], values[3].value.uiVal, answer(n.nvmlDeviceGetNvLinkState, gpu, 7)])",
    )
    assert told == [[2, 0, 999, 0, 2, 3], 5, 1]


def test_the_first_version_of_memory_counts_what_the_driver_took(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    node.gpu(3).memory_used_bytes, node.gpu(3).memory_reserved_bytes = 1000, 900_000
    told = ask(
        node.write_nvml(tmp_path),
        f"{GPU_3}old, new = n.nvmlDeviceGetMemoryInfo(gpu), n.nvmlDeviceGetMemoryInfo(gpu, n.nvmlMemory_v2)\n"
        "say([old.used, new.used, new.reserved, old.total == new.total == new.used + new.reserved + new.free])",
    )
    assert told == [901_000, 1000, 900_000, True]
