"""What a job used of its GPUs, and which errors came while it ran: readings of its epilog against those of its prolog.

Pure. What cannot be told is None, never zero: no start, a reboot between, a counter that went backwards.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

from fleetctl.health.deltas import counters_of, gpu_key
from fleetctl.health.model import Asked, Gpu, Readings
from fleetctl.health.state import JobStart

ENERGY = "energy_mj"


def start_of(readings: Readings, asked: Asked, uid: Optional[int]) -> JobStart:
    """What the epilog of the job in this prolog compares with."""
    gpus = tuple(gpu.uuid for gpu in _gpus(readings, asked) if gpu.uuid is not None)
    return JobStart(readings.at, readings.boot_id, gpus, job_counters(readings, asked), readings.uptime_s, uid)


def use_of(start: Optional[JobStart], readings: Readings, asked: Asked) -> Dict[str, Any]:
    """`seconds` since the prolog; per GPU `energy_j` used since and `memory_bytes` in use now; `errors` that came.

    `errors` maps counters that moved to how far; None: backwards. For a job that has ended already (an epilog that
    runs again) energy and errors are not told, lest they count twice.
    """
    counted = start if start is not None and _comparable(start, readings) else None
    now = job_counters(readings, asked)
    return {
        "seconds": _seconds(start, readings),
        "gpus": [_gpu(gpu, counted, now) for gpu in _gpus(readings, asked)],
        "errors": None if counted is None else _errors(counted.counters, now),
    }


def job_counters(readings: Readings, asked: Asked) -> Dict[str, int]:
    """The counters of the job's GPUs and of the node's ports and memory; NVLinks of one GPU are summed up per counter,
    because every look reads the starts of all jobs."""
    bases = {gpu_key(gpu) for gpu in _gpus(readings, asked)}
    counters: Dict[str, int] = {}
    for key, value in counters_of(readings).items():
        kind, name, rest = _split(key)
        if kind == "gpu" and f"gpu/{name}" in bases:
            folded = f"gpu/{name}/{_folded(rest)}"
            counters[folded] = counters.get(folded, 0) + value
        elif kind in ("port", "node"):
            counters[key] = value
    return counters


def _split(key: str) -> Tuple[str, str, str]:
    kind, _, rest = key.partition("/")
    name, _, last = rest.partition("/")
    return kind, name, last


def _folded(rest: str) -> str:
    """`link/3/replays` -> `links/replays`."""
    parts = rest.split("/")
    return f"links/{parts[2]}" if parts[0] == "link" and len(parts) == 3 else rest


def _gpus(readings: Readings, asked: Asked) -> List[Gpu]:
    gpus = () if readings.nvml is None else readings.nvml.gpus
    return [gpu for gpu in gpus if asked.gpus is None or gpu.minor in asked.gpus]


def _comparable(start: JobStart, readings: Readings) -> bool:
    return bool(readings.boot_id) and start.boot_id == readings.boot_id and start.ended_at is None


def _seconds(start: Optional[JobStart], readings: Readings) -> Optional[float]:
    """By the clock that never jumps where the node has not been started anew since."""
    if start is None:
        return None
    if start.ended_at is not None:
        span = start.ended_at - start.at
    elif start.uptime_s is not None and start.boot_id == readings.boot_id:
        span = readings.uptime_s - start.uptime_s
    else:
        span = readings.at - start.at
    return round(span, 3) if span >= 0 else None


def _gpu(gpu: Gpu, start: Optional[JobStart], now: Mapping[str, int]) -> Dict[str, Any]:
    key = f"{gpu_key(gpu)}/{ENERGY}"
    before = None if start is None else start.counters.get(key)
    after = now.get(key)
    energy = None if before is None or after is None or after < before else (after - before) / 1000
    used = gpu.reads.get("memory_used_bytes")
    memory = used.value if used is not None and used.code == 0 else None
    return {"gpu": gpu.pci, "uuid": gpu.uuid, "energy_j": energy, "memory_bytes": memory}


def _errors(before: Mapping[str, int], now: Mapping[str, int]) -> Dict[str, Optional[int]]:
    both = ((key, before[key], value) for key, value in now.items() if key in before and not _is_energy(key))
    return {key: value - was if value > was else None for key, was, value in both if value != was}


def _is_energy(key: str) -> bool:
    return key.rpartition("/")[2] == ENERGY
