"""What the log of an attempt says about its end. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec import structs

from fleetctl.recovery.logs import Hit, LogText, TaskEnd, bare, cut, exceptions, hits, root_host, task_ends
from fleetctl.recovery.model import Advice, CauseClass, Evidence, Finding, Suspected
from fleetctl.recovery.patterns import Patterns
from fleetctl.rundir.model import Attempt

_MOST_CHARS = 300  # of a line
_MOST_CAUSES = 8
_END_BYTES = 64 << 10
_HARDWARE = frozenset({CauseClass.NODE, CauseClass.GPU, CauseClass.NETWORK, CauseClass.HOST, CauseClass.HANG})
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SAID = re.compile(r"(?:#|\W)+")
_DIGITS = re.compile(r"[0-9]+")
_KILLED = ("killed", "terminated")  # what srun says of the others, which it ended itself


def log_causes(
    attempt: Attempt,
    evidence: Evidence,
    patterns: Patterns,
    nodes: Sequence[str],
    closing: Sequence[Suspected],
    weak: Sequence[Finding],
    *,
    lived: bool,
) -> Iterator[Suspected]:
    """The causes that the log tells, the likeliest first: the earliest line that does not follow from another one."""
    if not evidence.log:
        return
    log = cut(evidence.log)
    place = _Place(log, nodes)
    ran_s = None if attempt.ended_at is None else (attempt.ended_at - attempt.started_at).total_seconds()
    found = _distinct(hits(log, patterns))
    own = [hit for hit in found if not _is_cascade(hit, ran_s) and not hit.survived]
    causes = [_cause(hit, place, closing, weak, lived=lived) for hit in own[:_MOST_CAUSES]]
    if not causes and (raised := _raised(log, patterns, found)):
        causes.append(Suspected(CauseClass.PROGRAM, Advice.SAME, f"log: {raised}", again=Advice.ELSEWHERE))
    yield from causes
    follow = [hit for hit in found if _is_cascade(hit, ran_s) or hit.survived]
    yield from _following(follow, place, closing, weak, alone=not causes)


def _raised(log: LogText, patterns: Patterns, found: Sequence[Hit]) -> str:
    """The exception that no row knows: the first of those at the end, since what a program prints and outlives is
    farther from it."""
    known = {hit.at for hit in found}
    raised = [one for one in exceptions(log, patterns) if one.at not in known]
    late = [one for one in raised if one.at >= log.since(_END_BYTES)] or raised[-1:]
    return _words(late[0].line) if late else ""


class _Place:
    """Where lines come from, as far as a log tells."""

    def __init__(self, log: LogText, nodes: Sequence[str]) -> None:
        self.nodes = {node.partition(".")[0]: node for node in nodes} | {node: node for node in nodes}
        self.count = len(nodes)
        self.ends: tuple[TaskEnd, ...] = tuple(end for end in task_ends(log) if end.how.strip().lower() not in _KILLED)
        self.root = self.node_in(root_host(log))
        self._by_end: dict[str, set[str]] = {}
        for end in self.ends:
            self._by_end.setdefault(end.how, set()).add(end.node)

    def node_in(self, text: str) -> str:
        """The node of ours that a line names, if it names one alone."""
        named = {self.nodes[word] for token in _TOKEN.findall(text) if (word := token.rstrip(".-")) in self.nodes}
        return named.pop() if len(named) == 1 else ""

    def is_of_many(self, text: str) -> bool:
        """Whether it is srun's word about tasks that ended so on several nodes: then no node is to blame."""
        return any(len(nodes) > 1 and text.endswith(f": {how}") for how, nodes in self._by_end.items())

    @property
    def first(self) -> str:
        """The node whose tasks ended first by themselves; torchrun's word is better, since it knows its ranks."""
        return self.root or (self.nodes.get(self.ends[0].node, "") if self.ends else "")

    def only(self, count: int) -> str:
        """The node of the tasks that failed, where those of one node alone did, and no more lines say so than it has
        tasks."""
        failed = {end.node for end in self.ends}
        tasks = sum(end.tasks for end in self.ends)
        return self.nodes.get(failed.pop(), "") if self.count > 1 and len(failed) == 1 and count <= tasks else ""


def _cause(hit: Hit, place: _Place, closing: Sequence[Suspected], weak: Sequence[Finding], *, lived: bool) -> Suspected:
    row, words = hit.row, _words(hit.line)
    advice, again, node = row.advice, row.again, "" if place.is_of_many(words) else place.node_in(words)
    if row.lived is not None and lived:
        advice, again = row.lived, row.advice
    if row.one_node is not None and (only := place.only(hit.count)):
        advice, again, node = row.one_node, row.advice, only
    if row.name == "shared memory" and (full := [one.node for one in weak if one.check == "shm"]):
        advice, again, node = Advice.ELSEWHERE, Advice.STOP, full[0]
    if advice in (Advice.ELSEWHERE, Advice.DRAIN) and row.cause in _HARDWARE:
        node = node or place.first
    if advice is Advice.DRAIN and not any(one.node == node for one in closing):
        advice = Advice.ELSEWHERE  # the node's own checks must agree
    return Suspected(row.cause, advice, f"log: {words}", node, again)


def _following(
    follow: Sequence[Hit], place: _Place, closing: Sequence[Suspected], weak: Sequence[Finding], *, alone: bool
) -> Iterator[Suspected]:
    """What follows from something else; where nothing else is known, the first of it has to do."""
    rest = sorted(follow, key=lambda hit: (hit.survived, hit.row.cause is CauseClass.UNKNOWN, hit.at))
    if alone and rest and not rest[0].survived:
        first = _cause(rest[0], place, closing, weak, lived=False)
        yield first if rest[0].row.cascade else _later(first)
        rest = rest[1:]
    for hit in rest[:_MOST_CAUSES]:
        yield Suspected(hit.row.cause, Advice.EARLIER, f"log: {_words(hit.line)}", place.node_in(_words(hit.line)))


def _later(one: Suspected) -> Suspected:
    """What would be a wrong configuration at the start is anything in a training that has run."""
    cause = CauseClass.PROGRAM if one.cause is CauseClass.CONFIGURATION else one.cause
    return structs.replace(one, cause=cause, advice=Advice.SAME, again=Advice.STOP)


def _is_cascade(hit: Hit, ran_s: float | None) -> bool:
    late = hit.row.early_s is not None and ran_s is not None and ran_s > hit.row.early_s
    return hit.row.cascade or late


def _distinct(found: Sequence[Hit]) -> list[Hit]:
    """The same text from many ranks is one."""
    first: dict[tuple[str, str], Hit] = {}
    for hit in found:
        text = _SAID.sub(" ", _DIGITS.sub("#", _words(hit.line)))
        first.setdefault((hit.row.name, text), hit)
    return list(first.values())


def _words(line: bytes) -> str:
    """A line for people: printable, and not longer than they read."""
    text = bare(line).decode("utf-8", errors="replace")
    return "".join(char if char.isprintable() else "?" for char in text)[:_MOST_CHARS]
