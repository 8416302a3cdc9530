"""Whatever the kernel logs, in whatever order and however folded, a node is closed for the same reasons."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.health.judge_log import judge_log
from fleetctl.health.model import CLOSING, Care, Event, EventKind, Finding
from fleetctl.health.xid import ADVICE, XidTable, load_xids, xid_care
from tests.unit.health.logged import CLEARED, NOW, OTHER, PCI, REBOOT, RESET, package_data, readings, table

_TABLE = table()
_DECODED = {74, *range(144, 151), ADVICE}
_HARMLESS = sorted(n for n, entry in _TABLE.entries.items() if entry.care < CLOSING and n not in _DECODED | {61})
_ANY = st.sampled_from(sorted(_TABLE.entries))
_HARMLESS_TEXTS = ["", "Ch 00000008", "RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x040868e2 0x00000008)", CLEARED]
_TEXTS = [
    *_HARMLESS_TEXTS,
    RESET,
    REBOOT,
    "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)",
    "fatal error on link 3",
]
_PCIS = st.sampled_from([PCI, OTHER, None])


def _xids(numbers: st.SearchStrategy[int], texts: list[str]) -> st.SearchStrategy[list[Event]]:
    """Xids of the last hour, each at a moment of its own."""
    what = st.tuples(numbers, st.sampled_from(texts), _PCIS, st.integers(1, 900))

    def place(drawn: list[tuple[int, str, str | None, int]]) -> list[Event]:
        start = NOW - 3000
        return [
            Event(at, start + at, start + at, EventKind.XID, pci, number, text, count=count)
            for at, (number, text, pci, count) in enumerate(drawn)
        ]

    return st.lists(what, max_size=12).map(place)


def _worst(events: list[Event], of: XidTable = _TABLE, asked: frozenset[str] | None = None) -> dict[str, Care]:
    """The worst care of each part."""
    worst: dict[str, Care] = {}
    for finding in _findings(events, of, asked):
        worst[finding.part] = max(worst.get(finding.part, Care.IGNORE), finding.care)
    return worst


def _findings(events: list[Event], of: XidTable = _TABLE, asked: frozenset[str] | None = None) -> tuple[Finding, ...]:
    return judge_log(readings(events), of, asked)


def _folded(events: list[Event]) -> list[Event]:
    """As the reader of the log folds the same faults."""
    kept: dict[tuple[object, ...], Event] = {}
    for event in events:
        key = (event.pci, event.number, event.text)
        first = kept.get(key)
        kept[key] = event if first is None else first._replace(last_s=event.last_s, count=first.count + event.count)
    return list(kept.values())


@settings(deadline=None)
@given(_xids(st.sampled_from(_HARMLESS), _TEXTS))
def test_what_has_no_closing_class_closes_nothing_however_much_there_is(events: list[Event]) -> None:
    assert max(_worst(events).values(), default=Care.IGNORE) < CLOSING


@settings(deadline=None)
@given(_xids(st.sampled_from(sorted({*_HARMLESS, *_DECODED})), _HARMLESS_TEXTS))
def test_nor_does_what_is_decoded_to_something_harmless(events: list[Event]) -> None:
    assert max(_worst(events).values(), default=Care.IGNORE) < CLOSING


@settings(deadline=None)
@given(_xids(_ANY, _TEXTS), st.randoms(use_true_random=False))
def test_the_order_of_reading_does_not_matter(events: list[Event], random: object) -> None:
    shuffled = list(events)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert _findings(shuffled) == _findings(events)


@settings(deadline=None)
@given(_xids(_ANY, _TEXTS))
def test_folding_changes_no_care_and_loses_no_count(events: list[Event]) -> None:
    assert _worst(_folded(events)) == _worst(events)


@settings(deadline=None)
@given(_xids(_ANY, _TEXTS))
def test_a_prolog_closes_for_no_gpu_that_it_does_not_ask_about(events: list[Event]) -> None:
    mine = _worst(events, asked=frozenset({PCI}))
    assert mine.get(f"gpu/{OTHER}.0", Care.IGNORE) < CLOSING
    everything = _worst(events)
    for part in (f"gpu/{PCI}.0", "node"):
        assert mine.get(part) == everything.get(part)


@settings(deadline=None)
@given(_xids(_ANY, _TEXTS))
def test_events_that_were_acted_upon_close_nothing(events: list[Event]) -> None:
    assert max(_worst([event._replace(told=True) for event in events]).values(), default=Care.IGNORE) < CLOSING


@settings(deadline=None)
@given(_xids(_ANY, _TEXTS), _ANY, st.sampled_from(list(Care)))
def test_a_site_has_its_way_with_every_number_but_what_the_driver_says_last(
    events: list[Event], number: int, word: Care
) -> None:
    xids, links = package_data()
    site = load_xids(xids, {str(number): word.name.lower()}, links)
    for event in events:
        care, _ = xid_care(event, site, events)
        if event.number != number:
            continue
        if number == ADVICE or Care.RESET <= word < Care.HUMAN:  # "None", or an older verdict, takes it back
            assert care in (word, Care.WATCH, Care.IGNORE)
        else:
            assert care is word


@settings(deadline=None)
@given(st.integers(-5, 10**9), st.text(max_size=400), st.none() | st.text(max_size=8))
def test_no_text_breaks_the_judge(number: int, text: str, severity: str | None) -> None:
    event = Event(1, NOW, NOW, EventKind.XID, PCI, number, text, severity=severity)
    care, words = xid_care(event, _TABLE, ())
    assert care in Care
    assert words.isprintable()
    kinds = [event._replace(kind=kind) for kind in EventKind]
    assert all(finding.words.isprintable() for finding in judge_log(readings(kinds), _TABLE, None))
