"""What the model's annotations say about each field: the one reading that loader, overrides, schema and docs share."""

from __future__ import annotations

import types
from collections.abc import Mapping
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, Union, get_args, get_origin

from msgspec import NODEFAULT, Meta, Struct, structs

from fleetctl.spec.model import Auto
from fleetctl.units import Duration, MemorySize

COMMAND = str | tuple[str, ...]  # the model's fields of two shapes
INTERVAL = Duration | Auto


class Shape(Struct, frozen=True):
    """A type without its `Annotated` and `None`, and the limits on its values, outermost last."""

    type: Any
    metas: tuple[Meta, ...] = ()

    def struct(self) -> type[Struct] | None:
        """The section of the file that this is, if it is one; durations and sizes are single values."""
        if not isinstance(self.type, type) or self.type in (Duration, MemorySize):
            return None
        return self.type if issubclass(self.type, Struct) else None

    def element(self) -> Shape | None:
        """What a list holds."""
        return shape(get_args(self.type)[0]) if get_origin(self.type) is tuple else None

    def pair(self) -> tuple[Shape, Shape] | None:
        """What a mapping with free names holds: names and values."""
        if get_origin(self.type) is not dict:
            return None
        key, value = get_args(self.type)
        return shape(key), shape(value)


class Field(Struct, frozen=True):
    """One field of a struct. `default` is None for what has none."""

    name: str
    shape: Shape
    required: bool
    default: Any
    description: str


def shape(annotation: Any) -> Shape:
    """Read one annotation."""
    if get_origin(annotation) is Annotated:
        inner, *notes = get_args(annotation)
        found = shape(inner)
        return Shape(found.type, (*found.metas, *(note for note in notes if isinstance(note, Meta))))
    if get_origin(annotation) in (Union, types.UnionType):
        options = [shape(option) for option in get_args(annotation) if option is not type(None)]
        metas = tuple(meta for option in options for meta in option.metas)
        return Shape(reduce(or_, (option.type for option in options)), metas)
    return Shape(annotation)


@cache  # the annotations are text until asked for, and each group asks again
def fields(struct: type[Struct]) -> Mapping[str, Field]:
    """The fields of a struct, by the name that the YAML uses, in order."""
    return {info.encode_name: _field(info) for info in structs.fields(struct)}


def _field(info: structs.FieldInfo) -> Field:
    found = shape(info.type)
    described = [meta.description for meta in found.metas if meta.description]
    default = info.default if info.default_factory is NODEFAULT else info.default_factory()
    return Field(
        info.encode_name,
        found,
        info.required,
        None if default is NODEFAULT else default,
        described[-1] if described else "",
    )
