"""Collects the faults of the kernel log line by line, from where the last look ended, bounded. Pure.

Nearly every line is one that was read before, says nothing of interest, or says what was said before: each of these
is told as early and as cheaply as can be.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from fleetctl.health.kernel_fold import Key, fold_key, merge_events, same_but_numbers
from fleetctl.health.kernel_lines import (
    Line,
    decode,
    is_noise,
    is_of_interest,
    names_gpu,
    newest_of,
    parse_line,
    split_record,
)
from fleetctl.health.model import Event, EventKind

# Texts known by heart (a storm repeats a few), and faults told apart before they are folded more coarsely.
_MOST_KNOWN = 1024
_MOST_KNOWN_BYTES = 2048
_MOST_SLOTS = 2048
# "Fallen off the bus" as three records: the GPU is named two records before.
_NAMED_BEFORE = 3
_LOST_WORDS = "records of the kernel log were overwritten before they were read"
_UNREAD_WORDS = "the kernel log was not read to its end, the next look goes on there"


class _Slot:
    """One fault while the log is read: its first line, how often it came, from when and until when."""

    __slots__ = ("at_s", "count", "event", "last_s")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.count = 0
        self.at_s = event.at_s
        self.last_s = event.last_s

    def again(self, at_s: float, last_s: float, count: int = 1) -> None:
        self.count += count
        if at_s < self.at_s:  # the CPUs' clocks differ a little
            self.at_s = at_s
        if last_s > self.last_s:
            self.last_s = last_s


class Collected:
    """Takes lines in, keeps what they come to: bounded, however many there are."""

    def __init__(self, after: Optional[int], most: int) -> None:
        self.last = after
        self._after = after
        self._newest: Optional[int] = None  # the record read last, new or not
        self._most = most
        self._slots: Dict[Key, _Slot] = {}
        self._known: Dict[bytes, Optional[_Slot]] = {}
        self._alike: Dict[bytes, _Slot] = {}
        self._named: Optional[Tuple[int, str]] = None
        self._overwritten = False

    def has_new(self) -> bool:
        """Whether anything new was read."""
        return self.last != self._after

    def is_of_another_boot(self) -> bool:
        """Numbers begin anew at a boot: in the same one, what was read before cannot be above the last record."""
        return self._after is not None and self._newest is not None and self._newest < self._after

    def old_ones(self) -> int:
        """How many records are known to come before the first new one."""
        if self._after is None or self._newest is None or self.has_new():
            return 0
        return max(0, self._after - self._newest)

    def passed(self, count: int) -> None:
        """So many records of `old_ones` were passed by."""
        if self._newest is not None:
            self._newest += count

    def knows(self, lines: List[bytes]) -> bool:
        """Whether all of these lines of a file were read before: by the last one, numbers rise."""
        if self._after is None or self.has_new():
            return False
        newest = newest_of(lines)
        if newest is None or newest > self._after:
            return False
        self._newest = newest
        return True

    def overwritten(self) -> None:
        """Some records are gone: how many, the next one tells."""
        self._overwritten = True
        self._newest = None

    def unread(self, why: str, now_s: float) -> None:
        """The log goes on, and nobody has read it."""
        text = f"{_UNREAD_WORDS} ({why})"
        self._put(Event(self.last or 0, now_s, now_s, EventKind.LOST, None, None, text))

    def add_all(self, lines: List[bytes]) -> None:
        """Lines as they were written; those that are no records are left out."""
        for line in lines:
            self._add(line)

    def _add(self, line: bytes) -> None:
        record = split_record(line)
        if record is None:
            return
        facility, sequence, at_s, text = record
        self._newest = sequence
        if self.last is not None and sequence <= self.last:
            self._overwritten = False  # those were not new
            return
        self._count_lost(sequence, at_s)
        self.last = sequence
        if facility == 0 and is_of_interest(text) and not is_noise(text):
            self._take(sequence, at_s, text)

    def _count_lost(self, sequence: int, at_s: float) -> None:
        """Numbers are handed out without gaps: those between the last record and this one were not ours to read."""
        lost = 0 if self.last is None else sequence - self.last - 1
        if self._overwritten:
            lost = max(lost, 1)
            self._overwritten = False
        if lost:
            self._put(Event(sequence, at_s, at_s, EventKind.LOST, None, None, _LOST_WORDS, count=lost))

    def _take(self, sequence: int, at_s: float, text: bytes) -> None:
        if text in self._known:  # a storm says the same thing again and again
            slot = self._known[text]
            if slot is not None:
                slot.again(at_s, at_s)
            return
        alike = same_but_numbers(text)  # or with other numbers each time
        if alike is not None and alike in self._alike:
            self._alike[alike].again(at_s, at_s)
            self._know(text, self._alike[alike])
            return
        line = parse_line(decode(text))
        if line is None:
            self._look_for_name(sequence, text)
            self._know(text, None)
            return
        if line.kind is EventKind.OFF_THE_BUS and line.pci is None:
            line = self._name(line, sequence)
            self._put(_event(line, sequence, at_s))  # the text does not say which GPU: not to be known by heart
            return
        slot = self._put(_event(line, sequence, at_s))
        self._know(text, slot)
        if alike is not None and len(self._alike) < _MOST_KNOWN:
            self._alike[alike] = slot

    def _know(self, text: bytes, slot: Optional[_Slot]) -> None:
        if len(text) > _MOST_KNOWN_BYTES or text.startswith(b"NVRM: The NVIDIA GPU"):
            return
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[text] = slot

    def _look_for_name(self, sequence: int, text: bytes) -> None:
        if text.startswith(b"NVRM: The NVIDIA GPU"):
            pci = names_gpu(decode(text))
            self._named = None if pci is None else (sequence, pci)

    def _name(self, line: Line, sequence: int) -> Line:
        if self._named is None or sequence - self._named[0] > _NAMED_BEFORE:
            return line
        return line._replace(pci=self._named[1])

    def _put(self, event: Event) -> _Slot:
        key = fold_key(event.kind, event.pci, event.number, event.severity, event.text)
        if key not in self._slots and len(self._slots) >= _MOST_SLOTS:
            self._squeeze()
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = _Slot(event)
        slot.again(event.at_s, event.last_s, event.count)
        return slot

    def _squeeze(self) -> None:
        events = self.events()
        self._slots.clear()
        self._known.clear()
        self._alike.clear()
        for event in events:
            self._put(event)

    def events(self) -> Tuple[Event, ...]:
        """What was found, folded, in the order of the log."""
        found: List[Event] = [
            slot.event._replace(at_s=slot.at_s, last_s=slot.last_s, count=slot.count) for slot in self._slots.values()
        ]
        return merge_events((), found, self._most)


def _event(line: Line, sequence: int, at_s: float) -> Event:
    return Event(sequence, at_s, at_s, line.kind, line.pci, line.number, line.text, line.process, line.severity)
