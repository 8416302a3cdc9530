"""record.NamedTuple against typing's: the same classes, made twice."""

from __future__ import annotations

import copy
import pickle
import sys
import typing
from typing import Any, Optional

import pytest

from fleetctl.health import record


class Pair(typing.NamedTuple):
    ours: Any
    typings: Any


def both(fields: int, defaults: int = 0) -> Pair:
    """A class of so many fields, the last of which have defaults, made by ours and by typing's."""
    names = [f"field_{number}" for number in range(fields)]
    lines = [
        f"    {name}: Optional[int]" + (f" = {number}" if number >= fields - defaults else "")
        for number, name in enumerate(names)
    ]
    text = "from __future__ import annotations\nclass Made(NamedTuple):\n    'Words.'\n" + "\n".join(lines)
    text += (
        "\n    def first(self):\n        return self[0]\n    @property\n    def size(self):\n        return len(self)\n"
    )
    made = []
    for base in (record.NamedTuple, typing.NamedTuple):
        space: dict[str, Any] = {"NamedTuple": base, "Optional": Optional, "__name__": __name__}
        exec(text, space)
        made.append(space["Made"])
    return Pair(*made)


SIZES = [1, 2, 5, 10, 13, 14, 24]


@pytest.mark.parametrize("fields", SIZES)
def test_classes_have_the_same_names_words_and_defaults(fields: int) -> None:
    ours, typings = both(fields, min(fields, 3))
    for name in ("__name__", "__module__", "__qualname__", "__doc__", "__bases__", "__slots__", "__match_args__"):
        assert getattr(ours, name) == getattr(typings, name), name
    assert (ours._fields, ours._field_defaults) == (typings._fields, typings._field_defaults)
    assert list(ours.__annotations__) == list(typings.__annotations__)
    assert not hasattr(ours(*range(fields)), "__dict__")


def outcome(call: Any) -> Any:
    """What a call comes to: a value's own text, or the kind of its error."""
    try:
        value = call()
    except Exception as error:  # noqa: BLE001
        return type(error)
    return repr(value), tuple(value)


@pytest.mark.parametrize("fields", SIZES)
@pytest.mark.parametrize("defaults", [0, 1])
def test_instances_are_made_changed_and_refused_alike(fields: int, defaults: int) -> None:
    values = range(100, 100 + fields)
    named = {f"field_{number}": value for number, value in enumerate(values)}
    first, *others = named
    calls: list[Any] = [
        lambda made: made(*values),
        lambda made: made(**named),
        lambda made: made(values[0], **{name: named[name] for name in others}),
        lambda made: made(*values[:-1]),
        lambda made: made(*values, 1),
        lambda made: made(**{**named, "other": 1}),
        lambda made: made(*values, **{first: 1}),
        lambda made: made(*values)._replace(**{first: "x"}),
        lambda made: made(*values)._replace(other=1),
        lambda made: made(*values)._replace(),
        lambda made: made._make(values),
        lambda made: made._make([*values, 1]),
        lambda made: made._make(values[:-1]),
        lambda made: copy.deepcopy(made(*values)),
    ]
    ours, typings = both(fields, defaults)
    for number, call in enumerate(calls):
        assert outcome(lambda: call(ours)) == outcome(lambda: call(typings)), number  # noqa: B023


def test_instances_are_tuples_with_the_methods_of_their_class() -> None:
    ours, typings = both(3)
    one, other = ours(1, 2, 3), typings(1, 2, 3)
    assert one == other == (1, 2, 3)
    assert hash(one) == hash(other)
    assert (one.field_2, one.first(), one.size, one._asdict()) == (3, 1, 3, other._asdict())
    with pytest.raises(AttributeError):
        one.field_2 = 4
    with pytest.raises(AttributeError):
        one.other = 4


class Known(record.NamedTuple):
    """In a module, so that it can be found again."""

    name: str
    parts: tuple[int, ...] = ()


def test_an_instance_survives_pickle_and_matches_a_pattern() -> None:
    assert pickle.loads(pickle.dumps(Known("a", (1,)))) == Known("a", (1,))
    match Known("a", (1,)):
        case Known(name, parts=(number,)):
            assert (name, number) == ("a", 1)
        case _:
            pytest.fail("no match")


def test_a_field_without_default_after_one_with_a_default_is_refused() -> None:
    with pytest.raises(TypeError, match="without a default"):

        class Wrong(record.NamedTuple):
            first: int = 0
            second: int  # type: ignore[misc]


def test_types_are_found_as_they_were_written() -> None:
    assert typing.get_type_hints(Known) == {"name": str, "parts": tuple[int, ...]}
    assert sys.getsizeof(Known("a")) == sys.getsizeof(("a", ()))
