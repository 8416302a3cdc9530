"""What a look at a cluster's configuration comes to. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from fleetctl.ops.slurm_conf import Conf


class Level(StrEnum):
    """How sure it is to hurt."""

    HURTS = "hurts"
    MAY_HURT = "may_hurt"
    FINE = "fine"
    UNKNOWN = "unknown"


class Advice(Struct, frozen=True):
    """One answer: what was found, why it matters, and the lines to write, all of them together (none: nothing to)."""

    check: str
    level: Level
    found: str
    why: str = ""
    lines: tuple[str, ...] = ()


class Cluster(Struct, frozen=True):
    """What is looked at. None: the file does not exist (Slurm then goes by its defaults)."""

    slurm: Conf
    gres: Conf | None = None
    cgroup: Conf | None = None
    slowest_save_s: float | None = None  # of all runs here: stage, write and commit
    has_topology_yaml: bool = False  # beside slurm.conf: it outranks TopologyPlugin (topology.yaml.5, from 25.05)


def more(cluster: Cluster, key: str, word: str) -> str:
    """The line with one more word in it: what stands there stays."""
    there = [one for one in cluster.slurm.get(key).split(",") if one and one.rpartition("/")[2].lower() != "none"]
    return f"{key}={','.join([*there, word])}"


def rounded(seconds: float) -> int:
    """Up to whole half minutes."""
    return int(-(-seconds // 30) * 30)


def partitions(names: Sequence[str]) -> str:
    return f"partition{'s' if len(names) > 1 else ''} {', '.join(names)}"


def hosts(text: str) -> frozenset[str]:
    """The hosts of a list; a list that cannot be read counts as one host of that name."""
    from fleetctl.slurm.hosts import expand

    try:
        return frozenset(expand(text))
    except ValueError:
        return frozenset((text,))


def to_come(conf: Conf) -> int:
    """How many nodes may register beside those that the file names (slurm.conf.5, MaxNodeCount)."""
    named = frozenset(host for row in conf.named("nodename") for host in hosts(row["nodename"]))
    return max((conf.number("MaxNodeCount", 0) or 0) - len(named), 0)
