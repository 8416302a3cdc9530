"""Every value of a spec survives being written as YAML and read again."""

from __future__ import annotations

import re
from enum import Enum
from math import prod
from typing import Any, TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from fleetctl.spec.load import load_spec
from fleetctl.spec.model import MAX_COUNT, Auto, Checkpoint, CheckpointTell, Group, Launcher, Resources, Spec
from fleetctl.spec.record import spec_to_builtins
from fleetctl.spec.rules import TOLD_BY_POINTER
from fleetctl.spec.shape import COMMAND, INTERVAL, Field, Shape, fields
from fleetctl.units import Duration, MemorySize

Part = TypeVar("Part", Spec, Group)
# A busy machine is no failure: what takes long here is making the examples.
BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Values are made from the same shapes that the loader reads.
ODD = (
    "a",
    "~",
    "null",
    "on",
    "0123",
    "4:00:00",
    "a b",
    "a,b",
    "-",
    "?",
    "'",
    '"',
    "\\",
    "#",
    "é",
    "/a",
    "/a:/b:ro",
    "n[01-04,9],m7",
    "a_B9",
)
WORDS = st.text("aB1_", max_size=6).map("x".__add__)
KEPT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)


def value_of(shape: Shape) -> st.SearchStrategy[Any]:
    if struct := shape.struct():
        return section_of(struct)
    if isinstance(shape.type, type) and issubclass(shape.type, Enum):
        return st.sampled_from(list(shape.type))
    if pair := shape.pair():
        return st.dictionaries(value_of(pair[0]), value_of(pair[1]), min_size=least(shape), max_size=3)
    if element := shape.element():
        return st.lists(value_of(element), min_size=least(shape), max_size=3).map(tuple)
    if shape.type == COMMAND:
        return st.one_of(text_of(shape), st.lists(KEPT, min_size=1, max_size=3).map(tuple))
    if shape.type == INTERVAL:
        return st.one_of(value_of(Shape(Duration)), st.just(Auto.AUTO))
    if shape.type is int:
        return st.integers(min(meta.ge for meta in shape.metas if isinstance(meta.ge, int)), MAX_COUNT)
    return {
        str: text_of(shape),
        bool: st.booleans(),
        Duration: st.integers(1, 24_855 * 86_400).map(Duration),
        MemorySize: st.builds(
            lambda n, unit: MemorySize.parse(f"{n}{unit}"), st.integers(1, 10**6), st.sampled_from("KMGT")
        ),
    }[shape.type]


def least(shape: Shape) -> int:
    return max((meta.min_length or 0 for meta in shape.metas), default=0)


def text_of(shape: Shape) -> st.SearchStrategy[str]:
    """Free text cut to what is allowed, or short words where a pattern allows little else."""
    patterns = [re.compile(meta.pattern) for meta in shape.metas if meta.pattern]
    odd = [text for text in ODD if all(pattern.fullmatch(text) for pattern in patterns)]
    if len(patterns) > 1:
        return st.sampled_from(odd) | WORDS
    if not patterns:
        return KEPT
    one_line = not patterns[0].fullmatch("x\n")
    kept = KEPT.map(lambda text: re.sub("[\x00-\x1f\x7f-\x9f\u2028\u2029]", "", text)) if one_line else KEPT
    return st.sampled_from(odd) | kept.map("x".__add__)


def field_of(one: Field) -> st.SearchStrategy[Any]:
    if one.name == "switches":
        return st.sampled_from([None, "1", "2@2h", "3@0:30:00"])
    value = value_of(one.shape)
    return value if one.required or one.default is not None else st.none() | value


def section_of(struct: type[Struct]) -> st.SearchStrategy[Any]:
    named = {name: field_of(one) for name, one in fields(struct).items() if (struct, name) != (Spec, "groups")}
    return st.builds(struct, **named)


