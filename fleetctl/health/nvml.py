"""Reads what NVML knows, through nvidia-ml-py. Runs in a child of run_apart, for any call here may never return.

NVML is not shut down: the child ends right after, which does the same, and one call fewer is one fewer that can hang.
"""

from __future__ import annotations

import time
from itertools import combinations
from typing import Dict, List, Optional, Tuple

from fleetctl.health.model import Answer, Gpu, Nvml, PeerToPeer, Phase
from fleetctl.health.nvml_ask import Device, Nvidia, NvmlRefused, open_nvml
from fleetctl.health.nvml_fields import NOT_SUPPORTED, Shape
from fleetctl.health.nvml_gpu import read_identity, read_pace, read_processes, read_values
from fleetctl.health.record import NamedTuple

_MOST_GPUS = 64  # a count beyond that is nonsense, and no reason to go on for ever
_P2P_READ = 0  # nvmlGpuP2PCapsIndex_t
_MOST_CALLS = 12  # of a GPU in the prolog, where a job waits for them


class Wanted(NamedTuple):
    """What to read. `gpus` are minor numbers, None: all; of the others only the identity is read.

    `peers`: whether those GPUs can read each other; `library`: the path of NVML, None: what the loader finds.
    """

    phase: Phase
    gpus: Optional[Tuple[int, ...]] = None
    peers: bool = False
    processes: bool = False
    library: Optional[str] = None


def read_nvml(wanted: Wanted) -> Nvml:
    """Everything that is `wanted`. What NVML refuses is a code in the answer, never an exception."""
    began = time.monotonic()
    try:
        nvidia = open_nvml(wanted.library)
    except NvmlRefused as refused:
        return Nvml(Answer.FAILED, refused.code, refused.detail, took_s=time.monotonic() - began)
    driver = nvidia.ask("nvmlSystemGetDriverVersion").value
    library = nvidia.ask("nvmlSystemGetNVMLVersion").value
    count = nvidia.ask("nvmlDeviceGetCount")
    if count.code:
        told = Nvml(Answer.FAILED, count.code, "it does not tell how many GPUs there are", driver, library)
    else:
        gpus, peers = _read_gpus(nvidia, min(count.value, _MOST_GPUS), wanted)
        told = Nvml(Answer.ANSWERED, 0, "", driver, library, gpus, peers)
    return told._replace(calls=nvidia.calls, took_s=time.monotonic() - began)


def _read_gpus(nvidia: Nvidia, count: int, wanted: Wanted) -> Tuple[Tuple[Gpu, ...], Tuple[PeerToPeer, ...]]:
    gpus: List[Gpu] = []
    devices: List[Tuple[int, Device]] = []  # those asked for, by index
    shapes: Dict[Optional[int], Shape] = {}  # by device id
    for index in range(count):
        handle = nvidia.ask("nvmlDeviceGetHandleByIndex", index)
        if handle.code:
            gpus.append(Gpu(index, handle.code))
            continue
        device = Device(nvidia, handle.value, _MOST_CALLS if wanted.phase is Phase.PROLOG else None)
        gpu = _identify(index, device)
        if gpu.code == 0 and (wanted.gpus is None or gpu.minor is None or gpu.minor in wanted.gpus):
            gpu = _read_gpu(gpu, device, shapes, wanted)
            devices.append((index, device))
        gpus.append(gpu)
    return tuple(gpus), _read_peers(devices) if wanted.peers else ()


def _identify(index: int, device: Device) -> Gpu:
    """A GPU with its identity. One that cannot tell its minor number may be the job's or not: that is its code."""
    pci, device_id, minor = read_identity(device)
    if minor.code in (0, NOT_SUPPORTED):
        return Gpu(index, 0, pci, minor.value, device_id=device_id)
    return Gpu(index, minor.code, pci, device_id=device_id)


def _read_gpu(gpu: Gpu, device: Device, shapes: Dict[Optional[int], Shape], wanted: Wanted) -> Gpu:
    uuid = device.ask("nvmlDeviceGetUUID").value
    shape = shapes.get(gpu.device_id, Shape())
    reads, links, shapes[gpu.device_id] = read_values(device, shape, more=wanted.phase is not Phase.PROLOG)
    processes = read_processes(device) if wanted.processes else None
    reads.update(read_pace(device))
    return gpu._replace(uuid=uuid, reads=reads, links=links, processes=processes)


def _read_peers(devices: List[Tuple[int, Device]]) -> Tuple[PeerToPeer, ...]:
    """Every pair that is not lost, once."""
    found = [(index, device) for index, device in devices if not device.lost]
    return tuple(
        PeerToPeer(first, second, one.ask("nvmlDeviceGetP2PStatus", other.handle, _P2P_READ))
        for (first, one), (second, other) in combinations(found, 2)
    )
