"""The keys of what NVML is asked about a GPU and about an NVLink: one table for the reader, the judge and the tests."""

from __future__ import annotations

# Gpu.reads: key -> meaning and unit. Read in every phase:
EVERY_PHASE = {
    "ecc_mode": "1: error correction is on",
    "ecc_pending": "error correction after the next reset",
    "ecc_corrected_volatile": "corrected errors since the driver was loaded",
    "ecc_uncorrected_volatile": "uncorrected errors since the driver was loaded",
    "ecc_corrected_aggregate": "corrected errors in the GPU's life",
    "ecc_uncorrected_aggregate": "uncorrected errors in the GPU's life",
    "sram_threshold": "1: NVIDIA's own limit of SRAM errors is passed (bThresholdExceeded)",
    "sram_uncorrected": "uncorrected SRAM errors in the GPU's life, parity and SEC-DED",
    "remap_corrected": "rows remapped for corrected errors",
    "remap_uncorrected": "rows remapped for uncorrected errors",
    "remap_pending": "1: a row waits for a reset to be remapped",
    "remap_failure": "1: a row could not be remapped",
    "pcie_replays": "PCIe replays, a counter",
    "recovery_action": "what the driver asks for: 0 nothing, 1 to 7 as in judge_gpu.ACTIONS",
    "link_count": "NVLinks that the GPU has",
    "clock_reasons": "nvmlClocksEventReasons, a bit mask",
    "mig_mode": "1: MIG is on",
    "memory_total_bytes": "memory of the GPU, the driver's share left out (v2)",
    "memory_used_bytes": "memory in use, the driver's share left out (v2)",
    "fabric_state": "0 not supported, 1 not started, 2 in progress, 3 completed",
    "fabric_status": "an nvmlReturn, meaningful when fabric_state is 3",
    "fabric_mask": "health mask (v3), 0 where the driver has none",
    "fabric_summary": "0 not supported, 1 healthy, 2 unhealthy, 3 limited",
    "energy_mj": "energy used since the driver was loaded, mJ, a counter",
    "temperature_margin_c": "degrees C below the first throttling",
}

# Not in the prolog, where every call counts:
MORE = {
    "name": "product name",
    "serial": "board serial number",
    "persistence": "1: persistence mode is on",
    "retired_pages": "pages retired (before Ampere)",
    "retired_pending": "1: a page waits for a reset to be retired",
    "pcie_generation": "generation of the PCIe link now (an idle GPU may go down to 1)",
    "pcie_width": "lanes of the PCIe link now",
    "pcie_max_generation": "generation that GPU and slot allow",
    "pcie_max_width": "lanes that GPU and slot allow",
    "temperature_c": "temperature of the GPU, degrees C",
    "power_mw": "power drawn, mW",
    "power_limit_mw": "power limit enforced, mW",
    "performance_state": "0 is full speed, 15 is idle",
}

# Gpu.links[i]:
LINK = {
    "state": "1 up, 0 down",
    "replays": "replay errors, a counter (up to Hopper)",
    "recoveries": "recovery errors, a counter (up to Hopper)",
    "crc_errors": "CRC flit errors, a counter (up to Hopper)",
    "receive_errors": "receive errors, a counter (Blackwell)",
    "integrity_errors": "local link integrity errors, a counter (Blackwell)",
    "recovery_failed": "link recoveries that failed, a counter (Blackwell)",
    "recovery_events": "link recoveries begun, a counter (Blackwell)",
}
