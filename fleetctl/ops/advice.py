"""What a look at a cluster's configuration comes to. Pure."""

from __future__ import annotations

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
    """One answer: what was found, why it matters, and the line to write ("" when there is none to write)."""

    check: str
    level: Level
    found: str
    why: str = ""
    line: str = ""


class Cluster(Struct, frozen=True):
    """What is looked at. None: the file does not exist (Slurm then goes by its defaults)."""

    slurm: Conf
    gres: Conf | None = None
    cgroup: Conf | None = None
    slowest_save_s: float | None = None  # of all runs here: stage, write and commit


def more(cluster: Cluster, key: str, word: str) -> str:
    """The line with one more word in it: what stands there stays."""
    there = [one for one in cluster.slurm.get(key).split(",") if one and not one.endswith("/none")]
    return f"{key}={','.join([*there, word])}"


def rounded(seconds: float) -> int:
    """Up to whole half minutes."""
    return int(-(-seconds // 30) * 30)
