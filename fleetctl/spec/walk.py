"""Nodes against the model: reads what it can, reports what it cannot, and goes on."""

from __future__ import annotations

from collections import abc
from enum import Enum
from typing import Any

from msgspec import Struct, field

from fleetctl.spec.compose import Items, Mapping, Node, Scalar, tag_name
from fleetctl.spec.problems import MAX_SHOWN, Place, Problems, guess, printable
from fleetctl.spec.scalars import check_limits, read_scalar, said
from fleetctl.spec.shape import COMMAND, Field, Shape, fields


class Bad(Enum):
    """Stands where a value could not be read; the problem is reported."""

    BAD = 0


class Section(Struct, frozen=True):
    """What was written of one struct. A nested struct is a Section, a list a tuple that may hold Bad."""

    type: type[Struct]
    place: Place
    values: dict[str, Any] = field(default_factory=dict)  # read well
    places: dict[str, Place] = field(default_factory=dict)  # written, read well or not; null is not written


def read_section(node: Node, struct: type[Struct], path: str, problems: Problems) -> Section | Bad:
    """One struct: unknown, repeated and missing fields are problems too."""
    if not isinstance(node, Mapping):
        problems.add(node.place, path, f"expected fields such as {next(iter(fields(struct)))}, not {_found(node)}")
        return Bad.BAD
    section, known, seen = Section(struct, node.place), fields(struct), set[str]()
    for key, value in _pairs(node, path, problems):
        name = key.text
        seen.add(name)
        if name not in known:
            problems.add(key.place, join(path, name), "no such field" + _field_hint(name, known, problems))
        elif not is_nothing(value):
            section.places[name] = value.place
            read = read_value(value, known[name].shape, join(path, name), problems)
            if read is not Bad.BAD:
                section.values[name] = read
        elif known[name].required:
            problems.add(value.place, join(path, name), "expected a value, not nothing")
    for name, one in known.items():
        if one.required and name not in seen:
            problems.add(node.place, join(path, name), "missing: this field is required")
    return section


def read_value(node: Node, shape: Shape, path: str, problems: Problems) -> Any:
    """A value of any shape, or Bad."""
    if node.tag is not None:
        problems.add(node.place, path, f"expected a value without a tag, not {printable(tag_name(node.tag))}")
        return Bad.BAD
    if struct := shape.struct():
        return read_section(node, struct, path, problems)
    if pair := shape.pair():
        return _read_names(node, shape, pair, path, problems)
    if shape.type == COMMAND and isinstance(node, Items):
        return _read_items(node, Shape(tuple[str, ...], shape.metas), path, problems)
    if shape.element():
        return _read_items(node, shape, path, problems)
    if not isinstance(node, Scalar):
        text = "text or a list of text" if shape.type == COMMAND else "one value"
        problems.add(node.place, path, f"expected {text}, not {_found(node)}")
        return Bad.BAD
    try:
        return read_scalar(node, shape)
    except ValueError as error:
        problems.add(node.place, path, str(error))
        return Bad.BAD


def join(path: str, name: str) -> str:
    """The path of a field, safe to print."""
    return f"{path}.{printable(name)}" if path else printable(name)


def is_nothing(node: Node) -> bool:
    """`null`, `~` or no value at all: the field counts as not given."""
    return isinstance(node, Scalar) and node.tag is None and node.is_null()


def _read_names(node: Node, shape: Shape, pair: tuple[Shape, Shape], path: str, problems: Problems) -> Any:
    """A mapping whose names the user chooses."""
    if not isinstance(node, Mapping):
        problems.add(node.place, path, f"expected names with values, not {_found(node)}")
        return Bad.BAD
    if _too_few(len(node.pairs), shape):
        problems.add(node.place, path, "expected at least one name with a value")
    values = {}
    for key, value in _pairs(node, path, problems):
        try:
            check_limits(key.text, pair[0].metas)
        except ValueError as error:
            problems.add(key.place, join(path, key.text), str(error))
        values[key.text] = read_value(value, pair[1], join(path, key.text), problems)
    return values


def _read_items(node: Node, shape: Shape, path: str, problems: Problems) -> Any:
    element = shape.element()
    assert element is not None, "the caller looked"
    if not isinstance(node, Items):
        problems.add(node.place, path, f"expected a list, not {_found(node)}")
        return Bad.BAD
    if _too_few(len(node.items), shape):
        problems.add(node.place, path, "expected a list of at least one value")
    values = []
    for index, item in enumerate(node.items):
        where = f"{path}[{index}]"
        if isinstance(item, Scalar) and item.plain and not item.text:
            problems.add(item.place, where, 'expected a value, not nothing: write "" for empty text')
            values.append(Bad.BAD)
        else:
            values.append(read_value(item, element, where, problems))
    return tuple(values)


def _too_few(count: int, shape: Shape) -> bool:
    return any(meta.min_length is not None and count < meta.min_length for meta in shape.metas)


def _pairs(node: Mapping, path: str, problems: Problems) -> abc.Iterator[tuple[Scalar, Node]]:
    """The pairs with a usable, new name."""
    seen: dict[str, Place] = {}
    for key, value in node.pairs:
        if not isinstance(key, Scalar):
            problems.add(key.place, path, f"expected a name, not {_found(key)}")
        elif key.tag is not None:
            problems.add(key.place, path, f"expected a name without a tag, not {printable(tag_name(key.tag))}")
        elif key.plain and key.text == "<<":
            problems.add(key.place, path, "expected no merge key (<<): write its fields here")
        elif first := seen.get(key.text):
            problems.add(key.place, join(path, key.text), f"given twice, {_lines(first, key.place)}")
        else:
            seen[key.text] = key.place
            yield key, value


def _lines(first: Place, second: Place) -> str:
    return f"on line {first.line}" if first.line == second.line else f"on lines {first.line} and {second.line}"


def _field_hint(name: str, known: abc.Mapping[str, Field], problems: Problems) -> str:
    """Also sends `nodes` at the top to `resources.nodes`. Past what is shown, guessing would only cost time."""
    if len(problems) >= MAX_SHOWN:
        return ""
    for one in known.values():
        struct = one.shape.struct()
        if struct and name in fields(struct):
            return f"; did you mean {one.name}.{name}?"
    return f"; {guess(name, known)}"


def _found(node: Node) -> str:
    match node:
        case Scalar():
            return said(node)
        case Items():
            return "a list"
        case Mapping():
            return "a mapping"
