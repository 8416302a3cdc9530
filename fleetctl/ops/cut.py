"""Leaves out of a Python module what nobody asks for: nvidia-ml-py has 650 functions and structs, of which the node
checks use fifty, and importing the others is a fifth of a prolog's CPU. What is kept stands line by line as it was.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator


def cut(source: str, wanted: Iterable[str]) -> str:
    """The module with what defines the `wanted` names, and all that these name in turn.

    Whatever is neither a function, a class nor a plain assignment is kept, and so is every comment before the code.
    """
    body = ast.parse(source).body
    by_name: dict[str, list[ast.stmt]] = {}
    kept: list[ast.stmt] = []
    for statement in body:
        names = list(_defined(statement))
        for name in names:
            by_name.setdefault(name, []).append(statement)
        if not names:
            kept.append(statement)
    seen: set[str] = set()
    asked = [*wanted, *(name for statement in kept for name in _named(statement))]
    while asked:
        name = asked.pop()
        if name not in seen:
            seen.add(name)
            kept += by_name.get(name, [])
            asked += (other for statement in by_name.get(name, []) for other in _named(statement))
    lines = source.splitlines(keepends=True)
    numbers = set(range(_first_line(body[0]) - 1)) if body else set()
    for statement in kept:
        numbers.update(range(_first_line(statement) - 1, statement.end_lineno or statement.lineno))
    return "".join(lines[number] for number in sorted(numbers))


def names_in(source: str) -> set[str]:
    """What a module may ask another one for: its attributes, and its texts, which getattr may be given."""
    nodes = list(ast.walk(ast.parse(source)))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return texts | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def _defined(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, ast.Assign) and all(isinstance(target, ast.Name) for target in statement.targets):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


def _named(statement: ast.stmt) -> Iterator[str]:
    yield from (node.id for node in ast.walk(statement) if isinstance(node, ast.Name))


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])
