"""What a phase does about its findings, and in which words it tells Slurm. Pure."""

from __future__ import annotations

from typing import Sequence, Tuple

from fleetctl.health.checks import CHECKS
from fleetctl.health.model import CLOSING, Care, Decision, Finding, Mark, Outcome
from fleetctl.health.record import NamedTuple

PREFIX = "fleetctl: "  # what starts so is a reason of ours
MOST_REASON = 200  # characters: sinfo and squeue cut longer ones anyway
# Slurm takes a reason's outer quotes away, and its listings are split at "=" and "|" by many a script.
_AWAY = {ord('"'): "'", ord("`"): "'", ord("="): ":", ord("|"): "/", ord("\\"): "/"}


class Choice(NamedTuple):
    """`closing` are the findings that keep jobs away, the worst first."""

    decision: Decision
    reason: str
    closing: Tuple[Finding, ...]

    @property
    def lost(self) -> bool:
        """A GPU is gone: such a node is closed whatever the fleet's budget says."""
        return any(finding.mark is Mark.LOST_GPU for finding in self.closing)


def decide(findings: Sequence[Finding]) -> Choice:
    """Whether these findings keep jobs away from the node."""
    closing = tuple(sorted((f for f in findings if closes(f)), key=_rank))
    if closing:
        return Choice(Decision.DRAIN, reason_of(closing, _gpus(findings)), closing)
    noted = any(f.outcome is not Outcome.PASS and f.care is not Care.IGNORE for f in findings)
    return Choice(Decision.NOTED if noted else Decision.CLEAN, "", ())


def closes(finding: Finding) -> bool:
    """Whether no job may start while this stands."""
    return finding.outcome is not Outcome.PASS and finding.care >= CLOSING


def without_budget(choice: Choice, why: str) -> Tuple[Choice, Finding]:
    """The same findings where the fleet's budget allows no drain, and the finding that says so."""
    words = f"the node stays open: {why}; it would be drained for: {choice.reason[len(PREFIX) :]}"
    note = Finding("budget", Outcome.FAIL, "node", "node", words, care=Care.WATCH)
    return choice._replace(decision=Decision.NO_BUDGET), note


def reason_of(closing: Sequence[Finding], gpus: int = 0) -> str:
    """`fleetctl: GPU 3 (0000:1b:00.0) fell off the bus [off_the_bus: reboot the node] (+2 more)`: one line of printable
    ASCII. What all GPUs suffer alike is said once.

    :param gpus: how many were looked at.
    """
    first = closing[0]
    alike = {f.part for f in closing if f.check == first.check and _template(f) == _template(first)}
    words, others = spoken(first), len(closing) - 1
    if _of_gpu(first) and _FEW < len(alike) == gpus:
        every = f"all {gpus} GPUs"
        words = spoken(first._replace(subject=every, words=_template(first).replace(_HOLE, every)))
        words = f"each of {words}" if first.words.startswith(first.subject) else words
        others = len(closing) - len(alike)
    remedy = remedy_of(first)
    remedy = remedy.replace("the GPU", "the GPUs") if others < len(closing) - 1 else remedy
    tail = f" [{plain(first.check)[:40]}{': ' if remedy else ''}{remedy}]" + (f" (+{others} more)" if others else "")
    return PREFIX + _cut(plain(words), MOST_REASON - len(PREFIX) - len(tail)) + tail


_SAY_IT = frozenset({"nvml", "recovery_action"})  # what helps differs from case to case, and stands in the words
_FEW = 2  # so many GPUs of a job may be a part of the node's
_HOLE = "\0"


def _template(finding: Finding) -> str:
    return finding.words.replace(finding.subject, _HOLE) if finding.subject else finding.words


def _of_gpu(finding: Finding) -> bool:
    return finding.part.startswith("gpu/")


def _gpus(findings: Sequence[Finding]) -> int:
    return len({finding.part for finding in findings if _of_gpu(finding)})


def remedy_of(finding: Finding) -> str:
    """What a person does about it, in a few words; "" where nobody knows, or the finding's own words say it."""
    if finding.check in _SAY_IT:
        return ""
    remedy = CHECKS[finding.check].remedy if finding.check in CHECKS else ""
    if finding.care is Care.REBOOT:
        remedy = "reboot the node"
    elif finding.care is Care.RESET and _of_gpu(finding):
        remedy = "reset the GPU"
    return "" if remedy in finding.words else remedy


def spoken(finding: Finding) -> str:
    """The finding's words, led by the part that they are about where they do not name it."""
    named = finding.subject in ("", "node") or finding.subject in finding.words
    return finding.words if named else f"{finding.subject}: {finding.words}"


def plain(text: str) -> str:
    """One line of printable ASCII that Slurm keeps as it is."""
    kept = "".join(c if " " <= c <= "~" else " " if c.isspace() else "?" for c in text.translate(_AWAY))
    return " ".join(kept.split())


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3].rstrip() + "..."


def _rank(finding: Finding) -> Tuple[int, int, int]:
    """A lost GPU first, then what asks for most; what was measured before what could not be told."""
    return (
        0 if finding.mark is Mark.LOST_GPU else 1,
        -int(finding.care),
        0 if finding.outcome is Outcome.FAIL else 1,
    )
