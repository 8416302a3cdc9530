"""read_nvml on drivers and GPUs of several ages, and the contract with nvidia-ml-py itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fleetctl.health import nvml_fields
from fleetctl.health.model import Read
from tests.integration.health.nvml_child import calls_of, one, read
from tests.nvml.scenario import ByInit, Code, Node, healthy

OLD_LINK_KEYS = ("replays", "recoveries", "crc_errors")


@pytest.fixture
def node() -> Node:
    return healthy("h100-sxm", name="n1")


@pytest.mark.parametrize(("version", "mask", "summary"), [(3, 0x22, 1), (2, 0x22, 0), (1, 0, 0)])
def test_fabric_info_is_read_in_the_newest_form_that_the_driver_knows(
    tmp_path: Path, node: Node, version: int, mask: int, summary: int
) -> None:
    for gpu in node.gpus:
        gpu.fabric_version, gpu.fabric_mask, gpu.fabric_summary, gpu.fabric_status = version, 0x22, 1, 5
    if version == 1:
        node.without = ("nvmlDeviceGetGpuFabricInfoV",)
    paths = node.write(tmp_path)
    gpus = read(paths, processes=True).gpus
    for told in gpus:
        reads = [told.reads[f"fabric_{name}"] for name in ("state", "status", "mask", "summary")]
        assert reads == [Read(3), Read(5), Read(mask), Read(summary)]
    calls = calls_of(paths)
    assert max(calls[index] for index in range(1, 8)) <= 12  # the first GPU has shown what the driver knows


def test_a_fabric_that_comes_up_is_seen_to_do_so(tmp_path: Path, node: Node) -> None:
    node.gpu(3).fabric_state = ByInit(2, 2, 3)
    paths = node.write(tmp_path)
    assert [read(paths).gpus[3].reads["fabric_state"].value for _ in range(4)] == [2, 2, 3, 3]


def test_a_driver_that_calls_clock_events_throttling_is_understood(tmp_path: Path, node: Node) -> None:
    node.without = ("nvmlDeviceGetCurrentClocksEventReasons",)
    node.gpu(3).clock_reasons = 0x40
    paths = node.write(tmp_path)
    assert read(paths, processes=True).gpus[3].reads["clock_reasons"] == Read(0x40)
    assert max(calls_of(paths).values()) <= 12


def test_functions_that_an_old_driver_lacks_are_code_13(tmp_path: Path, node: Node) -> None:
    without = {
        "nvmlDeviceGetGpuFabricInfoV": "fabric_state",
        "nvmlDeviceGetGpuFabricInfo": "fabric_mask",
        "nvmlDeviceGetSramEccErrorStatus": "sram_threshold",
        "nvmlDeviceGetMarginTemperature": "temperature_margin_c",
        "nvmlDeviceGetMemoryInfo_v2": "memory_used_bytes",
        "nvmlDeviceGetMigMode": "mig_mode",
    }
    node.without = tuple(without)
    paths = node.write(tmp_path)
    told = read(paths)
    assert {told.gpus[3].reads[key] for key in without.values()} == {Read(None, 13)}
    assert told.gpus[3].reads["ecc_mode"] == Read(1)
    assert told.calls == len(paths.calls.read_text().splitlines())


def test_an_a100_stops_at_its_twelfth_link(tmp_path: Path) -> None:
    gpu = one(tmp_path, healthy("a100-sxm", name="n1"))
    assert len(gpu.links) == 12
    assert gpu.reads["recovery_action"] == Read(None, 2)
    assert gpu.reads["temperature_margin_c"] == Read(None, 3)


def test_without_a_link_count_links_end_at_the_first_that_is_unknown(tmp_path: Path) -> None:
    node = healthy("a100-sxm", name="n1")
    for gpu in node.gpus:
        gpu.fields = {91: Code(3), (165, 4): Code(999)}
    assert len(one(tmp_path, node).links) == 12


def test_more_links_than_any_gpu_had_are_read_as_well(tmp_path: Path) -> None:
    node = healthy("b200", name="n1")
    for gpu in node.gpus:
        gpu.links = gpu.links + [type(gpu.links[0])() for _ in range(6)]
        gpu.fields = {91: 24}
    gpus = read(node.write(tmp_path)).gpus
    assert {len(gpu.links) for gpu in gpus} == {24}
    assert {link["state"] for gpu in gpus for link in gpu.links} == {Read(1)}


@pytest.mark.parametrize("count", [0, 4096])
def test_a_link_count_that_is_nonsense_is_bounded(tmp_path: Path, node: Node, count: int) -> None:
    node.gpu(3).fields = {91: count}
    gpus = read(node.write(tmp_path)).gpus
    assert len(gpus[3].links) == min(count, 36)
    assert len(gpus[4].links) == 18


def test_blackwell_counts_link_errors_in_its_own_fields(tmp_path: Path) -> None:
    node = healthy("b200", name="n1")
    node.gpu(3).links[9].receive_errors, node.gpu(3).links[9].recovery_failed = 17, 2
    gpu = one(tmp_path, node)
    assert (gpu.links[9]["receive_errors"], gpu.links[9]["recovery_failed"]) == (Read(17), Read(2))
    assert {gpu.links[9][key].code for key in OLD_LINK_KEYS} == {3}


def test_a_domain_above_zero_is_written_as_sysfs_does(tmp_path: Path) -> None:
    pcis = [gpu.pci for gpu in read(healthy("gb200", name="n1").write(tmp_path)).gpus]
    assert pcis[-1] == healthy("gb200", name="n1").gpu(-1).pci.lower()
    assert not pcis[-1].startswith("0000:")


def test_the_field_ids_are_those_of_nvidia_ml_py() -> None:
    names = {
        **{"ECC_CURRENT": 1, "ECC_PENDING": 2, "ECC_SBE_VOL_TOTAL": 3, "ECC_DBE_VOL_TOTAL": 4, "ECC_SBE_AGG_TOTAL": 5},
        **{"ECC_DBE_AGG_TOTAL": 6, "TOTAL_ENERGY_CONSUMPTION": 83, "NVLINK_LINK_COUNT": 91, "PCIE_REPLAY_COUNTER": 94},
        **{"REMAPPED_COR": 142, "REMAPPED_UNC": 143, "REMAPPED_PENDING": 144, "REMAPPED_FAILURE": 145},
        **{"GET_GPU_RECOVERY_ACTION": 230, "RETIRED_SBE": 29, "RETIRED_DBE": 30, "RETIRED_PENDING": 31},
        **{"NVLINK_GET_STATE": 165, "NVLINK_ERROR_DL_REPLAY": 161, "NVLINK_ERROR_DL_RECOVERY": 162},
        **{"NVLINK_ERROR_DL_CRC": 163, "NVLINK_COUNT_RCV_ERRORS": 208},
        **{"NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS": 211, "NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS": 214},
        **{"NVLINK_COUNT_LINK_RECOVERY_EVENTS": 215},
    }
    ours = [*nvml_fields.EVERY_PHASE.values(), *nvml_fields.MORE.values(), *nvml_fields.LINK.values()]
    assert sorted(names.values()) == sorted(ours)
    program = f"import json, pynvml; print(json.dumps([getattr(pynvml, 'NVML_FI_DEV_' + n) for n in {list(names)!r}]))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == list(names.values())


def test_reading_imports_nothing_that_starts_processes_or_packs_files(tmp_path: Path, node: Node) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from fleetctl.health.model import Phase\n"
        "from fleetctl.health.nvml import Wanted, read_nvml\n"
        "print(read_nvml(Wanted(Phase.PROLOG, library=sys.argv[2])).answer.value)\n"
        "print(*sorted({'subprocess', 'tempfile', 'shutil', 'lzma', 'ctypes.util', 'logging'} & set(sys.modules)))"
    )
    root = str(Path(__file__).parents[3])
    library = str(node.write(tmp_path).library)
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, root, library], capture_output=True, text=True, check=True
    )
    assert done.stdout == "answered\n\n"
