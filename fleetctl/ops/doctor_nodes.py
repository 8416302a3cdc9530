"""What the configuration means for nodes: looked at before a job, found dead, back in service. Pure.

Defaults are those of slurm.conf.5 (22.05 to 26.05).
"""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.ops.advice import Advice, Cluster, Level, hosts, more, to_come
from fleetctl.ops.slurm_conf import Conf
from fleetctl.ops.slurm_lines import slurm_lines

_PREFIX = "/opt/fleetctl"  # where `fleetctl node install` puts it unless told otherwise
_MANY_NODES = 64  # from about here on, ranks far apart cost bandwidth
_PROLOG_S = 8  # fleetctl's own prolog answers within this (docs/nodes.md, deadline_s)
_SURE_S = 30  # a node that is busy may be silent for some seconds; DOWN kills all that runs there
_AT_START = {"start_only", "reboot_only"}  # HealthCheckNodeState from 25.11 and 26.05: not while the node serves
_SLOW_S = 120  # longer than this a requeue waits for Slurm more than for anything else


def include(cluster: Cluster) -> Iterator[Advice]:
    for conf in (cluster.slurm, cluster.gres, cluster.cgroup):
        for line in conf.unread if conf else ():
            why = "%c is the cluster's name, and no ClusterName stands before it: what that file says is not known."
            yield Advice("include", Level.UNKNOWN, line, why)


def prolog_flags(cluster: Cluster) -> Iterator[Advice]:
    if not cluster.slurm.get("Prolog"):
        why = "Nothing looks at a node before a job starts on it: `fleetctl node install` prints the lines."
        yield Advice("prolog", Level.MAY_HURT, "no Prolog", why)
        return
    flags = cluster.slurm.options("PrologFlags")
    if flags & {"alloc", "contain", "x11", "forcerequeueonfail", "runinjob"}:
        yield Advice("prolog", Level.FINE, f"PrologFlags={cluster.slurm.get('PrologFlags')}")
        return
    lines = (more(cluster, "PrologFlags", "Alloc"),)
    if "deferbatch" in flags:
        why = "From 26.05 on DeferBatch brings Alloc along; before, it does nothing without it."
        yield Advice("prolog", Level.UNKNOWN, "PrologFlags without Alloc", why, lines)
        return
    why = "Without Alloc the prolog runs at the first step: the other nodes are looked at when the job already runs."
    yield Advice("prolog", Level.HURTS, "PrologFlags without Alloc", why, lines)


def no_hold(cluster: Cluster) -> Iterator[Advice]:
    if not cluster.slurm.get("Prolog"):
        return
    if "nohold_on_prolog_fail" in cluster.slurm.options("SchedulerParameters"):
        yield Advice("prolog_hold", Level.FINE, "nohold_on_prolog_fail")
        return
    why = "A job whose node fails its prolog is requeued held, and waits until a person releases it."
    line = more(cluster, "SchedulerParameters", "nohold_on_prolog_fail")
    yield Advice("prolog_hold", Level.HURTS, "no nohold_on_prolog_fail", why, (line,))


def prolog_timeout(cluster: Cluster) -> Iterator[Advice]:
    """PrologTimeout and EpilogTimeout (newer than 22.05) outrank PrologEpilogTimeout, each for its own script."""
    conf = cluster.slurm
    limits = {"Prolog": _limit(conf, "PrologTimeout"), "Epilog": _limit(conf, "EpilogTimeout")}
    limits = {script: key for script, key in limits.items() if conf.get(script)}
    if free := [script for script, key in limits.items() if not key]:
        line = f"{free[0]}Timeout=60" if any(limits.values()) else "PrologEpilogTimeout=60"
        found = f"no limit of time for {' and '.join(free)}"
        why = "By default Slurm waits for ever for a script that hangs, and the node with it."
        yield Advice("prolog_timeout", Level.HURTS, found, why, (line,))
    for key in dict.fromkeys(filter(None, limits.values())):
        seconds = conf.number(key, 0)
        if seconds is not None and seconds <= _PROLOG_S:
            why = f"A prolog that takes its {_PROLOG_S} s is ended before it can say what is wrong."
            yield Advice("prolog_timeout", Level.HURTS, f"{key}={seconds}", why, (f"{key}=60",))
        else:
            yield Advice("prolog_timeout", Level.FINE, f"{key}={conf.get(key)}")
    start_s = conf.number("BatchStartTimeout", 10)
    if start_s is not None and conf.get("Prolog") and start_s <= _PROLOG_S:
        why = "A batch job whose prolog takes longer is thought lost."
        yield Advice("prolog_timeout", Level.HURTS, f"BatchStartTimeout={start_s}", why, ("BatchStartTimeout=20",))


def _limit(conf: Conf, key: str) -> str:
    """The setting that bounds this script; "" when none does."""
    there = next((one for one in (key, "PrologEpilogTimeout") if conf.get(one)), "")
    return "" if conf.get(there).upper() in ("INFINITE", "UNLIMITED") else there


