"""How the stand-in NVML misbehaves: without handles, with codes, slowly, never, differently from call to call."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.nvml.asking import ask, program
from tests.nvml.scenario import ByCall, ByInit, Code, Node, Process, healthy, read_calls

GPU_3 = "n.nvmlInit(); gpu = handle(3)\n"


@pytest.mark.parametrize("code", [15, 999])
def test_a_gpu_without_a_handle_is_still_counted(tmp_path: Path, code: int) -> None:
    node = healthy("h100-sxm")
    node.gpu(3).handle = Code(code)
    told = ask(
        node.write_nvml(tmp_path),
        "n.nvmlInit(); by_bus = n.nvmlDeviceGetHandleByPciBusId\n"
        "say([n.nvmlDeviceGetCount(), answer(handle, 3), answer(by_bus, b'00000000:61:00.0'), answer(handle, 8),\n"
        f"  answer(n.nvmlDeviceGetHandleByUUID, b'{node.gpu(3).uuid}'), n.nvmlDeviceGetName(handle(4)),\n"
        "  n.nvmlDeviceGetMinorNumber(by_bus(b'0000:9d:00.0'))])",
    )
    assert told == [8, f"code {code}", f"code {code}", "code 2", f"code {code}", "NVIDIA H100 80GB HBM3", 4]


@pytest.mark.parametrize("code", [9, 12, 18, 999])
def test_init_fails_with_a_code(tmp_path: Path, code: int) -> None:
    node = healthy("h100-sxm")
    node.returns("nvmlInitWithFlags", code)
    assert ask(node.write_nvml(tmp_path), "say([answer(n.nvmlInit), answer(n.nvmlDeviceGetCount)])") == [
        f"code {code}",
        "code 1",
    ]


def test_a_call_fails_on_one_gpu_and_only_so_often(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    node.returns("nvmlDeviceGetPowerUsage", 999, gpu=3, first=2)
    paths = node.write_nvml(tmp_path)
    power = "n.nvmlInit(); say([answer(n.nvmlDeviceGetPowerUsage, handle(index)) for index in (3, 4)])"
    assert [ask(paths, power) for _ in range(3)] == [["code 999", 71_000]] * 2 + [[71_000, 71_000]]


def test_every_call_on_a_lost_gpu_fails(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    node.returns("*", 15, gpu=3)
    node.returns("nvmlDeviceGetHandleByIndex_v2", 0, gpu=3)
    told = ask(
        node.write_nvml(tmp_path),
        f"{GPU_3}say([answer(n.nvmlDeviceGetName, gpu), answer(n.nvmlDeviceGetFieldValues, gpu, [1]),"
        " answer(n.nvmlDeviceGetName, handle(2))])",
    )
    assert told == ["code 15", "code 15", "NVIDIA H100 80GB HBM3"]


def _started(node: Node, folder: Path) -> subprocess.Popen[str]:
    """A process that says `asking` and then asks for GPU 3's fields."""
    text = f"{GPU_3}print('asking', flush=True); n.nvmlDeviceGetFieldValues(gpu, [1]); print('done')"
    child = subprocess.Popen(program(node.write_nvml(folder), text), stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "asking\n"
    return child


def _await_state(pid: int, state: str) -> None:
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != state:
        assert time.monotonic() < deadline, f"process {pid} never came into state {state}"
        time.sleep(0.01)


@pytest.mark.parametrize(("uninterruptibly", "state"), [(False, "S"), (True, "D")])
def test_a_hung_call_is_deaf_to_all_but_the_kill(tmp_path: Path, uninterruptibly: bool, state: str) -> None:
    node = healthy("h100-sxm")
    node.hangs("nvmlDeviceGetFieldValues", gpu=3, uninterruptibly=uninterruptibly)
    with _started(node, tmp_path) as child:
        _await_state(child.pid, state)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            child.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.3)
        child.kill()
        assert child.wait(30) == -signal.SIGKILL


