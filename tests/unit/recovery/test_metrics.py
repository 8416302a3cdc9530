"""The daemon's numbers as text, and whether it lives."""

from __future__ import annotations

import pytest

from fleetctl.errors import UsageError
from fleetctl.recovery.metrics import METRICS, Numbers, health, serve


def test_every_family_has_its_help_and_its_kind() -> None:
    text = Numbers().text()
    for metric in METRICS:
        assert f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n" in text
        assert (metric.kind == "counter") is metric.name.endswith("_total")


def test_labels_are_escaped() -> None:
    numbers = Numbers()
    numbers.add("actions_total", deed='a"b\\c\nd', outcome="\udcff")
    assert 'fleetctl_daemon_actions_total{deed="a\\"b\\\\c\\nd",outcome="?"} 1\n' in numbers.text()


def test_counters_rise_and_gauges_are_replaced() -> None:
    numbers = Numbers()
    for _ in range(3):
        numbers.add("passes_total", result="seen")
    numbers.only("runs", {"fine": 3.0, "waits": 1.0}, "rule")
    numbers.only("runs", {"fine": 2.0}, "rule")
    assert 'passes_total{result="seen"} 3\n' in numbers.text()
    assert 'runs{rule="fine"} 2\n' in numbers.text()
    assert "waits" not in numbers.text()


def test_a_time_keeps_its_digits() -> None:
    numbers = Numbers()
    numbers.set("last_pass_timestamp_seconds", 1767225600.25)
    assert "fleetctl_daemon_last_pass_timestamp_seconds 1767225600.25\n" in numbers.text()


def test_health_ends_when_passes_do() -> None:
    numbers = Numbers()
    assert health(numbers, 100.0)[0] == 503
    numbers.set("last_pass_timestamp_seconds", 100.0)
    assert health(numbers, 200.0)[0] == 200
    assert health(numbers, 1001.0)[0] == 503


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:1", "10.0.0.1:1", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "[::]:1", "x:1"]
)
def test_others_cannot_reach_it(listen: str) -> None:
    with pytest.raises(UsageError):
        serve(listen, Numbers(), lambda: 0.0)
