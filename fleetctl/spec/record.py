"""A spec as plain JSON values, for the run record and for the digest of a spec."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

from msgspec import Struct

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
