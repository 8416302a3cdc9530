"""Every check that there is: what it is called, what it reads, when it is made and what it may ask for. Pure."""

from __future__ import annotations

from typing import Dict, Tuple

from fleetctl.health.model import Care, Phase
from fleetctl.health.record import NamedTuple


class Check(NamedTuple):
    """`care` is the most that a failure asks for by default: a site may say otherwise for each check. `remedy` is what
    a person does about a failure that keeps jobs away, where that is neither a reset of the GPU nor a reboot."""

    title: str
    reads: str
    phases: Tuple[Phase, ...]
    care: Care
    remedy: str = ""


_ALL = (Phase.PROLOG, Phase.EPILOG, Phase.PERIODIC, Phase.BOOT, Phase.HAND)
_SLOW = (Phase.EPILOG, Phase.PERIODIC, Phase.BOOT, Phase.HAND)  # what the prolog does not ask: every call counts there
_EMPTY = (Phase.PROLOG, Phase.EPILOG, Phase.BOOT)  # when no job should be on the GPUs
_NODE = (Phase.PERIODIC, Phase.BOOT, Phase.HAND)

CHECKS: Dict[str, Check] = {
    # The node's GPUs
    "nvml": Check("NVML answers within its deadline", "nvmlInit", _ALL, Care.DRAIN),
    "gpu_count": Check(
        "as many GPUs as the profile says", "nvmlDeviceGetCount; PCIe", _ALL, Care.DRAIN, "reboot, then look at PCIe"
    ),
    "gpu_lost": Check(
        "each GPU answers", "handle of each GPU, codes of all answers", _ALL, Care.DRAIN, "reboot the node"
    ),
    "gpu_model": Check("the GPUs are those of the profile", "PCI device id", _ALL, Care.WATCH),
    "driver": Check("the driver's version is the profile's", "nvmlSystemGetDriverVersion", _ALL, Care.WATCH),
    "recovery_action": Check("the driver asks for no reset or reboot", "field 230", _ALL, Care.DRAIN),
    # Memory of the GPUs
    "ecc_mode": Check(
        "error correction is on", "nvmlDeviceGetEccMode", _ALL, Care.DRAIN, "switch it on, reset the GPU"
    ),
    "ecc_volatile": Check("no uncorrected error since the driver was loaded", "total ECC errors", _ALL, Care.RESET),
    "ecc_corrected": Check("few corrected errors since the driver was loaded", "total ECC errors", _ALL, Care.WATCH),
    "ecc_sram": Check("NVIDIA's limit of SRAM errors is not passed", "SRAM ECC status", _ALL, Care.HUMAN),
    "sram_uncorrected": Check("few uncorrected SRAM errors in the GPU's life", "SRAM ECC status", _ALL, Care.WATCH),
    "row_remap_pending": Check("no row waits to be remapped", "field 144", _ALL, Care.RESET),
    "row_remap_failure": Check("no row failed to be remapped", "field 145", _ALL, Care.HUMAN),
    "row_remap_count": Check(
        "at most 512 rows remapped for uncorrected errors", "field 143", _ALL, Care.HUMAN, "replace the GPU"
    ),
    "retired_pages": Check(
        "few pages retired (before Ampere)", "nvmlDeviceGetRetiredPages", _SLOW, Care.HUMAN, "replace the GPU"
    ),
    "retired_pending": Check(
        "no page waits to be retired", "nvmlDeviceGetRetiredPagesPendingStatus", _SLOW, Care.RESET
    ),
    "memory_total": Check("each GPU has its whole memory", "nvmlDeviceGetMemoryInfo v2", _ALL, Care.WATCH),
    "memory_in_use": Check("no memory is in use without a job", "nvmlDeviceGetMemoryInfo v2", _EMPTY, Care.WATCH),
    "processes": Check("no process without a job", "nvmlDeviceGetComputeRunningProcesses", _EMPTY, Care.WATCH),
    # PCIe
    "pcie_width": Check(
        "each GPU has all its PCIe lanes", "current_link_width; NVML", _ALL, Care.DRAIN, "reboot, then reseat the GPU"
    ),
    "pcie_generation": Check(
        "PCIe generation; idle GPUs may go down", "link speed; NVML", _ALL, Care.DRAIN, "reboot, then reseat the GPU"
    ),
    "pcie_upstream": Check(
        "bridges above GPUs as learned",
        "current_link_width of bridges",
        _ALL,
        Care.DRAIN,
        "reboot, then look at the slot",
    ),
    "pcie_replays": Check("few PCIe replays since the last look", "nvmlDeviceGetPcieReplayCounter", _ALL, Care.WATCH),
    "pcie_aer": Check("no PCIe errors since the last look", "aer_dev_*", _ALL, Care.WATCH),
    "nic_pcie": Check(
        "network cards and bridges above them as learned",
        "current_link_*",
        _ALL,
        Care.DRAIN,
        "reboot, then reseat the card",
    ),
    # NVLink
    "nvlink_state": Check("all NVLinks that there should be are up", "field 165", _ALL, Care.RESET),
    "nvlink_errors": Check("no NVLink recovery, no storm of CRC errors", "fields 161-163, 201-222", _ALL, Care.RESET),
    "nvlink_replays": Check("no NVLink replay or CRC error", "fields 161-163, 201-222", _ALL, Care.WATCH),
    "fabric": Check(
        "the NVLink fabric is up and healthy",
        "nvmlDeviceGetGpuFabricInfoV",
        _ALL,
        Care.DRAIN,
        "restart the fabric manager, reset the GPU",
    ),
    "p2p": Check(
        "GPUs can read each other's memory",
        "nvmlDeviceGetP2PStatus",
        _ALL,
        Care.DRAIN,
        "look at IOMMU, ACS, fabric manager",
    ),
    # How the GPUs run
    "clock_reasons": Check("the hardware does not slow the GPU down", "clock event reasons", _ALL, Care.WATCH),
    "temperature": Check("the GPU is not hot", "margin temperature, else temperature", _ALL, Care.WATCH),
    "power": Check("the power drawn can be read", "nvmlDeviceGetPowerUsage", _SLOW, Care.WATCH),
    "persistence": Check("persistence mode is on", "nvmlDeviceGetPersistenceMode", _SLOW, Care.WATCH),
    "mig": Check("whether MIG is on (never a fault)", "nvmlDeviceGetMigMode", _ALL, Care.IGNORE),
    # Network
    "port_state": Check(
        "all ports of the learned list are up", "state, phys_state", _ALL, Care.DRAIN, "check cable, switch and card"
    ),
    "port_rate": Check("ports run at the learned rate", "rate", _ALL, Care.DRAIN, "check cable and port"),
    "port_width": Check("ports run at full width", "the 4X in rate", _ALL, Care.DRAIN, "check cable and port"),
    "port_counters": Check(
        "no physical errors on ports since the last look", "counters/", _ALL, Care.DRAIN, "check cable and port"
    ),
    "port_errors": Check("few other errors on ports since the last look", "counters/, hw_counters/", _ALL, Care.WATCH),
    "counter_ceiling": Check("counters can still count", "all counters", _ALL, Care.WATCH),
    "counter_backwards": Check("counters do not go backwards", "all counters", _ALL, Care.WATCH),
    # The machine
    "files": Check("sysfs and procfs can be read in time", "/sys, /proc, /dev/kmsg", _ALL, Care.DRAIN),
    "file_systems": Check(
        "the site's file systems are mounted and writable",
        "statvfs, mounts",
        _ALL,
        Care.DRAIN,
        "mount it, look at its server",
    ),
    "file_space": Check("file systems have space and inodes left", "statvfs", _ALL, Care.WATCH),
    "shm": Check("/dev/shm is not full of leavings", "statvfs", _ALL, Care.WATCH),
    "host_memory": Check(
        "the node has its whole memory", "/proc/meminfo", _ALL, Care.DRAIN, "look for a failed module"
    ),
    "edac": Check(
        "no uncorrected memory error since the last look",
        "EDAC ue_count",
        _ALL,
        Care.DRAIN,
        "replace the memory module",
    ),
    "edac_corrected": Check("few corrected memory errors since the last look", "EDAC ce_count", _ALL, Care.WATCH),
    "clock": Check("the clock is synchronised", "adjtimex", _NODE, Care.IGNORE),
    "clock_source": Check("the kernel uses a fast clock", "current_clocksource", _NODE, Care.WATCH),
    "governor": Check("CPUs run at full speed", "scaling_governor", _NODE, Care.WATCH),
    "stuck": Check("no process hangs in the kernel", "/proc/*/stat", _ALL, Care.WATCH),
    # The kernel's log
    "xid": Check("no Xid that asks for a reset or more", "kernel log", _ALL, Care.HUMAN),
    "sxid": Check("no fatal NVSwitch error", "kernel log", _ALL, Care.HUMAN, "reset all GPUs"),
    "off_the_bus": Check("no GPU has fallen off the bus", "kernel log", _ALL, Care.REBOOT),
    "nic_log": Check("no network card complains", "kernel log", _ALL, Care.HUMAN, "look at the card"),
    "nvme_log": Check("no NVMe disk complains", "kernel log", _ALL, Care.HUMAN, "replace the disk"),
    "read_only": Check("no file system became read-only", "kernel log", _ALL, Care.HUMAN, "look at the disk"),
    "memory_log": Check("no machine check", "kernel log", _ALL, Care.HUMAN, "replace the memory module"),
    "stuck_log": Check("no hung task or soft lock-up", "kernel log", _ALL, Care.HUMAN),
    "oom": Check("the kernel ran not out of memory", "kernel log", _ALL, Care.HUMAN),
    "log_lost": Check("no line of the kernel log was lost", "kernel log", _ALL, Care.WATCH),
    "app_xids": Check("no application's Xid comes back in other jobs", "kernel log, state", _ALL, Care.WATCH),
    # fleetctl itself
    "job_gpus": Check("the job's GPUs can be told", "SLURM_JOB_GPUS", (Phase.PROLOG, Phase.EPILOG), Care.WATCH),
    "site": Check("the site file makes sense", "site.json", _ALL, Care.WATCH),
    "budget": Check("the fleet's budget allows a drain", "shared folder", _ALL, Care.WATCH),
    "spool": Check("what fleetctl keeps on the node can be read", "its own folder", _ALL, Care.WATCH),
    "bug": Check("fleetctl itself works", "its own errors", _ALL, Care.WATCH),
}