def slurmd_timeout(cluster: Cluster) -> Iterator[Advice]:
    seconds = cluster.slurm.number("SlurmdTimeout", 300)
    found = f"SlurmdTimeout={cluster.slurm.get('SlurmdTimeout', '300')}"
    if seconds == 0:
        why = "A dead node is never found DOWN, and its job never comes back by itself."
        yield Advice("slurmd_timeout", Level.HURTS, found, why, ("SlurmdTimeout=120",))
    elif seconds is not None and seconds < _SURE_S:
        why = "A node that is only busy is set DOWN, and all that runs there is killed."
        yield Advice("slurmd_timeout", Level.HURTS, found, why, ("SlurmdTimeout=120",))
    elif seconds is not None and seconds > _SLOW_S:
        why = (
            "fleetctl notices a dead node in 4 s, but a job without a spare node can be requeued only when Slurm has it"
            f" DOWN: {seconds} s of all its GPUs are lost each time."
        )
        yield Advice("slurmd_timeout", Level.MAY_HURT, found, why, ("SlurmdTimeout=120",))
    else:
        yield Advice("slurmd_timeout", Level.FINE, found)


def return_to_service(cluster: Cluster) -> Iterator[Advice]:
    value = cluster.slurm.get("ReturnToService", "0")
    if value == "2" and not cluster.slurm.get("HealthCheckProgram"):
        why = "A node that crashed takes jobs again as soon as it is up, and nothing looks at it."
        yield Advice("return_to_service", Level.MAY_HURT, "ReturnToService=2", why, ("ReturnToService=1",))
    elif value == "0":
        why = "A node that was silent for a while stays DOWN until a person resumes it."
        yield Advice("return_to_service", Level.MAY_HURT, "ReturnToService=0", why, ("ReturnToService=1",))
    else:
        yield Advice("return_to_service", Level.FINE, f"ReturnToService={value}")


def health_check(cluster: Cluster) -> Iterator[Advice]:
    conf, states = cluster.slurm, cluster.slurm.options("HealthCheckNodeState")
    wanted = {line.key: line.text for line in slurm_lines(_PREFIX) if line.key.startswith("HealthCheck")}
    if conf.get("HealthCheckProgram"):
        del wanted["HealthCheckProgram"]
    if conf.number("HealthCheckInterval", 0) != 0:
        del wanted["HealthCheckInterval"]
    if "cycle" in states and not states & _AT_START:
        del wanted["HealthCheckNodeState"]
    lines = tuple(wanted.values())
    if wanted.keys() & {"HealthCheckProgram", "HealthCheckInterval"} or states & _AT_START:
        found = "no HealthCheckProgram at intervals" if conf.get("HealthCheckProgram") else "no HealthCheckProgram"
        why = "A node that breaks while no job starts on it is found by the next job: `fleetctl node install`."
        yield Advice("health_check", Level.MAY_HURT, found, why, lines)
    elif lines:
        why = "All nodes run their check at the same moment: training feels it, and the controller too."
        yield Advice("health_check", Level.HURTS, "HealthCheckNodeState without CYCLE", why, lines)
    else:
        yield Advice("health_check", Level.FINE, f"HealthCheckInterval={conf.get('HealthCheckInterval')}, CYCLE")


def unkillable(cluster: Cluster) -> Iterator[Advice]:
    """slurm.conf.5, UnkillableStepTimeout: at least five times MessageTimeout."""
    conf = cluster.slurm
    seconds, message_s = conf.number("UnkillableStepTimeout", 60), conf.number("MessageTimeout", 10)
    if seconds is None or message_s is None:
        return
    if seconds < 5 * message_s:
        why = "A process that frees much GPU memory dies slowly: the node is drained (Kill task failed)."
        line = f"UnkillableStepTimeout={5 * message_s}"
        yield Advice("unkillable", Level.MAY_HURT, f"UnkillableStepTimeout={seconds}", why, (line,))
    else:
        yield Advice("unkillable", Level.FINE, f"UnkillableStepTimeout={seconds}")


def topology(cluster: Cluster) -> Iterator[Advice]:
    if cluster.has_topology_yaml:
        yield Advice("topology", Level.FINE, "topology.yaml")
        return
    conf = cluster.slurm
    count = len({host for row in conf.named("nodename") for host in hosts(row["nodename"])})
    plugin, coming = conf.plugin("TopologyPlugin", "topology/default"), to_come(conf)
    if plugin not in ("default", "none", "flat") or count + coming < _MANY_NODES:
        yield Advice("topology", Level.FINE, f"{count} nodes, TopologyPlugin={plugin}")
        return
    level = Level.MAY_HURT if count >= _MANY_NODES else Level.UNKNOWN
    found = f"{count} nodes{f', and {coming} that may register' if coming else ''}, no topology"
    why = "Slurm does not know which nodes share a switch, and spreads a job over the whole network."
    yield Advice("topology", level, found, why, ("TopologyPlugin=topology/tree",))
