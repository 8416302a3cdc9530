"""load_spec: what is read, and each refusal with its place and its words."""

from __future__ import annotations

import sys
import textwrap

import pytest

from fleetctl.errors import SpecError
from fleetctl.spec import walk
from fleetctl.spec.load import load_spec
from fleetctl.spec.model import (
    Checkpoint,
    CheckpointFormat,
    CheckpointLoad,
    Container,
    ContainerRuntime,
    Group,
    Health,
    HealthCheck,
    Launcher,
    Recovery,
    Resources,
    Spec,
    Sweep,
)
from fleetctl.units import Duration, MemorySize

_ANY_DURATION = "expected a duration such as 90m, 4h30m, 1d12h, 4:00:00 or 2-00:00:00"


def load(text: str) -> Spec:
    return load_spec(textwrap.dedent(text), "train.yaml")


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load(text)
    return list(caught.value.problems)


def problem(text: str) -> str:
    """The one problem of a spec that is otherwise whole, without the file's name."""
    (found,) = problems(text)
    assert found.startswith("train.yaml:")
    return found.removeprefix("train.yaml:")


def test_the_smallest_spec_takes_all_defaults() -> None:
    assert load("name: a\ncommand: b\n") == Spec(name="a", command="b")


def test_every_field_is_read() -> None:
    assert load(
        """
        name: gpt-7b
        resources:
          nodes: 4
          gpus_per_node: 8
          gpu_type: h100
          cpus_per_task: 12
          tasks_per_node: 1
          memory: 512G
          time: 2-12
          partition: gpu,big
          account: 0123
          qos: high
          reservation: r 1
          constraint: "[rack1|rack2]"
          exclude: node[01-04,9],bad7
          switches: 1@2h
        launch: srun
        script: |
          set -e
          python train.py
        env: {LR: 1e-4, ON: on, EMPTY: , NULL_: ~}
        env_file: secrets.env
        modules: [cuda/12.4, nccl]
        container: {image: nvcr.io/x:y, runtime: apptainer, mounts: [/data, "/a:/b:ro"], workdir: /w}
        workdir: ..
        checkpoint: {dir: ckpt, format: torch_dcp, interval: 30m, keep: 2, load: none}
        recovery: {requeue: true, chain: true, max_failures: 5}
        health: {checks: [ecc, xid]}
        sweep:
          parameters: {SEED: [1, 2], NAME: ["", yes]}
          max_parallel: 2
        depends_on: [prepare]
        """
    ) == Spec(
        name="gpt-7b",
        resources=Resources(
            nodes=4,
            gpus_per_node=8,
            gpu_type="h100",
            cpus_per_task=12,
            tasks_per_node=1,
            memory=MemorySize(512 * 1024**2),
            time=Duration(216_000),
            partition="gpu,big",
            account="0123",
            qos="high",
            reservation="r 1",
            constraint="[rack1|rack2]",
            exclude="node[01-04,9],bad7",
            switches="1@2h",
        ),
        launch=Launcher.SRUN,
        script="set -e\npython train.py\n",
        env={"LR": "1e-4", "ON": "on", "EMPTY": "", "NULL_": "~"},
        env_file="secrets.env",
        modules=("cuda/12.4", "nccl"),
        container=Container(
            image="nvcr.io/x:y", runtime=ContainerRuntime.APPTAINER, mounts=("/data", "/a:/b:ro"), workdir="/w"
        ),
        workdir="..",
        checkpoint=Checkpoint(
            dir="ckpt", format=CheckpointFormat.TORCH_DCP, interval=Duration(1800), keep=2, load=CheckpointLoad.NONE
        ),
        recovery=Recovery(requeue=True, chain=True, max_failures=5),
        health=Health(checks=(HealthCheck.ECC, HealthCheck.XID)),
        sweep=Sweep(parameters={"SEED": ("1", "2"), "NAME": ("", "yes")}, max_parallel=2),
        depends_on=("prepare",),
    )


