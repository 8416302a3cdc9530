"""Whatever the model can hold comes back from JSON; whatever JSON can hold is refused in one way."""

from __future__ import annotations

import collections.abc
import json
import typing
from enum import Enum
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.health import model
from fleetctl.health.wire import NotOurs, from_wire, to_wire

KINDS = [kind for kind in vars(model).values() if isinstance(kind, type) and hasattr(kind, "_fields")]
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=9),
    bool: st.booleans(),
    Any: st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    type(None): st.none(),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


def of(hint: Any) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if origin is typing.Union:
        return st.one_of(*map(of, arguments))
    if origin in (dict, collections.abc.Mapping):
        return st.dictionaries(st.text(max_size=5), of(arguments[1]), max_size=3)
    if origin is tuple and arguments[-1] is ...:
        return st.lists(of(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of, arguments))
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    return st.builds(hint, **{name: of(inner) for name, inner in typing.get_type_hints(hint).items()})


VALUES = {kind: of(kind) for kind in KINDS}


@given(st.sampled_from(KINDS).flatmap(lambda kind: VALUES[kind]))
def test_what_is_sent_comes_back(value: Any) -> None:
    assert from_wire(type(value), json.loads(json.dumps(to_wire(value)))) == value


@given(st.sampled_from(KINDS), JSON)
def test_foreign_json_is_refused_and_never_worse(kind: Any, raw: object) -> None:
    try:
        value = from_wire(kind, raw)
    except NotOurs:
        return
    assert isinstance(value, kind)


@given(st.data())
def test_one_damaged_field_is_refused_or_is_a_value_of_its_kind(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    raw = to_wire(data.draw(VALUES[kind]))
    if kind is model.Read:
        raw = [data.draw(JSON), raw[1]]
    else:
        raw[data.draw(st.sampled_from(sorted(raw)))] = data.draw(JSON)
    try:
        value = from_wire(kind, raw)
    except NotOurs:
        return
    assert from_wire(kind, to_wire(value)) == value or "nan" in str(value)
