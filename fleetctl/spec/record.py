"""A spec as plain JSON values: whole for the run record, and what was said in it for its digest."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from fleetctl.spec.model import Spec
from fleetctl.units import Duration, MemorySize

# One escape of a JSON text, or two that are one character beyond U+FFFF (RFC 8259, section 7)
_ESCAPE = r"\\(?:u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|.)"


def spec_to_builtins(spec: Spec) -> dict[str, Any]:
    """Every field in the model's order, defaults and None included; durations and sizes as text.

    The order of `env` says nothing, so its names are sorted; the order of a sweep's parameters numbers its elements, so
    it is kept: a digest must not sort keys.
    """
    return _struct(spec)


def spec_as_said(spec: Spec) -> dict[str, Any]:
    """The same without what is as it is by default: a newer fleetctl, which knows more fields, says the same of it."""
    return _said(spec)


def _said(value: Struct) -> dict[str, Any]:
    whole = _struct(value)
    said = {field.name: getattr(value, field.name) for field in fields(value)}
    new = {field.name for field in fields(value) if said[field.name] != _default(field)}
    return {name: _part(said[name], whole[name]) for name in whole if name in new}


def _part(value: Any, whole: Any) -> Any:
    if isinstance(value, Struct):
        return _said(value)
    if isinstance(value, tuple):
        return [_part(one, part) for one, part in zip(value, whole, strict=True)]
    return whole


def _default(field: FieldInfo) -> object:
    return field.default if field.default_factory is NODEFAULT else field.default_factory()


def _struct(value: Struct) -> dict[str, Any]:
    out = {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if "env" in out:
        out["env"] = dict(sorted(out["env"].items()))
    return out


def plain(value: Any) -> Any:
    """One value of a spec as JSON has it."""
    match value:
        case Enum():
            return value.value
        case Duration() | MemorySize():
            return str(value)
        case Struct():
            return _struct(value)
        case tuple():
            return [plain(one) for one in value]
        case dict():
            return {name: plain(one) for name, one in value.items()}
    return value


def record_as_yaml(text: str) -> str:
    """The JSON text of a record as `load_spec` reads it: YAML has all of JSON but the two halves of a character."""
    return re.sub(_ESCAPE, _whole, text, flags=re.IGNORECASE)


def _whole(match: re.Match[str]) -> str:
    if match[1] is None:
        return match[0]
    return f"\\U{0x10000 + ((int(match[1], 16) - 0xD800) << 10) + int(match[2], 16) - 0xDC00:08x}"
