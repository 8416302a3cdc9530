"""Values of the model as JSON can carry them, and back: from child to parent, into the spool, into recordings.

A NamedTuple travels as an object by field names, so that a file outlives the version that wrote it: fields that are
not there get their defaults, unknown ones are ignored. A Read is a pair, for there are a thousand in one look.
What comes back is checked against the annotations of the model: a file may be torn, old, or anybody's.
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import Any, Callable, Dict, List, Mapping, Tuple

from fleetctl.health.model import Read

Decode = Callable[[object], Any]


_AS_IT_IS = frozenset({type(None), bool, int, float, str})


class NotOurs(ValueError):
    """What was read is not what `to_wire` writes."""


def to_wire(value: Any) -> Any:
    """What `json.dumps` takes, for NamedTuples, enums, mappings with text keys, tuples and plain values.

    The commonest come first: a look has a thousand readings, and a prolog counts its CPU.
    """
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if kind is Read:
        return [to_wire(value.value), value.code]
    if kind is dict:
        return {
            str(key): [item.value, item.code] if type(item) is Read and type(item.value) in _AS_IT_IS else to_wire(item)
            for key, item in value.items()
        }
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "_fields"):
        return {name: to_wire(getattr(value, name)) for name in value._fields}
    if isinstance(value, (tuple, list)):
        return [to_wire(item) for item in value]
    if isinstance(value, Mapping):
        return to_wire(dict(value))
    raise TypeError(f"cannot carry {kind.__name__}")


def from_wire(kind: type, raw: object) -> Any:
    """The value of `kind` (a NamedTuple or an enum) that `to_wire` turned into `raw`. Raises NotOurs."""
    try:
        return _named(kind, {})(raw)
    except RecursionError:
        raise NotOurs("nested too deeply") from None


def all_from_wire(kind: type, raw: object) -> Tuple[Any, ...]:
    """The values of `kind` that a list holds; their reader is made once."""
    try:
        return tuple(_many(_named(kind, {}))(raw))
    except RecursionError:
        raise NotOurs("nested too deeply") from None


def _named(kind: type, known: Dict[type, Decode]) -> Decode:
    """The reader of a class; `known` keeps those made in this call."""
    if kind not in known:
        if issubclass(kind, Enum):
            known[kind] = _enum(kind)
        elif kind is Read:
            known[kind] = _read
        else:
            known[kind] = _record(kind, known)
    return known[kind]


def _record(kind: Any, known: Dict[type, Decode]) -> Decode:
    space = vars(sys.modules[kind.__module__])
    fields = {name: _annotated(_text(kind.__annotations__[name]), space, known) for name in kind._fields}
    needed = [name for name in kind._fields if name not in kind._field_defaults]

    def decode(raw: object) -> Any:
        if not isinstance(raw, dict):
            raise NotOurs(f"{kind.__name__}: not an object")
        missing = [name for name in needed if name not in raw]
        if missing:
            raise NotOurs(f"{kind.__name__}: no {missing[0]}")
        try:
            return kind(**{name: read(raw[name]) for name, read in fields.items() if name in raw})
        except NotOurs as error:
            raise NotOurs(f"{kind.__name__}: {error}") from None

    return decode


def _text(annotation: Any) -> str:
    """An annotation as it was written: NamedTuple keeps it as a forward reference."""
    return str(getattr(annotation, "__forward_arg__", annotation))


def _annotated(text: str, space: Mapping[str, Any], known: Dict[type, Decode]) -> Decode:
    """The reader for an annotation such as `Optional[Tuple[Port, ...]]`.

    typing.get_type_hints would do the same for twenty times the CPU, which a prolog counts.
    """
    head, _, rest = text.partition("[")
    if not rest:
        return _PLAIN[head] if head in _PLAIN else _named(space[head], known)
    parts = _split(rest[:-1])
    decodes = [_annotated(part, space, known) for part in parts if part != "..."]
    if head == "Optional":
        return _optional(decodes[0])
    if head in ("Mapping", "Dict"):
        return _mapping(decodes[1])
    if head == "Tuple":
        return _many(decodes[0]) if parts[-1] == "..." else _exactly(decodes)
    raise TypeError(f"no reader for {text}")


def _split(text: str) -> List[str]:
    """The parts between the commas that are in no bracket."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _of(*kinds: type) -> Decode:
    """Exactly these types: JSON's true is no number."""

    def decode(raw: object) -> Any:
        if type(raw) not in kinds:
            raise NotOurs(f"{type(raw).__name__} where {kinds[0].__name__} is due")
        return raw

    return decode


def _anything(raw: object) -> Any:
    return raw


_PLAIN: Mapping[str, Decode] = {
    "bool": _of(bool),
    "int": _of(int),
    "float": _of(float, int),
    "str": _of(str),
    "Scalar": _of(str, int, float),
    "Any": _anything,
}


def _optional(decode: Decode) -> Decode:
    return lambda raw: None if raw is None else decode(raw)


def _many(decode: Decode) -> Decode:
    return lambda raw: tuple([decode(item) for item in _listed(raw)])


def _exactly(decodes: List[Decode]) -> Decode:
    def decode(raw: object) -> Tuple[Any, ...]:
        items = _listed(raw)
        if len(items) != len(decodes):
            raise NotOurs(f"{len(items)} values where {len(decodes)} are due")
        return tuple([read(item) for read, item in zip(decodes, items)])  # noqa: B905 - Python 3.9; the lengths agree

    return decode


def _listed(raw: object) -> List[Any]:
    if not isinstance(raw, list):
        raise NotOurs(f"{type(raw).__name__} where a list is due")
    return raw


def _mapping(decode: Decode) -> Decode:
    def decode_all(raw: object) -> Dict[str, Any]:
        if not isinstance(raw, dict):
            raise NotOurs(f"{type(raw).__name__} where an object is due")
        return {key: decode(item) for key, item in raw.items()}

    return decode_all


def _enum(kind: Any) -> Decode:
    def decode(raw: object) -> Any:
        try:
            return kind(raw)
        except ValueError:
            raise NotOurs(f"{str(raw)[:40]!r} is no {kind.__name__}") from None

    return decode


def _read(raw: object) -> Read:
    if not isinstance(raw, list) or len(raw) != 2 or type(raw[1]) is not int:
        raise NotOurs("a reading is a value and a code")
    if raw[0] is not None and type(raw[0]) not in (bool, int, float, str):
        raise NotOurs("a reading is one plain value")
    return Read(raw[0], raw[1])
