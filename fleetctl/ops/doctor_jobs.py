"""What the configuration means for jobs: time to save, coming back, GPUs and their accounting. Pure.

Defaults are those of slurm.conf.5 (22.05 to 26.05).
"""

from __future__ import annotations

from collections.abc import Iterator

from fleetctl.ops.advice import Advice, Cluster, Level, more, rounded
from fleetctl.ops.slurm_conf import Conf

_MIN_JOB_AGE_S = 300  # slurm.conf.5, MinJobAge: the default


def kill_wait(cluster: Cluster) -> Iterator[Advice]:
    wait_s, save_s = cluster.slurm.number("KillWait", 30), cluster.slowest_save_s
    if wait_s is None or save_s is None:
        found = f"KillWait={cluster.slurm.get('KillWait', '30')}, and no run here has measured a save"
        why = "A run that reaches its time limit has this long to save."
        yield Advice("kill_wait", Level.UNKNOWN, found, why)
    elif save_s > wait_s:
        why = f"The slowest save of the runs here took {save_s:.0f} s: at the time limit it would be cut off."
        yield Advice("kill_wait", Level.HURTS, f"KillWait={wait_s}", why, f"KillWait={rounded(save_s * 1.5)}")
    else:
        yield Advice("kill_wait", Level.FINE, f"KillWait={wait_s}, slowest save {save_s:.0f} s")


def grace_time(cluster: Cluster) -> Iterator[Advice]:
    """slurm.conf.5, GraceTime: between the notice of a preemption and the kill; default 0."""
    conf = cluster.slurm
    if conf.get("PreemptType", "preempt/none").lower().endswith("none"):
        return
    for row in conf.named("partitionname"):
        mode = row.get("preemptmode", conf.get("PreemptMode", "OFF")).upper()
        if mode.split(",")[0] not in ("REQUEUE", "CANCEL"):
            continue
        grace, name = row.get("gracetime", "0"), row["partitionname"]
        needed_s = cluster.slowest_save_s or 0.0
        if grace.isdigit() and int(grace) > needed_s:
            yield Advice("grace_time", Level.FINE, f"partition {name}: GraceTime={grace}")
            continue
        why = "A preempted run gets no time to save." if grace == "0" else f"The slowest save took {needed_s:.0f} s."
        line = f"PartitionName={name} ... GraceTime={rounded(max(needed_s * 1.5, 120))}"
        yield Advice("grace_time", Level.HURTS, f"partition {name}: GraceTime={grace}", why, line)


def requeue(cluster: Cluster) -> Iterator[Advice]:
    if cluster.slurm.get("JobRequeue", "1") == "0":
        why = "Scripts of fleetctl ask for --requeue themselves; all other jobs are lost with their node."
        yield Advice("requeue", Level.MAY_HURT, "JobRequeue=0", why, "JobRequeue=1")
    else:
        yield Advice("requeue", Level.FINE, "JobRequeue=1")
    if cluster.slurm.get("JobFileAppend", "0") == "1":
        yield Advice("output", Level.FINE, "JobFileAppend=1")
        return
    why = "A requeued job's output file is emptied. fleetctl keeps its own logs; other users lose theirs."
    yield Advice("output", Level.MAY_HURT, "JobFileAppend=0", why, "JobFileAppend=1")


def gpus(cluster: Cluster) -> Iterator[Advice]:
    conf = cluster.slurm
    nodes = [row for row in conf.named("nodename") if "gpu" in row.get("gres", "").lower()]
    if "gpu" not in conf.options("GresTypes"):
        yield Advice("gpus", Level.HURTS, "GresTypes without gpu", "No job can ask for GPUs.", "GresTypes=gpu")
    elif not nodes:
        why = "No node line names GPUs: jobs that ask for them wait for ever."
        yield Advice("gpus", Level.HURTS, "no node has Gres=gpu", why, "NodeName=... Gres=gpu:8")
    elif cluster.gres is None or not _describes_gpus(cluster.gres):
        why = "Without it Slurm counts GPUs but does not know their devices: jobs are not told which are theirs."
        yield Advice("gpus", Level.HURTS, "no GPUs in gres.conf", why, "AutoDetect=nvml   # in gres.conf")
    else:
        yield Advice("gpus", Level.FINE, "GPUs in slurm.conf and gres.conf")
    if conf.get("SelectType", "select/cons_tres").lower() != "select/cons_tres":
        why = "Only cons_tres gives out GPUs one by one (--gpus, --gpus-per-node)."
        yield Advice("gpus", Level.HURTS, f"SelectType={conf.get('SelectType')}", why, "SelectType=select/cons_tres")


