"""What a prolog costs, counted: NVML calls, calls of Slurm, and the processes that it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.health.test_prolog import Place
from tests.nvml.platforms import PLATFORMS
from tests.nvml.scenario import healthy, read_calls
from tests.support import ROOT

MOST_OF_A_GPU = 12
MOST_OF_THE_NODE = 4  # init, driver version, NVML's version, count
MOST_OF_ANOTHERS_GPU = 3  # handle, place on PCIe, minor number
P2P = "nvmlDeviceGetP2PStatus"
IMPORT_PATH = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
TOKEN = f"FLEETCTL_TEST_SPEED={os.getpid()}"


def calls_of(place: Place) -> tuple[Counter[int | None], int]:
    """NVML calls by GPU (None: of the node), and those about pairs."""
    calls = read_calls(place.paths)
    return Counter(gpu for name, gpu in calls if name != P2P), sum(name == P2P for name, _ in calls)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_healthy_node_costs_few_nvml_calls_no_slurm_call_and_no_word(tmp_path: Path, platform: str) -> None:
    node = healthy(platform, "n1")
    count = len(node.gpus)
    place = Place(tmp_path, node)
    ran = place.run(SLURM_JOB_GPUS=f"0-{count - 1}")
    assert (ran.status, ran.out, ran.err) == (0, "", "")
    assert place.calls == []
    by_gpu, pairs = calls_of(place)
    assert by_gpu.pop(None) <= MOST_OF_THE_NODE
    assert set(by_gpu) == set(range(count))
    assert max(by_gpu.values()) <= MOST_OF_A_GPU
    assert pairs == count * (count - 1) // 2
    for last in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMarginTemperature"):
        asked = [gpu for name, gpu in read_calls(place.paths) if name == last]
        assert asked == list(range(count)), "so few calls because something was left out"


IMPORTS = """
import builtins, sys
compiled = []
builtins.compile = lambda source, *rest: compiled.append(source) or 1 / 0
import fleetctl.health.__main__, fleetctl.health.world, fleetctl.health.prolog
left = {"subprocess", "argparse", "logging", "dataclasses", "datetime", "pathlib", "threading", "inspect", "ast"}
print(sorted(left & sys.modules.keys()), compiled)
"""


def test_a_prolog_compiles_nothing_and_imports_nothing_large() -> None:
    """typing.NamedTuple compiles each annotation: half of the whole prolog's CPU. So does a type that is a text."""
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", IMPORT_PATH + IMPORTS], capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr) == ("[] []\n", "")


def test_gpus_of_other_jobs_cost_three_calls_each(tmp_path: Path) -> None:
    place = Place(tmp_path, healthy("h100-sxm", "n1"))
    assert place.run(SLURM_JOB_GPUS="2,5").status == 0
    by_gpu, pairs = calls_of(place)
    assert pairs == 1
    assert max(by_gpu[gpu] for gpu in (2, 5)) <= MOST_OF_A_GPU
    assert max(by_gpu[gpu] for gpu in (0, 1, 3, 4, 6, 7)) <= MOST_OF_ANOTHERS_GPU


def test_a_job_without_gpus_costs_three_calls_a_gpu_and_no_pair(tmp_path: Path) -> None:
    place = Place(tmp_path, healthy("h100-sxm", "n1"))
    assert place.run(SLURM_JOB_GPUS="").status == 0
    by_gpu, pairs = calls_of(place)
    assert pairs == 0
    assert max(by_gpu[gpu] for gpu in range(8)) <= MOST_OF_ANOTHERS_GPU


def living() -> list[int]:
    """The processes that this test's prologs are, or left behind: by the environment that they were given."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            environ = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:  # it is gone, or a zombie of somebody else's
            continue
        if TOKEN.encode() in environ.split(b"\0"):
            found.append(int(name))
    return found


@pytest.fixture
def token() -> Iterator[dict[str, str]]:
    name, _, value = TOKEN.partition("=")
    yield {name: value}
    for pid in living():
        os.kill(pid, signal.SIGKILL)


def test_a_healthy_prolog_leaves_no_process(tmp_path: Path, token: dict[str, str]) -> None:
    place = Place(tmp_path, healthy("h100-sxm", "n1"))
    assert place.run(**token).status == 0
    assert living() == []


def test_the_tenth_prolog_that_meets_a_hung_driver_adds_no_tenth_child(tmp_path: Path, token: dict[str, str]) -> None:
    """The first one is killed as Slurm would at its time-out: so nobody is there to end the child that hangs."""
    deadline_s = 1.0
    node = healthy("h100-sxm", "n1")
    node.hangs("nvmlInitWithFlags")
    place = Place(tmp_path, node, deadline_s=deadline_s)
    first = place.start(**token)
    patience = time.monotonic() + 60
    while not read_calls(place.paths) and time.monotonic() < patience:
        os.sched_yield()
    first.kill()
    first.communicate(timeout=60)
    (stuck,) = hanging_of(place)
    while time.monotonic() < patience and living() != [stuck]:
        os.sched_yield()
    place.run(**token)  # it may start while the first child is within its time, and lasts longer than that
    for _ in range(8):
        ran = place.run(**token)
        assert ran.status == 1
        assert f"process {stuck} of an earlier check" in ran.err
        assert living() == [stuck]


def hanging_of(place: Place) -> list[int]:
    """The pids of the NVML children that are marked as started and not ended."""
    marks = os.listdir(place.paths.node / "stuck")
    return [int(mark.split(".")[1]) for mark in marks if mark.startswith("nvml.")]
