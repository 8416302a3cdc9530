"""Spec in, batch script out. Pure: the Jinja environment is handed in, and every word is quoted here.

Templates only lay out what is prepared here, so that no template can forget to quote.
"""

from __future__ import annotations

import posixpath
from math import prod
from typing import TYPE_CHECKING

from msgspec import Struct

from fleetctl.render.quote import directive_quote, path_pattern, sh_quote
from fleetctl.render.steps import Style, gpu_flags, ranks_of, step_words, tasks_per_node
from fleetctl.slurm.model import MemoryStyle
from fleetctl.spec.model import Auto, Checkpoint, CheckpointTell, CheckpointVerify, Group, Spec
from fleetctl.units import Duration, MemorySize

if TYPE_CHECKING:
    from jinja2 import Environment

_NOTICE_S = 120  # for a save before a preemption; Slurm may send it up to 60 s early (sbatch.1, --signal)
_MODULE_FUNCTION = (
    "if ! command -v module >/dev/null; then",
    "  for init in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh; do",
    "    # shellcheck source=/dev/null",
    '    if [ -r "$init" ]; then . "$init"; break; fi',
    "  done",
    "fi",
)


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
        " ".join(("--step", sh_quote(name), str(place), str(len(words)), *map(sh_quote, words)))
        for name, place, words in step_words(spec, _mounts(spec, context), style)
    ]
    return templates.get_template("sbatch.sh.j2").render(
        version=context.version,
        run_id=context.run_id,
        directives=directives,
        setup=[*_signal_lines(spec), *_export_lines(spec), *_sweep_lines(spec), *_module_lines(spec)],
        launch=[" ".join(_launch_words(spec, context)), *_policy_lines(spec, context), *steps],
    )


def parts(spec: Spec) -> tuple[Spec | Group, ...]:
    """What becomes one component of the job each: the groups of a hetjob, or the spec itself."""
    return spec.groups or (spec,)


def sweep_size(spec: Spec) -> int:
    """How many array elements the sweep has; 1 without a sweep."""
    return prod(len(values) for values in spec.sweep.parameters.values()) if spec.sweep else 1


def _job_directives(spec: Spec, context: Context) -> list[str]:
    """What holds for the whole job; in a hetjob it stands in the first component and propagates."""
    log_name = "slurm-%A_%a.out" if spec.sweep else "slurm-%j.out"
    lines = [
        f"--job-name={directive_quote(spec.name)}",
        f"--comment={directive_quote(context.comment)}",
        f"--chdir={directive_quote(context.workdir)}",
        f"--output={directive_quote(path_pattern(context.run_dir) + '/logs/' + log_name)}",
        "--open-mode=append",
        "--requeue" if may_restart(spec) else "--no-requeue",
    ]
    if may_restart(spec):  # a notice before a preemption, where the site sends one (slurm.conf.5, send_user_signal)
        lines.append(f"--signal=B:USR1@{_NOTICE_S}")
    if spec.resources.spare_nodes:  # the job outlives a dead node, and `launch` decides what runs where
        lines.append("--no-kill")
    if spec.sweep:
        limit = f"%{spec.sweep.max_parallel}" if spec.sweep.max_parallel else ""
        lines.append(f"--array=0-{sweep_size(spec) - 1}{limit}")
    if context.after:
        lines.append(f"--dependency={directive_quote('afterany:' + ':'.join(context.after))}")
    return lines


def may_restart(spec: Spec) -> bool:
    """Whether the run may be started again after a failure: by its own job side, and by Slurm."""
    return spec.recovery.requeue if spec.recovery.requeue is not None else spec.checkpoint is not None


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
    lines = [f"--nodes={asked.nodes + asked.spare_nodes}", f"--ntasks-per-node={tasks}"]
    if asked.cpus_per_task is not None:
        lines.append(f"--cpus-per-task={asked.cpus_per_task}")
    lines += gpu_flags(asked, style.gpus, directive_quote)
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


def _signal_lines(spec: Spec) -> list[str]:
    """Until the job side has its handler, the notice must not kill the shell; an ignored signal stays so over exec."""
    return ["", "trap '' USR1"] if may_restart(spec) else []


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


def _policy_lines(spec: Spec, context: Context) -> list[str]:
    """What the job side may do after a failure, and where it finds checkpoints."""
    words: list[str] = []
    if not spec.groups:  # a hetjob's groups are given by Slurm and do not change
        words += ["--nodes", str(spec.resources.nodes), "--spares", str(spec.resources.spare_nodes)]
    if may_restart(spec):
        words += ["--max-failures", str(spec.recovery.max_failures)]
    if spec.recovery.chain:
        words.append("--chain")
    if spec.checkpoint is not None:
        words += ["--checkpoint-dir", _checkpoint_dir(spec.checkpoint, context)]
        if spec.checkpoint.keep is not None:
            words += ["--checkpoint-keep", str(spec.checkpoint.keep)]
        if spec.checkpoint.keep_every is not None:
            words += ["--checkpoint-keep-every-s", str(spec.checkpoint.keep_every.seconds)]
        words += ["--checkpoint-format", spec.checkpoint.format.value, "--checkpoint-load", spec.checkpoint.load.value]
        words += _interval_words(spec.checkpoint.interval)
        words += _resume_words(spec, spec.checkpoint)
    return [" ".join(map(sh_quote, words))] if words else []


def _interval_words(interval: Duration | Auto | None) -> list[str]:
    match interval:
        case Auto():
            return ["--checkpoint-interval", interval.value]
        case Duration():
            return ["--checkpoint-interval-s", str(interval.seconds)]
    return []


def _resume_words(spec: Spec, checkpoint: Checkpoint) -> list[str]:
    """How deep a start looks, how it tells what it found, and how many ranks must be able to load it."""
    words: list[str] = []
    if checkpoint.verify is not CheckpointVerify.STRUCTURE:
        words += ["--checkpoint-verify", checkpoint.verify.value]
    if checkpoint.tell is not CheckpointTell.ENVIRONMENT:
        words += ["--checkpoint-tell", checkpoint.tell.value]
    ranks = ranks_of(spec)
    return [*words, "--checkpoint-ranks", str(ranks)] if ranks is not None else words


def _checkpoint_dir(checkpoint: Checkpoint, context: Context) -> str:
    return posixpath.normpath(posixpath.join(context.workdir, checkpoint.dir))


def _mounts(spec: Spec, context: Context) -> tuple[str, ...]:
    """Folders that fleetctl names to the training by their paths on the host."""
    return (context.run_dir, *((_checkpoint_dir(spec.checkpoint, context),) if spec.checkpoint is not None else ()))
