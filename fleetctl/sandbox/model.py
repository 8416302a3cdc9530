"""What a sandbox is asked to be. Pure: no files, no processes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from fleetctl.errors import UsageError

_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_PARTITION = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*", re.ASCII)
_OPTION_COMMA = re.compile(r",(?=[A-Za-z][A-Za-z0-9_]*=)", re.ASCII)
_NOT_SETTABLE = {"nodename", "partitionname", "include", "clustername", "slurmctldhost"}
MAX_NODES = 64
MAX_GPUS = 16


@dataclass(frozen=True, slots=True)
class Partition:
    """One more partition: options are slurm.conf's own, in the order given."""

    name: str
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """The cluster to run: node1..N with fake GPUs, cpu1..M without; CPUs and memory are only claimed."""

    nodes: int = 4
    gpus: int = 8
    cpu_nodes: int = 0
    accounting: bool = False
    private_tmp: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    partitions: tuple[Partition, ...] = ()
    cpus_per_node: int = 64
    memory_per_node_mib: int = 524_288

    def node_names(self) -> tuple[str, ...]:
        return self.gpu_node_names() + tuple(f"cpu{n}" for n in range(1, self.cpu_nodes + 1))

    def gpu_node_names(self) -> tuple[str, ...]:
        return tuple(f"node{n}" for n in range(1, self.nodes + 1))


def checked(config: SandboxConfig) -> SandboxConfig:
    """The same config, or an error that says what is possible.

    :raises UsageError: a count, a key or a name that no sandbox can have.
    """
    _within("--nodes", config.nodes, MAX_NODES)
    _within("--cpu-nodes", config.cpu_nodes, MAX_NODES)
    _within("--gpus", config.gpus, MAX_GPUS)
    if not config.node_names():
        raise UsageError("a sandbox needs a node: --nodes 1 or --cpu-nodes 1")
    for key, value in config.settings:
        _check_setting(key, value)
    for partition in config.partitions:
        if not _PARTITION.fullmatch(partition.name):
            raise UsageError(f"--partition {partition.name!r}: a partition is named by letters, digits, _ . -")
        for key, value in partition.options:
            if key.lower() == "partitionname":
                raise UsageError(f"--partition {partition.name}: the name stands before the colon, not in {key}=")
            _check_line(f"--partition {partition.name}: {key}", value)
            if " " in value or not value:
                raise UsageError(f"--partition {partition.name}: {key}={value!r} must be one word")
    return config


def parse_setting(text: str) -> tuple[str, str]:
    """`KEY=VALUE` of --set.

    :raises UsageError: no `=`, or a key that a sandbox sets by its own options.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text}: expected KEY=VALUE, such as SlurmdTimeout=60")
    _check_setting(key, value)
    return key, value


def parse_partition(text: str) -> Partition:
    """`NAME:KEY=VALUE,...` of --partition; a comma inside a value stays (`Nodes=node[1,3]`).

    :raises UsageError: not of that form.
    """
    name, _, rest = text.partition(":")
    options: list[tuple[str, str]] = []
    for part in _OPTION_COMMA.split(rest) if rest else []:
        key, equals, value = part.partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise UsageError(f"--partition {text}: expected NAME:KEY=VALUE,..., such as debug:Nodes=node1,MaxTime=10")
        options.append((key, value))
    partition = Partition(name, tuple(options))
    checked(replace(SandboxConfig(), partitions=(partition,)))
    return partition


def _check_setting(key: str, value: str) -> None:
    if not _KEY.fullmatch(key):
        raise UsageError(f"--set {key!r}: a key of slurm.conf is letters and digits")
    if key.lower() in _NOT_SETTABLE:
        raise UsageError(f"--set {key}: the sandbox writes that itself; see --nodes, --cpu-nodes and --partition")
    _check_line(f"--set {key}", value)


def _check_line(what: str, value: str) -> None:
    if not value.isprintable() or "#" in value:
        raise UsageError(f"{what}: {value!r} does not fit in one line of slurm.conf")


def _within(what: str, value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise UsageError(f"{what} {value}: expected 0 to {most}")
