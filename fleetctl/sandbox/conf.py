"""The configuration files of one sandbox, as text. Pure: what is installed and which ports are free is passed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleetctl.sandbox.model import Partition, SandboxConfig


@dataclass(frozen=True, slots=True)
class Site:
    """Where this sandbox lives: what conf files need to know beyond the config."""

    directory: str
    cluster: str
    host: str
    user: str
    slurm_version: tuple[int, int]
    ctld_port: int
    dbd_port: int
    node_ports: Mapping[str, int]

    def path(self, *parts: str) -> str:
        return "/".join((self.directory, *parts))


def slurm_conf(config: SandboxConfig, site: Site) -> str:
    """slurm.conf: our lines, each replaced by a --set of the same key, then the remaining --set, nodes, partitions."""
    lines = {key.lower(): (key, value) for key, value in _base(site) + _accounting(config, site)}
    for key, value in config.settings:
        lines[key.lower()] = (key, _with_socket(value, site) if key.lower() == "authinfo" else value)
    text = [f"{key}={value}" for key, value in lines.values()]
    return "\n".join(["# Written by fleetctl sandbox up.", *text, *_nodes(config, site), *_partitions(config)]) + "\n"


def _base(site: Site) -> list[tuple[str, str]]:
    return [
        ("ClusterName", site.cluster),
        ("SlurmctldHost", f"{site.host}(127.0.0.1)"),
        ("SlurmctldPort", str(site.ctld_port)),
        ("SlurmUser", site.user),
        ("SlurmdUser", site.user),
        ("AuthType", "auth/munge"),
        # cred_expire also bounds how long a requeued job waits before it may start again: 7 s here, 121 s by default
        ("AuthInfo", _with_socket("cred_expire=5", site)),
        ("StateSaveLocation", site.path("ctld")),
        ("SlurmdSpoolDir", site.path("spool", "%n")),
        ("SlurmctldPidFile", site.path("run", "slurmctld.pid")),
        ("SlurmdPidFile", site.path("run", "%n.pid")),
        ("SlurmctldLogFile", site.path("log", "slurmctld.log")),
        ("SlurmdLogFile", site.path("log", "%n.log")),
        ("SlurmctldDebug", "verbose"),
        ("SlurmdDebug", "verbose"),
        ("SlurmdParameters", "config_overrides"),  # nodes claim more CPUs and memory than this host has
        ("ProctrackType", "proctrack/linuxproc"),
        ("TaskPlugin", "task/none"),
        ("MpiDefault", "none"),
        ("JobAcctGatherType", "jobacct_gather/none"),
        ("SelectType", "select/cons_tres"),
        ("SelectTypeParameters", "CR_Core_Memory"),
        ("DefMemPerCPU", "1024"),  # else a job that names no memory takes all of a node's
        ("GresTypes", "gpu"),
        ("PrologFlags", "Alloc"),
        ("CommunicationParameters", "NoInAddrAny,NoCtldInAddrAny"),  # listen on 127.0.0.1 only
        ("ReturnToService", "2"),
        ("MailProg", "/bin/true"),
        ("SlurmdTimeout", "20"),
        ("SlurmctldTimeout", "10"),
        ("MessageTimeout", "5"),
        ("TCPTimeout", "2"),
        ("KillWait", "5"),
        ("InactiveLimit", "0"),
        ("SchedulerType", "sched/backfill"),
        ("SchedulerParameters", "bf_interval=1,sched_interval=1,batch_sched_delay=0"),
    ]


def _accounting(config: SandboxConfig, site: Site) -> list[tuple[str, str]]:
    if not config.accounting:
        return [("AccountingStorageType", "accounting_storage/none")]
    return [
        ("AccountingStorageType", "accounting_storage/slurmdbd"),
        ("AccountingStorageHost", "127.0.0.1"),
        ("AccountingStoragePort", str(site.dbd_port)),
        ("AccountingStoragePass", site.path("run", "munge.sock")),  # AuthInfo's socket is not used towards slurmdbd
        ("AccountingStorageTRES", "gres/gpu"),
        ("AccountingStoreFlags", "job_comment,job_script"),
    ]


def _with_socket(auth_info: str, site: Site) -> str:
    """A --set AuthInfo keeps our munged: without its socket nothing would talk to anything."""
    return auth_info if "socket=" in auth_info else f"socket={site.path('run', 'munge.sock')},{auth_info}"


def _nodes(config: SandboxConfig, site: Site) -> list[str]:
    shape = f"CPUs={config.cpus_per_node} Boards=1 SocketsPerBoard=1 CoresPerSocket={config.cpus_per_node}"
    shape += f" ThreadsPerCore=1 RealMemory={config.memory_per_node_mib}"
    gpu_nodes = set(config.gpu_node_names()) if config.gpus else set()
    return [
        f"NodeName={name} NodeHostname={site.host} NodeAddr=127.0.0.1 Port={site.node_ports[name]} {shape}"
        + (f" Gres=gpu:{config.gpus}" if name in gpu_nodes else "")
        + " State=UNKNOWN"
        for name in config.node_names()
    ]


def _partitions(config: SandboxConfig) -> list[str]:
    """`main` with every node is there and the default, unless a --partition says otherwise."""
    asked: dict[str, Partition] = {"main": Partition("main")}
    asked.update({partition.name: partition for partition in config.partitions})
    options_asked = [option for partition in asked.values() for option in partition.options]
    claimed = any(key.lower() == "default" and value.upper() == "YES" for key, value in options_asked)
    lines = []
    for partition in asked.values():
        options = {"nodes": ("Nodes", "ALL"), "state": ("State", "UP"), "maxtime": ("MaxTime", "INFINITE")}
        if partition.name == "main" and not claimed:
            options["default"] = ("Default", "YES")
        options.update({key.lower(): (key, value) for key, value in partition.options})
        words = " ".join(f"{key}={value}" for key, value in options.values())
        lines.append(f"PartitionName={partition.name} {words}")
    return lines


def gres_conf(config: SandboxConfig, site: Site) -> str:
    if not (config.gpus and config.nodes):
        return ""
    return f"NodeName=node[1-{config.nodes}] Name=gpu File={site.path('dev', 'gpu')}[0-{config.gpus - 1}]\n"


def cgroup_conf(site: Site) -> str:
    """From 24.11 the plugin is loaded although nothing uses it, and needs a word; 22.05 does not know that word."""
    return "CgroupPlugin=disabled\n" if site.slurm_version >= (24, 11) else ""


def slurmdbd_conf(site: Site) -> str:
    lines = [
        ("AuthType", "auth/munge"),
        ("AuthInfo", f"socket={site.path('run', 'munge.sock')}"),
        ("DbdHost", site.host),
        ("DbdAddr", "127.0.0.1"),
        ("DbdPort", str(site.dbd_port)),
        ("SlurmUser", site.user),
        ("LogFile", site.path("log", "slurmdbd.log")),
        ("PidFile", site.path("run", "slurmdbd.pid")),
        ("DebugLevel", "info"),
        ("StorageType", "accounting_storage/mysql"),
        ("StorageHost", "localhost"),  # over the socket that MYSQL_UNIX_PORT names: no password, no port
        ("StorageUser", site.user),
        ("StorageLoc", "slurm_acct_db"),
    ]
    return "".join(f"{key}={value}\n" for key, value in lines)


def hosts_file(own_hosts: str, node_names: Sequence[str]) -> str:
    """/etc/hosts as a node sees it: ranks reach each other by node name, as on a real cluster."""
    return own_hosts.rstrip("\n") + "\n127.0.0.1 " + " ".join(node_names) + "\n"
