"""Faults of the kernel log folded: one event for the same fault however often it was logged. Pure.

A storm of 800,000 lines was seen with 29 different ones in it.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, Iterable, List, Optional, Tuple

from fleetctl.health.model import Event, EventKind

Key = Tuple[object, ...]

# What differs from line to line of one fault: numbers that stand alone, addresses, registers.
_NUMBERS = r"(?<![\w-])(?:0x[0-9a-fA-F]+|[0-9a-fA-F]{8,}|\d+)\b"
_NUMBERS_RAW = _NUMBERS.encode("ascii")
_MOST_ALIKE_BYTES = 256  # within what is kept of a text
# Of Xid 74 and 144 to 150 the registers say how bad it is. The first two of the later ones do (intrInfo,
# errorStatus); what follows them is debug data, which differs each time.
_NVLINK = 74
_NVLINK5 = range(144, 151)
_REGISTERS_COUNT = frozenset(str(number).encode("ascii") for number in (_NVLINK, *_NVLINK5))
# By how a record begins: what ends the part of it that names a GPU, a switch, a card or a disk, and a number of theirs.
# The others name none.
_NAMES_END = {b"NVRM": b",", b"nvid": b",", b"mlx5": b": ", b"nvme": b": "}
_TWO_REGISTERS = r"[^(\[]*[(\[]0x[0-9a-fA-F]+[ ,]+0x[0-9a-fA-F]+"
# Which events go on being told apart when there are too many.
_WORST_FIRST = (
    EventKind.OFF_THE_BUS,
    EventKind.XID,
    EventKind.SXID,
    EventKind.MEMORY,
    EventKind.NVME,
    EventKind.READ_ONLY,
    EventKind.NIC,
    EventKind.STUCK,
    EventKind.OOM,
    EventKind.LOST,
)
_RANK = {kind: rank for rank, kind in enumerate(_WORST_FIRST)}
# Room for each kind once told and once not, and as much for events by themselves.
LEAST_ROOM = 4 * len(EventKind)


def fold_key(kind: EventKind, pci: Optional[str], number: Optional[int], severity: Optional[str], text: str) -> Key:
    """Two lines with the same key are the same fault."""
    return kind, pci, number, severity, _words(kind, number, text)


def _words(kind: EventKind, number: Optional[int], text: str) -> str:
    if kind is EventKind.XID and number == _NVLINK:
        return text
    if kind is EventKind.XID and number in _NVLINK5:
        found = re.match(_TWO_REGISTERS, text)
        return text if found is None else found[0]
    return re.sub(_NUMBERS, "#", text)


def same_but_numbers(text: bytes) -> Optional[bytes]:
    """A record of interest without the numbers behind what names its part: records that are the same then have the
    same fold_key. None: one that must be parsed. It saves most of the time that a storm takes."""
    if len(text) > _MOST_ALIKE_BYTES:
        return None
    ends = _NAMES_END.get(text[:4])
    if ends is None:
        return re.sub(_NUMBERS_RAW, b"#", text)
    head, end, rest = text.partition(ends)
    if not end or (text[:4] == b"NVRM" and not _is_plain_xid(head)):
        return None
    return head + end + re.sub(_NUMBERS_RAW, b"#", rest)


def _is_plain_xid(head: bytes) -> bool:
    return head.startswith(b"NVRM: Xid (") and head.rpartition(b" ")[2] not in _REGISTERS_COUNT


def merge_events(old: Iterable[Event], new: Iterable[Event], most: int) -> Tuple[Event, ...]:
    """Both together, the same faults folded, in the order of their first lines. No count is lost.

    Told and not told stay apart: a fault that comes again after a drain named it is a new one. Of more than `most`
    (at least LEAST_ROOM) the texts, then the parts are no longer told apart, the mildest first.
    """
    events = sorted([*old, *new], key=lambda event: event.sequence)
    room = max(most, LEAST_ROOM)
    found = _fold(events, _fine, _again)
    if len(found) > room:
        found = _fold(found, _coarse, _latest)
    if len(found) > room:
        found.sort(key=lambda event: (_RANK[event.kind], -event.last_s))
        kept = room - 2 * len(EventKind)
        found = found[:kept] + _fold(found[kept:], _kind, _blur)
    return tuple(sorted(found, key=lambda event: event.sequence))


def _fold(events: Iterable[Event], key: Callable[[Event], Key], join: Callable[[Event, Event], Event]) -> List[Event]:
    found: Dict[Key, Event] = {}
    for event in events:
        place = key(event)
        found[place] = join(found[place], event) if place in found else event
    return list(found.values())


def _fine(event: Event) -> Key:
    return (event.told, *fold_key(event.kind, event.pci, event.number, event.severity, event.text))


def _coarse(event: Event) -> Key:
    return event.told, event.kind, event.pci, event.number, event.severity


def _kind(event: Event) -> Key:
    return event.told, event.kind


def _again(first: Event, second: Event) -> Event:
    """The first line stands for both."""
    return first._replace(
        at_s=min(first.at_s, second.at_s), last_s=max(first.last_s, second.last_s), count=first.count + second.count
    )


def _latest(first: Event, second: Event) -> Event:
    """The words of the later one: of several Xid 154 the last one holds."""
    later = second if second.last_s >= first.last_s else first
    return _again(first, second)._replace(text=later.text, process=later.process)


def _blur(first: Event, second: Event) -> Event:
    """Different parts in one event: what they do not share is not told."""
    return _latest(first, second)._replace(
        pci=first.pci if first.pci == second.pci else None,
        number=first.number if first.number == second.number else None,
        severity=first.severity if first.severity == second.severity else None,
    )
