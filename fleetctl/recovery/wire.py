"""The words of recovery as JSON, and back. Pure."""

from __future__ import annotations

import json
from typing import TypeVar

import msgspec

Value = TypeVar("Value")


def written(value: object) -> str:
    """In ASCII: PostgreSQL takes neither a NUL nor half a surrogate pair, and users choose names."""
    return json.dumps(msgspec.to_builtins(value))


def read(text: str, kind: type[Value]) -> Value:
    """What `written` wrote.

    :raises ValueError: it is something else.
    """
    return msgspec.convert(json.loads(text), kind)