def test_ten_mistakes_are_ten_lines_in_the_order_of_the_file() -> None:
    assert problems(
        """\
        name: pre/train
        resources:
          nodes: two
          gpus_per_nod: 8
          time: 4:00:00
          memory: 64
        launch: trochrun
        command: [python, train.py]
        env:
          A: 1
          A: 2
        checkpoint:
          keep: 1
        modules: cuda
        """
    ) == [
        'train.yaml:1:7: name: expected a name of at most 64 characters, without /, not "pre/train"',
        'train.yaml:3:10: resources.nodes: expected a whole number of at least 1, not "two"',
        "train.yaml:4:3: resources.gpus_per_nod: no such field; did you mean gpus_per_node?",
        'train.yaml:5:9: resources.time: YAML reads 4:00:00 as a number of base 60: write "4:00:00" in quotes',
        'train.yaml:6:11: resources.memory: expected a memory size with a unit, such as 64G or 512M, not "64"',
        'train.yaml:7:9: launch: expected srun, torchrun or command, not "trochrun"; did you mean torchrun?',
        "train.yaml:11:3: env.A: given twice, on lines 10 and 11",
        "train.yaml:13:3: checkpoint.dir: missing: this field is required",
        "train.yaml:13:9: checkpoint.keep: expected a whole number of at least 2, not 1",
        'train.yaml:14:10: modules: expected a list, not "cuda"',
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("nam: b", "3:1: nam: no such field; did you mean name?"),
        ("nodes: 2", "3:1: nodes: no such field; did you mean resources.nodes?"),
        (
            "health: {zzz: 1}",
            "3:10: health.zzz: no such field; expected checks",
        ),
        (
            "container: {image: i, zzz: 1}",
            "3:23: container.zzz: no such field; expected image, runtime, mounts or workdir",
        ),
        ('"a\\nb": 1', '3:1: a\\nb: no such field; expected name, resources, launch, command, script, env, env_file, '
         "modules, container, workdir, checkpoint, recovery, health, groups, sweep or depends_on"),
        ("name: b", "3:1: name: given twice, on lines 1 and 3"),
        ("env: {A: 1, A: 2}", "3:13: env.A: given twice, on line 3"),
        ("<<: {env: {}}", "3:1: expected no merge key (<<): write its fields here"),
        ("env: {<<: {A: 1}}", "3:7: env: expected no merge key (<<): write its fields here"),
        ("[a]: 1", "3:1: expected a name, not a list"),
        ("{a: 1}: 1", "3:1: expected a name, not a mapping"),
        ("!foo env: {}", "3:1: expected a name without a tag, not !foo"),
        ("env: !!python/object:os {}", "3:6: env: expected a value without a tag, not !!python/object:os"),
        ("workdir: !!str x", "3:10: workdir: expected a value without a tag, not !!str"),
        ("workdir: ! x", "3:10: workdir: expected a value without a tag, not !"),
        ("workdir: !foo", "3:10: workdir: expected a value without a tag, not !foo"),
        ("workdir: [a]", "3:10: workdir: expected one value, not a list"),
        ("workdir: {a: b}", "3:10: workdir: expected one value, not a mapping"),
        ("resources: 5", '3:12: resources: expected fields such as nodes, not "5"'),
        ("resources: []", "3:12: resources: expected fields such as nodes, not a list"),
        ("env: x", '3:6: env: expected names with values, not "x"'),
        ("env: {A: [1]}", "3:10: env.A: expected one value, not a list"),
        ("modules: {a: b}", "3:10: modules: expected a list, not a mapping"),
        ("modules: [a, [b]]", "3:14: modules[1]: expected one value, not a list"),
        ("modules:\n- a\n-", '5:2: modules[1]: expected a value, not nothing: write "" for empty text'),
        ("checkpoint: {dir: }", "3:19: checkpoint.dir: expected a value, not nothing"),
        ("checkpoint: {dir: ~}", "3:19: checkpoint.dir: expected a value, not nothing"),
        ("health: {checks: [ec]}", '3:19: health.checks[0]: expected nvlink, ecc, pcie, infiniband or xid, not "ec"; '
         "did you mean ecc?"),
        ("health: {checks: [foo]}", '3:19: health.checks[0]: expected nvlink, ecc, pcie, infiniband or xid, not "foo"'),
        ("recovery: {chain: yes}", '3:19: recovery.chain: expected true or false, not "yes"'),
        ("recovery: {max_failures: 0}", "3:26: recovery.max_failures: expected a whole number of at least 1, not 0"),
        ("env: {1A: x}", "3:7: env.1A: expected the name of an environment variable (letters, digits and _), "
         'not "1A"'),
        ("env: {SLURM_X: x}", "3:7: env.SLURM_X: expected a name that does not start with SLURM_, SBATCH_ or "
         'FLEETCTL_: these are reserved, not "SLURM_X"'),
        ('env: {A: "\\0"}', "3:10: env.A: expected text without NUL and without half of a surrogate pair"),
        ("env: {A: 1:30}", '3:10: env.A: YAML reads 1:30 as a number of base 60: write "1:30" in quotes'),
        ("env: {A: 1:30.5}", '3:10: env.A: YAML reads 1:30.5 as a number of base 60: write "1:30.5" in quotes'),
        ("modules: [1:30]", '3:11: modules[0]: YAML reads 1:30 as a number of base 60: write "1:30" in quotes'),
        ("script: x", "3:9: script: expected either a command or a script, not both"),
        ("container: {image: i, mounts: [a:b:rx]}", "3:32: container.mounts[0]: expected SRC, SRC:DST or "
         'SRC:DST:ro, without a comma, not "a:b:rx"'),
        ('container: {image: i, mounts: ["a,b"]}', "3:32: container.mounts[0]: expected SRC, SRC:DST or "
         'SRC:DST:ro, without a comma, not "a,b"'),
        ("checkpoint: {dir: d, interval: 0s}", "3:32: checkpoint.interval: expected auto or a duration longer than 0 "
         '(Slurm reads 0 as no limit), not "0s"'),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place(line: str, expected: str) -> None:
    assert problem(f"name: a\ncommand: b\n{line}\n") == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("nodes: 0", "nodes: expected a whole number of at least 1, not 0"),
        ("nodes: -1", "nodes: expected a whole number of at least 1, not -1"),
        ("nodes: 1.0", 'nodes: expected a whole number of at least 1, not "1.0"'),
        ("nodes: 010", 'nodes: expected a whole number of at least 1, not "010"'),
        ("nodes: 0x10", 'nodes: expected a whole number of at least 1, not "0x10"'),
        ("nodes: 1_000", 'nodes: expected a whole number of at least 1, not "1_000"'),
        ("nodes: 1e3", 'nodes: expected a whole number of at least 1, not "1e3"'),
        ("nodes: true", 'nodes: expected a whole number of at least 1, not "true"'),
        ("nodes: \u0661", 'nodes: expected a whole number of at least 1, not "\u0661"'),
        ("nodes: 2147483648", "nodes: expected a whole number of at least 1 and at most 2147483647, not 2147483648"),
        ("nodes: " + "9" * 5000, f'nodes: expected a whole number of at least 1, not "{"9" * 37}..."'),
        ("gpus_per_node: -1", "gpus_per_node: expected a whole number of at least 0, not -1"),
        ("cpus_per_task: 0", "cpus_per_task: expected a whole number of at least 1, not 0"),
        ("tasks_per_node: 0", "tasks_per_node: expected a whole number of at least 1, not 0"),
        ("gpu_type: h100", "gpu_type: expected gpus_per_node of at least 1 beside it"),
        ("memory: 0G", 'memory: expected a memory size above 0 (Slurm reads 0 as all of the node\'s memory), not "0G"'),
        ("time: 60", 'time: expected a duration with a unit, such as 60m or 60h, not "60"'),
        ("time: soon", f'time: {_ANY_DURATION}, not "soon"'),
        ("time: 0m", 'time: expected a duration longer than 0 (Slurm reads 0 as no limit), not "0m"'),
        ("time: 24856d", 'time: expected a duration of at most 24855d, not "24856d"'),
        ('partition: ""', 'partition: expected text on one line, not empty and without control characters, not ""'),
        ("exclude: a b", 'exclude: expected a Slurm host list such as node7 or node[01-04,9], not "a b"'),
        ("exclude: a@b", 'exclude: expected a Slurm host list such as node7 or node[01-04,9], not "a@b"'),
        ("exclude: a,", 'exclude: expected a Slurm host list such as node7 or node[01-04,9], not "a,"'),
        ("exclude: a[1-", 'exclude: expected a Slurm host list such as node7 or node[01-04,9], not "a[1-"'),
        ("exclude: a^b", 'exclude: expected a Slurm host list such as node7 or node[01-04,9], not "a^b"'),
        ("switches: 0", 'switches: expected COUNT or COUNT@DURATION, such as 1 or 1@2h, not "0"'),
        ("switches: two", 'switches: expected COUNT or COUNT@DURATION, such as 1 or 1@2h, not "two"'),
        ("switches: 1@", 'switches: expected COUNT or COUNT@DURATION, such as 1 or 1@2h, not "1@"'),
        ("switches: 1@60", 'switches: expected after the @ a duration with a unit, such as 60m or 60h, not "60"'),
    ],
)
def test_a_mistake_in_the_resources_is_told(line: str, expected: str) -> None:
    column = line.index(":") + 5
    assert problem(f"name: a\ncommand: b\nresources:\n  {line}\n") == f"4:{column}: resources.{expected}"


