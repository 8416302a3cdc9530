"""Why an attempt ended, by all that is known about it: causes with their evidence, the likeliest first. Pure.

What the head of the run saw and did comes first, then Slurm's word, then the exit status. Findings of node checks
refine what those leave open: a program that fails on a node whose GPU has just died did not fail by itself. A
decision of a person or of the scheduler is never explained away by a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from fleetctl.accounting.causes import DECIDED, ENDED_WELL, HARDWARE, Cause, Ranked, exit_class
from fleetctl.accounting.model import NodeEvent

NEAR_MS = 900_000  # a finding of the same end: the epilog and three periodic looks of five minutes (ours)
_SLURM = "Slurm: "
_MARKS = "*~#!%$@^-+"  # sinfo(1), NODE STATE CODES
_MOST = 12  # causes of one ending that are kept
_MOST_WORDS = 300

# What a failed check of health.checks says about where the fault lies
PARTS: Mapping[Cause, frozenset[str]] = {
    Cause.NETWORK: frozenset({"port_state", "port_rate", "port_width", "port_counters", "port_errors", "nic_log"}),
    Cause.STORAGE: frozenset({"file_systems", "file_space"}),
    Cause.GPU: frozenset(
        {
            "nvml",
            "gpu_count",
            "gpu_lost",
            "recovery_action",
            "ecc_mode",
            "ecc_volatile",
            "ecc_sram",
            "row_remap_pending",
            "row_remap_failure",
            "row_remap_count",
            "retired_pages",
            "retired_pending",
            "pcie_width",
            "pcie_generation",
            "nvlink_state",
            "nvlink_errors",
            "fabric",
            "p2p",
            "xid",
            "sxid",
            "off_the_bus",
        }
    ),
}
CLOSING = ("reset", "reboot", "drain", "human")  # health.model.Care from RESET on: no job may start on the node

# Endings of rundir.model.Ending that say all by themselves; the others are looked at below
_BY_ENDING: Mapping[str, Cause] = {
    "stopped_early": Cause.STOPPED_EARLY,
    "node_lost": Cause.NODE,
    "fenced": Cause.FENCED,
    "hung": Cause.HANG,
}
# Where the head saw why, before Slurm did anything
_SEEN = frozenset({"failed", "node_lost", "hung", "saved", "stopped_early"})
_BY_SAVE: Mapping[str, Cause] = {"time limit": Cause.TIME_LIMIT, "preemption": Cause.PREEMPTED}
_UNTOLD = Ranked(Cause.UNKNOWN, "nothing tells why it ended")
_NOTHING = {"told": Ranked(Cause.UNKNOWN, "Slurm told the job to end, and has not said why")}


class Told(Struct, frozen=True):
    """How an attempt ended, by the run's own record.

    `ending` is a rundir.model.Ending, or "" where nobody could write it down. `lost` are nodes that the node watch saw
    die, each with its evidence; `saved_for` is why the training was asked to save; `cancelled_by` is who asked for a
    cancel, "" if nobody did; `hung_on` is the node whose rank the others waited for in a hang, "" where
    that is not known.
    """

    at_ms: int
    ending: str
    failure: str = ""
    status: int | None = None
    lost: tuple[tuple[str, str], ...] = ()
    saved_for: str = ""
    cancelled_by: str = ""
    hung_on: str = ""


class Said(Struct, frozen=True):
    """What Slurm's accounting says of one record that has ended: the columns of `job_records` of these names."""

    cause: str
    state: str
    state_by: int | None
    exit_status: int | None
    exit_signal: int | None
    failed_node: str


class Found(Struct, frozen=True):
    """One failed check of a node, near the end of an attempt on it. `care` is a name of health.model.Care."""

    node: str
    at_ms: int
    check: str
    care: str
    words: str


def rank(
    told: Told, records: Iterable[Said], findings: Iterable[Found], events: Iterable[NodeEvent]
) -> tuple[Ranked, ...]:
    """The causes of an attempt's end, the likeliest first: at least one, and the same for any order of the inputs.

    `records` are those of Slurm that ended with this attempt, none where another attempt of the run followed within
    them or Slurm's word is not here yet. `findings` and `events` are those of its nodes; what is not near its end
    does not count.
    """
    slurm, own = sorted(_slurm_words(records), key=_weight), _own_words(told)
    # What the head saw explains why the job was requeued or cancelled after it: it may have asked for that itself.
    decided = [one for one in slurm if one.cause in DECIDED]
    after = decided if told.ending in _SEEN else []
    first = [one for one in slurm if one.cause is Cause.OUT_OF_MEMORY]
    first += [one for one in [*([] if after else decided), *own] if one.cause in DECIDED]
    rest = [one for one in [*own, *slurm] if one.cause not in DECIDED]
    strong, weak = _found(told, findings)
    ranked = [*first, *rest, *strong] if first else [*strong, *rest]
    found = _once([*ranked, *_went_down(told, events), *after, *weak])
    return tuple(found[:_MOST]) or (_NOTHING.get(told.ending, _UNTOLD),)


