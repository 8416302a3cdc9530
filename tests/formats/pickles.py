"""Pickles that name classes which are not here, as torch writes them, by CPython's own pickler in Python."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, eq=False)
class Named:
    """A class or a function."""

    module: str
    name: str


@dataclass(frozen=True, eq=False)
class Made:
    """What calling it with `args` makes. `new`: by its `__new__`, as the pickler does by default."""

    named: Named
    args: tuple[Any, ...] = ()
    state: Any = None
    items: dict[Any, Any] | None = None
    new: bool = False


@dataclass(frozen=True, eq=False)
class Kept:
    """What is kept elsewhere, under this id."""

    pid: tuple[Any, ...]


_Pure: Any = pickle.__dict__["_Pickler"]  # the one in Python, which can be told what to write


class _Pickler(_Pure):  # type: ignore[misc]
    dispatch: ClassVar[dict[type, Any]] = dict(_Pure.dispatch)

    def persistent_id(self, value: object) -> object:
        return value.pid if isinstance(value, Kept) else None

    def __init__(self, out: io.BytesIO, protocol: int) -> None:
        super().__init__(out, protocol)
        self.first: dict[tuple[str, str], Named] = {}

    def save_named(self, value: Named) -> None:
        first = self.first.setdefault((value.module, value.name), value)
        if first is not value:
            self.write(self.get(self.memo[id(first)][0]))
            return
        if self.proto >= 4:
            self.save(value.module)
            self.save(value.name)
            self.write(pickle.STACK_GLOBAL)
        else:
            self.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
        self.memoize(value)

    def save_made(self, value: Made) -> None:
        self.save(value.named)
        self.save(value.args)
        self.write(pickle.NEWOBJ if value.new else pickle.REDUCE)
        self.memoize(value)
        if value.items is not None:
            self._batch_setitems(value.items.items())
        if value.state is not None:
            self.save(value.state)
            self.write(pickle.BUILD)

    dispatch[Named] = save_named
    dispatch[Made] = save_made


def pickled(value: object, protocol: int = 2) -> bytes:
    """One pickle."""
    out = io.BytesIO()
    _Pickler(out, protocol).dump(value)
    return out.getvalue()