def test_a_gpu_type_cannot_smuggle_in_a_count() -> None:
    text = "name: a\ncommand: b\nresources: {gpus_per_node: 1, gpu_type: 'h100:4'}\n"
    assert problem(text).endswith('expected a GPU type of letters, digits, _ . + and -, such as h100, not "h100:4"')


@pytest.mark.parametrize("char", ["\n", "\r", "\t", "\x1b", "\x7f", "\x85", "\x9f", "\u2028", "\u2029"])
@pytest.mark.parametrize(
    "template",
    [
        "name: {}\ncommand: c",
        *(
            f"name: a\ncommand: c\nresources: {{{{gpus_per_node: 1, {name}: {{}}}}}}"
            for name in ("partition", "account", "qos", "reservation", "constraint", "exclude", "switches", "gpu_type")
        ),
        *(f"name: a\ncommand: c\n{name}: {{}}" for name in ("workdir", "env_file")),
        *(f"name: a\ncommand: c\n{name}: [{{}}]" for name in ("modules", "depends_on")),
        "name: a\ncommand: c\ncontainer: {{image: {}}}",
        "name: a\ncommand: c\ncontainer: {{image: i, workdir: {}}}",
        "name: a\ncommand: c\ncontainer: {{image: i, mounts: [{}]}}",
        "name: a\ncommand: c\ncheckpoint: {{dir: {}}}",
        "name: a\ngroups: [{{name: {}, command: c}}, {{name: g, command: c}}]",
    ],
)
def test_no_control_character_gets_into_a_directive_or_a_path(template: str, char: str) -> None:
    text = template.format(f'"x\\u{ord(char):04x}y"')
    assert "expected text on one line" in problem(text)
    assert "\n" not in problem(text)


