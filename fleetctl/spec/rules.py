"""Rules across fields. Each looks only at what could be read: a field with a problem of its own is not judged again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Any

from fleetctl.spec.model import CheckpointFormat, CheckpointTell, Launcher
from fleetctl.spec.problems import Place, Problems, shown
from fleetctl.spec.walk import Section, join
from fleetctl.units import Duration

MAX_ELEMENTS = 4_000_001  # slurm.conf.5, MaxArraySize: the most that a site can allow
# The formats whose framework has words for it, and those whose framework keeps a pointer; fleetctl.launch.tell has them
TOLD_BY_ARGUMENTS = (
    CheckpointFormat.HUGGINGFACE,
    CheckpointFormat.ACCELERATE,
    CheckpointFormat.LIGHTNING,
    CheckpointFormat.MEGATRON,
    CheckpointFormat.TORCHTITAN,
)
TOLD_BY_POINTER = (CheckpointFormat.DEEPSPEED, CheckpointFormat.MEGATRON)
_SWITCHES = "([1-9][0-9]{0,8})(?:@(.+))?"


def check(spec: Section, problems: Problems) -> None:
    """All of them."""
    if "groups" in spec.places and spec.values.get("groups") != ():
        _check_groups(spec, problems)
    else:
        _check_program(spec, "", problems)
        own = spec.values.get("resources")
        if isinstance(own, Section):
            _check_gpu_type(own, own.values, "resources", problems)
            _check_torchrun(spec, own, "resources", problems)
    for path, resources in _all_resources(spec):
        _check_switches(resources, path, problems)
    for path, starter in (("", spec), *groups_of(spec)):
        _check_torchrun_program(starter, path, problems)
    _check_sweep(spec, problems)
    _check_chain(spec, problems)
    _check_keep(spec, problems)
    _check_tell(spec, problems)
    _check_spares(spec, problems)
    starters = [spec, *(group for _, group in groups_of(spec))]
    if "container" in spec.places and any(one.values.get("launch") is Launcher.COMMAND for one in starters):
        text = "expected no container under launch: command, which starts srun itself: give srun the container"
        problems.add(spec.places["container"], "container", text)


def groups_of(spec: Section) -> list[tuple[str, Section]]:
    """The groups that could be read, each with its path."""
    groups: tuple[Any, ...] = spec.values.get("groups", ())
    return [(f"groups[{index}]", group) for index, group in enumerate(groups) if isinstance(group, Section)]


def inherited(spec: Section, group: Section) -> dict[str, Any]:
    """The resources of a group: what it wrote, else what the spec wrote.

    A group that writes `gpus_per_node: 0` does not inherit the GPUs' type either.
    """
    top, own = _written(spec), _written(group)
    merged = {**top, **own}
    if own.get("gpus_per_node") == 0 and "gpu_type" not in own:
        merged.pop("gpu_type", None)
    return merged


def _written(section: Section) -> dict[str, Any]:
    resources = section.values.get("resources")
    return resources.values if isinstance(resources, Section) else {}


def _all_resources(spec: Section) -> Iterator[tuple[str, Section]]:
    for path, section in (("", spec), *groups_of(spec)):
        resources = section.values.get("resources")
        if isinstance(resources, Section):
            yield join(path, "resources"), resources


def _check_program(section: Section, path: str, problems: Problems) -> None:
    written = [name for name in ("command", "script") if name in section.places]
    if not written:
        problems.add(section.place, join(path, "command"), "missing: expected a command or a script")
    if len(written) > 1:
        later = max(written, key=lambda name: section.places[name].order())
        problems.add(section.places[later], join(path, later), "expected either a command or a script, not both")


def _check_groups(spec: Section, problems: Problems) -> None:
    for name in ("command", "script"):
        if name in spec.places:
            problems.add(spec.places[name], name, f"expected no {name} beside groups: each group has its own")
    if spec.values.get("launch", Launcher.SRUN) is not Launcher.SRUN:
        problems.add(spec.places["launch"], "launch", "expected no launch beside groups: each group has its own")
    if "sweep" in spec.places:
        problems.add(
            spec.places["sweep"], "sweep", "expected no sweep beside groups: Slurm has no arrays of heterogeneous jobs"
        )
    if len(spec.values.get("groups", (None, None))) < 2:
        problems.add(spec.places["groups"], "groups", "expected at least two groups, or none")
    names: dict[str, str] = {}
    for path, group in groups_of(spec):
        _check_program(group, path, problems)
        _check_unique(group, path, names, problems)
    _check_group_resources(spec, problems)


def _check_unique(group: Section, path: str, names: dict[str, str], problems: Problems) -> None:
    name = group.values.get("name")
    if isinstance(name, str) and names.setdefault(name, path) != path:
        problems.add(group.places["name"], f"{path}.name", f"expected a unique name: {names[name]} is {name} too")


def _check_group_resources(spec: Section, problems: Problems) -> None:
    any_gpus = False
    for path, group in groups_of(spec):
        merged = inherited(spec, group)
        any_gpus |= _gpus(group, merged) != 0
        own = group.values.get("resources")
        top = spec.values.get("resources")
        if isinstance(own, Section):
            _check_gpu_type(own, merged, f"{path}.resources", problems)
        if isinstance(own, Section) and "tasks_per_node" in own.places:
            _check_torchrun(group, own, f"{path}.resources", problems)
        elif isinstance(top, Section):
            _check_torchrun(group, top, "resources", problems)
    top = spec.values.get("resources")
    if isinstance(top, Section) and not any_gpus:
        _check_gpu_type(top, {}, "resources", problems)


def _gpus(group: Section, merged: dict[str, Any]) -> int | None:
    """None if what was written could not be read."""
    resources = group.values.get("resources")
    unread = isinstance(resources, Section) and "gpus_per_node" in resources.places.keys() - resources.values.keys()
    return None if unread else merged.get("gpus_per_node", 0)


def _check_gpu_type(own: Section, merged: dict[str, Any], path: str, problems: Problems) -> None:
    unread = "gpus_per_node" in own.places.keys() - own.values.keys()
    if "gpu_type" in own.places and not unread and not merged.get("gpus_per_node", 0):
        problems.add(own.places["gpu_type"], f"{path}.gpu_type", "expected gpus_per_node of at least 1 beside it")


def _check_torchrun(starter: Section, resources: Section, path: str, problems: Problems) -> None:
    if starter.values.get("launch") is Launcher.TORCHRUN and resources.values.get("tasks_per_node", 1) != 1:
        where = resources.places["tasks_per_node"]
        text = "expected 1, or nothing, under torchrun: it starts the processes of a node itself"
        problems.add(where, f"{path}.tasks_per_node", text)


def _check_torchrun_program(starter: Section, path: str, problems: Problems) -> None:
    """torchrun takes the Python file and its arguments, not a shell script and not an interpreter."""
    if starter.values.get("launch") is not Launcher.TORCHRUN:
        return
    if "script" in starter.places:
        text = "expected a command under torchrun: the Python file and its arguments"
        problems.add(starter.places["script"], join(path, "script"), text)
    command = starter.values.get("command")
    first = (command.split() or [""])[0] if isinstance(command, str) else (command or ("",))[0]
    if isinstance(first, str) and re.fullmatch(r"(.*/)?(python[0-9.]*|torchrun)", first):
        text = f"expected the Python file and its arguments, without {first}: torchrun starts Python itself"
        problems.add(starter.places["command"], join(path, "command"), text)


def _check_chain(spec: Section, problems: Problems) -> None:
    """A chain saves before the time limit and goes on after it: it needs both."""
    recovery, resources = spec.values.get("recovery"), spec.values.get("resources")
    if not isinstance(recovery, Section) or not recovery.values.get("chain"):
        return
    place = recovery.places["chain"]
    if "checkpoint" not in spec.places:
        problems.add(place, "recovery.chain", "expected a checkpoint section beside it: there is nothing to go on from")
    if recovery.values.get("requeue") is False:
        problems.add(place, "recovery.chain", "expected no requeue: false beside it: a chain requeues itself")
    timed = [section for _, section in _all_resources(spec) if "time" in section.places]
    if not timed and (resources is None or isinstance(resources, Section)):
        problems.add(place, "recovery.chain", "expected resources.time beside it: without a limit there is no chain")


def _check_keep(spec: Section, problems: Problems) -> None:
    """One in every so long is of what `keep` would let go."""
    checkpoint = spec.values.get("checkpoint")
    if not isinstance(checkpoint, Section) or checkpoint.values.get("keep_every") is None:
        return
    if checkpoint.values.get("keep") is None:
        place = checkpoint.places["keep_every"]
        problems.add(place, "checkpoint.keep_every", "expected keep beside it: without it nothing is ever removed")


def _check_tell(spec: Section, problems: Problems) -> None:
    """Only what a framework really reads, and only where the words reach it."""
    checkpoint = spec.values.get("checkpoint")
    if not isinstance(checkpoint, Section):
        return
    tell, form = checkpoint.values.get("tell"), checkpoint.values.get("format", CheckpointFormat.AUTO)
    if tell not in (CheckpointTell.ARGUMENTS, CheckpointTell.POINTER):
        return
    formats = TOLD_BY_ARGUMENTS if tell is CheckpointTell.ARGUMENTS else TOLD_BY_POINTER
    place = checkpoint.places["tell"]
    if form not in formats and ("format" not in checkpoint.places or "format" in checkpoint.values):
        names = ", ".join(formats)
        problems.add(place, "checkpoint.tell", f"expected a format beside it whose framework reads it: {names}")
    if tell is CheckpointTell.ARGUMENTS:
        _check_words_arrive(spec, place, problems)


def _check_words_arrive(spec: Section, place: Place, problems: Problems) -> None:
    """They are appended to a list. A text is bash's: only its writer knows which of its words is the training."""
    if "groups" in spec.places and spec.values.get("groups") != ():
        text = "expected no arguments beside groups: it is not known which group is the training"
        problems.add(place, "checkpoint.tell", text)
    for name in ("command", "script"):
        words = spec.values.get(name)
        if isinstance(words, str) and '"$@"' not in words:
            text = 'expected "$@" in it, where `checkpoint.tell: arguments` puts them; or a list, which they end'
            problems.add(spec.places[name], name, text)


