"""The record of a spec: plain JSON, nothing left out, and the same for the same spec."""

from __future__ import annotations

import json

from fleetctl.spec.load import load_spec
from fleetctl.spec.model import Spec
from fleetctl.spec.record import record_as_yaml, spec_as_said, spec_to_builtins
from tests.unit.test_spec_load import HET
from tests.unit.test_spec_schema import FULL


def test_defaults_and_none_are_written_out_and_units_are_text() -> None:
    record = spec_to_builtins(load_spec(FULL, "train.yaml"))
    assert list(record) == list(Spec.__struct_fields__)
    assert (record["resources"]["memory"], record["resources"]["time"]) == ("512G", "4h")
    assert (record["resources"]["qos"], record["recovery"]["max_failures"]) == (None, 3)
    assert (record["launch"], record["command"]) == ("torchrun", ["train.py", "--steps", "3"])


def test_it_is_json_that_loads_again_as_the_same_spec() -> None:
    for text in (FULL, HET, "name: a\ncommand: b\n"):
        spec = load_spec(text, "train.yaml")
        written = json.dumps(spec_to_builtins(spec), ensure_ascii=False)
        assert load_spec(written, "record") == spec


def test_what_is_kept_on_disk_loads_again_whatever_is_in_it() -> None:
    for command in ("echo \U0001f600", "a\u2028b\x85\x7f", 'tab\t"\\ud83d\\ude00"', "\\\U0001f600\\"):
        spec = load_spec(f"name: a\ncommand: {record_as_yaml(json.dumps(command))}\n", "train.yaml")
        assert spec.command == command
        assert load_spec(record_as_yaml(json.dumps(spec_to_builtins(spec), indent=1)), "record") == spec


def test_the_order_of_the_environment_says_nothing_and_that_of_a_sweep_does() -> None:
    def record(env: str, sweep: str) -> str:
        text = f"name: a\ncommand: b\nenv: {env}\nsweep: {{parameters: {sweep}}}\n"
        return json.dumps(spec_to_builtins(load_spec(text, "train.yaml")))

    first = record("{A: 1, B: 2}", "{X: [1], Y: [2]}")
    assert first == record("{B: 2, A: 1}", "{X: [1], Y: [2]}")
    assert first != record("{A: 1, B: 2}", "{Y: [2], X: [1]}")


def test_what_is_as_it_is_by_default_is_not_said() -> None:
    """A newer fleetctl knows more fields: the same file must stay the same run for it."""
    short = "name: a\ncommand: x\nresources: {nodes: 2}\n"
    long = short + "launch: srun\nrecovery: {chain: false, max_failures: 3}\nenv: {}\nmodules: []\n"
    said = spec_as_said(load_spec(short, "a.yaml"))
    assert said == {"name": "a", "resources": {"nodes": 2}, "command": "x"}
    assert spec_as_said(load_spec(long, "b.yaml")) == said


def test_what_differs_in_a_group_is_said() -> None:
    text = "name: a\ngroups:\n- {name: one, command: x}\n- {name: two, command: x, resources: {nodes: %d}}\n"
    one, two = (spec_as_said(load_spec(text % nodes, "a.yaml")) for nodes in (1, 3))
    assert one != two
    assert two["groups"] == [
        {"name": "one", "command": "x"},
        {"name": "two", "command": "x", "resources": {"nodes": 3}},
    ]