@pytest.mark.parametrize(
    "line", ["command: TEXT", "command: [TEXT]", "script: TEXT", "command: c\nenv: {A: TEXT}",
             "command: c\nsweep: {parameters: {A: [TEXT]}}"]
)  # fmt: skip
def test_control_characters_are_kept_where_they_can_be(line: str) -> None:
    spec = load("name: a\n" + line.replace("TEXT", '"x\\t\\n\\r\\e\\x7f\\N\\L\\P"'))
    sweep = spec.sweep.parameters if spec.sweep else {}
    kept = (spec.command, (spec.command or " ")[0], spec.script, spec.env.get("A"), sweep.get("A", [""])[0])
    assert "x\t\n\r\x1b\x7f\x85\u2028\u2029" in kept


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("command: c", "1:1: name: missing: this field is required"),
        ("name:\ncommand: c", "1:6: name: expected a value, not nothing"),
        ('name: ""\ncommand: c', "1:7: name: expected text on one line, not empty and without control characters, "
         'not ""'),
        (f"name: {'n' * 65}\ncommand: c", f'1:7: name: expected a name of at most 64 characters, without /, '
         f'not "{"n" * 37}..."'),
        ("name: a", "1:1: command: missing: expected a command or a script"),
        ("name: a\ncommand:", "1:1: command: missing: expected a command or a script"),
        ('name: a\ncommand: " "', '2:10: command: expected text that is not empty, not " "'),
        ("name: a\ncommand: []", "2:10: command: expected a list of at least one value"),
        ("name: a\ncommand: {a: b}", "2:10: command: expected text or a list of text, not a mapping"),
        ("[a]", "1:1: expected fields such as name, not a list"),
        ("just text", '1:1: expected fields such as name, not "just text"'),
    ],
)  # fmt: skip
def test_what_a_spec_cannot_be_without(text: str, expected: str) -> None:
    assert problem(text) == expected


@pytest.mark.parametrize("value", ["null", "~", "", "Null", "NULL"])
def test_null_means_not_given(value: str) -> None:
    assert load(f"name: a\ncommand: b\nworkdir: {value}\nresources: {value}\nsweep: {value}\n") == load(
        "name: a\ncommand: b\n"
    )