def _check_spares(spec: Section, problems: Problems) -> None:
    """A spare node takes a dead one's place in a step that fleetctl starts again: something must allow and do that."""
    for path, resources in _all_resources(spec):
        if not resources.values.get("spare_nodes"):
            continue
        place, where = resources.places["spare_nodes"], f"{path}.spare_nodes"
        recovery = spec.values.get("recovery")
        requeue = recovery.values.get("requeue") if isinstance(recovery, Section) else None
        if "groups" in spec.places and spec.values.get("groups") != ():
            problems.add(place, where, "expected no spare nodes beside groups: Slurm gives each group nodes of its own")
        elif spec.values.get("launch") is Launcher.COMMAND:
            text = "expected no spare nodes under launch: command, which starts srun itself and would use them"
            problems.add(place, where, text)
        elif requeue is False or (requeue is None and not _has_checkpoint(spec)):
            text = "expected a checkpoint section or recovery.requeue: true beside it: else nothing is started again"
            problems.add(place, where, text)


def _has_checkpoint(spec: Section) -> bool:
    return "checkpoint" in spec.places and spec.values.get("checkpoint", True) is not None


def _check_switches(resources: Section, path: str, problems: Problems) -> None:
    text = resources.values.get("switches")
    if text is None:
        return
    place, where = resources.places["switches"], f"{path}.switches"
    if not (match := re.fullmatch(_SWITCHES, text)):
        problems.add(place, where, f"expected COUNT or COUNT@DURATION, such as 1 or 1@2h, not {shown(text)}")
    elif match[2] is not None:
        _check_wait(match[2], place, where, problems)


def _check_wait(text: str, place: Place, where: str, problems: Problems) -> None:
    try:
        Duration.parse(text)
    except ValueError as error:
        problems.add(place, where, f"expected after the @ {error}, not {shown(text)}")


def _check_sweep(spec: Section, problems: Problems) -> None:
    sweep = spec.values.get("sweep")
    parameters = sweep.values.get("parameters") if isinstance(sweep, Section) else None
    if isinstance(sweep, Section) and parameters:
        count = prod(len(values) for values in parameters.values() if isinstance(values, tuple))
        if count > MAX_ELEMENTS:
            problems.add(
                sweep.places["parameters"],
                "sweep.parameters",
                f"expected at most {MAX_ELEMENTS} combinations (Slurm's largest array), not {count}",
            )
    env = spec.values.get("env")
    if isinstance(sweep, Section) and isinstance(parameters, dict) and isinstance(env, dict):
        for name in sorted(parameters.keys() & env.keys()):
            problems.add(
                sweep.places["parameters"],
                "sweep.parameters",
                f"expected a name that env does not have: {name} cannot have one value and many",
            )
