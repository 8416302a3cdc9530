"""InfiniBand and RoCE ports, read from sysfs (Documentation/ABI/stable/sysfs-class-infiniband). No verbs, no forks."""

from __future__ import annotations

import os
from typing import Dict, List, Optional, Tuple

from fleetctl.health.files import address_behind, as_count, list_names, read_text
from fleetctl.health.model import Port
from fleetctl.health.record import NamedTuple

# Those with a published limit (NVSentinel's nic-health-monitor). Each read of one may be a firmware command.
COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_xmit_discards",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
HW_COUNTERS = ("rnr_nak_retry_err", "local_ack_timeout_err", "roce_slow_restart")
# Of the network interface, where the port is Ethernet.
CARRIER_CHANGES = "carrier_changes"
# More than the biggest node has: bounds what a nonsense tree costs.
_MOST_DEVICES = 128
_MOST_PORTS = 64
_MOST_LANES = 16


def read_ports(sys: str, skip: Tuple[str, ...] = ()) -> Optional[Tuple[Port, ...]]:
    """Every port of the node but those to `skip` ("mlx5_0/1", or "mlx5_0" for a whole card), none of whose files is
    opened: on ports that a fabric manager owns each read of a counter writes an error into the kernel log.

    () : no InfiniBand here. None: there is, but it cannot be listed.
    """
    root = sys + "/class/infiniband"
    devices = list_names(root, _MOST_DEVICES)
    if devices is None:
        return None
    ports: List[Port] = []
    for device in devices:
        if device not in skip:
            ports += _ports_of(sys, device, skip)
    return tuple(ports)


def _ports_of(sys: str, device: str, skip: Tuple[str, ...]) -> List[Port]:
    folder = f"{sys}/class/infiniband/{device}"
    names = list_names(folder + "/ports", _MOST_PORTS)
    pci = address_behind(folder + "/device")
    numbers = sorted(n for n in map(as_count, names or ()) if n is not None)
    if not numbers:  # the card is there, and says nothing about its ports
        numbers = [] if device + "/1" in skip else [1]
        return [Port(device, n, None, None, None, pci=pci, unreadable=("ports",)) for n in numbers]
    return [_port(sys, device, n, pci) for n in numbers if f"{device}/{n}" not in skip]


def _port(sys: str, device: str, number: int, pci: Optional[str]) -> Port:
    path = f"{sys}/class/infiniband/{device}/ports/{number}"
    try:  # by descriptor: the path goes through some ten folders, and there are some ten files
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return Port(device, number, None, None, None, pci=pci, unreadable=("ports",))
    try:
        return _read_port(sys, device, number, pci, folder)
    finally:
        os.close(folder)


def _read_port(sys: str, device: str, number: int, pci: Optional[str], folder: int) -> Port:
    counters: Dict[str, int] = {}
    unreadable: List[str] = []
    for group, names in (("counters/", COUNTERS), ("hw_counters/", HW_COUNTERS)):
        _count(group, names, folder, counters, unreadable)
    rate = parse_rate(read_text("rate", folder))
    layer = read_text("link_layer", folder)
    netdev = operstate = None
    if layer == "Ethernet":
        netdev = _interface(sys, device, number)
    if netdev is not None:
        operstate = read_text(f"{sys}/class/net/{netdev}/operstate")
        changes = as_count(read_text(f"{sys}/class/net/{netdev}/{CARRIER_CHANGES}"))
        if changes is not None:
            counters[CARRIER_CHANGES] = changes
    return Port(
        device,
        number,
        layer if layer in ("InfiniBand", "Ethernet") else None,
        parse_state(read_text("state", folder)),
        parse_state(read_text("phys_state", folder)),
        rate.gbps,
        rate.width,
        rate.speed,
        pci,
        netdev,
        operstate,
        counters,
        tuple(unreadable),
    )


def _count(group: str, names: Tuple[str, ...], folder: int, counters: Dict[str, int], unreadable: List[str]) -> None:
    for name in names:
        text = read_text(group + name, folder)
        value = as_count(text)
        if value is not None:
            counters[name] = value
        elif text is not None or _exists(group + name, folder):  # `N/A (no PMA)`, or EINVAL
            unreadable.append(name)


def _exists(name: str, folder: int) -> bool:
    """A counter that this kind of card does not have is no counter that cannot be read."""
    try:
        os.stat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _interface(sys: str, device: str, number: int) -> Optional[str]:
    """The network interface of a RoCE port: of a card with several, the one whose dev_port is this port."""
    names = list_names(f"{sys}/class/infiniband/{device}/device/net", _MOST_PORTS) or ()
    if len(names) == 1:
        return names[0]
    for name in names:
        if as_count(read_text(f"{sys}/class/net/{name}/dev_port")) == number - 1:
            return name
    return None


class Rate(NamedTuple):
    """`400 Gb/sec (4X NDR)` in its parts: Gb/s, lanes, the name of the speed. None: not told, or nonsense."""

    gbps: Optional[float] = None
    width: Optional[int] = None
    speed: Optional[str] = None


def parse_rate(text: Optional[str]) -> Rate:
    """The parts of a port's `rate`. A kernel that does not know the speed leaves its name out: `10 Gb/sec (4X)`."""
    words = (text or "").split()
    if len(words) not in (3, 4) or words[1] != "Gb/sec" or words[2][:1] != "(" or words[-1][-1:] != ")":
        return Rate()
    gbps = _decimal(words[0])
    lanes = words[2].strip("()")
    width = as_count(lanes[:-1]) if lanes.endswith("X") else None
    if gbps is None or width is None or not 1 <= width <= _MOST_LANES:
        return Rate()
    return Rate(gbps, width, words[3][:-1] if len(words) == 4 else None)


def _decimal(text: str) -> Optional[float]:
    whole, _, rest = text.partition(".")
    if as_count(whole) is None or (rest and as_count(rest) is None):
        return None
    return float(text)


def parse_state(text: Optional[str]) -> Optional[str]:
    """The word of `4: ACTIVE` or `5: LinkUp`, or None."""
    number, colon, word = (text or "").partition(": ")
    if not colon or as_count(number) is None or not word.replace("_", "").replace(" ", "").isalnum():
        return None
    return word
