"""What recovery must know of a run's spec, from its spec.json and its history. Pure.

A newer fleetctl may have written it: what is not there has the default of fleetctl.spec.model, and what makes no sense
is taken so that nothing is done to the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleetctl.recovery.model import Facts
from fleetctl.rundir.history import History
from fleetctl.spec.model import MAX_COUNT, CheckpointFormat, Recovery


def facts_in(raw: object, history: History) -> Facts:
    """The facts. `raw` None or no spec: nothing says that the run may be restarted, so it may not."""
    spec = raw if isinstance(raw, dict) else {}
    recovery, checkpoint = _part(spec, "recovery"), spec.get("checkpoint")
    requeue = recovery.get("requeue")
    groups = list(_resources(spec))
    return Facts(
        history=history,
        max_failures=_count(recovery, "max_failures", Recovery().max_failures),
        may_restart=bool(spec) and (requeue is True or (requeue is None and isinstance(checkpoint, dict))),
        own_format=isinstance(checkpoint, dict) and checkpoint.get("format") == CheckpointFormat.OWN,
        nodes=sum(nodes for nodes, _ in groups),
        gpus=sum(nodes * gpus for nodes, gpus in groups),
        opted_out=not spec or recovery.get("daemon", True) is not True,
        canary=recovery.get("canary") is True,
        chain=recovery.get("chain") is True,
    )


def _resources(spec: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Nodes, spares included, and GPUs on each, of every component of the job."""
    groups = spec.get("groups")
    for one in groups if isinstance(groups, list) and groups else [spec]:
        asked = _part(one, "resources") if isinstance(one, dict) else {}
        yield _count(asked, "nodes", 1) + _count(asked, "spare_nodes", 0), _count(asked, "gpus_per_node", 0)


def _part(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = raw.get(name)
    return found if isinstance(found, dict) else {}


def _count(raw: Mapping[str, Any], name: str, default: int) -> int:
    value = raw.get(name, default)
    return value if type(value) is int and 0 <= value <= MAX_COUNT else default