def test_null_in_quotes_is_text() -> None:
    assert load('name: a\ncommand: b\nworkdir: "~"\n').workdir == "~"


@pytest.mark.parametrize("text", ["0123", "on", "1e-4", "2024-01-01", "0x10", "1_000", "04:00:00", ".inf", "=", "1:99"])
def test_text_is_kept_as_written(text: str) -> None:
    assert load(f"name: {text}\ncommand: b\nenv: {{A: {text}}}\n").name == text


@pytest.mark.parametrize("text", ["4:00:00", "1:30", "-1:30", "+1:30", "190:20:30", "1_0:30", "00:30.5"])
def test_numbers_of_base_60_are_refused_unquoted_and_kept_quoted(text: str) -> None:
    assert problem(f"name: {text}\ncommand: b\n").endswith(f'write "{text}" in quotes')
    assert load(f"name: '{text}'\ncommand: b\n").name == text


def test_what_is_refused_as_base_60_is_what_pyyaml_reads_as_a_number() -> None:
    import yaml

    for text in ("4:00:00", "1:30", "190:20:30.15", "04:00:00", "0:30", "1:99", "00:30.5", "1:2:3:4"):
        is_number = not isinstance(yaml.safe_load(text), str)
        try:
            load(f"name: {text}\ncommand: b\n")
            refused = False
        except SpecError:
            refused = True
        assert refused == is_number, text


def test_quotes_change_no_number_and_no_boolean() -> None:
    spec = load("name: a\ncommand: b\nresources: {nodes: '4'}\nrecovery: {requeue: 'true'}\n")
    assert (spec.resources.nodes, spec.recovery.requeue) == (4, True)


HET = """\
name: a
resources:
  nodes: 2
  gpus_per_node: 8
  gpu_type: h100
  account: acc
groups:
- name: train
  launch: torchrun
  command: x
- name: data
  resources: {nodes: 1, gpus_per_node: 0, memory: 64G}
  script: y
"""


def test_a_group_inherits_each_resource_that_it_does_not_write() -> None:
    assert load(HET).groups == (
        Group(
            name="train",
            resources=Resources(nodes=2, gpus_per_node=8, gpu_type="h100", account="acc"),
            launch=Launcher.TORCHRUN,
            command="x",
        ),
        Group(
            name="data",
            resources=Resources(nodes=1, memory=MemorySize(64 * 1024**2), account="acc"),
            script="y",
        ),
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("name: data", "name: train", "11:9: groups[1].name: expected a unique name: groups[0] is train too"),
        ("name: data", "name: 1a", "11:9: groups[1].name: expected a name of letters, digits, - and _, starting with "
         'a letter, not "1a"'),
        ("- name: data", "- nam: data", "11:3: groups[1].nam: no such field; did you mean name?"),
        ("  script: y\n", "", "11:3: groups[1].command: missing: expected a command or a script"),
        ("  script: y", "  script: y\n  command: z", "14:12: groups[1].command: expected either a command or a "
         "script, not both"),
        ("groups:", "command: z\ngroups:", "7:10: command: expected no command beside groups: each group has its own"),
        ("groups:", "script: z\ngroups:", "7:9: script: expected no script beside groups: each group has its own"),
        ("groups:", "launch: torchrun\ngroups:", "7:9: launch: expected no launch beside groups: each group has its "
         "own"),
        ("groups:", "sweep: {parameters: {A: [1]}}\ngroups:", "7:8: sweep: expected no sweep beside groups: Slurm has "
         "no arrays of heterogeneous jobs"),
        ("gpus_per_node: 0", "gpu_type: a100, gpus_per_node: 0", "12:35: groups[1].resources.gpu_type: expected "
         "gpus_per_node of at least 1 beside it"),
        ("  gpus_per_node: 8\n", "", "4:13: resources.gpu_type: expected gpus_per_node of at least 1 beside it"),
        ("  nodes: 2\n", "  nodes: 2\n  tasks_per_node: 8\n", "4:19: resources.tasks_per_node: expected 1, or nothing, "
         "under torchrun: it starts the processes of a node itself"),
        ("memory: 64G", "memory: 64", "12:51: groups[1].resources.memory: expected a memory size with a unit, such as "
         '64G or 512M, not "64"'),
        ("memory: 64G", "switches: x", "12:53: groups[1].resources.switches: expected COUNT or COUNT@DURATION, such as "
         '1 or 1@2h, not "x"'),
    ],
)  # fmt: skip
def test_the_rules_of_groups(old: str, new: str, expected: str) -> None:
    found = problems(HET.replace(old, new, 1))
    assert f"train.yaml:{expected}" in found
    assert len(found) == (2 if "nam: " in new and "name" not in new else 1)


