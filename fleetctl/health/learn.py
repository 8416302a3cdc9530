"""The profile of a node that is known to be good. Pure.

What its GPUs do not agree on is left out: a person reviews the file before other nodes are held to it.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, Optional, Sequence, Tuple

from fleetctl.health.findings import mig_on, number
from fleetctl.health.judge_links import link_states
from fleetctl.health.judge_pcie import device_of
from fleetctl.health.model import Answer, Gpu, PciLink, Port, Readings
from fleetctl.health.profile import device_ids
from fleetctl.health.wanted import PortWanted, Profile

_MIB = 1 << 20


def learn(readings: Readings) -> Profile:
    """What nodes like this one should have, from readings of a phase that asks for everything (by hand, periodic)."""
    nvml = readings.nvml
    answered = nvml is not None and nvml.answer is Answer.ANSWERED and all(gpu.code == 0 for gpu in nvml.gpus)
    gpus: Sequence[Gpu] = nvml.gpus if nvml is not None and answered else ()
    return Profile(
        name=f"learned from {readings.node}",
        device_ids=device_ids(readings),
        gpus=len(gpus) if answered else None,
        links=_links(gpus),
        pcie_generation=_whole(_agreed(number(gpu.reads.get("pcie_max_generation")) for gpu in gpus)),
        pcie_width=_whole(_agreed(_width(gpu, readings) for gpu in gpus)),
        memory_mib=_mib(_agreed(number(gpu.reads.get("memory_total_bytes")) for gpu in gpus)),
        fabric=_fabric(gpus),
        ecc=_truth(_agreed(number(gpu.reads.get("ecc_mode")) for gpu in gpus)),
        driver=nvml.driver if nvml is not None else None,
        ports=_ports(readings.ports),
        nic_links=_nic_links(readings),
        host_memory_bytes=readings.host.memory_bytes if readings.host else None,
    )


def _agreed(values: Iterable[Optional[float]]) -> Optional[float]:
    """The one value that all have."""
    kept = set(values)
    return kept.pop() if len(kept) == 1 else None


def _whole(value: Optional[float]) -> Optional[int]:
    return int(value) if value else None  # 0 lanes and generation 0 are nonsense


def _mib(value: Optional[float]) -> Optional[int]:
    return int(value) // _MIB if value else None


def _truth(value: Optional[float]) -> Optional[bool]:
    return None if value is None else value == 1


def _links(gpus: Sequence[Gpu]) -> Optional[Tuple[int, ...]]:
    """Every number of links that is up on some GPU. GPUs that are cut up, or do not tell, teach nothing."""
    states = [link_states(gpu) for gpu in gpus if gpu.links and not mig_on(gpu)]
    counts = {len(one.up) for one in states if not one.unknown}
    return tuple(sorted(counts)) or None


def _width(gpu: Gpu, readings: Readings) -> Optional[float]:
    device = device_of(gpu, readings.devices)
    return (device.link.width if device else None) or number(gpu.reads.get("pcie_width"))


def _fabric(gpus: Sequence[Gpu]) -> Optional[bool]:
    state = _agreed(number(gpu.reads.get("fabric_state")) for gpu in gpus)
    return {0: False, 3: True}.get(int(state)) if state is not None else None


def _ports(ports: Optional[Sequence[Port]]) -> Optional[Tuple[PortWanted, ...]]:
    """Those that are up now."""
    if ports is None:
        return None
    up = (port for port in ports if port.state == "ACTIVE" and port.operstate != "down")
    return tuple(PortWanted(port.device, port.port, port.rate_gbps or None, port.width or None) for port in up)


def _nic_links(readings: Readings) -> Mapping[str, Tuple[float, int]]:
    """Network cards with all bridges above them, and the bridges above GPUs but their own slot's, which idles along."""
    links: Dict[str, Tuple[float, int]] = {}
    for device in readings.devices or ():
        ends: Any = {"nic": (device.link, *device.bridges), "gpu": device.bridges[1:]}.get(device.kind, ())
        links.update(_known(ends))
    return links


def _known(ends: Iterable[PciLink]) -> Iterable[Tuple[str, Tuple[float, int]]]:
    for link in ends:
        if link.speed_gts and link.width:
            yield link.address, (link.speed_gts, link.width)
