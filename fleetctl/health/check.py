"""The check by hand: the same look and the same judge as a phase has, and nothing is done about it."""

from __future__ import annotations

import os
import time
from typing import Mapping, Optional, Tuple

from fleetctl.health import phases
from fleetctl.health.asked import asked_from
from fleetctl.health.decide import decide
from fleetctl.health.model import Asked, Decision, Finding, Phase, Readings, Verdict
from fleetctl.health.record import NamedTuple
from fleetctl.health.site import Site, node_name
from fleetctl.health.world import tools_for, where_for

# Plugin return codes of Nagios (and of all that speaks its protocol)
OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
_CODES = {
    Decision.CLEAN: OK,
    Decision.NOTED: WARNING,
    Decision.DRAIN: CRITICAL,
    Decision.NO_BUDGET: CRITICAL,
    Decision.BUG: UNKNOWN,
}


class Checked(NamedTuple):
    """`findings` are all of them, those that passed included; `notes` say what went wrong beside the checks."""

    verdict: Verdict
    findings: Tuple[Finding, ...]
    readings: Readings
    notes: Tuple[str, ...]


def check(
    site: Site, phase: Phase = Phase.HAND, environ: Mapping[str, str] = os.environ, node: Optional[str] = None
) -> Checked:
    """Look at this node as `phase` would. Slurm is not asked, no state is written, and the fleet's budget not touched.

    :param environ: for the prolog and the epilog, the job's: SLURM_JOB_GPUS says which GPUs.
    """
    began = time.monotonic()
    asked, told = asked_from(environ, phase)
    if phase in (Phase.PROLOG, Phase.EPILOG) and "SLURM_JOB_GPUS" not in environ and asked.job_id is None:
        asked = Asked(phase)  # nobody's job: as for one that has the whole node
    tools = tools_for(site, asked, environ)
    where = where_for(site, node or node_name(environ, os.uname().nodename))
    settle_s = site.boot_settle_s if phase is Phase.BOOT else site.settle_s
    extra_s = site.boot_settle_s if phase is Phase.BOOT else 0.0
    seen = phases.look(tools, where, began + site.deadline_s + extra_s, settle_s)
    seen = seen._replace(findings=(*told, *seen.findings))
    verdict = phases.verdict_of(seen, phase, decide(seen.findings), time.monotonic() - began, job_id=asked.job_id)
    return Checked(verdict, seen.findings, seen.readings, seen.gathered.notes)


def nagios_code(verdict: Verdict) -> int:
    """0 where nothing is to be said, 1 where something is to be watched, 2 where jobs are kept away, 3 for our bug."""
    return _CODES[verdict.decision]
