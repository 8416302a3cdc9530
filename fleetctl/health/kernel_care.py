"""What a line of the kernel log asks for that is no Xid: NVSwitch, network card, NVMe, file systems, memory. Pure.

The log says what happened once; ports, mounts and counters are looked at beside it and say how they are now. So a line
closes a node only where what it tells of does not heal by itself.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, Mapping, Optional

from fleetctl.health.model import Care, Event, EventKind
from fleetctl.health.record import NamedTuple

_MOST_SHOWN = 90  # characters of the kernel's own words: the rest of a drain reason must fit beside them

# Gone, or not answering since (nvme/host/pci.c). A time-out that led to a reset or an abort heals by itself.
_NVME_GONE = ("controller is down", "disabling device", "removing after", "aborting reset")
# Not of this node's own disks: images of containers, and disks of the network, whose server may have been away.
_NOT_LOCAL = r"\b(?:loop|nbd|rbd|sr|ram|zram)\d"
# The kernel dealt with it: the page is put aside, or nobody had read it yet (mm/memory-failure.c, mce/amd.c, ghes.c).
_DEALT_WITH = ("recoverable", "recovered", "no action required", "deferred")


class Ask(NamedTuple):
    """What a line asks for. `says` completes the name of its part, or stands alone where it names none (`node`)."""

    care: Care
    says: str


def ask_of(event: Event, site: Mapping[int, Care], noise_s: float) -> Ask:
    """What this event asks for; of one that is an Xid, nothing.

    :param site: the site's classes; a number of five digits is an SXid.
    :param noise_s: until so many seconds after the boot, non-fatal SXids are the driver's loading.
    """
    if event.kind is EventKind.SXID:
        return _sxid(event, site, noise_s)
    ask = _ASKS.get(event.kind)
    return Ask(Care.IGNORE, "") if ask is None else ask(event)


def _sxid(event: Event, site: Mapping[int, Care], noise_s: float) -> Ask:
    severity = (event.severity or _leading_severity(event.text) or "").lower()
    if severity == "fatal":
        # The switch stopped the link or itself: a reset of all GPUs of the node brings the fabric back.
        care, how = Care.RESET, "a fatal error"
    elif severity == "correctable":
        care, how = Care.IGNORE, "a corrected error"
    else:
        # At driver load each link says something non-fatal: noise (nvtrust#124).
        care, how = (Care.IGNORE if event.last_s < noise_s else Care.WATCH), "a non-fatal error"
    number = event.number or 0
    tail = f": {_shown(event.text)}" if event.text else ""
    return Ask(site.get(number, care), f"reports {how} (SXid {number}){tail}")


def _leading_severity(text: str) -> Optional[str]:
    first = text.split(",")[0].strip()
    return first if first in ("Fatal", "Non-fatal", "Correctable") else None


def _off_the_bus(event: Event) -> Ask:
    return Ask(Care.REBOOT, "has fallen off the bus")


def _nic(event: Event) -> Ask:
    """Power and heat are for the history: what they do to the port is seen at the port."""
    text = event.text.lower()
    if "access_reg" in text:  # counters of a port that a fabric manager owns were read: node_exporter#3434
        return Ask(Care.IGNORE, "refused to have a register read")
    if event.severity == "Fatal" and "leak of a command" not in text:
        return Ask(Care.DRAIN, f"reports that its firmware failed: {_shown(event.text)}")
    if "insufficient power" in text:
        return Ask(Care.WATCH, "does not get enough power")
    if "high temperature" in text:
        return Ask(Care.WATCH, "is too hot")
    return Ask(Care.WATCH, f"reports: {_shown(event.text)}")


def _nvme(event: Event) -> Ask:
    if any(words in event.text.lower() for words in _NVME_GONE):
        return Ask(Care.DRAIN, f"does not answer: {_shown(event.text)}")
    return Ask(Care.WATCH, f"reports: {_shown(event.text)}")


def _read_only(event: Event) -> Ask:
    away = re.search(_NOT_LOCAL, event.text) is not None
    return Ask(Care.WATCH if away else Care.DRAIN, f"a file system was made read-only: {_shown(event.text)}")


def _memory(event: Event) -> Ask:
    text = event.text.lower()
    if event.severity != "Uncorrected" or any(words in text for words in _DEALT_WITH):
        return Ask(Care.WATCH, f"the memory or a processor reports: {_shown(event.text)}")
    return Ask(Care.DRAIN, f"an error was not corrected: {_shown(event.text)}")


def _stuck(event: Event) -> Ask:
    return Ask(Care.WATCH, f"something hung in the kernel: {_shown(event.text)}")


def _oom(event: Event) -> Ask:
    return Ask(Care.APP, "the kernel ended a process because memory ran out")


def _lost(event: Event) -> Ask:
    if "not read" in event.text:  # there was no time for all of it
        return Ask(Care.WATCH, event.text)
    some = f"{event.count} records" if event.count > 1 else "records"
    return Ask(Care.WATCH, f"{some} of the kernel log were overwritten before they were read")


_ASKS: Dict[EventKind, Callable[[Event], Ask]] = {
    EventKind.OFF_THE_BUS: _off_the_bus,
    EventKind.NIC: _nic,
    EventKind.NVME: _nvme,
    EventKind.READ_ONLY: _read_only,
    EventKind.MEMORY: _memory,
    EventKind.STUCK: _stuck,
    EventKind.OOM: _oom,
    EventKind.LOST: _lost,
}


def _shown(text: str) -> str:
    """The kernel's words, short and printable."""
    plain = " ".join("".join(c if " " <= c <= "~" else " " for c in text[: 4 * _MOST_SHOWN]).split())
    return plain if len(plain) <= _MOST_SHOWN else plain[: _MOST_SHOWN - 3].rstrip() + "..."