def test_one_line_for_one_mistake_that_reaches_two_groups() -> None:
    text = HET.replace("  nodes: 2\n", "  nodes: 2\n  tasks_per_node: 8\n").replace(
        "script: y", "launch: torchrun\n  command: y.py"
    )
    assert problem(text).startswith("4:19: resources.tasks_per_node: expected 1, or nothing, under torchrun")


def test_one_group_is_too_few_and_an_empty_list_is_none() -> None:
    assert problem("name: a\ngroups: [{name: g, command: c}]\n") == "2:9: groups: expected at least two groups, or none"
    assert load("name: a\ncommand: b\ngroups: []\n").groups == ()


def test_a_group_may_lower_tasks_per_node_under_torchrun() -> None:
    text = HET.replace("  nodes: 2\n", "  nodes: 2\n  tasks_per_node: 8\n")
    assert load(text.replace("launch: torchrun", "launch: torchrun\n  resources: {tasks_per_node: 1}"))


def test_torchrun_starts_the_processes_of_a_node_itself() -> None:
    text = "name: a\ncommand: b\nlaunch: torchrun\nresources: {tasks_per_node: %d}\n"
    assert load(text % 1)
    assert problem(text % 8).startswith("4:29: resources.tasks_per_node: expected 1, or nothing, under torchrun")


def test_a_field_with_a_problem_is_not_judged_again() -> None:
    assert problem("name: a\ncommand: b\nresources: {gpus_per_node: x, gpu_type: h100}\n").startswith("3:28: ")
    assert problem("name: a\ncommand: [[x]]\n") == "2:11: command[0]: expected one value, not a list"


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ("{}", "3:8: sweep.parameters: missing: this field is required"),
        ("{parameters: {}}", "3:21: sweep.parameters: expected at least one name with a value"),
        ("{parameters: {A: []}}", "3:25: sweep.parameters.A: expected a list of at least one value"),
        ("{parameters: {A: 1}}", '3:25: sweep.parameters.A: expected a list, not "1"'),
        ("{parameters: {A: [[1]]}}", "3:26: sweep.parameters.A[0]: expected one value, not a list"),
        ("{parameters: {A-B: [1]}}", "3:22: sweep.parameters.A-B: expected the name of an environment variable "
         '(letters, digits and _), not "A-B"'),
        ("{parameters: {A: [1]}, max_parallel: 0}", "3:45: sweep.max_parallel: expected a whole number of at least 1, "
         "not 0"),
    ],
)  # fmt: skip
def test_the_rules_of_a_sweep(sweep: str, expected: str) -> None:
    assert problem(f"name: a\ncommand: b\nsweep: {sweep}\n") == expected


def test_a_sweep_may_be_as_large_as_slurms_largest_array() -> None:
    def text(*counts: int) -> str:
        lists = (f"P{index}: [{', '.join(['1'] * count)}]" for index, count in enumerate(counts))
        return f"name: a\ncommand: b\nsweep: {{parameters: {{{', '.join(lists)}}}}}\n"

    assert 577 * 6933 == 4_000_341
    assert problem(text(577, 6933)) == (
        "3:21: sweep.parameters: expected at most 4000001 combinations (Slurm's largest array), not 4000341"
    )
    assert load(text(577, 6932))


@pytest.mark.parametrize("name", ["SLURM_X", "SBATCH_X", "FLEETCTL_X"])
@pytest.mark.parametrize("place", ["env: {%s: x}", "sweep: {parameters: {%s: [x]}}"])
def test_the_names_that_slurm_and_fleetctl_use_are_reserved(name: str, place: str) -> None:
    assert "these are reserved" in problem(f"name: a\ncommand: b\n{place % name}\n")
    assert load(f"name: a\ncommand: b\n{place % 'SLURMX'}\n")
    assert load(f"name: a\ncommand: b\n{place % 'LD_LIBRARY_PATH'}\n")


