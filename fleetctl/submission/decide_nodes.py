"""Which nodes a job may lose, and which it must not: what Slurm does not check itself. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from msgspec import Struct

from fleetctl.errors import UsageError
from fleetctl.slurm.model import Node

_GONE_NODES = frozenset({"DOWN", "FUTURE", "ERROR"})
_DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"})


class Need(Struct, frozen=True):
    """What one component of the job needs: nodes of one of these partitions (none: of any), without the excluded."""

    nodes: int
    partitions: frozenset[str]
    excluded: frozenset[str]


@lru_cache(maxsize=8192)  # the daemon asks for the lists of thousands of jobs in each pass
def hosts(text: str) -> frozenset[str]:
    """The names in a host list."""
    from fleetctl.slurm.hosts import expand  # ClusterShell takes a while to import

    return frozenset(expand(text)) if text else frozenset()


def unresponsive(nodes: Iterable[Node], of_job: Iterable[str]) -> tuple[str, ...]:
    """Nodes of the job that Slurm does not reach and has not yet found DOWN."""
    wanted = frozenset(of_job)
    return tuple(
        sorted(
            node.name
            for node in nodes
            if node.name in wanted and "NOT_RESPONDING" in node.flags and node.base_state not in _GONE_NODES
        )
    )


def check_exclusion(wanted: frozenset[str], needs: Sequence[Need], nodes: Sequence[Node]) -> None:
    """Every node excluded is accepted by Slurm, and the job then waits for ever.

    :raises UsageError: no such node, or too few are left.
    """
    if missing := sorted(wanted - {node.name for node in nodes}):
        raise UsageError(f"--exclude: this cluster has no node {', '.join(missing[:5])}")
    left_of_all: set[str] = set()
    for need in needs:
        left = {node.name for node in nodes if _is_usable(node, need)}
        _check_left(left, need.nodes, need.partitions)
        left_of_all |= left
    _check_left(left_of_all, sum(need.nodes for need in needs), frozenset().union(*(one.partitions for one in needs)))


def _check_left(left: set[str], needed: int, partitions: frozenset[str]) -> None:
    if len(left) < needed:
        where = f"partition {','.join(sorted(partitions))}" if partitions else "this cluster"
        raise UsageError(
            f"--exclude: {len(left)} usable nodes of {where} would remain, and the run needs {needed}",
            remedy="exclude fewer nodes, or wait until more are up (sinfo -R)",
        )


def _is_usable(node: Node, need: Need) -> bool:
    if node.name in need.excluded or node.base_state in _GONE_NODES or node.flags & _DRAINED:
        return False
    return not need.partitions or bool(need.partitions & set(node.partitions))
