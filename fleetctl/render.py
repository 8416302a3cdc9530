"""Spec in, batch script out. Pure: the Jinja environment is handed in, and every word is quoted here.

Templates only lay out what is prepared here, so that no template can forget to quote.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from fleetctl.errors import UsageError
from fleetctl.slurm.model import GpuStyle, MemoryStyle
from fleetctl.spec.model import Container, ContainerRuntime, Group, Launcher, Resources, Spec
from fleetctl.units import Duration, MemorySize

if TYPE_CHECKING:
    from jinja2 import Environment

_SHELL_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)
_CONTROL = r"[\x00-\x1f\x7f-\x9f\u2028\u2029]"
_UNSAFE_IN_SCRIPT = r"[\x01-\x08\x0b-\x1f\x7f]"  # all but tab and newline
_MODULE_FUNCTION = (
    "if ! command -v module >/dev/null; then",
    "  for init in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh; do",
    "    # shellcheck source=/dev/null",
    '    if [ -r "$init" ]; then . "$init"; break; fi',
    "  done",
    "fi",
)
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


class Context(Struct, frozen=True):
    """What the script must know besides the spec. Paths are absolute; `after` are job ids, `needs` run directories."""

    run_id: str
    run_dir: str
    submission: int
    comment: str
    python: str
    workdir: str
    version: str
    env_file: str | None = None
    after: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


def render(spec: Spec, context: Context, style: Style, templates: Environment) -> str:
    """The whole batch script.

    :raises UsageError: something cannot be kept in a script (a control character in a path, no GPUs on this cluster).
    :raises jinja2.TemplateError: a user's template is broken, or names what does not exist.
    """
    components = [_directives(part, style) for part in parts(spec)]
    directives = _job_directives(spec, context) + components[0]
    for component in components[1:]:
        directives += ["hetjob", *component]
    steps = [
        " ".join(("--step", sh_quote(name), str(len(words)), *map(sh_quote, words)))
        for name, words in _steps(spec, context.run_dir, style)
    ]
    return templates.get_template("sbatch.sh.j2").render(
        version=context.version,
        run_id=context.run_id,
        directives=directives,
        setup=[*_export_lines(spec), *_sweep_lines(spec), *_module_lines(spec)],
        launch=[" ".join(_launch_words(spec, context)), *steps],
    )


def parts(spec: Spec) -> tuple[Spec | Group, ...]:
    """What becomes one component of the job each: the groups of a hetjob, or the spec itself."""
    return spec.groups or (spec,)


def sweep_size(spec: Spec) -> int:
    """How many array elements the sweep has; 1 without a sweep."""
    return prod(len(values) for values in spec.sweep.parameters.values()) if spec.sweep else 1


def directive_quote(value: str) -> str:
    """Quote for a #SBATCH line: a backslash escapes inside both kinds of quotes (src/sbatch/opt.c, get_argument).

    :raises UsageError: a control character, which no quoting keeps on one line.
    """
    if not value.isprintable() and re.search(_CONTROL, value):
        raise UsageError(f"{value!r} has a control character, which an #SBATCH line cannot keep")
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def sh_quote(value: str) -> str:
    """Quote for bash. Control characters are spelled out: sbatch refuses a script with a DOS line break."""
    if _SHELL_SAFE.fullmatch(value):
        return value
    if not value.isprintable() and re.search(_UNSAFE_IN_SCRIPT, value):
        return "$'" + "".join(_ansi_c(char) for char in value) + "'"
    return "'" + value.replace("'", "'\\''") + "'"


def _ansi_c(char: str) -> str:
    if char in "\\'":
        return "\\" + char
    return f"\\{ord(char):03o}" if ord(char) < 0x20 or ord(char) == 0x7F else char


def path_pattern(path: str) -> str:
    """A path for --output: `%` doubled; a backslash would switch the whole pattern off (sbatch.1, filename pattern).

    :raises UsageError: the path has a backslash.
    """
    if "\\" in path:
        raise UsageError(f"{path!r} has a backslash, which Slurm cannot keep in --output; choose another run root")
    return path.replace("%", "%%")


def _job_directives(spec: Spec, context: Context) -> list[str]:
    """What holds for the whole job; in a hetjob it stands in the first component and propagates."""
    log_name = "slurm-%A_%a.out" if spec.sweep else "slurm-%j.out"
    requeue = spec.recovery.requeue if spec.recovery.requeue is not None else spec.checkpoint is not None
    lines = [
        f"--job-name={directive_quote(spec.name)}",
        f"--comment={directive_quote(context.comment)}",
        f"--chdir={directive_quote(context.workdir)}",
        f"--output={directive_quote(path_pattern(context.run_dir) + '/logs/' + log_name)}",
        "--open-mode=append",
        "--requeue" if requeue else "--no-requeue",
    ]
    if spec.sweep:
        limit = f"%{spec.sweep.max_parallel}" if spec.sweep.max_parallel else ""
        lines.append(f"--array=0-{sweep_size(spec) - 1}{limit}")
    if context.after:
        lines.append(f"--dependency={directive_quote('afterany:' + ':'.join(context.after))}")
    return lines


def _directives(part: Spec | Group, style: Style) -> list[str]:
    """What one component asks for. A value that was not given emits no line."""
    asked = part.resources
    tasks = tasks_per_node(asked, part.launch)
    named = (
        ("--partition", asked.partition),
        ("--account", asked.account),
        ("--qos", asked.qos),
        ("--reservation", asked.reservation),
        ("--constraint", asked.constraint),
        ("--exclude", asked.exclude),
        ("--switches", _switches(asked.switches)),
    )
    lines = [f"--nodes={asked.nodes}", f"--ntasks-per-node={tasks}"]
    if asked.cpus_per_task is not None:
        lines.append(f"--cpus-per-task={asked.cpus_per_task}")
    lines += _gpu_flags(asked, style.gpus, directive_quote)
    if asked.memory is not None and style.memory is MemoryStyle.PER_NODE:
        lines.append(f"--mem={asked.memory}")
    if asked.memory is not None and style.memory is MemoryStyle.PER_CPU:
        lines.append(f"--mem-per-cpu={MemorySize(-(-asked.memory.kib // (tasks * (asked.cpus_per_task or 1))))}")
    if asked.time is not None:
        lines.append(f"--time={asked.time.slurm()}")
    return lines + [f"{flag}={directive_quote(value)}" for flag, value in named if value is not None]


def _switches(text: str | None) -> str | None:
    """COUNT@TIME with the time in the form that Slurm reads."""
    count, at, wait = (text or "").partition("@")
    return f"{count}@{Duration.parse(wait).slurm()}" if at else text


def tasks_per_node(asked: Resources, launch: Launcher) -> int:
    """One task per GPU under srun, one per node otherwise, unless the spec says."""
    if asked.tasks_per_node is not None:
        return asked.tasks_per_node
    return max(1, asked.gpus_per_node) if launch is Launcher.SRUN else 1


def _gpu_flags(asked: Resources, style: GpuStyle, quote: Any) -> list[str]:
    if not asked.gpus_per_node:
        return []
    if style is GpuStyle.NONE:
        raise UsageError("this cluster has no GPUs in Slurm's configuration, and the spec asks for some")
    kind = f"{asked.gpu_type}:" if asked.gpu_type else ""
    if style is GpuStyle.GRES:
        return [f"--gres={quote(f'gpu:{kind}{asked.gpus_per_node}')}"]
    return [f"--gpus-per-node={quote(f'{kind}{asked.gpus_per_node}')}"]


def _export_lines(spec: Spec) -> list[str]:
    lines = [f"export {name}={sh_quote(value)}" for name, value in spec.env.items()]
    return ["", *lines] if lines else []


def _module_lines(spec: Spec) -> list[str]:
    """`module` is a function of login shells, which a batch shell is not."""
    loads = [f"module load {sh_quote(module)} || exit 1" for module in spec.modules]
    return ["", *_MODULE_FUNCTION, *loads] if loads else []


def _sweep_lines(spec: Spec) -> list[str]:
    """For each parameter a bash array and the element's own value: index / stride % count, the last one fastest."""
    if not spec.sweep:
        return []
    lines, stride = ["", "# The values of this element of the sweep"], sweep_size(spec)
    for name, values in spec.sweep.parameters.items():
        stride //= len(values)
        lines.append(f"fleetctl_values=({' '.join(sh_quote(value) for value in values)})")
        lines.append(f'export {name}="${{fleetctl_values[SLURM_ARRAY_TASK_ID / {stride} % {len(values)}]}}"')
    return lines


