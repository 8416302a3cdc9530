"""What the configuration means for nodes: looked at before a job, found dead, back in service. Pure.

Defaults are those of slurm.conf.5 (22.05 to 26.05).
"""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.ops.advice import Advice, Cluster, Level, more

_MANY_NODES = 64  # from about here on, ranks far apart cost bandwidth
_PROLOG_S = 8  # fleetctl's own prolog answers within this (docs/nodes.md, deadline_s)
_SURE_S = 30  # a node that is busy may be silent for some seconds; DOWN kills all that runs there
_SLOW_S = 120  # longer than this a requeue waits for Slurm more than for anything else


def prolog_flags(cluster: Cluster) -> Iterator[Advice]:
    if not cluster.slurm.get("Prolog"):
        why = "Nothing looks at a node before a job starts on it: `fleetctl node install` prints the lines."
        yield Advice("prolog", Level.MAY_HURT, "no Prolog", why)
        return
    flags = cluster.slurm.options("PrologFlags")
    if flags & {"alloc", "contain", "x11", "forcerequeueonfail", "runinjob"}:
        yield Advice("prolog", Level.FINE, f"PrologFlags={cluster.slurm.get('PrologFlags')}")
        return
    why = "Without Alloc the prolog runs at the first step: the other nodes are looked at when the job already runs."
    yield Advice("prolog", Level.HURTS, "PrologFlags without Alloc", why, more(cluster, "PrologFlags", "Alloc"))


def no_hold(cluster: Cluster) -> Iterator[Advice]:
    if not cluster.slurm.get("Prolog"):
        return
    if "nohold_on_prolog_fail" in cluster.slurm.options("SchedulerParameters"):
        yield Advice("prolog_hold", Level.FINE, "nohold_on_prolog_fail")
        return
    why = "A job whose node fails its prolog is requeued held, and waits until a person releases it."
    line = more(cluster, "SchedulerParameters", "nohold_on_prolog_fail")
    yield Advice("prolog_hold", Level.HURTS, "no nohold_on_prolog_fail", why, line)


def prolog_timeout(cluster: Cluster) -> Iterator[Advice]:
    conf = cluster.slurm
    if not (conf.get("Prolog") or conf.get("Epilog")):
        return
    limits = [key for key in ("PrologTimeout", "EpilogTimeout", "PrologEpilogTimeout") if conf.get(key)]
    if not limits:
        why = "By default Slurm waits for ever for a prolog or epilog that hangs, and the node with it."
        yield Advice("prolog_timeout", Level.HURTS, "no PrologEpilogTimeout", why, "PrologEpilogTimeout=60")
    for key in limits:
        seconds = conf.number(key, 0)
        if seconds is not None and seconds <= _PROLOG_S:
            why = f"A prolog that takes its {_PROLOG_S} s is ended before it can say what is wrong."
            yield Advice("prolog_timeout", Level.HURTS, f"{key}={seconds}", why, f"{key}=60")
        else:
            yield Advice("prolog_timeout", Level.FINE, f"{key}={conf.get(key)}")
    start_s = conf.number("BatchStartTimeout", 10)
    if start_s is not None and conf.get("Prolog") and start_s <= _PROLOG_S:
        why = "A batch job whose prolog takes longer is thought lost."
        yield Advice("prolog_timeout", Level.HURTS, f"BatchStartTimeout={start_s}", why, "BatchStartTimeout=20")


def slurmd_timeout(cluster: Cluster) -> Iterator[Advice]:
    seconds = cluster.slurm.number("SlurmdTimeout", 300)
    found = f"SlurmdTimeout={cluster.slurm.get('SlurmdTimeout', '300')}"
    if seconds == 0:
        why = "A dead node is never found DOWN, and its job never comes back by itself."
        yield Advice("slurmd_timeout", Level.HURTS, found, why, "SlurmdTimeout=120")
    elif seconds is not None and seconds < _SURE_S:
        why = "A node that is only busy is set DOWN, and all that runs there is killed."
        yield Advice("slurmd_timeout", Level.HURTS, found, why, "SlurmdTimeout=120")
    elif seconds is not None and seconds > _SLOW_S:
        why = (
            "fleetctl notices a dead node in 4 s, but a job without a spare node can be requeued only when Slurm has it"
            f" DOWN: {seconds} s of all its GPUs are lost each time."
        )
        yield Advice("slurmd_timeout", Level.MAY_HURT, found, why, "SlurmdTimeout=120")
    else:
        yield Advice("slurmd_timeout", Level.FINE, found)


def return_to_service(cluster: Cluster) -> Iterator[Advice]:
    value = cluster.slurm.get("ReturnToService", "0")
    if value == "2" and not cluster.slurm.get("HealthCheckProgram"):
        why = "A node that crashed takes jobs again as soon as it is up, and nothing looks at it."
        yield Advice("return_to_service", Level.MAY_HURT, "ReturnToService=2", why, "ReturnToService=1")
    elif value == "0":
        why = "A node that was silent for a while stays DOWN until a person resumes it."
        yield Advice("return_to_service", Level.MAY_HURT, "ReturnToService=0", why, "ReturnToService=1")
    else:
        yield Advice("return_to_service", Level.FINE, f"ReturnToService={value}")


def health_check(cluster: Cluster) -> Iterator[Advice]:
    conf = cluster.slurm
    if not conf.get("HealthCheckProgram") or conf.number("HealthCheckInterval", 0) == 0:
        why = "A node that breaks while no job starts on it is found by the next job: `fleetctl node install`."
        yield Advice("health_check", Level.MAY_HURT, "no HealthCheckProgram", why, "HealthCheckInterval=300")
        return
    if "cycle" not in conf.options("HealthCheckNodeState"):
        why = "All nodes run their check at the same moment: training feels it, and the controller too."
        line = "HealthCheckNodeState=ANY,CYCLE"
        yield Advice("health_check", Level.HURTS, "HealthCheckNodeState without CYCLE", why, line)
        return
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
        yield Advice("unkillable", Level.MAY_HURT, f"UnkillableStepTimeout={seconds}", why, line)
    else:
        yield Advice("unkillable", Level.FINE, f"UnkillableStepTimeout={seconds}")


def topology(cluster: Cluster) -> Iterator[Advice]:
    from fleetctl.slurm.hosts import expand

    names = [row["nodename"] for row in cluster.slurm.named("nodename")]
    try:
        count = sum(len(expand(name)) for name in names)
    except ValueError:
        count = len(names)
    plugin = cluster.slurm.get("TopologyPlugin", "topology/default").lower()
    if count < _MANY_NODES or plugin not in ("topology/default", "topology/none", "topology/flat"):
        yield Advice("topology", Level.FINE, f"{count} nodes, TopologyPlugin={plugin}")
        return
    why = "Slurm does not know which nodes share a switch, and spreads a job over the whole network."
    yield Advice("topology", Level.MAY_HURT, f"{count} nodes, no topology", why, "TopologyPlugin=topology/tree")
