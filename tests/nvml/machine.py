"""The sysfs and proc trees of a stand-in node, in the shape that Linux gives them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SPEEDS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}  # GT/s of each PCIe generation

BRIDGE_ID = 0xC0101000  # a PCIe switch of Broadcom

UNREADABLE = "\0unreadable"  # a file whose read fails
MISSING = "\0missing"  # no such file


@dataclass(slots=True)
class PcieEnd:
    """One device or bridge on PCIe, and its link. `width` and the speeds may be any text, as of a dead device."""

    address: str
    speed: str
    width: str | int
    max_speed: str
    max_width: str | int

    def run_at(self, generation: int, width: int = 16) -> None:
        """The link as it is now; what it could do stays."""
        self.speed, self.width = gts(generation), width


def gts(generation: int) -> str:
    """`32.0 GT/s PCIe`, as sysfs writes it."""
    return f"{SPEEDS[generation]} GT/s PCIe"


def end(address: str, generation: int, width: int = 16) -> PcieEnd:
    """A healthy link."""
    return PcieEnd(address, gts(generation), width, gts(generation), width)


def bridges_of(address: str, generation: int) -> list[PcieEnd]:
    """The bridges above a device, nearest first: switch port, switch, root port; a root port alone on low buses.

    A GPU on bus 1b and a card on bus 18 share the switch on bus 16, below the root port on bus 15.
    """
    domain, bus, _ = address.split(":")
    number = int(bus, 16)
    if number < 0x10:
        return [end(f"{domain}:00:00.0", generation)]
    top = number - 6 if _is_gpu_bus(number) else number - 3
    port = 0 if _is_gpu_bus(number) else 1
    return [
        end(f"{domain}:{top + 2:02x}:{port:02x}.0", generation),
        end(f"{domain}:{top + 1:02x}:00.0", generation),
        end(f"{domain}:{top:02x}:01.0", generation),
    ]


def _is_gpu_bus(number: int) -> bool:
    return f"{number:02x}" in ("1b", "43", "52", "61", "9d", "c3", "d1", "df")


@dataclass(slots=True)
class PciFunction:
    """A device in /sys/bus/pci/devices. `errors` are AER counts: {"correctable": {"RxErr": 3}, ...}."""

    link: PcieEnd
    device_id: int
    pci_class: int
    bridges: list[PcieEnd] = field(default_factory=list)
    numa_node: int = 0
    errors: dict[str, dict[str, int]] = field(default_factory=dict)
    gone: bool = False  # not on the bus any more: sysfs does not show it


AER = {
    "correctable": ("RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF"),
    "nonfatal": (
        "Undefined",
        "DLP",
        "SDES",
        "TLP",
        "FCP",
        "CmpltTO",
        "CmpltAbrt",
        "UnxCmplt",
        "RxOF",
        "MalfTLP",
        "ECRC",
    ),
    "fatal": ("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP", "ECRC"),
}
TOTALS = {"correctable": "TOTAL_ERR_COR", "nonfatal": "TOTAL_ERR_NONFATAL", "fatal": "TOTAL_ERR_FATAL"}


def put(path: Path, value: str | int) -> None:
    """One file of one line, or one that cannot be read, or none."""
    if value == MISSING:
        return
    name = str(path)  # a node has a thousand files: plain calls, and no look at the folder before it is missed
    try:
        _put(name, value)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(name), exist_ok=True)
        _put(name, value)


def _put(name: str, value: str | int) -> None:
    if value == UNREADABLE:
        os.symlink("/proc/self/mem", name)  # reading its first byte fails for everybody, root included (EIO)
        return
    with open(name, "w") as file:
        file.write(f"{value}\n")


def link_to(path: Path, target: Path) -> None:
    """A relative symbolic link, as sysfs has them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.symlink_to(os.path.relpath(target, path.parent))


def _write_link(folder: Path, link: PcieEnd) -> None:
    put(folder / "current_link_speed", link.speed)
    put(folder / "current_link_width", link.width)
    put(folder / "max_link_speed", link.max_speed)
    put(folder / "max_link_width", link.max_width)


def write_pci(sys: Path, function: PciFunction) -> Path:
    """The device's folder below its bridges in /sys/devices, and the link to it in /sys/bus/pci/devices."""
    uppermost = function.bridges[-1].address if function.bridges else function.link.address
    folder = sys / "devices" / f"pci{uppermost.rsplit(':', 1)[0]}"
    for bridge in reversed(function.bridges):
        folder = folder / bridge.address
        if not folder.exists():
            _write_ids(folder, BRIDGE_ID, 0x060400, function.numa_node)
            _write_link(folder, bridge)
            link_to(sys / "bus/pci/devices" / bridge.address, folder)
    folder = folder / function.link.address
    _write_ids(folder, function.device_id, function.pci_class, function.numa_node)
    _write_link(folder, function.link)
    for kind, names in AER.items():
        counts: Mapping[str, int] = function.errors.get(kind, {})
        lines = [f"{name} {counts.get(name, 0)}" for name in names]
        put(folder / f"aer_dev_{kind}", "\n".join([*lines, f"{TOTALS[kind]} {sum(counts.values())}"]))
    link_to(sys / "bus/pci/devices" / function.link.address, folder)
    return folder


def _write_ids(folder: Path, device_id: int, pci_class: int, numa_node: int) -> None:
    put(folder / "vendor", f"0x{device_id & 0xFFFF:04x}")
    put(folder / "device", f"0x{device_id >> 16:04x}")
    put(folder / "class", f"0x{pci_class:06x}")
    put(folder / "numa_node", numa_node)