def _launch_words(spec: Spec, context: Context) -> list[str]:
    """The job side's own command line, without the steps. `-I` keeps the working directory from shadowing modules."""
    words = [context.python, "-I", "-m", "fleetctl.launch"]
    words += ["--run-dir", context.run_dir, "--submission", str(context.submission)]
    if context.env_file is not None:
        words += ["--env-file", context.env_file]
    for needed in context.needs:
        words += ["--needs", needed]
    return [sh_quote(word) for word in words]


def _steps(spec: Spec, run_dir: str, style: Style) -> list[tuple[str, list[str]]]:
    """Name and argument vector of each step."""
    if not spec.groups:
        return [("train", _step_words(spec, spec, run_dir, style, het_group=None))]
    steps = []
    for index, group in enumerate(spec.groups):
        words = _step_words(spec, group, run_dir, style, het_group=index)
        steps.append((group.name, _with_env(group, words)))
    return steps


def _with_env(group: Group, words: list[str]) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in group.env.items()), *words] if group.env else words


def _step_words(spec: Spec, part: Spec | Group, run_dir: str, style: Style, *, het_group: int | None) -> list[str]:
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
    srun += _gpu_flags(asked, style.gpus, str)
    srun += ["--kill-on-bad-exit=1", "--export=ALL"]  # one dead rank leaves the others waiting for ever
    if het_group is not None:
        srun.append(f"--het-group={het_group}")
    inner = _torchrun(asked, text) if launch is Launcher.TORCHRUN else _ranked(text)
    return [*srun, *_contained(spec.container, run_dir, inner)]