def lawful(spec: Spec, groups: list[Group]) -> Spec:
    """The nearest spec that keeps the rules across fields."""
    if spec.checkpoint is not None:
        spec = replace(spec, checkpoint=lawful_checkpoint(spec.checkpoint))
    if spec.launch is Launcher.COMMAND or any(group.launch is Launcher.COMMAND for group in groups):
        spec = replace(spec, container=None)
    if len(groups) >= 2:
        named = [replace(group, name=f"g{index}") for index, group in enumerate(groups)]
        parts = tuple(without_spares(lawful_part(group)) for group in named)
        recovery = replace(spec.recovery, chain=False)
        return replace(
            spec,
            command=None,
            script=None,
            launch=Launcher.SRUN,
            sweep=None,
            groups=parts,
            resources=Resources(),
            recovery=recovery,
        )
    sweep = spec.sweep
    if sweep and prod(len(values) for values in sweep.parameters.values()) > 1000:
        sweep = None
    env = {name: value for name, value in spec.env.items() if not sweep or name not in sweep.parameters}
    return replace(lawful_chain(lawful_part(spec)), sweep=sweep, env=env)


def lawful_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    pointed = checkpoint.tell is CheckpointTell.POINTER and checkpoint.format in TOLD_BY_POINTER
    return replace(
        checkpoint,
        keep_every=None if checkpoint.keep is None else checkpoint.keep_every,
        tell=CheckpointTell.POINTER if pointed else CheckpointTell.ENVIRONMENT,
    )


def without_spares(group: Group) -> Group:
    return replace(group, resources=replace(group.resources, spare_nodes=0))


def lawful_chain(spec: Spec) -> Spec:
    recovery, resources = spec.recovery, spec.resources
    chain = recovery.chain and spec.checkpoint is not None and resources.time is not None
    restarts = spec.checkpoint is not None if recovery.requeue is None else recovery.requeue
    spares = resources.spare_nodes if restarts and spec.launch is not Launcher.COMMAND else 0
    return replace(
        spec,
        recovery=replace(recovery, chain=chain and recovery.requeue is not False),
        resources=replace(resources, spare_nodes=spares),
    )


def lawful_part(part: Part) -> Part:
    resources = part.resources
    if not resources.gpus_per_node:
        resources = replace(resources, gpu_type=None)
    if part.launch is Launcher.TORCHRUN:
        resources = replace(resources, tasks_per_node=None)
        return replace(part, resources=resources, command=("train.py", *(part.command or ())), script=None)
    command = None if part.script else part.command or "c"
    return replace(part, resources=resources, command=command)


SPECS = st.builds(lawful, section_of(Spec), st.lists(section_of(Group), max_size=3))


def dump(value: Any, indent: str = "") -> str:
    """YAML with every text in double quotes and every character outside ASCII letters escaped."""
    match value:
        case dict():
            lines = (f"\n{indent}{quoted(name)}: {dump(inner, indent + '  ')}" for name, inner in value.items())
            return "".join(lines) if value else "{}"
        case list():
            return "".join(f"\n{indent}- {dump(inner, indent + '  ')}" for inner in value) if value else "[]"
        case str():
            return quoted(value)
        case None:
            return "~"
    return str(value).lower()


def quoted(text: str) -> str:
    return '"' + "".join(char if char.isascii() and char.isalnum() else f"\\U{ord(char):08x}" for char in text) + '"'


@settings(BUSY, max_examples=200)
@given(SPECS)
def test_every_value_survives_being_written_and_read(spec: Spec) -> None:
    assert load_spec(dump(spec_to_builtins(spec)), "t.yaml") == spec


@BUSY
@given(SPECS)
def test_the_record_of_a_spec_tells_everything(spec: Spec) -> None:
    """Two specs with one record are one spec, so a digest of the record is a digest of the spec."""
    record = spec_to_builtins(spec)
    assert spec_to_builtins(load_spec(dump(record), "t.yaml")) == record
    assert spec_to_builtins(replace(spec, workdir="else" + (spec.workdir or ""))) != record
