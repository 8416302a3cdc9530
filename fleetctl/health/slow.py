"""NVML that is slow, and not hung: without persistence mode the driver starts anew for each process that asks. Pure."""

from __future__ import annotations

from typing import Iterable, Optional, Tuple

from fleetctl.health.model import Answer, Care, Finding, Nvml, Phase

# nvidia-smi takes up to 30 s without the persistence daemon and 2 s with it (Azure/aks-gpu#105); slurmd ends a
# HealthCheckProgram at 60 s (slurm.conf.5, HealthCheckProgram).
PATIENT_S = 35.0
_SHARE = 0.25  # of the deadline: a look has at least half of it, and a start that took half of that may take all of it
_AROUND_A_JOB = (Phase.PROLOG, Phase.EPILOG)


def excused(
    findings: Iterable[Finding], nvml: Optional[Nvml], phase: Phase, last_s: Optional[float], deadline_s: float
) -> Tuple[Finding, ...]:
    """The findings; a silent NVML keeps no job away where it is known to be slow on this node.

    `last_s` is how long its last answer of this boot took; None: it gave none. The periodic look has the patience to
    tell slow from hung, and closes the node of one that hangs.
    """
    silent = nvml is not None and nvml.answer in (Answer.HUNG, Answer.BUSY)
    if not silent or phase not in _AROUND_A_JOB or last_s is None or last_s < _SHARE * deadline_s:
        return tuple(findings)
    words = (
        f"NVML did not answer in time, and took {last_s:.0f} s before: turn persistence mode on (nvidia-persistenced),"
        " or raise deadline_s"
    )
    return tuple(f._replace(words=words, care=min(f.care, Care.WATCH)) if f.check == "nvml" else f for f in findings)
