"""InfiniBand and RoCE ports."""

from __future__ import annotations

from typing import Any

import pytest

from fleetctl.health.learn import learn
from fleetctl.health.model import Answer, Care, Mark, Outcome, Phase, Readings
from fleetctl.health.rules import Rules
from fleetctl.health.wanted import PortWanted, Profile
from tests.unit.health import nodes
from tests.unit.health.nodes import closing, failures, healthy, judged

LEARNED = learn(healthy())


@pytest.mark.parametrize(
    ("state", "phys_state", "mark"),
    [
        ("DOWN", "Disabled", Mark.NONE),
        ("DOWN", "Polling", Mark.TRANSIENT),
        ("DOWN", None, Mark.NONE),
        ("DOWN", "Sleep", Mark.NONE),
        ("DOWN", "PortConfigurationTraining", Mark.TRANSIENT),
        ("INIT", "LinkUp", Mark.TRANSIENT),
        ("ARMED", "LinkUp", Mark.TRANSIENT),
        ("NOP", "LinkErrorRecovery", Mark.TRANSIENT),
    ],
)
def test_a_port_of_the_list_that_is_not_up_closes(state: str, phys_state: str | None, mark: Mark) -> None:
    node = nodes.with_port(healthy(), 2, state=state, phys_state=phys_state, rate_gbps=2.5, width=1)
    found = judged(node, LEARNED, Phase.PROLOG, (0,))
    assert closing(found) == ["port_state"]
    finding = nodes.one(found, "port_state")
    why = ": is the subnet manager running?" if state in ("INIT", "ARMED") else ""
    assert finding.words == f"port mlx5_2/1 is not up ({state}{', ' + phys_state if phys_state else ''}){why}"
    assert (finding.care, finding.mark, finding.part) == (Care.DRAIN, mark, "port/mlx5_2/1")
    assert failures(judged(node)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"width": 2, "rate_gbps": 200.0}, "port mlx5_2/1 runs at width 2X, 4X is expected"),
        ({"rate_gbps": 200.0, "speed": "HDR"}, "port mlx5_2/1 runs at 200 Gb/s, 400 Gb/s is expected"),
        ({"operstate": "down", "netdev": "ib2"}, "port mlx5_2/1 is up, but its interface ib2 is down"),
    ],
)
def test_a_port_that_is_slow_narrow_or_half_up_is_one_finding(change: dict[str, Any], words: str) -> None:
    found = judged(nodes.with_port(healthy(), 2, **change), LEARNED)
    assert failures(found) == [words]
    assert len(closing(found)) == 1


@pytest.mark.parametrize("change", [{"width": 8, "rate_gbps": 800.0}, {"state": "ACTIVE_DEFER"}], ids=str)
def test_a_port_that_is_better_than_learned_passes(change: dict[str, Any]) -> None:
    assert failures(judged(nodes.with_port(healthy(), 2, **change), LEARNED)) == []


@pytest.mark.parametrize("missing", ["rate_gbps", "width"])
def test_a_rate_or_width_that_was_not_read_does_not_pass(missing: str) -> None:
    check = {"rate_gbps": "port_rate", "width": "port_width"}[missing]
    finding = nodes.one(judged(nodes.with_port(healthy(), 2, **{missing: None}), LEARNED), check)
    assert (finding.outcome, finding.care) == (Outcome.CANNOT_TELL, Care.WATCH)


def test_a_port_of_the_list_that_is_gone_or_says_nothing_closes() -> None:
    gone = healthy()._replace(ports=(healthy().ports or ())[1:])
    assert nodes.one(judged(gone, LEARNED), "port_state").words == "port mlx5_0/1 is not there"
    silent = nodes.with_port(healthy(), 0, state=None, phys_state=None, unreadable=("ports",))
    finding = nodes.one(judged(silent, LEARNED), "port_state")
    assert (finding.outcome, finding.care) == (Outcome.CANNOT_TELL, Care.DRAIN)


