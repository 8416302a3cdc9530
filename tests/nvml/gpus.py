"""One GPU of a stand-in node: the values that NVML tells of it, and the lines that stand_in.c reads."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.nvml.machine import PcieEnd
from tests.nvml.platforms import MIB


class Code(NamedTuple):
    """In place of a value: asking for it answers this nvmlReturn."""

    code: int


class ByCall:
    """A value that changes from one asking to the next; the last one stays."""

    def __init__(self, *values: int | Code) -> None:
        self.words = "|".join(word(value) for value in values)


class ByInit:
    """A value that changes from one nvmlInit to the next, over all processes; the last one stays."""

    def __init__(self, *values: int | Code) -> None:
        self.words = "/".join(word(value) for value in values)


Value = int | Code | ByCall | ByInit
NOT_SUPPORTED = Code(3)


def word(value: Value) -> str:
    """As the scenario file has it."""
    if isinstance(value, Code):
        return f"!{value.code}"
    return value.words if isinstance(value, (ByCall, ByInit)) else str(int(value))


class Process(NamedTuple):
    """A process on a GPU; memory None: the driver does not tell."""

    pid: int
    memory_bytes: int | None = 500 * MIB


@dataclass(slots=True)
class Link:
    """One NVLink of one GPU."""

    state: Value = 1
    replays: Value = 0
    recoveries: Value = 0
    crc_errors: Value = 0
    crc_data_errors: Value = 0
    receive_errors: Value = NOT_SUPPORTED
    integrity_errors: Value = NOT_SUPPORTED
    recovery_failed: Value = NOT_SUPPORTED
    recovery_events: Value = NOT_SUPPORTED


@dataclass(slots=True)
class Gpu:
    """One GPU, by NVML index. NVML and sysfs are written from the same numbers."""

    pci: str
    minor: int
    uuid: str
    serial: str
    name: str
    device_id: int
    links: list[Link]
    bridges: list[PcieEnd]  # above it on PCIe, nearest first
    memory_total_bytes: Value
    power_limit_mw: Value
    pcie_generation: Value
    pcie_max_generation: Value
    pcie_gpu_max_generation: Value
    link_count: Value
    link_end: Value  # what asking for a link past the last one answers, as a number
    link_speed_mbps: Value
    link_switches: Value
    link_peer_type: Value
    handle: Value = 0  # Code(15): counted, yet without a handle
    pcie_width: Value = 16
    pcie_max_width: Value = 16
    pcie_replays: Value = 0
    persistence: Value = 1
    ecc_mode: Value = 1
    ecc_pending: Value = 1
    ecc_corrected_volatile: Value = 0
    ecc_uncorrected_volatile: Value = 0
    ecc_corrected_aggregate: Value = 0
    ecc_uncorrected_aggregate: Value = 0
    sram_threshold: Value = 0
    sram_uncorrected: Value = 0
    remap_corrected: Value = 0
    remap_uncorrected: Value = 0
    remap_pending: Value = 0
    remap_failure: Value = 0
    retired_pages: Value = NOT_SUPPORTED
    retired_pending: Value = NOT_SUPPORTED
    recovery_action: Value = 0
    clock_reasons: Value = 1
    mig_mode: Value = 0
    mig_devices: Value = 0
    memory_used_bytes: Value = 0
    memory_reserved_bytes: Value = 600 * MIB
    utilization: Value = 0
    utilization_memory: Value = 0
    fabric_state: Value = 3
    fabric_status: Value = 0
    fabric_mask: Value = 0
    fabric_summary: Value = 0
    fabric_version: Value = 3  # the newest struct that the driver knows
    fabric_clique: Value = 0
    fabric_cluster: Value = 0
    energy_mj: Value = 123_456_789
    temperature_c: Value = 34
    temperature_margin_c: Value = 51
    power_mw: Value = 71_000
    performance_state: Value = 0
    link_version: Value = 6
    link_peer: str = "0000:05:00.0"
    processes: list[Process] | Code = field(default_factory=list)
    processes_then: list[Process] | None = None  # what the second of the two calls finds
    fields: dict[int | tuple[int, int], Value] = field(default_factory=dict)  # nvmlDeviceGetFieldValues only
    pci_errors: dict[str, dict[str, int]] = field(default_factory=dict)  # {"correctable": {"BadTLP": 2}}
    off_pcie: bool = False  # sysfs does not show it any more

    def turn_mig_on(self, instances: int = 7) -> None:
        """MIG mode: no row remap counts, no list of processes."""
        self.mig_mode, self.mig_devices = 1, instances
        self.remap_corrected = self.remap_uncorrected = self.remap_pending = self.remap_failure = NOT_SUPPORTED
        self.processes = Code(4)

    def run_pcie_at(self, generation: int | None = None, width: int | None = None) -> None:
        """The link as it is now, at both of its ends; what it could do stays."""
        now = generation or self.pcie_generation
        lanes = width or self.pcie_width
        if not isinstance(now, int) or not isinstance(lanes, int):
            raise TypeError("NVML tells no number for this link")
        self.pcie_generation, self.pcie_width = now, lanes
        self.bridges[0].run_at(now, lanes)

    def lose_links(self) -> None:
        """All NVLinks down."""
        for link in self.links:
            link.state = 0


_TEXTS = ("pci", "uuid", "serial", "name", "link_peer")
_APART = ("links", "bridges", "processes", "processes_then", "fields", "pci_errors", "off_pcie")


def gpu_lines(gpu: Gpu) -> list[str]:
    """`key value` lines, without the `gpu.N.` before them."""
    names = [one.name for one in dataclasses.fields(gpu) if one.name not in _APART]
    lines = [f"{name} {getattr(gpu, name) if name in _TEXTS else word(getattr(gpu, name))}" for name in names]
    lines.append(f"link_slots {len(gpu.links)}")
    for one in dataclasses.fields(Link) if gpu.links else ():
        lines.append(f"link.{one.name} " + " ".join(word(getattr(link, one.name)) for link in gpu.links))
    lines.append(f"processes {_process_words(gpu.processes)}")
    if gpu.processes_then is not None:
        lines.append(f"processes_then {_process_words(gpu.processes_then)}")
    for which, value in gpu.fields.items():
        key = f"{which[0]}@{which[1]}" if isinstance(which, tuple) else str(which)
        lines.append(f"field.{key} {word(value)}")
    return lines


def _process_words(processes: list[Process] | Code) -> str:
    if isinstance(processes, Code):
        return word(processes)
    return " ".join(f"{one.pid}:{'?' if one.memory_bytes is None else one.memory_bytes}" for one in processes)
