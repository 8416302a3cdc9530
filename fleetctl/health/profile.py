"""What a node of one kind should have: reading such a profile, and choosing the one for a node. Pure.

The built-in ones expect only what is true of every sound node of that kind, in whatever server or virtual machine. How
many GPUs, which ports, which driver: that is learned from a good node (`learn.py`).
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from fleetctl.health.model import Readings
from fleetctl.health.wanted import PortWanted, Profile

# In platforms/, one file each.
BUILT_IN = ("a100-sxm", "a100-pcie", "h100-sxm", "h100-pcie", "h200", "b200", "gb200", "l40s")


def device_ids(readings: Readings) -> Tuple[int, ...]:
    """The kinds of NVIDIA GPU that NVML or PCIe shows, as `0x233510de`, in order."""
    seen = {gpu.device_id for gpu in (readings.nvml.gpus if readings.nvml else ())}
    seen |= {device.device_id for device in readings.devices or () if device.kind == "gpu"}
    return tuple(sorted(one for one in seen if one is not None))


def profile_for(devices: Sequence[int], profiles: Sequence[Profile], learned: Optional[Profile]) -> Optional[Profile]:
    """The learned profile where it is of these GPUs (or of none in particular), else the first of the others that is.

    Where no GPU shows at all the learned one stands: that is how a node that lost all its GPUs is told from one that
    never had any.
    """
    if learned is not None and (not devices or not learned.device_ids or set(devices) & set(learned.device_ids)):
        return learned
    return next((profile for profile in profiles if set(devices) & set(profile.device_ids)), None)


def load_profile(text: str) -> Profile:
    """The profile in this JSON text.

    :raises ValueError: what is wrong, in one line that names the key.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the profile is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ValueError("the profile must be one JSON object")
    unknown = sorted(set(raw) - set(_KEYS))
    if unknown:
        raise ValueError(f"the profile has unknown keys: {', '.join(unknown)[:200]}; it may have {', '.join(_KEYS)}")
    if "name" not in raw:
        raise ValueError("the profile has no name")
    return Profile(**{key: _KEYS[key](value, key) for key, value in raw.items() if value is not None})


def dump_profile(profile: Profile) -> str:
    """The profile as JSON for a person to review: what is not known is left out."""
    raw: Dict[str, Any] = {key: value for key, value in profile._asdict().items() if value not in (None, (), {})}
    if profile.device_ids:
        raw["device_ids"] = [f"{device:#010x}" for device in profile.device_ids]
    if profile.ports is not None:
        ports = [{key: value for key, value in port._asdict().items() if value is not None} for port in profile.ports]
        raw["ports"] = ports
    if profile.nic_links:
        raw["nic_links"] = {key: {"gts": gts, "width": width} for key, (gts, width) in profile.nic_links.items()}
    return json.dumps(raw, indent=2) + "\n"


def _refuse(key: str, what: str) -> ValueError:
    return ValueError(f"the profile's {key} must be {what}")


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _refuse(key, "a text")
    return value


def _whole(value: Any, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _refuse(key, "a whole number, 0 or more")
    return value


def _positive(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e12:
        raise _refuse(key, "a number above 0")
    return float(value)


def _truth(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        raise _refuse(key, "true or false")
    return value


def _listed(value: Any, key: str) -> List[Any]:
    if not isinstance(value, list):
        raise _refuse(key, "a list")
    return value


def _devices(value: Any, key: str) -> Tuple[int, ...]:
    return tuple(_device(one, key) for one in _listed(value, key))


def _device(value: Any, key: str) -> int:
    if not isinstance(value, str) or len(value) != 10 or value[:2] != "0x" or set(value[2:]) - _HEX:
        raise _refuse(key, 'a list of texts like "0x233510de" (device, then vendor)')
    return int(value, 16)


def _counts(value: Any, key: str) -> Tuple[int, ...]:
    if not _listed(value, key):
        raise _refuse(key, "a list of one number or more")
    return tuple(_whole(one, key) for one in value)


def _ports(value: Any, key: str) -> Tuple[PortWanted, ...]:
    return tuple(_port(one, f"{key}[{index}]") for index, one in enumerate(_listed(value, key)))


def _port(raw: Any, key: str) -> PortWanted:
    keys: Mapping[str, _Reader] = {"device": _text, "port": _whole, "rate_gbps": _positive, "width": _whole}
    if not isinstance(raw, dict) or not {"device", "port"} <= set(raw) <= set(keys):
        raise _refuse(key, f"an object with device and port, and no other keys than {', '.join(keys)}")
    return PortWanted(**{name: keys[name](value, f"{key}.{name}") for name, value in raw.items() if value is not None})


def _links(value: Any, key: str) -> Dict[str, Tuple[float, int]]:
    if not isinstance(value, dict):
        raise _refuse(key, "an object")
    return {address: _link(raw, f"{key}.{address[:20]}") for address, raw in value.items()}


def _link(raw: Any, key: str) -> Tuple[float, int]:
    if not isinstance(raw, dict) or set(raw) != {"gts", "width"}:
        raise _refuse(key, "an object with gts and width")
    return _positive(raw["gts"], f"{key}.gts"), _whole(raw["width"], f"{key}.width")


_HEX = frozenset("0123456789abcdefABCDEF")
_Reader = Callable[[Any, str], Any]
_KEYS: Mapping[str, _Reader] = {
    "name": _text,
    "device_ids": _devices,
    "gpus": _whole,
    "links": _counts,
    "pcie_generation": _whole,
    "pcie_width": _whole,
    "memory_mib": _whole,
    "fabric": _truth,
    "ecc": _truth,
    "driver": _text,
    "ports": _ports,
    "nic_links": _links,
    "host_memory_bytes": _whole,
}
