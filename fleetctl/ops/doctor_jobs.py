"""What the configuration means for jobs: time to save, coming back, GPUs and their accounting. Pure.

Defaults are those of slurm.conf.5 (22.05 to 26.05).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from fleetctl.ops.advice import Advice, Cluster, Level, hosts, more, partitions, rounded, to_come
from fleetctl.ops.slurm_conf import Conf

_GPU = re.compile(r"(?:^|,)gpu(?::|$)")  # in Gres=, lower case
_WEIGHT = 'TRESBillingWeights="GRES/gpu=1.0"'
_YES = ("yes", "up", "true", "1")  # parse_config.c, a boolean
_MIN_JOB_AGE_S = 300  # slurm.conf.5, MinJobAge: the default


def kill_wait(cluster: Cluster) -> Iterator[Advice]:
    wait_s, save_s = cluster.slurm.number("KillWait", 30), cluster.slowest_save_s
    found = f"KillWait={cluster.slurm.get('KillWait', '30')}"
    if wait_s is None or save_s is None:
        found += ", and no run here has measured a save" if save_s is None else ""
        yield Advice("kill_wait", Level.UNKNOWN, found, "A run that reaches its time limit has this long to save.")
    elif save_s > wait_s:
        why = f"The slowest save of the runs here took {save_s:.0f} s: at the time limit it would be cut off."
        yield Advice("kill_wait", Level.HURTS, found, why, (f"KillWait={rounded(save_s * 1.5)}",))
    else:
        yield Advice("kill_wait", Level.FINE, f"{found}, slowest save {save_s:.0f} s")


def grace_time(cluster: Cluster) -> Iterator[Advice]:
    """slurm.conf.5, GraceTime: between the notice of a preemption and the kill; default 0."""
    conf, needed_s = cluster.slurm, cluster.slowest_save_s or 0.0
    kind = conf.plugin("PreemptType", "preempt/none")
    if kind == "qos":
        why = "What a preempted run has to save is its QOS's GraceTime: sacctmgr show qos format=name,gracetime,preempt"
        yield Advice("grace_time", Level.UNKNOWN, "PreemptType=preempt/qos", why)
    if kind != "partition_prio":
        return
    by_grace: dict[str, list[str]] = defaultdict(list)
    for row in _preempted(conf):
        by_grace[row.get("gracetime", "0")].append(row["partitionname"])
    for grace, names in by_grace.items():
        found = f"{partitions(names)}: GraceTime={grace}"
        if grace.upper() in ("INFINITE", "UNLIMITED") or (grace.isdecimal() and int(grace) > needed_s):
            yield Advice("grace_time", Level.FINE, found)
            continue
        why = "A preempted run gets no time to save." if grace == "0" else f"The slowest save took {needed_s:.0f} s."
        seconds = rounded(max(needed_s * 1.5, 120))
        lines = tuple(f"PartitionName={name} ... GraceTime={seconds}" for name in names)
        yield Advice("grace_time", Level.HURTS, found, why, lines)


def _preempted(conf: Conf) -> Iterator[Mapping[str, str]]:
    """Partitions whose jobs may be ended by preempt/partition_prio: never those of the highest PriorityTier."""
    rows = conf.named("partitionname")
    tiers = [int(tier) if tier.isdecimal() else 1 for tier in (row.get("prioritytier", "1") for row in rows)]
    for row, tier in zip(rows, tiers, strict=True):
        modes = row.get("preemptmode", conf.get("PreemptMode", "OFF")).upper().split(",")
        if tier < max(tiers) and {"REQUEUE", "CANCEL"} & set(modes):
            yield row


def requeue(cluster: Cluster) -> Iterator[Advice]:
    if cluster.slurm.get("JobRequeue", "1") == "0":
        why = "Scripts of fleetctl ask for --requeue themselves; all other jobs are lost with their node."
        yield Advice("requeue", Level.MAY_HURT, "JobRequeue=0", why, ("JobRequeue=1",))
    else:
        yield Advice("requeue", Level.FINE, "JobRequeue=1")
    if cluster.slurm.get("JobFileAppend", "0") == "1":
        yield Advice("output", Level.FINE, "JobFileAppend=1")
        return
    why = "A requeued job's output file is emptied. fleetctl keeps its own logs; other users lose theirs."
    yield Advice("output", Level.MAY_HURT, "JobFileAppend=0", why, ("JobFileAppend=1",))


def gpus(cluster: Cluster) -> Iterator[Advice]:
    conf = cluster.slurm
    if "gpu" not in conf.options("GresTypes"):
        yield Advice("gpus", Level.HURTS, "GresTypes without gpu", "No job can ask for GPUs.", ("GresTypes=gpu",))
    elif not any(_has_gpus(row) for row in conf.named("nodename")):
        coming = to_come(conf)
        level = Level.UNKNOWN if coming else Level.HURTS
        found = "no node has Gres=gpu" + (f", and {coming} may register (MaxNodeCount)" if coming else "")
        why = "No node line names GPUs: jobs that ask for them wait for ever."
        yield Advice("gpus", level, found, why, () if coming else ("NodeName=... Gres=gpu:8",))
    elif cluster.gres is None or not _describes_gpus(cluster.gres):
        why = "Without it Slurm counts GPUs but does not know their devices: jobs are not told which are theirs."
        yield Advice("gpus", Level.HURTS, "no GPUs in gres.conf", why, ("AutoDetect=nvml   # in gres.conf",))
    else:
        yield Advice("gpus", Level.FINE, "GPUs in slurm.conf and gres.conf")
    yield from _selection(conf)


def _selection(conf: Conf) -> Iterator[Advice]:
    lines = ("SelectType=select/cons_tres",)
    if not conf.get("SelectType"):
        why = "22.05 then takes select/linear, which gives out no GPUs; newer versions take cons_tres."
        yield Advice("gpus", Level.UNKNOWN, "no SelectType", why, lines)
    elif conf.plugin("SelectType", "") != "cons_tres":
        why = "Only cons_tres gives out GPUs one by one (--gpus, --gpus-per-node)."
        yield Advice("gpus", Level.HURTS, f"SelectType={conf.get('SelectType')}", why, lines)


def _has_gpus(node: Mapping[str, str]) -> bool:
    return _GPU.search(node.get("gres", "").lower()) is not None


def _describes_gpus(gres: Conf) -> bool:
    modes = [row.get("autodetect", "") for row in gres.rows] + [gres.get("AutoDetect")]
    detects = any(mode.lower() not in ("", "off") for mode in modes)
    return detects or any(row.get("name", "").lower() == "gpu" for row in gres.rows)


def accounting(cluster: Cluster) -> Iterator[Advice]:
    conf = cluster.slurm
    if not _has_database(conf):
        why = "Nothing remembers which GPU-seconds a job had; usage and losses cannot be told. It needs slurmdbd."
        lines = ("AccountingStorageType=accounting_storage/slurmdbd",)
        yield Advice("accounting", Level.MAY_HURT, "no accounting", why, lines)
        return
    if not _counts_gpus(conf):
        lines = (more(cluster, "AccountingStorageTRES", "gres/gpu"),)
        why = "No record says how many GPUs a job had."
        yield Advice("gpu_tres", Level.HURTS, "GPUs are not accounted", why, lines)
    else:
        yield Advice("gpu_tres", Level.FINE, f"AccountingStorageTRES={conf.get('AccountingStorageTRES')}")
    if "job_comment" not in conf.options("AccountingStoreFlags"):
        why = "The run's id is in the job's comment: without it in accounting, old jobs cannot be matched to runs."
        lines = (more(cluster, "AccountingStoreFlags", "job_comment"),)
        yield Advice("job_comment", Level.MAY_HURT, "comments are not stored", why, lines)
    else:
        yield Advice("job_comment", Level.FINE, "AccountingStoreFlags has job_comment")


def _has_database(conf: Conf) -> bool:
    return conf.plugin("AccountingStorageType", "accounting_storage/none") != "none"


def _counts_gpus(conf: Conf) -> bool:
    tres = conf.options("AccountingStorageTRES")
    return any(name == "gres/gpu" or name.startswith("gres/gpu:") for name in tres)


def billing(cluster: Cluster) -> Iterator[Advice]:
    """slurm.conf.5, TRESBillingWeights: without it a job is billed by its CPUs.

    slurmctld does not start on a weight of a TRES that is not accounted, nor on that TRES without slurmdbd.
    """
    conf = cluster.slurm
    if not _has_database(conf):
        return
    by_level: dict[Level, list[str]] = defaultdict(list)
    known = {host: row for row in conf.named("nodename") for host in hosts(row["nodename"])}
    for row in conf.named("partitionname"):
        level = _gpus_of(conf, known, row.get("nodes", ""))
        if level is not Level.FINE:
            weighed = "gres/gpu" in row.get("tresbillingweights", "").lower()
            by_level[Level.FINE if weighed else level].append(row["partitionname"])
    for level, names in by_level.items():
        if level is Level.FINE:
            yield Advice("billing", level, f"{partitions(names)}: GPUs have a weight")
            continue
        found = f"{partitions(names)}: GPUs have no weight"
        if level is Level.UNKNOWN:
            found = f"{partitions(names)}: no weight for GPUs, and some nodes are not known"
        why = "A job is billed by its CPUs, whatever GPUs it holds: fair share and limits count the wrong thing."
        needed = () if _counts_gpus(conf) else (more(cluster, "AccountingStorageTRES", "gres/gpu"),)
        lines = tuple(f"PartitionName={name} ... {_WEIGHT}" for name in names)
        yield Advice("billing", level, found, why, (*needed, *lines))


def _gpus_of(conf: Conf, known: Mapping[str, Mapping[str, str]], nodes: str) -> Level:
    """Of a partition: MAY_HURT when a node of it has GPUs, FINE when none has, UNKNOWN when not all are known."""
    names = set(known) if nodes.upper() == "ALL" else set(hosts(nodes))
    for row in conf.named("nodeset"):
        if row["nodeset"] in names:
            names.discard(row["nodeset"])
            names |= hosts(row.get("nodes", ""))
            names |= {host for host, node in known.items() if row.get("feature", "") in _features(node)}
    if any(_has_gpus(known[name]) for name in names & known.keys()):
        return Level.MAY_HURT
    return Level.UNKNOWN if names - known.keys() or (nodes and to_come(conf)) else Level.FINE


def _features(node: Mapping[str, str]) -> set[str]:
    """slurm.conf.5 takes Feature and Features for one."""
    return {word for word in node.get("features", node.get("feature", "")).split(",") if word}


def min_job_age(cluster: Cluster) -> Iterator[Advice]:
    seconds = cluster.slurm.number("MinJobAge", _MIN_JOB_AGE_S)
    if seconds is None or seconds == 0 or seconds >= _MIN_JOB_AGE_S:
        yield Advice("min_job_age", Level.FINE, f"MinJobAge={cluster.slurm.get('MinJobAge', str(_MIN_JOB_AGE_S))}")
        return
    why = "An ended job is forgotten so soon that it can hardly be requeued, nor a lost submission found again."
    yield Advice("min_job_age", Level.HURTS, f"MinJobAge={seconds}", why, (f"MinJobAge={_MIN_JOB_AGE_S}",))


def containment(cluster: Cluster) -> Iterator[Advice]:
    conf = cluster.slurm
    if conf.plugin("ProctrackType", "proctrack/cgroup") != "cgroup":
        why = "Processes that leave their session outlive the job, and hold its GPUs."
        lines = ("ProctrackType=proctrack/cgroup",)
        yield Advice("containment", Level.HURTS, f"ProctrackType={conf.get('ProctrackType')}", why, lines)
    why = "Jobs that share a node see and can use each other's GPUs."
    if "cgroup" not in conf.plugins("TaskPlugin"):
        lines = (more(cluster, "TaskPlugin", "task/cgroup"),)
        yield Advice("containment", Level.HURTS, "TaskPlugin without task/cgroup", why, lines)
    elif cluster.cgroup is None or cluster.cgroup.get("ConstrainDevices", "no").lower() not in _YES:
        lines = ("ConstrainDevices=yes   # in cgroup.conf",)
        yield Advice("containment", Level.HURTS, "ConstrainDevices is off", why, lines)
    else:
        yield Advice("containment", Level.FINE, "task/cgroup, ConstrainDevices=yes")
