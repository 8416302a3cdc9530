"""The steps of a batch script: what is started on the nodes, as argument vectors. Pure."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from fleetctl.errors import UsageError
from fleetctl.slurm.model import GpuStyle, MemoryStyle
from fleetctl.spec.model import CheckpointTell, Container, ContainerRuntime, Group, Launcher, Resources, Spec

_MAX_WORD_BYTES = 131_071  # execve(2): MAX_ARG_STRLEN, 32 pages, with its NUL; the node would only say E2BIG
_RANKS = "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID"
_TORCHRUN = (
    "exec torchrun --nnodes={nodes} --nproc-per-node={nproc} --rdzv-backend=c10d "
    '--rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --rdzv-id="$FLEETCTL_RUN_ID.$FLEETCTL_ATTEMPT"'
)


class Style(Struct, frozen=True):
    """What a cluster profile says about flags."""

    gpus: GpuStyle = GpuStyle.GPUS_PER_NODE
    memory: MemoryStyle = MemoryStyle.PER_NODE


def tasks_per_node(asked: Resources, launch: Launcher) -> int:
    """One task per GPU under srun, one per node otherwise, unless the spec says."""
    if asked.tasks_per_node is not None:
        return asked.tasks_per_node
    return max(1, asked.gpus_per_node) if launch is Launcher.SRUN else 1


def ranks_of(spec: Spec) -> int | None:
    """How many ranks the training has, where the spec tells. A task that may start ranks of its own tells nothing: one
    that has several GPUs, and the only one of a node without."""
    asked = spec.resources
    if spec.groups or spec.launch is Launcher.COMMAND:
        return None
    if spec.launch is Launcher.TORCHRUN:
        return asked.nodes * _processes(asked)
    tasks = tasks_per_node(asked, spec.launch)
    return asked.nodes * tasks if tasks >= max(asked.gpus_per_node, 1) and (asked.gpus_per_node or tasks > 1) else None


def _processes(asked: Resources) -> int:
    """What torchrun starts on each node."""
    return max(1, asked.gpus_per_node)


def gpu_flags(asked: Resources, style: GpuStyle, quote: Any) -> list[str]:
    if not asked.gpus_per_node:
        return []
    if style is GpuStyle.NONE:
        raise UsageError("this cluster has no GPUs in Slurm's configuration, and the spec asks for some")
    kind = f"{asked.gpu_type}:" if asked.gpu_type else ""
    if style is GpuStyle.GRES:
        return [f"--gres={quote(f'gpu:{kind}{asked.gpus_per_node}')}"]
    return [f"--gpus-per-node={quote(f'{kind}{asked.gpus_per_node}')}"]


def step_words(spec: Spec, mounts: tuple[str, ...], style: Style) -> list[tuple[str, int, list[str]]]:
    """Each step: its name, where in its words the job side may say which nodes it runs on (0: nowhere), the words."""
    if not spec.groups:
        words = _step_words(spec, spec, mounts, style, het_group=None)
        return [_placed("train", [], [*words, *_last_word(spec)])]
    steps = []
    for index, group in enumerate(spec.groups):
        words = _step_words(spec, group, mounts, style, het_group=index)
        steps.append(_placed(group.name, _env_words(group), words))
    return steps


def _last_word(spec: Spec) -> list[str]:
    """What the job side appends is "$@" of a text then: bash takes the first word after the text for its own name."""
    told = spec.checkpoint is not None and spec.checkpoint.tell is CheckpointTell.ARGUMENTS
    return ["task"] if told and not isinstance(spec.command, tuple) else []


def _placed(name: str, before: list[str], words: list[str]) -> tuple[str, int, list[str]]:
    place = len(before) + 1 if words[0] == "srun" else 0
    return name, place, [*before, *words]


def _env_words(group: Group) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in group.env.items())] if group.env else []


def _step_words(
    spec: Spec, part: Spec | Group, mounts: tuple[str, ...], style: Style, *, het_group: int | None
) -> list[str]:
    launch, asked = part.launch, part.resources
    text = part.script if part.script is not None else part.command
    assert text is not None, "load_spec sees to it"
    if any(len(word.encode("utf-8", "surrogateescape")) > _MAX_WORD_BYTES for word in _words_of(text)):
        raise UsageError(
            "a command longer than 128 KiB cannot be started on Linux", remedy="put it into a file, and run the file"
        )
    if launch is Launcher.COMMAND:
        return ["bash", "-c", text] if isinstance(text, str) else list(text)
    tasks = tasks_per_node(asked, launch)
    srun = ["srun", f"--nodes={asked.nodes}", f"--ntasks={asked.nodes * tasks}", f"--ntasks-per-node={tasks}"]
    if asked.cpus_per_task is not None:  # said again: srun of 22.05 and 23.02 ignores SLURM_CPUS_PER_TASK (srun.1)
        srun.append(f"--cpus-per-task={asked.cpus_per_task}")
    srun += gpu_flags(asked, style.gpus, str)
    srun += ["--kill-on-bad-exit=1", "--export=ALL"]  # one dead rank leaves the others waiting for ever
    if het_group is not None:
        srun.append(f"--het-group={het_group}")
    inner = _torchrun(asked, text) if launch is Launcher.TORCHRUN else _ranked(text)
    return [*srun, *_contained(spec.container, mounts, inner)]


def _words_of(text: str | tuple[str, ...]) -> tuple[str, ...]:
    return (f"{_RANKS}{text}",) if isinstance(text, str) else text


def _ranked(text: str | tuple[str, ...]) -> list[str]:
    """The names that PyTorch and others read, set in each task; the command then takes the shell's place."""
    if isinstance(text, str):
        return ["bash", "-c", f"{_RANKS}\n{text}"]
    return ["bash", "-c", f'{_RANKS}\nexec "$@"', "task", *text]


def _torchrun(asked: Resources, text: str | tuple[str, ...]) -> list[str]:
    start = _TORCHRUN.format(nodes=asked.nodes, nproc=_processes(asked))
    if isinstance(text, str):
        return ["bash", "-c", f"{start} {text}"]
    return ["bash", "-c", f'{start} "$@"', "torchrun", *text]


def _contained(container: Container | None, paths: tuple[str, ...], inner: list[str]) -> list[str]:
    """Container flags go to srun (pyxis) or before the command (apptainer). `paths` are mounted where they are: the run
    directory, where progress is written and fleetctl.train is read, and the checkpoint directory."""
    if container is None:
        return inner
    for path in paths:
        if "," in path or ":" in path:
            raise UsageError(f"{path!r} has a comma or a colon, which a container mount cannot keep")
    mounts = (*container.mounts, *(f"{path}:{path}" for path in paths))
    if container.runtime is ContainerRuntime.PYXIS:
        flags = [f"--container-image={container.image}"]
        flags.append(f"--container-mounts={','.join(mounts)}")
        flags += [f"--container-workdir={container.workdir}"] if container.workdir else []
        return [*flags, *inner]
    words = ["apptainer", "exec", "--nv"]
    for mount in mounts:
        words += ["--bind", mount]
    words += ["--pwd", container.workdir] if container.workdir else []
    return [*words, container.image, *inner]
