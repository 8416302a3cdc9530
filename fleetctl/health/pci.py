"""GPUs, network cards and NVMe disks on PCIe with the bridges above them, read from sysfs.

The attributes: Documentation/ABI/testing/sysfs-bus-pci and sysfs-bus-pci-devices-aer_stats. The kernel answers from
its own copies but for the speed and width of now, which it asks the device for; a dead device answers all ones.
"""

from __future__ import annotations

import os
from typing import Dict, List, Optional, Tuple

from fleetctl.health.files import (
    address_behind,
    as_count,
    as_hex,
    is_address,
    link_target,
    list_names,
    read_text,
)
from fleetctl.health.model import PciDevice, PciLink

NVIDIA = 0x10DE
MELLANOX = 0x15B3
# Base class 03 (display), 00 VGA and 02 3D controller; an NVSwitch is a bridge (0680).
GPU_CLASSES = (0x0300, 0x0302)
# The last line of each of a device's AER files is its total.
_AER = (
    ("correctable", "aer_dev_correctable", "TOTAL_ERR_COR"),
    ("nonfatal", "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
    ("fatal", "aer_dev_fatal", "TOTAL_ERR_FATAL"),
)
# PCIe links have 1 to 32 lanes; the field of a dead device reads 63, that of one without a link 0.
_MOST_LANES = 32
# Faster than any generation that is planned (PCIe 7 has 128 GT/s).
_MOST_GTS = 256.0


def read_pci(sys: str) -> Optional[Tuple[PciDevice, ...]]:
    """Every NVIDIA GPU, network card (Mellanox, or with an InfiniBand device) and NVMe disk, by address. None: not
    listable."""
    gpus = gpu_addresses(sys)
    if gpus is None:
        return None
    kinds: Dict[str, str] = dict.fromkeys(_disks(sys), "nvme")
    kinds.update(dict.fromkeys(_cards(sys), "nic"))
    kinds.update(dict.fromkeys(gpus, "gpu"))
    links: Dict[str, PciLink] = {}  # a bridge is above many devices: read it once
    return tuple(_device(sys, kinds[address], address, links) for address in sorted(kinds, key=_order))


def gpu_addresses(sys: str) -> Optional[Tuple[str, ...]]:
    """The addresses of the NVIDIA GPUs that PCIe shows, with or without a driver. None: not listable."""
    root = sys + "/bus/pci/devices"
    names = list_names(root)
    if names is None:
        return None
    return tuple(name for name in names if is_address(name) and _is_gpu(f"{root}/{name}"))


def _is_gpu(path: str) -> bool:
    if as_hex(read_text(path + "/vendor")) != NVIDIA:
        return False
    kind = as_hex(read_text(path + "/class"))
    return kind is not None and kind >> 8 in GPU_CLASSES and not _is_virtual(path)


def _is_virtual(path: str) -> bool:
    """A virtual function has no link of its own, and is no GPU or card more."""
    return link_target(path + "/physfn") is not None


def _cards(sys: str) -> List[str]:
    """Addresses of the network cards: those behind an InfiniBand device, and Mellanox ones behind an interface."""
    found = _behind(sys, "infiniband")
    found += [a for a in _behind(sys, "net") if as_hex(read_text(_path(sys, a) + "/vendor")) == MELLANOX]
    return [address for address in found if not _is_virtual(_path(sys, address))]


def _disks(sys: str) -> List[str]:
    return [address for address in _behind(sys, "nvme") if not _is_virtual(_path(sys, address))]


def _behind(sys: str, kind: str) -> List[str]:
    root = f"{sys}/class/{kind}"
    addresses = [address_behind(f"{root}/{name}/device") for name in list_names(root) or ()]
    return list(dict.fromkeys(a for a in addresses if a is not None))


def _path(sys: str, address: str) -> str:
    return f"{sys}/bus/pci/devices/{address}"


def _order(address: str) -> Tuple[int, str]:
    domain, _, rest = address.partition(":")
    return int(domain, 16), rest


def _device(sys: str, kind: str, address: str, links: Dict[str, PciLink]) -> PciDevice:
    path = _path(sys, address)
    vendor, device = as_hex(read_text(path + "/vendor")), as_hex(read_text(path + "/device"))
    errors: Dict[str, int] = {}
    for name, file, total in _AER:
        value = _total(read_text(f"{path}/{file}"), total)
        if value is not None:
            errors[name] = value
    return PciDevice(
        kind,
        _link(sys, address, links),
        None if vendor is None or device is None else device << 16 | vendor,
        tuple(_link(sys, bridge, links) for bridge in _bridges(path, address)),
        errors,
    )


def _bridges(path: str, address: str) -> List[str]:
    """The addresses above a device, nearest first: they are the folders that its link in the bus leads through."""
    target = link_target(path) or ""
    if target.rpartition("/")[2] != address:  # a link to a link, or none
        target = os.path.realpath(path)
    above = target.split("/")[:-1]
    return [name for name in reversed(above) if is_address(name)]


def _link(sys: str, address: str, links: Dict[str, PciLink]) -> PciLink:
    if address not in links:
        path = _path(sys, address)
        links[address] = PciLink(
            address,
            parse_speed(read_text(path + "/current_link_speed")),
            parse_width(read_text(path + "/current_link_width")),
            parse_speed(read_text(path + "/max_link_speed")),
            parse_width(read_text(path + "/max_link_width")),
        )
    return links[address]


def parse_speed(text: Optional[str]) -> Optional[float]:
    """GT/s of `32.0 GT/s PCIe` or `8 GT/s`; None for `Unknown` and nonsense."""
    number, _, unit = (text or "").partition(" ")
    whole, _, rest = number.partition(".")
    if not unit.startswith("GT/s") or as_count(whole) is None or (rest and as_count(rest) is None):
        return None
    speed = float(number)
    return speed if 0.0 < speed <= _MOST_GTS else None


def parse_width(text: Optional[str]) -> Optional[int]:
    """Lanes, or None for the 63 and the 0 of a device that does not answer."""
    width = as_count(text)
    return width if width is not None and 1 <= width <= _MOST_LANES else None


def _total(text: Optional[str], name: str) -> Optional[int]:
    for line in reversed((text or "").splitlines()):
        key, _, value = line.partition(" ")
        if key == name:
            return as_count(value)
    return None
