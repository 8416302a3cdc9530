"""The machine around the GPUs, read from sysfs and proc: memory, /dev/shm, EDAC, clock, governors, stuck processes."""

from __future__ import annotations

import os
from typing import List, Optional, Tuple

from fleetctl.health.files import as_count, list_names, read_bytes, read_text
from fleetctl.health.model import Host, Stuck
from fleetctl.health.pci import gpu_addresses

# More processes than Linux numbers by default on a large node; a walk of /proc must end.
_MOST_PROCESSES = 65536
_MOST_STUCK = 64
_MOST_NAME = 64
# Of struct timex (adjtimex(2)) on 64 bit Linux: `status` after modes and four longs. The struct has 208 bytes.
_TIMEX_BYTES = 208
_STATUS_AT = 40
_STA_UNSYNC = 0x0040


def read_host(sys: str, proc: str, shm: str) -> Host:
    """What is cheap enough for every phase. The rest is read by `read_closely`, the file systems by read_mounts."""
    gpus = gpu_addresses(sys)
    total, free = _space(shm)
    corrected, uncorrected = _edac(sys)
    return Host(
        memory_bytes=_memory(proc),
        shm_bytes=total,
        shm_free_bytes=free,
        edac_corrected=corrected,
        edac_uncorrected=uncorrected,
        clock_source=read_text(sys + "/devices/system/clocksource/clocksource0/current_clocksource"),
        nvidia_devices=None if gpus is None else len(gpus),
    )


def read_closely(host: Host, sys: str, proc: str) -> Host:
    """`host` with what costs too much in a prolog: a file for each CPU, a file for each process, the clock."""
    return host._replace(governors=_governors(sys), clock_synchronised=clock_synchronised(), stuck=read_stuck(proc))


def boot_id(proc: str) -> str:
    """The kernel's name for this boot; "" when it cannot be read."""
    text = read_text(proc + "/sys/kernel/random/boot_id") or ""
    return text if len(text) <= _MOST_NAME and text.isprintable() else ""


def _memory(proc: str) -> Optional[int]:
    data = read_bytes(proc + "/meminfo") or b""
    for line in data.splitlines():
        name, _, rest = line.partition(b":")
        if name == b"MemTotal":
            words = rest.decode("ascii", "replace").split()
            kilobytes = as_count(words[0]) if len(words) == 2 and words[1] == "kB" else None
            return None if kilobytes is None else kilobytes * 1024
    return None


def _space(path: str) -> Tuple[Optional[int], Optional[int]]:
    """Bytes in all and bytes free of a tmpfs, whose statvfs cannot hang."""
    try:
        found = os.statvfs(path)
    except (OSError, ValueError):
        return None, None
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def _edac(sys: str) -> Tuple[Optional[int], Optional[int]]:
    """Corrected and uncorrected errors of all memory controllers; None: no controller told, or one did not."""
    root = sys + "/devices/system/edac/mc"
    controllers = [n for n in list_names(root) or () if n.startswith("mc") and n[2:].isdecimal()]
    sums = [_sum([f"{root}/{n}/{file}" for n in controllers]) for file in ("ce_count", "ue_count")]
    return sums[0], sums[1]


def _sum(paths: List[str]) -> Optional[int]:
    total = None
    for path in paths:
        value = as_count(read_text(path))
        if value is None:
            return None
        total = value + (total or 0)
    return total


def _governors(sys: str) -> Tuple[str, ...]:
    root = sys + "/devices/system/cpu/cpufreq"
    found = {read_text(f"{root}/{name}/scaling_governor") for name in list_names(root) or ()}
    if not found:  # older trees have them under each CPU only
        root = sys + "/devices/system/cpu"
        cpus = [n for n in list_names(root) or () if n.startswith("cpu") and n[3:].isdecimal()]
        found = {read_text(f"{root}/{name}/cpufreq/scaling_governor") for name in cpus}
    return tuple(sorted(name for name in found if name))


def clock_synchronised() -> Optional[bool]:
    """Whether the kernel holds its clock for synchronised (adjtimex(2) without STA_UNSYNC); None: it does not say."""
    import ctypes  # some milliseconds: not in the prolog

    try:
        call = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)  # all zero: modes 0 reads, and sets nothing
    if call(timex) < 0:
        return None
    status = int.from_bytes(timex.raw[_STATUS_AT : _STATUS_AT + 4], "little")
    return not status & _STA_UNSYNC


def read_stuck(proc: str) -> Tuple[Stuck, ...]:
    """Processes in uninterruptible sleep, then those dead and not buried, at this moment: most are passing through."""
    asleep: List[Stuck] = []
    dead: List[Stuck] = []
    for name in list_names(proc, _MOST_PROCESSES) or ():
        pid = as_count(name)
        found = None if pid is None else _state(pid, read_bytes(f"{proc}/{name}/stat"))
        if found is not None:
            (asleep if found.state == "D" else dead).append(found)
        if len(asleep) == _MOST_STUCK:
            break
    return tuple((*sorted(asleep), *sorted(dead))[:_MOST_STUCK])


def _state(pid: int, stat: Optional[bytes]) -> Optional[Stuck]:
    """Of `123 (name) S 1 ...` (proc_pid_stat(5)). A name may hold anything, brackets and newlines too."""
    before, _, after = (stat or b"").rpartition(b")")
    state = after[1:2].decode("ascii", "replace")
    if state not in ("D", "Z"):
        return None
    name = before.partition(b"(")[2].decode("ascii", "replace")[:_MOST_NAME]
    return Stuck(pid, "".join(c if c.isprintable() else "?" for c in name), state)
