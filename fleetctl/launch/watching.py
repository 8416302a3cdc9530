"""Set up the node watch of a job: where everybody is, the agents, and where they find the head."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fleetctl import process
from fleetctl.errors import FleetctlError
from fleetctl.launch import agent
from fleetctl.launch.judge import Rules
from fleetctl.launch.lead import Lead
from fleetctl.launch.watch import Endpoint, Watch
from fleetctl.rundir.model import SCHEMA_VERSION, AttemptNumber, attempt_name

KEY = "FLEETCTL_WATCH_KEY"
BATCH_ENVIRON = "FLEETCTL_BATCH_ENV"
# An agent's step is a single task without GPUs, whatever the job asked for (srun.1, INPUT ENVIRONMENT VARIABLES).
_DROPPED = (
    "SLURM_GPUS",
    "SLURM_GRES",
    "SLURM_NTASKS",
    "SLURM_TASKS",
    "SLURM_CPUS_PER",
    "SLURM_TRES",
    "SLURM_STEP",
    "SLURM_MEM",
)
_DROPPED_WHOLE = frozenset({"SLURM_NPROCS", "SLURM_NNODES", "SLURM_DISTRIBUTION", "SLURM_JOB_GPUS", "SLURM_CPU_BIND"})


def is_watched(lead: Lead) -> bool:
    """Whether knowing of a node's death changes anything: something may be restarted, and nodes can be chosen."""
    return lead.order.nodes > 0 and lead.order.max_failures is not None and lead.order.nodes + lead.order.spares > 1


def no_watch(lead: Lead) -> Watch:
    return Watch((), {}, b"", lead.world.clock)


def begin_watch(lead: Lead, nodes: Sequence[str], number: AttemptNumber, key: str) -> Watch:
    """Listen for the agents of all other nodes, and say where.

    :raises RunDirError: the place cannot be written down.
    """
    others = tuple(node for node in nodes if node != lead.job.host)
    found = lead.ask(lambda: lead.world.slurm.endpoints(nodes)) or {}
    config = lead.ask(lead.world.slurm.config) or {}
    watch = Watch(others, found, bytes.fromhex(key), lead.world.clock, landmarks=controllers(config))
    lead.attempts.write(number, "head.json", {"schema": SCHEMA_VERSION, **_head(lead, watch, found)})
    return watch


def controllers(config: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """Where slurmctld listens: `HOST` or `HOST(ADDRESS)` for each one, and the first of its ports."""
    port = config.get("SlurmctldPort", "").partition("-")[0]
    names = [value for name, value in sorted(config.items()) if name.startswith("SlurmctldHost")]
    hosts = [name.partition("(")[2].rstrip(")") or name for name in names if name]
    return tuple((host, int(port)) for host in hosts) if port.isdigit() else ()


def start_agents(lead: Lead, nodes: Sequence[str], number: AttemptNumber, watch: Watch, key: str) -> None:
    """One agent on each other node, each in a step of its own: a step over many nodes dies everywhere once the batch
    host is down. The program comes through srun's stdin, so nothing is read from the shared file system."""
    found = json.loads((lead.attempts.path(number) / "head.json").read_text())
    environ = _agent_environ(lead.world.environ)
    environ |= {KEY: key, BATCH_ENVIRON: json.dumps(_batch_environ(lead.world.environ))}
    take_over = [sys.executable, "-I", "-m", "fleetctl.launch", *lead.world.argv, "--take-over"]
    for node in nodes:
        if node == lead.job.host:
            continue
        told = {
            "node": node,
            "head": found,
            "attempts_dir": str(lead.attempts.folder),
            "attempt": attempt_name(number),
            "take_over": take_over if lead.order.spares else None,
            "heartbeat_s": Rules().beat_s,
        }
        argv = ["srun", f"--jobid={lead.raw_job_id}", f"--nodelist={node}", "--nodes=1", "--ntasks=1", "--overlap"]
        # The training's step has all memory, and on 22.05.8 --overlap shares it only where all of it is asked for
        argv += ["--mem=0", "--gres=none", "--no-kill", "--job-name=agent", sys.executable, "-I", "-", json.dumps(told)]
        log = lead.run.path / "logs" / f"agents-{lead.job.job_id}.log"
        try:
            process.start(argv, env=environ, log=log, session=False, stdin=Path(agent.__file__))
        except (FleetctlError, OSError) as error:
            lead.world.say(f"fleetctl: node {node} is not watched: {error}")


def new_key() -> str:
    """Shared by the head and its agents through their environment, which only their user can read."""
    return secrets.token_hex(32)


def _head(lead: Lead, watch: Watch, endpoints: Mapping[str, Endpoint]) -> dict[str, object]:
    own = endpoints.get(lead.job.host)
    return {
        "host": lead.job.host,
        "address": own[0] if own else lead.job.host,
        "port": watch.port,
        "slurmd": list(own) if own else [lead.job.host, 0],
    }


def _batch_environ(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith("SLURM_")}


def _agent_environ(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_DROPPED) and name not in _DROPPED_WHOLE and not name.startswith("PMI")
    }
