"""read_nvml through the real nvidia-ml-py over the stand-in library, in a child as in the prolog."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from fleetctl.health import nvml_fields, readings
from fleetctl.health.model import Answer, Gpu, Nvml, Phase, Process, Read
from fleetctl.health.nvml import Wanted
from fleetctl.health.wire import from_wire
from tests.integration.health.nvml_child import apart, calls_of, one, read
from tests.nvml import scenario
from tests.nvml.platforms import PLATFORMS
from tests.nvml.scenario import Code, Node, healthy, read_calls

NEW_LINK_KEYS = ("receive_errors", "integrity_errors", "recovery_failed", "recovery_events")


@pytest.fixture
def node() -> Node:
    return healthy("h100-sxm", name="n1")


@pytest.mark.parametrize("platform", sorted(PLATFORMS))
def test_a_healthy_node_is_read_within_the_calls_of_the_prolog(tmp_path: Path, platform: str) -> None:
    paths = healthy(platform, name="n1").write(tmp_path)
    told = read(paths, peers=True, processes=True)
    count, links = len(PLATFORMS[platform].gpus), PLATFORMS[platform].links
    assert [gpu.index for gpu in told.gpus] == list(range(count))
    assert {gpu.code for gpu in told.gpus} == {0}
    assert {len(gpu.links) for gpu in told.gpus} == {links}
    assert all(link["state"].code == 0 for gpu in told.gpus for link in gpu.links)
    assert all(set(gpu.reads) == set(readings.EVERY_PHASE) for gpu in told.gpus)
    assert len({gpu.pci for gpu in told.gpus}) == len({gpu.uuid for gpu in told.gpus}) == count
    assert max(calls_of(paths).values()) <= 12
    assert len(told.peers) == count * (count - 1) // 2
    assert {peer.status.code for peer in told.peers} == {0}
    assert told.calls == len(paths.calls.read_text().splitlines())


def test_what_the_scenario_says_is_what_is_read(tmp_path: Path, node: Node) -> None:
    gpu = node.gpu(3)
    gpu.energy_mj, gpu.ecc_corrected_volatile, gpu.sram_uncorrected = 2**40 + 5, 2**33, 7
    gpu.recovery_action, gpu.remap_pending, gpu.sram_threshold, gpu.clock_reasons = 2, 1, 1, 0x48
    gpu.memory_used_bytes, gpu.temperature_margin_c, gpu.pcie_replays, gpu.minor = 5 << 30, -4, 9, 6
    gpu.links[7].state, gpu.links[17].crc_errors, gpu.links[4].replays = 0, 12, 2**35
    seen = one(tmp_path, node)
    expected = {
        "energy_mj": 2**40 + 5,
        "ecc_corrected_volatile": 2**33,
        "sram_uncorrected": 7,
        "recovery_action": 2,
        "remap_pending": 1,
        "sram_threshold": 1,
        "clock_reasons": 0x48,
        "memory_used_bytes": 5 << 30,
        "memory_total_bytes": gpu.memory_total_bytes,
        "temperature_margin_c": -4,
        "pcie_replays": 9,
        "link_count": 18,
        "fabric_state": 3,
    }
    assert {key: seen.reads[key] for key in expected} == {key: Read(value) for key, value in expected.items()}
    assert (seen.pci, seen.minor, seen.uuid, seen.device_id) == (gpu.pci.lower(), 6, gpu.uuid, node.platform.device_id)
    assert [number for number, link in enumerate(seen.links) if link["state"] == Read(0)] == [7]
    assert (seen.links[17]["crc_errors"], seen.links[4]["replays"]) == (Read(12), Read(2**35))
    assert {link[key].code for link in seen.links for key in NEW_LINK_KEYS} == {3}


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.PROLOG])
def test_outside_the_prolog_more_is_read(tmp_path: Path, node: Node, phase: Phase) -> None:
    node.gpu(3).run_pcie_at(generation=1)
    node.gpu(3).persistence = 0
    reads = one(tmp_path, node, phase).reads
    assert set(reads) == set(readings.EVERY_PHASE) | set(readings.MORE)
    wanted = {
        "pcie_generation": 1,
        "pcie_max_generation": 5,
        "pcie_width": 16,
        "persistence": 0,
        "power_limit_mw": 700000,
    }
    assert {key: reads[key].value for key in wanted} == wanted
    assert reads["name"].value.startswith("NVIDIA H100")


def test_of_gpus_that_the_job_does_not_have_only_the_identity_is_read(tmp_path: Path, node: Node) -> None:
    node.gpu(1).minor, node.gpu(5).minor = 5, 1  # NVML's order is not that of /dev/nvidiaN
    paths = node.write(tmp_path)
    told = read(paths, gpus=(1, 2), peers=True)
    assert [gpu.index for gpu in told.gpus if gpu.reads] == [2, 5]
    assert [(peer.first, peer.second) for peer in told.peers] == [(2, 5)]
    calls = calls_of(paths)
    assert {index: calls[index] for index in range(8) if index not in (2, 5)} == dict.fromkeys((0, 1, 3, 4, 6, 7), 3)


@pytest.mark.parametrize("code", [9, 12, 18, 999])
def test_a_library_that_does_not_start_is_a_code(tmp_path: Path, node: Node, code: int) -> None:
    node.returns("nvmlInitWithFlags", code)
    told = read(node.write(tmp_path))
    assert (told.answer, told.code, told.gpus) == (Answer.FAILED, code, ())
    assert told.detail


def test_a_library_that_is_not_there_is_code_12(tmp_path: Path) -> None:
    done = apart(Wanted(Phase.PROLOG, library=str(tmp_path / "libnvidia-ml.so.1")))
    told = from_wire(Nvml, done.value)
    assert (told.answer, told.code) == (Answer.FAILED, 12)
    assert "libnvidia-ml.so.1: cannot open shared object file" in told.detail


def test_a_library_that_is_none_is_code_12(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"\x7fELF" + bytes(900))
    assert apart(Wanted(Phase.PROLOG, library=str(tmp_path / "libnvidia-ml.so.1"))).value["code"] == 12


def test_without_nvidia_ml_py_it_says_so_and_gives_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)  # another test may have imported it
    told = from_wire(Nvml, apart(Wanted(Phase.PROLOG, library=None)).value)
    assert (told.answer, told.code) == (Answer.FAILED, 0)
    assert told.detail.startswith("nvidia-ml-py cannot be imported")


def test_a_count_that_fails_is_a_code(tmp_path: Path, node: Node) -> None:
    node.returns("nvmlDeviceGetCount_v2", 999)
    told = read(node.write(tmp_path))
    assert (told.answer, told.code, told.driver) == (Answer.FAILED, 999, node.driver)


def test_a_count_of_billions_ends(tmp_path: Path, node: Node) -> None:
    paths = node.write(tmp_path)
    paths.scenario.write_text(paths.scenario.read_text().replace("count 8\n", "count 4294967295\n"))
    told = read(paths)
    assert (told.answer, len(told.gpus)) == (Answer.ANSWERED, 64)


@pytest.mark.parametrize("code", [15, 999])
def test_a_gpu_without_a_handle_is_counted_and_costs_the_others_nothing(tmp_path: Path, node: Node, code: int) -> None:
    node.gpu(3).handle = Code(code)
    paths = node.write(tmp_path)
    told = read(paths, peers=True)
    assert told.gpus[3] == Gpu(3, code)
    assert [len(gpu.links) for gpu in told.gpus if gpu.index != 3] == [18] * 7
    assert len(told.peers) == 21
    assert calls_of(paths)[3] == 1


def test_a_gpu_that_turns_out_to_be_lost_is_asked_nothing_more(tmp_path: Path, node: Node) -> None:
    node.returns("nvmlDeviceGetFieldValues", 15, gpu=3)
    paths = node.write(tmp_path)
    told = read(paths, peers=True, processes=True)
    gpu = told.gpus[3]
    assert (gpu.code, gpu.minor, gpu.links, gpu.processes) == (0, 3, (), None)
    assert set(gpu.reads.values()) == {Read(None, 15)}
    assert set(gpu.reads) == set(readings.EVERY_PHASE)
    assert calls_of(paths)[3] == 5
    assert len(told.peers) == 21
    assert {len(other.links) for other in told.gpus if other.index != 3} == {18}


@pytest.mark.parametrize("call", ["nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo_v3"])
def test_a_gpu_that_cannot_tell_which_it_is_says_why(tmp_path: Path, node: Node, call: str) -> None:
    node.returns(call, 999, gpu=3)
    gpu = one(tmp_path, node, gpus=(3,))
    assert (gpu.code, gpu.minor, gpu.reads) == (999, None, {})


def test_a_minor_number_that_the_driver_does_not_know_is_no_fault(tmp_path: Path, node: Node) -> None:
    node.returns("nvmlDeviceGetMinorNumber", 3, gpu=3)
    gpu = one(tmp_path, node, gpus=(7,))
    assert (gpu.code, gpu.minor, len(gpu.links)) == (0, None, 18)


@pytest.mark.parametrize("uninterruptibly", [False, True])
@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetFieldValues"])
def test_a_call_that_hangs_is_left_at_the_deadline(
    tmp_path: Path, node: Node, call: str, uninterruptibly: bool
) -> None:
    node.hangs(call, uninterruptibly=uninterruptibly)
    paths = node.write(tmp_path)
    began = time.monotonic()
    done = apart(Wanted(Phase.PROLOG, library=str(paths.library)), 0.7, tmp_path / "stuck")
    assert done.answer is Answer.HUNG
    assert time.monotonic() - began < 0.7 + 0.5
    assert call in [name for name, _ in read_calls(paths)]


def test_a_library_that_dies_is_a_crash(tmp_path: Path, node: Node) -> None:
    node.dies("nvmlDeviceGetFieldValues")
    done = apart(Wanted(Phase.PROLOG, library=str(node.write(tmp_path).library)))
    assert (done.answer, done.detail) == (Answer.CRASHED, "it was killed by signal 11")


def test_a_bad_entry_spoils_nothing_but_itself(tmp_path: Path, node: Node) -> None:
    node.gpu(3).fields = {230: Code(2), (165, 7): Code(999), 145: Code(3)}
    gpu = one(tmp_path, node)
    assert {key: read.code for key, read in gpu.reads.items() if read.code} == {
        "recovery_action": 2,
        "remap_failure": 3,
    }
    assert [link["state"].code for link in gpu.links] == [0] * 7 + [999] + [0] * 10
    assert gpu.links[7]["replays"] == Read(0)


def test_field_values_that_fail_as_a_whole_are_asked_by_function_outside_the_prolog(tmp_path: Path, node: Node) -> None:
    node.returns("nvmlDeviceGetFieldValues", 3)
    node.gpu(3).ecc_uncorrected_volatile, node.gpu(3).remap_pending, node.gpu(3).links[5].state = 4, 1, 0
    node.gpu(3).links[2].crc_errors = 8
    paths = node.write(tmp_path)
    prolog = read(paths).gpus[3]
    assert (prolog.reads["ecc_mode"], prolog.links) == (Read(None, 3), ())
    periodic = read(paths, Phase.PERIODIC).gpus[3]
    unknown = {key for key in readings.EVERY_PHASE if periodic.reads[key].code}
    assert unknown == {"recovery_action", "link_count"}
    assert (periodic.reads["ecc_uncorrected_volatile"], periodic.reads["remap_pending"]) == (Read(4), Read(1))
    assert [link["state"].value for link in periodic.links] == [1] * 5 + [0] + [1] * 12
    assert periodic.links[2]["crc_errors"] == Read(8)
    assert periodic.links[2]["receive_errors"] == Read(None, 3)


def test_a_driver_that_knows_no_link_fields_is_asked_link_by_link(tmp_path: Path, node: Node) -> None:
    for gpu in node.gpus:
        gpu.fields = dict.fromkeys(nvml_fields.LINK.values(), Code(2))
    node.gpu(3).links[5].state = 0
    assert [link["state"].value for link in one(tmp_path, node, Phase.BOOT).links] == [1] * 5 + [0] + [1] * 12


def test_processes_are_told_with_their_memory(tmp_path: Path, node: Node) -> None:
    node.gpu(3).processes = [scenario.Process(4711, 1 << 30), scenario.Process(4712, None)]
    paths = node.write(tmp_path)
    told = read(paths, processes=True)
    assert told.gpus[3].processes == (Process(4711, 1 << 30), Process(4712, None))
    assert told.gpus[2].processes == ()
    assert told.calls == len(paths.calls.read_text().splitlines())
    assert read(paths).gpus[3].processes is None


@pytest.mark.parametrize(("then", "expected"), [(7, 7), (400, None)])
def test_a_list_of_processes_that_grows_is_read_or_given_up(
    tmp_path: Path, node: Node, then: int, expected: int | None
) -> None:
    node.gpu(3).processes = [scenario.Process(1, 1)]
    node.gpu(3).processes_then = [scenario.Process(pid, 1) for pid in range(1, then + 1)]
    paths = node.write(tmp_path)
    told = read(paths, processes=True)
    found = told.gpus[3].processes
    assert (None if found is None else len(found)) == expected
    assert told.calls == len(paths.calls.read_text().splitlines())


def test_mig_hides_what_it_hides_and_nothing_more(tmp_path: Path, node: Node) -> None:
    node.gpu(3).turn_mig_on()
    gpu = one(tmp_path, node, processes=True)
    assert gpu.reads["mig_mode"] == Read(1)
    assert {gpu.reads[key].code for key in ("remap_pending", "remap_failure")} == {3}
    assert (gpu.processes, gpu.reads["ecc_mode"], len(gpu.links)) == (None, Read(1), 18)


def test_two_kinds_of_gpus_in_one_node_are_each_asked_in_full(tmp_path: Path, node: Node) -> None:
    node.gpus[1] = healthy("b200", name="n2").gpu(1)
    node.gpu(1).links[0].receive_errors = 5
    gpus = read(node.write(tmp_path)).gpus
    assert (gpus[1].links[0]["receive_errors"], gpus[2].links[0]["replays"]) == (Read(5), Read(0))


def test_a_list_of_processes_that_grew_once_is_asked_for_again(tmp_path: Path, node: Node) -> None:
    node.gpu(3).processes = [scenario.Process(4711, 1)]
    node.returns("nvmlDeviceGetComputeRunningProcesses_v3", 7, gpu=3, first=2)
    assert one(tmp_path, node, Phase.PERIODIC, processes=True).processes == (Process(4711, 1),)


def test_letters_that_are_none_are_read_all_the_same(tmp_path: Path, node: Node) -> None:
    paths = node.write(tmp_path)
    text = paths.scenario.read_bytes()
    text = text.replace(node.gpu(3).uuid.encode(), b"GPU-\xff\xfe").replace(node.driver.encode(), b"\xff570")
    paths.scenario.write_bytes(text)
    told = read(paths)
    assert (told.gpus[3].uuid, told.driver) == ("GPU-\ufffd\ufffd", "\ufffd570")
