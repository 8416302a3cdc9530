"""What in a cluster's configuration will hurt long runs, and the lines to write instead. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace

from fleetctl.ops import doctor_jobs, doctor_nodes
from fleetctl.ops.advice import Advice, Cluster, Level

CHECKS: Mapping[str, Callable[[Cluster], Iterator[Advice]]] = {
    "include": doctor_nodes.include,
    "prolog": doctor_nodes.prolog_flags,
    "prolog_hold": doctor_nodes.no_hold,
    "prolog_timeout": doctor_nodes.prolog_timeout,
    "kill_wait": doctor_jobs.kill_wait,
    "grace_time": doctor_jobs.grace_time,
    "slurmd_timeout": doctor_nodes.slurmd_timeout,
    "requeue": doctor_jobs.requeue,
    "return_to_service": doctor_nodes.return_to_service,
    "gpus": doctor_jobs.gpus,
    "accounting": doctor_jobs.accounting,
    "billing": doctor_jobs.billing,
    "health_check": doctor_nodes.health_check,
    "topology": doctor_nodes.topology,
    "min_job_age": doctor_jobs.min_job_age,
    "unkillable": doctor_nodes.unkillable,
    "containment": doctor_jobs.containment,
}


def examine(cluster: Cluster) -> tuple[Advice, ...]:
    """Every check, in this order; several answers of one check where several lines are to blame.

    Where an Include could not be followed nothing is said to hurt: the cure may stand there.
    """
    found = tuple(advice for check in CHECKS.values() for advice in check(cluster))
    if any(advice.check == "include" for advice in found):
        return tuple(_unsure(advice) for advice in found)
    return found


def _unsure(advice: Advice) -> Advice:
    if advice.level in (Level.FINE, Level.UNKNOWN):
        return advice
    return replace(advice, level=Level.UNKNOWN, why=f"Unless an included file says otherwise: {advice.why}")
