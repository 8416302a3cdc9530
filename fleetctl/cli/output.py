"""One way to print: JSON when asked, a table on a terminal, plain columns in a pipe; progress goes to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import Any, Literal, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_FOLDED = 8  # characters: a column in more lines is not narrower


def json_option(command: Command) -> Command:
    """`--json`, the same on every command; the function takes `as_json: bool`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys.")(command)


def print_json(value: object) -> None:
    """One JSON document on stdout, in ASCII, so that a path of any bytes survives. Unknown values are null."""
    click.echo(json.dumps(value, indent=2, default=str))


def note(text: str) -> None:
    """A line for the person, on stderr: never part of the result."""
    click.echo(text, err=True)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    folds: Collection[str] | None = None,
    numbers: Collection[str] = (),
) -> None:
    """Rows under headings: drawn on a terminal; in a pipe tab-separated without decoration, each as it comes.

    Where the terminal is narrow the columns that `folds` names take more lines, and the others stay whole, if need be
    in lines wider than it; where it is None all columns may. Those that `numbers` names stand on the right.
    """
    if not sys.stdout.isatty():
        for row in chain((columns,), rows):
            click.echo("\t".join(one_line(cell) for cell in row))
        return
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, collapse_padding=folds is not None, header_style="bold")
    for column in columns:
        side: Literal["left", "right"] = "right" if column in numbers else "left"
        table.add_column(column, overflow="fold", no_wrap=folds is not None and column not in folds, justify=side)
    lines = [columns, *([one_line(cell) for cell in row] for row in rows)]
    for line in lines[1:]:
        table.add_row(*map(Text, line))
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    console = Console()  # rich reads NO_COLOR and TERM
    if folds is not None:
        both = zip(columns, widths, strict=True)
        least = [min(width, _FOLDED) if column in folds else width for column, width in both]
        console.width = max(console.width, sum(least) + len(least) - 1)
    console.print(table)


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """`name  value` lines, aligned."""
    width = max((len(name) for name, _ in fields), default=0)
    for name, value in fields:
        click.echo(f"{name:<{width}}  {one_line(value)}")


def one_line(text: str) -> str:
    """Control characters as escapes, so that a hostile name cannot move the cursor or break a column."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
