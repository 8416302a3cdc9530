"""What an Xid asks for: NVIDIA's table with our class for each number, a site's word, and the driver's own (154). Pure.

Who wins, the strongest first:

1. The site, for the number that it names: {"94": "reset"}.
2. The driver. Xid 154 tells what a GPU needs to recover; its latest text outranks the class of the numbers before it,
   and "None" clears them. A number that the site names keeps the site's class, but the 154 stands beside it as a
   finding of its own: to switch that off, the site must name 154 itself. What a person must look at, no 154 clears.
3. What the text says, for NVLink (74, 144-150): never the number alone.
4. The class of the number in xids.json.

Where the class differs from what others do, the `note` in xids.json says so.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from fleetctl.health.model import CLOSING, Care, Event, EventKind
from fleetctl.health.record import NamedTuple
from fleetctl.health.xid_link import NVLINK5, LinkRule, judge_nvlink, judge_nvlink5, load_link_rules

ADVICE = 154  # GPU_RECOVERY_ACTION_CHANGED
LOST = 79
NVLINK = 74
ECHO = 45  # cleanup after another error
_MOST_XID = 99999  # SXids, which a site may name as well, have five digits

# Texts of gpu.c in NVIDIA's open kernel module, by their numbers 0 to 5, and what nvml.h calls 6 and 7, which are known
# by their number alone; judge_gpu.py has the same for NVML's answer.
_ACTIONS = {
    "none": (Care.IGNORE, ""),
    "gpu reset required": (Care.RESET, "a GPU reset"),
    "node reboot required": (Care.REBOOT, "a reboot"),
    "drain p2p": (Care.RESET, "an end to peer-to-peer traffic and a GPU reset"),
    "drain and reset": (Care.RESET, "a drain and a GPU reset"),
    "recover imex domain": (Care.DRAIN, "a recovery of its IMEX domain"),
    "bus reset": (Care.RESET, "a reset of its PCIe bus"),
    "system reboot": (Care.REBOOT, "a reboot of the whole system"),
}
_ADVICE_TEXT = r"changed from 0x[0-9a-fA-F]+ \([^()]*\) to 0x([0-9a-fA-F]+) \(([^()]*)\)"


class Entry(NamedTuple):
    """One number. `says` completes "GPU 3 ...". The rest changes the class: seen more than once on the GPU
    (`repeated`), seen again after a drain of ours for it (`returned`), or beside another number (`beside`)."""

    says: str
    care: Care
    repeated: Optional[Care] = None
    returned: Optional[Care] = None
    beside: Mapping[int, Care] = {}


class XidTable(NamedTuple):
    """What is known. `site` is the site's word by number; `complaints` tell what of it made no sense, left out here."""

    entries: Mapping[int, Entry]
    site: Mapping[int, Care] = {}
    rules: Tuple[LinkRule, ...] = ()
    complaints: Tuple[str, ...] = ()


class Opinion(NamedTuple):
    """`says` completes "GPU 3 ...", `remark` is a clause of its own, or empty."""

    care: Care
    says: str
    remark: str = ""


class Advice(NamedTuple):
    """The latest Xid 154 of a GPU. `care` is None where its text is unknown. `asks` is what for, in words."""

    event: Event
    care: Optional[Care]
    asks: str


_UNKNOWN = Entry("reports an error that fleetctl does not know", Care.WATCH)


def load_xids(text: str, site: Mapping[str, str], links: str = "[]") -> XidTable:
    """The table.

    :param text: what is in xids.json.
    :param site: the site's classes by number: {"94": "reset"}. What makes no sense is left out and complained about.
    :param links: what is in link_rules.json. Without it, the severity decides about Xid 144-150.
    :raises ValueError: the package's own tables are damaged.
    """
    try:
        entries = {n: _entry(raw) for key, raw in json.loads(text).items() for n in _numbers(key)}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the table of Xids is damaged: {error!r}; install fleetctl again") from error
    cares, complaints = _site_cares(site)
    return XidTable(entries, cares, load_link_rules(links), complaints)


def _entry(raw: Any) -> Entry:
    repeated, returned = (_care(raw[key]) if key in raw else None for key in ("repeated", "returned"))
    beside = {int(number): _care(word) for number, word in raw.get("beside", {}).items()}
    return Entry(raw["says"], _care(raw["care"]), repeated, returned, beside)


def _care(word: str) -> Care:
    return Care[word.upper()]


def _numbers(key: str) -> Iterator[int]:
    """`40, 75-77` is 40, 75, 76, 77."""
    for part in key.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _site_cares(site: Mapping[str, str]) -> Tuple[Dict[int, Care], Tuple[str, ...]]:
    cares: Dict[int, Care] = {}
    complaints: List[str] = []
    words = ", ".join(care.name.lower() for care in Care)
    for key, word in site.items():
        number = int(key) if key.isascii() and key.isdigit() and len(key) <= len(str(_MOST_XID)) else 0
        if not number:
            complaints.append(f"xids: {key!r} is not the number of an Xid")
        elif not isinstance(word, str) or word.upper() not in Care.__members__:
            complaints.append(f"xids: {word!r} for {key} is none of {words}")
        else:
            cares[number] = _care(word)
    return cares, tuple(complaints)


