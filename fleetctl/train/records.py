"""Strict reading of small JSON records that another process wrote. Standard library only, Python 3.8 and newer."""

from __future__ import annotations

import json
from typing import Any


def read_object(raw: bytes, what: str) -> dict[str, Any]:
    """The JSON object in `raw`; ValueError names `what` if there is none."""
    try:
        record = json.loads(bytes(raw).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not JSON") from error
    if not isinstance(record, dict):
        raise ValueError(f"{what} is no JSON object")
    return record


def count_in(record: dict[str, Any], key: str) -> int:
    """A number of things or bytes."""
    value = record.get(key)
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{key} is {str(value)[:80]!r}, not a count")
    return value


def text_in(record: dict[str, Any], key: str) -> str:
    """A text."""
    value = record.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} is no text")
    return value
