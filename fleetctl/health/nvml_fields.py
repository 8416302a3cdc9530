"""What NVML answers as field values: the ids, and how to read the answers. Pure.

One `nvmlDeviceGetFieldValues` asks a GPU for everything that has an id, where a function each would be two hundred
calls. The call as a whole succeeds; each value has a return code and a type of its own.
Ids: nvml.h 13.3, NVML_FI_DEV_*; a test holds them against nvidia-ml-py.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from fleetctl.health.model import Read
from fleetctl.health.record import NamedTuple

INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
FUNCTION_NOT_FOUND = 13
NO_DATA = 21  # our own word for a value that cannot be one
UNKNOWN_TO_DRIVER = (INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND)
MOST_LINKS = 36  # NVML_NVLINK_MAX_LINKS

FieldId = Tuple[int, int]  # field, scope (a link's number, else 0)

EVERY_PHASE: Mapping[str, int] = {
    "ecc_mode": 1,
    "ecc_pending": 2,
    "ecc_corrected_volatile": 3,
    "ecc_uncorrected_volatile": 4,
    "ecc_corrected_aggregate": 5,
    "ecc_uncorrected_aggregate": 6,
    "energy_mj": 83,
    "link_count": 91,
    "pcie_replays": 94,
    "remap_corrected": 142,
    "remap_uncorrected": 143,
    "remap_pending": 144,
    "remap_failure": 145,
    "recovery_action": 230,  # since about R570
}
MORE: Mapping[str, int] = {"retired_single": 29, "retired_double": 30, "retired_pending": 31}
LINK: Mapping[str, int] = {
    "state": 165,
    "replays": 161,
    "recoveries": 162,
    "crc_errors": 163,
    "receive_errors": 208,
    "integrity_errors": 211,
    "recovery_failed": 214,
    "recovery_events": 215,
}


class Shape(NamedTuple):
    """What GPUs of one kind have: the first says it, and the next are asked for no more.

    `links` is the number of NVLinks to ask for at once, `keys` are those of LINK that the driver knows.
    """

    links: int = 18  # H100 to GB200
    keys: Tuple[str, ...] = tuple(LINK)


_VALUE = struct.Struct("=IIqqIi8s")  # nvmlFieldValue_t: field, scope, timestamp, latency, type, return, union
_UNION = {kind: struct.Struct(f"={form}") for kind, form in enumerate("dIQQqiH")}  # nvmlValueType_t; long has 64 bits


def gpu_fields(more: bool) -> List[FieldId]:
    """What a GPU is asked about itself."""
    return [(number, 0) for number in (*EVERY_PHASE.values(), *(MORE.values() if more else ()))]


def link_fields(first: int, end: int, keys: Sequence[str]) -> List[FieldId]:
    """What a GPU is asked about its links from `first` up to, but without, `end`."""
    return [(LINK[key], link) for link in range(first, end) for key in keys]


def shape_of(links: Sequence[Mapping[str, Read]], asked: Shape) -> Shape:
    """The shape that one GPU's links show, after it was asked for `asked`."""
    known = tuple(key for key in asked.keys if any(link[key].code not in UNKNOWN_TO_DRIVER for link in links))
    return Shape(len(links), known or asked.keys)


def decode(values: Any) -> Dict[FieldId, Read]:
    """The answers in an array of nvmlFieldValue_t (anything with a buffer)."""
    return {
        (field, scope): _value(kind, union) if code == 0 else Read(None, code)
        for field, scope, _, _, kind, code, union in _VALUE.iter_unpack(memoryview(values).cast("B"))
    }


def _value(kind: int, union: bytes) -> Read:
    form = _UNION.get(kind)
    if form is None:
        return Read(None, NO_DATA)
    (value,) = form.unpack_from(union)
    if kind == 0 and not math.isfinite(value):
        return Read(None, NO_DATA)
    return Read(value)
