"""Quoting and the arithmetic of scripts; whole scripts are under tests/golden."""

from __future__ import annotations

import pytest

from fleetctl.errors import UsageError
from fleetctl.render.quote import directive_quote, path_pattern, sh_quote
from fleetctl.render.script import Context, render, sweep_size
from fleetctl.render.steps import Style, ranks_of
from fleetctl.slurm.model import GpuStyle, MemoryStyle
from fleetctl.spec.model import (
    Checkpoint,
    CheckpointFormat,
    CheckpointTell,
    CheckpointVerify,
    Group,
    Launcher,
    Recovery,
    Resources,
    Spec,
    Sweep,
)
from fleetctl.submission.templates import template_environment
from fleetctl.units import MemorySize

CONTEXT = Context(
    run_id="r", run_dir="/runs/r", submission=1, comment="fleetctl:r/1", python="/py", workdir="/w", version="0"
)


def script(spec: Spec, style: Style = Style()) -> str:
    return render(spec, CONTEXT, style, template_environment(()))


def test_a_backslash_is_doubled_since_slurm_unescapes_inside_both_quotes() -> None:
    assert directive_quote(r"a\b'c") == '"a\\\\b\'c"'
    assert directive_quote('say "x" #1') == '"say \\"x\\" #1"'


@pytest.mark.parametrize("char", ["\n", "\r", "\t", "\x00", "\x1f", "\x7f", "\x85", "\u2028", "\u2029"])
def test_a_control_character_is_refused_in_a_directive(char: str) -> None:
    with pytest.raises(UsageError, match="control character"):
        directive_quote(f"a{char}b")


def test_percent_is_escaped_and_a_backslash_refused_in_the_log_path() -> None:
    assert path_pattern("/a%j/b") == "/a%%j/b"
    with pytest.raises(UsageError, match="backslash"):
        path_pattern("/a\\b")


def test_a_carriage_return_never_stands_raw_in_the_script() -> None:
    assert "\r" not in sh_quote("a\r\nb")
    assert sh_quote("a'b") == "'a'\\''b'"
    assert sh_quote("") == "''"


def test_an_unset_value_emits_no_line() -> None:
    text = script(Spec(name="n", command="true"))
    for flag in ("--gpus", "--gres", "--mem", "--time", "--partition", "--cpus-per-task", "--array", "--dependency"):
        assert flag not in text


def test_all_directives_come_before_the_first_command() -> None:
    lines = script(Spec(name="n", command="true", env={"A": "#SBATCH --wrong"})).splitlines()
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first_command:])


@pytest.mark.parametrize(
    ("checkpoint", "requeue", "expected"),
    [
        (None, None, "--no-requeue"),
        (Checkpoint(dir="c"), None, "--requeue"),
        (None, True, "--requeue"),
        (Checkpoint(dir="c"), False, "--no-requeue"),
    ],
)
def test_requeue_is_always_said(checkpoint: Checkpoint | None, requeue: bool | None, expected: str) -> None:
    text = script(Spec(name="n", command="true", checkpoint=checkpoint, recovery=Recovery(requeue=requeue)))
    assert f"#SBATCH {expected}\n" in text


def test_gpus_and_memory_follow_the_cluster() -> None:
    asked = Resources(
        gpus_per_node=4, gpu_type="a100", tasks_per_node=4, cpus_per_task=8, memory=MemorySize.parse("64G")
    )
    spec = Spec(name="n", resources=asked, command="true")
    modern, old = script(spec), script(spec, Style(GpuStyle.GRES, MemoryStyle.PER_CPU))
    assert '--gpus-per-node="a100:4"' in modern
    assert "--mem=64G" in modern
    assert "--gres" not in modern
    assert '--gres="gpu:a100:4"' in old
    assert "--mem-per-cpu=2G" in old
    assert "--gpus-per-node" not in old


def test_a_cluster_without_gpus_refuses_them_in_words() -> None:
    with pytest.raises(UsageError, match="has no GPUs"):
        script(Spec(name="n", resources=Resources(gpus_per_node=1), command="true"), Style(gpus=GpuStyle.NONE))


def test_a_group_asks_for_the_tasks_that_its_own_launcher_starts() -> None:
    gpus = Resources(gpus_per_node=8)
    groups = (
        Group(name="a", resources=gpus, launch=Launcher.TORCHRUN, command="train.py"),
        Group(name="b", resources=gpus, command="evaluate"),
    )
    lines = script(Spec(name="n", groups=groups)).splitlines()
    assert [line for line in lines if line.startswith("#SBATCH --ntasks")] == [
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --ntasks-per-node=8",
    ]


def test_a_command_that_linux_cannot_start_is_refused() -> None:
    with pytest.raises(UsageError, match="128 KiB"):
        script(Spec(name="n", command="x" * 131_072))
    assert script(Spec(name="n", command=tuple(["x" * 100_000] * 3)))


def test_the_array_has_one_element_per_combination() -> None:
    sweep = Sweep(parameters={"A": ("1", "2", "3"), "B": ("x", "y")}, max_parallel=2)
    spec = Spec(name="n", command="true", sweep=sweep)
    assert sweep_size(spec) == 6
    text = script(spec)
    assert "--array=0-5%2\n" in text
    assert 'export A="${fleetctl_values[SLURM_ARRAY_TASK_ID / 2 % 3]}"' in text
    assert 'export B="${fleetctl_values[SLURM_ARRAY_TASK_ID / 1 % 2]}"' in text


@pytest.mark.parametrize(
    ("launch", "resources", "ranks"),
    [
        (Launcher.TORCHRUN, Resources(nodes=2, gpus_per_node=8), 16),
        (Launcher.TORCHRUN, Resources(nodes=2), 2),
        (Launcher.SRUN, Resources(nodes=2, gpus_per_node=8), 16),
        (Launcher.SRUN, Resources(nodes=2, tasks_per_node=4), 8),
        (Launcher.SRUN, Resources(nodes=2, spare_nodes=3, gpus_per_node=1), 2),
        (Launcher.SRUN, Resources(nodes=2, gpus_per_node=8, tasks_per_node=1), None),
        (Launcher.SRUN, Resources(nodes=2), None),
        (Launcher.COMMAND, Resources(nodes=2, gpus_per_node=8), None),
    ],
)
def test_ranks_are_told_only_where_a_task_is_sure_to_be_one(
    launch: Launcher, resources: Resources, ranks: int | None
) -> None:
    spec = Spec(name="n", command="x", launch=launch, resources=resources, checkpoint=Checkpoint(dir="c"))
    assert ranks_of(spec) == ranks
    assert (f"--checkpoint-ranks {ranks}" in script(spec)) is (ranks is not None)
    groups = tuple(Group(name=name, command="x", launch=launch, resources=resources) for name in "ab")
    assert ranks_of(Spec(name="n", groups=groups)) is None


def test_how_a_start_looks_and_tells_stands_in_the_script() -> None:
    asked = Checkpoint(
        dir="c", format=CheckpointFormat.MEGATRON, verify=CheckpointVerify.CONTENT, tell=CheckpointTell.POINTER
    )
    assert "--checkpoint-verify content --checkpoint-tell pointer" in script(
        Spec(name="n", command="x", checkpoint=asked)
    )
    plain = script(Spec(name="n", command="x", checkpoint=Checkpoint(dir="c")))
    assert "--checkpoint-verify" not in plain
    assert "--checkpoint-tell" not in plain
