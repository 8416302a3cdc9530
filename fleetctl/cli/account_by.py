"""`--by`: what the rows of an answer are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def by_option(keys: Sequence[str], default: str, *, most: int | None = None) -> Callable[[Command], Command]:
    """`--by KEY,KEY` of `keys`, at most so many; the function takes `by: tuple[str, ...]`."""

    def read(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
        asked = tuple(part.strip() for part in value.split(","))
        if wrong := [part for part in asked if part not in keys]:
            raise click.BadParameter(f"expected some of {', '.join(keys)}, not {wrong[0]!r}", ctx, param)
        if len(set(asked)) < len(asked):
            raise click.BadParameter(f"expected each once, not {value!r}", ctx, param)
        if most is not None and len(asked) > most:
            raise click.BadParameter(f"expected at most {most}, not {value!r}", ctx, param)
        return asked

    one = most == 1
    said = f"One row for each {'of' if one else 'combination of'}: {', '.join(keys)}."
    metavar = "KEY" if one else "KEY,KEY"
    return click.option("--by", default=default, show_default=True, callback=read, metavar=metavar, help=said)