def _describes_gpus(gres: Conf) -> bool:
    modes = [row.get("autodetect", "") for row in gres.rows] + [gres.get("AutoDetect")]
    detects = any(mode.lower() not in ("", "off") for mode in modes)
    return detects or any(row.get("name", "").lower() == "gpu" for row in gres.rows)


def accounting(cluster: Cluster) -> Iterator[Advice]:
    conf = cluster.slurm
    storage = conf.get("AccountingStorageType", "accounting_storage/none").lower()
    if storage.endswith("none"):
        why = "Nothing remembers which GPU-seconds a job had; usage and losses cannot be told."
        line = "AccountingStorageType=accounting_storage/slurmdbd"
        yield Advice("accounting", Level.MAY_HURT, "no accounting", why, line)
        return
    tres = conf.options("AccountingStorageTRES")
    if not any(name == "gres/gpu" or name.startswith("gres/gpu:") for name in tres):
        line = more(cluster, "AccountingStorageTRES", "gres/gpu")
        yield Advice("gpu_tres", Level.HURTS, "GPUs are not accounted", "No record says how many GPUs a job had.", line)
    else:
        yield Advice("gpu_tres", Level.FINE, f"AccountingStorageTRES={conf.get('AccountingStorageTRES')}")
    if "job_comment" not in conf.options("AccountingStoreFlags"):
        why = "The run's id is in the job's comment: without it in accounting, old jobs cannot be matched to runs."
        line = more(cluster, "AccountingStoreFlags", "job_comment")
        yield Advice("job_comment", Level.MAY_HURT, "comments are not stored", why, line)
    else:
        yield Advice("job_comment", Level.FINE, "AccountingStoreFlags has job_comment")


def billing(cluster: Cluster) -> Iterator[Advice]:
    """slurm.conf.5, TRESBillingWeights: without it a job is billed by its CPUs."""
    for row in cluster.slurm.named("partitionname"):
        weights = row.get("tresbillingweights", "").lower()
        if "gres/gpu" in weights:
            yield Advice("billing", Level.FINE, f"partition {row['partitionname']}: {row['tresbillingweights']}")
            continue
        why = "A job is billed by its CPUs, whatever GPUs it holds: fair share and limits count the wrong thing."
        line = f'PartitionName={row["partitionname"]} ... TRESBillingWeights="GRES/gpu=1.0"'
        yield Advice("billing", Level.MAY_HURT, f"partition {row['partitionname']}: GPUs have no weight", why, line)


def min_job_age(cluster: Cluster) -> Iterator[Advice]:
    seconds = cluster.slurm.number("MinJobAge", _MIN_JOB_AGE_S)
    if seconds is None or seconds == 0 or seconds >= _MIN_JOB_AGE_S:
        yield Advice("min_job_age", Level.FINE, f"MinJobAge={seconds}")
        return
    why = "An ended job is forgotten so soon that it can hardly be requeued, nor a lost submission found again."
    yield Advice("min_job_age", Level.HURTS, f"MinJobAge={seconds}", why, f"MinJobAge={_MIN_JOB_AGE_S}")


def containment(cluster: Cluster) -> Iterator[Advice]:
    conf = cluster.slurm
    if conf.get("ProctrackType", "proctrack/cgroup").lower() != "proctrack/cgroup":
        why = "Processes that leave their session outlive the job, and hold its GPUs."
        line = "ProctrackType=proctrack/cgroup"
        yield Advice("containment", Level.HURTS, f"ProctrackType={conf.get('ProctrackType')}", why, line)
    if "task/cgroup" not in conf.options("TaskPlugin"):
        why = "Jobs that share a node see and can use each other's GPUs."
        line = more(cluster, "TaskPlugin", "task/cgroup")
        yield Advice("containment", Level.HURTS, "TaskPlugin without task/cgroup", why, line)
    elif cluster.cgroup is None or cluster.cgroup.get("ConstrainDevices", "no").lower() != "yes":
        why = "Jobs that share a node see and can use each other's GPUs."
        line = "ConstrainDevices=yes   # in cgroup.conf"
        yield Advice("containment", Level.HURTS, "ConstrainDevices is off", why, line)
    else:
        yield Advice("containment", Level.FINE, "task/cgroup, ConstrainDevices=yes")
