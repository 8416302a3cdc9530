"""What the node checks say in the folder that the fleet shares: failed checks of each node's newest verdict.

Many may write there: a file proves nothing by itself, it is read bounded, and no link is followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime

from fleetctl.health.model import Care, Outcome, Verdict
from fleetctl.health.spool import MOST_NODES, verdict_of
from fleetctl.health.store import Foreign, read_bounded
from fleetctl.recovery.model import Finding
from fleetctl.recovery.read_wire import AskFindings, ToldFindings

_MOST_BYTES = 1 << 20
_MOST_FINDINGS = 32  # of one node
_MOST_WORDS = 300
_AT_ONCE = 200  # nodes in one answer: a sign of life
_SUFFIX = ".json"


def read_findings(ask: AskFindings) -> Iterator[ToldFindings]:
    """The nodes whose files have changed since. A node whose last verdict has none has none here.

    :raises OSError: the folder cannot be read.
    """
    there = os.open(ask.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        names = sorted(name for name in os.listdir(there) if os.fsdecode(name).endswith(_SUFFIX))
        found: list[tuple[str, tuple[Finding, ...]]] = []
        for number, name in enumerate(names[:MOST_NODES], start=1):
            if _is_newer(there, name, ask.since_ns):
                node = name[: -len(_SUFFIX)]
                found.append((node, _findings(there, node)))
            if number % _AT_ONCE == 0:
                yield ToldFindings(tuple(found))
                found = []
        yield ToldFindings(tuple(found), last=True)
    finally:
        os.close(there)


def findings_in(verdict: Verdict) -> tuple[Finding, ...]:
    """The failed checks of one verdict, the gravest first."""
    try:
        at = datetime.fromtimestamp(verdict.at, UTC)
    except (ValueError, OverflowError, OSError):
        return ()
    failed = sorted((one for one in verdict.findings if one.outcome is Outcome.FAIL), key=lambda one: -one.care)
    return tuple(
        Finding(verdict.node, at, one.check[:_MOST_WORDS], Care(one.care).name, one.words[:_MOST_WORDS])
        for one in failed[:_MOST_FINDINGS]
    )


def _is_newer(there: int, name: str, since_ns: int) -> bool:
    try:
        return os.stat(name, dir_fd=there, follow_symlinks=False).st_mtime_ns >= since_ns
    except OSError:
        return False


def _findings(there: int, node: str) -> tuple[Finding, ...]:
    try:
        verdict = verdict_of(read_bounded(there, node + _SUFFIX, _MOST_BYTES, ours=False), node)
    except (OSError, Foreign):
        return ()
    return () if verdict is None else findings_in(verdict)
