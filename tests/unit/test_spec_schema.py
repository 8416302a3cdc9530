"""The JSON Schema agrees with the loader on what is good and, as far as a schema can say it, on what is not."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from msgspec import Struct

from fleetctl.cli.schema import command
from fleetctl.errors import SpecError
from fleetctl.spec.load import load_spec
from fleetctl.spec.model import Spec
from fleetctl.spec.schema import DURATION_PATTERN, MEMORY_PATTERN, field_table, json_schema
from fleetctl.spec.shape import fields
from fleetctl.units import Duration, MemorySize
from tests.unit.test_spec_load import HET

FULL = """\
name: gpt
resources:
  nodes: 4
  gpus_per_node: 8
  gpu_type: h100
  memory: 512G
  time: "4:00:00"
  account: 0123
  exclude: node[01-04,9],bad7
launch: torchrun
command: [train.py, --steps, 3]
env: {LR: 1e-4, ON: on}
modules: [cuda/12.4]
container: {image: i, runtime: apptainer, mounts: ["/a:/b:ro"]}
workdir:
checkpoint: {dir: d, interval: 30m, keep: 2, load: none}
recovery: {requeue: true, chain: true}
health: {checks: [ecc]}
sweep: {parameters: {SEED: [1, 2]}, max_parallel: 2}
"""


def agrees(text: str) -> tuple[bool, bool]:
    """What the loader says of a text, and what the schema says."""
    try:
        load_spec(text, "train.yaml")
        loads = True
    except SpecError:
        loads = False
    return loads, jsonschema.Draft202012Validator(json_schema()).is_valid(yaml.safe_load(text))


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    json.dumps(json_schema())


@pytest.mark.parametrize(
    "text",
    [
        "name: a\ncommand: b\n",
        "name: 3\nscript: x\n",
        FULL,
        FULL.replace("interval: 30m", "interval: auto"),
        HET,
        "name: a\ncommand: b\nsweep:\n",
    ],
)
def test_what_loads_is_valid(text: str) -> None:
    assert agrees(text) == (True, True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: gpt\n", ""),
        ("name: gpt", "name: a/b"),
        ("name: gpt", f"name: {'n' * 65}"),
        ("name: gpt", 'name: "a\\nb"'),
        ("nodes: 4", "nodes: 0"),
        ("nodes: 4", "nodes: two"),
        ("nodes: 4", "nods: 4"),
        ("gpus_per_node: 8", "gpus_per_node: -1"),
        ("gpu_type: h100", "gpu_type: h100:4"),
        ("memory: 512G", "memory: 512"),
        ('time: "4:00:00"', "time: 60"),
        ('time: "4:00:00"', "time: soon"),
        ('time: "4:00:00"', "time: 4:00:00"),
        ("exclude: node[01-04,9],bad7", "exclude: a b"),
        ("launch: torchrun", "launch: mpirun"),
        ("command: [train.py, --steps, 3]", "command: []"),
        ("command: [train.py, --steps, 3]", "command: {a: b}"),
        ("command: [train.py, --steps, 3]\n", ""),
        ("env:", "script: x\nenv:"),
        ("LR: 1e-4", "SLURM_X: 1"),
        ("LR: 1e-4", "1A: 1"),
        ("LR: 1e-4", "LR: [1]"),
        ("image: i, ", ""),
        ("runtime: apptainer", "runtime: docker"),
        ("/a:/b:ro", "/a:/b:rx"),
        ("keep: 2", "keep: 1"),
        ("interval: 30m", "interval: often"),
        ("requeue: true", "requeue: maybe"),
        ("checks: [ecc]", "checks: [foo]"),
        ("SEED: [1, 2]", "SEED: []"),
        ("{SEED: [1, 2]}", "{}"),
    ],
)
def test_what_does_not_load_is_not_valid(old: str, new: str) -> None:
    assert old in FULL
    assert agrees(FULL.replace(old, new, 1)) == (False, False)


@pytest.mark.parametrize(
    ("old", "new"), [("  script: y\n", ""), ("groups:", "command: c\ngroups:"), ("name: data", "name: 1a")]
)
def test_the_rules_of_groups_that_a_schema_can_say(old: str, new: str) -> None:
    assert agrees(HET.replace(old, new, 1)) == (False, False)


def _all_structs(struct: type[Struct]) -> set[type[Struct]]:
    inner = {(one.shape.element() or one.shape).struct() for one in fields(struct).values()} - {None}
    return {struct}.union(*(_all_structs(one) for one in inner if one))


def test_every_field_is_described_in_schema_and_table() -> None:
    schema, table = json_schema(), field_table()
    found = _all_structs(Spec)
    assert {struct.__name__ for struct in found} == {"Spec", *schema["$defs"]}
    for struct in found:
        one = schema if struct is Spec else schema["$defs"][struct.__name__]
        assert list(one["properties"]) == list(struct.__struct_fields__)
        assert one["additionalProperties"] is False
        for name, field in fields(struct).items():
            assert re.fullmatch(r"[A-Z].*\.", field.description), f"{struct.__name__}.{name} has no description"
            assert one["properties"][name]["description"] == field.description
            assert f"{name}` |" in table


def test_every_pattern_says_what_it_expects() -> None:
    """check_limits would fail on a Meta with a pattern and no words."""

    def metas(struct: type[Struct]) -> list[Any]:
        shapes = [one.shape for one in fields(struct).values()]
        shapes += [inner for one in shapes if (inner := one.element())]
        shapes += [inner for one in shapes for inner in one.pair() or ()]
        return [meta for one in shapes for meta in one.metas]

    for struct in _all_structs(Spec):
        for meta in metas(struct):
            assert meta.pattern is None or (meta.extra or {}).get("expected")


@pytest.mark.parametrize(
    "text",
    ["90m", "1d2h3m4s", "4:00:00", "4:0:0", "2-12", "2-12:30", "2-00:00:00", "60", "12:30", "", "m", "1h1h", "1.5h",
     "4:60:00", "2-12:60", "9999999999s", "\u0664h", "64G", "64GiB", "64gb", "64", "G", "1P", "64iB", "\u0664G"],
)  # fmt: skip
def test_the_patterns_of_units_are_their_parsers(text: str) -> None:
    for kind, pattern in ((Duration, DURATION_PATTERN), (MemorySize, MEMORY_PATTERN)):
        try:
            parsed = bool(kind.parse(text))
        except ValueError:
            parsed = False
        assert parsed == bool(re.search(pattern, text)), (kind, text)


def test_the_command_prints_the_schema_and_the_table() -> None:
    run = CliRunner().invoke(command)
    assert run.exit_code == 0
    assert json.loads(run.stdout) == json_schema()
    assert CliRunner().invoke(command, ["--table"]).stdout == field_table()
    assert "fleetctl schema > train.schema.json" in CliRunner().invoke(command, ["--help"]).stdout