def _words_of(text: str | tuple[str, ...]) -> tuple[str, ...]:
    return (f"{_RANKS}{text}",) if isinstance(text, str) else text


def _ranked(text: str | tuple[str, ...]) -> list[str]:
    """The names that PyTorch and others read, set in each task; the command then takes the shell's place."""
    if isinstance(text, str):
        return ["bash", "-c", f"{_RANKS}\n{text}"]
    return ["bash", "-c", f'{_RANKS}\nexec "$@"', "task", *text]


def _torchrun(asked: Resources, text: str | tuple[str, ...]) -> list[str]:
    start = _TORCHRUN.format(nodes=asked.nodes, nproc=max(1, asked.gpus_per_node))
    if isinstance(text, str):
        return ["bash", "-c", f"{start} {text}"]
    return ["bash", "-c", f'{start} "$@"', "torchrun", *text]


def _contained(container: Container | None, run_dir: str, inner: list[str]) -> list[str]:
    """Container flags go to srun (pyxis) or before the command (apptainer). The run directory is mounted where it is:
    progress is written there, and fleetctl.train is read from there."""
    if container is None:
        return inner
    if "," in run_dir or ":" in run_dir:
        raise UsageError(f"{run_dir!r} has a comma or a colon, which a container mount cannot keep")
    mounts = (*container.mounts, f"{run_dir}:{run_dir}")
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
