"""Reads one GPU: twelve calls in the prolog, three of a GPU that the job does not have. For the NVML child only.

Field values first, functions for what has none; where fields are not known to the driver, functions outside the
prolog. Every key of readings.EVERY_PHASE is there, with the code of what NVML answered, but for what `read_pace` leaves
out.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional, Tuple

from fleetctl.health.model import Process, Read
from fleetctl.health.nvml_ask import INSUFFICIENT_SIZE, Device
from fleetctl.health.nvml_fields import (
    EVERY_PHASE,
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    LINK,
    MORE,
    MOST_LINKS,
    NOT_SUPPORTED,
    UNKNOWN_TO_DRIVER,
    FieldId,
    Shape,
    decode,
    gpu_fields,
    link_fields,
    shape_of,
)

VERSION_MISMATCH = 25  # the struct is newer than the driver
_GROWING_TRIES = 3  # the list of processes grew between asking for its size and for itself
_MOST_PROCESSES = 4096

Reads = Dict[str, Read]
Links = Tuple[Reads, ...]


def read_identity(device: Device) -> Tuple[Optional[str], Optional[int], Read]:
    """Where a GPU is on PCIe (`0000:1b:00.0`), its device id, and its minor number."""
    info = device.ask("nvmlDeviceGetPciInfo")
    if info.code:
        return None, None, info
    value = info.value
    pci = f"{value.domain:04x}:{value.bus:02x}:{value.device:02x}.0"  # as sysfs writes it; a GPU is function 0
    return pci, value.pciDeviceId, device.ask("nvmlDeviceGetMinorNumber")


def read_values(device: Device, shape: Shape, more: bool) -> Tuple[Reads, Links, Shape]:
    """What EVERY_PHASE lists, and with `more` MORE; the links; and what to ask the next GPU of this kind."""
    wanted = gpu_fields(more) + link_fields(0, shape.links, shape.keys)
    fields = device.ask("nvmlDeviceGetFieldValues", wanted)
    answers = decode(fields.value) if fields.code == 0 else {}
    reads = {key: answers.get((number, 0), Read(None, fields.code)) for key, number in EVERY_PHASE.items()}
    links = _read_links(device, answers, reads["link_count"], shape)
    shape = shape_of(links, shape) if fields.code == 0 else shape
    if more:
        reads.update(_retired(answers, fields.code))
        reads.update(_ask_functions(device, reads))
        links = _ask_links(device, links)
    reads.update(_read_sram(device))
    reads.update(_read_fabric(device))
    reads.update(_read_state(device))
    if more:
        reads.update(_read_more(device))
    return reads, links, shape


def read_processes(device: Device) -> Optional[Tuple[Process, ...]]:
    """The compute processes on a GPU; None: not told."""
    for _ in range(_GROWING_TRIES):
        if not device.has_room(2):  # the wrapper asks twice unless there is none
            break
        listed = _ask_processes(device)
        if listed.code == 0:
            device.nvidia.calls += bool(listed.value)
            return tuple(Process(item.pid, item.usedGpuMemory) for item in listed.value[:_MOST_PROCESSES])
        if listed.code != INSUFFICIENT_SIZE:
            break
        device.nvidia.calls += 1
    return None


def _ask_processes(device: Device) -> Read:
    listed = device.ask("nvmlDeviceGetComputeRunningProcesses")
    if listed.code == FUNCTION_NOT_FOUND:  # drivers before R510 know only the second version
        listed = device.ask("nvmlDeviceGetComputeRunningProcesses_v2")
    return listed


def read_pace(device: Device) -> Reads:
    """What may slow the GPU down. It never closes a node: so it comes last, and only where a call for it is left."""
    reads: Reads = {}
    if device.has_room(1):
        reasons = device.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons.code == FUNCTION_NOT_FOUND:  # drivers before R535 know it by its old name
            reasons = device.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        reads["clock_reasons"] = reasons
    if device.has_room(1):
        reads["temperature_margin_c"] = device.ask("nvmlDeviceGetMarginTemperature")
    return reads


def _read_links(device: Device, answers: Dict[FieldId, Read], count: Read, asked: Shape) -> Links:
    """The links that the GPU has: as many as it says, else up to the first that the driver does not know."""
    if count.code == 0:
        end = max(0, min(int(count.value), MOST_LINKS))
        if end > asked.links:
            rest = device.ask("nvmlDeviceGetFieldValues", link_fields(asked.links, end, asked.keys))
            answers.update(decode(rest.value) if rest.code == 0 else {})
    else:
        unknown = Read(None, INVALID_ARGUMENT)
        states = [answers.get((LINK["state"], link), unknown) for link in range(asked.links)]
        end = next((link for link, state in enumerate(states) if state.code in UNKNOWN_TO_DRIVER), asked.links)
    missing = Read(None, NOT_SUPPORTED)
    return tuple({key: answers.get((number, link), missing) for key, number in LINK.items()} for link in range(end))


def _retired(answers: Dict[FieldId, Read], code: int) -> Reads:
    missing = Read(None, code)
    single, double, pending = (
        answers.get((MORE[key], 0), missing) for key in ("retired_single", "retired_double", "retired_pending")
    )
    told = [read.value for read in (single, double) if read.code == 0]
    return {"retired_pages": Read(sum(told)) if told else double, "retired_pending": pending}


def _ask_functions(device: Device, reads: Reads) -> Reads:
    """By function what the driver does not know as a field, for the keys that matter most."""
    found: Reads = {}
    for names, function, arguments in _FUNCTIONS:
        if all(reads[name].code in UNKNOWN_TO_DRIVER for name in names):
            read = device.ask(function, *arguments)
            values = read.value if isinstance(read.value, (list, tuple)) else [read.value] * len(names)
            found.update({name: Read(value, read.code) for name, value in zip(names, values)})  # noqa: B905 - Python 3.9
    return found


_FUNCTIONS: Tuple[Tuple[Tuple[str, ...], str, Tuple[int, ...]], ...] = (
    (("ecc_mode", "ecc_pending"), "nvmlDeviceGetEccMode", ()),
    (("ecc_corrected_volatile",), "nvmlDeviceGetTotalEccErrors", (0, 0)),
    (("ecc_uncorrected_volatile",), "nvmlDeviceGetTotalEccErrors", (1, 0)),
    (("ecc_corrected_aggregate",), "nvmlDeviceGetTotalEccErrors", (0, 1)),
    (("ecc_uncorrected_aggregate",), "nvmlDeviceGetTotalEccErrors", (1, 1)),
    (
        ("remap_corrected", "remap_uncorrected", "remap_pending", "remap_failure"),
        "nvmlDeviceGetRemappedRows",
        (),
    ),
    (("pcie_replays",), "nvmlDeviceGetPcieReplayCounter", ()),
    (("energy_mj",), "nvmlDeviceGetTotalEnergyConsumption", ()),
)
_LINK_COUNTERS = {"replays": 0, "recoveries": 1, "crc_errors": 2}  # nvmlNvLinkErrorCounter_t


def _ask_links(device: Device, links: Links) -> Links:
    """The links by function, where the driver knows none as fields (before R525 or so)."""
    if any(link["state"].code not in UNKNOWN_TO_DRIVER for link in links):
        return links
    found: List[Reads] = []
    for number in range(len(links) or MOST_LINKS):
        state = device.ask("nvmlDeviceGetNvLinkState", number)
        if state.code in UNKNOWN_TO_DRIVER:  # there are no more
            break
        counters = {
            key: device.ask("nvmlDeviceGetNvLinkErrorCounter", number, which) for key, which in _LINK_COUNTERS.items()
        }
        found.append({**dict.fromkeys(LINK, Read(None, NOT_SUPPORTED)), "state": state, **counters})
    return tuple(found) or links


def _read_sram(device: Device) -> Reads:
    kind = getattr(device.nvidia.pynvml, "c_nvmlEccSramErrorStatus_v1_t", None)
    if kind is None:
        return dict.fromkeys(("sram_threshold", "sram_uncorrected"), Read(None, FUNCTION_NOT_FOUND))
    status = kind()
    code = device.ask("nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status)).code
    if code:
        return dict.fromkeys(("sram_threshold", "sram_uncorrected"), Read(None, code))
    uncorrected = status.aggregateUncParity + status.aggregateUncSecDed
    return {"sram_threshold": Read(status.bThresholdExceeded), "sram_uncorrected": Read(uncorrected)}


_FABRIC = (  # the newest first; the last has no version and no health
    ("c_nvmlGpuFabricInfo_v3_t", "nvmlDeviceGetGpuFabricInfoV"),
    ("c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV"),
    ("c_nvmlGpuFabricInfo_t", "nvmlDeviceGetGpuFabricInfo"),
)


def _read_fabric(device: Device) -> Reads:
    nvidia, code = device.nvidia, FUNCTION_NOT_FOUND
    for name, function in _FABRIC:
        kind = getattr(nvidia.pynvml, name, None)
        if kind is None or name in nvidia.refused:
            continue
        info = kind()
        code = device.ask(function, ctypes.byref(info)).code
        if code in (VERSION_MISMATCH, FUNCTION_NOT_FOUND):
            nvidia.refused.add(name)
            continue
        if code == 0:
            return _fabric(info)
        break
    return dict.fromkeys(("fabric_state", "fabric_status", "fabric_mask", "fabric_summary"), Read(None, code))


def _fabric(info: Any) -> Reads:
    return {
        "fabric_state": Read(info.state),
        "fabric_status": Read(info.status),
        "fabric_mask": Read(getattr(info, "healthMask", 0)),
        "fabric_summary": Read(getattr(info, "healthSummary", 0)),
    }


def _read_state(device: Device) -> Reads:
    mig = device.ask("nvmlDeviceGetMigMode")
    memory = device.ask("nvmlDeviceGetMemoryInfo", getattr(device.nvidia.pynvml, "nvmlMemory_v2", None))
    return {
        "mig_mode": mig if mig.code else Read(mig.value[0]),
        "memory_total_bytes": memory if memory.code else Read(memory.value.total),
        "memory_used_bytes": memory if memory.code else Read(memory.value.used),
    }


def _read_more(device: Device) -> Reads:
    return {key: device.ask(function, *arguments) for key, (function, arguments) in _MORE.items()}


_MORE: Dict[str, Tuple[str, Tuple[int, ...]]] = {
    "name": ("nvmlDeviceGetName", ()),
    "serial": ("nvmlDeviceGetSerial", ()),
    "persistence": ("nvmlDeviceGetPersistenceMode", ()),
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration", ()),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth", ()),
    "pcie_max_generation": ("nvmlDeviceGetMaxPcieLinkGeneration", ()),
    "pcie_max_width": ("nvmlDeviceGetMaxPcieLinkWidth", ()),
    "temperature_c": ("nvmlDeviceGetTemperature", (0,)),
    "power_mw": ("nvmlDeviceGetPowerUsage", ()),
    "power_limit_mw": ("nvmlDeviceGetEnforcedPowerLimit", ()),
    "performance_state": ("nvmlDeviceGetPerformanceState", ()),
}
