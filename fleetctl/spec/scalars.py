"""One scalar of a spec: its raw text becomes the value that the field wants, or a ValueError says what was expected."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from msgspec import Meta

from fleetctl.spec.compose import Scalar
from fleetctl.spec.model import MAX_DURATION, Auto
from fleetctl.spec.problems import guess, listed, shown
from fleetctl.spec.shape import INTERVAL, Shape
from fleetctl.units import Duration, MemorySize

# What no environment variable, argument or file name can hold, and what UTF-8 cannot.
_UNKEEPABLE = re.compile("[\0\ud800-\udfff]")
# YAML 1.1, types int and float, base 60: PyYAML and others read `4:00:00` as the number 14400.
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?", re.ASCII)
_WHOLE = re.compile("0|-?[1-9][0-9]{0,17}", re.ASCII)
# YAML 1.2's words. YAML 1.1 also reads yes, no, on and off so, and readers disagree about them.
_TRUTH = {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}


def read_scalar(node: Scalar, shape: Shape) -> Any:
    """The value.

    :raises ValueError: what is wrong, as a whole clause.
    """
    _check_text(node)
    if isinstance(shape.type, type) and issubclass(shape.type, Enum):
        return _member(node.text, shape.type)
    read: Callable[[str], Any] = _READERS.get(shape.type, str)
    try:
        value = read(node.text)
    except ValueError as error:
        expected = _whole_expected(shape.metas) if shape.type is int else str(error)
        raise ValueError(f"expected {expected}, not {said(node)}") from None
    check_limits(value, shape.metas)
    return value


def _check_text(node: Scalar) -> None:
    """Refuse what cannot be kept as it was written.

    :raises ValueError: what is wrong, as a whole clause.
    """
    if _UNKEEPABLE.search(node.text):
        raise ValueError("expected text without NUL and without half of a surrogate pair")
    if node.plain and _BASE_60.fullmatch(node.text) and _is_base_60(node.text):
        raise ValueError(f"YAML reads {node.text} as a number of base 60: write {shown(node.text)} in quotes")


def check_limits(value: Any, metas: Sequence[Meta]) -> None:
    """Hold a number or text against the model's limits.

    :raises ValueError: what is wrong, as a whole clause.
    """
    for meta in metas:
        if isinstance(value, str):
            long = meta.max_length is not None and len(value) > meta.max_length
            if long or (meta.pattern is not None and not re.fullmatch(meta.pattern, value)):
                raise ValueError(f"expected {(meta.extra or {})['expected']}, not {shown(value)}")
        elif isinstance(value, int):
            low = meta.ge is not None and value < meta.ge
            high = meta.le is not None and value > meta.le
            if low or high:
                at_most = f" and at most {meta.le}" if high else ""
                raise ValueError(f"expected {_whole_expected(metas)}{at_most}, not {value}")


def said(node: Scalar) -> str:
    """What stands there, for `not ...`."""
    return "nothing" if node.is_null() else shown(node.text)


def _is_base_60(text: str) -> bool:
    """A whole number of base 60 may not start with 0 (YAML 1.1, type int): `04:00:00` is text to every reader."""
    return "." in text or text.lstrip("+-")[0] != "0"


def _whole_expected(metas: Sequence[Meta]) -> str:
    lowest = next((meta.ge for meta in metas if meta.ge is not None), None)
    return "a whole number" if lowest is None else f"a whole number of at least {lowest}"


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError
    return int(text)


def _truth(text: str) -> bool:
    if text not in _TRUTH:
        raise ValueError("true or false")
    return _TRUTH[text]


def _duration(text: str) -> Duration:
    value = Duration.parse(text)
    if not value.seconds:
        raise ValueError("a duration longer than 0 (Slurm reads 0 as no limit)")
    if value > MAX_DURATION:
        raise ValueError(f"a duration of at most {MAX_DURATION}")
    return value


def _memory(text: str) -> MemorySize:
    value = MemorySize.parse(text)
    if not value.kib:
        raise ValueError("a memory size above 0 (Slurm reads 0 as all of the node's memory)")
    return value


def _interval(text: str) -> Duration | Auto:
    if text == Auto.AUTO:
        return Auto.AUTO
    try:
        return _duration(text)
    except ValueError as error:
        raise ValueError(f"{Auto.AUTO} or {error}") from None


_READERS: Mapping[Any, Callable[[str], Any]] = {
    int: _whole,
    bool: _truth,
    Duration: _duration,
    MemorySize: _memory,
    INTERVAL: _interval,
}


def _member(text: str, kind: type[Enum]) -> Enum:
    names = [str(member.value) for member in kind]
    if text in names:
        return kind(text)
    hint = guess(text, names)
    hint = f"; {hint}" if hint.startswith("did") else ""
    raise ValueError(f"expected {listed(names)}, not {shown(text)}{hint}")
