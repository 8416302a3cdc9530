"""Whatever a log holds, there is a cause, its name has no node in it, and a cancel stays a cancel."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.errors import UsageError
from fleetctl.recovery.classify import classify
from fleetctl.recovery.logs import cut, exceptions, hits, root_host, task_ends
from fleetctl.recovery.model import Advice, CauseClass, Evidence
from fleetctl.recovery.patterns import has_shape, matches, patterns_in, shape
from tests.unit.recovery.test_classify import ATTEMPT, PATTERNS, record, seen
from tests.unit.recovery.test_patterns import HARMLESS, LINES, site
from tests.unit.recovery.test_patterns import row as row_of

KNOWN = [line.encode() for lines in LINES.values() for line in lines] + [line.encode() for line in HARMLESS]
LINE = st.one_of(
    st.binary(max_size=200), st.sampled_from(KNOWN), st.sampled_from([b"Traceback (most recent call last):"])
)
LOG = st.lists(LINE, max_size=40).map(b"\n".join)


@given(LOG)
def test_any_log_has_a_cause(log: bytes) -> None:
    causes, name = classify(seen(), ATTEMPT, Evidence("1.0", None, log), PATTERNS)
    assert causes
    assert len(name) <= 200
    assert all(one.evidence.isprintable() and len(one.evidence) < 400 for one in causes)
    assert causes[0].advice is not Advice.EARLIER


@given(LOG)
def test_no_line_takes_a_cancel_back(log: bytes) -> None:
    found = Evidence("1.0", (record("CANCELLED by 1000"),), log)
    assert classify(seen(), ATTEMPT, found, PATTERNS)[0][0].advice is Advice.NEVER


@given(LOG, LOG)
def test_what_is_found_lies_in_the_log_and_in_its_order(log: bytes, more: bytes) -> None:
    text = cut(log + more)
    found = hits(text, PATTERNS)
    assert [hit.at for hit in found] == sorted(hit.at for hit in found)
    assert all(hit.line == text.lines[hit.at] for hit in found)
    assert len({hit.at for hit in found}) == len(found), "no line is of two rows"
    assert len(text.lines) == len(text.shapes) == len(text.ends)
    exceptions(text, PATTERNS)
    task_ends(text)
    root_host(text)


@given(st.sampled_from(KNOWN), st.integers(0, 5000))
def test_the_number_of_ranks_that_say_it_does_not_matter(line: bytes, ranks: int) -> None:
    def told(count: int) -> set[tuple[CauseClass, Advice]]:
        log = b"\n".join(b"[rank%d]: %s" % (rank, line) for rank in range(count))
        causes, _ = classify(seen(), ATTEMPT, Evidence("1.0", None, log), PATTERNS)
        return {(one.cause, one.advice) for one in causes}

    assert told(3 + ranks) == told(3)


@given(st.text("ab*#~ :1", min_size=3, max_size=12), st.text("ab :17", max_size=30))
def test_a_pattern_that_is_accepted_never_fails_on_a_line(pattern: str, line: str) -> None:
    try:
        made = patterns_in(site(row_of(patterns=[pattern + "needle"])), "site.json")
    except UsageError:
        return
    for one in made.rows[0][1]:
        data = (line + "needle").encode()
        if matches(one, shape(data), data):
            assert has_shape(one, shape(data))
