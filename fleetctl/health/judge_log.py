"""Findings from what the kernel logged. Pure.

Only what is recent, not yet acted upon and of a GPU that is asked about keeps jobs away. The rest of what would is
still told, as something to watch: nobody has mended it. A burst is one finding with its count.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from fleetctl.health.kernel_care import ask_of
from fleetctl.health.model import CLOSING, Care, Event, EventKind, Finding, Mark, Outcome, Phase, Readings
from fleetctl.health.record import NamedTuple
from fleetctl.health.xid import ADVICE, LOST, XidTable, xid_opinion

CHECK: Dict[EventKind, str] = {
    EventKind.XID: "xid",
    EventKind.SXID: "sxid",
    EventKind.OFF_THE_BUS: "off_the_bus",
    EventKind.NIC: "nic_log",
    EventKind.NVME: "nvme_log",
    EventKind.READ_ONLY: "read_only",
    EventKind.MEMORY: "memory_log",
    EventKind.STUCK: "stuck_log",
    EventKind.OOM: "oom",
    EventKind.LOST: "log_lost",
}
APP_XIDS = "app_xids"
APP_WINDOW_S = 7 * 86400.0
# Checks that read the log, which forgets: their silence proves nothing until the node has been started anew.
LOGGED: FrozenSet[str] = frozenset(CHECK.values()) | {APP_XIDS}

_OF_GPU = (EventKind.XID, EventKind.OFF_THE_BUS)
_SUBJECT = {EventKind.SXID: "NVSwitch", EventKind.NIC: "network card", EventKind.NVME: "NVMe disk"}
_PART = {EventKind.SXID: "nvswitch", EventKind.NIC: "nic", EventKind.NVME: "nvme"}
# Whose `says` completes a name.
_NAMED = (*_OF_GPU, *_SUBJECT)


class LogRules(NamedTuple):
    """The limits.

    `xid_window_s`: an event counts for so long, in seconds (gpud and Azure: hours; one hour as deepops).
    `app_jobs`: as many jobs with the same Xid of an application on one GPU make the GPU suspect, if they had it within
    `app_window_s` (ours): a GPU that goes bad fails the jobs of a week; two programs with a bug, years apart, say
    nothing of it.
    `noise_s`: seconds after the boot in which non-fatal SXids are the driver's loading.
    `phase`: when the log is looked at.
    """

    xid_window_s: float = 3600.0
    app_jobs: int = 2
    app_window_s: float = APP_WINDOW_S
    noise_s: float = 300.0
    phase: Phase = Phase.HAND


class _Told(NamedTuple):
    """One event with what it comes to."""

    event: Event
    care: Care
    says: str
    remark: str


def judge_log(
    readings: Readings,
    table: XidTable,
    asked_pcis: Optional[FrozenSet[str]],
    rules: LogRules = LogRules(),  # noqa: B008 - a tuple of numbers
    app_xids: Mapping[str, Sequence[Tuple[str, float]]] = {},
) -> Tuple[Finding, ...]:
    """One finding for each part and number that the log complains about, the worst first, then those that pass.

    :param asked_pcis: the GPUs that are asked about, as `0000:1b:00`: those of others are only watched. None: all.
    :param app_xids: `0000:1b:00/31` -> the jobs that had that Xid there, and when (seconds since the epoch).
    """
    if readings.events is None:
        return _unread(rules)
    groups: Dict[Tuple[str, str, Optional[int]], List[_Told]] = {}
    for told in _told(readings, table, asked_pcis, rules):
        key = (CHECK[told.event.kind], _part(told.event), told.event.number)
        groups.setdefault(key, []).append(told)
    names = _names(readings)
    # A fault before the driver's verdict about it: the first of equals becomes the reason of a drain.
    ordered = sorted(groups, key=lambda key: (key[2] == ADVICE, key[0], key[1], key[2] or 0))
    found = [_finding(key[0], key[1], groups[key], names) for key in ordered]
    found += _suspects(_lately(app_xids, readings.at, rules.app_window_s), rules, names, asked_pcis)
    found += [Finding("site", Outcome.FAIL, "node", "node", words, care=Care.WATCH) for words in table.complaints]
    found.sort(key=lambda finding: -finding.care)
    return (*found, *_passes(found, names, asked_pcis))


def _unread(rules: LogRules) -> Tuple[Finding, ...]:
    """Nothing can be told. Where the log is closed to us (a container) each job need not hear so."""
    care = Care.IGNORE if rules.phase in (Phase.PROLOG, Phase.EPILOG) else Care.WATCH
    words = "the kernel log could not be read"
    first = Finding("xid", Outcome.CANNOT_TELL, "node", "node", words, care=care)
    others = (check for check in (*CHECK.values(), APP_XIDS) if check != "xid")
    return (first, *(Finding(check, Outcome.CANNOT_TELL, "node", "node", words) for check in others))


def _told(
    readings: Readings, table: XidTable, asked_pcis: Optional[FrozenSet[str]], rules: LogRules
) -> Iterable[_Told]:
    """What each event comes to, without those that mean nothing, or meant little and are old."""
    events = readings.events or ()
    recent = readings.uptime_s - rules.xid_window_s
    # An old event that nobody acted upon says nothing about a new one.
    others = tuple(e for e in events if e.last_s > recent or e.told)
    for event in events:
        if event.kind is EventKind.XID:
            care, says, remark = xid_opinion(event, table, others)
        else:
            (care, says), remark = ask_of(event, table.site, rules.noise_s), ""
        stale = "it was acted upon before" if event.told else "" if event.last_s > recent else "some time ago"
        if stale and care >= CLOSING:
            care, remark = Care.WATCH, stale
        elif stale:
            continue
        elif care >= CLOSING and not _is_asked(event, asked_pcis):
            care, remark = Care.WATCH, "it is not a GPU of this job"
        if care is not Care.IGNORE:
            yield _Told(event, care, says, remark)


def _is_asked(event: Event, asked_pcis: Optional[FrozenSet[str]]) -> bool:
    return asked_pcis is None or event.kind not in _OF_GPU or event.pci is None or event.pci in asked_pcis


def _finding(check: str, part: str, group: Sequence[_Told], names: Mapping[str, str]) -> Finding:
    """The worst of them speaks, the latest of equals; the count is of all that still count."""
    worst = max(group, key=lambda told: (told.care, told.event.last_s, told.event.sequence))
    event = worst.event
    subject = names.get(part) or _subject(event)
    words = f"{subject} {worst.says}" if event.kind in _NAMED else worst.says
    times = sum(told.event.count for told in group)
    if times > 1 and event.kind is not EventKind.LOST and event.number != ADVICE:
        words += f", {times} times"
    if worst.remark:
        words += f"; {worst.remark}"
    gone = event.kind is EventKind.OFF_THE_BUS or event.number == LOST
    mark = Mark.LOST_GPU if gone and worst.care >= CLOSING else Mark.NONE
    return Finding(check, Outcome.FAIL, subject, part, words, value=times, unit="times", care=worst.care, mark=mark)


def _subject(event: Event) -> str:
    if event.kind in _OF_GPU:
        return "a GPU" if event.pci is None else f"GPU {event.pci}"
    kind = _SUBJECT.get(event.kind)
    if kind is None:
        return "node"
    return f"{'an' if kind[0] == 'N' else 'a'} {kind}" if event.pci is None else f"{kind} {event.pci}"


def _part(event: Event) -> str:
    """The stable key. Kernel lines leave the function out; that of a GPU, a card or a disk is 0."""
    kind = "gpu" if event.kind in _OF_GPU else _PART.get(event.kind)
    return "node" if kind is None or event.pci is None else f"{kind}/{event.pci}.0"


def _names(readings: Readings) -> Dict[str, str]:
    """The part of each GPU that is known -> its name for a person."""
    names: Dict[str, str] = {}
    for device in readings.devices or ():
        if device.kind == "gpu":
            names[f"gpu/{device.link.address}"] = f"GPU {device.link.address.rpartition('.')[0]}"
    for gpu in () if readings.nvml is None else readings.nvml.gpus:
        if gpu.pci is not None:
            names[f"gpu/{gpu.pci}"] = f"GPU {gpu.index} ({gpu.pci.rpartition('.')[0]})"
    return names


def _pci_of(part: str) -> str:
    return part.partition("/")[2].rpartition(".")[0]


def _lately(
    app_xids: Mapping[str, Sequence[Tuple[str, float]]], now: float, within_s: float
) -> Dict[str, FrozenSet[str]]:
    """The jobs that still count. A time to come is as far off as one gone by: the clock was set."""
    return {key: frozenset(job for job, at in jobs if abs(now - at) <= within_s) for key, jobs in app_xids.items()}


def _suspects(
    app_xids: Mapping[str, FrozenSet[str]],
    rules: LogRules,
    names: Mapping[str, str],
    asked_pcis: Optional[FrozenSet[str]],
) -> List[Finding]:
    """GPUs on which programs of several jobs failed alike: then the GPU may be the cause."""
    found = []
    for key, jobs in sorted(app_xids.items()):
        pci, _, number = key.partition("/")
        several = len(jobs)
        if several < rules.app_jobs or not (asked_pcis is None or pci in asked_pcis):
            continue
        part = f"gpu/{pci}.0"
        subject = names.get(part, f"GPU {pci}")
        words = f"{subject} had Xid {number} in {several} different jobs: the GPU may be the cause, not the programs"
        found.append(
            Finding(APP_XIDS, Outcome.FAIL, subject, part, words, several, rules.app_jobs - 1, "jobs", Care.WATCH)
        )
    return found


def _passes(
    found: Iterable[Finding], names: Mapping[str, str], asked_pcis: Optional[FrozenSet[str]]
) -> Iterable[Finding]:
    """What was looked at and is well: each GPU that is asked about for the checks of GPUs, else the node as a whole."""
    failed = {(finding.check, finding.part) for finding in found}
    gpus = [(part, name) for part, name in names.items() if asked_pcis is None or _pci_of(part) in asked_pcis]
    words = "the kernel log names no fault"
    for check in (*CHECK.values(), APP_XIDS):
        of_gpus = check in ("xid", "off_the_bus", APP_XIDS)
        for part, name in (gpus if of_gpus else ()) or [("node", "node")]:
            if (check, part) not in failed:
                yield Finding(check, Outcome.PASS, name, part, words, value=0, unit="times")


def app_keys(events: Iterable[Event], table: XidTable, since_s: float) -> Tuple[str, ...]:
    """The keys (`0000:1b:00/31`) of the Xids of applications since then: what a job that ends is remembered with.

    :param since_s: CLOCK_MONOTONIC when the job began.
    """
    keys = set()
    for event in events:
        entry = table.entries.get(event.number or 0) if event.kind is EventKind.XID else None
        if entry is not None and entry.care is Care.APP and event.pci is not None and event.last_s >= since_s:
            keys.add(f"{event.pci}/{event.number}")
    return tuple(sorted(keys))


def mark_told(events: Iterable[Event], drained: Iterable[Tuple[str, str]]) -> Tuple[Event, ...]:
    """The events, those marked that a drain is about, so that they do not drain the node again once it is back.

    :param drained: the (check, part) of the findings that closed the node.
    """
    parts = frozenset(drained)
    return tuple(e._replace(told=True) if (CHECK[e.kind], _part(e)) in parts else e for e in events)
