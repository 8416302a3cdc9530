"""Runs a pickle into inert values: nothing is imported, nothing that it names is called.

`fleetctl.checkpoint.opcodes` rewrites the pickle before; the C unpickler runs what comes out. Whatever class or
function the pickle names becomes a `Stub` class of its own, and calling one makes an instance that only keeps its
arguments. What comes out consists of None, booleans, numbers, strings, bytes, tuples, lists, `Map`s (dicts), `Stub`
classes and `Stub`s (objects). A set is a list. It may contain itself, so nobody walks it without a bound.
"""

from __future__ import annotations

import contextlib
import gc
import io
import pickle
from collections.abc import Callable, Iterable, Iterator

from fleetctl.checkpoint import opcodes
from fleetctl.checkpoint.look import Unjudged

_MOST_GLOBALS = 10_000  # a class costs a kilobyte; a checkpoint names some dozens

# What the unpickler raises for garbage; MemoryError and RecursionError are no word about the pickle
_BROKEN = (pickle.UnpicklingError, EOFError, LookupError, TypeError, AttributeError, ValueError, OverflowError)

Allowed = Callable[[str, str], bool]


class Map(list[object]):
    """A dict: its keys and values in turn, unhashed, as keys may be made to collide."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        self.extend(_pair(state))

    def items(self) -> Iterator[tuple[object, object]]:
        """Pairs, in the order in which they were put."""
        return zip(self[::2], self[1::2], strict=False)

    def get(self, key: str) -> object:
        """The value of a key that is a string; None when there is none."""
        try:
            at = self.index(key)
            while at % 2:  # it is a value that has the same words
                at = self.index(key, at + 1)
        except ValueError:
            return None
        return self[at + 1] if at + 1 < len(self) else None

    def __repr__(self) -> str:
        return f"<Map of {len(self) // 2}>"


class Stub:
    """An object of a class or a result of a function that was not imported. `named` is the class's full name.

    `args` are what it was made with, `state` what was set (`__setstate__`), `items` what was put into it: a flat list
    like a Map for one that is a dict, such as OrderedDict.
    """

    __slots__ = ("args", "items", "state")
    named = ""
    args: tuple[object, ...]
    state: object
    items: Map | None

    def __init__(self, *args: object) -> None:
        self.args = args

    def __getattr__(self, name: str) -> tuple[()] | None:
        """What was never set: most are made by thousands, with nothing but a state."""
        if name not in Stub.__slots__:
            raise AttributeError(name)
        return () if name == "args" else None

    def __setstate__(self, state: object) -> None:
        if type(state) is _Pair:
            self.extend(_pair(state))
        else:
            self.state = state

    def extend(self, more: Iterable[object]) -> None:
        """As the unpickler does for each item of a list or dict."""
        if self.items is None:
            self.items = Map()
        self.items.extend(more)

    def append(self, one: object) -> None:
        """As above."""
        self.extend([one])

    def __call__(self, *args: object) -> Stub:
        return Stub(self, *args)

    def __repr__(self) -> str:
        return f"<Stub {type(self).named!a}>"


class Persistent(Stub):
    """What a pickle keeps elsewhere: a storage of torch. `args` are its id."""

    __slots__ = ()


class _Pair(tuple[object, object]):
    """A key with its value, on the way into a dict."""

    __slots__ = ()


def load(raw: bytes, allowed: Allowed = lambda _module, _name: True) -> object:
    """The value of a pickle that is all of `raw`. What `allowed` says no to is refused, not judged.

    :raises ValueError: it is broken; the words continue a name. :raises Unjudged: refused, or too large.
    """
    value, end, _ = load_first(raw, 0, allowed)
    if end != len(raw):
        raise ValueError(f"has {len(raw) - end} bytes behind its pickle")
    return value


def load_first(
    raw: bytes, start: int, allowed: Allowed = lambda _module, _name: True
) -> tuple[object, int, tuple[Persistent, ...]]:
    """The value of the pickle that begins at `start`, where it ends, and the persistent ids that it has.

    :raises ValueError: as for `load`. :raises Unjudged: likewise.
    """
    program, end = opcodes.rewrite(raw, start)
    machine = _Machine(program, allowed)
    try:
        with _uncollected():
            return machine.load(), end, tuple(machine.persistent)
    except Unjudged:
        raise
    except _BROKEN as error:
        raise ValueError(f"has a broken pickle ({type(error).__name__})") from None


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Nothing becomes garbage while a pickle is run; to look for some again and again takes much of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Machine(pickle.Unpickler):
    def __init__(self, program: bytes, allowed: Allowed) -> None:
        super().__init__(io.BytesIO(program), encoding="latin-1")  # no byte of a string of Python 2 is wrong in it
        self._allowed = allowed
        self._classes: dict[tuple[str, str], type[Stub]] = {}
        self.persistent: list[Persistent] = []

    def find_class(self, module: str, name: str) -> type[Stub]:
        found = self._classes.get((module, name))
        if found is None:
            full = f"{module}.{name}"
            if not self._allowed(module, name):
                raise Unjudged(f"refuses its pickle: names {full}")
            if len(self._classes) >= _MOST_GLOBALS:
                raise Unjudged(f"has a pickle that names more than {_MOST_GLOBALS} classes")
            found = type("Stub", (Stub,), {"__slots__": (), "named": full})
            self._classes[module, name] = found
        return found

    def persistent_load(self, pid: object) -> object:
        if pid is None:
            return Map()
        if type(pid) is tuple and len(pid) == 2 and pid[1] is None and type(pid[0]) is tuple:
            return _Pair(pid[0]) if len(pid[0]) == 2 else _made(*pid[0])
        if type(pid) is tuple and len(pid) > 1 and pid[0] == "module" and isinstance(pid[1], type):
            return pid[1]  # a class with its source, as torch writes it in files of its older kind
        stub = Persistent(*(pid if type(pid) is tuple else (pid,)))
        self.persistent.append(stub)
        return stub


def _made(cls: object, args: object, names: object) -> Stub:
    if isinstance(cls, type) and issubclass(cls, Stub) and type(args) is tuple:
        return cls(*args, names)
    raise pickle.UnpicklingError("no class")


def _pair(state: object) -> _Pair:
    if type(state) is not _Pair:
        raise pickle.UnpicklingError("no item")
    return state