def test_after_a_hundred_problems_the_rest_is_counted_and_no_longer_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    guesses: list[str] = []

    def guess(written: str, names: object) -> str:
        guesses.append(written)
        return "a guess"

    monkeypatch.setattr(walk, "guess", guess)
    text = "name: a\ncommand: b\n" + "".join(f"x{index}: 1\n" for index in range(150))
    found = problems(text)
    assert len(found) == 101
    assert found[-1] == "and 50 more problems"
    assert len(guesses) == 100


def test_a_good_spec_pays_for_no_difflib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "difflib", None)  # importing it now fails
    assert load(HET)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "launch: torchrun\nscript: x",
            "3:9: script: expected a command under torchrun: the Python file and its arguments",
        ),
        (
            "launch: torchrun\ncommand: python3 train.py",
            "3:10: command: expected the Python file and its arguments, without python3: torchrun starts Python itself",
        ),
        (
            "launch: torchrun\ncommand: [/usr/bin/python, train.py]",
            "3:10: command: expected the Python file and its arguments, without /usr/bin/python: "
            "torchrun starts Python itself",
        ),
        (
            "command: x\nenv: {LR: '1'}\nsweep: {parameters: {LR: ['1', '2']}}",
            "4:21: sweep.parameters: expected a name that env does not have: LR cannot have one value and many",
        ),
        (
            "command: x\nlaunch: command\ncontainer: {image: i}",
            "4:12: container: expected no container under launch: command, which starts srun itself: give srun the "
            "container",
        ),
        (
            "command: x\nrecovery: {chain: true}\nresources: {time: 1h}",
            "3:19: recovery.chain: expected a checkpoint section beside it: there is nothing to go on from",
        ),
        (
            "command: x\nrecovery: {chain: true}\ncheckpoint: {dir: c}",
            "3:19: recovery.chain: expected resources.time beside it: without a limit there is no chain",
        ),
        (
            "command: [x]\ncheckpoint: {dir: c, tell: arguments}",
            "3:28: checkpoint.tell: expected a format beside it whose framework reads it: huggingface, accelerate, "
            "lightning, megatron, torchtitan",
        ),
        (
            "command: [x]\ncheckpoint: {dir: c, format: deepspeed, tell: arguments}",
            "3:47: checkpoint.tell: expected a format beside it whose framework reads it: huggingface, accelerate, "
            "lightning, megatron, torchtitan",
        ),
        (
            "command: x\ncheckpoint: {dir: c, format: orbax, tell: pointer}",
            "3:43: checkpoint.tell: expected a format beside it whose framework reads it: deepspeed, megatron",
        ),
        (
            "command: train.py\ncheckpoint: {dir: c, format: lightning, tell: arguments}",
            '2:10: command: expected "$@" in it, where `checkpoint.tell: arguments` puts them; or a list, which they '
            "end",
        ),
        (
            "script: python train.py $@\ncheckpoint: {dir: c, format: lightning, tell: arguments}",
            '2:9: script: expected "$@" in it, where `checkpoint.tell: arguments` puts them; or a list, which they end',
        ),
        (
            "groups: [{name: a, command: [x]}, {name: b, command: [y]}]\n"
            "checkpoint: {dir: c, format: lightning, tell: arguments}",
            "3:47: checkpoint.tell: expected no arguments beside groups: it is not known which group is the training",
        ),
    ],
)
def test_what_does_not_fit_together(text: str, expected: str) -> None:
    assert problem(f"name: a\n{text}\n") == expected


@pytest.mark.parametrize(
    "program",
    ["command: [train.py, a]", 'command: train.py "$@"', 'script: |\n  cd x\n  python train.py "$@" | tee log'],
)
@pytest.mark.parametrize("form", ["huggingface", "megatron"])
def test_where_the_words_arrive_they_may_be_asked_for(program: str, form: str) -> None:
    spec = load(f"name: a\n{program}\ncheckpoint: {{dir: c, format: {form}, tell: arguments, verify: content}}\n")
    assert spec.checkpoint is not None
    assert (spec.checkpoint.tell.value, spec.checkpoint.verify.value) == ("arguments", "content")


def test_a_chain_with_both_is_read() -> None:
    assert load("name: a\ncommand: x\nresources: {time: 1h}\nrecovery: {chain: true}\ncheckpoint: {dir: c}\n")
