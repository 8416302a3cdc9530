"""Why an attempt ended: causes by rank, each with a line of evidence, and a name for the failure. Pure.

Slurm's word comes first: a program can print anything. Then what the run's own record and the checks of its nodes say,
then the losses, then the log, whose earliest line that does not follow from another one names the cause; then the exit
status. The name, or fingerprint, has no node in it: the same failure elsewhere has the same one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from fleetctl.recovery.classify_log import log_causes
from fleetctl.recovery.classify_slurm import own_words, slurm_words, statuses
from fleetctl.recovery.findings import found_near
from fleetctl.recovery.losses import onset
from fleetctl.recovery.model import Advice, CauseClass, Evidence, RunSeen, Suspected
from fleetctl.recovery.patterns import Patterns
from fleetctl.rundir.model import Attempt, Ending
from fleetctl.slurm.hosts import expand

_MOST = 12  # causes of one end that are kept
_MOST_NAME = 200  # characters of a fingerprint
_UNKNOWN = CauseClass.UNKNOWN
# What explains that Slurm told a job to end; all else in its log then follows from that
_FROM_OUTSIDE = frozenset(
    {
        CauseClass.CANCELLED,
        CauseClass.HOST_MEMORY,
        CauseClass.NODE,
        CauseClass.PREEMPTED,
        CauseClass.PROLOG,
        CauseClass.REQUEUED,
        CauseClass.TIME_LIMIT,
    }
)
_PATH = re.compile(r"/[^\s'\":,;()\[\]]+")
_HEX = re.compile(r"\b(?:0x[0-9a-f]+|(?=[a-f]*[0-9])[0-9a-f]{8,}(?:-[0-9a-f]{4,12})*)\b", re.I)
_NUMBERS = re.compile(r"[0-9]+(?:[-:.,/T+ ]+[0-9]+)*")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LABEL = re.compile(r"^(?:\[?(?:rank|default|Rank )?#\]?:?\s+)+")
_BLANKS = re.compile(r"\s+")


def classify(
    seen: RunSeen, attempt: Attempt, evidence: Evidence, patterns: Patterns
) -> tuple[tuple[Suspected, ...], str]:
    """The causes of the attempt's end, the likeliest first, and the fingerprint of the first. At least one cause."""
    nodes = nodes_of(attempt)
    lived = _lived(attempt)
    closing, weak = found_near(attempt, evidence, nodes)
    log = log_causes(attempt, evidence, patterns, nodes, closing, weak, lived=lived)
    causes = [
        *slurm_words(seen, attempt, evidence, lived=lived),
        *own_words(seen, attempt, evidence),
        *closing,
        *_losses(seen, attempt),
        *(one for one in log if attempt.ending is not Ending.TOLD or one.cause in _FROM_OUTSIDE),
        *statuses(attempt, evidence, weak),
    ]
    ranked = sorted(dict.fromkeys(causes), key=lambda one: (one.advice is Advice.EARLIER, one.cause is _UNKNOWN))
    if not ranked:
        ranked = [Suspected(_UNKNOWN, Advice.SAME, "nothing tells why it ended", again=Advice.ELSEWHERE)]
    first = ranked[0]
    return tuple(ranked[:_MOST]), fingerprint(first, nodes, (seen.run_id,))


def fingerprint(cause: Suspected, nodes: Iterable[str], volatile: Iterable[str] = ()) -> str:
    """The failure's name, the same on other nodes, ranks, ports and days."""
    text = cause.evidence.partition(": ")[2] or cause.evidence
    for word in volatile:
        text = text.replace(word, "")
    return f"{cause.cause.value}: {normal(text, frozenset(nodes))}"[:_MOST_NAME]


def normal(text: str, nodes: frozenset[str]) -> str:
    """A message without what differs between two times that it is told."""
    short = {node.partition(".")[0] for node in nodes} | nodes
    text = _WORD.sub(lambda match: "NODE" if match[0].rstrip(".-") in short else match[0], text)
    text = _PATH.sub(_file, text)
    text = _NUMBERS.sub("#", _HEX.sub("#", text))
    return _BLANKS.sub(" ", _LABEL.sub("", text)).strip()


def nodes_of(attempt: Attempt) -> tuple[str, ...]:
    """The nodes of the attempt's steps; its own host where they are not known."""
    try:
        found = expand(attempt.nodes)
    except ValueError:
        found = ()
    return found or ((attempt.host,) if attempt.host else ())


def _file(match: re.Match[str]) -> str:
    """A path's last part, if that is a file of a program; the rest differs between users, runs and nodes."""
    last = match[0].rpartition("/")[2]
    return f"PATH/{last}" if "." in last and not last.startswith(".") else "PATH"


def _lived(attempt: Attempt) -> bool:
    """Whether it saved something new."""
    return attempt.progress_step is not None and attempt.progress_step > (attempt.resume_step or 0)


def _losses(seen: RunSeen, attempt: Attempt) -> Iterator[Suspected]:
    pulse = seen.pulse
    if pulse is None or pulse.attempt != attempt.name or pulse.job_id != attempt.job_id:
        return
    step = onset(pulse.losses)
    if step is not None:
        words = f"pulse: the loss is no number since training step {step}"
        yield Suspected(CauseClass.NAN, Advice.OLDER, words, again=Advice.STOP)