def test_a_slow_call_answers_in_the_end_and_a_deadly_one_never(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    node.sleeps("nvmlDeviceGetFieldValues", 0.4, gpu=3)
    with _started(node, tmp_path / "slow") as child:
        began = time.monotonic()
        assert child.communicate()[0] == "done\n"
        assert time.monotonic() - began >= 0.3
    node.dies("nvmlDeviceGetFieldValues", gpu=3)
    with _started(node, tmp_path / "dies") as child:
        assert child.wait(30) == -signal.SIGSEGV


def test_values_change_by_call_and_by_init_over_processes(tmp_path: Path) -> None:
    node = healthy("h200")
    node.gpu(3).clock_reasons = ByCall(1, 8, Code(999), 4)
    node.gpu(3).fabric_state = ByInit(2, 2, 3)
    node.gpu(3).links[7].state = ByCall(0, 1)
    paths = node.write_nvml(tmp_path)
    text = (
        f"{GPU_3}f = n.c_nvmlGpuFabricInfo_v3_t()\n"
        "def state(): return n.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(f)) or f.state\n"
        "say([answer(n.nvmlDeviceGetCurrentClocksEventReasons, gpu), state(), state(),"
        " field(gpu, (165, 7)), field(gpu, (165, 8))])"
    )
    assert [ask(paths, text) for _ in range(5)] == [
        *([1, 2, 2, 0, 1], [8, 2, 2, 1, 1], ["code 999", 3, 3, 1, 1]),
        *([4, 3, 3, 1, 1], [4, 3, 3, 1, 1]),
    ]


def test_the_scenario_is_read_again_at_each_init(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    paths = node.write_nvml(tmp_path)
    node.gpu(3).temperature_c = 91
    told = ask(
        paths,
        f"{GPU_3}said = [n.nvmlDeviceGetTemperature(gpu, 0)]\n"
        f"open({str(paths.scenario)!r}, 'w').write({node.scenario()!r})\n"
        "said.append(n.nvmlDeviceGetTemperature(gpu, 0)); n.nvmlShutdown(); n.nvmlInit()\n"
        "say([*said, n.nvmlDeviceGetTemperature(handle(3), 0)])",
    )
    assert told == [34, 34, 91]


def test_processes_may_grow_between_the_two_calls(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    node.gpu(1).processes = [Process(4711, 1 << 30), Process(4712, None)]
    node.gpu(2).processes, node.gpu(2).processes_then = [Process(1, 1)], [Process(number, 1) for number in range(1, 7)]
    node.gpu(3).processes, node.gpu(3).processes_then = [Process(1, 1)], [Process(number, 1) for number in range(1, 9)]
    told = ask(
        node.write_nvml(tmp_path),
        "n.nvmlInit()\ndef on(index):\n    found = answer(n.nvmlDeviceGetComputeRunningProcesses, handle(index))\n"
        "    return found if isinstance(found, str) else [[p.pid, p.usedGpuMemory] for p in found]\n"
        "say([on(index) for index in (0, 1, 2, 3)])",
    )
    assert told == [[], [[4711, 1 << 30], [4712, None]], [[number, 1] for number in range(1, 7)], "code 7"]


def test_mig_hides_counts_and_has_instances(tmp_path: Path) -> None:
    node = healthy("a100-sxm")
    node.gpu(3).turn_mig_on(instances=2)
    node.gpu(2).mig_devices = 1  # of no account while MIG is off
    told = ask(
        node.write_nvml(tmp_path),
        f"{GPU_3}instance = n.nvmlDeviceGetMigDeviceHandleByIndex; one = instance(gpu, 1)\n"
        "say([n.nvmlDeviceGetMigMode(gpu), answer(n.nvmlDeviceGetRemappedRows, gpu), field(gpu, 144),\n"
        " answer(n.nvmlDeviceGetComputeRunningProcesses, gpu), n.nvmlDeviceGetUUID(one),\n"
        " answer(n.nvmlDeviceGetPowerUsage, one), answer(instance, gpu, 2), answer(instance, gpu, 7),\n"
        " answer(instance, handle(2), 0), n.nvmlDeviceGetMaxMigDeviceCount(gpu)])",
    )
    assert told[4].startswith("MIG-")
    assert [*told[:4], *told[5:]] == [[1, 1], "code 3", "code 3", "code 4", "code 3", "code 6", "code 2", "code 6", 7]


def test_pairs_have_a_status_and_a_level(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    node.peer(5, 1, p2p=1, topology=20)
    told = ask(
        node.write_nvml(tmp_path),
        "n.nvmlInit(); p, t = n.nvmlDeviceGetP2PStatus, n.nvmlDeviceGetTopologyCommonAncestor\n"
        "g = [handle(i) for i in range(8)]\n"
        "say([p(g[0], g[1], 0), p(g[1], g[5], 0), p(g[5], g[1], 0), t(g[1], g[5]), t(g[0], g[1]), t(g[0], g[7]),\n"
        " p(g[0], g[2], 2), answer(p, g[0], g[0], 0)])",
    )
    assert told == [0, 1, 1, 20, 40, 50, 0, "code 2"]


def test_retired_pages_are_listed_where_there_are_any(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    node.gpu(3).retired_pages, node.gpu(3).retired_pending = 3, 1
    told = ask(
        node.write_nvml(tmp_path),
        f"{GPU_3}say([len(n.nvmlDeviceGetRetiredPages(gpu, 1)), len(n.nvmlDeviceGetRetiredPages(gpu, 0)),"
        " len(n.nvmlDeviceGetRetiredPages_v2(gpu, 1)), n.nvmlDeviceGetRetiredPagesPendingStatus(gpu),"
        " answer(n.nvmlDeviceGetRetiredPages, handle(2), 1)])",
    )
    assert told == [3, 0, 3, 1, "code 3"]


def test_an_older_driver_lacks_symbols(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    node.without = ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetCurrentClocksEventReasons")
    told = ask(
        node.write_nvml(tmp_path),
        f"{GPU_3}say([answer(n.nvmlDeviceGetGpuFabricInfoV, gpu, None),"
        " answer(n.nvmlDeviceGetCurrentClocksEventReasons, gpu), n.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)])",
    )
    assert told == ["code 13", "code 13", 1]
    node.without = ("nvmlDeviceGetNothing",)
    with pytest.raises(ValueError, match="never had"):
        node.write_nvml(tmp_path)


def test_an_event_never_comes(tmp_path: Path) -> None:
    told = ask(
        healthy("h100-sxm").write_nvml(tmp_path),
        f"{GPU_3}events = n.nvmlEventSetCreate(); n.nvmlDeviceRegisterEvents(gpu, 8, events)\n"
        "say([answer(n.nvmlEventSetWait_v2, events, 20), answer(n.nvmlEventSetFree, events)])",
    )
    assert told == ["code 10", None]


def test_calls_are_counted_over_processes(tmp_path: Path) -> None:
    paths = healthy("h100-sxm").write_nvml(tmp_path)
    text = f"{GPU_3}[n.nvmlDeviceGetPowerUsage(gpu) for _ in range(200)]; say(0)"
    children = [subprocess.Popen(program(paths, text), stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [child.wait(60) for child in children] == [0, 0]
    calls = read_calls(paths)
    assert calls.count(("nvmlDeviceGetPowerUsage", 3)) == 400
    assert calls.count(("nvmlInitWithFlags", None)) == 2
    assert len(calls) == 404
    paths.calls.unlink()
    ask(paths, text)
    assert not paths.calls.exists()


def test_one_library_serves_all_nodes_by_their_names(tmp_path: Path) -> None:
    for name, platform in (("n1", "h100-sxm"), ("n2", "gb200")):
        paths = healthy(platform, name).write_nvml(tmp_path)
    shared = paths._replace(library=tmp_path / "libnvidia-ml.so.1")
    count = "say([answer(n.nvmlInit), answer(n.nvmlDeviceGetCount)])"
    told = {}
    for name in ("n1", "n2", "n3", ""):
        environ = {**os.environ, "SLURMD_NODENAME": name}
        told[name] = subprocess.check_output(program(shared, count), env=environ, text=True).strip()
    missing = '["code 9", "code 1"]'
    assert told == {"n1": "[null, 8]", "n2": "[null, 4]", "n3": missing, "": missing}