def _slurm_words(records: Iterable[Said]) -> Iterator[Ranked]:
    for record in records:
        cause = _known(record.cause)
        if cause is Cause.GOING_ON or cause in ENDED_WELL or cause is Cause.UNKNOWN:
            continue
        by = f" by uid {record.state_by}" if record.state_by is not None else ""
        code = "" if record.exit_status is None else f", {record.exit_status}:{record.exit_signal or 0}"
        yield _ranked(cause, f"{_SLURM}{record.state}{by}{code}", record.failed_node)


def _weight(one: Ranked) -> tuple[object, ...]:
    """Of several parts of one job, what took all of them down comes before what followed from it."""
    return (one.cause not in DECIDED, one.cause not in HARDWARE, one.cause, one.node, one.evidence)


def _own_words(told: Told) -> list[Ranked]:
    lost = [_ranked(Cause.NODE, f"lost: {evidence}", node) for node, evidence in sorted(told.lost)]
    asked = _BY_SAVE.get(told.saved_for)
    if told.ending == "saved" and asked is not None:
        return [_ranked(asked, f"saved for the {told.saved_for}"), *lost]
    if told.ending == "told":
        cancel = [_ranked(Cause.CANCELLED_BY_USER, f"cancel asked by {told.cancelled_by}")] if told.cancelled_by else []
        return [*cancel, *lost, *([_ranked(asked, f"asked to save: {told.saved_for}")] if asked else [])]
    if told.ending in _BY_ENDING:
        cause = _BY_ENDING[told.ending]
        return [*lost, _ranked(cause, told.failure or told.ending.replace("_", " "), told.hung_on)]
    if told.status is None:
        return lost
    cause = exit_class(told.status, None)
    cause = Cause.PROGRAM if cause is Cause.PROGRAM_OR_SIGNAL else cause  # the head's statuses are whole: 9 is 9
    own = [] if cause is Cause.COMPLETED else [_ranked(cause, told.failure or f"status {told.status}")]
    return [*lost, *own]


def _found(told: Told, findings: Iterable[Found]) -> tuple[list[Ranked], list[Ranked]]:
    """What was found on nodes near the end: what keeps jobs away from them, and what is only worth a look."""
    near = [one for one in findings if abs(one.at_ms - told.at_ms) <= NEAR_MS]
    near.sort(key=lambda one: (-_care(one), abs(one.at_ms - told.at_ms), one.node, one.check, one.words))
    strong = [_ranked(part_of(one.check), f"{one.check}: {one.words}", one.node) for one in near if _care(one) >= 0]
    weak = [_ranked(part_of(one.check), f"{one.check}: {one.words}", one.node) for one in near if _care(one) < 0]
    return strong, weak


def _went_down(told: Told, events: Iterable[NodeEvent]) -> list[Ranked]:
    """Nodes that Slurm called DOWN near the end, the nearest first."""
    apart = [(abs(event.started_s * 1000 - told.at_ms), event.node, event.state, event.reason) for event in events]
    down = sorted(one for one in apart if one[0] <= NEAR_MS and _is_down(one[2]))
    return [_ranked(Cause.NODE, f"{state}: {reason}", node) for _, node, state, reason in down]


def _is_down(state: str) -> bool:
    """Among the words of a node's state, each with the marks that Slurm puts behind it: POWERED_DOWN saves power."""
    return "DOWN" in (word.rstrip(_MARKS) for word in state.upper().split("+"))


def _care(one: Found) -> int:
    return CLOSING.index(one.care) if one.care in CLOSING else -1


def part_of(check: str) -> Cause:
    """Where the fault lies that this check of health.checks found."""
    return next((cause for cause, checks in PARTS.items() if check in checks), Cause.HOST)


def _known(word: str) -> Cause:
    try:
        return Cause(word)
    except ValueError:  # of a newer fleetctl
        return Cause.UNKNOWN


def _ranked(cause: Cause, evidence: str, node: str = "") -> Ranked:
    return Ranked(cause, " ".join(evidence.split())[:_MOST_WORDS], node)


def _once(ranked: Iterable[Ranked]) -> list[Ranked]:
    """Each cause and node once, by its first evidence; one that names a node stands for the one without, too."""
    found: list[Ranked] = []
    for one in ranked:
        same = [index for index, other in enumerate(found) if other.cause is one.cause]
        if not same or (one.node and all(found[index].node not in ("", one.node) for index in same)):
            found.append(one)
        elif one.node and not found[same[0]].node:
            found[same[0]] = one
    return found
