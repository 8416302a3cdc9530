"""`train.yaml` to a Spec, or all of its problems at once. Text comes in; nothing here reads a file.

text -> nodes (compose) -> nodes with what came from outside (overlay) -> sections (walk) -> rules across fields -> Spec
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from fleetctl.spec.compose import compose
from fleetctl.spec.model import Resources, Spec
from fleetctl.spec.problems import Problems
from fleetctl.spec.rules import check, groups_of, inherited
from fleetctl.spec.walk import Section, read_section

_NO_DEFAULTS: Mapping[str, tuple[str, str]] = MappingProxyType({})


def load_spec(
    text: str,
    source: str,
    overrides: Sequence[str] = (),
    defaults: Mapping[str, tuple[str, str]] = _NO_DEFAULTS,
) -> Spec:
    """Read a spec. `overrides` are `PATH=VALUE`; `defaults` map a path to a value and the name of where it came from.

    :raises SpecError: every problem, by position.
    """
    problems = Problems()
    root = compose(text, source)
    if overrides or defaults:
        from fleetctl.spec.overlay import fill, override  # most submits have neither

        for assignment in overrides:
            root = override(root, assignment, problems)
        for path, value in defaults.items():
            root = fill(root, path, value, problems)
    spec = read_section(root, Spec, "", problems)
    if isinstance(spec, Section):
        check(spec, problems)
        if not problems:
            return _build_spec(spec)
    raise problems.error()


def _build_spec(spec: Section) -> Spec:
    values = {name: _build(value) for name, value in spec.values.items()}
    values["groups"] = tuple(
        msgspec.structs.replace(_build(group), resources=Resources(**inherited(spec, group)))
        for _, group in groups_of(spec)
    )
    return Spec(**values)


def _build(value: Any) -> Any:
    if isinstance(value, Section):
        return value.type(**{name: _build(inner) for name, inner in value.values.items()})
    if isinstance(value, tuple):
        return tuple(_build(inner) for inner in value)
    return value