def test_ports_that_were_not_read_are_no_missing_ports() -> None:
    found = judged(healthy()._replace(ports=None, failed={"ports": Answer.FAILED}), LEARNED)
    assert nodes.one(found, "port_state").care is Care.WATCH
    assert closing(found) == []
    for check in ("port_rate", "port_width", "port_counters", "port_errors", "counter_ceiling", "counter_backwards"):
        assert nodes.one(found, check).care is Care.IGNORE
    assert nodes.one(judged(healthy()._replace(ports=None)), "port_state").care is Care.IGNORE
    assert nodes.one(found, "files").care is Care.WATCH


@pytest.mark.parametrize(("device", "netdev"), [("mlx5_bond_0", "ens1np0"), ("mlx5_0", "bond0")])
def test_a_leg_of_a_bond_that_is_down_is_only_told(device: str, netdev: str) -> None:
    node = nodes.with_port(healthy(), 0, device=device, netdev=netdev, operstate="down", link_layer="Ethernet")
    profile = LEARNED._replace(ports=(PortWanted(device, 1),))
    assert nodes.one(judged(node, profile), "port_state").care is Care.WATCH


def test_a_profile_may_ask_only_that_a_port_is_up() -> None:
    node = nodes.with_port(healthy(), 2, width=1, rate_gbps=10.0)
    found = judged(node, Profile("p", ports=(PortWanted("mlx5_2", 1),)))
    assert failures(found) == []
    assert nodes.of(found, "port_width") == []


def test_without_a_list_a_port_narrower_than_others_of_its_kind_is_told() -> None:
    found = judged(nodes.with_port(healthy(), 2, width=2, rate_gbps=200.0))
    finding = nodes.one(found, "port_width")
    assert finding.care is Care.WATCH
    assert finding.words == "port mlx5_2/1 runs at width 2X, others of its kind at 4X"


@pytest.mark.parametrize(
    "change",
    [{"device": "roce_r0"}, {"link_layer": "Ethernet"}, {"state": "DOWN"}, {"width": None}],
    ids=str,
)
def test_a_port_of_another_kind_is_no_sibling(change: dict[str, Any]) -> None:
    node = nodes.with_port(healthy(), 2, **{"width": 2, **change})
    assert failures(judged(node)) == []


def _counted(seconds: float, **counters: int) -> tuple[Readings, Any]:
    """A node whose port mlx5_2/1 has counted so much in so many seconds."""
    before = nodes.with_port(healthy(), 2, counters=dict.fromkeys(counters, 0))
    after, baseline = nodes.later(before, seconds)
    return nodes.with_port(after, 2, counters=counters), baseline


@pytest.mark.parametrize(
    ("counter", "seconds", "rise", "check"),
    [
        ("link_downed", 60, 1, "port_errors"),
        ("link_downed", 60, 3, "port_counters"),
        ("local_link_integrity_errors", 60, 1, "port_counters"),
        ("excessive_buffer_overrun_errors", 60, 1, "port_counters"),
        ("symbol_error", 3600, 120, None),
        ("symbol_error", 3600, 121, "port_counters"),
        ("symbol_error", 1, 120, None),
        ("symbol_error", 1, 121, "port_counters"),
        ("symbol_error", 7200, 240, None),
        ("link_error_recovery", 60, 5, None),
        ("link_error_recovery", 60, 6, "port_errors"),
        ("port_rcv_errors", 1, 600, None),
        ("port_rcv_errors", 1, 601, "port_errors"),
        ("port_rcv_errors", 600, 6001, "port_errors"),
        ("port_xmit_discards", 600, 60_000, None),
        ("port_xmit_discards", 600, 60_001, "port_errors"),
        ("rnr_nak_retry_err", 60, 1, "port_errors"),
        ("local_ack_timeout_err", 60, 61, "port_errors"),
        ("roce_slow_restart", 60, 601, "port_errors"),
        ("carrier_changes", 60, 2, None),
        ("carrier_changes", 60, 3, "port_errors"),
        ("port_xmit_wait", 60, 10**9, None),
    ],
)
def test_counters_are_judged_by_how_fast_they_rise(counter: str, seconds: float, rise: int, check: str | None) -> None:
    node, before = _counted(seconds, **{counter: rise})
    found = judged(node, LEARNED, before=before)
    bad = {f.check for f in found if f.outcome is Outcome.FAIL}
    assert (check in bad) if check else bad == set()
    assert closing(found) == (["port_counters"] if check == "port_counters" else [])
    if check:
        assert f"port mlx5_2/1: {counter} rose by {rise} since the last look" in failures(found)
    assert closing(judged(node, before=before)) == []  # without a list no port closes


