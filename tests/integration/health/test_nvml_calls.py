"""How many calls read_nvml costs a GPU on busy nodes and under old drivers, and what a call that goes wrong costs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from fleetctl.health.model import Phase, Process, Read
from fleetctl.health.nvml_ask import Device, Nvidia
from fleetctl.health.readings import EVERY_PHASE
from tests.integration.health.nvml_child import calls_of, one, read
from tests.nvml import scenario
from tests.nvml.healthy_variants import make_470
from tests.nvml.platforms import PLATFORMS
from tests.nvml.scenario import Code, Node, healthy

MOST = 12
PACE = {"clock_reasons", "temperature_margin_c"}
PROCESSES = "nvmlDeviceGetComputeRunningProcesses"


@pytest.fixture
def node() -> Node:
    return healthy("h100-sxm", name="n1")


def busy(node: Node) -> Node:
    for gpu in node.gpus:
        gpu.processes = [scenario.Process(4711, 1 << 30)]
    return node


def no_newer_fabric(node: Node) -> None:
    node.returns("nvmlDeviceGetGpuFabricInfoV", 25)


def more_links(node: Node) -> None:
    """More than any GPU had: what is missing is asked for in a second call."""
    for gpu in node.gpus:
        gpu.links = gpu.links + [type(gpu.links[0])() for _ in range(6)]
        gpu.fields = {91: 24}


def all_at_once(node: Node) -> None:
    no_newer_fabric(node)
    more_links(node)


@pytest.mark.parametrize("platform", sorted(PLATFORMS))
def test_a_busy_node_is_read_within_the_calls_of_the_prolog(tmp_path: Path, platform: str) -> None:
    paths = busy(healthy(platform, name="n1")).write(tmp_path)
    gpus = read(paths, processes=True).gpus
    assert {gpu.processes for gpu in gpus} == {(Process(4711, 1 << 30),)}
    assert all(gpu.reads["clock_reasons"].code == 0 for gpu in gpus)
    assert max(calls_of(paths).values()) <= MOST


@pytest.mark.parametrize("change", [no_newer_fabric, more_links, all_at_once])
@pytest.mark.parametrize("processes", [0, 1, 7])
def test_no_driver_costs_more_and_what_may_close_a_node_is_always_read(
    tmp_path: Path, node: Node, change: object, processes: int
) -> None:
    assert callable(change)
    change(node)
    for gpu in node.gpus:
        gpu.processes = [scenario.Process(pid, 1) for pid in range(processes)]
    paths = node.write(tmp_path)
    gpus = read(paths, processes=True).gpus
    assert max(calls_of(paths).values()) <= MOST
    assert {gpu.reads["fabric_state"] for gpu in gpus} == {Read(3)}
    assert all(set(gpu.reads) >= set(EVERY_PHASE) - PACE for gpu in gpus)
    assert all(link["state"] == Read(1) for gpu in gpus for link in gpu.links)
    assert all(len(gpu.processes or ()) == processes for gpu in gpus[1:])  # the first has shown what the driver knows
    assert all("clock_reasons" in gpu.reads for gpu in gpus[1:])


def test_a_list_of_processes_that_keeps_growing_is_given_up_in_the_prolog_alone(tmp_path: Path, node: Node) -> None:
    node.returns(PROCESSES + "_v3", 7, gpu=3, first=2)
    busy(node)
    paths = node.write(tmp_path)
    assert read(paths, processes=True).gpus[3].processes is None
    assert max(calls_of(paths).values()) <= MOST


@pytest.mark.parametrize("phase", [Phase.PROLOG, Phase.PERIODIC])
def test_driver_470_is_read_to_its_end(tmp_path: Path, phase: Phase) -> None:
    node = busy(healthy("a100-sxm", name="n1"))
    make_470(node)
    node.gpu(3).links[7].state = 0
    paths = node.write(tmp_path)
    told = read(paths, phase, processes=True)
    assert {gpu.processes for gpu in told.gpus} == {(Process(4711, 1 << 30),)}
    assert [number for number, link in enumerate(told.gpus[3].links) if link["state"] == Read(0)] == [7]
    assert told.calls == len(paths.calls.read_text().splitlines())
    if phase is Phase.PROLOG:
        assert max(calls_of(paths).values()) <= MOST


def test_without_any_list_of_processes_the_rest_is_read(tmp_path: Path, node: Node) -> None:
    node.without = tuple(f"{PROCESSES}_v{version}" for version in (2, 3))
    node.gpu(3).remap_failure = 1
    gpu = one(tmp_path, node, processes=True)
    assert (gpu.processes, gpu.reads["remap_failure"]) == (None, Read(1))


class NVMLError(Exception):
    """As nvidia-ml-py has it."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class NVMLLibraryMismatchError(Exception):
    """As nvidia-ml-py has it: it is no NVMLError."""


@pytest.mark.parametrize(
    ("error", "code", "reached"),
    [
        (NVMLError(999), 999, True),
        (NVMLError(13), 13, False),
        (NVMLLibraryMismatchError("use _v2"), 13, False),
        (TypeError("takes 1 positional argument but 2 were given"), 21, True),
        (ValueError("not a valid enum"), 21, True),
        (MemoryError(), 21, True),
    ],
)
def test_whatever_a_call_raises_costs_that_call_alone(error: Exception, code: int, reached: bool) -> None:
    def fails(handle: object) -> None:
        raise error

    names = {"NVMLError": NVMLError, "NVMLLibraryMismatchError": NVMLLibraryMismatchError}
    nvidia = Nvidia(SimpleNamespace(fails=fails, works=lambda handle: 5, **names))
    device = Device(nvidia, 0)
    assert device.ask("fails") == Read(None, code)
    assert nvidia.calls == reached
    assert device.ask("works") == Read(5)


def test_an_older_nvidia_ml_py_without_that_error_is_no_trouble() -> None:
    def fails(handle: object) -> None:
        raise TypeError

    assert Device(Nvidia(SimpleNamespace(fails=fails, NVMLError=NVMLError)), 0).ask("fails") == Read(None, 21)


def test_outside_the_prolog_nothing_is_left_out(tmp_path: Path, node: Node) -> None:
    all_at_once(busy(node))
    node.gpu(0).clock_reasons, node.gpu(0).temperature_margin_c = 0x40, Code(3)
    gpu = one(tmp_path, node, Phase.PERIODIC, index=0, processes=True)
    assert gpu.processes == (Process(4711, 1 << 30),)
    assert (gpu.reads["clock_reasons"], gpu.reads["temperature_margin_c"]) == (Read(0x40), Read(None, 3))
