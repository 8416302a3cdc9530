"""Before an attempt starts inside a job: end what earlier ones left there. Two must never train at once."""

from __future__ import annotations

from fleetctl.errors import FleetctlError, JobUnknown
from fleetctl.launch.judge import Verdict
from fleetctl.launch.lead import Lead
from fleetctl.launch.memory import fences_writers
from fleetctl.launch.watching import AGENT_STEP, NodeWatch
from fleetctl.slurm.allocation import Step
from fleetctl.slurm.hosts import expand

_TICK_S = 0.5
_SETTLE_S = 1.0  # tasks of a killed step on living nodes were dead within 0.1 s (tried on 22.05.8)


def clear_steps(lead: Lead, watch: NodeWatch, lost: frozenset[str]) -> bool:
    """Kill every step of this job but the agents' and wait until Slurm has none any more; false when told to end.

    Whoever started it: an srun that was killed leaves its tasks, and so does a user's own. A step that spans a dead
    node stays listed until that node is DOWN: its tasks elsewhere are dead once Slurm has taken the order.
    """
    killed: set[str] = set()
    while not lead.world.told_to_end():
        steps = lead.ask(lambda: lead.world.slurm.steps(lead.raw_job_id))
        left = [step for step in steps or () if step.id.rpartition(".")[2].isdigit() and step.name != AGENT_STEP]
        if steps is not None and not left:
            return True
        for step in left:
            if step.id not in killed and _kill(step, lead):
                killed.add(step.id)
        blocking = [step for step in left if not _is_out_of_reach(step, lead, watch, lost)]
        if steps is not None and not blocking and {step.id for step in left} <= killed:
            lead.world.clock.sleep(_SETTLE_S)
            return True
        watch.poll(_TICK_S)
    return False


def _kill(step: Step, lead: Lead) -> bool:
    """Whether Slurm has taken the order, or the step is gone."""
    try:
        lead.world.slurm.kill_step(step.id)
    except JobUnknown:
        return True
    except FleetctlError as error:
        lead.world.say(f"fleetctl: step {step.id} of an earlier attempt: {error.message}")
        return False
    return True


def _is_out_of_reach(step: Step, lead: Lead, watch: NodeWatch, lost: frozenset[str]) -> bool:
    """Whether it spans a node that is dead; or one that stands still, where a late writer is fenced."""
    for node in expand(step.nodes):
        if node == lead.job.host:
            continue
        verdict = Verdict.DEAD if node in lost else watch.verdict(node)
        if verdict is Verdict.DEAD:
            return True
        if verdict is Verdict.PAUSED and not watch.is_usable(node) and _is_fenced(lead):
            return True
    return False


def _is_fenced(lead: Lead) -> bool:
    order = lead.order.checkpoint
    return order is not None and bool(lead.ask(lambda: fences_writers(lead.attempts, order.format)))
