"""What never brings a node back, whatever else is true."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.health.model import CLOSING, Care, Finding, Mark, Outcome
from fleetctl.health.service import Back, Seen, may_return
from fleetctl.health.state import Drain

CHECKS = st.sampled_from(["nvlink_state", "xid", "pcie_width"])
PARTS = st.sampled_from(["gpu/0000:1b:00.0", "gpu/0000:43:00.0", "node"])
BOOTS = st.sampled_from(["", "boot-a", "boot-b"])
REASONS = st.sampled_from(["", "fleetctl: a [x]", "fleetctl: b [x]", "maintenance"])
TIMES = st.floats(-1e5, 2e5)


@st.composite
def findings(draw: st.DrawFn) -> Finding:
    return Finding(
        draw(CHECKS),
        draw(st.sampled_from([Outcome.PASS, Outcome.PASS, Outcome.PASS, *Outcome])),
        "subject",
        draw(PARTS),
        "words",
        care=draw(st.sampled_from(Care)),
        mark=draw(st.sampled_from(Mark)),
    )


@st.composite
def drains(draw: st.DrawFn) -> Drain:
    pairs = draw(st.lists(st.tuples(CHECKS, PARTS), max_size=3))
    return Drain(draw(REASONS), draw(TIMES), draw(BOOTS), tuple(pairs), draw(st.sampled_from(Care)))


SEEN = st.builds(Seen, st.lists(findings(), max_size=6), BOOTS, TIMES)
RETURNED = st.lists(TIMES, max_size=4)
BACK = st.builds(Back, st.integers(0, 4), st.floats(0, 1e5), st.floats(0, 1e5))


@given(st.none() | drains(), st.none() | REASONS, SEEN, RETURNED, BACK)
def test_a_node_comes_back_only_on_evidence(
    drain: Drain | None, reason: str | None, seen: Seen, returned: list[float], back: Back
) -> None:
    if not may_return(drain, reason, seen, returned, back).back:
        return
    assert drain is not None
    assert reason == drain.reason != ""
    assert drain.care < Care.HUMAN
    assert len([at for at in returned if seen.at - at < back.window_s]) < back.most
    assert all(seen.at - at >= back.cool_down_s for at in (drain.at, *returned))
    assert not [f for f in seen.findings if f.outcome is not Outcome.PASS and f.care >= CLOSING]
    rebooted = seen.boot_id != drain.boot_id
    assert drain.findings
    for check, part in drain.findings:
        same = [f for f in seen.findings if f.check == check and (rebooted or f.part == part)]
        assert same
        assert {f.outcome for f in same} == {Outcome.PASS}
        assert check != "xid" or rebooted
    assert drain.care is not Care.REBOOT or (rebooted and seen.boot_id and drain.boot_id)


@given(drains(), SEEN, BACK, st.floats(1, 1e5))
def test_waiting_longer_never_closes_what_was_open(drain: Drain, seen: Seen, back: Back, longer_s: float) -> None:
    now = may_return(drain, drain.reason, seen, (), back)
    later = may_return(drain, drain.reason, seen._replace(at=seen.at + longer_s), (), back)
    assert later.back or not now.back
