"""The machine around the GPUs, read from small trees of sysfs and proc."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from fleetctl.health.host import boot_id, clock_synchronised, read_closely, read_host, read_stuck
from fleetctl.health.model import Host, Stuck
from tests.unit.health.trees import link, pci_function, put


def machine(root: Path) -> tuple[str, str]:
    """A healthy node's sys and proc."""
    sys, proc = root / "sys", root / "proc"
    put(proc / "meminfo", "MemTotal:       2113421312 kB\nMemFree:        1 kB")
    put(proc / "sys/kernel/random/boot_id", "0a1b2c3d-0000-4000-8000-000000000001")
    for controller, corrected in (("mc0", "3"), ("mc1", "4")):
        put(sys / "devices/system/edac/mc" / controller / "ce_count", corrected)
        put(sys / "devices/system/edac/mc" / controller / "ue_count", "0")
    put(sys / "devices/system/clocksource/clocksource0/current_clocksource", "tsc")
    for policy, governor in (("policy0", "performance"), ("policy1", "powersave"), ("policy2", "performance")):
        put(sys / "devices/system/cpu/cpufreq" / policy / "scaling_governor", governor)
    pci_function(sys, "0000:1b:00.0", 0x233010DE)
    return str(sys), str(proc)


def test_a_healthy_machine_is_read(tmp_path: Path) -> None:
    sys, proc = machine(tmp_path)

    host = read_host(sys, proc, str(tmp_path))

    space = os.statvfs(tmp_path)
    assert host == Host(
        memory_bytes=2113421312 * 1024,
        shm_bytes=space.f_frsize * space.f_blocks,
        shm_free_bytes=host.shm_free_bytes,
        edac_corrected=7,
        edac_uncorrected=0,
        clock_source="tsc",
        nvidia_devices=1,
    )
    assert host.shm_bytes is not None
    assert host.shm_free_bytes is not None
    assert 0 < host.shm_free_bytes <= host.shm_bytes


def test_an_empty_machine_is_unknown_and_not_zero(tmp_path: Path) -> None:
    nothing = str(tmp_path / "nothing")

    assert read_host(nothing, nothing, nothing) == Host(nvidia_devices=0)


@pytest.mark.parametrize(
    "text",
    ["", "MemTotal: 5", "MemTotal: five kB", "MemTotal: 5 MB", "Free: 1 kB", "MemTotal", "\udcff" * 9, "x" * 9999],
)
def test_memory_that_is_not_told_is_unknown(tmp_path: Path, text: str) -> None:
    put(tmp_path / "meminfo", text)

    assert read_host(str(tmp_path), str(tmp_path), "/nowhere").memory_bytes is None


def test_one_memory_controller_that_does_not_tell_makes_the_sum_unknown(tmp_path: Path) -> None:
    sys, proc = machine(tmp_path)
    put(Path(sys) / "devices/system/edac/mc/mc1/ue_count", "?")
    put(Path(sys) / "devices/system/edac/mc/mcelog/ce_count", "99")  # no controller

    host = read_host(sys, proc, "/nowhere")

    assert (host.edac_corrected, host.edac_uncorrected) == (7, None)


def test_the_close_look_adds_what_the_prolog_does_not_pay_for(tmp_path: Path) -> None:
    sys, proc = machine(tmp_path)
    put(Path(proc) / "42/stat", "42 (python) D 1 42 42 0")
    host = read_host(sys, proc, str(tmp_path))

    closer = read_closely(host, sys, proc)

    assert closer.governors == ("performance", "powersave")
    assert closer.stuck == (Stuck(42, "python", "D"),)
    assert closer._replace(governors=(), stuck=(), clock_synchronised=None) == host


def test_governors_are_found_under_each_cpu_where_there_are_no_policies(tmp_path: Path) -> None:
    for cpu in range(3):
        put(tmp_path / f"devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", "ondemand")
    put(tmp_path / "devices/system/cpu/cpuidle/x", "")

    assert read_closely(Host(), str(tmp_path), str(tmp_path)).governors == ("ondemand",)


@pytest.mark.parametrize(
    ("result", "status", "synchronised"),
    [(0, 0x2001, True), (0, 0x0001, True), (5, 0x0041, False), (0, 0x2041, False), (-1, 0x0041, None)],
)
def test_the_clock_is_synchronised_where_the_kernel_does_not_deny_it(
    monkeypatch: pytest.MonkeyPatch, result: int, status: int, synchronised: bool | None
) -> None:
    class Library:
        def __init__(self, *args: object, **kwargs: object) -> None: ...

        def adjtimex(self, timex: ctypes.Array[ctypes.c_char]) -> int:
            assert not any(timex.raw), "modes must be 0: nothing may be set"
            ctypes.memmove(ctypes.addressof(timex) + 40, status.to_bytes(4, "little"), 4)
            return result

    monkeypatch.setattr(ctypes, "CDLL", Library)

    assert clock_synchronised() is synchronised


def test_the_real_clock_answers() -> None:
    assert clock_synchronised() is not None


@pytest.mark.parametrize(
    ("stat", "name", "state"),
    [
        ("7 (python) D 1 7", "python", "D"),
        ("7 (nvidia-smi) Z 1 7", "nvidia-smi", "Z"),
        ("7 (a) D (b) Z 1 7", "a) D (b", "Z"),
        ("7 (evil\n8 (x) D 1) D 1", "evil?8 (x) D 1", "D"),
        ("7 () D 1", "", "D"),
        ("7 (\x1b[31m\udcff) D 1", "?[31m\ufffd", "D"),
    ],
)
def test_the_state_of_a_process_is_behind_its_name_whatever_that_is(
    tmp_path: Path, stat: str, name: str, state: str
) -> None:
    put(tmp_path / "7/stat", stat)

    assert read_stuck(str(tmp_path)) == (Stuck(7, name, state),)


@pytest.mark.parametrize(
    "stat", ["7 (python) S 1", "7 (D) R 1", "7 (x) D) S 1", "7 (python)", "", "7", ")", "D", "7 (kworker) I 2"]
)
def test_other_processes_are_not_stuck(tmp_path: Path, stat: str) -> None:
    put(tmp_path / "7/stat", stat)

    assert read_stuck(str(tmp_path)) == ()


def test_a_process_that_ends_meanwhile_and_names_that_are_no_process_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "8").mkdir()
    for name in ("self", "sys", "-7", "7x"):
        put(tmp_path / name / "stat", "7 (x) D 1")
    link(tmp_path / "9", "9")

    assert read_stuck(str(tmp_path)) == ()


def test_of_very_many_stuck_processes_those_asleep_are_told_first(tmp_path: Path) -> None:
    for pid in range(100, 300):
        put(tmp_path / str(pid) / "stat", f"{pid} (python) Z 1")
    put(tmp_path / "9999/stat", "9999 (nvidia-smi) D 1")

    stuck = read_stuck(str(tmp_path))

    assert len(stuck) == 64
    assert stuck[:2] == (Stuck(9999, "nvidia-smi", "D"), Stuck(100, "python", "Z"))


@pytest.mark.parametrize(
    ("text", "found"),
    [("0a1b2c3d-0000-4000-8000-000000000001",) * 2, ("", ""), ("x" * 65, ""), ("a\x00b", "")],
)
def test_a_boot_has_the_name_that_the_kernel_gave_it_or_none(tmp_path: Path, text: str, found: str) -> None:
    put(tmp_path / "sys/kernel/random/boot_id", text)

    assert boot_id(str(tmp_path)) == found


def test_no_name_of_a_boot_is_an_empty_one(tmp_path: Path) -> None:
    assert boot_id(str(tmp_path)) == ""
