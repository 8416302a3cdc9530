"""Verdicts of a node: a bounded file of JSON lines on its disk, published to a folder that the fleet shares."""

from __future__ import annotations

import json
import os
import re
import time
from typing import List, Optional, Tuple

from fleetctl.health.model import Verdict
from fleetctl.health.record import NamedTuple
from fleetctl.health.store import (
    LOCK_WAIT_S,
    Foreign,
    Monotonic,
    Note,
    locked,
    opened,
    read_bounded,
    replace,
    silent,
    words_of,
)
from fleetctl.health.wire import from_wire, to_wire

SPOOL = "verdicts.jsonl"
MOST_BYTES = 256 << 10  # some hundred verdicts of a healthy node: about a day with a look every five minutes
MOST_LINE_BYTES = 32 << 10
MOST_NODES = 20_000
_ALIEN_BYTES = 4 << 20
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")  # what Slurm allows, and nothing that leaves the folder


class NodeSaid(NamedTuple):
    """What a node published last; `trouble` says why `latest` is None."""

    node: str
    latest: Optional[Verdict]
    trouble: str = ""


def append_verdict(
    folder: str,
    verdict: Verdict,
    *,
    note: Note = silent,
    monotonic: Monotonic = time.monotonic,
    wait_s: float = LOCK_WAIT_S,
    most_bytes: int = MOST_BYTES,
) -> bool:
    """Add a verdict to the spool, dropping the oldest; False, with a note, if it could not be written."""
    try:
        line = line_of(verdict)
        with opened(folder, make=True) as here, locked(here, SPOOL, monotonic=monotonic, wait_s=wait_s) as why:
            if why:
                note(f"{folder}/{SPOOL} not written: {why}")
                return False
            replace(here, SPOOL, b"".join(newest([*_lines(here, note), line], most_bytes)))
            return True
    except (OSError, Foreign, ValueError) as error:
        note(f"{folder}/{SPOOL} not written: {words_of(error)}")
        return False


def line_of(verdict: Verdict) -> bytes:
    """A verdict as one line; the mildest findings go first where it would be too long.

    :raises ValueError: a number in it is not finite.
    """
    findings = sorted(verdict.findings, key=lambda finding: -finding.care)
    while True:
        raw = to_wire(verdict._replace(findings=tuple(findings)) if len(findings) < len(verdict.findings) else verdict)
        line = json.dumps(raw, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if len(line) <= MOST_LINE_BYTES:
            return line
        if not findings:
            return line if verdict.usage is None else line_of(verdict._replace(findings=(), usage=None))
        findings = findings[: len(findings) // 2]


def newest(lines: List[bytes], most_bytes: int) -> List[bytes]:
    """The longest tail of the lines that fits; the last one always does."""
    kept: List[bytes] = []
    left = most_bytes
    for line in reversed(lines):
        left -= len(line)
        if left < 0 and kept:
            break
        kept.append(line)
    return kept[::-1]


def publish(folder: str, shared: str, node: str, *, note: Note = silent) -> bool:
    """Copy the spool to `<shared>/<node>.jsonl` and its last verdict to `<shared>/<node>.json`.

    The shared folder may hang: run it apart. The node's root may be nobody there, so that no owner is asked for. One
    at a time: where another copies already (or hangs there), the next look brings the newest.
    """
    try:
        if _NODE.fullmatch(node) is None:
            raise Foreign(f"{node!r} is no node name")
        with opened(folder) as here, locked(here, "publish") as why:
            lines = [] if why else _lines(here, note)
            if not lines:
                return False
            there = os.open(shared, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                replace(there, f"{node}.jsonl", b"".join(lines), 0o644)
                replace(there, f"{node}.json", lines[-1], 0o644)
            finally:
                os.close(there)
            return True
    except (OSError, Foreign) as error:
        note(f"verdicts not published in {shared}: {words_of(error)}")
        return False


def read_shared(folder: str) -> Tuple[NodeSaid, ...]:
    """What every node of the shared folder said last, by name. :raises OSError: the folder cannot be read.

    Others may write there: a file proves nothing but is only shown, and it is read bounded and without following links.
    """
    there = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        nodes = sorted(name[: -len(".json")] for name in os.listdir(there) if name.endswith(".json"))
        return tuple(_said(there, node) for node in nodes[:MOST_NODES] if _NODE.fullmatch(node))
    finally:
        os.close(there)


def read_history(folder: str, node: str) -> Tuple[Verdict, ...]:
    """A node's verdicts in the shared folder, the oldest first; lines that make no sense are left out.

    :raises OSError, Foreign: there is no such file, or it cannot be one of a node.
    """
    if _NODE.fullmatch(node) is None:
        raise Foreign(f"{node!r} is no node name")
    there = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        data = read_bounded(there, f"{node}.jsonl", _ALIEN_BYTES, ours=False)
    finally:
        os.close(there)
    return tuple(verdict for verdict in (verdict_of(line, node) for line in data.splitlines()) if verdict is not None)


def verdict_of(line: bytes, node: str) -> Optional[Verdict]:
    """The verdict in a line, if it is one and about this node."""
    try:
        verdict = from_wire(Verdict, json.loads(line))
    except (ValueError, RecursionError):
        return None
    return verdict if isinstance(verdict, Verdict) and verdict.node == node else None


def _said(there: int, node: str) -> NodeSaid:
    try:
        line = read_bounded(there, f"{node}.json", _ALIEN_BYTES, ours=False)
    except (OSError, Foreign) as error:
        return NodeSaid(node, None, words_of(error))
    verdict = verdict_of(line, node)
    return NodeSaid(node, verdict, "" if verdict else f"{node}.json is no verdict of that node")


def _lines(here: int, note: Note) -> List[bytes]:
    """The whole lines of the spool. :raises OSError: the disk would not say."""
    try:
        data = read_bounded(here, SPOOL, _ALIEN_BYTES)
    except FileNotFoundError:
        return []
    except Foreign as error:
        note(f"{error}: starting a new one")
        return []
    lines = data.splitlines(keepends=True)
    return [line for line in lines if line.startswith(b"{") and line.endswith(b"}\n")]