def xid_care(event: Event, table: XidTable, others: Iterable[Event]) -> Tuple[Care, str]:
    """What this Xid asks for, and the words that complete "GPU 3 ..."."""
    opinion = xid_opinion(event, table, others)
    return opinion.care, opinion.says + (f"; {opinion.remark}" if opinion.remark else "")


def xid_opinion(event: Event, table: XidTable, others: Iterable[Event]) -> Opinion:
    """What this Xid asks for.

    :param others: what else was logged in this boot, of any kind and GPU; whether the event is among them does not
        matter. An event that is `told` is one that was acted upon.
    """
    number = event.number or 0
    same = [e for e in others if e.kind is EventKind.XID and e.pci == event.pci]
    if event not in same:
        same.append(event)
    advice = latest_advice(same)
    if number == ADVICE:
        return _of_advice(event, table, advice, same)
    entry = table.entries.get(number, _UNKNOWN)
    care, says, follows = _own(event, entry, table, same)
    named = f"{says} (Xid {number})" if number else says  # where too much was logged, numbers were lost in folding
    return _with_advice(event, table, Opinion(care, named), advice, follows)


def _own(event: Event, entry: Entry, table: XidTable, same: Sequence[Event]) -> Tuple[Care, str, bool]:
    """Class, words, and whether a 154 decides, of the event without regard to any 154."""
    number = event.number or 0
    times = sum(e.count for e in same if e.number == number)
    if number in NVLINK5:
        fault = judge_nvlink5(number, event.text, event.severity, table.rules)
    elif number == NVLINK:
        fault = judge_nvlink(event.text, times)
    else:
        care = table.site.get(number, _by_table(event, entry, times, same))
        return care, entry.says, False
    site = table.site.get(number)
    return (fault.care, fault.says, fault.follows) if site is None else (site, fault.says, False)


def _by_table(event: Event, entry: Entry, times: int, same: Sequence[Event]) -> Care:
    number = event.number or 0
    if number == ECHO:
        explained = "caused by previous Xid" in event.text or any(e.number not in (ECHO, ADVICE) for e in same)
        return Care.IGNORE if explained else entry.care
    beside = [care for other, care in entry.beside.items() if any(e.number == other for e in same)]
    if beside:
        return max(beside)
    if entry.returned is not None and any(e.number == number and e.told and _order(e) < _order(event) for e in same):
        return entry.returned
    return entry.repeated if entry.repeated is not None and times > 1 else entry.care


def latest_advice(same: Iterable[Event]) -> Optional[Advice]:
    """What the driver said last that this GPU needs; None: it said nothing.

    :param same: the Xids of one GPU, in any order.
    """
    events = [e for e in same if e.kind is EventKind.XID and e.number == ADVICE]
    if not events:
        return None
    event = max(events, key=_order)
    found = re.findall(_ADVICE_TEXT, event.text)
    if not found:
        return Advice(event, None, "")
    digits, text = found[-1]  # the last one: what comes before may be a process's name
    by_number = list(_ACTIONS.values())
    number = int(digits, 16)
    known = _ACTIONS.get(text.strip().lower()) or (by_number[number] if number < len(by_number) else None)
    care, asks = known or (Care.DRAIN, f"recovery action {number}, which fleetctl does not know")
    return Advice(event, care, asks)


def _order(event: Event) -> Tuple[float, int]:
    return (event.last_s, event.sequence)


def _of_advice(event: Event, table: XidTable, advice: Optional[Advice], same: Sequence[Event]) -> Opinion:
    """A 154 itself: only the latest counts."""
    says = table.entries.get(ADVICE, _UNKNOWN).says + f" (Xid {ADVICE})"
    if advice is None or advice.event != event or advice.care is Care.IGNORE:
        return Opinion(Care.IGNORE, says)
    if advice.care is None:
        return Opinion(table.site.get(ADVICE, Care.WATCH), says)
    causes = [e for e in same if e.number not in (ADVICE, ECHO) and _order(e) <= _order(event)]
    after = f", after Xid {max(causes, key=_order).number}" if causes else ""
    return Opinion(table.site.get(ADVICE, advice.care), f"needs {advice.asks}, says its driver (Xid {ADVICE}{after})")


def _with_advice(event: Event, table: XidTable, own: Opinion, advice: Optional[Advice], follows: bool) -> Opinion:
    """The opinion under what the driver said after this event, or at once with it."""
    if advice is None or advice.care is None or _order(advice.event) < _order(event):
        return own
    closes = CLOSING <= own.care < Care.HUMAN
    if advice.care is Care.IGNORE:
        cleared = f"its driver has cleared it since (Xid {ADVICE})"
        return Opinion(Care.WATCH, own.says, cleared) if closes else own
    named_by_site = event.number in table.site or ADVICE in table.site
    if named_by_site or advice.event.told or not (closes or follows):
        return own
    return Opinion(advice.care, own.says, f"its driver asks for {advice.asks} (Xid {ADVICE})")
