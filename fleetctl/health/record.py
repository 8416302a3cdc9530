"""NamedTuple at a tenth of its CPU: a prolog makes sixty such classes, which with typing's is three bare starts.

typing compiles the annotation of each field, and collections.namedtuple the text of each `__new__`. Here annotations
stay the texts that they are, and `__new__` is one of the functions below with its arguments renamed. A class behaves
as typing's does: a test compares them.
"""

from __future__ import annotations

import collections
from operator import itemgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, Dict, Tuple

try:
    from _collections import _tuplegetter  # type: ignore[import-not-found]
except ImportError:  # an interpreter other than CPython

    def _tuplegetter(index: int, doc: str) -> Any:
        return property(itemgetter(index), doc=doc)


_new: Any = tuple.__new__
# `__new__` for one field, two, ...; of a class with more, collections makes it
_SHAPES: Tuple[Any, ...] = (
    lambda cls, a: _new(cls, (a,)),
    lambda cls, a, b: _new(cls, (a, b)),
    lambda cls, a, b, c: _new(cls, (a, b, c)),
    lambda cls, a, b, c, d: _new(cls, (a, b, c, d)),
    lambda cls, a, b, c, d, e: _new(cls, (a, b, c, d, e)),
    lambda cls, a, b, c, d, e, f: _new(cls, (a, b, c, d, e, f)),
    lambda cls, a, b, c, d, e, f, g: _new(cls, (a, b, c, d, e, f, g)),
    lambda cls, a, b, c, d, e, f, g, h: _new(cls, (a, b, c, d, e, f, g, h)),
    lambda cls, a, b, c, d, e, f, g, h, i: _new(cls, (a, b, c, d, e, f, g, h, i)),
    lambda cls, a, b, c, d, e, f, g, h, i, j: _new(cls, (a, b, c, d, e, f, g, h, i, j)),
    lambda cls, a, b, c, d, e, f, g, h, i, j, k: _new(cls, (a, b, c, d, e, f, g, h, i, j, k)),
    lambda cls, a, b, c, d, e, f, g, h, i, j, k, m: _new(cls, (a, b, c, d, e, f, g, h, i, j, k, m)),
    lambda cls, a, b, c, d, e, f, g, h, i, j, k, m, n: _new(cls, (a, b, c, d, e, f, g, h, i, j, k, m, n)),
)


def _make_record(name: str, body: Dict[str, Any]) -> type:
    annotations = body.get("__annotations__", {})
    fields = tuple(annotations)
    defaults = {field: body.pop(field) for field in fields if field in body}
    if any(field in defaults for field in fields[: len(fields) - len(defaults)]):
        raise TypeError(f"{name}: a field without a default comes after one that has one")
    if not 0 < len(fields) <= len(_SHAPES):
        namedtuple: Any = collections.namedtuple
        made: type = namedtuple(name, fields, defaults=defaults.values(), module=body["__module__"])
        for key, value in body.items():
            if key not in ("__module__", "__qualname__"):
                setattr(made, key, value)
        return made
    code = _SHAPES[len(fields) - 1].__code__.replace(co_varnames=("_cls", *fields), co_name="__new__")
    new = FunctionType(code, {"_new": _new}, "__new__", tuple(defaults.values()))
    new.__annotations__ = annotations
    getters = {field: _tuplegetter(index, f"Alias for field number {index}") for index, field in enumerate(fields)}
    own = {"__new__": new, "__slots__": (), "__match_args__": fields, "_fields": fields, "_field_defaults": defaults}
    return type(name, (tuple,), {**_METHODS, **own, **getters, **body})


def _make(cls: Any, values: Any) -> Any:
    """A record of these values."""
    made = _new(cls, values)
    if len(made) != len(cls._fields):
        raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
    return made


def _replace(self: Any, /, **changes: Any) -> Any:
    """The same record with other values for these fields."""
    made = _new(type(self), map(changes.pop, self._fields, self))
    if changes:
        raise ValueError(f"Got unexpected field names: {list(changes)!r}")
    return made


def _asdict(self: Any) -> Dict[str, Any]:
    """By field names."""
    return dict(zip(self._fields, self))  # noqa: B905 - Python 3.9; the lengths agree


def _repr(self: Any) -> str:
    values = ", ".join(f"{field}={value!r}" for field, value in zip(self._fields, self))  # noqa: B905
    return f"{type(self).__name__}({values})"


def _getnewargs(self: Any) -> Tuple[Any, ...]:
    return tuple(self)


_METHODS: Dict[str, Any] = {
    "_make": classmethod(_make),
    "_replace": _replace,
    "_asdict": _asdict,
    "__repr__": _repr,
    "__getnewargs__": _getnewargs,
}


if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _Maker(type):
        def __new__(cls, name: str, bases: Tuple[type, ...], body: Dict[str, Any]) -> type:
            return _make_record(name, dict(body))

    class _NamedTuple:
        """Not itself a base: a class that is made has tuple alone, as with typing's."""

        def __mro_entries__(self, bases: Tuple[object, ...]) -> Tuple[type, ...]:
            return (_BASE,)

    _BASE = type.__new__(_Maker, "NamedTuple", (), {})
    NamedTuple = _NamedTuple()
