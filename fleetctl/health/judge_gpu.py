"""How one GPU runs: what its driver asks for, clocks, temperature, power, processes, modes. Pure."""

from __future__ import annotations

from typing import Dict, Tuple

from fleetctl.health.findings import Findings, Scene, failed, gpu_part, number, passed, plain, unread, untold
from fleetctl.health.judge_memory import no_job_here, whose_is_unknown
from fleetctl.health.model import Care, Gpu, Phase

# nvml.h, nvmlDeviceGpuRecoveryAction_t: the driver's own verdict (field 230; Xid 154 logs the same).
ACTIONS: Dict[int, Tuple[Care, str]] = {
    1: (Care.RESET, "reset the GPU"),
    2: (Care.REBOOT, "reboot the node"),
    3: (Care.RESET, "end the jobs that use it through its peers, then reset the GPU"),
    4: (Care.RESET, "end its jobs, then reset the GPU"),
    5: (Care.DRAIN, "restart the IMEX domain of the node"),
    # A reset by the bus heals it, and so does a reboot: the driver's next answer tells, by whichever of them it was.
    6: (Care.RESET, "reset its PCIe bus, or reboot the node"),
    7: (Care.REBOOT, "reboot the whole system"),
}
# nvml.h, nvmlClocksEventReasons: those that are a fault. Idle, clocks that were set, the power cap, sync boost and
# display are how a sound GPU runs.
REASONS: Dict[int, str] = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


def judge_gpu(gpu: Gpu, scene: Scene) -> Findings:
    """All of that about one GPU."""
    found = [*_action(gpu), *_clocks(gpu), *_temperature(gpu, scene), *_power(gpu), *_persistence(gpu), *_mig(gpu)]
    return (*found, *_processes(gpu, scene))


def _action(gpu: Gpu) -> Findings:
    read, part = gpu.reads.get("recovery_action"), gpu_part(gpu)
    value = number(read)
    if value is None:
        return (unread("recovery_action", gpu, "the driver's recovery action", read),)
    if value == 0:
        return (passed("recovery_action", part, f"the driver asks for nothing on {part.subject}", 0, 0),)
    # A newer driver asks for something: what it is is not known, and that it is not nothing is.
    care, words = ACTIONS.get(int(value), (Care.DRAIN, f"recovery action {plain(value)}, which fleetctl does not know"))
    return (failed("recovery_action", part, f"the driver says of {part.subject}: {words}", care, value, 0),)


def _clocks(gpu: Gpu) -> Findings:
    read, part = gpu.reads.get("clock_reasons"), gpu_part(gpu)
    value = number(read)
    if value is None:
        return (unread("clock_reasons", gpu, "the reasons of the clocks", read),)
    mask = int(value)
    bad = [words for bit, words in REASONS.items() if mask & bit]
    if not bad:
        return (passed("clock_reasons", part, f"nothing slows {part.subject} down", mask),)
    return (failed("clock_reasons", part, f"{part.subject} runs slower: {', '.join(bad)}", Care.WATCH, mask, 0),)


def _temperature(gpu: Gpu, scene: Scene) -> Findings:
    """By the margin to throttling where the GPU tells it: what is hot differs from model to model."""
    part, unit = gpu_part(gpu), "degrees C"
    margin, least = number(gpu.reads.get("temperature_margin_c")), scene.rules.limit("temperature_margin_c")
    if margin is not None:
        words = f"{part.subject} is {plain(margin)} degrees C below throttling"
        if margin > least:
            return (passed("temperature", part, words, margin, least, unit),)
        return (failed("temperature", part, words, Care.WATCH, margin, least, unit),)
    degrees, most = number(gpu.reads.get("temperature_c")), scene.rules.limit("temperature_c")
    if degrees is None:
        read = gpu.reads.get("temperature_c") or gpu.reads.get("temperature_margin_c")
        return (unread("temperature", gpu, "the temperature", read),)
    words = f"{part.subject} has {plain(degrees)} degrees C"
    if degrees <= most:
        return (passed("temperature", part, words, degrees, most, unit),)
    return (failed("temperature", part, f"{words}, more than {plain(most)}", Care.WATCH, degrees, most, unit),)


def _power(gpu: Gpu) -> Findings:
    read, part = gpu.reads.get("power_mw"), gpu_part(gpu)
    if read is None:
        return ()  # not asked in the prolog
    value, limit = number(read), number(gpu.reads.get("power_limit_mw"))
    if value is None:
        return (unread("power", gpu, "the power drawn", read),)
    most = None if limit is None else int(limit) // 1000
    return (passed("power", part, f"{part.subject} draws {int(value) // 1000} W", int(value) // 1000, most, "W"),)


def _persistence(gpu: Gpu) -> Findings:
    read, part = gpu.reads.get("persistence"), gpu_part(gpu)
    if read is None:
        return ()  # not asked in the prolog
    value = number(read)
    if value is None:
        return (unread("persistence", gpu, "persistence mode", read),)
    if value == 1:
        return (passed("persistence", part, f"persistence mode is on for {part.subject}", 1, 1),)
    words = f"persistence mode is off for {part.subject}: start nvidia-persistenced, each check is slow without"
    return (failed("persistence", part, words, Care.WATCH, value, 1),)


def _mig(gpu: Gpu) -> Findings:
    read, part = gpu.reads.get("mig_mode"), gpu_part(gpu)
    value = number(read)
    if value is None:
        return (unread("mig", gpu, "MIG mode", read),)
    words = f"{part.subject} is cut up by MIG" if value == 1 else f"MIG is off on {part.subject}"
    return (passed("mig", part, words, value),)


def _processes(gpu: Gpu, scene: Scene) -> Findings:
    """Only while no job should be there."""
    part, processes = gpu_part(gpu), gpu.processes
    if not no_job_here(gpu, scene):
        return ()
    if processes is None:
        return (untold("processes", part, f"the processes on {part.subject} were not read"),)
    if not processes:
        return (passed("processes", part, f"no process is on {part.subject}", 0, 0, "processes"),)
    pids = ", ".join(str(one.pid) for one in processes[:5]) + (", ..." if len(processes) > 5 else "")
    if whose_is_unknown(scene):
        words = f"{len(processes)} processes are on {part.subject} (pid {pids}), perhaps another job's"
        return (untold("processes", part, words),)
    when = "before the job" if scene.asked.phase is Phase.PROLOG else "while no job should be there"
    words = f"{len(processes)} processes are on {part.subject} {when} (pid {pids})"
    return (failed("processes", part, words, Care.WATCH, len(processes), 0, "processes"),)
