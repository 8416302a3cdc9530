"""`./dev gpu-check` with a stand-in as the real GPU: what it records is what it replays."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nvml import gpu_check
from tests.nvml.gpu_check import DIFFERENT, EQUAL, NO_GPU, differences
from tests.nvml.platforms import PLATFORMS
from tests.nvml.scenario import ByInit, Code, Node, Process, healthy


def checked(folder: Path, node: Node) -> int:
    """Record this node into `folder`/kept."""
    paths = node.write_nvml(folder / "real")
    return gpu_check.main([str(folder / "kept"), "--library", str(paths.library)])


@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_a_gpu_of_each_kind_says_is_recorded_and_replayed(
    tmp_path: Path, platform: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(tmp_path, healthy(platform)) == EQUAL
    out = capsys.readouterr().out
    assert f"profile {platform}: " in out
    assert out.count("every reading is the same") == 2
    assert "between the two looks" not in out


def lost(node: Node) -> None:
    node.gpu(3).handle = Code(15)
    node.returns("nvmlDeviceGetSramEccErrorStatus", 15, gpu=5)


def busy(node: Node) -> None:
    node.gpu(2).processes = [Process(4711, 1 << 30), Process(4712, None)]
    node.gpu(4).processes = Code(4)


def worn(node: Node) -> None:
    gpu = node.gpu(1)
    gpu.remap_failure, gpu.ecc_uncorrected_volatile, gpu.sram_uncorrected, gpu.sram_threshold = 1, 7, 1001, 1
    gpu.links[7].state, gpu.links[8].state, gpu.links[9].recoveries = 0, Code(999), 1 << 40
    gpu.temperature_margin_c, gpu.retired_pages, gpu.retired_pending = -3, 12, 1


def nameless(node: Node) -> None:
    node.gpu(1).pcie_width, node.gpu(2).mig_mode = Code(999), Code(3)
    node.returns("nvmlDeviceGetPciInfo_v3", 999, gpu=3)
    node.returns("nvmlDeviceGetUUID", 999, gpu=4)


def partitioned(node: Node) -> None:
    node.gpu(6).turn_mig_on()


def without_fields(node: Node) -> None:
    """An old driver: what is a field today has a function of its own."""
    node.without = ("nvmlDeviceGetFieldValues",)


def without_some_fields(node: Node) -> None:
    for gpu in node.gpus:
        gpu.fields.update({1: Code(2), 83: Code(2), 142: Code(3), 143: Code(3), 144: Code(3), 145: Code(3)})
        gpu.fields.update({(165, 5): Code(999)})


def refused_fields(node: Node) -> None:
    node.returns("nvmlDeviceGetFieldValues", 999, gpu=2)


def old_names(node: Node) -> None:
    node.driver = "525.60.13"
    node.without = ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetCurrentClocksEventReasons")


def old_fabric(node: Node) -> None:
    for gpu in node.gpus:
        gpu.fabric_version, gpu.fabric_mask = 2, 0x22


def unpaired(node: Node) -> None:
    node.peer(0, 1, p2p=1)
    node.peer(2, 5, p2p=Code(999))


@pytest.mark.parametrize(
    "spoil",
    [
        lost,
        busy,
        worn,
        nameless,
        partitioned,
        without_fields,
        without_some_fields,
        refused_fields,
        old_names,
        old_fabric,
        unpaired,
    ],
)
def test_so_is_what_is_odd(tmp_path: Path, spoil: Callable[[Node], None]) -> None:
    node = healthy("h100-sxm")
    spoil(node)
    assert checked(tmp_path, node) == EQUAL


def test_a_recording_is_read_again_without_a_gpu_and_what_differs_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert checked(tmp_path, healthy("h100-sxm")) == EQUAL
    again = [str(tmp_path / "kept"), "--replay"]
    assert gpu_check.main(again) == EQUAL
    scenario = tmp_path / "kept" / "prolog" / "nvml"
    scenario.write_text(scenario.read_text().replace("gpu.3.remap_pending 0", "gpu.3.remap_pending 1"))
    capsys.readouterr()
    assert gpu_check.main(again) == DIFFERENT
    out = capsys.readouterr().out
    assert "nvml.gpus[3].reads.remap_pending[0]: 0, then 1" in out
    assert "only judged so as it was replayed: " in out


def test_every_call_is_timed(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    node.sleeps("nvmlDeviceGetSramEccErrorStatus", 0.05, gpu=3)
    assert checked(tmp_path, node) == EQUAL
    table = {line.split()[0]: line.split()[1:] for line in times_of(tmp_path)}
    count, typical, most, _ = table["nvmlDeviceGetSramEccErrorStatus"]
    assert (count, float(typical) < 50_000 <= float(most)) == ("8", True)
    assert table["nvmlDeviceGetP2PStatus"][0] == "28"
    assert table["nvmlInit"][0] == "1"


def times_of(folder: Path) -> list[str]:
    return (folder / "kept" / "prolog" / "times.txt").read_text().splitlines()


def test_what_is_another_value_in_the_second_look_is_told_unless_it_always_moves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = healthy("h100-sxm")
    node.gpu(3).ecc_mode, node.gpu(3).energy_mj, node.gpu(3).power_mw = ByInit(1, 0), ByInit(5, 6), ByInit(5, 6)
    assert checked(tmp_path, node) == EQUAL
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("between the two looks: ")]
    assert told == ["between the two looks: nvml.gpus[3].reads.ecc_mode[0]: 1, then 0"]


@pytest.mark.parametrize("what", ["nothing", "a driver that is not loaded"])
def test_without_a_gpu_one_line_says_so(tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    node = healthy("h100-sxm")
    node.returns("nvmlInitWithFlags", 9)
    library = node.write_nvml(tmp_path / "real").library
    if what == "nothing":
        os.unlink(library)
    assert gpu_check.main([str(tmp_path / "kept"), "--library", str(library)]) == NO_GPU
    out = capsys.readouterr().out
    assert out.startswith("gpu-check: there is no GPU here: ")
    assert len(out.splitlines()) == 1
    assert not (tmp_path / "kept").exists()


def test_only_how_long_a_look_took_may_differ() -> None:
    one = {"took_s": 1.0, "gpus": [{"pci": "a", "reads": {"x": [1, 0]}}], "calls": 3}
    assert list(differences(one, {**one, "took_s": 2.0})) == []
    assert list(differences(one, {**one, "calls": 4})) == ["nvml.calls: 3, then 4"]
    assert list(differences(one, {**one, "gpus": []})) == [f"nvml.gpus: {one['gpus']!r}, then []"]
    assert list(differences({"x": 1}, {"y": 1})) == ["nvml.x: 1, then None", "nvml.y: None, then 1"]
