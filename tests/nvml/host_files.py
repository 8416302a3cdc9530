"""The rest of a node's machine in sysfs and proc: memory, EDAC, clock, governors, mounts, stuck processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.nvml.machine import put


class StuckProcess(NamedTuple):
    """A process for /proc/PID/stat: state `D`, `Z`, `S`, ..."""

    pid: int
    name: str
    state: str = "D"


MOUNTS = (
    "/dev/nvme0n1p2 / ext4 rw,relatime 0 0",
    "proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0",
    "sysfs /sys sysfs rw,nosuid,nodev,noexec,relatime 0 0",
    "tmpfs /dev/shm tmpfs rw,nosuid,nodev,inode64 0 0",
    "tmpfs /tmp tmpfs rw,nosuid,nodev,size=536870912k 0 0",
    "store:/home /home nfs4 rw,relatime,vers=4.2,hard,proto=tcp 0 0",
    "10.0.0.1@o2ib:/scratch /scratch lustre rw,flock,lazystatfs 0 0",
)


@dataclass(slots=True)
class HostFiles:
    """Everything here is written as it stands, nonsense included."""

    boot_id: str
    memory_kib: int = 2 << 30
    edac: dict[str, tuple[str | int, str | int]] = field(  # controller -> (corrected, uncorrected)
        default_factory=lambda: {"mc0": (0, 0), "mc1": (0, 0)}
    )
    governors: list[str] = field(default_factory=lambda: ["performance"] * 4)
    clock_source: str = "tsc"
    mounts: list[str] = field(default_factory=lambda: list(MOUNTS))  # lines of /proc/mounts
    stuck: list[StuckProcess] = field(default_factory=list)
    driver_loaded: bool = True


def write(host: HostFiles, sys: Path, proc: Path, uptime_s: float, driver: str) -> None:
    """Both trees; /proc has no process but those named in `stuck`."""
    system = sys / "devices/system"
    for controller, (corrected, uncorrected) in host.edac.items():
        put(system / "edac/mc" / controller / "ce_count", corrected)
        put(system / "edac/mc" / controller / "ue_count", uncorrected)
    for number, governor in enumerate(host.governors):
        put(system / f"cpu/cpu{number}/cpufreq/scaling_governor", governor)
    put(system / "clocksource/clocksource0/current_clocksource", host.clock_source)
    put(system / "clocksource/clocksource0/available_clocksource", "tsc hpet acpi_pm")
    for folder in (sys / "class/infiniband", sys / "class/net", sys / "bus/pci/devices"):
        folder.mkdir(parents=True, exist_ok=True)
    put(proc / "mounts", "\n".join(host.mounts))
    put(proc / "meminfo", f"MemTotal:       {host.memory_kib} kB\nMemFree:        {host.memory_kib // 2} kB")
    put(proc / "uptime", f"{uptime_s:.2f} {uptime_s * 90:.2f}")
    put(proc / "sys/kernel/random/boot_id", host.boot_id)
    if host.driver_loaded:
        put(proc / "driver/nvidia/version", f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Release Build")
    for process in host.stuck:
        tail = "1 1 1 0 -1 4194560 " + " ".join(["0"] * 12) + " 987654 " + " ".join(["0"] * 30)
        put(proc / str(process.pid) / "stat", f"{process.pid} ({process.name}) {process.state} {tail}")
        put(proc / str(process.pid) / "comm", process.name)
