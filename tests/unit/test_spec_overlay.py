"""Values from outside the file: --set wins, variables fill gaps, and both are reported like the file."""

from __future__ import annotations

import pytest

from fleetctl.errors import SpecError
from fleetctl.spec.load import load_spec
from fleetctl.spec.model import Spec
from fleetctl.units import Duration

FILE = "name: a\ncommand: b\nresources: {nodes: 2, partition: cpu}\n"


def load(*overrides: str, text: str = FILE, **defaults: tuple[str, str]) -> Spec:
    dotted = {path.replace("__", "."): value for path, value in defaults.items()}
    return load_spec(text, "train.yaml", overrides, dotted)


def problem(*overrides: str, text: str = FILE, **defaults: tuple[str, str]) -> str:
    with pytest.raises(SpecError) as caught:
        load(*overrides, text=text, **defaults)
    (found,) = caught.value.problems
    return found


def test_an_override_wins_over_the_file_and_the_last_over_the_first() -> None:
    spec = load("resources.nodes=3", "resources.nodes=4", "command=c d", "env.LR=0.1", "env.URL=a=b.c")
    assert (spec.resources.nodes, spec.resources.partition, spec.command) == (4, "cpu", "c d")
    assert spec.env == {"LR": "0.1", "URL": "a=b.c"}


def test_an_override_makes_the_parents_that_are_missing() -> None:
    text = "name: a\ncommand: b\nresources:\n"
    assert load("resources.time=4h", "checkpoint.dir=d", text=text).checkpoint is not None


def test_the_value_of_an_override_is_text_and_never_yaml() -> None:
    spec = load("resources.time=4:00:00", "env.A=null", "env.B=", "env.C=[x]", "name=!!str x")
    assert spec.resources.time == Duration(14_400)
    assert (spec.env, spec.name) == ({"A": "null", "B": "", "C": "[x]"}, "!!str x")


def test_an_override_repairs_what_the_file_has_wrong() -> None:
    assert load("resources.nodes=4", text="name: a\ncommand: b\nresources: {nodes: two}\n").resources.nodes == 4


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("resources.nodes", "--set resources.nodes: expected PATH=VALUE, such as resources.nodes=4"),
        ("resources.nodes=two", '--set resources.nodes: expected a whole number of at least 1, not "two"'),
        ("resources.nods=4", "--set resources.nods: no such field; did you mean nodes?"),
        ("resource.nodes=4", "--set resource.nodes: no such field; did you mean resources?"),
        ("command.x=4", "--set command.x: no such field; command has no fields"),
        ("resources.nodes.x=4", "--set resources.nodes.x: no such field; resources.nodes has no fields"),
        ("resources=4", "--set resources: expected one of its fields, such as resources.nodes"),
        ("env=4", "--set env: expected one of its names, such as env.NAME"),
        ("modules=a", "--set modules: expected a field of one value; write a list in the file"),
        ("modules.0=a", "--set modules.0: expected a field of one value; write a list in the file"),
        ("groups.0.name=a", "--set groups.0.name: expected a field of one value; write a list in the file"),
        ("sweep.parameters.A=a", "--set sweep.parameters.A: expected a field of one value; write a list in the file"),
        ("env.A\n=4", "--set env.A\\n: "
         'expected the name of an environment variable (letters, digits and _), not "A\\n"'),
        ("env.A.B=4", '--set env.A.B: expected the name of an environment variable (letters, digits and _), not "A.B"'),
        ("env.A=\0", "--set env.A: expected text without NUL and without half of a surrogate pair"),
        ("env.A=\udcff", "--set env.A: expected text without NUL and without half of a surrogate pair"),
        ("script=x", "--set script: expected either a command or a script, not both"),
        ("resources.partition=", "--set resources.partition: expected text on one line, not empty and without control "
         'characters, not ""'),
        ("resources.gpu_type=h100", "--set resources.gpu_type: expected gpus_per_node of at least 1 beside it"),
    ],
)  # fmt: skip
def test_a_bad_override_is_named(assignment: str, expected: str) -> None:
    assert problem(assignment) == expected


def test_an_override_under_something_that_is_no_mapping_leaves_the_files_problem() -> None:
    text = "name: a\ncommand: b\nresources: 5\n"
    assert (
        problem("resources.nodes=4", text=text) == 'train.yaml:3:12: resources: expected fields such as nodes, not "5"'
    )


def test_an_override_does_not_hide_a_repeated_name() -> None:
    text = "name: a\ncommand: b\nworkdir: c\nworkdir: d\n"
    assert problem("workdir=e", text=text) == "train.yaml:4:1: workdir: given twice, on lines 3 and 4"


def test_an_override_of_one_use_of_an_alias_leaves_the_others() -> None:
    text = """\
name: a
resources: &r {nodes: 2}
groups: [{name: x, command: c, resources: *r}, {name: y, command: c, resources: *r}]
"""
    spec = load("resources.nodes=9", text=text)
    assert (spec.resources.nodes, [group.resources.nodes for group in spec.groups]) == (9, [2, 2])


def test_a_default_fills_only_a_gap() -> None:
    given = {
        "resources__partition": ("gpu", "SBATCH_PARTITION"),
        "resources__account": ("acc", "SBATCH_ACCOUNT"),
        "resources__qos": ("low", "SBATCH_QOS"),
    }
    spec = load("resources.qos=high", text=FILE, **given)
    assert (spec.resources.partition, spec.resources.account, spec.resources.qos) == ("cpu", "acc", "high")
    assert load(text="name: a\ncommand: b\nresources: {partition: }\n", **given).resources.partition == "gpu"
    assert load(text="name: a\ncommand: b\nresources:\n", **given).resources.partition == "gpu"


def test_a_default_reaches_the_groups() -> None:
    text = "name: a\ngroups: [{name: x, command: c}, {name: y, command: c, resources: {partition: p}}]\n"
    spec = load(text=text, resources__partition=("gpu", "SBATCH_PARTITION"))
    assert [group.resources.partition for group in spec.groups] == ["gpu", "p"]


def test_a_bad_default_names_its_variable() -> None:
    assert problem(resources__time=("soon", "SBATCH_TIMELIMIT")).startswith(
        "SBATCH_TIMELIMIT: resources.time: expected a duration such as"
    )
    assert problem(resources__zzz=("1", "SBATCH_ZZZ")).startswith("SBATCH_ZZZ: resources.zzz: no such field; expected ")


def test_problems_of_the_file_come_first() -> None:
    with pytest.raises(SpecError) as caught:
        load("resources.nodes=0", text="name: a\ncommand: b\nmodules: x\n", resources__time=("1", "SBATCH_TIMELIMIT"))
    assert [line.split(" ")[0] for line in caught.value.problems] == ["train.yaml:3:10:", "--set", "SBATCH_TIMELIMIT:"]
