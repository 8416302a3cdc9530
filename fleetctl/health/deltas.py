"""How counters moved since an earlier look in the same boot. Pure."""

from __future__ import annotations

from typing import Dict, Mapping, Optional, Tuple

from fleetctl.health.model import Baseline, Change, Gpu, Host, Move, Port, Readings
from fleetctl.health.readings import LINK

# InfiniBand's PortCounters are narrow and stop at their ceiling (IBA 16.1.3.5; seen live in gpud#943). Where the kernel
# reads the wide ones instead, a counter passes this number and counts on.
CEILINGS: Mapping[str, int] = {
    "local_link_integrity_errors": 15,
    "excessive_buffer_overrun_errors": 15,
    "link_downed": 255,
    "link_error_recovery": 255,
    "port_rcv_constraint_errors": 255,
    "port_xmit_constraint_errors": 255,
    "symbol_error": 65535,
    "port_rcv_errors": 65535,
    "port_rcv_remote_physical_errors": 65535,
    "port_rcv_switch_relay_errors": 65535,
    "port_xmit_discards": 65535,
    "VL15_dropped": 65535,
    "port_xmit_wait": 4294967295,
}
_WIDEST = 1 << 64
_TOPS = frozenset(CEILINGS.values())
_OF_GPU = ("pcie_replays", "ecc_corrected_volatile", "ecc_uncorrected_volatile", "energy_mj")
_OF_LINK = tuple(key for key in LINK if key != "state")


def gpu_key(gpu: Gpu) -> str:
    """`gpu/GPU-8f1c...`; by the place on PCIe where the uuid is not known."""
    return f"gpu/{gpu.uuid or gpu.pci or gpu.index}"


def port_key(port: Port) -> str:
    """`port/mlx5_0/1`."""
    return f"port/{port.device}/{port.port}"


def counters_of(readings: Readings) -> Dict[str, int]:
    """Every counter that was read, by stable key: `gpu/UUID/pcie_replays`, `gpu/UUID/link/3/replays`,
    `port/mlx5_0/1/link_downed`, `pci/0000:1b:00.0/fatal`, `node/edac_corrected`."""
    found: Dict[str, object] = {}
    for gpu in () if readings.nvml is None else readings.nvml.gpus:
        _add_gpu(found, gpu)
    for port in readings.ports or ():
        base = port_key(port)
        for name, count in port.counters.items():
            found[f"{base}/{name}"] = count
    for device in readings.devices or ():
        for name, count in device.errors.items():
            found[f"pci/{device.link.address}/{name}"] = count
    host = readings.host or Host()
    found["node/edac_corrected"] = host.edac_corrected
    found["node/edac_uncorrected"] = host.edac_uncorrected
    return {key: value for key, value in found.items() if type(value) is int and 0 <= value < _WIDEST}


def _add_gpu(found: Dict[str, object], gpu: Gpu) -> None:
    """In plain loops: with eight GPUs these are a thousand readings, and a prolog counts its CPU."""
    base = gpu_key(gpu)
    for name in _OF_GPU:
        read = gpu.reads.get(name)
        if read is not None and read.code == 0:
            found[f"{base}/{name}"] = read.value
    for index, link in enumerate(gpu.links):
        of_link = f"{base}/link/{index}/"
        for name in _OF_LINK:
            read = link.get(name)
            if read is not None and read.code == 0:
                found[of_link + name] = read.value


def changes(before: Optional[Baseline], readings: Readings) -> Dict[str, Change]:
    """How each counter that can be read now moved since the baseline.

    A baseline of another boot, or of one that nobody knows, is none. Nor is one of a GPU that used less energy since
    its driver was loaded than it had: it was reset between the looks, and all its counters began anew.
    """
    same_boot = before is not None and bool(readings.boot_id) and before.boot_id == readings.boot_id
    earlier: Mapping[str, int] = before.counters if before is not None and same_boot else {}
    over_s, counters = _between_s(before, readings), counters_of(readings)
    reset = _reset(earlier, counters, readings)
    return {
        key: _change(key, None if reset and key.startswith(reset) else earlier.get(key), now, over_s)
        for key, now in counters.items()
    }


def _reset(earlier: Mapping[str, int], counters: Mapping[str, int], readings: Readings) -> Tuple[str, ...]:
    """What the keys of those GPUs begin with that were reset since."""
    gpus = () if readings.nvml is None else readings.nvml.gpus
    bases = (gpu_key(gpu) + "/" for gpu in gpus)
    energy = "energy_mj"
    return tuple(base for base in bases if counters.get(base + energy, _WIDEST) < earlier.get(base + energy, 0))


def _between_s(before: Optional[Baseline], readings: Readings) -> float:
    """Seconds since the baseline. A clock that jumped gives a span that cannot be: then the longest possible one
    counts, so that no rate looks higher than it was."""
    since_boot = max(0.0, readings.uptime_s)
    span = readings.at - before.at if before is not None else 0.0
    return span if 0.0 <= span <= since_boot else since_boot


def _change(key: str, before: Optional[int], now: int, over_s: float) -> Change:
    by = 0 if before is None else max(0, now - before)
    if now in _TOPS and CEILINGS.get(key.rpartition("/")[2]) == now:
        return Change(Move.CEILING, now, by, over_s)
    if before is None:
        return Change(Move.FIRST, now)
    if now < before:
        return Change(Move.BACKWARDS, now, 0, over_s)
    return Change(Move.SAME if by == 0 else Move.ROSE, now, by, over_s)


def too_fast(change: Change, most: float, per_s: float) -> bool:
    """Whether a counter rose by more than `most` in `per_s` seconds.

    Over a shorter span than that (a minute at least) the whole allowance counts, so that one error right after another
    look is not a storm.
    """
    return change.by > most * max(change.over_s, per_s, 60.0) / per_s
