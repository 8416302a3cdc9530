"""The JSON Schema and the field table of `train.yaml`, both read off the model so that they cannot drift.

An editor checks with it while one writes; `load_spec` stays the judge, also of what a schema cannot say.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from msgspec import Meta, Struct

from fleetctl.spec.model import Group, Spec
from fleetctl.spec.problems import listed
from fleetctl.spec.record import plain
from fleetctl.spec.shape import COMMAND, INTERVAL, Field, Shape, fields
from fleetctl.units import Duration, MemorySize

# A test holds these two against units.Duration.parse and units.MemorySize.parse.
DURATION_PATTERN = (
    "^(?:(?=[0-9])(?:[0-9]{1,9}d)?(?:[0-9]{1,9}h)?(?:[0-9]{1,9}m)?(?:[0-9]{1,9}s)?"
    "|(?:[0-9]{1,9}-)?[0-9]{1,9}:[0-5]?[0-9]:[0-5]?[0-9]"
    "|[0-9]{1,9}-[0-9]{1,9}(?::[0-5]?[0-9])?)$"
)
MEMORY_PATTERN = "^[0-9]{1,9}[KMGTkmgt](?:[iI]?[bB])?$"
# The loader keeps the text of `account: 0123` or `name: on`; an editor's YAML sees a number or a boolean there.
_TEXT = ["string", "number", "boolean"]
_TYPES: dict[Any, dict[str, Any]] = {
    str: {"type": _TEXT},
    int: {"type": ["integer"]},
    bool: {"type": ["boolean"]},
    Duration: {"type": ["string"], "pattern": DURATION_PATTERN, "examples": ["90m", "1d12h", "2-00:00:00"]},
    MemorySize: {"type": ["string"], "pattern": MEMORY_PATTERN, "examples": ["64G", "512M"]},
    INTERVAL: {"type": ["string"], "pattern": f"^auto$|{DURATION_PATTERN}", "examples": ["auto", "30m"]},
    COMMAND: {"type": [*_TEXT, "array"], "items": {"type": _TEXT}},
}
_KEYWORDS = {
    "ge": "minimum",
    "le": "maximum",
    "max_length": "maxLength",
    "pattern": "pattern",
}
_WORDS = {
    str: "text",
    bool: "true or false",
    Duration: "duration",
    MemorySize: "memory size",
    INTERVAL: "duration or `auto`",
    COMMAND: "text or list",
}


def json_schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12."""
    structs = list(dict.fromkeys(_structs(Spec)))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "train.yaml of fleetctl",
        **_object(Spec),
        "$defs": {struct.__name__: _object(struct) for struct in structs},
    }


def field_table() -> str:
    """Every field as one Markdown table."""
    rows = ["| field | value | default | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{path}` | {_words(one.shape)} | {_default(one)} | {one.description} |" for path, one in _rows(Spec, "")
    ]
    return "\n".join(row.replace("[:ro|rw]", "[:ro\\|rw]") for row in rows) + "\n"


def _structs(struct: type[Struct]) -> Iterator[type[Struct]]:
    for one in fields(struct).values():
        inner = (one.shape.element() or one.shape).struct()
        if inner:
            yield inner
            yield from _structs(inner)


def _object(struct: type[Struct]) -> dict[str, Any]:
    known = fields(struct)
    out: dict[str, Any] = {
        "type": "object",
        "description": (struct.__doc__ or "").splitlines()[0],
        "properties": {name: _property(one) for name, one in known.items()},
        "required": [name for name, one in known.items() if one.required],
        "additionalProperties": False,
    }
    programs = [name for name in ("command", "script", "groups") if name in known]
    if struct in (Spec, Group):
        out["oneOf"] = [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in programs]
    return out


def _property(one: Field) -> dict[str, Any]:
    out = {"description": one.description, **_value(one.shape)}
    if not one.required:
        out = _or_null(out)
    if one.default is not None and one.default != () and one.default != {} and not isinstance(one.default, Struct):
        out["default"] = plain(one.default)
    return out


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A field with nothing after its colon counts as not given."""
    if "$ref" in schema:
        return {"description": schema["description"], "anyOf": [{"$ref": schema["$ref"]}, {"type": "null"}]}
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    return {**schema, "type": [*schema["type"], "null"]}


def _value(shape: Shape) -> dict[str, Any]:
    if struct := shape.struct():
        return {"$ref": f"#/$defs/{struct.__name__}"}
    if isinstance(shape.type, type) and issubclass(shape.type, Enum):
        return {"enum": [member.value for member in shape.type]}
    if pair := shape.pair():
        names, values = pair
        out = {"type": ["object"], "propertyNames": _limits(names.metas, {}), "additionalProperties": _value(values)}
        return _limits(shape.metas, out, few="minProperties")
    if element := shape.element():
        return _limits(shape.metas, {"type": ["array"], "items": _value(element)})
    return _limits(shape.metas, dict(_TYPES[shape.type]))


def _limits(metas: tuple[Meta, ...], schema: dict[str, Any], *, few: str = "minItems") -> dict[str, Any]:
    """The schema with the model's limits; a keyword that is there already goes under allOf."""
    for meta in metas:
        said = {word: getattr(meta, name) for name, word in _KEYWORDS.items() if getattr(meta, name) is not None}
        if meta.min_length is not None:
            said[few] = meta.min_length
        said |= meta.extra_json_schema or {}
        if said.keys() & schema.keys():
            schema.setdefault("allOf", []).append(said)
        else:
            schema |= said
    return schema


def _rows(struct: type[Struct], path: str) -> Iterator[tuple[str, Field]]:
    for name, one in fields(struct).items():
        where = f"{path}.{name}" if path else name
        yield where, one
        element = one.shape.element()
        inner = (element or one.shape).struct()
        if inner and struct is not Group:  # the resources of a group are those of the spec
            yield from _rows(inner, f"{where}[]" if element else where)


def _words(shape: Shape) -> str:
    if shape.struct():
        return "fields"
    if isinstance(shape.type, type) and issubclass(shape.type, Enum):
        return listed(f"`{member.value}`" for member in shape.type)
    if pair := shape.pair():
        return f"names, each with {_words(pair[1])}"
    if element := shape.element():
        return f"list of {_words(element)}"
    if shape.type is int:
        lowest = next(meta.ge for meta in shape.metas if meta.ge is not None)
        return f"whole number, at least {lowest}"
    return _WORDS[shape.type]


def _default(one: Field) -> str:
    if one.required:
        return "required"
    if one.default is None or one.default in ((), {}) or isinstance(one.default, Struct):
        return ""
    return f"`{str(plain(one.default)).lower()}`"
