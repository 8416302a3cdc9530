"""The numbers that the judge compares with, where each comes from, and what a site says otherwise. Pure."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from fleetctl.health.checks import CHECKS
from fleetctl.health.model import Care, Finding, Outcome, Phase
from fleetctl.health.record import NamedTuple


class Limit(NamedTuple):
    """The most (for shares: the least) that is fine."""

    value: float
    unit: str
    source: str


_NVSENTINEL = "NVSentinel, nic-health-monitor"
_DCGM = "DCGM, DcgmHealthWatch"
_OURS = "ours"

LIMITS: Dict[str, Limit] = {
    "ecc_corrected": Limit(20e6, "errors since the driver was loaded", "azurehpc-health-checks"),
    "sram_uncorrected": Limit(4, "errors in the GPU's life", "sichek, ml-engineering"),
    "rows_remapped": Limit(512, "rows remapped for uncorrected errors", _DCGM),
    "pages_retired": Limit(63, "pages", _DCGM),
    "pages_retired_soft": Limit(15, "pages", _DCGM),
    "gpu_memory_share": Limit(0.97, "of the profile's GPU memory", _OURS),
    "memory_in_use_mib": Limit(1024, "MiB without the driver's share", "ours; gcm's README: 850 with it"),
    "temperature_margin_c": Limit(0, "degrees C left before throttling, the least", "gpud"),
    "temperature_c": Limit(90, "degrees C, where no margin is told", "ours; gcm's README: 84"),
    "pcie_replays": Limit(1, "times DCGM's rate for generation and lanes", _DCGM),
    "aer_correctable_per_min": Limit(31, "errors", "ours: as many as DCGM allows replays"),
    "aer_nonfatal": Limit(0, "errors since the last look", _OURS),
    "aer_fatal": Limit(0, "errors since the last look", _OURS),
    "fabric_start_s": Limit(
        300, "s after boot in which a node whose fabric is not up stays open", "ours; SXid noise: as long"
    ),
    "nvlink_recoveries": Limit(0, "recoveries since the last look", _DCGM),
    "nvlink_replays": Limit(0, "replays since the last look", _DCGM),
    "nvlink_crc_per_s": Limit(100, "CRC errors", _DCGM),
    "nvlink_crc": Limit(0, "CRC, receive or integrity errors since the last look", _DCGM),
    "link_downs": Limit(2, "times a port went down since the last look", "gpud: 3 are too many"),
    "link_downed": Limit(0, "times a port went down since the last look", _NVSENTINEL),
    "excessive_buffer_overrun_errors": Limit(0, "since the last look", _NVSENTINEL),
    "local_link_integrity_errors": Limit(0, "since the last look", _NVSENTINEL),
    "rnr_nak_retry_err": Limit(0, "since the last look", _NVSENTINEL),
    "symbol_error_per_h": Limit(120, "errors", _NVSENTINEL),
    "link_error_recovery_per_min": Limit(5, "recoveries", _NVSENTINEL),
    "port_rcv_errors_per_s": Limit(10, "errors", _NVSENTINEL),
    "local_ack_timeout_err_per_s": Limit(1, "time-outs", _NVSENTINEL),
    "port_xmit_discards_per_s": Limit(100, "packets", _NVSENTINEL),
    "roce_slow_restart_per_s": Limit(10, "restarts", _NVSENTINEL),
    "carrier_changes": Limit(2, "since the last look", _NVSENTINEL),
    "free_share": Limit(0.05, "of a file system free, the least", _OURS),
    "free_inodes_share": Limit(0.05, "of a file system's inodes free, the least", _OURS),
    "shm_free_share": Limit(0.1, "of /dev/shm free, the least", _OURS),
    "edac_corrected_per_h": Limit(9, "errors", "NHC, check_hw_mcelog"),
    "host_memory_share": Limit(0.98, "of the profile's memory", "ours: less than one of 32 modules"),
    "stuck_processes": Limit(48, "processes in state D at one moment (64 are looked for)", _OURS),
    "zombies": Limit(1000, "processes in state Z", "gpud"),
}


class Rules(NamedTuple):
    """What a site says otherwise: limits by name, and care by check ("pcie_width") or by check and phase
    ("pcie_width@prolog"), which outranks the first."""

    limits: Mapping[str, float] = {}
    care: Mapping[str, Care] = {}

    def limit(self, name: str) -> float:
        """The limit of this name: the site's, else the default."""
        value = self.limits.get(name)
        return LIMITS[name].value if value is None else value


def read_rules(limits: Mapping[str, float], care: Mapping[str, str]) -> Tuple[Rules, Tuple[str, ...]]:
    """The rules in a site file, and what is wrong with it, a line each. What is wrong is left out; but a check with an
    unreadable word is watched: the site lives with that fault in some way, and the default may close nodes."""
    wrong: List[str] = [f"limits: no limit is called {name}" for name in limits if name not in LIMITS]
    cares: Dict[str, Care] = {}
    phases = {phase.value for phase in Phase}
    for name, word in care.items():
        check, _, phase = name.partition("@")
        if check not in CHECKS:
            wrong.append(f"care: no check is called {check}")
        elif phase and phase not in phases:
            wrong.append(f"care: no phase is called {phase}")
        elif not isinstance(word, str) or word.upper() not in Care.__members__:
            wrong.append(f"care of {name}: {word} is none of {', '.join(c.name.lower() for c in Care)}; it is watched")
            cares[name] = Care.WATCH
        else:
            cares[name] = Care[word.upper()]
    kept = {name: value for name, value in limits.items() if name in LIMITS}
    return Rules(kept, cares), tuple(wrong)


def with_site_care(findings: Sequence[Finding], phase: Phase, rules: Rules) -> Tuple[Finding, ...]:
    """The findings with the site's word on how much each matters.

    A site may make a failure milder or harder. What could not be told may only be made milder: a value that a GPU does
    not have must not close a node.
    """
    if not rules.care:
        return tuple(findings)
    return tuple(_cared(finding, _care(finding.check, phase, rules)) for finding in findings)


def _care(check: str, phase: Phase, rules: Rules) -> Optional[Care]:
    special = rules.care.get(f"{check}@{phase.value}")
    return rules.care.get(check) if special is None else special


def _cared(finding: Finding, care: Optional[Care]) -> Finding:
    if care is None or finding.outcome is Outcome.PASS:
        return finding
    return finding._replace(care=care if finding.outcome is Outcome.FAIL else min(care, finding.care))
