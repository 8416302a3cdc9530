"""The findings of node checks that have to do with the end of an attempt. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from fleetctl.accounting.causes import Cause
from fleetctl.accounting.ranks import CLOSING, PARTS
from fleetctl.recovery.model import Advice, CauseClass, Evidence, Finding, Suspected
from fleetctl.rundir.model import Attempt

# Meta's window of attribution (Kokolis, HPCA 2025)
BEFORE, AFTER = timedelta(minutes=10), timedelta(minutes=5)
_CLASS = {Cause.GPU: CauseClass.GPU, Cause.NETWORK: CauseClass.NETWORK}
_MOST_WORDS = 300


def found_near(
    attempt: Attempt, evidence: Evidence, nodes: Iterable[str]
) -> tuple[tuple[Suspected, ...], tuple[Finding, ...]]:
    """Causes by findings that keep jobs away from a node, and the other findings, both of its nodes near its end."""
    own = frozenset(nodes)
    near = [one for one in evidence.findings if one.node in own and _is_near(attempt, one)]
    closing = [one for one in near if one.care.lower() in CLOSING]
    weak = tuple(one for one in near if one.care.lower() not in CLOSING)
    return tuple(_cause(one) for one in sorted(closing, key=lambda one: (one.at, one.node, one.check))), weak


def class_of(check: str) -> CauseClass:
    """Where a failed check puts the fault."""
    part = next((cause for cause, checks in PARTS.items() if check in checks), Cause.HOST)
    return _CLASS.get(part, CauseClass.HOST)


def _cause(one: Finding) -> Suspected:
    words = "".join(char if char.isprintable() else "?" for char in one.words[:_MOST_WORDS])
    return Suspected(class_of(one.check), Advice.DRAIN, f"check {one.check}: {words}", one.node)


def _is_near(attempt: Attempt, one: Finding) -> bool:
    if attempt.ended_at is None:
        return one.at >= attempt.started_at - BEFORE
    return attempt.ended_at - BEFORE <= one.at <= attempt.ended_at + AFTER
