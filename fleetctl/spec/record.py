"""A spec as plain JSON values, for the run record and for the digest of a spec."""

from __future__ import annotations

from enum import Enum
from typing import Any

from msgspec import Struct

from fleetctl.spec.model import Spec
from fleetctl.units import Duration, MemorySize


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
