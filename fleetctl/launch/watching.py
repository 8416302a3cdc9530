"""The node watch of a job as its head has it: begun once Slurm has said where everybody is; one agent on each node."""

from __future__ import annotations

import json
import resource
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fleetctl import process
from fleetctl.errors import FleetctlError, RunDirError
from fleetctl.launch import agent
from fleetctl.launch.judge import Notice, Rules, Verdict
from fleetctl.launch.lead import Lead
from fleetctl.launch.watch import Endpoint, Watch
from fleetctl.rundir.files import read_json
from fleetctl.rundir.model import SCHEMA_VERSION, AttemptNumber, attempt_name

KEY = "FLEETCTL_WATCH_KEY"
BATCH_ENVIRON = "FLEETCTL_BATCH_ENV"
AGENT_STEP = "fleetctl-agent"
_TRY_AGAIN_S = 30.0  # a controller that is busy with the start of a large job answers soon
_MANY = 256  # nodes: with so many, connections may need more descriptors than the usual 1024
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
    "PMI",
)
_DROPPED_WHOLE = frozenset({"SLURM_NPROCS", "SLURM_NNODES", "SLURM_DISTRIBUTION", "SLURM_JOB_GPUS", "SLURM_CPU_BIND"})


class NodeWatch:
    """What the head knows of the job's other nodes. Where nodes cannot be chosen or nothing may be restarted, nothing
    is watched and every node counts as well."""

    def __init__(self, lead: Lead, nodes: Sequence[str], number: AttemptNumber) -> None:
        self._lead = lead
        self._nodes = tuple(node for node in nodes if node != lead.job.host)
        self._number = number
        self._clock = lead.world.clock
        self._watch: Watch | None = None
        self._key = lead.world.environ.get(KEY) or secrets.token_hex(32)
        self._try_at_s = 0.0 if is_watched(lead) else float("inf")
        self._told: dict[str, object] = {}

    def poll(self, timeout_s: float) -> tuple[Notice, ...]:
        """What happened to a node; waits for at most `timeout_s`."""
        if self._watch is None and self._clock.monotonic_s() >= self._try_at_s:
            self._begin()
        if self._watch is not None:
            return self._watch.poll(timeout_s)
        self._clock.sleep(timeout_s)
        return ()

    def verdict(self, node: str) -> Verdict:
        if self._watch is None:
            return Verdict.AWAITED
        return self._watch.verdict(node)

    def is_usable(self, node: str) -> bool:
        """Whether a step may start there. A node whose slurmd answers and whose agent is gone, or never came, is as
        good as any; one whose agent stands still is frozen."""
        verdict = self.verdict(node)
        if verdict is Verdict.PAUSED and self._watch is not None:
            return not self._watch.is_linked(node)
        return verdict in (Verdict.LIVE, Verdict.AWAITED)

    def linked(self) -> tuple[str, ...]:
        """The nodes whose agents have a connection."""
        return tuple(node for node in self._nodes if self._watch is not None and self._watch.is_linked(node))

    def hearts(self) -> dict[str, object]:
        """What agents told of their ranks since this was asked last: of any shape."""
        return self._watch.hearts() if self._watch is not None else {}

    def tell_all(self, **message: object) -> None:
        """Say it to every agent, now and whenever one joins, until something else is told."""
        self._told = message
        if self._watch is not None:
            self._watch.tell_all(**message)

    def tell(self, node: str, **message: object) -> None:
        """Say it to the agent of one node, if it is connected."""
        if self._watch is not None:
            self._watch.tell(node, **message)

    def dismiss(self) -> None:
        """The job is over for the agents."""
        if self._watch is not None:
            self._watch.dismiss()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def succeed(self, endpoints: Mapping[str, Endpoint], landmarks: Sequence[Endpoint]) -> None:
        """Begin in a dead head's place: the agents run and look for us.

        :raises RunDirError: they cannot be told where we are.
        """
        self._listen(endpoints, landmarks)

    def mend(self) -> None:
        """Start agents where none is any more; an attempt is about to begin, so the nodes have been found well."""
        if self._watch is not None and not self._lead.order.take_over:
            paused = [node for node in self._nodes if self._watch.verdict(node) is Verdict.PAUSED]
            self._start_agents(node for node in paused if self.is_usable(node))

    def _begin(self) -> None:
        self._try_at_s = self._clock.monotonic_s() + _TRY_AGAIN_S
        lead = self._lead
        everybody = (lead.job.host, *self._nodes)
        endpoints = lead.ask(lambda: lead.world.slurm.endpoints(everybody))
        config = lead.ask(lead.world.slurm.config)
        if endpoints is None or config is None:
            return
        try:
            self._listen(endpoints, controllers(config))
        except RunDirError as error:
            lead.world.say(f"fleetctl: {error.message}")
            return
        self._start_agents(self._nodes)

    def _listen(self, endpoints: Mapping[str, Endpoint], landmarks: Sequence[Endpoint]) -> None:
        lead, number = self._lead, self._number
        if len(self._nodes) > _MANY:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        watch = Watch(self._nodes, endpoints, bytes.fromhex(self._key), self._clock, landmarks=tuple(landmarks))
        places = {"nodes": {node: list(place) for node, place in endpoints.items()}, "landmarks": list(landmarks)}
        order = [sys.executable, "-I", "-m", "fleetctl.launch", *without_take_over(lead.world.argv), "--take-over"]
        own = endpoints.get(lead.job.host)
        head = {"host": lead.job.host, "address": own[0] if own else lead.job.host, "port": watch.port}
        try:
            lead.attempts.write(number, "nodes.json", {"schema": SCHEMA_VERSION, **places})
            lead.attempts.write(number, "take-over.json", {"schema": SCHEMA_VERSION, "argv": order})
            slurmd = list(own) if own else None
            lead.attempts.write(number, "head.json", {"schema": SCHEMA_VERSION, **head, "slurmd": slurmd})
        except BaseException:
            watch.close()
            raise
        self._watch = watch
        if self._told:
            watch.tell_all(**self._told)

    def _start_agents(self, nodes: Iterable[str]) -> None:
        """One agent on each node, each in a step of its own: a step over many nodes dies everywhere once the batch host
        is down. The program comes through srun's stdin, so nothing is read from the shared file system."""
        lead, folder = self._lead, self._lead.attempts.path(self._number)
        environ = _agent_environ(lead.world.environ)
        environ |= {KEY: self._key, BATCH_ENVIRON: json.dumps(_batch_environ(lead.world.environ))}
        log = lead.run.path / "logs" / f"agents-{lead.job.job_id}.log"
        for node in nodes:
            told = {
                "node": node,
                "head": read_json(str(folder / "head.json")),
                "attempts_dir": str(lead.attempts.folder),
                "attempt": attempt_name(self._number),
                "take_over": str(folder / "take-over.json") if lead.order.spares else None,
                "heartbeat_s": Rules().beat_s,
            }
            argv = ["srun", f"--jobid={lead.raw_job_id}", f"--nodelist={node}", "--nodes=1", "--ntasks=1", "--overlap"]
            # The training's step has all memory, and on 22.05.8 --overlap shares it only where all of it is asked for
            argv += ["--mem=0", "--gres=none", "--mpi=none", "--no-kill", f"--job-name={AGENT_STEP}"]
            argv += [sys.executable, "-I", "-", json.dumps(told)]
            try:
                process.start(argv, env=environ, log=log, session=False, stdin=Path(agent.__file__))
            except (FleetctlError, OSError) as error:
                lead.world.say(f"fleetctl: node {node} is not watched: {error}")


def is_watched(lead: Lead) -> bool:
    """Whether knowing of a node's death changes anything: something may be restarted, and nodes can be chosen."""
    return lead.order.nodes > 0 and lead.order.max_failures is not None and lead.order.nodes + lead.order.spares > 1


def controllers(config: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """Where slurmctld listens: `HOST` or `HOST(ADDRESS)` for each one, and the first of its ports."""
    port = config.get("SlurmctldPort", "").partition("-")[0]
    names = [value for name, value in sorted(config.items()) if name.startswith("SlurmctldHost")]
    hosts = [name.partition("(")[2].rstrip(")") or name for name in names if name]
    return tuple((host, int(port)) for host in hosts) if port.isdigit() else ()


def without_take_over(argv: Sequence[str]) -> Sequence[str]:
    """The batch script's words again, in a head that has taken over: its own order stands at the end."""
    return argv[:-2] if argv[-2:-1] == ("--take-over",) else argv


def _batch_environ(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith("SLURM_")}


def _agent_environ(environ: Mapping[str, str]) -> dict[str, str]:
    return {n: v for n, v in environ.items() if not n.startswith(_DROPPED) and n not in _DROPPED_WHOLE}
