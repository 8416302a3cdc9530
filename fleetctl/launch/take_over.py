"""Become the head of a job whose batch host died. Started by an agent, on its node, with the batch script's SLURM_*.

With --no-kill such a job would go on for ever without a head: its GPUs burn, and nothing ends it but its time limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from fleetctl.errors import FleetctlError, RunDirError
from fleetctl.launch.head import Head
from fleetctl.launch.judge import Verdict
from fleetctl.launch.lead import Lead
from fleetctl.launch.model import step_nodes
from fleetctl.launch.watch import Endpoint
from fleetctl.launch.watching import NodeWatch
from fleetctl.rundir import files
from fleetctl.rundir.model import SCHEMA_VERSION, AttemptNumber, attempt_number
from fleetctl.slurm.hosts import expand

CLAIMED_ELSEWHERE = 75  # EX_TEMPFAIL, sysexits.h; the agent looks for the new head then
_JOIN_S = 5.0  # agents look for a new head every second
_WRITE_WITHIN_S = 120.0  # who won says at once where it listens; other hosts may see that 60 s later (nfs(5))
_POLL_S = 0.5
_MOST_SUCCESSORS = 100  # processes of one host that die at once are tried again and again, ever more slowly


def take_over(lead: Lead, environments: Callable[[], tuple[Mapping[str, str], ...]]) -> int:
    """Claim the succession, then lead on the nodes that live. The exit status is the agent's.

    :raises FleetctlError: the run directory cannot be written; the agent tries again.
    """
    before = attempt_number(lead.order.take_over or "")
    if before is None or not _succeed(lead, before):
        return CLAIMED_ELSEWHERE
    dead_host, endpoints, landmarks = _places(lead, before)
    number = _claim(lead)
    lost = _dead_heads(lead, number)
    nodes = expand(step_nodes(lead.world.environ, 0))
    watch = NodeWatch(lead, nodes, number)
    watch.succeed(endpoints, landmarks)
    lead.world.say(f"fleetctl: {lead.job.host} leads run {lead.run.run_id} now: {dead_host}, which did, is dead")
    _await_agents(lead, watch, [node for node in nodes if node != lead.job.host and node not in lost])
    try:
        ready = replace(lead, environments=environments())
    except FleetctlError as error:  # its env_file is gone: another start may have it, or says why not
        why = f"{lead.job.host} cannot go on after {dead_host}: {error.message}"
        Head(lead, watch, nodes, lost, is_batch_script=False).give_up(number, why)
    else:
        why = f"take-over from {dead_host}"
        Head(ready, watch, nodes, lost, is_batch_script=False).take_over(number, why)
    return 0  # the training's own status is in its events: any other one would make the agent try again


def _succeed(lead: Lead, before: AttemptNumber) -> bool:
    """One process at a time succeeds the head that began with attempt `before`: a claim for each try, and the next try
    only once whoever won the one before it has not said for long where it listens. Should that one only have been slow,
    the higher attempt number leads, and it stands by."""
    for index in range(1, _MOST_SUCCESSORS + 1):
        path = lead.attempts.path(before) / f"successor-{index}.json"
        with files.explained(path, "claim"):
            if files.claim_file(path, {"schema": SCHEMA_VERSION, "host": lead.job.host}):
                return True
            if _host_in(path) == lead.job.host:  # our agent's last try, which died: it has just told its agent so
                continue
        until_s = lead.world.clock.monotonic_s() + _WRITE_WITHIN_S
        while lead.world.clock.monotonic_s() < until_s:
            if _has_newer_head(lead, before):
                return False
            lead.world.clock.sleep(_POLL_S)
    return False


def _has_newer_head(lead: Lead, before: AttemptNumber) -> bool:
    newer = (number for number in lead.attempts.numbers() if number > before)
    return any((lead.attempts.path(number) / "head.json").exists() for number in newer)


def _host_in(path: Path) -> str | None:
    raw = files.read_json(str(path))
    return str(raw["host"]) if isinstance(raw, dict) and "host" in raw else None


def _dead_heads(lead: Lead, number: AttemptNumber) -> frozenset[str]:
    """The hosts of all who led this job before: each was given up. Ours is not dead, even if a head on it was."""
    earlier = [one for one in lead.attempts.numbers() if one[0] == number[0] and one < number]
    hosts = (_host_in(lead.attempts.path(one) / "head.json") for one in earlier)
    return frozenset(host for host in hosts if host is not None) - {lead.job.host}


def _places(lead: Lead, number: AttemptNumber) -> tuple[str, dict[str, Endpoint], list[Endpoint]]:
    """The dead head's host, and where it knew the nodes and the controllers to be: Slurm need not be asked again.

    :raises RunDirError: it left no such word, so no agent should have found it dead.
    """
    folder = lead.attempts.path(number)
    head, places = files.read_json(str(folder / "head.json")), files.read_json(str(folder / "nodes.json"))
    try:
        endpoints = {str(node): (str(place[0]), int(place[1])) for node, place in places["nodes"].items()}
        landmarks = [(str(place[0]), int(place[1])) for place in places["landmarks"]]
        return str(head["host"]), endpoints, landmarks
    except (TypeError, KeyError, ValueError, IndexError, AttributeError):
        raise RunDirError(f"{folder}: head.json or nodes.json is missing or damaged") from None


def _claim(lead: Lead) -> AttemptNumber:
    number = lead.attempts.newest()
    while True:
        number = (number[0], number[1] + 1)
        if lead.attempts.claim(number, now=lead.world.clock.now(), host=lead.job.host):
            return number


def _await_agents(lead: Lead, watch: NodeWatch, others: list[str]) -> None:
    until_s = lead.world.clock.monotonic_s() + _JOIN_S
    while lead.world.clock.monotonic_s() < until_s and any(watch.verdict(n) is Verdict.AWAITED for n in others):
        watch.poll(_POLL_S)