def test_symbol_errors_of_a_link_that_went_down_and_up_say_nothing_more() -> None:
    node, before = _counted(60, link_downed=1, symbol_error=5000)
    assert closing(judged(node, LEARNED, before=before)) == []


@pytest.mark.parametrize("seconds", [-10_000.0, 10_000_000.0])
def test_a_clock_that_jumped_makes_no_rate_look_higher(seconds: float) -> None:
    node, before = _counted(400, symbol_error=121)
    jumped = node._replace(at=node.at + seconds, uptime_s=4000.0)
    assert closing(judged(jumped, LEARNED, before=before)) == []
    assert closing(judged(node, LEARNED, before=before)) == ["port_counters"]


def test_counters_at_their_ceiling_are_a_finding_of_their_own() -> None:
    node = nodes.with_port(healthy(), 2, counters={"link_downed": 255, "symbol_error": 65535, "port_rcv_errors": 9})
    after, before = nodes.later(node)
    found = judged(after, LEARNED, before=before)
    finding = nodes.one(found, "counter_ceiling")
    assert finding.care is Care.WATCH
    assert "counters of port mlx5_2/1 stand at their ceiling" in finding.words
    assert finding.words.endswith("(link_downed, symbol_error)")
    assert closing(found) == []


def test_counters_that_all_stand_at_their_ceiling_tell_nothing_about_errors() -> None:
    node = nodes.with_port(healthy(), 2, counters={"link_downed": 255, "symbol_error": 65535})
    after, before = nodes.later(node)
    finding = next(f for f in nodes.of(judged(after, before=before), "port_counters") if f.part == "port/mlx5_2/1")
    assert finding.outcome is Outcome.CANNOT_TELL


def test_a_counter_that_reached_its_ceiling_still_rose() -> None:
    before = nodes.with_port(healthy(), 2, counters={"link_downed": 250})
    after, baseline = nodes.later(before)
    found = judged(nodes.with_port(after, 2, counters={"link_downed": 255}), LEARNED, before=baseline)
    assert {f.check for f in found if f.outcome is Outcome.FAIL} == {"port_counters", "port_errors", "counter_ceiling"}


def test_counters_that_went_backwards_are_a_finding_of_their_own() -> None:
    before = nodes.with_port(healthy(), 2, counters={"link_downed": 9, "symbol_error": 3})
    after, baseline = nodes.later(before)
    found = judged(nodes.with_port(after, 2, counters={"link_downed": 0, "symbol_error": 3}), before=baseline)
    finding = nodes.one(found, "counter_backwards")
    assert (finding.care, finding.value) == (Care.WATCH, 0)
    assert finding.words.endswith("(link_downed)")
    assert len(failures(found)) == 1


def test_a_first_look_judges_no_counter_and_does_not_call_it_well() -> None:
    node = nodes.with_port(healthy(), 2, counters={"link_downed": 200, "symbol_error": 60_000})
    found = judged(node, LEARNED)
    assert failures(found) == []
    finding = next(f for f in nodes.of(found, "port_counters") if f.part == "port/mlx5_2/1")
    assert finding.outcome is Outcome.CANNOT_TELL
    after, before = nodes.later(node)
    assert failures(judged(after._replace(boot_id="boot-2"), before=before)) == []


def test_a_sites_limit_on_a_counter_stands() -> None:
    node, before = _counted(60, link_downed=4)
    rules = Rules(limits={"link_downs": 10, "link_downed": 4})
    assert failures(judged(node, LEARNED, before=before, rules=rules)) == []
