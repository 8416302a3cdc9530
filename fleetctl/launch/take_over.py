"""Become the head of a job whose batch host died. Started by an agent, on its node, with the batch script's SLURM_*.

With --no-kill such a job would go on for ever without a head: its GPUs burn, and nothing ends it but its time limit.
"""

from __future__ import annotations

from fleetctl.launch.attempt import kill_tasks
from fleetctl.launch.head import Head
from fleetctl.launch.judge import Verdict
from fleetctl.launch.lead import Lead
from fleetctl.launch.model import step_nodes
from fleetctl.launch.watch import Watch
from fleetctl.launch.watching import KEY, begin_watch
from fleetctl.rundir import files
from fleetctl.rundir.model import SCHEMA_VERSION, AttemptNumber, attempt_number
from fleetctl.slurm.hosts import expand

CLAIMED_ELSEWHERE = 75  # EX_TEMPFAIL, sysexits.h; the agent looks for the new head then
_JOIN_S = 5.0  # agents look for a new head every second
_WRITE_WITHIN_S = 30.0  # who won the succession says where it listens within so long, or died itself
_POLL_S = 0.5
_MOST_SUCCESSORS = 8


def take_over(lead: Lead) -> int:
    """Claim the succession, then lead on the nodes that live. The exit status is the agent's.

    :raises FleetctlError: the run directory cannot be written.
    """
    before = attempt_number(lead.order.take_over or "")
    if before is None or not _succeed(lead, before):
        return CLAIMED_ELSEWHERE
    dead_host = _host_of(lead, before)
    number = _claim(lead)
    nodes = expand(step_nodes(lead.world.environ, 0))
    watch = begin_watch(lead, nodes, number, lead.world.environ[KEY])
    lead.world.say(f"fleetctl: {lead.job.host} leads run {lead.run.run_id} now: {dead_host}, which did, is dead")
    kill_tasks(lead)
    _await_agents(lead, watch, [node for node in nodes if node not in (lead.job.host, dead_host)])
    head = Head(lead, watch, nodes, frozenset({dead_host}))
    return head.take_over(number, f"take-over from {dead_host}")


def _succeed(lead: Lead, before: AttemptNumber) -> bool:
    """Only one process ever succeeds the head that began with attempt `before`: a claim for each try, and the next try
    only once whoever won the one before it has not said for long where it listens."""
    for index in range(1, _MOST_SUCCESSORS + 1):
        path = lead.attempts.path(before) / f"successor-{index}.json"
        with files.explained(path, "claim"):
            if files.claim_file(path, {"schema": SCHEMA_VERSION, "host": lead.job.host}):
                return True
        until_s = lead.world.clock.monotonic_s() + _WRITE_WITHIN_S
        while lead.world.clock.monotonic_s() < until_s:
            if _has_newer_head(lead, before):
                return False
            lead.world.clock.sleep(_POLL_S)
    return False


def _has_newer_head(lead: Lead, before: AttemptNumber) -> bool:
    newer = (number for number in lead.attempts.numbers() if number > before)
    return any((lead.attempts.path(number) / "head.json").exists() for number in newer)


def _host_of(lead: Lead, number: AttemptNumber) -> str:
    raw = files.read_json(str(lead.attempts.path(number) / "head.json"))
    return str(raw["host"]) if isinstance(raw, dict) and "host" in raw else "its host"


def _claim(lead: Lead) -> AttemptNumber:
    number = lead.attempts.newest()
    while True:
        number = (number[0], number[1] + 1)
        if lead.attempts.claim(number):
            return number


def _await_agents(lead: Lead, watch: Watch, others: list[str]) -> None:
    until_s = lead.world.clock.monotonic_s() + _JOIN_S
    while lead.world.clock.monotonic_s() < until_s and any(watch.verdict(n) is Verdict.AWAITED for n in others):
        watch.poll(_POLL_S)
